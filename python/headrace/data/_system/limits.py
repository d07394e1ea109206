"""Errors of the system that say which limit is reached."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from headrace import errors

_LIMITS = {
    errno.EAGAIN: "A limit on processes or threads is reached (ulimit -u, or the pids limit of a container)",
    errno.ENOMEM: "Memory is short",
    errno.EMFILE: "The limit on file descriptors is reached (ulimit -n)",
    errno.ENFILE: "The system has no file descriptors left",
}


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
