"""The worker processes of a loader: started together, watched, replaced when they die, ended with the loader."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from headrace import _core, errors
from headrace.data._system.deferred_signals import deferred_signals
from headrace.data._system.interpreter_exit import interpreter_exits
from headrace.data._system.life_line import LifeLine
from headrace.data._workers.dataset_updates import UpdateLog
from headrace.data._workers.deaths import DeathPolicy, WorkerDeaths
from headrace.data._workers.errors import Describe
from headrace.data._workers.processes import (
    WorkerProcess,
    close,
    close_descriptors,
    has_ended,
    join,
    open_pidfd,
    processor_seconds,
)
from headrace.data._workers.sample_maker import OUTDATED
from headrace.data._workers.stacks import Stacks
from headrace.data._workers.start_checks import (
    NO_MAIN_GUARD,
    no_main_guard,
    require_descriptors,
    require_main_guard,
)
from headrace.data._workers.start_reports import StartLog
from headrace.data._workers.waits import Waits
from headrace.data._workers.worker_starter import Source, WorkerStarter

# How long workers may take to exit by themselves, in seconds: they finish their samples, and data of a profiler or a
# logger has registered for the end of a process runs.
GRACE = 5.0
# The same for a sample that a worker is at when the program ends, or for its start: a server that it waits for may be
# gone.
GRACE_OF_SAMPLE = 0.5
# The same for a sample that waits for others (see ``waits``), whoever ends the loader.
GRACE_OF_WAIT = 1.0
# Seconds between two looks at who waits, after that.
LOOK_EVERY = 0.1
# Seconds after which a worker that was not seen at work has nothing to do.
_LONGEST_START = 10.0
# Why this process kills a worker, in words that follow "worker 3".
_HUNG = "hung, and was killed after the timeout"
_LIFELESS = "ended its main thread (pthread_exit), and was killed"
# An error shows the stacks of at most this many workers.
MOST_STACKS = 4


class ProcessPool:
    """Worker processes that fill the arena of one scheduler.

    It does not refer to the dataset, so a dataset or collate function may refer to the loader without keeping its
    workers alive.

    Thread-safety: one thread at a time, which in practice is the scheduler's consumer.

    Attributes:
        deaths: those of its workers, and what follows from them.
        updates: the updates for them. Closed with the pool.

    Raises:
        IoError: the system cannot start a process, or cannot watch one.
        FailedPrecondition: this process is daemonic, and must not have children.
        Exception: what :mod:`multiprocessing` raises for a dataset that cannot be sent to a worker; nothing is left
            running then.
    """

    def __init__(
        self,
        scheduler: _core.BatchScheduler,
        num_workers: int,
        threads: int,
        context: Any,
        source: Source,
        updates: UpdateLog,
        policy: DeathPolicy,
    ) -> None:
        self.updates = updates
        if multiprocessing.current_process().daemon:
            raise errors.FailedPrecondition(
                "this process is itself a worker (of a loader or of a pool) and cannot start workers. Here, use a "
                'DataLoader with num_workers=0, or headrace.DataLoader with workers="thread"'
            )
        self._scheduler = scheduler
        self._threads = threads
        self._owner = os.getpid()
        self._workers: list[WorkerProcess] = []
        # By worker: processes that have been asked to stop and may still be at a sample.
        self._leaving: dict[int, multiprocessing.process.BaseProcess] = {}
        require_main_guard()
        require_descriptors(num_workers)
        with contextlib.ExitStack() as files:
            self._stacks = files.enter_context(contextlib.closing(Stacks()))
            self._waits = files.enter_context(contextlib.closing(Waits()))
            self._starts = files.enter_context(contextlib.closing(StartLog()))
            life = files.enter_context(contextlib.closing(LifeLine()))
            self._files = files.pop_all()
        self._starter = WorkerStarter(context, updates, life, self._stacks, self._waits, self._starts)
        self.deaths = WorkerDeaths(scheduler, policy, self._starts, context.get_start_method() == "fork")
        try:
            os.close(open_pidfd(self._owner))  # before anything starts: it may be forbidden
            # Start all, then watch all, so that the processes start in parallel.
            for worker_id in range(num_workers):
                with deferred_signals():  # or a process would run of which nobody knows
                    self._workers.append(self._starter.start(worker_id, source))
            with deferred_signals():
                self._starter.keep_template(source)
            for worker_id in range(num_workers):
                self._watch(worker_id)
        except BaseException:
            self.stop()
            raise

    def _watch(self, worker_id: int) -> None:
        process = self._workers[worker_id].process
        try:
            pidfd = open_pidfd(process.pid)  # type: ignore[arg-type]
        except ProcessLookupError:
            # It has ended, and a forkserver has reaped it: the sentinel is readable.
            pidfd = os.dup(process.sentinel)
        try:
            self._scheduler.watch_producer(worker_id * self._threads, pidfd, self._threads)
        finally:
            os.close(pidfd)

    @property
    def processes(self) -> list[multiprocessing.process.BaseProcess]:
        """The workers' processes, in the order of their numbers."""
        return [worker.process for worker in self._workers]

    def replace_dead(
        self,
        deaths: list[_core.ProducerDeath],
        source: Source,
        describe: Describe,
    ) -> list[str]:
        """Starts a new worker for each that died, and gives up the samples that always kill theirs.

        Returns:
            A report for the user on each.

        Raises:
            errors.WorkerDied: workers die again and again before they reach a sample, or without completing any.
            errors.FailedPrecondition: they import a main module that starts workers itself, that fails, or that lacks
                what the dataset needs of it; or no process has the dataset of this epoch any more.
            Exception: an exception of a worker that unpickled the dataset.
            Exception: what :mod:`multiprocessing` raises when it cannot start a process.
        """
        reports = []
        of_workers: dict[int, list[_core.ProducerDeath]] = {}
        for death in deaths:  # all threads of a process die with it
            of_workers.setdefault(death.producer // self._threads, []).append(death)
        for worker_id, together in of_workers.items():
            if worker_id >= len(self._workers):
                continue  # it had been retired
            worker = self._workers[worker_id]
            process = worker.process
            join(process, 5)
            if process.exitcode == NO_MAIN_GUARD:
                raise no_main_guard()
            outdated = process.exitcode == OUTDATED
            seen = {death.producer for death in together}
            ids = range(worker_id * self._threads, (worker_id + 1) * self._threads)
            together += [self._scheduler.reclaim(number) for number in ids if number not in seen]
            if not outdated:
                reports.append(self.deaths.note(worker_id, worker, together, source.is_stream, describe))
            close(process)
            self._workers[worker_id] = self._starter.start_later(worker_id, source, self.deaths.delay(worker_id))
            self._watch(worker_id)
        return reports

    def explain(self, held: list[_core.HeldClaim], describe: Describe) -> str:
        """Sample, process and stack of the workers that hold those claims; of all workers if there are no claims."""
        samples: dict[int, _core.HeldClaim | None] = dict.fromkeys(range(len(self._workers)))
        if held:
            samples = {claim.producer // self._threads: claim for claim in held}
        texts: list[str] = []
        for worker_id, claim in samples.items():
            if worker_id < len(self._workers) and len(texts) < MOST_STACKS:
                pid = self._workers[worker_id].process.pid
                assert pid is not None
                what = "not working on a sample (starting, reading ahead in a stream, or idle)"
                if claim is not None and claim.at_row:
                    what = f"at {describe([claim])}"
                texts.append(f"Worker {worker_id} (pid {pid}) is {what}. {self._stacks.of(pid)}")
        return "\n\n".join(texts)

    def end_hung(self, before: list[_core.HeldClaim]) -> None:
        """Kills the workers that are still at the same sample as before; their deaths count like any other."""
        known = {_identity(claim) for claim in before}
        for claim in self._scheduler.claims():
            worker_id = claim.producer // self._threads
            if claim.at_row and _identity(claim) in known and worker_id < len(self._workers):
                self._workers[worker_id].kill(_HUNG)

    def end_lifeless(self) -> None:
        """Kills the workers that live without their main thread: these never finish a sample, nor exit."""
        for worker in self._workers:
            if worker.has_lost_main_thread():
                worker.kill(_LIFELESS)

    def load(self) -> dict[str, Any]:
        """The activity of the workers: ``processor_s``, the seconds so far that they used processors or waited for one;
        and ``starting``, whether one has not come to its first sample, if it began lately.
        """
        for claim in self._scheduler.claims():
            if claim.producer // self._threads < len(self._workers):
                self._workers[claim.producer // self._threads].seen = True
        now = time.monotonic()
        return {
            "processor_s": sum(processor_seconds(worker.process.pid) for worker in self._workers),
            "starting": any(not worker.seen and now - worker.started < _LONGEST_START for worker in self._workers),
        }

    def resize(self, workers: int, source: Source) -> None:
        """Starts workers, or lets some end once they have finished their samples. There are fewer than requested while
        a retired one has not exited.

        Raises:
            Exception: one cannot start; the others go on.
        """
        try:
            while len(self._workers) < workers:
                worker_id = len(self._workers)
                leaving = self._leaving.get(worker_id)
                if leaving is not None:
                    if not has_ended(leaving):
                        break
                    self._reclaim(worker_id)  # if it was killed before it could end of its own accord
                    close(self._leaving.pop(worker_id))
                self._add(worker_id, source)
            while len(self._workers) > workers:
                worker_id = len(self._workers) - 1
                for thread in range(self._threads):
                    self._scheduler.retire_producer(worker_id * self._threads + thread)
                self._leaving[worker_id] = self._workers.pop().process
        finally:
            self._scheduler.set_producers(len(self._workers) * self._threads)

    def _add(self, worker_id: int, source: Source) -> None:
        """Starts one more worker: entirely, or not at all."""
        self._workers.append(self._starter.start_later(worker_id, source, self.deaths.delay(worker_id)))
        try:
            self._watch(worker_id)
        except BaseException:
            process = self._workers.pop().process
            process.kill()
            join(process, 5)
            self._reclaim(worker_id)
            close(process)
            raise

    def _reclaim(self, worker_id: int) -> None:
        for thread in range(self._threads):
            self._scheduler.reclaim(worker_id * self._threads + thread)

    def stop(self) -> None:
        """Ends the workers: asks them to end, then kills them. Does nothing in a forked child. Idempotent."""
        if os.getpid() != self._owner:
            return
        self._scheduler.shutdown()
        self._starter.close()
        workers = {**self._leaving, **dict(enumerate(worker.process for worker in self._workers))}
        processes = workers.values()
        self._workers.clear()
        self._leaving.clear()
        started = time.monotonic()
        try:
            if interpreter_exits():
                _join_all(processes, started + GRACE_OF_SAMPLE)
                # At a row or, in a stream, on the way to it.
                working = {claim.producer // self._threads for claim in self._scheduler.claims()}
                for worker_id, process in workers.items():
                    if worker_id in working or not self._starts.serves(process.pid):
                        process.kill()
            _join_all(processes, started + GRACE_OF_WAIT)
            self._end_waiting(workers, started + GRACE)
        finally:
            for process in processes:
                with contextlib.suppress(ValueError):  # closed already
                    process.kill()
            for process in processes:
                join(process, 5)
                close_descriptors(process)
            self._scheduler.shutdown()  # gives back the memory of the batches that they were at
            self._files.close()
            self.updates.close()

    def _end_waiting(self, workers: Mapping[int, multiprocessing.process.BaseProcess], deadline: float) -> None:
        """Waits for workers until then, and kills those that wait for others: all of their threads that are at work."""
        while (left := {i: each for i, each in workers.items() if not has_ended(each)}) and time.monotonic() < deadline:
            at_work = {claim.producer for claim in self._scheduler.claims()}
            for worker_id, process in left.items():
                first = worker_id * self._threads
                threads = at_work.intersection(range(first, first + self._threads))
                if not threads and not self._starts.serves(process.pid):  # its first thread prepares for them all
                    threads = {first}
                if threads and all(map(self._waits.has, threads)):
                    process.kill()
            _join_all(left.values(), min(deadline, time.monotonic() + LOOK_EVERY))


def _join_all(processes: Iterable[multiprocessing.process.BaseProcess], deadline: float) -> None:
    for process in processes:
        join(process, max(0.0, deadline - time.monotonic()))


def _identity(claim: _core.HeldClaim) -> tuple[int, int, int, str]:
    return claim.producer, claim.sequence, claim.row, claim.kind
