"""How soon another worker starts in the place of one that died, and when none does any more."""

from __future__ import annotations

import collections
import signal
import time

# A worker that dies this often in a row without reaching a sample is not started again, if nothing else makes progress.
_MAX_IDLE_DEATHS = 5
# For how long workers may die without any progress, in seconds; and if it is known that memory has run out.
_MAX_STANDSTILL = 60.0
_MAX_STANDSTILL_WITHOUT_MEMORY = 10.0
# So many deaths there must be in that time.
_MIN_STANDSTILL_DEATHS = 4
# Signals that a program does not send itself by mistake.
_FROM_OUTSIDE = frozenset(
    -number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM)
)
# A worker that has lived for so long, in seconds, did not die of its start.
_STARTED = 5.0


class IdleDeaths:
    """Counts workers that died without being at a sample.

    Such a worker is started again, later each time. If no sample is made meanwhile and its own start kills it, this
    comes to an end soon; :class:`Standstill` ends it if it is killed from outside.
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[int] = collections.Counter()
        self._in_vain: collections.Counter[int] = collections.Counter()
        self._samples = -1

    def note(self, worker: int, code: int | None, lifetime: float, samples: int) -> bool:
        """A worker died while it was idle.

        Args:
            code: how, as :attr:`multiprocessing.Process.exitcode`.
            lifetime: in seconds.
            samples: made by all workers so far.

        Returns:
            Whether to start it again.
        """
        if samples != self._samples:
            self._samples = samples
            self._in_vain.clear()
        self._in_vain[worker] += 1
        self._counts[worker] = 1 if lifetime > _STARTED else self._counts[worker] + 1
        return self._in_vain[worker] < _MAX_IDLE_DEATHS or code in _FROM_OUTSIDE

    def delay(self, worker: int) -> float:
        """Seconds that the worker's successor waits before it does anything."""
        count = self._counts[worker]
        return min(0.05 * 2 ** min(count - 2, 10), 1.0) if count > 1 else 0.0

    def forget(self, worker: int) -> None:
        """The worker reached a sample."""
        del self._counts[worker]

    def start_again(self) -> None:
        """A sample was given up, which is progress, too."""
        self._in_vain.clear()


class Standstill:
    """Limits what :class:`IdleDeaths` and ``blame.py`` tolerate: deaths without progress, of any worker, wherever and
    of whatever. When memory runs out, for one, each worker's death may acquit the sample of another.

    Progress is what stays: a sample counts once the claim that it belongs to is complete, so that no death takes it
    back. Since the number of batches in progress is bounded, no more samples come once no batch does. While memory runs
    out, a sample in the open batches still succeeds now and then, by luck: there must be as many samples as deaths, or
    have been none of the latter for a while.

    Attributes:
        deaths: since the last progress.
        seconds: since the first of them.
        samples: completed in that time.
    """

    def __init__(self) -> None:
        self._completed = -1
        self._since = self._latest = 0.0
        # Processes that the kernel has ended: at the latest death, and before the first of `deaths`.
        self._memory_kills = self._memory_kills_before = 0
        self.deaths = self.samples = 0
        self.seconds = 0.0

    def note(self, completed: int, memory_kills: int = 0) -> bool:
        """A worker died.

        Args:
            completed: samples in complete claims so far.
            memory_kills: how many processes the kernel has ended because memory ran out, as far as is known.

        Returns:
            Whether to continue.
        """
        now = time.monotonic()
        out_of_memory = memory_kills > self._memory_kills_before
        progress = completed - self._completed
        by_luck = out_of_memory and progress < self.deaths and now - self._latest < _MAX_STANDSTILL_WITHOUT_MEMORY
        if self._completed < 0 or (progress > 0 and not by_luck):
            self._completed, self._since, self.deaths, progress = completed, now, 0, 0
            self._memory_kills_before = self._memory_kills
            out_of_memory = memory_kills > self._memory_kills_before
        self._memory_kills, self._latest = memory_kills, now
        self.deaths += 1
        self.samples = progress
        self.seconds = now - self._since
        longest = _MAX_STANDSTILL_WITHOUT_MEMORY if out_of_memory else _MAX_STANDSTILL
        return self.deaths < _MIN_STANDSTILL_DEATHS or self.seconds < longest

    def forget(self) -> None:
        """A sample was given up, which is progress, too."""
        self._completed = -1
