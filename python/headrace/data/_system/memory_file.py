"""Files in memory that several processes share."""

from __future__ import annotations

import errno
import os

# Python before 3.13 does not have it.
_MFD_NOEXEC_SEAL = 0x8


def memory_file(name: str) -> int:
    """The descriptor of a new, empty file that lives in memory as long as any process has it open.

    It cannot be made executable, which systems with ``vm.memfd_noexec=2`` insist on.

    Args:
        name: what /proc calls it.
    """
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # else the kernel is too old for the flag
            raise
        return os.memfd_create(name, os.MFD_CLOEXEC)
