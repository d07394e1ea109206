"""Updates for the workers of a pool between epochs: a changed dataset, and where streams start.

The main process appends it to a memory file that all of them have open. The scheduler puts the revision into each
claim; a worker that gets a claim of a later revision reads the file up to there first.

Workers of the start methods "spawn" and "forkserver" get their task from that file as they start, too: a pickle, made
once. So whenever a worker starts, it begins with the data of the others, and a new dataset always comes as a whole, as
to a worker that starts with it. Forked workers never get a dataset in this way: it would differ from what a
fork gives them, where objects have their identity and arrays share memory. For a changed dataset, new ones are forked.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import struct
import threading
import types
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from headrace.data._system.memory_file import MemoryFile, unpickled

if TYPE_CHECKING:
    from headrace.data._workers.task import SharedDescriptor, WorkerTask

# Of all tasks after the first one.
_MAX_LOG_BYTES = 64 << 20
# Revision, and the lengths of the starts of streams and of the task, which may be 0.
_HEADER = struct.Struct("<QQQ")


class UpdateLog(MemoryFile):
    """The main process's end. One thread at a time.

    Attributes:
        fd: of the memory file, for :class:`UpdateReader`.
        revision: of the dataset that the workers have, or have been sent.
        size: of the file.
        task: where the newest task is, and how long; None: none was sent.
    """

    def __init__(self) -> None:
        super().__init__("headrace-updates")
        self.revision = self.size = self._first = 0
        self.task: tuple[int, int] | None = None

    def begin(self, task: WorkerTask) -> bool:
        """Takes the task that workers are to start with. Returns False if they cannot get it from here."""
        sent = self._append(0, {}, task)
        self._first = self.size
        return sent

    def append(self, starts: Mapping[int, Any], task: WorkerTask | None) -> bool:
        """Makes the next revision of where streams are to start, and of a task, if that has changed.

        Returns:
            Whether that was possible; if not, nothing has changed.
        """
        if not self._append(self.revision + 1, starts, task):
            return False
        self.revision += 1
        return True

    def _append(self, revision: int, starts: Mapping[int, Any], task: WorkerTask | None) -> bool:
        limit = None if revision == 0 else self._first + _MAX_LOG_BYTES
        file = _File(self.fd, self.size + _HEADER.size, limit)
        try:
            pickle.Pickler(file, pickle.HIGHEST_PROTOCOL).dump(dict(starts))
            begin = file.at
            if task is not None:
                _TaskPickler(file).dump(task)
        except Exception:  # whatever the parts raise when they are pickled
            os.ftruncate(self.fd, self.size)
            return False
        os.pwrite(self.fd, _HEADER.pack(revision, begin - self.size - _HEADER.size, file.at - begin), self.size)
        self.size = file.at
        if task is not None:
            self.task = begin, file.at - begin
        return True


class _File:
    """A sink for a pickler, from a position on."""

    def __init__(self, fd: int, at: int, limit: int | None) -> None:
        self._fd, self.at, self._limit = fd, at, limit

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        length = len(view)
        if self._limit is not None and self.at + length > self._limit:
            raise OverflowError("the log is full")
        while view:
            written = os.pwrite(self._fd, view, self.at)
            self.at += written
            view = view[written:]
        return length


# Types that multiprocessing registers, but any pickler can handle.
_PLAIN = (partial, types.MethodType, type(list.append), type(int.__add__))


class _TaskPickler(pickle.Pickler):
    """Refuses what only multiprocessing can send, and only while it starts a process: tensors, which share their
    memory then, connections and the like.
    """

    def __init__(self, file: _File) -> None:
        super().__init__(file)
        self._special: Mapping[type, Any] = getattr(ForkingPickler, "_extra_reducers", {})

    def reducer_override(self, value: Any) -> Any:
        if type(value) in self._special and not isinstance(value, _PLAIN):
            raise pickle.PicklingError(f"{type(value).__name__} is sent in multiprocessing's own way")
        return NotImplemented


class SentTask:
    """Pickled for a worker instead of a task, which is then read from the log.

    Args:
        extent: where the task is in the log, and its length.
        starts: where streams start now.
    """

    def __init__(self, fd: SharedDescriptor, extent: tuple[int, int], starts: Mapping[int, Any]) -> None:
        self._arguments = fd, extent, starts

    def __reduce__(self) -> tuple[Callable[..., WorkerTask], tuple[Any, ...]]:
        return _receive, self._arguments


def _receive(fd: SharedDescriptor, extent: tuple[int, int], starts: Mapping[int, Any]) -> WorkerTask:
    return started_at(unpickled(fd.fd, *extent), starts)


def started_at(task: WorkerTask, starts: Mapping[int, Any]) -> WorkerTask:
    """A task whose streams start there; any other task as it is."""
    if task.stream is None:
        return task
    return dataclasses.replace(task, stream=dataclasses.replace(task.stream, starts=starts))


class UpdateError(Exception):
    """An update does not fit the state of this worker; a new worker would have all of it from the start."""


class UpdateReader:
    """A worker's end. Any thread.

    Args:
        fd: of the :class:`UpdateLog`.
        revision, size: of the log when this worker was given its task.
        note_task: called with each new task.

    Attributes:
        starts: where streams start, by the latest update.
        task: by the latest update that had one; None: that with which the worker has started.
    """

    def __init__(self, fd: int, revision: int, size: int, note_task: Callable[[WorkerTask], None]) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._revision, self._offset = revision, size
        self._note_task = note_task
        self.starts: Mapping[int, Any] = {}
        self.task: WorkerTask | None = None

    def catch_up(self, revision: int) -> None:
        """Reads the updates up to a revision.

        Raises:
            UpdateError: one cannot be read.
        """
        with self._lock:  # of several threads at work on that revision, one reads it
            task: tuple[int, int] | None = None
            try:
                while self._revision < revision:
                    header = os.pread(self._fd, _HEADER.size, self._offset)
                    self._revision, starts_length, task_length = _HEADER.unpack(header)
                    begin = self._offset + _HEADER.size
                    self.starts = pickle.loads(os.pread(self._fd, starts_length, begin))
                    self._offset = begin + starts_length + task_length
                    if task_length:
                        task = begin + starts_length, task_length
                if task is not None:
                    self.task = unpickled(self._fd, *task)
                    self._note_task(self.task)
            except Exception as error:
                raise UpdateError(str(error)) from error
