"""Files in memory that several processes share."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import pickle
from typing import Any

from headrace.data._system.limits import limit_named

# Python before 3.13 does not have it.
_MFD_NOEXEC_SEAL = 0x8


def memory_file(name: str) -> int:
    """The descriptor of a new, empty file that lives in memory as long as any process has it open.

    It cannot be made executable, which systems with ``vm.memfd_noexec=2`` insist on.

    Args:
        name: what /proc calls it.
    """
    with limit_named(f"cannot make the memory file {name}"):
        try:
            return os.memfd_create(name, os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:  # else the kernel is too old for the flag
                raise
            return os.memfd_create(name, os.MFD_CLOEXEC)


def unpickled(fd: int, begin: int, length: int) -> Any:
    """The object whose pickle, of that length, begins there; the file's own memory is read."""
    with (
        mmap.mmap(fd, begin + length, mmap.MAP_PRIVATE, mmap.PROT_READ) as content,
        memoryview(content) as view,
        view[begin:] as part,
    ):
        return pickle.loads(part)


class MemoryFile:
    """Owns a file that processes share.

    Args:
        appends: several processes write to it, each at its end.

    Attributes:
        fd: its descriptor, which workers inherit or are sent; -1 once it is closed.
    """

    def __init__(self, name: str, appends: bool = False) -> None:
        self.fd = memory_file(name)
        if appends:
            fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)

    def close(self) -> None:
        """Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
