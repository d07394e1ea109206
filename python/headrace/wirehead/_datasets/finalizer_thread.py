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
from collections.abc import Callable
from typing import Any

log = logging.getLogger("headrace.wirehead")

# Of ``multiprocessing.util.Finalize``, for finalizers that call :func:`close_later` at exit.
CLOSING_PRIORITY = 10

# Its ``put`` may interrupt itself.
_jobs: queue.SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]] | None] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_lock = threading.Lock()  # guards the thread; not taken by close_later
# Seconds that the exit of a process waits for closing: a server may be gone, and PyMongo waits for its threads before.
# Leases expire by themselves.
_PATIENCE = 1.0


def start_closing() -> None:
    """Starts the thread, if this process has none yet. At exit, the process waits up to ``_PATIENCE`` seconds for the
    thread to close the objects that it was given.
    """
    global _thread
    with _lock:
        if _thread is None:
            thread = threading.Thread(target=_run, args=(_jobs,), name="headrace-wirehead-closing", daemon=True)
            thread.start()
            _thread = thread
            # After the finalizers of datasets. A worker process runs these, but no atexit functions.
            multiprocessing.util.Finalize(None, _finish, exitpriority=CLOSING_PRIORITY - 1)


def close_later(close: Callable[..., object], *arguments: Any) -> None:
    """Has the thread call ``close(*arguments)``. For finalizers: takes no lock, sets no context variable."""
    _jobs.put((close, arguments))


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
    thread, _thread = _thread, None
    if thread is not None:
        _jobs.put(None)
        thread.join(_PATIENCE)


def _after_fork() -> None:
    """A forked child does not have the thread; locks may have been held."""
    global _jobs, _thread, _lock
    _jobs, _thread, _lock = queue.SimpleQueue(), None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
