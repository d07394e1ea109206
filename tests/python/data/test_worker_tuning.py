"""num_workers="auto": the loader finds the number of workers."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from loader_datasets import GloballyRandom, Ints, Random, same

import headrace.fluid as fluid
from headrace import errors
from headrace.data import DataLoader
from headrace.data._worker_tuning import Tuning, Window, WorkerTuner
from headrace.fluid import core

BEFORE: dict[str, Any] = {
    "elapsed_s": 0.0,
    "batches": 5,
    "claims": 0,
    "samples": 0,
    "consumer_wait_s": 0,
    "worker_busy_s": 0,
    "processor_s": 0.0,
    "starting": False,
}


def settle(tuner: WorkerTuner, throughput: Any, consumer: float, steps: int = 60, computing: float = 1.0) -> list[int]:
    """Runs the tuner against a model of how fast n workers make samples and how fast the consumer takes them."""
    workers, path = 1, []
    for _ in range(steps):
        made = throughput(workers)
        taken = min(made, consumer)
        wait = max(0.0, 1 - made / consumer)
        workers = tuner.decide(workers, Window(taken, wait, min(1.0, taken / made), computing))
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


def test_workers_that_wait_are_four_to_a_processor() -> None:
    path = settle(WorkerTuner(2), lambda n: 100 * n, consumer=1e9, computing=0.01)
    assert path[:3] == [2, 4, 8]
    assert max(path) == 8
    assert max(settle(WorkerTuner(2), lambda n: 100 * n, consumer=1e9, computing=0.4)) == 5


def test_workers_that_have_nothing_to_do_are_let_go() -> None:
    tuner = WorkerTuner(16)
    workers = 8
    for _ in range(20):
        workers = tuner.decide(workers, Window(100, 0.0, 1.0 / workers))
    assert workers == 2


def test_nothing_is_decided_while_nobody_takes_batches() -> None:
    tuning = Tuning(8)
    counters = dict(BEFORE)
    assert tuning.propose(4, counters) == 4
    assert tuning.propose(4, {**counters, "elapsed_s": 9.0, "claims": 100, "samples": 9}) == 4


def test_what_the_counters_say_decides() -> None:
    """In ten seconds the consumer waited for five, and the workers were busy throughout."""
    tuning = Tuning(8)
    after = {
        "elapsed_s": 10.0,
        "batches": 500,
        "claims": 100,
        "samples": 900,
        "consumer_wait_s": 5.0,
        "worker_busy_s": 39.0,
        "processor_s": 39.0,
        "starting": False,
    }
    assert tuning.propose(4, BEFORE) == 4
    assert tuning.propose(4, after) == 5
    # The fifth worker gained nothing.
    later = {name: value * 2 for name, value in after.items()}
    assert tuning.propose(5, {**later, "worker_busy_s": 80.0}) == 4


def test_what_happens_while_workers_start_does_not_count() -> None:
    tuning = Tuning(8)
    busy = {"elapsed_s": 10.0, "batches": 500, "claims": 100, "samples": 900, "consumer_wait_s": 5.0}
    busy |= {"worker_busy_s": 39.0, "processor_s": 0.1}
    assert tuning.propose(4, BEFORE) == 4
    assert tuning.propose(4, {**busy, "starting": True}) == 4
    assert tuning.propose(4, {**busy, "starting": False}) == 4
    busy = {name: 2 * value for name, value in busy.items()}
    assert tuning.propose(4, {**busy, "starting": False}) == 8


class Waiting(Ints):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index)


def test_a_dataset_that_waits_is_given_many_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data._workers.group.processors", lambda: 2)
    # Of a machine with nothing else to do.
    monkeypatch.setattr("headrace.data._workers.process_pool.processor_seconds", lambda pid: 1e-3 * time.monotonic())
    counts = worker_counts(Waiting(12_000), until=8)
    assert max(counts) == counts[-1] == 8


def test_a_dataset_that_computes_is_given_a_worker_for_each_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data._workers.group.processors", lambda: 2)
    # More workers would be faster, so that nothing but their computing tells how many there may be.
    monkeypatch.setattr("headrace.data._workers.process_pool.processor_seconds", lambda pid: time.monotonic())
    assert max(worker_counts(Waiting(500), until=3)) <= 2


def worker_counts(dataset: Any, until: int) -> list[int]:
    """The numbers of workers during an epoch, up to the first time that there are ``until``."""
    counts = []
    loader = DataLoader(dataset, 4, num_workers="auto")
    for _ in loader:
        counts.append(loader.stats()["workers"])
        if counts[-1] >= until:
            break
    return counts


class Script:
    """Replaces :class:`Tuning`: proposes another number of workers at each call."""

    due = 0.0  # at any time

    def __init__(self, most: int) -> None:
        self.most = most
        self.proposals: Iterator[int] = itertools.cycle([4, 4, 1, 3, 2, 2, 5, 1])
        self.asked = 0
        self.most_started = most

    def propose(self, workers: int, counters: dict[str, Any]) -> int:
        self.asked += 1
        return next(self.proposals)

    def limit(self, workers: int) -> None:
        self.most_started = workers


def test_the_batches_stay_the_same_while_workers_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data._workers.group.Tuning", Script)
    loader = DataLoader(Random(400), 4, shuffle=True, seed=3, num_workers="auto")
    numbers, got = [], []
    for _ in range(2):
        for batch in loader:
            numbers.append(loader.stats()["workers"])
            got.append(batch)
    assert numbers[:3] == [4, 4, 1]
    # A worker that was let go must end before another gets its number.
    while not any(loader.stats()["workers"] > 1 for _ in loader):
        pass
    plain = DataLoader(Random(400), 4, shuffle=True, seed=3)
    assert len(got) == 200
    assert all(map(same, got, [*plain, *plain]))


def test_workers_that_come_again_draw_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data._workers.group.Tuning", Script)
    numbers = []
    loader = DataLoader(GloballyRandom(400), 4, seed=3, num_workers="auto")
    for batch in loader:
        numbers += [float(number) for column in batch for number in column]
    assert len(set(numbers)) == len(numbers) == 800


def test_it_begins_with_one_worker_and_knows_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Still(Script):
        def __init__(self, most: int) -> None:
            super().__init__(most)
            self.proposals = itertools.repeat(1)
            made.append(self)

    monkeypatch.setattr("headrace.data._workers.group.Tuning", Still)
    loader = DataLoader(Ints(40), 4, num_workers="auto")
    assert {loader.stats()["workers"] for _ in loader} == {1}
    assert [tuning.most for tuning in made] == [len(os.sched_getaffinity(0))]
    assert made[0].asked >= 10


@pytest.mark.parametrize("step", ["start_later", "_watch"])
def test_a_worker_that_cannot_start_is_done_without(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data._workers.group.Tuning", Script)
    loader = DataLoader(Random(40), 4, shuffle=True, seed=3, num_workers="auto")
    iterator: Any = iter(loader)
    engine = iterator._engine
    pool = engine.workers.pool

    def refuse(*arguments: Any) -> None:
        raise errors.IoError("cannot start worker 1: no more of them")

    monkeypatch.setattr(pool._starter if step == "start_later" else pool, step, refuse)
    with pytest.warns(RuntimeWarning, match="stays at 1 workers, since it cannot add another: cannot start worker 1"):
        got = list(iterator)
    assert engine.workers.tuning.most_started == 1
    assert len(multiprocessing.active_children()) == 1
    assert all(map(same, got, DataLoader(Random(40), 4, shuffle=True, seed=3)))
    assert len(got) == 10


def test_no_more_workers_are_tried_than_could_start() -> None:
    tuner = WorkerTuner(16)
    tuner.limit(3)
    assert max(settle(tuner, lambda n: 100 * n, consumer=1e9)) == 3


def test_a_feed_is_tuned_by_a_thread_that_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data._workers.group.Tuning", Script)
    queue = core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 2, [[-1]])
    loader = DataLoader(Ints(4000), 4, num_workers="auto")
    feed = loader._feed(queue)
    while loader.stats()["workers"] == 1:
        time.sleep(0.01)
    while True:
        try:
            queue.pop(timeout=100)
        except core.EOFException:
            break
    feed.stop()
    for thread in threading.enumerate():
        if thread.name == "headrace-tune":
            thread.join()


@pytest.mark.parametrize("second", ["replace_dead", "close", "note"])
def test_only_one_thread_at_a_time_changes_the_workers(second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread starts a worker, another wants to replace, stop or kill some."""
    monkeypatch.setattr("headrace.data._workers.group.Tuning", Script)
    loader = DataLoader(Ints(40), 4, num_workers="auto", timeout=1000)
    engine, _ = loader._epochs.start()
    pool: Any = engine.workers.pool
    inside, meanwhile = threading.Event(), threading.Event()
    resize = pool.resize

    def slow_resize(*arguments: Any) -> Any:
        inside.set()
        assert not meanwhile.wait(0.5), "two threads at once"
        return resize(*arguments)

    def note(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            meanwhile.set()
            return method(*arguments)

        return call

    pool.resize = slow_resize
    for name in ("replace_dead", "stop", "explain", "end_hung"):
        setattr(pool, name, note(getattr(pool, name)))
    failures: list[BaseException] = []

    def tune() -> None:
        try:
            engine.workers.tune()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=tune)
    thread.start()
    inside.wait()
    if second == "note":
        engine.stall.note()
        with pytest.raises(errors.Timeout):
            engine.stall.note()
    else:
        getattr(engine.workers, second)()
    thread.join()
    assert failures == []
    assert meanwhile.is_set()
    del pool.resize, pool.replace_dead, pool.stop, pool.explain, pool.end_hung
    engine.close()


@pytest.mark.parametrize("arguments", [{"workers": "thread"}, {"order": "grain"}], ids=str)
def test_what_depends_on_the_number_of_workers_excludes_it(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match='num_workers="auto"'):
        DataLoader(Ints(4), num_workers="auto", **arguments)
