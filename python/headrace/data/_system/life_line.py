"""Tells workers that the program of the main process is over: it has exited, or has replaced itself (``exec``)."""

from __future__ import annotations

import fcntl

from headrace.data._system.memory_file import MemoryFile


class LifeLine(MemoryFile):
    """A lock on a file, which a process holds for as long as its program lasts; workers wait for it (``exit_with``).

    The kernel releases a POSIX lock when the process that took it exits, or executes another program, which closes
    the file. Unlike a pipe, it is held by no child that the program forks, which may live for any time; unlike a pidfd,
    it does not outlive the program.

    The lock also goes with the first descriptor of the file that this process closes, so there is only one:
    :meth:`close` ends the workers that wait.
    """

    def __init__(self) -> None:
        super().__init__("headrace-life")
        fcntl.lockf(self.fd, fcntl.LOCK_EX)
