"""Daemon threads that still iterate while the interpreter exits."""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401
import threading
import weakref

_exits = False


def _note_exit() -> None:
    global _exits
    _exits = True


# atexit runs the newest function first. multiprocessing registers one that ends workers, when multiprocessing.util is
# imported; weakref registers one that runs all finalizers, of which some end engines, when the first finalizer is made.
# Both must exist by now, so that the exit is noted before.
weakref.finalize(_note_exit, lambda: None)
atexit.register(_note_exit)


def interpreter_exits() -> bool:
    """Whether the interpreter has begun to exit."""
    return _exits


def rest_if_interpreter_exits() -> None:
    """Never returns to a daemon thread once the interpreter exits: its workers are gone, and there is nobody to tell.

    CPython suspends such a thread as soon as it asks for the interpreter's lock; the C++ side does so from its own exit
    handler on, which runs after the finalizers.
    """
    if _exits and threading.current_thread() is not threading.main_thread():
        threading.Event().wait()
