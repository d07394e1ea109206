"""One iterator in several hands: threads, forked children, and the dataset that makes its batches."""

from __future__ import annotations

import collections
import os
import random
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


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "workers": "thread"}], ids=["none", "thread"])
def test_a_dataset_that_calls_next_on_its_own_iterator_gets_an_error(workers: dict[str, Any]) -> None:
    dataset = Again(9)
    dataset.batches = batches = iter(DataLoader(dataset, 2, **workers))
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(errors.FailedPrecondition, match=r"next\(\) (was called )?on (this|its) iterator"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[6, 7], [8]]  # as after any other error of a sample


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
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        next(batches)
    release.set()
    other.join()
    assert list(got) == [[0, 1]]
    assert [batch.tolist() for batch in batches] == [[2, 3]]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        yield from range(17)


SHUT_DOWN = "the loader was shut down during the iteration"


@pytest.mark.parametrize(
    "arguments",
    [
        {"dataset": Stream(), "num_workers": 2, "iterable_sharding": "engine"},
        {"dataset": Ints(40), "num_workers": 2, "in_order": False},
        {"dataset": Ints(40), "num_workers": 2, "workers": "thread"},
        {"dataset": Ints(40), "collate_fn": list},
    ],
    ids=["stream", "unordered", "threads", "no workers"],
)
def test_threads_that_a_shutdown_overtakes_are_told_so(arguments: dict[str, Any]) -> None:
    whole = len(list(DataLoader(**arguments)))
    rounds = random.Random(3)
    ends: list[str] = []

    def iterate(loader: DataLoader[Any]) -> None:
        try:
            got = len(list(loader))
            ends.append("" if got == whole else f"{got} of {whole} batches")
        except BaseException as error:
            ends.append(str(error) if type(error) is errors.FailedPrecondition else repr(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(60):
            loader: DataLoader[Any] = DataLoader(**arguments)
            threads = [threading.Thread(target=iterate, args=(loader,)) for _ in range(2)]
            for thread in threads:
                thread.start()
            time.sleep(rounds.random() * 0.02)
            loader.shutdown()
            for thread in threads:
                thread.join()
            loader.shutdown()
    finally:
        sys.setswitchinterval(interval)
    assert set(ends) <= {"", SHUT_DOWN}


class Reached:
    """When it arrives, it lets the test go on, and waits."""

    arrived, shut_down = threading.Event(), threading.Event()

    def __setstate__(self, state: Any) -> None:
        self.arrived.set()
        self.shut_down.wait()

    def __getstate__(self) -> Any:
        return 1


class OfReached(Ints):
    def __getitem__(self, index: int) -> Any:
        return Reached()


def test_a_batch_that_is_on_its_way_during_a_shutdown_arrives() -> None:
    loader: DataLoader[Any] = DataLoader(OfReached(8), None, num_workers=1, in_order=False)
    batches = iter(loader)
    got: list[Any] = []
    Reached.arrived.clear()
    Reached.shut_down.clear()

    def iterate() -> None:
        try:
            got.extend(type(next(batches)) for _ in range(2))
        except BaseException as error:
            got.append(str(error))

    thread = threading.Thread(target=iterate)
    thread.start()
    Reached.arrived.wait()
    loader.shutdown()
    Reached.shut_down.set()
    thread.join()
    assert got == [Reached, SHUT_DOWN]


def test_a_thread_that_a_loaded_state_overtakes_takes_no_batch_of_the_next_iteration() -> None:
    loader = DataLoader(Slow(200), 2, num_workers=2, persistent_workers=True)
    beginning = loader.state_dict()
    ends: list[str] = []

    def iterate(batches: Iterator[Any]) -> None:
        try:
            collections.deque(batches, 0)
        except errors.FailedPrecondition as error:
            ends.append(str(error))

    for _ in range(12):
        batches = iter(loader)
        next(batches)
        thread = threading.Thread(target=iterate, args=(batches,))
        thread.start()
        loader.load_state_dict(beginning)
        assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 200, 2)]
        thread.join()
    assert set(ends) <= {"another state was loaded during the iteration; start a new iteration"}


class TooLate(Exception):
    pass


class EndlesslySlow(Ints):
    def __getitem__(self, index: int) -> int:
        time.sleep(0.2)
        return index


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("raised", [TooLate, KeyboardInterrupt])
def test_a_signal_handler_that_shuts_the_loader_down_may_raise_an_error_of_its_own(
    raised: type[BaseException], in_order: bool
) -> None:
    def handle(*_: Any) -> None:
        loader.shutdown()
        raise raised

    loader = DataLoader(EndlesslySlow(1000), num_workers=1, in_order=in_order)
    batches = iter(loader)
    next(batches)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(raised):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            list(batches)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(errors.FailedPrecondition, match=SHUT_DOWN):
        next(batches)


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
