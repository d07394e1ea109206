"""What the machine can do at most: copies of whole batches, and nothing else."""

from __future__ import annotations

import mmap
import multiprocessing
import time
from typing import Any

import numpy as np
from harness.contest import LIMIT, Contestant, Effort

SLOTS = 6  # as many as loaders have batches in progress
POOL_BYTES = 64 << 20


def memcpy(batch_bytes: int, per_batch: float, processes: int = 1) -> Contestant:
    """Copies of batches from private memory, larger than caches, to warm shared memory.

    Args:
        per_batch: by which copies per second are multiplied, for the unit of the row.
        processes: that copy at the same time.
    """

    def measure(effort: Effort) -> float:
        context = multiprocessing.get_context("fork")
        barrier, rates = context.Barrier(processes), context.SimpleQueue()
        arguments = (batch_bytes, processes, effort, barrier, rates)
        children = [context.Process(target=_copy, args=arguments) for _ in range(processes)]
        for child in children:
            child.start()
        total = sum(rates.get() for _ in children)
        for child in children:
            child.join()
        return total * per_batch

    name = "memcpy" if processes == 1 else f"memcpy, {processes} processes"
    return Contestant(
        name, LIMIT, measure, None, "Copies of whole batches from private memory to shared memory, and nothing else."
    )


def _copy(batch_bytes: int, processes: int, effort: Effort, barrier: Any, rates: Any) -> None:
    """Copies for some time, and says how often in a second."""
    count = max(1, SLOTS // processes)
    slots = np.frombuffer(mmap.mmap(-1, count * batch_bytes), np.uint8).reshape(count, batch_bytes)
    pool = np.ones((max(1, POOL_BYTES // batch_bytes), batch_bytes), np.uint8)
    slots[:] = 1
    for seconds in (effort.warm_up, effort.seconds):
        barrier.wait()
        begin, copies, took = time.perf_counter(), 0, 0.0
        while took < seconds:
            np.copyto(slots[copies % count], pool[copies % len(pool)])
            copies += 1
            took = time.perf_counter() - begin
    rates.put(copies / took)
