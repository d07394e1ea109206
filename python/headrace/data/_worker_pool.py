"""The worker processes of a loader: started together, watched, replaced when they die, ended with the loader."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing

# Used by Process.join, which imports it late: an import while the process ends would make it forget that an interrupt
# is what it dies of.
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace import _core, errors
from headrace.data._worker import (
    ClaimServer,
    SharedDescriptor,
    WorkerSetup,
    WorkerTask,
    serve_in_thread,
    worker_main,
)

# Workers that die this often in a row without being at a sample are not started again.
_MAX_IDLE_DEATHS = 5
# A row that has ended so many workers is given up.
_MAX_DEATHS_PER_ROW = 4
# How long workers may take to end by themselves, in seconds.
_GRACE = 1.0

MakeSetup = Callable[[int, SharedDescriptor], WorkerSetup]


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

    Does not know the dataset, so that a dataset or a collate function may refer to the loader without keeping its
    workers alive.

    Thread-safety: one thread at a time, which in practice is the scheduler's consumer.

    Raises:
        Exception: what :mod:`multiprocessing` raises for a dataset that cannot be sent to a worker; then nothing is
            left running.
    """

    def __init__(
        self, scheduler: _core.BatchScheduler, num_workers: int, threads: int, context: Any, make_setup: MakeSetup
    ) -> None:
        self._scheduler = scheduler
        self._threads = threads
        self._context = context
        self._idle_deaths = 0
        self._samples = 0
        # By batch and row.
        self._row_deaths: collections.Counter[tuple[int, int]] = collections.Counter()
        self._owner = os.getpid()
        self._main_pidfd = os.pidfd_open(self._owner)
        self._processes: list[multiprocessing.process.BaseProcess] = []
        # By worker: processes that have been told to end and may still be at a sample.
        self._leaving: dict[int, multiprocessing.process.BaseProcess] = {}
        self.last_exit = describe_exit(None)
        try:
            # Start all, then watch all: the processes come up in parallel.
            for worker_id in range(num_workers):
                self._processes.append(self._start(worker_id, make_setup))
            for worker_id in range(num_workers):
                self._watch(worker_id)
        except BaseException:
            self.stop()
            raise

    def _start(self, worker_id: int, make_setup: MakeSetup) -> multiprocessing.process.BaseProcess:
        setup = make_setup(worker_id, SharedDescriptor(self._main_pidfd))
        process: multiprocessing.process.BaseProcess = self._context.Process(
            target=worker_main, args=(setup,), name=f"headrace-worker-{worker_id}", daemon=True
        )
        process.start()
        return process

    def _watch(self, worker_id: int) -> None:
        process = self._processes[worker_id]
        try:
            pidfd = os.pidfd_open(process.pid)  # type: ignore[arg-type]
        except ProcessLookupError:
            # Gone and reaped already (by a forkserver): its sentinel says so.
            pidfd = os.dup(process.sentinel)
        try:
            self._scheduler.watch_producer(worker_id * self._threads, pidfd, self._threads)
        finally:
            os.close(pidfd)

    def replace_dead(
        self,
        deaths: list[_core.ProducerDeath],
        make_setup: MakeSetup,
        index_of: Callable[[_core.ProducerDeath], Any],
    ) -> list[str]:
        """Starts a new worker for each that died.

        Returns:
            What happened, for the user.

        Raises:
            errors.WorkerDied: workers die again and again before they come to a sample.
            Exception: what :mod:`multiprocessing` raises when it cannot start a process.
        """
        reports = []
        of_workers: dict[int, list[_core.ProducerDeath]] = {}
        for death in deaths:  # all threads of a process die with it
            of_workers.setdefault(death.producer // self._threads, []).append(death)
        for worker_id, together in of_workers.items():
            if worker_id >= len(self._processes):
                continue  # it had been let go
            process = self._processes[worker_id]
            _join(process, 5)
            self.last_exit = describe_exit(process.exitcode)
            seen = {death.producer for death in together}
            ids = range(worker_id * self._threads, (worker_id + 1) * self._threads)
            together += [self._scheduler.reclaim(number) for number in ids if number not in seen]
            report = f"worker {worker_id} (pid {process.pid}) {self.last_exit}"
            samples = self._scheduler.stats()["samples"]
            for death in together:
                if death.busy:
                    row = (death.sequence, death.row)
                    self._row_deaths[row] += 1
                    if self._row_deaths[row] >= _MAX_DEATHS_PER_ROW:
                        self._scheduler.abandon(*row)
                        del self._row_deaths[row]
            busy = [repr(index_of(death)) for death in together if death.busy]
            if busy:
                self._idle_deaths = 0
                what = f"sample with index {busy[0]}" if len(busy) == 1 else f"samples with indices {', '.join(busy)}"
                report += f" while it made the {what}; another worker makes it again"
            else:
                self._idle_deaths = 1 if samples > self._samples else self._idle_deaths + 1
                if self._idle_deaths >= _MAX_IDLE_DEATHS:
                    raise errors.WorkerDied(
                        f"the worker processes die before they make a sample: {report}. See what they printed; "
                        "with num_workers=0 the dataset runs in this process."
                    )
                report += " while it was idle; another worker takes its place"
            self._samples = samples
            _close(process)
            self._processes[worker_id] = self._start(worker_id, make_setup)
            self._watch(worker_id)
            reports.append(report)
        return reports

    def resize(self, workers: int, make_setup: MakeSetup) -> int:
        """Starts workers, or lets some end once they have made what they are at.

        Returns:
            How many there are now: fewer than asked for while one that was let go has not ended.
        """
        while len(self._processes) < workers:
            worker_id = len(self._processes)
            leaving = self._leaving.get(worker_id)
            if leaving is not None:
                if leaving.is_alive():
                    break
                for thread in range(self._threads):  # if it was killed before it could end of its own accord
                    self._scheduler.reclaim(worker_id * self._threads + thread)
                _close(self._leaving.pop(worker_id))
            self._processes.append(self._start(worker_id, make_setup))
            self._watch(worker_id)
        while len(self._processes) > workers:
            worker_id = len(self._processes) - 1
            for thread in range(self._threads):
                self._scheduler.retire_producer(worker_id * self._threads + thread)
            self._leaving[worker_id] = self._processes.pop()
        self._scheduler.set_producers(len(self._processes) * self._threads)
        return len(self._processes)

    def stop(self) -> None:
        """Ends the workers: asks them to, then kills them. Does nothing in a forked child. Idempotent."""
        if os.getpid() != self._owner:
            return
        self._scheduler.shutdown()
        processes, self._processes = [*self._processes, *self._leaving.values()], []
        self._leaving.clear()
        deadline = time.monotonic() + _GRACE
        try:
            for process in processes:
                _join(process, max(0.0, deadline - time.monotonic()))
        finally:
            for process in processes:
                with contextlib.suppress(ValueError):  # closed already
                    process.kill()
            for process in processes:
                _join(process, 5)
                _close(process)
            if self._main_pidfd >= 0:
                os.close(self._main_pidfd)
                self._main_pidfd = -1


def _join(process: multiprocessing.process.BaseProcess, timeout: float) -> None:
    with contextlib.suppress(ValueError):  # closed already
        process.join(timeout)


def _close(process: multiprocessing.process.BaseProcess) -> None:
    with contextlib.suppress(ValueError):  # somebody else reaped it, and multiprocessing believes that it still runs
        process.close()


class ThreadPool:
    """Workers that are threads of this process; otherwise as :class:`WorkerPool`."""

    def __init__(
        self,
        scheduler: _core.BatchScheduler,
        task: WorkerTask,
        num_workers: int,
        make_server: Callable[[int], ClaimServer],
    ) -> None:
        self._scheduler = scheduler
        self._owner = os.getpid()
        self._threads = [
            threading.Thread(
                target=serve_in_thread,
                args=(make_server(number), task, number),
                name=f"headrace-worker-{number}",
                daemon=True,
            )
            for number in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads once they have made the samples that they are at; waits for that, but not long.

        Does nothing in a forked child. Idempotent.
        """
        if os.getpid() != self._owner:
            return
        self._scheduler.shutdown()
        threads, self._threads = self._threads, []
        deadline = time.monotonic() + _GRACE
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
