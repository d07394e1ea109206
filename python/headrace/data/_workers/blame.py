"""Which sample is to blame for the deaths of workers, if any.

The way in which a process died does not tell who caused it: SIGKILL comes from operators, from a cluster's scheduler,
and from the kernel when a sample takes all memory. So the sample is tried again, and what happens meanwhile tells
whether it is to blame.
"""

from __future__ import annotations

import collections
import signal
from collections.abc import Hashable

# Signals that a program causes itself.
_CRASHES = frozenset(
    -number for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS)
)
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
    always kills its worker, in contrast, is alone in that. In a stream that workers share, each also makes the elements
    of the batches before its own: it does not as long as one of these is on trial (``SampleMaker``).

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

    def note(self, cause: Hashable, samples: list[tuple[int, int, str]], made: int = 0) -> list[tuple[int, int, str]]:
        """A worker died of ``cause`` while it made ``samples``: none, or one for each of its threads.

        Args:
            cause: how, as :attr:`multiprocessing.Process.exitcode`, or another word for it.
            made: samples made by all workers so far.

        Returns:
            Those of them that are to be given up.
        """
        counts = self._counts[cause]
        crashed = cause in _CRASHES or (isinstance(cause, int) and cause > 0)
        if not crashed and (any(sample not in counts for sample in samples) or not samples):
            for sample in counts:
                counts[sample] = 0
        if crashed and samples:
            self._in_vain = self._in_vain + 1 if made == self._made else 1
            self._made = made
        for sample in samples:
            counts[sample] = counts.get(sample, 0) + 1
        if samples:
            newest = max(sample[0] for sample in samples)
            for sample in [sample for sample in counts if sample[0] + _FORGET_AFTER < newest]:
                del counts[sample]
        limit = min(2, self._limit) if crashed and self._in_vain >= self._limit else self._limit
        given_up = [sample for sample in samples if counts[sample] >= limit]
        for sample in given_up:
            del counts[sample]
        return given_up
