"""Datasets that fill their rows of the batch themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, Point

from headrace.data import DataLoader
from headrace.data._samples.describe import describe, sample_prototype


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Filling(Ints):
    """Fills its place if it gets one, and says in the sample whether it did; returns what ``answer`` asks for."""

    def __init__(self, length: int, answer: str = "out") -> None:
        super().__init__(length)
        self.answer = answer

    def __getitem__(self, index: int, out: Any = None) -> Any:
        if out is None:
            return {"values": np.full((2, 3), index, np.float32), "label": index, "placed": False}
        assert out["values"].shape == (2, 3)
        out["values"][...] = index
        out["label"][()] = index
        out["placed"][()] = True
        if self.answer == "parts":
            return {"values": out["values"], "label": out["label"], "placed": out["placed"]}
        if self.answer == "new":
            return {"values": np.full((2, 3), -index, np.float32), "label": index, "placed": True}
        return out if self.answer == "out" else None


class WithSpec(Filling):
    sample_spec = {"values": ((2, 3), "float32"), "label": 0, "placed": False}  # noqa: RUF012


@pytest.mark.parametrize("answer", ["out", "none", "parts"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_row_is_filled_in_place(answer: str, num_workers: int) -> None:
    for _ in range(2):
        batches = list(DataLoader(Filling(40, answer), batch_size=8, num_workers=num_workers))
        assert np.concatenate([batch["label"] for batch in batches]).tolist() == list(range(40))
        assert all((batch["values"] == batch["label"][:, None, None]).all() for batch in batches)
        unplaced = sum((~batch["placed"]).sum() for batch in batches)
        assert 1 <= unplaced <= max(1, num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_a_spec_the_first_sample_has_its_place(num_workers: int) -> None:
    batches = list(DataLoader(WithSpec(12), batch_size=4, num_workers=num_workers))
    assert all(batch["placed"].all() for batch in batches)
    assert batches[2]["values"][3, 1, 2] == 11


def test_another_sample_than_the_place_counts() -> None:
    (batch,) = DataLoader(WithSpec(3, "new"), batch_size=3)
    assert batch["values"][:, 0, 0].tolist() == [0, -1, -2]


def test_a_place_is_the_batch() -> None:
    addresses = []

    class Seen(WithSpec):
        def __getitem__(self, index: int, out: Any = None) -> Any:
            addresses.append(out["values"].ctypes.data)
            return super().__getitem__(index, out)

    (batch,) = DataLoader(Seen(3), batch_size=3)
    assert addresses[2] - addresses[0] == batch["values"].strides[0] * 2


class Named(Filling):
    """Also has a name, for which there is no place."""

    def __getitem__(self, index: int, out: Any = None) -> Any:
        if out is None:
            return np.full(2, index), f"name {index}"
        values, name = out
        assert name is None
        values[:] = index
        return out if self.answer == "out" else (values, f"name {index}")


def test_parts_without_a_place_are_returned() -> None:
    values, names = next(iter(DataLoader(Named(5, "parts"), batch_size=5)))
    assert values[:, 0].tolist() == list(range(5))
    assert names == [f"name {i}" for i in range(5)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_place_does_not_stand_for_a_sample_with_texts(num_workers: int) -> None:
    with pytest.raises(TypeError, match=r"returned out, or None.*return the whole sample"):
        next(iter(DataLoader(Named(5), batch_size=5, num_workers=num_workers)))


class Changing(Filling):
    """The shape changes at the sixth sample."""

    def __getitem__(self, index: int, out: Any = None) -> Any:
        shape = (3,) if index < 6 else (4,)
        if out is not None and out.shape == shape:
            out[:] = index
            return out
        return np.full(shape, index)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_may_differ_in_shape(num_workers: int) -> None:
    batches = list(DataLoader(Changing(12), batch_size=3, num_workers=num_workers))
    assert [batch.shape for batch in batches] == [(3, 3)] * 2 + [(3, 4)] * 2
    assert [batch[:, 0].tolist() for batch in batches] == np.arange(12).reshape(4, 3).tolist()


def test_within_a_batch_they_may_not() -> None:
    with pytest.raises(ValueError, match=r"sample 6 .*shape \(4,\), expected shape \(3,\)"):
        list(DataLoader(Changing(12), batch_size=12, num_workers=1))


class Structures(Ints):
    def __init__(self, sample: Any) -> None:
        super().__init__(3)
        self.sample = sample
        self.seen: list[Any] = []

    def __getitem__(self, index: int, out: Any = None) -> Any:
        self.seen.append(out)
        return self.sample


@pytest.mark.parametrize(
    "sample",
    [
        np.zeros(2),
        [np.zeros(2), 1.5],
        (np.zeros(2), (True,)),
        Point(np.zeros(2), {"a": np.float32(1)}),
        Pair(np.zeros(2), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_place_has_the_samples_structure(sample: Any) -> None:
    dataset = Structures(sample)
    list(DataLoader(dataset, batch_size=3))
    assert dataset.seen[0] is None
    place = dataset.seen[1]
    assert type(place) is type(sample)

    def leaves(value: Any) -> list[Any]:
        if isinstance(value, (list, tuple)):
            return [leaf for child in value for leaf in leaves(child)]
        if isinstance(value, Pair):
            return leaves((value.left, value.right))
        return leaves(list(value.values())) if isinstance(value, dict) else [value]

    assert [leaf.shape for leaf in leaves(place)] == [np.shape(leaf) for leaf in leaves(sample)]
    assert [leaf.dtype for leaf in leaves(place)] == [np.asarray(leaf).dtype for leaf in leaves(sample)]


def test_the_place_of_a_tensor_is_a_tensor() -> None:
    torch = pytest.importorskip("torch")

    class Tensors(Ints):
        sample_spec = (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16))

        def __getitem__(self, index: int, out: Any = None) -> Any:
            out[0].fill_(index)
            out[1].fill_(index)
            return out

    first, second = next(iter(DataLoader(Tensors(3), batch_size=3, to="torch")))
    assert first[:, 1].tolist() == second[:, 1].tolist() == [0, 1, 2]
    assert second.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (((2, 3), "float32"), np.zeros((2, 3), np.float32)),
        ((4, np.uint8), np.zeros(4, np.uint8)),
        (((), int), np.zeros((), np.int64)),
        ((((2,), "i4"), 0), (np.zeros(2, np.int32), 0)),
        ({"a": ((1,), "f8"), "b": [np.zeros(3)]}, {"a": np.zeros(1), "b": [np.zeros(3)]}),
        (Point(((1,), "f8"), "name"), Point(np.zeros(1), "name")),
        (Pair(((1,), "f8"), 1.0), Pair(np.zeros(1), 1.0)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_spec_is_pairs_or_examples(spec: Any, expected: Any) -> None:
    assert describe(sample_prototype(spec))[:2] == describe(expected)[:2]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_spec_that_is_none_is_a_clear_error(num_workers: int) -> None:
    class Wrong(Filling):
        sample_spec = ((2, 3), "no type")

    loader = DataLoader(
        Wrong(3), batch_size=3, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None
    )
    with pytest.raises(TypeError, match="no type"):
        next(iter(loader))
