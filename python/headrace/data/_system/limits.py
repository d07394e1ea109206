"""Errors of the system that say which limit is reached."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator

from headrace import errors

_LIMITS = {
    errno.EAGAIN: "A limit on processes or threads is reached (ulimit -u, or the pids limit of a container)",
    errno.ENOMEM: "Memory is short",
    errno.EMFILE: "The limit on file descriptors is reached (ulimit -n)",
    errno.ENFILE: "The system has no file descriptors left",
}
# Less is unusual, and little for Python.
_SMALL_STACK = 1 << 20


@contextlib.contextmanager
def limit_named(what: str, less: str = "fewer loaders or workers") -> Iterator[None]:
    """Around a system call: an error that a limit causes names it.

    Args:
        what: what has failed then, such as "cannot start worker 3".
        less: what needs less.

    Raises:
        IoError: a limit is reached.
    """
    try:
        yield
    except OSError as error:
        limit = _LIMITS.get(error.errno or 0)
        if limit is None:
            raise
        raise errors.IoError(f"{what}: {error.strerror}. {limit}; {less} need less") from error


def small_stack() -> str:
    """A sentence on the limit that a process may have exceeded that was killed by SIGSEGV as it started; or nothing."""
    most = resource.getrlimit(resource.RLIMIT_STACK)[0]
    if most == resource.RLIM_INFINITY or most >= _SMALL_STACK:
        return ""
    return f"The limit of {most >> 10} KiB for its stack (RLIMIT_STACK, ulimit -s) may be too low. "
