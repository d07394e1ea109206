"""What keeps a worker from starting reaches the main process as an error, rather than a traceback of each worker.

A worker of the start methods "spawn" and "forkserver" imports the main module of the program, then it unpickles what it
is given: :class:`StartReporter` first, which has it report what happens from then on until it serves claims.
"""

from __future__ import annotations

import os
import struct
import sys
import types
from collections.abc import Callable
from typing import Any

from headrace.data._system.memory_file import MemoryFile
from headrace.data._workers.errors import decode_error, encode_error
from headrace.data._workers.main import start_worker
from headrace.data._workers.task import SharedDescriptor, WorkerSetup

# A worker's pid, what it says, and the length of its exception.
_HEADER = struct.Struct("<QBQ")
_BEGINS, _FAILED, _SERVES = range(3)


class StartLog(MemoryFile):
    """The main process's end. Any thread.

    Attributes:
        fd: of the memory file to which workers append.
    """

    def __init__(self) -> None:
        super().__init__("headrace-starts", appends=True)

    def began(self, pid: int | None) -> bool:
        """Whether that worker had imported the main module."""
        return self._latest(pid) is not None

    def error(self, pid: int | None) -> BaseException | None:
        """The exception of that worker when it unpickled its task."""
        said, message = self._latest(pid) or (_BEGINS, b"")
        return decode_error(message) if said == _FAILED else None

    def serves(self, pid: int | None) -> bool:
        """Whether that worker has come to where it serves claims."""
        latest = self._latest(pid)
        return latest is not None and latest[0] == _SERVES

    def _latest(self, pid: int | None) -> tuple[int, bytes] | None:
        offset, latest = 0, None
        while len(header := os.pread(self.fd, _HEADER.size, offset)) == _HEADER.size:
            writer, said, length = _HEADER.unpack(header)
            if writer == pid:
                latest = said, os.pread(self.fd, length, offset + _HEADER.size)
            offset += _HEADER.size + length
        return latest


class StartReporter:
    """The worker's end: once it is unpickled, an uncaught exception goes to the log, until ``end``; after
    that, errors passed to ``report``.

    Args:
        log: the descriptor of the :class:`StartLog`.
    """

    def __init__(self, log: SharedDescriptor) -> None:
        self._log = log
        self._hook_before: Callable[..., Any] | None = None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _begin, (self._log,)

    def begin(self) -> None:
        self._append(_BEGINS)
        self._hook_before, sys.excepthook = sys.excepthook, self._report

    def end(self) -> None:
        if self._hook_before is not None:
            sys.excepthook, self._hook_before = self._hook_before, None

    def report(self, error: BaseException) -> None:
        self._append(_FAILED, encode_error(error, "A worker could not start", None))

    def serves(self) -> None:
        self._append(_SERVES)

    def _report(self, kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        self.end()
        try:
            self._append(_FAILED, encode_error(error, "A worker could not unpickle its task", None))
        except OSError:
            sys.excepthook(kind, error, trace)

    def _append(self, says: int, message: bytes = b"") -> None:
        os.write(self._log.fd, _HEADER.pack(os.getpid(), says, len(message)) + message)


def _begin(log: SharedDescriptor) -> StartReporter:
    reporter = StartReporter(log)
    reporter.begin()
    return reporter


def run_worker(reporter: StartReporter, setup: WorkerSetup) -> None:
    """The target of a worker process."""
    reporter.end()
    try:
        run = start_worker(setup)
    except Exception as error:
        reporter.report(error)
        raise SystemExit(1) from error
    reporter.serves()
    run()
