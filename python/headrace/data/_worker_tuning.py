"""How many workers a loader should have: found by trying, while it runs."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

# Shares of the time below which waiting for data does not matter, and above which workers have enough to do.
_NO_WAIT = 0.02
_BUSY = 0.75
# The gain that one more worker must bring to be kept.
_WORTHWHILE = 1.03
# How many decisions to wait before trying again what did not help.
_PATIENCE = 20
# Seconds from one decision to the next; and from one look to the next while workers start.
_INTERVAL = 0.4
_START_INTERVAL = 0.05
# Workers for each processor, if they do nothing but wait; and the share of computing below which they mostly do.
WAITING_WORKERS = 4
_WAITS = 0.5


@dataclasses.dataclass(frozen=True)
class Window:
    """What happened during a short while.

    Attributes:
        samples: made, per second.
        consumer_wait: the share of the time that the consumer waited.
        busy: the share of the time that a worker was at a sample, on average.
        computing: the share of that time that it used a processor, or waited for one.
    """

    samples: float
    consumer_wait: float
    busy: float
    computing: float = 1.0


class WorkerTuner:
    """Decides from one window to the next whether to add a worker or to take one away.

    Hill climbing: while the consumer waits and the workers are busy, another worker is tried, and kept if it raises the
    throughput; while the consumer never waits and one worker less would still keep up, one is taken away. There are as
    many as can compute in parallel; if they wait for files or networks instead, their number is doubled each time.
    """

    def __init__(self, processors: int) -> None:
        self._processors = processors
        self._limit = processors * WAITING_WORKERS
        self._before: tuple[int, float] | None = None
        self._hold = 0

    def limit(self, workers: int) -> None:
        """No more than that many can start."""
        self._limit = workers

    def decide(self, workers: int, window: Window) -> int:
        """The number of workers for the next window."""
        before, self._before = self._before, None
        if before is not None and window.samples < before[1] * _WORTHWHILE and window.consumer_wait > _NO_WAIT:
            self._hold = _PATIENCE
            return before[0]
        if self._hold > 0:
            self._hold -= 1
            return workers
        if window.consumer_wait > _NO_WAIT:
            most = min(self._limit, int(self._processors / max(window.computing, 1 / WAITING_WORKERS)))
            if window.busy > _BUSY and workers < most:
                self._before = (workers, window.samples)
                return min(most, 2 * workers) if window.computing < _WAITS else workers + 1
            return workers
        if workers > 1 and window.busy * workers < (workers - 1) * _BUSY:
            return workers - 1
        return workers


class Tuning:
    """Watches the counters of a scheduler and says now and then how many workers there should be.

    Not thread-safe.
    """

    def __init__(self, processors: int) -> None:
        self._tuner = WorkerTuner(processors)
        self.limit = self._tuner.limit
        self._last: dict[str, Any] | None = None
        # When it is worth looking again, of time.monotonic.
        self.due = 0.0

    def propose(self, workers: int, counters: dict[str, Any]) -> int:
        """The number of workers to continue with, given the current counters: the scheduler's, and those of
        :meth:`ProcessPool.load`.
        """
        if counters["starting"]:  # these counters say nothing about that many workers
            self.due, self._last = time.monotonic() + _START_INTERVAL, None
            return workers
        self.due = time.monotonic() + _INTERVAL
        before, self._last = self._last, counters
        if before is None:
            return workers
        elapsed = counters["elapsed_s"] - before["elapsed_s"]
        claims = counters["claims"] - before["claims"]
        if counters["batches"] == before["batches"] or claims < 2 * workers or elapsed <= 0:
            self._last = before if claims else counters  # too little has happened, or no batches are requested
            return workers
        busy = counters["worker_busy_s"] - before["worker_busy_s"]
        computing = (counters["processor_s"] - before["processor_s"]) / max(busy, 1e-9)
        window = Window(
            samples=(counters["samples"] - before["samples"]) / elapsed,
            consumer_wait=(counters["consumer_wait_s"] - before["consumer_wait_s"]) / elapsed,
            busy=busy / (elapsed * workers),
            computing=min(computing, 1.0) if computing > 0 else 1.0,  # or a worker was replaced
        )
        return self._tuner.decide(workers, window)


def processors() -> int:
    """How many this process may use."""
    return max(1, len(os.sched_getaffinity(0)))
