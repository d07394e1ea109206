"""Starts worker processes: with the program's current dataset or, later in an epoch, with that of the other workers."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import multiprocessing.process
import multiprocessing.resource_tracker
import time
from collections.abc import Callable, Mapping
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

from headrace import errors
from headrace.data._system.deferred_signals import interrupts_blocked
from headrace.data._system.interpreter_exit import process_start
from headrace.data._system.life_line import LifeLine
from headrace.data._workers.dataset_updates import UpdateLog, started_at
from headrace.data._workers.fork_template import Template, TemplateGone
from headrace.data._workers.processes import WorkerProcess, forkserver_sockets, worker_processes
from headrace.data._workers.spawned_process import SpawnedProcess
from headrace.data._workers.stacks import Stacks
from headrace.data._workers.start_checks import start_explained, worker_name
from headrace.data._workers.start_reports import StartLog, StartReporter, run_worker
from headrace.data._workers.stream_reader import StreamStart
from headrace.data._workers.task import SharedDescriptor, WorkerSetup
from headrace.data._workers.waits import Waits

# How often a worker is started, if it is killed as it starts.
_ATTEMPTS = 3

MakeSetup = Callable[..., WorkerSetup]  # with the pool's data of a worker as keyword arguments


class Source(NamedTuple):
    """The source of a worker's task.

    Attributes:
        make_setup: creates its setup.
        starts: where streams start now.
        is_as_given: tells whether it equals that of the other workers: the program may have changed it since.
        is_stream: whether the workers read an iterable dataset.
    """

    make_setup: MakeSetup
    starts: Mapping[int, StreamStart]
    is_as_given: Callable[[], bool]
    is_stream: bool


class WorkerStarter:
    """Starts the workers of one :class:`ProcessPool`, whose files these are.

    Args:
        context: of :mod:`multiprocessing`.
        updates: that workers have been sent.
    """

    def __init__(
        self, context: Any, updates: UpdateLog, life: LifeLine, stacks: Stacks, waits: Waits, starts: StartLog
    ) -> None:
        self._context = context
        self._updates = updates
        self._life, self._stacks, self._waits, self._starts = life, stacks, waits, starts
        # How often a worker of each number was started.
        self._started: collections.Counter[int] = collections.Counter()
        self._template: Template | None = None
        self._had_template = False  # that is gone

    def keep_template(self, source: Source) -> None:
        """Keeps what forked workers have, for those that start later."""
        if self._context.get_start_method() != "fork":
            return
        run = functools.partial(
            _run_in_fork, StartReporter(SharedDescriptor(self._starts.fd)), self._fixed_setup(source)
        )
        with process_start(), contextlib.suppress(OSError):  # needed only if a worker dies
            self._template = Template(self._context, run, self._life.fd)

    def _fixed_setup(self, source: Source) -> MakeSetup:
        """The arguments of all workers."""
        return functools.partial(
            source.make_setup,
            life=SharedDescriptor(self._life.fd),
            stacks=SharedDescriptor(self._stacks.fd),
            waits=SharedDescriptor(self._waits.fd),
        )

    def _own_setup(self, worker_id: int, delay: float) -> dict[str, Any]:
        """The additional arguments of one of them."""
        with start_explained(worker_id, self._context):
            sockets = forkserver_sockets(self._context)
        return {
            "worker_id": worker_id,
            "revision": self._updates.revision,
            "updates_size": self._updates.size,
            "sockets": sockets,
            "delay": delay,
            "predecessors": self._started[worker_id],
        }

    def start(self, worker_id: int, source: Source, delay: float = 0.0) -> WorkerProcess:
        """Starts a worker with the program's current dataset."""
        setup = self._fixed_setup(source)(**self._own_setup(worker_id, delay))
        kind = self._context.Process
        process: multiprocessing.process.BaseProcess = (SpawnedProcess if kind is SpawnProcess else kind)(
            target=run_worker,
            args=(StartReporter(SharedDescriptor(self._starts.fd)), setup),
            name=worker_name(worker_id),
            daemon=True,
        )
        return self._run(worker_id, process)

    def start_later(self, worker_id: int, source: Source, delay: float) -> WorkerProcess:
        """Starts a worker with the dataset of the others.

        Args:
            delay: seconds that it waits before it does anything.

        Raises:
            FailedPrecondition: no process has it any more.
        """
        if self._template is not None:
            setup = self._own_setup(worker_id, delay)
            try:
                return self._run(
                    worker_id, self._template.process(worker_name(worker_id), starts=source.starts, **setup)
                )
            except TemplateGone:
                self._template, self._had_template = None, True
        if self._updates.task is None and not source.is_as_given():
            kept = 'multiprocessing_context="fork" keeps a copy for such workers'
            if self._had_template:
                kept = "the process that kept it for such workers (hr-template) has been killed"
            raise errors.FailedPrecondition(
                f"worker {worker_id} cannot start: the others have the dataset as it was when the epoch began, and the "
                "loader cannot tell whether it has changed since. Iterate over the loader again to continue with the "
                f"current dataset; {kept}"
            )
        return self.start(worker_id, source, delay)

    def _run(self, worker_id: int, process: multiprocessing.process.BaseProcess) -> WorkerProcess:
        self._started[worker_id] += 1
        with start_explained(worker_id, self._context), process_start():
            if self._context.get_start_method() == "spawn":
                multiprocessing.resource_tracker.ensure_running()  # which, as it starts, accepts interrupts again
            for attempts_left in reversed(range(_ATTEMPTS)):
                try:
                    with interrupts_blocked():
                        process.start()
                    break
                # A process of the forkserver was killed before it had read what it is to do; or the forkserver is gone.
                except BrokenPipeError:
                    if attempts_left == 0:
                        raise
        worker_processes.add(process)
        return WorkerProcess(process, time.monotonic())

    def close(self) -> None:
        """Ends the template. Idempotent."""
        if self._template is not None:
            self._template.close()
            self._template = None


def _run_in_fork(reporter: StartReporter, make_setup: MakeSetup, starts: Mapping[int, StreamStart], **own: Any) -> None:
    """The main function of a worker that is forked from a template."""
    setup = make_setup(**own)
    run_worker(reporter, dataclasses.replace(setup, task=started_at(setup.task, starts)))
