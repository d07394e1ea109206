"""Workers that nobody has had any use for lately."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
import weakref

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
    loader._idle._lock.acquire()  # as if a thread were just looking
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if len(list(loader)) == 4 else 2
            loader.shutdown()
        finally:
            os._exit(status)
    loader._idle._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(loader)) == 4
