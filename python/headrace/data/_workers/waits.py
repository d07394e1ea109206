"""Which threads of worker processes wait for others, see :mod:`headrace._waiting`."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.data._system.memory_file import MemoryFile


class Waits(MemoryFile):
    """A byte for each producer. Any thread.

    Attributes:
        fd: the argument of :func:`mark_in` in workers.
    """

    def __init__(self) -> None:
        super().__init__("headrace-waits")

    def has(self, producer: int) -> bool:
        """Whether that one waits now."""
        return os.pread(self.fd, 1, producer) == b"\1"


def mark_in(fd: int, producer: int) -> Callable[[bool], object]:
    """The ``mark`` of :func:`headrace._waiting.begin_thread` in a worker process."""
    return lambda waits: os.pwrite(fd, b"\1" if waits else b"\0", producer)
