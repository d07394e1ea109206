"""What follows from the death of a worker process, and what the user is told.

``blame.py`` decides whether its sample is given up, ``restarts.py`` whether and when another worker starts.

``reader/shared_memory/producers/producer_watch.h`` notices a death; ``ProcessPool.replace_dead`` in
``process_pool.py`` asks here, and starts another worker.
"""

from __future__ import annotations

import collections
import dataclasses
import signal
import time
from typing import Any, NamedTuple

from headrace import _core, errors
from headrace._wording import counted
from headrace.data._system.limits import small_stack
from headrace.data._system.memory_kills import MemoryKills
from headrace.data._workers.blame import SampleDeaths
from headrace.data._workers.errors import Describe
from headrace.data._workers.processes import WorkerProcess, describe_exit, in_pytorchs_words
from headrace.data._workers.restarts import IdleDeaths, Standstill
from headrace.data._workers.start_checks import MAIN_GUARD, lacks_in_main_module
from headrace.data._workers.start_reports import StartLog


@dataclasses.dataclass(frozen=True)
class DeathPolicy:
    """What happens when workers die at a sample.

    Attributes:
        max_deaths: deaths of one cause after which the sample is given up.
        skip: make its batch without it, if that is possible; else the batch fails.
    """

    max_deaths: int
    skip: bool


class _LastWorker(NamedTuple):
    """The exit of the worker at whose death a sample was given up: its process is closed by the time of the report."""

    exit_text: str
    pytorchs_words: str
    was_killed: bool


class WorkerDeaths:
    """The deaths of the workers of one :class:`ProcessPool`.

    Args:
        starts: where workers report what kept them from starting.
        forked: whether workers have the main module without importing it.

    Attributes:
        count: how many workers have died.
    """

    def __init__(self, scheduler: _core.BatchScheduler, policy: DeathPolicy, starts: StartLog, forked: bool) -> None:
        self._scheduler = scheduler
        self._policy = policy
        self._starts = starts
        self._forked = forked
        self._sample_deaths = SampleDeaths(policy.max_deaths)
        self._idle_deaths = IdleDeaths()
        self._standstill = Standstill()
        self._memory_kills = MemoryKills()
        # The workers that died at given-up samples, by epoch and batch.
        self._given_up: collections.OrderedDict[tuple[int, int], _LastWorker] = collections.OrderedDict()
        self._left_out: set[tuple[int, int]] = set()
        self.count = 0

    def delay(self, worker_id: int) -> float:
        """Seconds that a worker of that number waits before it does anything, when it starts now."""
        return self._idle_deaths.delay(worker_id)

    def note(
        self,
        worker_id: int,
        worker: WorkerProcess,
        deaths: list[_core.ProducerDeath],
        is_stream: bool,
        describe: Describe,
    ) -> str:
        """Decides what happens next.

        Args:
            worker: the one that died.
            deaths: of its threads.
            is_stream: whether the workers read an iterable dataset.

        Returns:
            A report for the user.

        Raises:
            Exception: why no worker is to take its place; see :meth:`ProcessPool.replace_dead`.
        """
        self.count += 1
        held = [death for death in deaths if death.busy]
        report = f"worker {worker_id} (pid {worker.process.pid}) {worker.describe_exit()}"
        at_work = [death for death in held if death.at_row]
        code = worker.process.exitcode
        cause = worker.fault or code
        by_sample = {(death.sequence, death.row, death.kind): death for death in at_work}
        stats = self._scheduler.stats()
        samples = stats["samples"]
        given_up = [by_sample[sample] for sample in self._sample_deaths.note(cause, list(by_sample), samples)]
        if not at_work:
            again = self._idle_deaths.note(worker_id, code, time.monotonic() - worker.started, samples)
            failure = self._failure_at_start(report, worker)
            if failure is not None and not (again and samples):
                raise failure
            if not again:
                raise errors.WorkerDied(
                    f"workers keep dying before they produce a sample: {report}. "
                    f"{in_pytorchs_words(worker.process)}{self._hint(worker)}See their output; with "
                    "num_workers=0, the dataset runs in this process."
                )
            self._require_progress(stats, report, worker)
            when = "while it was idle" if samples else "before it made a sample"
            when = "while it read the stream" if is_stream and held else when
            when = when if failure is None else f"while it started ({failure})"
            return f"{report} {when}; another worker takes its place"
        self._idle_deaths.forget(worker_id)
        if given_up:
            self._standstill.forget()
            self._idle_deaths.start_again()
        else:
            self._require_progress(stats, report, worker)
        outcomes = {self._give_up(death, worker) for death in given_up}
        what_next = ", ".join(sorted(outcomes)) or "another worker makes it again"
        return f"{report} while it made {describe(at_work)}; {what_next}"

    def _require_progress(self, stats: dict[str, Any], report: str, worker: WorkerProcess) -> None:
        """Raises WorkerDied if workers have died for too long without progress."""
        standstill = self._standstill
        if not standstill.note(stats["samples"], self._memory_kills.count()):
            raise errors.WorkerDied(
                f"{standstill.deaths} worker processes have died in {standstill.seconds:.0f} seconds, in which "
                f"they completed {counted(standstill.samples, 'sample')}: {report}. "
                f"{in_pytorchs_words(worker.process)}{self._hint(worker)}"
            )

    def _hint(self, worker: WorkerProcess) -> str:
        """Sentences on the reason of an exit that does not explain itself."""
        if worker.process.exitcode == -signal.SIGSEGV:
            return small_stack()
        return self._memory_hint() if worker.was_killed else ""

    def _memory_hint(self) -> str:
        """Whether memory has run out, and who has it now."""
        memory = self._memory_kills.describe()
        if not memory:
            return (
                "The kernel also sends this signal when memory runs out: smaller batches, a smaller prefetch_factor or "
                "fewer workers need less. "
            )
        stats = self._scheduler.stats()
        held, resident = stats["held_slots"], stats["resident_bytes"] >> 20
        return (
            f"{memory}The loader's shared memory takes {resident} MiB, and the program keeps {held} batches in it. "
            "Smaller batches, a smaller prefetch_factor, fewer workers or fewer kept batches need less. "
        )

    def _failure_at_start(self, report: str, worker: WorkerProcess) -> BaseException | None:
        """The exception for a worker that exited before it could do anything; None if it has started."""
        process = worker.process
        if process.exitcode != 1:  # as Python ends after an exception
            return None
        if self._forked or self._starts.began(process.pid):
            error = self._starts.error(process.pid)
            return lacks_in_main_module(error) or error
        return errors.FailedPrecondition(
            f"{report} while it imported the main module of the program, as each worker does when it starts: see the "
            f"traceback that it printed. {MAIN_GUARD}"
        )

    @property
    def skipped(self) -> int:
        """How many samples were given up and left out."""
        return len(self._left_out)

    def _give_up(self, death: _core.ProducerDeath, worker: WorkerProcess) -> str:
        if self._policy.skip and self._scheduler.skip(death.sequence, death.row):
            self._left_out.add((death.sequence, death.row))  # which a worker that had it, too, may have died at since
            return "its batch is made without it"
        self._given_up[(death.epoch, death.batch)] = _LastWorker(
            worker.describe_exit(),
            "" if worker.fault else in_pytorchs_words(worker.process),
            worker.was_killed,
        )
        while len(self._given_up) > 2048:
            self._given_up.popitem(last=False)
        self._scheduler.abandon(death.sequence, death.row)
        return "it is given up"

    def exit_at(self, epoch: int, batch: int) -> tuple[str, str]:
        """How the last worker that made a given-up sample of that batch ended, and the possible reason."""
        last = self._given_up.get((epoch, batch))
        if last is None:
            return describe_exit(None), ""
        return last.exit_text, last.pytorchs_words + (self._memory_hint() if last.was_killed else "")
