"""Steps that no signal handler of the program's may interrupt, because half of them would be of no use."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
import types
import weakref
from collections.abc import Iterator
from typing import Any

# The program's own handlers, while they are put off.
_put_off: dict[int, Any] = {}
# Those of signals that arrived in a finalizer, until it is over.
_postponed: dict[int, Any] = {}
# How long it may take until a signal that arrived in a finalizer is delivered once that is over, in seconds.
_DELAY = 0.005


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Puts off the handlers of signals that arrive until the end, where one of them may raise.

    In a finalizer, where Python would ignore what they raise, they run when that is over. Only the main thread runs
    handlers; in others this does nothing, nor does it within another one.
    """
    if threading.current_thread() is not threading.main_thread() or _put_off:
        yield
        return
    arrived: list[int] = []
    try:
        for number in signal.valid_signals():
            handler = signal.getsignal(number)
            if callable(handler):
                _put_off[number] = handler
                signal.signal(number, lambda number, frame: arrived.append(number))
        yield
    finally:
        try:
            _restore()
        finally:  # whatever a handler that is back raises
            if not (arrived and _is_in_finalizer(sys._getframe()) and _postpone(arrived)):
                _deliver(arrived)


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Around the start of a process: Ctrl-C, which the whole terminal gets, waits there until the process has called
    :func:`ignore_interrupts`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """In a process that is not the one to react to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _deliver(arrived: list[int]) -> None:
    while arrived:
        try:
            signal.raise_signal(arrived.pop(0))
        finally:  # whatever the handler raises
            _deliver(arrived)


def _is_in_finalizer(frame: types.FrameType | None) -> bool:
    """Whether Python would ignore an exception that leaves the frame and those that have called it."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__":
            return True
        # Its argument is the weak reference that it is the callback of; called by hand, it has none.
        if code is weakref.finalize.__call__.__code__ and frame.f_locals.get("_") is not None:
            return True
        frame = frame.f_back
    return False


def _postpone(arrived: list[int]) -> bool:
    """Has the handlers run once no finalizer does. False: no thread can start that would see to it."""
    try:
        # Not one of threading's, whose locks the code may hold that this finalizer has interrupted.
        _thread.start_new_thread(_remind, (threading.main_thread().ident or 0,))
    except RuntimeError:
        return False
    for number in arrived:
        handler = signal.getsignal(number)
        if handler is not _after_finalizers:
            _postponed[number] = handler
            signal.signal(number, _after_finalizers)
    return True


def _after_finalizers(number: int, frame: types.FrameType | None) -> None:
    """The handler of a signal that is postponed."""
    if number in _postponed and not _is_in_finalizer(frame):
        handler = _postponed.pop(number)
        signal.signal(number, handler)
        handler(number, frame)


def _remind(main_thread: int) -> None:
    """Sends the main thread what is postponed until it has taken it: it may be waiting for anything."""
    while True:
        time.sleep(_DELAY)
        if not _postponed:
            return
        for number in list(_postponed):
            if number not in _put_off:
                if signal.getsignal(number) is not _after_finalizers:  # the program has set another one
                    _postponed.pop(number, None)
                signal.pthread_kill(main_thread, number)


def _restore_postponed() -> None:
    for number, handler in _postponed.items():
        signal.signal(number, handler)
    _postponed.clear()


def _restore() -> None:
    if not _put_off:
        return
    number = max(_put_off)
    try:
        signal.signal(number, _put_off[number])
    finally:  # whatever a handler that is back raises
        try:
            _put_off.pop(number, None)
        finally:
            _restore()


# A child has the handlers that it would have had.
os.register_at_fork(after_in_child=_restore)
os.register_at_fork(after_in_child=_restore_postponed)
