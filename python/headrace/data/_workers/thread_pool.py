"""Threads as workers."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterable

from headrace import _core
from headrace.data._system.interpreter_exit import interpreter_exits
from headrace.data._system.start_thread import start_thread
from headrace.data._workers.errors import Describe
from headrace.data._workers.main import serve_in_thread
from headrace.data._workers.process_pool import GRACE, GRACE_OF_SAMPLE, GRACE_OF_WAIT, LOOK_EVERY, MOST_STACKS
from headrace.data._workers.sample_maker import SampleMaker


class ThreadPool:
    """Workers that are threads of this process; otherwise as :class:`ProcessPool`.

    Args:
        makers: one for each thread. The caller keeps them alive; the threads do not.

    Raises:
        ResourceExhausted: the system starts no more threads.
    """

    def __init__(self, scheduler: _core.BatchScheduler, makers: list[SampleMaker]) -> None:
        self._scheduler = scheduler
        self._owner = os.getpid()
        self._threads: list[threading.Thread] = []
        self._waits = [False] * len(makers)  # for others, by thread
        try:
            for number, maker in enumerate(makers):
                mark = functools.partial(self._waits.__setitem__, number)
                thread = start_thread(
                    serve_in_thread, weakref.ref(maker), number, mark, name=f"headrace-worker-{number}"
                )
                self._threads.append(thread)
        except BaseException:
            self.stop()
            raise

    def explain(self, held: list[_core.HeldClaim], describe: Describe) -> str:
        """As :meth:`ProcessPool.explain`."""
        frames = sys._current_frames()
        texts = []
        for claim in held[:MOST_STACKS]:
            if claim.producer < len(self._threads):
                frame = frames.get(self._threads[claim.producer].ident or 0)
                stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
                texts.append(f"Thread {claim.producer} is at {describe([claim])}.\n{stack}")
        return "\n\n".join(texts)

    def stop(self) -> None:
        """Ends the threads once they have finished their samples, for which it waits a short while; a shorter one for
        samples that wait for others.

        Does nothing in a forked child. Idempotent.
        """
        if os.getpid() != self._owner:
            return
        self._scheduler.shutdown()
        threads = {i: thread for i, thread in enumerate(self._threads) if thread is not threading.current_thread()}
        self._threads = []
        started = time.monotonic()
        if interpreter_exits():
            _join_all(threads.values(), started + GRACE_OF_SAMPLE)
            for thread in threads.values():
                _interrupt(thread)
        _join_all(threads.values(), started + GRACE_OF_WAIT)
        while time.monotonic() < started + GRACE:
            left = [thread for i, thread in threads.items() if thread.is_alive() and not self._waits[i]]
            if not left:
                break
            _join_all(left, min(started + GRACE, time.monotonic() + LOOK_EVERY))
        self._scheduler.shutdown()  # gives back the memory of the batches that they were at


def _join_all(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _interrupt(thread: threading.Thread) -> None:
    """Ends the sample that a thread is at, as soon as Python code runs there."""
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
