"""The worker processes of a loader: started together, watched, replaced when they die, ended with the loader."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

from headrace import _core
from headrace.data.worker import SharedDescriptor, WorkerSetup, worker_main

# Workers that die this often in a row without being at a sample are not started again.
_MAX_IDLE_DEATHS = 5
# How long workers may take to end by themselves, in seconds.
_GRACE = 0.5


def describe_exit(code: int | None) -> str:
    """ "was killed by SIGKILL", "exited with status 1"."""
    if code is None:
        return "died"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with status {code}"


class WorkerPool:
    """Worker processes that fill the arena of one scheduler.

    Thread-safety: one thread at a time, which in practice is the scheduler's consumer.
    """

    def __init__(
        self,
        scheduler: _core.BatchScheduler,
        num_workers: int,
        context: Any,
        make_setup: Callable[[int, SharedDescriptor], WorkerSetup],
    ) -> None:
        self._scheduler = scheduler
        self._context = context
        self._make_setup = make_setup
        self._idle_deaths = 0
        self._owner = os.getpid()
        self._main_pidfd = os.pidfd_open(self._owner)
        self.processes: list[multiprocessing.process.BaseProcess] = []
        self.last_exit = ""
        try:
            # Start all, then watch all: the processes come up in parallel.
            for worker_id in range(num_workers):
                self.processes.append(self._start(worker_id))
            for worker_id in range(num_workers):
                self._watch(worker_id)
        except BaseException:
            self.stop()
            raise

    def _start(self, worker_id: int) -> multiprocessing.process.BaseProcess:
        setup = self._make_setup(worker_id, SharedDescriptor(self._main_pidfd))
        process: multiprocessing.process.BaseProcess = self._context.Process(
            target=worker_main, args=(setup,), name=f"headrace-worker-{worker_id}", daemon=True
        )
        process.start()
        return process

    def _watch(self, worker_id: int) -> None:
        process = self.processes[worker_id]
        try:
            pidfd = os.pidfd_open(process.pid)  # type: ignore[arg-type]
        except ProcessLookupError:
            # Gone and reaped already (by a forkserver): its sentinel says so.
            self._scheduler.watch_producer(worker_id, process.sentinel)
            return
        self._scheduler.watch_producer(worker_id, pidfd)
        os.close(pidfd)

    def replace_dead(self, deaths: list[_core.ProducerDeath], index_of: Callable[[_core.ProducerDeath], Any]) -> None:
        """Starts a new worker for each that died.

        Raises:
            RuntimeError: workers die again and again before they come to a sample.
        """
        for death in deaths:
            process = self.processes[death.producer]
            process.join(5)
            self.last_exit = describe_exit(process.exitcode)
            if death.busy:
                self._idle_deaths = 0
                warnings.warn(
                    f"worker {death.producer} (pid {process.pid}) {self.last_exit} while it made the sample with index "
                    f"{index_of(death)!r}; another worker makes it again",
                    RuntimeWarning,
                    stacklevel=2,
                )
            else:
                self._idle_deaths += 1
                if self._idle_deaths >= _MAX_IDLE_DEATHS:
                    raise RuntimeError(
                        f"the worker processes die before they make a sample: worker {death.producer} (pid {process.pid}) "
                        f"{self.last_exit}. See its output; with num_workers=0 the dataset runs in this process."
                    )
            process.close()
            self.processes[death.producer] = self._start(death.producer)
            self._watch(death.producer)

    def stop(self) -> None:
        """Ends the workers: they are asked to, then after a moment killed. Does nothing in a forked child. Idempotent."""
        if os.getpid() != self._owner:
            return
        self._scheduler.shutdown()
        deadline = time.monotonic() + _GRACE
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join(5)
            with contextlib.suppress(ValueError):
                process.close()
        self.processes = []
        if self._main_pidfd >= 0:
            os.close(self._main_pidfd)
            self._main_pidfd = -1
