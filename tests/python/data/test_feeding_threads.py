"""The thread that feeds a queue: how it ends, and what it and the workers cost while nothing is consumed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints

import headrace.fluid as fluid
from headrace import errors
from headrace.data import DataLoader
from headrace.fluid import core


def make_queue(capacity: int = 1) -> core.LoDTensorBlockingQueue:
    return core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), capacity, [[-1]])


class Collecting:
    """A batch sampler that collects garbage on request, on whichever thread asks for indices."""

    def __init__(self) -> None:
        self.collect = threading.Event()

    def __iter__(self) -> Iterator[list[int]]:
        for index in range(1000):
            if self.collect.is_set():
                gc.collect()
            yield [index]


class Holder:
    feed: Any = None


def test_a_feed_may_be_collected_by_its_own_thread() -> None:
    sampler = Collecting()
    queue = make_queue()
    loader = DataLoader(Ints(1000), batch_sampler=sampler, num_workers=1)
    holder = Holder()
    holder.itself = holder  # type: ignore[attr-defined]
    collected_by: list[int] = []
    weakref.finalize(holder, lambda: collected_by.append(threading.get_native_id()))
    gc.disable()
    try:
        holder.feed = loader._feed(queue)
        assert np.asarray(queue.pop(timeout=100)[0]).tolist() == [0]
        del holder
        sampler.collect.set()
        with pytest.raises(errors.FailedPrecondition, match="the source that fed the queue no longer exists"):
            for _ in range(1000):
                queue.pop(timeout=100)
    finally:
        gc.enable()
    assert collected_by
    assert collected_by != [threading.get_native_id()]
    deadline = time.monotonic() + 100
    while multiprocessing.active_children() and time.monotonic() < deadline:
        loader.shutdown()  # ends the workers once the thread has given them back
        time.sleep(0.01)


ENDING = """
import contextlib, sys, threading, time
import headrace.fluid as fluid
from headrace import errors
from headrace.data import DataLoader
from headrace.fluid import core

class Numbers:
    def __len__(self): return 1 << 20
    def __getitem__(self, index): return index

if __name__ == "__main__":
    queue = core.init_lod_tensor_blocking_queue(fluid.global_scope().var("queue"), 2, [[-1]])
    loader = DataLoader(Numbers(), batch_size=4, num_workers=int(sys.argv[2]), batch_sampler=None)
    feed = loader._feed(queue)
    queue.pop(timeout=100)
    if sys.argv[1] == "popping":
        def pop():
            # A daemon thread that prints its exception may have the interpreter abort: it holds the lock of stderr.
            with contextlib.suppress(errors.FailedPrecondition):
                while True:
                    queue.pop()
        threading.Thread(target=pop, daemon=True).start()
        time.sleep(0.05)
    print("ends")
"""


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("way", ["full queue", "popping"])
def test_the_interpreter_may_end_while_a_queue_is_fed(tmp_path: Any, way: str, num_workers: int) -> None:
    program = tmp_path / "ending.py"
    program.write_text(ENDING)
    run = subprocess.run(
        [sys.executable, str(program), way, str(num_workers)], capture_output=True, text=True, timeout=250
    )
    assert (run.returncode, run.stdout) == (0, "ends\n"), run.stderr
    if way == "full queue":
        assert run.stderr == ""


def cpu_seconds() -> float:
    """The processor time that this process and its workers have used."""
    ticks = 0
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_a_program_that_pauses_costs_neither_time_nor_memory() -> None:
    loader = DataLoader(Ints(100_000), batch_size=4, num_workers=2, prefetch_factor=4)
    queue = make_queue(2)
    feed = loader._feed(queue)
    for _ in range(50):
        queue.pop(timeout=100)
    deadline = time.monotonic() + 100
    while loader.stats()["samples"] < 4 * (50 + 4) and time.monotonic() < deadline:
        time.sleep(0.01)  # until all that can be made ahead has been made
    time.sleep(0.2)
    slots = loader.stats()["slots_used"]
    for _ in range(5):  # threads of other tests may be at work beside
        before, began = cpu_seconds(), time.monotonic()
        time.sleep(2)
        used, waited = cpu_seconds() - before, time.monotonic() - began
        if used <= 0.03 * waited + 0.02:  # the clock ticks every 0.01 s
            break
    else:
        pytest.fail(f"used {used} of {waited} s")
    assert loader.stats()["slots_used"] == slots <= 4 + 2 + 4
    feed.stop()
    loader.shutdown()
