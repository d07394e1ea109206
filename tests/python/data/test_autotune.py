"""Finding the number of workers."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from loader_datasets import Ints, Random, same

from headrace.data import DataLoader
from headrace.data._autotune import Tuning, Window, WorkerTuner


def settle(tuner: WorkerTuner, throughput: Any, consumer: float, steps: int = 60) -> list[int]:
    """Runs the tuner against a model: so many samples per second with n workers, and a consumer that takes so many."""
    workers, path = 1, []
    for _ in range(steps):
        made = throughput(workers)
        taken = min(made, consumer)
        wait = max(0.0, 1 - made / consumer)
        workers = tuner.decide(workers, Window(taken, wait, min(1.0, taken / made)))
        path.append(workers)
    return path


def test_workers_are_added_until_the_consumer_no_longer_waits() -> None:
    path = settle(WorkerTuner(16), lambda n: 100 * n, consumer=450)
    assert path[-1] in (5, 6)
    assert len(set(path[20:])) == 1


def test_workers_that_bring_nothing_are_taken_back() -> None:
    path = settle(WorkerTuner(16), lambda n: 100 * min(n, 3), consumer=1000)
    assert path[10:15] == [3] * 5
    assert max(path) == 4


def test_there_are_never_more_than_allowed() -> None:
    assert max(settle(WorkerTuner(2), lambda n: 100 * n, consumer=1e9)) == 2


def test_workers_that_have_nothing_to_do_are_let_go() -> None:
    tuner = WorkerTuner(16)
    workers = 8
    for _ in range(20):
        workers = tuner.decide(workers, Window(100, 0.0, 1.0 / workers))
    assert workers == 2


def test_nothing_is_decided_while_nobody_takes_batches() -> None:
    tuning = Tuning(8)
    counters = {"elapsed_s": 0.0, "batches": 5, "claims": 0, "samples": 0, "consumer_wait_s": 0, "worker_busy_s": 0}
    assert tuning.propose(4, counters) == 4
    assert tuning.propose(4, {**counters, "elapsed_s": 9.0, "claims": 100, "samples": 9}) == 4


class Waiting(Random):
    """Waits as if for a disk."""

    def __getitem__(self, index: int, rng: Any) -> Any:  # type: ignore[override]
        time.sleep(0.004)
        return super().__getitem__(index, rng)


def test_the_batches_stay_the_same_while_workers_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data._autotune._INTERVAL", 0.05)
    monkeypatch.setattr("headrace.data._engine.most_workers", lambda: 4)
    loader = DataLoader(Waiting(800), 4, shuffle=True, seed=3, num_workers="auto")
    seen = set()
    got = []
    for batch in loader:
        seen.add(loader.stats()["workers"])
        got.append(batch)
    assert max(seen) > 1
    for number, batch in enumerate(loader):  # nobody hurries any more
        got.append(batch)
        time.sleep(0.05)
        if loader.stats()["workers"] == 1 or number == 150:
            break
    assert loader.stats()["workers"] < max(seen)
    plain = DataLoader(Random(800), 4, shuffle=True, seed=3)
    assert all(map(same, got, [*plain, *plain]))
    assert len(got) > 200


def test_it_begins_with_one_worker_and_stays_within_the_processors() -> None:
    loader = DataLoader(Ints(4000), 4, num_workers="auto")
    for _ in loader:
        assert 1 <= loader.stats()["workers"] <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("arguments", [{"workers": "thread"}, {"order": "grain"}], ids=str)
def test_what_depends_on_the_number_of_workers_excludes_it(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='num_workers="auto"'):
        DataLoader(Ints(4), num_workers="auto", **arguments)
