"""Steps that no signal handler of the program's may interrupt, because half of them would be of no use."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

# The program's own handlers, while they are put off.
_put_off: dict[int, Any] = {}


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Puts off the handlers of signals that arrive until the end, where one of them may raise.

    Only the main thread runs handlers; in others this does nothing, nor does it within another one.
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


def _restore() -> None:
    if not _put_off:
        return
    number = max(_put_off)
    try:
        # Which first runs the handlers of what has arrived: one that is back may raise, and keep this one away.
        signal.signal(number, _put_off[number])
    finally:
        try:
            if signal.getsignal(number) is _put_off.get(number):
                _put_off.pop(number, None)
        finally:
            _restore()


# A child has the handlers that it would have had.
os.register_at_fork(after_in_child=_restore)
