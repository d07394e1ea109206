"""Daemon threads that still iterate while the interpreter exits."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util  # noqa: F401
import os
import threading
import weakref
from collections.abc import Iterator

from headrace import errors

_exits = False
# Held while a process is started.
_start_lock = threading.RLock()
# How long the exit waits for a start, in seconds.
_PATIENCE = 5.0


def _note_exit() -> None:
    global _exits
    _exits = True
    if _start_lock.acquire(timeout=_PATIENCE):
        _start_lock.release()


def _make_start_lock_anew() -> None:
    """In a forked child, where the thread that holds it may not be."""
    global _start_lock
    _start_lock = threading.RLock()


os.register_at_fork(after_in_child=_make_start_lock_anew)


@contextlib.contextmanager
def process_start() -> Iterator[None]:
    """Around the start of a worker process, which either ends before the interpreter begins to exit or does not begin.

    multiprocessing terminates the workers that there are at the exit, and then waits for those that there are: for one
    that a daemon thread has started in between it would wait without end.

    Raises:
        FailedPrecondition: the interpreter exits, and this is a daemon thread.
    """
    with _start_lock:
        if _exits and threading.current_thread() is not threading.main_thread():
            raise errors.FailedPrecondition("no worker can start: the interpreter is exiting")
        yield


# atexit runs the newest function first. multiprocessing registers one that ends workers, when multiprocessing.util is
# imported; weakref registers one that runs all finalizers, of which some end engines, when the first finalizer is made.
# Both must exist by now, so that the exit is noted before.
weakref.finalize(_note_exit, lambda: None)
atexit.register(_note_exit)


def interpreter_exits() -> bool:
    """Whether the interpreter is exiting."""
    return _exits


def rest_if_interpreter_exits() -> None:
    """Never returns to a daemon thread once the interpreter exits: its workers are gone, and an exception would have no
    receiver.

    CPython suspends such a thread as soon as it asks for the interpreter's lock; the C++ side does so from its own exit
    handler on, which runs after the finalizers.
    """
    if _exits and threading.current_thread() is not threading.main_thread():
        threading.Event().wait()
