"""Conditions for starting workers: a main guard, descriptors, limits; and errors that name the one that fails."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.process
import os
import re
import resource
from collections.abc import Iterator
from typing import Any

from headrace import errors
from headrace.data._system.limits import limit_named, small_stack

# Descriptors that the parent has open for each worker; for the template, and while it starts one.
_DESCRIPTORS = 3
_DESCRIPTORS_AT_START = 10
_WORKER_NAME = "headrace-worker-"
# What multiprocessing calls a forkserver, which imports the main module in the place of its workers (Python 3.13.1).
_FORKSERVER_NAME = "MainProcess"
# What pickle says of a name that the main module lacks; Python 3.14 has it say the second.
_MISSING = re.compile(r"on <module '__(mp_)?main__'|^module '__(mp_)?main__' has no attribute ")
# How long a forkserver that answers no more may take to exit, in seconds.
_PATIENCE = 1.0
# The status of a worker that would have become a main process of its own.
NO_MAIN_GUARD = 109


def require_main_guard() -> None:
    """Refuses to start workers while a process that is being spawned imports its main module.

    A worker, or a forkserver, ends without a word then, and the pool that has started it says why, once.
    """
    process = multiprocessing.current_process()
    if not getattr(process, "_inheriting", False):  # as multiprocessing marks such processes
        return
    if process.name.startswith(_WORKER_NAME) or process.name == _FORKSERVER_NAME:
        os._exit(NO_MAIN_GUARD)
    raise no_main_guard()


MAIN_GUARD = 'Put what the program does under `if __name__ == "__main__":`, or pass multiprocessing_context="fork".'


def no_main_guard() -> errors.FailedPrecondition:
    return errors.FailedPrecondition(
        "each worker imports the main module of the program when it starts, and importing it started another "
        f"iteration over a loader. {MAIN_GUARD}"
    )


def lacks_in_main_module(error: BaseException | None) -> errors.FailedPrecondition | None:
    """The error that explains a worker's: it looked for a class or function in the main module that it had imported;
    None if that was not the reason.
    """
    if not isinstance(error, AttributeError) or not _MISSING.search(str(error)):
        return None
    explained = errors.FailedPrecondition(
        f"{error}: each worker imports the main module of the program when it starts, which defines no such name then. "
        'Define it outside of `if __name__ == "__main__":`, or pass multiprocessing_context="fork".'
    )
    explained.__cause__ = error
    return explained


def worker_name(worker_id: int) -> str:
    return f"{_WORKER_NAME}{worker_id}"


@contextlib.contextmanager
def start_explained(worker_id: int, context: Any) -> Iterator[None]:
    """Around the start of a worker: an error that a limit causes names it, and so does a forkserver that has exited."""
    try:
        with limit_named(f"cannot start worker {worker_id}", 'fewer workers, or workers="thread",'):
            yield
    except (EOFError, ConnectionError) as error:
        if context.get_start_method() != "forkserver":
            raise
        if _forkserver_status() == NO_MAIN_GUARD:
            raise no_main_guard() from None
        raise errors.FailedPrecondition(
            "the forkserver has exited: see what it printed. Either it could not start a process (ulimit -u, or the "
            "pids limit of a container), or the main module of the program, which it imports when it starts, raised an "
            f"exception or started another iteration over a loader. {small_stack()}{MAIN_GUARD}"
        ) from error


def _forkserver_status() -> int | None:
    """That with which the forkserver has exited, or is about to; None if it lives, or is not of this process."""
    pid = getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None)
    if pid is None:
        return None
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(pid)
        try:
            multiprocessing.connection.wait([descriptor], _PATIENCE)
        finally:
            os.close(descriptor)
        # It stays for multiprocessing to wait for.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None and ended.si_code == os.CLD_EXITED:
            return ended.si_status
    return None


def require_descriptors(workers: int) -> None:
    """Raises IoError unless this many workers can start: :mod:`multiprocessing` leaks descriptors if it fails
    midway.
    """
    wanted = workers * _DESCRIPTORS + _DESCRIPTORS_AT_START
    taken: list[int] = []
    try:
        for _ in range(wanted):
            taken.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise errors.IoError(
            f"{workers} workers need {wanted} more file descriptors, but the limit is {limit} and only {len(taken)} "
            'are free: raise it (ulimit -n), or use fewer workers or workers="thread"'
        ) from None
    finally:
        for descriptor in taken:
            os.close(descriptor)
