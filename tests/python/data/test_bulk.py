"""Datasets that make many samples in one call are asked for whole batches."""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import pytest

from headrace.data import DataLoader, Subset


class Calls:
    """Each sample tells how many were requested together. Calls are expensive, samples cost nothing."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> int:
        return 1

    def __getitems__(self, indices: list[int]) -> list[int]:
        time.sleep(0.002)
        return [len(indices)] * len(indices)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("collate", [None, np.array], ids=["default", "own"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_each_call_makes_a_batch(workers: int, collate: Any, wrapped: bool) -> None:
    dataset = Subset(Calls(), range(1000)) if wrapped else Calls()
    loader = DataLoader(dataset, batch_size=64, drop_last=True, num_workers=workers, collate_fn=collate)
    for _ in range(2):
        assert set(np.concatenate(list(loader)).tolist()) == {64}


class Differing(Calls):
    """Samples that do not fit the places of earlier ones."""

    def __init__(self) -> None:
        self.calls = 0

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.calls += 1
        return [float(self.calls) if i % 2 else self.calls for i in indices]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_differ_are_made_once(workers: int) -> None:
    loader = DataLoader(Differing(), batch_size=4, sampler=[0, 2, 4, 6, 8, 9, 10, 11], num_workers=workers)
    first, second = loader
    assert first.tolist() == [1, 1, 1, 1]
    assert second.tolist() == [2, 2, 2, 2]
    assert second.dtype == np.float64


class Columns(Calls):
    """Reads a batch at once, as a table does."""

    def __getitems__(self, indices: list[int]) -> Any:
        return {"index": np.array(indices), "square": np.array(indices) ** 2}


class Nothing(Calls):
    def __getitems__(self, indices: list[int]) -> Any:
        return None


def as_it_is(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_what_a_collate_function_is_given_may_be_a_batch_already(workers: int) -> None:
    loader = DataLoader(Columns(), batch_size=64, num_workers=workers, collate_fn=as_it_is)
    batches = list(loader)
    assert np.concatenate([batch["square"] for batch in batches]).tolist() == [i * i for i in range(1024)]
    assert {len(batch["index"]) for batch in batches} == {64}


class Selective(Calls):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [index for index in indices if index % 3]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_collate_function_may_be_given_fewer_samples_than_were_asked_for(workers: int) -> None:
    loader = DataLoader(Selective(), batch_size=64, num_workers=workers, collate_fn=as_it_is)
    expected = [[i for i in range(begin, begin + 64) if i % 3] for begin in range(0, len(Selective()), 64)]
    for _ in range(2):
        assert list(loader) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_no_list_of_samples_is_an_error(workers: int) -> None:
    with pytest.raises(TypeError, match="__getitems__ must return a list of samples, got NoneType"):
        next(iter(DataLoader(Nothing(), batch_size=4, num_workers=workers)))
    with pytest.raises(ValueError, match="__getitems__ was asked for 4 samples and gave 2"):
        next(iter(DataLoader(Columns(), batch_size=4, num_workers=workers)))


def test_with_fewer_batches_in_flight_than_workers_they_are_cut() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no worker is idle
        loader = DataLoader(Calls(), batch_size=64, num_workers=3, prefetch_factor=1)
    assert np.concatenate(list(loader)).max() < 64


def test_workers_that_have_no_batch_to_make_are_reported() -> None:
    for arguments in ({"dataset": Calls(), "batch_size": 1}, {"dataset": range(64), "collate_fn": as_it_is}):
        with pytest.warns(RuntimeWarning, match="prefetch_factor=1 leaves 2 of 3 workers idle"):
            DataLoader(num_workers=3, prefetch_factor=1, **{"batch_size": 64, **arguments})


@pytest.mark.parametrize("arguments", [{"batch_size": 1}, {"batch_size": None}, {"batch_size": 8}])
def test_every_worker_has_a_batch_to_make(arguments: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for workers in (1, 3, 20):
            assert DataLoader(Calls(), num_workers=workers, **arguments).prefetch_factor == 4 * workers
            assert DataLoader(iter([1]), num_workers=workers, **arguments).prefetch_factor == 4 * workers
    assert DataLoader(range(9), batch_size=3, num_workers=20).prefetch_factor == 8
