"""Samples that wait for others, such as a server that is gone: a loader that ends gives them up, while it lets workers
finish what they do themselves. Datasets say when they wait; the loader tells each thread of a worker where to note it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator


class _OfThread(threading.local):
    mark: Callable[[bool], object] | None = None
    is_over: Callable[[], bool] | None = None
    depth = 0


_here = _OfThread()


def begin_thread(mark: Callable[[bool], object], is_over: Callable[[], bool]) -> None:
    """This thread is a worker's from now on.

    Args:
        mark: notes whether it waits for others.
        is_over: tells whether its loader has ended.
    """
    _here.mark, _here.is_over = mark, is_over


@contextlib.contextmanager
def waiting_for_others() -> Iterator[None]:
    """Within this context a dataset does nothing that would have to be finished: if the loader ends, its worker process
    may be killed here, and a worker thread left behind.
    """
    mark = _here.mark
    if mark is None or _here.depth > 0:
        yield
        return
    _here.depth = 1
    mark(True)
    try:
        yield
    finally:
        mark(False)
        _here.depth = 0


def is_over() -> bool:
    """Whether this thread is a worker's whose loader has ended: nobody needs its sample any more."""
    return _here.is_over is not None and _here.is_over()


def _forget_parent() -> None:
    """In a child that a dataset has forked: its waits are not the worker's."""
    global _here
    _here = _OfThread()


os.register_at_fork(after_in_child=_forget_parent)
