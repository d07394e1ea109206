"""What happens when workers die: which sample is to blame, if any, and how soon another worker starts.

The way in which a process died does not tell who caused it: SIGKILL comes from operators, from a cluster's scheduler,
and from the kernel when a sample takes all memory. So the sample is tried again, and what happens meanwhile tells
whether it is to blame.

``reader/shared_memory/producers/producer_watch.h`` notices a death; ``ProcessPool.replace_dead`` in
``process_pool.py`` asks here, gives samples up, and starts another worker.
"""

from __future__ import annotations

import collections
import signal
import time
from collections.abc import Hashable

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
# Signals that a program causes itself.
_CRASHES = frozenset(
    -number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS)
)
# A worker that has lived for so long, in seconds, did not die of its start.
_STARTED = 5.0
# Batches whose numbers are further apart than this are not open together.
_FORGET_AFTER = 4096


def pause_before_retry(deaths: int) -> float:
    """Seconds that a worker waits before it makes a sample at which that many have died."""
    return min(0.05 * 2 ** (deaths - 1), 2.0) if deaths > 0 else 0.0


class SampleDeaths:
    """Counts the workers that died at a sample, by sample and cause.

    A retry comes after a pause (:func:`pause_before_retry`), which is the control of the experiment: if, meanwhile, a
    worker dies of the same cause at no sample, or at one that had done no harm before, then workers are being killed
    from outside, and the count starts again. So no sample is blamed for bursts of kills, however fast; a sample that
    always kills its worker, in contrast, is alone in that. Except in a stream that workers share: each makes the
    elements of the batches before its own, too. One that dies on its way to its batch may have died of any of them, and
    acquits none.

    Crashes and exits come from within: those at other samples acquit none. Once there have been as many as that, at
    whatever samples, and none was made meanwhile, a second one at a sample is enough.

    Args:
        limit: deaths of one cause after which a sample is given up.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # How many samples had been made at the latest crash, and the crashes since that number was last another.
        self._made, self._in_vain = -1, 0
        # By cause and by sample: its batch's number first.
        self._counts: dict[Hashable, dict[tuple[int, int, str], int]] = collections.defaultdict(dict)
        # By cause: how many samples had been made at the latest death that counted against one.
        self._made_at_death: dict[Hashable, int] = {}

    def note(
        self, cause: Hashable, samples: list[tuple[int, int, str]], made: int = 0, destination: int | None = None
    ) -> list[tuple[int, int, str]]:
        """A worker died of ``cause`` while it made ``samples``: none, or one for each of its threads.

        Args:
            cause: how, as :attr:`multiprocessing.Process.exitcode`, or another word for it.
            made: samples made by all workers so far.
            destination: the number of the batch to which it was on its way in a stream that workers share, if it was.

        Returns:
            Those of them that are to be given up.
        """
        counts = self._counts[cause]
        crashed = cause in _CRASHES or (isinstance(cause, int) and cause > 0)
        if not crashed and (any(sample not in counts for sample in samples) or not samples):
            for sample in counts:
                if destination is None or sample[0] >= destination:
                    counts[sample] = 0
        if crashed and samples:
            self._in_vain = self._in_vain + 1 if made == self._made else 1
            self._made = made
        for sample in samples:
            counts[sample] = counts.get(sample, 0) + 1
        if samples:
            self._made_at_death[cause] = made
            newest = max(sample[0] for sample in samples)
            for sample in [sample for sample in counts if sample[0] + _FORGET_AFTER < newest]:
                del counts[sample]
        limit = min(2, self._limit) if crashed and self._in_vain >= self._limit else self._limit
        given_up = [sample for sample in samples if counts[sample] >= limit]
        for sample in given_up:
            del counts[sample]
        return given_up

    def is_on_trial(self, cause: Hashable, made: int) -> bool:
        """Whether deaths of that cause count against a sample that is not made yet, as far as is known: no sample has
        been made since the latest of them.
        """
        return self._made_at_death.get(cause) == made and any(self._counts[cause].values())


class IdleDeaths:
    """Counts workers that died without being at a sample.

    Such a worker is started again, later each time. If no sample is made meanwhile and its own start kills it, this
    comes to an end soon; :class:`Standstill` ends it if it is killed from outside.
    """

    def __init__(self) -> None:
        self._counts: collections.Counter[int] = collections.Counter()
        self._in_vain: collections.Counter[int] = collections.Counter()
        self._samples = -1

    def note(self, worker: int, code: int | None, lifetime: float, samples: int, excused: bool = False) -> bool:
        """A worker died while it was idle.

        Args:
            code: how, as :attr:`multiprocessing.Process.exitcode`.
            lifetime: in seconds.
            samples: made by all workers so far.
            excused: it does not count, but delays the successor.

        Returns:
            Whether to start it again.
        """
        if samples != self._samples:
            self._samples = samples
            self._in_vain.clear()
        self._in_vain[worker] += not excused
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
    """Limits what :class:`SampleDeaths` and :class:`IdleDeaths` tolerate: deaths without progress, of any worker,
    wherever and of whatever. When memory runs out, for one, each worker's death may acquit the sample of another.

    Progress is what stays: a sample counts once the claim that it belongs to is complete, so that no death takes it
    back. Since the number of batches in progress is bounded, no more samples come once no batch does.

    Attributes:
        deaths: since the last progress.
        seconds: since the first of them.
    """

    def __init__(self) -> None:
        self._completed = -1
        self._since = 0.0
        # Processes that the kernel has ended: at the latest death, and before the first of `deaths`.
        self._memory_kills = self._memory_kills_before = 0
        self.deaths = 0
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
        if completed != self._completed:
            self._completed, self._since, self.deaths = completed, now, 0
            self._memory_kills_before = self._memory_kills
        self._memory_kills = memory_kills
        self.deaths += 1
        self.seconds = now - self._since
        out_of_memory = memory_kills > self._memory_kills_before
        longest = _MAX_STANDSTILL_WITHOUT_MEMORY if out_of_memory else _MAX_STANDSTILL
        return self.deaths < _MIN_STANDSTILL_DEATHS or self.seconds < longest

    def forget(self) -> None:
        """A sample was given up, which is progress, too."""
        self._completed = -1
