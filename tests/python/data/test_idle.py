"""Workers that nobody has had any use for lately."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loader_datasets import Ints

from headrace.data import DataLoader, IterableDataset
from headrace.data._iteration import idle


def workers() -> int:
    return len(multiprocessing.active_children())


def test_workers_end_after_a_while_without_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "IDLE_SECONDS", 0.05)
    loader = DataLoader(Ints(12), 3, shuffle=True, seed=1, num_workers=2)
    reference = DataLoader(Ints(12), 3, shuffle=True, seed=1)
    for _ in range(3):
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in reference]
        wait_until(lambda: workers() == 0)
    assert loader.stats()["batches"] == 4


def test_an_engine_is_watched_as_soon_as_a_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "IDLE_SECONDS", 0.05)
    wait_until(lambda: not idle._watching)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    first, second = (DataLoader(Ints(12), 3, num_workers=2) for _ in range(2))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert len(list(first)) == 4
    assert len(list(second)) == 4
    wait_until(lambda: workers() == 0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Drawing(IterableDataset[int]):
    """Draws from a generator of its own, of which nobody asks the state."""

    def __init__(self) -> None:
        self.random = random.Random(1)

    def __iter__(self) -> Iterator[int]:
        for _ in range(4):
            yield self.random.randrange(1000)


class Drawn(Ints):
    """Each sample is drawn from the process's generator."""

    def __getitem__(self, index: int) -> int:
        return random.randrange(1 << 30)


class Counting(IterableDataset[int]):
    """Goes on from epoch to epoch, and says where it is."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        end = self.at - self.at % 4 + 4
        while self.at < end:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


STAYING: dict[str, Callable[[], DataLoader]] = {
    "streams of their own": lambda: DataLoader(Drawing(), 2, num_workers=2, iterable_sharding="dataset", seed=1),
    "a stream": lambda: DataLoader(Drawing(), 2, num_workers=1, seed=1),
    "streams with a state": lambda: DataLoader(Counting(), 2, num_workers=2, iterable_sharding="dataset", seed=1),
    "one worker": lambda: DataLoader(Drawn(4), 2, num_workers=1, seed=1),
}


@pytest.mark.parametrize("kind", STAYING)
def test_what_an_epoch_consists_of_does_not_depend_on_a_pause(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def epochs(pauses: bool) -> list[list[list[int]]]:
        loader, result = STAYING[kind](), []
        for _ in range(3):
            result.append([batch.tolist() for batch in loader])
            if pauses:  # longer than any loader is left alone for
                staying = workers()
                others = DataLoader(Ints(12), 3, num_workers=2)
                list(others)
                wait_until(lambda staying=staying: workers() == staying)  # type: ignore[misc]
        return result

    expected = epochs(False)
    assert expected[0] != expected[1] != expected[2]
    monkeypatch.setattr(idle, "IDLE_SECONDS", 0.05)
    assert epochs(True) == expected


def test_streams_of_new_workers_go_on_where_those_of_earlier_ones_were() -> None:
    for sharding in ("engine", "dataset"):
        loader = DataLoader(Counting(), 2, num_workers=1, iterable_sharding=sharding, seed=1)
        taken = []
        for _ in range(3):
            taken += [batch.tolist() for batch in loader]
            loader.shutdown()
        assert taken == [[i, i + 1] for i in range(1, 13, 2)]


def test_workers_of_an_iteration_stay_however_slow_it_is() -> None:
    loader = DataLoader(Ints(12), 3, num_workers=2)
    batches = iter(loader)
    next(batches)
    loader._epochs.idle.close_after(0)
    assert workers() == 2
    assert len(list(batches)) == 3
    loader._epochs.idle.close_after(3600)
    assert workers() == 2
    loader._epochs.idle.close_after(0)
    assert workers() == 0


def test_a_loader_that_is_gone_is_not_waited_for() -> None:
    loader = DataLoader(Ints(12), 3, num_workers=2)
    list(loader)
    assert workers() == 2
    idle = weakref.ref(loader._epochs.idle)
    del loader
    gc.collect()
    assert idle() is None
    assert workers() == 0


def test_a_forked_child_iterates_on_its_own() -> None:
    loader = DataLoader(Ints(12), 3, num_workers=1)
    list(loader)
    held, done = threading.Event(), threading.Event()

    def look() -> None:
        with loader._epochs.idle._lock:
            held.set()
            done.wait()

    looking = threading.Thread(target=look)
    looking.start()
    held.wait()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if len(list(loader)) == 4 else 2
            loader.shutdown()
        finally:
            os._exit(status)
    done.set()
    looking.join()
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(loader)) == 4


def test_an_iterator_may_end_at_any_moment() -> None:
    """As one that the garbage collector finds, within whatever its thread is at."""
    loader = DataLoader(Ints(12), 3, num_workers=1)

    def abandon(lock: Any, iterators: list[Any]) -> None:
        with lock:
            iterators.clear()

    for lock in (loader._epochs.idle._lock, idle._lock):
        iterators = [iter(loader)]
        next(iterators[0])
        thread = threading.Thread(target=abandon, args=(lock, iterators), daemon=True)
        thread.start()
        thread.join(100)
        assert not thread.is_alive()
        assert loader._epochs.idle
        assert len(list(loader)) == 4
