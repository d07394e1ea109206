"""Batches as they become ready (``in_order=False``)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from loader_datasets import Gated, Ints, Raising

from headrace.data import DataLoader, RandomSampler, SeekableSampler
from headrace.data._iteration.progress import _UnorderedProgress


def gated_loader(num_workers: int, sampler: SeekableSampler | None = None) -> DataLoader:
    """Makes a loader of 12 batches. With workers, the first batch is delayed, and up to two workers with it."""
    dataset = Gated(24, *([0, 1] if sampler is None else sampler.order(0, 0, 2).tolist()))
    more: dict[str, Any] = {}
    if num_workers == 0:
        dataset.gate.set()
    else:
        more = {"prefetch_factor": 6, "multiprocessing_context": "fork"}
    return DataLoader(dataset, 2, sampler=sampler, num_workers=num_workers, in_order=False, seed=1, **more)


def test_a_slow_sample_holds_up_its_own_batch_only() -> None:
    loader = gated_loader(3)
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(11)]
    assert sorted(got) == [[i, i + 1] for i in range(2, 24, 2)]
    loader.dataset.gate.set()
    assert next(iterator).tolist() == [0, 1]
    assert list(iterator) == []


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("sampler", [None, RandomSampler(range(24), generator=3)], ids=["built in", "sampler"])
def test_resuming_gives_the_batches_that_were_not_taken(num_workers: int, sampler: Any) -> None:
    def take(loader: DataLoader, count: int) -> list[tuple[int, ...]]:
        iterator = iter(loader)
        try:
            return [tuple(next(iterator).tolist()) for _ in range(count)]
        finally:
            loader.dataset.gate.set()  # nothing waits for these any more

    for taken in (1, 4, 9):
        loader, other, third = (gated_loader(num_workers, sampler) for _ in range(3))
        before = take(loader, taken)
        state = json.loads(json.dumps(loader.state_dict()))
        assert ("skip" in json.loads(state["details"])) == (num_workers > 0)
        other.load_state_dict(state)
        after = take(other, 1)
        third.load_state_dict(other.state_dict())
        third.dataset.gate.set()
        after += [tuple(batch.tolist()) for batch in third]
        assert len(before) + len(after) == 12
        assert sorted(i for batch in before + after for i in batch) == list(range(24))
        assert len(list(third)) == 12


class CountedWalks(tuple):  # type: ignore[type-arg]
    """Counts how often it is iterated over."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        CountedWalks.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("batches", [100, 1000])
def test_resuming_with_many_skipped_batches_does_not_cost_their_product(batches: int) -> None:
    loader = DataLoader(Ints(4 * batches), 2, sampler=RandomSampler(range(4 * batches), generator=3), in_order=False)
    whole = [batch.tolist() for batch in loader]
    skip = {"skip": list(range(1, 2 * batches, 2))}
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "details": json.dumps(skip)})
    epochs = loader._epochs
    epochs.next = dataclasses.replace(epochs.next, skip=CountedWalks(epochs.next.skip))
    CountedWalks.walks = 0
    assert [batch.tolist() for batch in loader] == whole[::2]
    assert CountedWalks.walks <= 3


def test_what_a_slow_batch_costs_those_that_overtake_it() -> None:
    """Their set is copied each time it has doubled, not for each of them."""
    place, sets = _UnorderedProgress(0, frozenset()), []
    for batch in range(1, 10_001):
        place = place.after(SimpleNamespace(batch=batch))
        if not sets or place.ahead is not sets[-1]:
            sets.append(place.ahead)
    assert len(sets) <= 12
    assert place.position() == {"batch": 0, "skip": tuple(range(1, 10_001))}
    assert place.after(SimpleNamespace(batch=0)).position() == {"batch": 10_001, "skip": ()}


def test_an_error_consumes_its_batch() -> None:
    loader = DataLoader(Raising(12, 5), 2, num_workers=2, in_order=False, seed=1)
    iterator = iter(loader)
    got, failures = [], 0
    while True:
        try:
            got.append(next(iterator).tolist())
        except StopIteration:
            break
        except KeyError:
            failures += 1
    assert failures == 1
    assert sorted(got) == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]
