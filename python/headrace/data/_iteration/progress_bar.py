"""A bar that shows the progress of an iteration."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any


class ProgressBar:
    """Counts the batches that the consumer is done with.

    Args:
        bar: a ``tqdm``.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def show(self, batches: int) -> None:
        """Shows that so many batches are done."""
        self._draw(self._bar.update, batches - self._bar.n)

    def close(self, batches: int) -> None:
        """Shows it for the last time."""
        self.show(batches)
        self._draw(self._bar.close)

    def _draw(self, method: Callable[..., object], *arguments: int) -> None:
        try:
            method(*arguments)
        except BaseException:
            _unlock(self._bar)
            raise


def _unlock(bar: Any) -> None:
    """Releases locks that an interrupt within tqdm has left locked: the lock that all bars share, those of child
    processes, too, which would wait for it forever.
    """
    import multiprocessing.synchronize  # not for nothing: where there are no semaphores it fails

    lock = bar.get_lock()
    for part in getattr(lock, "locks", [lock]):
        if isinstance(part, (type(threading.RLock()), multiprocessing.synchronize.RLock)):
            with contextlib.suppress(RuntimeError, AssertionError):  # this thread does not hold it any more
                while True:
                    part.release()
