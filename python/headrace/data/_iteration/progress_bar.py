"""An iterator that shows its progress."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headrace.data._iteration.iterator import BatchIterator
from headrace.data._iteration.progress import Progress


class ProgressBar(Iterator[Any]):
    """The batches of an iterator, with a bar that counts those that the consumer is done with.

    Not tqdm's own iterator: a generator, which an interrupt would end.

    Args:
        bar: a ``tqdm``.
    """

    def __init__(self, batches: BatchIterator, progress: Progress, bar: Any) -> None:
        self._batches = batches
        self._progress = progress
        self._bar = bar

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        self._count()  # before a batch is at hand, which an interrupt could lose
        for batch in self._batches:  # not next(): at the end of a call signal handlers run
            return batch
        self._end()
        raise StopIteration

    def __del__(self) -> None:
        self._end()

    def _count(self) -> None:
        self._draw(self._bar.update, self._progress.taken - self._bar.n)

    def _end(self) -> None:
        self._count()
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
