"""One iterator in several hands: threads, forked children, and the dataset that makes its batches."""

from __future__ import annotations

import collections
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from loader_datasets import Ints

from headrace import _core, errors
from headrace.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler


class Slow(Ints):
    """Its samples take a little while, so that batches are in the making all the time."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.0005)
        return index


def refused(batches: Iterator[Any]) -> bool:
    """Whether a forked child gets its error."""
    try:
        next(batches)
    except errors.FailedPrecondition as error:
        return "belongs to the process" in str(error)
    return False


ORDERS: dict[str, Any] = {
    "a list": lambda: {"batch_size": 4, "sampler": list(range(600))},
    "a batch_sampler": lambda: {"batch_sampler": BatchSampler(SequentialSampler(Ints(600)), 4, drop_last=False)},
    "none": lambda: {"batch_size": 4},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_forked_children_are_refused_and_change_nothing(order: str, num_workers: int) -> None:
    context = {"multiprocessing_context": "fork"} if num_workers else {}
    loader = DataLoader(Slow(600), num_workers=num_workers, **ORDERS[order](), **context)
    batches = iter(loader)
    children, got = [], []
    for number in range(150):
        if number % 10 == 5:
            child = os.fork()
            if child == 0:
                os._exit(0 if refused(batches) and refused(batches) else 1)
            children.append(child)
        got.append(next(batches).tolist())
    assert got == [list(range(begin, begin + 4)) for begin in range(0, 600, 4)]
    assert next(batches, None) is None
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)


@pytest.mark.parametrize(
    "workers", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}], ids=["none", "processes", "threads"]
)
def test_threads_that_share_an_iterator_take_turns(workers: dict[str, Any]) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        loader = DataLoader(Ints(1200), 2, sampler=list(range(1200)), **workers)
        batches = iter(loader)
        got: list[list[tuple[int, ...]]] = [[] for _ in range(4)]
        failures: list[BaseException] = []

        def iterate(mine: list[tuple[int, ...]]) -> None:
            try:
                for batch in batches:
                    mine.append(tuple(batch.tolist()))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=iterate, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failures == []
        assert sorted(batch for mine in got for batch in mine) == [(i, i + 1) for i in range(0, 1200, 2)]
        assert all(mine == sorted(mine) for mine in got)
        assert loader.state_dict()["epoch"] == 1
    finally:
        sys.setswitchinterval(interval)


class Again(Ints):
    """Sample 5 asks the iterator that it is made for, for a batch."""

    batches: Iterator[Any]

    def __getitem__(self, index: int) -> Any:
        return next(self.batches)[0] if index == 5 else index


class AgainStream(IterableDataset[Any]):
    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        yield from range(5)
        yield next(self.batches)[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "workers": "thread"}], ids=["none", "thread"])
def test_a_dataset_that_calls_next_on_its_own_iterator_gets_an_error(workers: dict[str, Any]) -> None:
    dataset = Again(9)
    dataset.batches = batches = iter(DataLoader(dataset, 2, **workers))
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(errors.FailedPrecondition, match=r"next\(\) (was called )?on (this|its) iterator"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[6, 7], [8]]  # as after any other error of a sample


@pytest.mark.timeout(60)
def test_a_stream_a_collate_fn_and_a_sampler_that_do_so_get_one_too() -> None:
    stream = AgainStream()
    stream.batches = batches = iter(DataLoader(stream, 3))
    next(batches)
    with pytest.raises(errors.FailedPrecondition, match="while it is making a batch"):
        next(batches)

    holder: list[Iterator[Any]] = []
    holder.append(iter(DataLoader(Ints(4), 2, collate_fn=lambda samples: next(holder[0]))))
    for _ in range(2):
        with pytest.raises(errors.FailedPrecondition, match="while it is making a batch"):
            next(holder[0])

    class Sampler:
        def __iter__(self) -> Iterator[int]:
            yield from (0, 1)
            yield next(holder[0])

    holder[0] = iter(DataLoader(Ints(4), 2, sampler=Sampler()))
    assert next(holder[0]).tolist() == [0, 1]
    with pytest.raises(errors.FailedPrecondition, match="while it is making a batch"):
        next(holder[0])
    holder.clear()


@pytest.mark.timeout(60)
def test_a_signal_handler_may_not_take_a_batch_from_under_a_next_that_it_interrupts() -> None:
    caught: list[BaseException] = []

    class Signals(Ints):
        def __getitem__(self, index: int) -> int:
            if index == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
                time.sleep(0.01)
            return index

    def handle(*_: Any) -> None:
        try:
            next(batches)
        except errors.FailedPrecondition as error:
            caught.append(error)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        batches = iter(DataLoader(Signals(8), 2))
        assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(caught) == 1
    assert "signal handler" in str(caught[0])


@pytest.mark.timeout(60)
def test_a_thread_that_waits_for_its_turn_can_be_interrupted() -> None:
    release = threading.Event()

    class Waits(Ints):
        def __getitem__(self, index: int) -> int:
            release.wait()
            return index

    batches = iter(DataLoader(Waits(4), 2))
    got: collections.deque[Any] = collections.deque()
    other = threading.Thread(target=lambda: got.append(next(batches).tolist()))
    other.start()
    while batches._engine is None or not batches._engine._serving.locked():
        time.sleep(0.001)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    release.set()
    other.join()
    assert list(got) == [[0, 1]]
    assert [batch.tolist() for batch in batches] == [[2, 3]]


class Miswired(_core.SerialIterator):
    """Its source is no scheduler."""

    failure_type = int
    progress = None
    _step = None
    _source = (object(), 0.0)  # type: ignore[assignment]

    def _advance(self, first: list[Any] | None) -> None:
        raise AssertionError

    def _before_waiting(self) -> None:
        raise AssertionError


def test_whatever_fails_in_a_step_is_raised_and_ends_the_turn() -> None:
    batches = Miswired()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cast"):
            next(batches)
