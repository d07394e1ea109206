"""Closes objects that the garbage collector has found, in a separate thread.

The collector may run between any two instructions of any thread: one that holds a lock which closing waits for, or one
that is setting a context variable, as PyMongo does for each operation. Up to Python 3.11 the interpreter crashes if
another is set within that.
"""

from __future__ import annotations

import logging
import multiprocessing.util
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace.wirehead._stores.store import FAREWELL

log = logging.getLogger("headrace.wirehead")

# Of ``multiprocessing.util.Finalize``: before those of its own, which end child processes.
_PRIORITY = 10

# Its ``put`` may interrupt itself.
_jobs: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_lock = threading.Lock()  # guards the thread; not taken by close_later
_at_exit: set[Callable[[], None]] = set()
_exit_until: float | None = None  # when, by time.monotonic(), the exit of this process no longer waits; if it has begun


def start_closing(at_exit: Callable[[], None] | None = None) -> None:
    """Starts the thread, if this process has none yet. At exit, the process calls ``at_exit``, once for however many
    calls, and waits up to ``FAREWELL`` seconds for the thread to close the objects that it was given: a server may be
    gone, and leases expire by themselves.
    """
    if at_exit is not None:
        _at_exit.add(at_exit)
    global _thread
    with _lock:
        if _thread is None:
            thread = threading.Thread(target=_run, args=(_jobs,), name="headrace-wirehead-closing", daemon=True)
            thread.start()
            _thread = thread
            # A worker process runs this, but no atexit functions.
            multiprocessing.util.Finalize(None, _finish, exitpriority=_PRIORITY)


def close_later(close: Callable[..., object], *arguments: Any) -> None:
    """Has the thread call ``close(*arguments)``. For finalizers: takes no lock, sets no context variable."""
    _jobs.put((close, arguments))


def close_at_exit(close: Callable[[], None]) -> None:
    """Has the thread call ``close()``, from a function of ``atexit``. From the first of these on, the exit waits
    ``FAREWELL`` seconds in all: PyMongo's own functions take some of them.
    """
    _begin_exit()
    close_later(close)


def _begin_exit() -> float:
    """Returns until when the exit waits."""
    global _exit_until
    if _exit_until is None:
        _exit_until = time.monotonic() + FAREWELL
    return _exit_until


def _run(jobs: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        try:
            job[0](*job[1])
        except Exception as error:
            log.warning("a dataset or generator could not be closed: %s", error)
        del job


def _finish() -> None:
    global _thread
    until = _begin_exit()
    for function in _at_exit:
        function()
    thread, _thread = _thread, None
    if thread is not None:
        _jobs.put(None)
        thread.join(max(0.0, until - time.monotonic()))


def _after_fork() -> None:
    """A forked child does not have the thread; locks may have been held."""
    global _jobs, _thread, _lock, _exit_until
    _jobs, _thread, _lock, _exit_until = queue.SimpleQueue(), None, threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
