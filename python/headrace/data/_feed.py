"""A loader's epoch on its way into a queue, moved by a C++ thread."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Optional

from headrace import _core
from headrace.data._engine import Engine
from headrace.data._worker import ClaimServer


class Feed:
    """Feeds the epoch that ``engine`` has started into ``queue``.

    ``stop`` may be called at any time, also twice. Dropping the object stops the feeding, too, and fails the queue.

    Args:
        give_back: called once the feeding has stopped.
    """

    def __init__(self, engine: Engine, queue: _core.LoDTensorBlockingQueue, give_back: Callable[[], None]) -> None:
        # The feeder's hooks keep the engine alive while it works.
        on_supply = _hook(engine.supply) if engine.supplying else None
        feeder = engine.scheduler.feed(queue, _hook(engine.replace_dead), on_supply, engine.timeout)
        stopping = threading.Event()
        thread: threading.Thread | None = None
        if engine.server is not None:
            # Without workers a thread of this process makes the samples. It must not refer to this object.
            thread = threading.Thread(
                target=_serve_until, args=(engine.server, stopping), daemon=True, name="headrace-feed"
            )
            thread.start()
        if engine.tunes:
            threading.Thread(
                target=_tune_until, args=(weakref.ref(engine), stopping), daemon=True, name="headrace-tune"
            ).start()
        self._parts: _FeedParts | None = (feeder, stopping, thread, os.getpid(), give_back)
        self._finalizer = weakref.finalize(self, _stop_feed, self._parts, "whoever fed the queue is gone")

    def stop(self, reason: str = "") -> None:
        """Ends the feeding. If the epoch is not over and there is a ``reason``, the queue fails with it."""
        parts, self._parts = self._parts, None
        if parts is not None:
            self._finalizer.detach()
            _stop_feed(parts, reason)


# The feeder, what tells the thread that makes the samples to end, that thread, the process that they belong to, and
# what is called in the end.
_FeedParts = tuple[_core.QueueFeeder, threading.Event, Optional[threading.Thread], int, Callable[[], None]]


def _stop_feed(parts: _FeedParts, reason: str) -> None:
    feeder, stopping, thread, owner, give_back = parts
    if os.getpid() != owner:
        return
    stopping.set()
    feeder.stop(reason)
    if thread is not None and thread is not threading.current_thread():
        thread.join()
    give_back()


def _hook(function: Callable[[], None]) -> Callable[[], BaseException | None]:
    """What calls ``function`` and returns its exception, if it raises one, without the frames of this module.

    A queue may keep the exception for long, and must not keep the loader with it.
    """

    def call() -> BaseException | None:
        try:
            function()
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
                trace = trace.tb_next
            return error.with_traceback(trace)
        return None

    return call


_OWN_FILES = (__file__, os.path.join(os.path.dirname(__file__), "_engine.py"))


def _serve_until(server: ClaimServer, stopping: threading.Event) -> None:
    while not stopping.is_set() and not server.producer.stopped:
        claim = server.producer.wait(0.05)
        if claim is not None:
            server.serve(claim)


def _tune_until(engine: weakref.ref[Engine], stopping: threading.Event) -> None:
    """While C++ moves the batches, nobody else would look at the number of workers."""
    while not stopping.wait(0.5):
        alive = engine()
        if alive is None:
            return
        alive.tune()
        del alive
