"""Batches as they become ready (``in_order=False``)."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from loader_datasets import Ints, Raising

from headrace.data import DataLoader, RandomSampler


class SlowFirst(Ints):
    """The first samples take long."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.3 if index < 2 else 0.001)
        return index


def test_a_slow_sample_holds_up_its_own_batch_only() -> None:
    loader = DataLoader(SlowFirst(24), 2, num_workers=3, in_order=False, seed=1, prefetch_factor=6)
    got = [batch.tolist() for batch in loader]
    assert sorted(got) == [[i, i + 1] for i in range(0, 24, 2)]
    assert got[0] != [0, 1]


@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("sampler", [None, RandomSampler(range(24), generator=3)], ids=["built in", "sampler"])
def test_resuming_gives_the_batches_that_were_not_taken(num_workers: int, sampler: Any) -> None:
    def make() -> DataLoader:
        more: dict[str, Any] = {"prefetch_factor": 6} if num_workers else {}
        return DataLoader(SlowFirst(24), 2, sampler=sampler, num_workers=num_workers, in_order=False, seed=1, **more)

    for taken in (1, 4, 11):
        loader = make()
        iterator = iter(loader)
        before = [tuple(next(iterator).tolist()) for _ in range(taken)]
        state = json.loads(json.dumps(loader.state_dict()))
        other = make()
        other.load_state_dict(state)
        rest = iter(other)
        after = [tuple(next(rest).tolist()) for _ in range(2 if taken < 10 else 1)]
        third = make()
        third.load_state_dict(other.state_dict())
        after += [tuple(batch.tolist()) for batch in third]
        assert len(before) + len(after) == 12
        assert sorted(i for batch in before + after for i in batch) == list(range(24))
        assert len(list(third)) == 12


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
