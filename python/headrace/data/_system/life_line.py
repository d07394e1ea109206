"""Tells workers that the program of the main process is over: it has exited, or has replaced itself (``exec``)."""

from __future__ import annotations

import fcntl
import os

from headrace.data._system.memory_file import memory_file


class LifeLine:
    """A lock on a file, which a process holds for as long as its program lasts; workers wait for it (``exit_with``).

    The kernel releases a POSIX lock when the process that took it exits, or executes another program, which closes
    the file. Unlike a pipe, it is held by no child that the program forks, which may live for any time; unlike a pidfd,
    it does not outlive the program.

    The lock also goes with the first descriptor of the file that this process closes, so there is only one.

    Attributes:
        fd: of the file; workers inherit it or are sent it.
    """

    def __init__(self) -> None:
        self.fd = memory_file("headrace-life")
        fcntl.lockf(self.fd, fcntl.LOCK_EX)

    def close(self) -> None:
        """Ends the workers that wait for it. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
