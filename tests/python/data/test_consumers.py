"""Other libraries use batches without copying them, and their arrays may be in samples."""

from __future__ import annotations

import gc
import importlib
from typing import Any

import numpy as np
import pytest
from loader_datasets import Samples, Vectors

from headrace.data import DataLoader


def torch_tensor(array: Any) -> tuple[Any, int]:
    tensor = pytest.importorskip("torch").from_dlpack(array)
    return tensor, tensor.data_ptr()


def jax_array(array: Any) -> tuple[Any, int]:
    pytest.importorskip("jax")
    result = importlib.import_module("jax.dlpack").from_dlpack(array)
    return result, result.unsafe_buffer_pointer()


def numpy_array(array: Any) -> tuple[Any, int]:
    result = np.from_dlpack(array)
    return result, result.ctypes.data


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize("consumer", [numpy_array, torch_tensor, jax_array])
def test_dlpack_shares_the_slot_and_keeps_it(consumer: Any) -> None:
    loader = DataLoader(Vectors(64), 2, num_workers=1, to="numpy")
    kept = []
    for number, (values, _) in enumerate(loader):
        result, address = consumer(values)
        assert address == values.ctypes.data
        if number < 5:
            kept.append(result)
    del values, result, _
    gc.collect()
    assert loader.stats()["held_slots"] == 5
    for _ in loader:
        pass
    for number, result in enumerate(kept):
        assert np.asarray(result)[:, 0, 0].tolist() == [2 * number, 2 * number + 1]


def test_who_writes_into_a_batch_has_it_alone() -> None:
    loader = DataLoader(Vectors(8), 2, num_workers=1)
    first = list(loader)
    for values, _ in first:
        values += 100
    assert [values[0, 0, 0] for values, _ in loader] == [0, 2, 4, 6]
    assert [values[0, 0, 0] for values, _ in first] == [100, 102, 104, 106]


def test_arrays_of_jax_in_samples_become_arrays() -> None:
    pytest.importorskip("jax")
    numpy = importlib.import_module("jax.numpy")
    sample = numpy.ones(3), numpy.float32(2), numpy.ones(1, "bfloat16")
    (batch,) = DataLoader(Samples([sample, sample]), batch_size=2)
    got = [(part.dtype.name, part.shape) for part in batch]
    assert got == [("float32", (2, 3)), ("float32", (2,)), ("bfloat16", (2, 1))]
