"""This process, and whether another one has ended; and a clock that both can trust."""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path

from headrace.wirehead._stores.store import Document


def this_process() -> str:
    """Host and process number, as leases and logs show them."""
    return f"{socket.gethostname()}:{os.getpid()}"


def whose() -> Document:
    """The description of a process in its lease."""
    return {"process": this_process(), "pid": os.getpid(), "pid_namespace": _pid_namespace()}


def _pid_namespace() -> str | None:
    """The scope in which this process's number is unique: a running system; containers may share a host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def boot_clock() -> float:
    """Seconds of a clock that is never set, and that counts while the machine is suspended."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def has_ended(lease: Document) -> bool:
    """Whether the process that holds a lease is known to have ended. False if it runs in another container, if its
    number has been given to another, or if the lease does not say.
    """
    pid, namespace = lease.get("pid"), lease.get("pid_namespace")
    if not isinstance(pid, int) or namespace is None or namespace != _pid_namespace():
        return False
    try:
        os.kill(pid, 0)
        return _is_zombie(pid)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and waits for its parent to notice, as far as the system tells."""
    try:
        pidfd = os.pidfd_open(pid)
    except (AttributeError, OSError) as error:
        if isinstance(error, ProcessLookupError):
            raise
        return False
    try:
        return bool(select.select([pidfd], [], [], 0)[0])
    finally:
        os.close(pidfd)
