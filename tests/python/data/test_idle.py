"""Workers that nobody has had any use for lately."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
import weakref
from typing import Any

import pytest
from loader_datasets import Ints

from headrace.data import DataLoader, _idle


def workers() -> int:
    return len(multiprocessing.active_children())


def test_workers_end_after_a_while_without_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_idle, "IDLE_SECONDS", 0.05)
    loader = DataLoader(Ints(12), 3, shuffle=True, seed=1, num_workers=2)
    reference = DataLoader(Ints(12), 3, shuffle=True, seed=1)
    for _ in range(3):
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in reference]
        while workers():
            time.sleep(0.01)
    assert loader.stats()["batches"] == 4


def test_workers_of_an_iteration_stay_however_slow_it_is() -> None:
    loader = DataLoader(Ints(12), 3, num_workers=2)
    batches = iter(loader)
    next(batches)
    loader._idle.close_after(0)
    assert workers() == 2
    assert len(list(batches)) == 3
    loader._idle.close_after(3600)
    assert workers() == 2
    loader._idle.close_after(0)
    assert workers() == 0


def test_a_loader_that_is_gone_is_not_waited_for() -> None:
    loader = DataLoader(Ints(12), 3, num_workers=2)
    list(loader)
    assert workers() == 2
    idle = weakref.ref(loader._idle)
    del loader
    gc.collect()
    assert idle() is None
    assert workers() == 0


def test_a_forked_child_iterates_on_its_own() -> None:
    loader = DataLoader(Ints(12), 3, num_workers=1)
    list(loader)
    held, done = threading.Event(), threading.Event()

    def look() -> None:
        with loader._idle._lock:
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

    for lock in (loader._idle._lock, _idle._lock):
        iterators = [iter(loader)]
        next(iterators[0])
        thread = threading.Thread(target=abandon, args=(lock, iterators), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        assert loader._idle
        assert len(list(loader)) == 4
