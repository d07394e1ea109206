"""Feeds a loader's epoch into a queue, by a C++ thread."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from headrace import _core
from headrace._weak_collections import WeakBag
from headrace.data._iteration.engine import Engine
from headrace.data._samples.batch_tree import places_by_name
from headrace.data._system.interpreter_exit import rest_if_interpreter_exits
from headrace.data._system.start_thread import start_thread
from headrace.data._workers.group import WorkerGroup
from headrace.data._workers.sample_maker import SampleMaker

_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


class Feed:
    """Feeds the epoch that ``engine`` has started into ``queue``.

    Dropping the object stops the feeding and fails the queue. The threads that it starts hold weak references to it and
    to the engine, so it can be dropped, even as part of a reference cycle.

    Thread-safety: ``stop`` may be called by any thread, at any time, also twice.

    Args:
        names: the variables that take the arrays of a batch: those of a mapping go by name, others in order. None: all
            go in order.
        finish: called with the engine if the feeding has stopped at the end of the epoch and all batches were taken
            from the queue.
        give_back: called with the engine once the feeding has stopped.
    """

    def __init__(
        self,
        engine: Engine,
        queue: _core.LoDTensorBlockingQueue,
        names: Sequence[str] | None,
        finish: Callable[[Engine], None],
        give_back: Callable[[Engine], None],
    ) -> None:
        self._owner = os.getpid()
        self._engine = engine
        self._finish = finish
        self._give_back = give_back
        self._queue = queue
        stats = queue.stats()
        self._lost_before = stats["sent"] - stats["received"] - stats["depth"]
        self._stopping = threading.Event()
        self._ending = threading.Lock()
        self._thread: threading.Thread | None = None
        self._feeder: _core.QueueFeeder | None = None
        _FEEDS.add(self)
        maker = engine.workers.maker
        if maker is not None:
            maker.hands_over = False  # C++ takes batches from slots
        self._feeder = engine.scheduler.feed(
            queue,
            on_death=_hook(engine.workers.replace_dead),
            on_supply=_hook(engine.supply.top_up_or_raise) if engine.supply.needed else None,
            on_timeout=_hook(engine.stall.note),
            order=None if names is None else functools.partial(places_by_name, tuple(names)),
            timeout=engine.stall.seconds,
        )
        try:
            if maker is not None:
                # Without workers a thread of this process makes the samples.
                self._thread = start_thread(
                    _serve_until, weakref.ref(maker), maker.producer, self._stopping, name="headrace-feed"
                )
            if engine.workers.tuning is not None:
                start_thread(_tune_until, weakref.ref(engine.workers), self._stopping, name="headrace-tune")
        except BaseException as error:
            self.stop(f"the feeding could not start: {error}")
            raise

    def stop(self, reason: str = "") -> None:
        """Ends the feeding. If the epoch is not over and there is a ``reason``, the queue fails with it."""
        with self._ending:
            feeder, self._feeder = self._feeder, None
        if feeder is None or os.getpid() != self._owner:
            return
        self._stopping.set()
        feeder.stop(reason)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        stats = self._queue.stats()
        if feeder.finished and stats["sent"] - stats["received"] == self._lost_before:
            self._finish(self._engine)
        self._give_back(self._engine)

    def __del__(self) -> None:
        self.stop("the source that fed the queue no longer exists")


# Those that must be stopped before the interpreter exits.
_FEEDS: WeakBag[Feed] = WeakBag()


@atexit.register
def _stop_all() -> None:
    for feed in _FEEDS:
        feed.stop("the program ended")


def _hook(method: Callable[[], None]) -> Callable[[], BaseException | None]:
    """A function that calls ``method``, to whose object it refers weakly, and returns the exception that this raises.

    A queue may keep the exception for long, and must not keep the loader alive with it: the traceback begins after the
    frames of this package.
    """
    reference = weakref.WeakMethod(method)

    def call() -> BaseException | None:
        alive = reference()
        if alive is None:
            return None  # the feeding is being stopped
        try:
            alive()
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
                trace = trace.tb_next
            return error.with_traceback(trace)
        return None

    return call


def _serve_until(maker_of: weakref.ref[SampleMaker], producer: Any, stopping: threading.Event) -> None:
    while not stopping.is_set() and not producer.stopped:
        claim = producer.wait(0.05)
        if claim is None:
            continue
        alive = maker_of()
        if alive is None:
            return
        alive.serve(claim)
        del alive


def _tune_until(workers: weakref.ref[WorkerGroup], stopping: threading.Event) -> None:
    """Adapts the number of workers while C++ moves the batches and ``next`` is not called."""
    while not stopping.wait(0.5):
        alive = workers()
        if alive is None:
            return
        try:
            alive.tune()
        except BaseException:
            rest_if_interpreter_exits()
            raise
        del alive
