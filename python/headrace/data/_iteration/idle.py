"""Stops the workers of a loader that has been idle for a while: several loaders then keep few processes.

Only workers without a state of their own are stopped: the results of a program must not depend on how long it waited.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from headrace._weak_collections import WeakBag
from headrace.data._iteration.engine import Engine
from headrace.data._system.start_thread import start_thread
from headrace.errors import ResourceExhausted

# Seconds without an iteration after which workers exit; the next one starts workers again.
IDLE_SECONDS = 60.0


class IdleEngine:
    """The engine of a loader while no iteration uses it.

    Thread-safety: any thread; one of this module's own closes an engine that has been here for long.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may run within, and end another iterator of the loader
        self._engine: Engine | None = None
        self._since = 0.0
        _all.add(self)

    def put(self, engine: Engine, may_end: bool) -> None:
        """Keeps an engine, and ends it after a while if it ``may_end``; there must be none."""
        with self._lock:
            self._engine, self._since = engine, time.monotonic()
        if may_end:
            _watch(self)

    def take(self) -> Engine | None:
        """The engine, if there is one, for an iteration."""
        with self._lock:
            engine, self._engine = self._engine, None
        return engine

    def close(self) -> None:
        """Ends the engine, if there is one."""
        engine = self.take()
        if engine is not None:
            engine.close()

    def close_after(self, seconds: float) -> None:
        """Ends the engine if it has been here for that long."""
        with self._lock:
            if time.monotonic() - self._since < seconds:
                return
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __bool__(self) -> bool:
        return self._engine is not None


_lock = threading.RLock()  # as that of an IdleEngine
_all: WeakBag[IdleEngine] = WeakBag()
_watched: WeakBag[IdleEngine] = WeakBag()
_watching = False


def _watch(idle: IdleEngine) -> None:
    global _watching
    with _lock:
        _watched.add(idle)
        if not _watching:
            with contextlib.suppress(ResourceExhausted):  # the next engine has this one watched, too
                start_thread(_close_idle, name="headrace-idle")
                _watching = True


def _close_idle() -> None:
    """Looks now and then, as long as there is something to look at."""
    time.sleep(IDLE_SECONDS / 4)
    while _look():
        time.sleep(IDLE_SECONDS / 4)


def _look() -> bool:
    """Stops workers that have been idle for long. Returns whether to check again. Keeps no references between two
    calls.
    """
    global _watching
    with _lock:
        watched = list(_watched)
    for idle in watched:
        idle.close_after(IDLE_SECONDS)
    with _lock:
        _watching = any(_watched)
        return _watching


def _after_fork() -> None:
    """A forked child has neither the thread nor the engines; a lock may have been held."""
    global _lock, _watching
    _lock, _watching = threading.RLock(), False
    for idle in _all:
        idle._lock = threading.RLock()
    _watched.clear()


os.register_at_fork(after_in_child=_after_fork)
