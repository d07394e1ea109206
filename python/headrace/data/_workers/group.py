"""The workers of an engine, whatever they are: processes, threads, or the consumer's own thread."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from headrace import _core, errors
from headrace._warnings import warn
from headrace.data._argument_checks import start_context
from headrace.data._config import LoaderConfig
from headrace.data._datasets.datasets import has_state
from headrace.data._samples.in_process_batches import HandOver
from headrace.data._system.deferred_signals import deferred_signals
from headrace.data._system.interpreter_exit import interpreter_exits
from headrace.data._system.open_files import refuse_open_files
from headrace.data._worker_tuning import Tuning, processors
from headrace.data._workers.dataset_snapshot import Snapshot
from headrace.data._workers.dataset_updates import SentTask, UpdateLog, started_at
from headrace.data._workers.deaths import DeathPolicy
from headrace.data._workers.errors import KeptErrors
from headrace.data._workers.pickling_checks import explain_pickling, require_importable
from headrace.data._workers.process_pool import ProcessPool
from headrace.data._workers.sample_maker import SampleMaker
from headrace.data._workers.stream_reader import StreamStart
from headrace.data._workers.task import SharedDescriptor, WorkerSetup, WorkerTask
from headrace.data._workers.thread_pool import ThreadPool
from headrace.data._workers.worker_starter import Source


class WorkerGroup:
    """Starts workers for a scheduler, watches, replaces and ends them.

    Refers to the user's objects, which its pool does not: these may refer to the loader, and such a cycle can
    be collected only if the finalizer, which refers to the pool, does not refer to the task.

    Ended by ``close``, or with the last reference.

    Thread-safety: any thread may call any method. Only one thread at a time may change the pool, so ``_lock`` is held
    while workers are started, retired or stopped.

    Args:
        errors_here: where workers in this process leave exceptions.
        hand_over: how batches reach a consumer whose thread makes them.
        index_at: gives the dataset index of an epoch's, batch's and row's sample.
        roots, snapshot: the workers' objects of the program, and their current contents; None: these are unknown, and
            it counts as unchanged.

    Attributes:
        count: how many workers there are.
        in_process: whether they belong to this process: its threads, or none.
        maker: makes samples in the consumer's thread; None if there are workers.
        serving: held by that thread while it does.
        tuning: decides on the number of workers; None if that is fixed.
        revision: of the dataset that the workers have or have been sent.

    Raises:
        PicklingError: an argument cannot be sent to workers.
        InvalidArgument: forked workers would share the position of an open file of an iterable dataset.
        Exception: what :class:`ProcessPool` raises.
    """

    def __init__(
        self,
        config: LoaderConfig,
        scheduler: _core.BatchScheduler,
        task: WorkerTask,
        errors_here: KeptErrors,
        hand_over: HandOver | None,
        index_at: Callable[[int, int, int], Any],
        roots: tuple[Any, ...],
        snapshot: Snapshot | None,
    ) -> None:
        self._scheduler = scheduler
        self._index_at = index_at
        self._threads = config.threads_per_worker
        self._lock = threading.RLock()
        self.count = config.num_workers
        self.in_process = config.num_workers == 0 or config.workers == "thread"
        self.tuning = Tuning(processors()) if config.auto_workers else None
        self.maker: SampleMaker | None = None
        self.serving = threading.Lock()
        self.revision = 0
        self._task = task
        self._roots = roots
        self._snapshot = snapshot
        self.pool: ProcessPool | ThreadPool | None = None
        self._finalizer: weakref.finalize[..., WorkerGroup]
        arena, completion = scheduler.arena_fd, scheduler.completion_fd
        new_maker = functools.partial(SampleMaker, task, arena, completion)
        if config.num_workers == 0:
            self.maker = new_maker(0, errors=errors_here, hand_over=hand_over)
            self._finalizer = weakref.finalize(self, _stop_here, scheduler, self.serving, os.getpid())
            return
        if self.in_process:
            self._makers = [new_maker(number, errors=errors_here) for number in range(config.num_workers)]
            self.pool = ThreadPool(scheduler, self._makers)
        else:
            self.pool = self._start_processes(config)
        self._finalizer = weakref.finalize(self, _stop_pool, self.pool, self._lock, os.getpid())

    def _start_processes(self, config: LoaderConfig) -> ProcessPool:
        context = start_context(config.multiprocessing_context)
        if context.get_start_method() != "fork":
            require_importable(config, context.get_start_method())
        elif config.iterable_sharding == "engine" and config.num_workers > 1:
            refuse_open_files(config.dataset)
        policy = DeathPolicy(config.max_deaths_per_sample, config.on_worker_death == "skip")
        updates = UpdateLog()
        forked = context.get_start_method() == "fork"
        sent = not forked and updates.begin(self._task)
        source = self._source(updates)
        try:
            pool = ProcessPool(self._scheduler, self.count, self._threads, context, source, updates, policy)
        except BaseException as error:
            updates.close()
            if isinstance(error, Exception):
                explain_pickling(config, context.get_start_method(), error)
            raise
        if self._snapshot is not None and not (forked or sent):
            self._snapshot = Snapshot.take(self._roots, False)  # to be sent, tensors have moved to shared memory
        return pool

    def _source(self, updates: UpdateLog) -> Source:
        """The source for a worker that starts now."""
        task: Any = self._task
        starts = {} if task.stream is None else task.stream.starts
        log = SharedDescriptor(updates.fd)  # one, which is sent once
        if updates.task is not None:
            task = SentTask(log, updates.task, starts)
        make_setup = functools.partial(
            WorkerSetup,
            task=task,
            threads=self._threads,
            arena=SharedDescriptor(self._scheduler.arena_fd),
            completion=SharedDescriptor(self._scheduler.completion_fd),
            updates=log,
        )
        return Source(make_setup, starts, self._is_as_given, self._task.stream is not None)

    def _is_as_given(self) -> bool:
        """Whether the program's objects still equal those that the workers were given, as far as this is known."""
        return self._snapshot is not None and self._snapshot.holds(self._roots)

    @property
    def processes(self) -> list[BaseProcess]:
        """The worker processes of now; none if the workers belong to this process."""
        return self.pool.processes if isinstance(self.pool, ProcessPool) else []

    @property
    def alive(self) -> bool:
        """Whether it has not been closed."""
        return self._finalizer.alive

    def close(self) -> None:
        """Ends the workers."""
        with deferred_signals():  # or the finalizer, which is called once, might be interrupted before it has started
            self._finalizer()

    def replace_dead(self) -> None:
        """Starts workers for those that died, with a warning each; if that fails, the group is closed."""
        if not isinstance(self.pool, ProcessPool):
            return
        with self._lock, deferred_signals():
            try:
                deaths = self._scheduler.take_deaths()
                reports = self.pool.replace_dead(deaths, self._source(self.pool.updates), self._describe)
            except BaseException:
                self.close()
                raise
        for report in reports:
            warn(report)

    def follow(self, starts: Mapping[int, StreamStart] | None) -> bool:
        """Makes the next epoch use the program's current objects.

        Args:
            starts: where streams start; None: where the workers are.

        Returns:
            Whether that is possible; if not, other workers have to start.
        """
        with self._lock:
            changed = self._snapshot is not None and not self._is_as_given()
            if not isinstance(self.pool, ProcessPool):  # threads have the program's own, but may have worked ahead
                if changed:
                    self._snapshot = Snapshot.take(self._roots, True)
                self.revision += changed or self._snapshot is None or self._snapshot.shares
                return True
            if changed and not self._note_change(self.pool.updates):
                return False
            if changed or starts is not None:
                starts = starts or {}
                if not self.pool.updates.append(starts, self._task if changed else None):
                    return False
                self._task = started_at(self._task, starts)  # workers that start from now on also begin there
                self.revision += 1
            return True

    def _note_change(self, updates: UpdateLog) -> bool:
        """Whether running workers can be sent the change, and are then equal to new ones: not if
        ``worker_init_fn`` may have changed the dataset, if the dataset has a state that may be older or newer than its
        attributes, or if the modules that the workers have imported may be others than this process has.
        """
        if updates.task is None or self._task.worker_init_fn is not None:
            return False
        if self._task.stream is not None and has_state(self._task.dataset):
            return False
        snapshot = Snapshot.take(self._roots, False)
        if snapshot is None or self._snapshot is None or not self._snapshot.knows(snapshot):
            return False
        self._snapshot = snapshot
        return True

    def tune(self) -> None:
        """Adapts the number of workers to what happened since the last time (``num_workers="auto"``)."""
        if self.tuning is None or not isinstance(self.pool, ProcessPool):
            return
        with self._lock:
            if not self.alive:
                return
            wanted = self.tuning.propose(self.count, {**self._scheduler.stats(), **self.pool.load()})
            problem = self.resize(wanted) if wanted != self.count else None
            if problem is None:
                return
            self.tuning.limit(self.count)
        warn(f'num_workers="auto": the loader stays at {self.count} workers, since it cannot add another: {problem}')

    def resize(self, count: int) -> Exception | None:
        """Starts worker processes, or lets some end after their samples, so that there are ``count`` of them soon.

        Returns:
            Why there will be fewer: a worker cannot start.
        """
        assert isinstance(self.pool, ProcessPool)
        with self._lock, deferred_signals():
            try:
                self.pool.resize(count, self._source(self.pool.updates))
            except Exception as error:
                return error
            finally:
                self.count = len(self.pool.processes)
        return None

    def explain(self) -> str:
        """What delays the next batch: which worker is at which sample, and the stack of each."""
        if self.pool is None:
            return ""
        claims = self._scheduler.claims()
        # Of the batch that is waited for, if a worker is at work on it.
        held = [claim for claim in claims if claim.sequence == claims[0].sequence]
        with self._lock:
            return self.pool.explain(held, self._describe)

    def end_hung(self, held_before: list[_core.HeldClaim]) -> str:
        """Ends the worker processes that are still at the same sample as when they held those claims.

        Returns:
            What :meth:`explain` said before.
        """
        with self._lock:
            text = self.explain()
            if isinstance(self.pool, ProcessPool):
                self.pool.end_hung(held_before)
        return text

    def end_lifeless(self) -> None:
        """Kills the worker processes that live but will never do anything again."""
        with self._lock:
            if isinstance(self.pool, ProcessPool):
                self.pool.end_lifeless()

    def death_error(self, problem: _core.ReadyBatch) -> errors.WorkerDied:
        """The exception for a batch with a sample that was given up because it kills workers."""
        assert isinstance(self.pool, ProcessPool)  # which gave the sample up
        stream = self._task.stream
        own = stream is not None and stream.own
        index = self._index_at(problem.epoch, problem.stream_batch if own else problem.batch, problem.row)
        what = self._name(index, problem.stream)
        exit_text, hint = self.pool.deaths.exit_at(problem.epoch, problem.stream_batch)
        error = errors.WorkerDied(
            f"every worker process that made {what} died; the last one {exit_text}. {hint}"
            f"With num_workers=0 {'the sample' if stream is None else 'it'} is made in this process, where a debugger "
            "can see it."
        )
        error.sample_index = index
        return error

    def deaths(self) -> dict[str, int]:
        """How many worker processes died, and how many samples were left out because of that."""
        pool = self.pool if isinstance(self.pool, ProcessPool) else None
        return {
            "worker_deaths": 0 if pool is None else pool.deaths.count,
            "skipped_samples": 0 if pool is None else pool.deaths.skipped,
        }

    def _describe(self, claims: Sequence[_core.HeldClaim]) -> str:
        """See :data:`Describe`. The batches of a stream that is a worker's own are counted in that stream."""
        indices = [self._index_at(claim.epoch, claim.batch, claim.row) for claim in claims]
        if len(indices) == 1:
            return self._name(indices[0], claims[0].producer)
        return f"the samples with indices {', '.join(map(repr, indices))}"

    def _name(self, index: Any, worker: int) -> str:
        """Of a stream, which reads batches as a whole, the batch."""
        stream = self._task.stream
        if stream is None:
            return f"the sample with index {index!r}"
        whose = f"worker {worker}'s" if stream.own else "the"
        return f"the batch that begins with element {index} of {whose} stream"


def _stop_here(scheduler: _core.BatchScheduler, serving: threading.Lock, owner: int) -> None:
    """Ends a group without workers.

    At the interpreter's exit a daemon thread may be in a dataset that C++ has called. Python before 3.13 would end that
    thread by unwinding its stack, which C++ answers with abort(): so it is given time to come out.
    """
    scheduler.shutdown()
    if interpreter_exits() and os.getpid() == owner and serving.acquire(timeout=1.0):
        serving.release()


def _stop_pool(pool: ProcessPool | ThreadPool, lock: threading.RLock, owner: int) -> None:
    if os.getpid() == owner:  # in a forked child the lock may be held by a thread of the parent
        # This is not called a second time, so an interrupt would leave the pool's descriptors open.
        with lock, deferred_signals():
            pool.stop()
