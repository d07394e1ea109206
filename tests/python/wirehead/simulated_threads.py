"""Threads and events of a simulated world, where nobody waits in real time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Event:
    """See :class:`threading.Event`.

    Args:
        pause: what it is to wait: called with the seconds, or None, and whether the event is set already.
    """

    def __init__(self, pause: Callable[[float | None, bool], object]) -> None:
        self._pause, self._is_set = pause, False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        self._pause(timeout, self._is_set)
        return self._is_set


class Threading:
    """What the module of leases has of ``threading``.

    Args:
        pause: see :class:`Event`.
        lock: makes a lock.
        start: begins a thread that does something.
    """

    def __init__(
        self,
        pause: Callable[[float | None, bool], object],
        lock: Callable[[], Any],
        start: Callable[[Callable[[], None]], object],
    ) -> None:
        self._pause, self.Lock, self._start = pause, lock, start

    def Event(self) -> Event:
        return Event(self._pause)

    def Thread(self, target: Callable[[], None], **options: Any) -> Any:
        start = self._start

        class Started:
            def start(self) -> None:
                start(target)

        return Started()
