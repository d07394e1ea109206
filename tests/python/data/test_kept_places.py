"""Datasets that keep the place they get (``out``) beyond the call."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from headrace.data import DataLoader

ROWS = 64


class Keeping:
    """Keeps the place of each sample, or a view of it, and scribbles into all places it has kept."""

    sample_spec = ((ROWS,), "int64")

    def __init__(self, length: int, view: bool = False, raising: int | None = None) -> None:
        self.length = length
        self.view = view
        self.raising = raising
        self.kept: list[tuple[int, Any]] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int, out: Any = None) -> Any:
        for _, place in self.kept:
            place[...] = -1
        assert out is not None
        out[...] = index
        self.kept.append((index, out[8:16] if self.view else out))
        if index == self.raising:
            raise ValueError("torn")
        return None


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_kept_place_is_never_in_a_later_batch(num_workers: int, view: bool) -> None:
    # Within a claim the dataset may spoil its places; here each sample is a claim of its own.
    loader = DataLoader(Keeping(40, view), batch_size=1, num_workers=num_workers)
    assert [np.unique(batch).tolist() for batch in loader] == [[index] for index in range(40)]


def test_a_kept_place_has_the_sample_that_it_was_filled_with() -> None:
    class Remembering(Keeping):
        def __getitem__(self, index: int, out: Any = None) -> Any:
            assert out is not None
            out[...] = index
            self.kept.append((index, out))
            return out

    dataset = Remembering(12)
    batches = [batch.copy() for batch in DataLoader(dataset, batch_size=4)]
    gc.collect()
    assert [np.unique(place).tolist() for _, place in dataset.kept] == [[index] for index in range(12)]
    assert np.concatenate(batches)[:, 0].tolist() == list(range(12))


def test_a_kept_place_outlives_the_loader() -> None:
    dataset = Keeping(2)
    loader = DataLoader(dataset, batch_size=1)
    next(iter(loader))
    loader.shutdown()
    del loader
    gc.collect()
    _, place = dataset.kept[0]
    place[...] = 7
    assert place.sum() == 7 * ROWS


def test_places_of_samples_that_raise_may_be_kept_too() -> None:
    dataset = Keeping(6, raising=2)
    iterator = iter(DataLoader(dataset, batch_size=1))
    values = []
    while True:
        try:
            values.append(int(next(iterator)[0, 0]))
        except StopIteration:
            break
        except ValueError:
            values.append(-2)
    assert values == [0, 1, -2, 3, 4, 5]


def test_a_place_that_is_not_kept_is_not_copied() -> None:
    addresses = set()

    class Filling(Keeping):
        def __getitem__(self, index: int, out: Any = None) -> Any:
            assert out is not None
            addresses.add(out.ctypes.data)
            out[...] = index
            return out

    for batch in DataLoader(Filling(50), batch_size=1):
        assert batch[0, 0] == batch[0, -1]
        del batch
    assert len(addresses) <= 4  # those of the few slots that are used again and again


def test_the_memory_of_a_kept_place_goes_with_it() -> None:
    dataset = Keeping(3)
    list(DataLoader(dataset, batch_size=1))
    base = dataset.kept[0][1]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert sys.getrefcount(base.base) >= 2
    watched = weakref.ref(dataset.kept[0][1])
    dataset.kept.clear()
    del base
    gc.collect()
    assert watched() is None
