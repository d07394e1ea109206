"""Small changes of a dataset, or of its collate function, on their way to workers that run already.

The main process compares fingerprints, pickles what has changed, and appends it to a memory file that all workers of a
pool have open. The scheduler puts the revision of the dataset into each claim; a worker that gets a claim of a later
revision reads the file up to there first. What the workers have made of it themselves, such as files that they have
opened, stays.

Where that would not do, new workers take the place of the old ones: for changes that are large or cannot be pickled,
and for instances of classes that the workers may not know, or know by another definition.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import struct
import sys
import sysconfig
import threading
import types
from collections.abc import Mapping
from typing import Any

from headrace.data._fingerprint import Difference, Path, resolve
from headrace.data._memory_file import memory_file

# Of one update, and of all that one pool is sent.
_MAX_BYTES = 1 << 20
_MAX_LOG_BYTES = 16 << 20
# Revision and length of an update.
_HEADER = struct.Struct("<QQ")


class UpdateLog:
    """The main process's end. One thread at a time.

    Attributes:
        fd: of the memory file, for :class:`UpdateReader`.
        revision: of the dataset that the workers have, or have been sent.
    """

    def __init__(self) -> None:
        self.fd = memory_file("headrace-updates")
        self.revision = 0
        self._size = 0

    def append(self, difference: Difference, places: Mapping[int, Any]) -> bool:
        """Makes the next revision of what has changed, and of where streams are to begin.

        Returns:
            Whether that was possible; if not, nothing has changed.
        """
        update = _Buffer()
        try:
            _Pickler(update, difference).dump((difference.changes, places))
        except Exception:  # whatever the parts raise when they are pickled
            return False
        if self._size + len(update.content) > _MAX_LOG_BYTES:
            return False
        record = _HEADER.pack(self.revision + 1, len(update.content)) + bytes(update.content)
        if os.pwrite(self.fd, record, self._size) != len(record):
            return False
        self._size += len(record)
        self.revision += 1
        return True

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class UpdateError(Exception):
    """An update does not fit what this worker has; a new worker would have all of it from the start."""


class UpdateReader:
    """A worker's end. Any thread.

    Args:
        fd: of the :class:`UpdateLog`.
        revision: of ``roots``.
        roots: what the changes are changes of, by number: the dataset and the collate function.

    Attributes:
        places: where streams begin, by the latest update.
    """

    def __init__(self, fd: int, revision: int, roots: tuple[Any, ...]) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._revision, self._roots = revision, roots
        self._offset = 0
        self.places: Mapping[int, Any] = {}

    def catch_up(self, revision: int) -> None:
        """Applies the updates up to a revision.

        Raises:
            UpdateError: one cannot be applied.
        """
        with self._lock:  # of several threads at work on that revision, one applies it
            while self._revision < revision:
                number, length = _HEADER.unpack(os.pread(self._fd, _HEADER.size, self._offset))
                content = os.pread(self._fd, length, self._offset + _HEADER.size)
                self._offset += _HEADER.size + length
                if number > self._revision:
                    self._apply(content)
                    self._revision = number

    def _apply(self, content: bytes) -> None:
        try:
            changes, self.places = _Unpickler(content, self._roots).load()
            for change in changes:
                change.apply(self._roots)
        except Exception as error:
            raise UpdateError(str(error)) from error


class _Buffer:
    """A file for a pickler that takes no more than a small update."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(self.content) + len(view) > _MAX_BYTES:
            raise ValueError("too large for an update")
        self.content += view
        return len(view)


class _Pickler(pickle.Pickler):
    """Refers to what workers have already, rather than copy it, and refuses classes and functions that they may not
    know.
    """

    def __init__(self, file: Any, difference: Difference) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._difference = difference

    def persistent_id(self, value: Any) -> Path | None:
        return self._difference.kept.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)):
            own = value if isinstance(value, type) else value.__code__
            if id(own) not in self._difference.known and not _is_installed(value.__module__):
                raise pickle.PicklingError(f"workers may know another {value.__qualname__}")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, roots: tuple[Any, ...]) -> None:
        super().__init__(io.BytesIO(content))
        self._roots = roots

    def persistent_load(self, path: Path) -> Any:
        return resolve(self._roots, path)


# Where packages are installed: Python's own folders, a user's, those of PYTHONPATH.
_INSTALLED = frozenset(("site-packages", "dist-packages"))


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    return os.path.dirname(os.path.dirname(__file__)) + os.sep, sysconfig.get_path("stdlib") + os.sep


def _is_installed(module_name: str | None) -> bool:
    """Whether a module is one that is not edited while a program runs, so that workers import the same."""
    if module_name in sys.builtin_module_names:
        return True
    file = getattr(sys.modules.get(module_name or ""), "__file__", None)
    if file is None:
        return False
    return file.startswith(_installed_folders()) or not _INSTALLED.isdisjoint(file.split(os.sep))
