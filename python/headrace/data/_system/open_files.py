"""Finds open files in a dataset: forked processes share a file's position, so each misses the data that others read."""

from __future__ import annotations

import fcntl
import gc
import io
import os
import stat
import sys
import types
from typing import Any

from headrace import errors

# Beyond which nothing of a dataset leads to a file that it reads.
_SKIPPED = (type, types.ModuleType, types.CodeType, types.FrameType, str, bytes, int, float)
# Objects to look at for each attribute, and items of a container.
_MAX_PARTS = 20_000
_MAX_ITEMS = 1000


def refuse_open_files(dataset: Any) -> None:
    """Raises InvalidArgument if an iterable dataset, or an object that it refers to, holds a file that is open for
    reading.
    """
    holders = {f"dataset.{name}": value for name, value in getattr(dataset, "__dict__", {}).items()}
    for holder, value in {**holders, "dataset": dataset}.items():
        file = _open_file(value)
        if file is not None:
            raise errors.InvalidArgument(
                f"{holder} holds the open file {getattr(file, 'name', file)!r}: forked workers share its position, so "
                "each would miss the data that another reads. Open it in __iter__ and close it before an epoch "
                'begins, or pass num_workers=1 or iterable_sharding="dataset"'
            )


def _open_file(value: Any) -> Any:
    """A file that is open for reading, reached through attributes, containers, iterators and closures."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < _MAX_PARTS:
        part = waiting.pop()
        if issubclass(type(part), io.IOBase) and _is_read(part):
            return part
        inner: Any = gc.get_referents(part)
        if type(part) is types.FunctionType:  # not its module's variables
            inner = [part.__closure__, part.__defaults__, part.__kwdefaults__]
        elif type(part) is types.GeneratorType and part.gi_frame is not None:
            inner = [*part.gi_frame.f_locals.values(), part.gi_yieldfrom]
        for each in inner if len(inner) <= _MAX_ITEMS else ():
            if id(each) not in seen and not issubclass(type(each), _SKIPPED):
                seen.add(id(each))
                waiting.append(each)
    return None


def _is_read(file: Any) -> bool:
    """Whether it reads from a descriptor that has a position; one that is written to, too, may be there for that."""
    try:
        descriptor = file.fileno()
        only_read = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        device = stat.S_ISCHR(os.fstat(descriptor).st_mode)  # /dev/urandom, say
    except (OSError, ValueError):  # in memory, or closed
        return False
    return only_read and not device and descriptor > 2 and file is not sys.stdin
