"""What happens when no batch comes for long: an error once ``timeout`` is over; without ``timeout``, a warning."""

from __future__ import annotations

import abc

from headrace import _core, errors
from headrace._warnings import warn
from headrace.data._workers.group import WorkerGroup

# Seconds between two warnings.
_SILENCE = 60.0
# Seconds between two looks for workers that will do nothing more.
_LOOK_EVERY = 5.0


class StallWatch(abc.ABC):
    """Called while the consumer waits for a batch.

    Attributes:
        seconds: how long a wait lasts before ``note`` is called, and until it is called again.
    """

    seconds: float

    @abc.abstractmethod
    def note(self) -> None:
        """No batch has come for ``seconds``."""


class TimeLimit(StallWatch):
    """Ends the wait for a batch that takes longer than ``timeout``.

    Half-way it records the claims of the workers. Those that are still at the same sample at the end count as hung, and
    are replaced.
    """

    def __init__(self, timeout: float, scheduler: _core.BatchScheduler, workers: WorkerGroup) -> None:
        self.seconds = timeout / 2
        self._timeout = timeout
        self._scheduler, self._workers = scheduler, workers
        # How many batches had been taken half-way, and the claims that were held.
        self._half_way: tuple[int, list[_core.HeldClaim]] | None = None

    def note(self) -> None:
        """Half of the time is over, or all of it.

        Raises:
            errors.Timeout: all of it.
        """
        self._workers.end_lifeless()
        taken = self._scheduler.stats()["batches"]
        if self._half_way is None or self._half_way[0] != taken:
            self._half_way = (taken, self._scheduler.claims())
            return
        held, self._half_way = self._half_way[1], None
        text = self._workers.end_hung(held)
        raise errors.Timeout(f"DataLoader timed out after {self._timeout:g} seconds. {text}")


class SilenceWatch(StallWatch):
    """Warns repeatedly while no batch arrives, and describes the state of the workers."""

    def __init__(self, scheduler: _core.BatchScheduler, workers: WorkerGroup) -> None:
        self.seconds = min(_LOOK_EVERY, _SILENCE)
        self._scheduler, self._workers = scheduler, workers
        # How many batches had been taken at the last call, and how many calls found that number.
        self._silence = (-1, 0)

    def note(self) -> None:
        self._workers.end_lifeless()
        taken = self._scheduler.stats()["batches"]
        before, times = self._silence
        times = times + 1 if before == taken else 1
        self._silence = (taken, times)
        if times % round(_SILENCE / self.seconds) != 0:
            return
        warn(
            f"no batch has arrived for {times * self.seconds:g} seconds. Pass timeout= to turn this into an error. "
            f"{self._workers.explain()}"
        )


def stall_watch(timeout: float, scheduler: _core.BatchScheduler, workers: WorkerGroup) -> StallWatch:
    """The watch of a loader with that ``timeout``; 0: no limit."""
    return TimeLimit(timeout, scheduler, workers) if timeout > 0 else SilenceWatch(scheduler, workers)
