"""A list of very many strings that worker processes share."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing.context
import operator
import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import reduction
from typing import Any

import numpy as np

from headrace.data._system.memory_file import memory_file

_TEXT, _BYTES, _PICKLED = range(3)


class FrozenList(Sequence[Any]):
    """An immutable list whose items are stored as bytes in shared memory: file names, labels, records.

    A list of Python objects ends up in each forked worker process, page by page, since reading an object writes to its
    reference count; workers started in other ways get a copy from the beginning. This list exists once for all
    processes. Each access creates a new object.

    Strings are stored in UTF-8, bytes as they are; if any item is of another type, all of them are pickled.

    Thread-safety: immutable.

    Args:
        items: iterated over once.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        items = list(items)
        kinds = set(map(type, items))
        self._kind = _TEXT if kinds <= {str} else _BYTES if kinds == {bytes} else _PICKLED
        encoded = map(_ENCODE[self._kind], items)
        ends = np.empty(len(items), np.int64)
        fd = memory_file("headrace-frozen-list")
        try:
            with open(fd, "wb", closefd=False) as file:
                end = 0
                for i, data in enumerate(encoded):
                    end += file.write(data)
                    ends[i] = end
                file.write(b"\0" * (-end % 8))
                file.write(ends.tobytes())
        except BaseException:
            os.close(fd)
            raise
        self._attach(fd, len(items), end)

    def _attach(self, fd: int, count: int, size: int) -> None:
        self._fd = fd
        start = size + -size % 8
        self._memory = mmap.mmap(fd, max(1, start + 8 * count), access=mmap.ACCESS_READ) if count else b""
        self._ends = np.frombuffer(self._memory, np.int64, count, start) if count else np.empty(0, np.int64)
        self._size = size

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self._fd)

    def __reduce__(self) -> Any:
        # A process that multiprocessing starts gets the memory itself.
        if multiprocessing.context.get_spawning_popen() is not None:
            return _attached, (reduction.DupFd(self._fd), self._kind, len(self), self._size)
        return FrozenList, (list(self),)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"index {index} is out of range: the list has {len(self)} items")
        start = int(self._ends[number - 1]) if number else 0
        return _DECODE[self._kind](self._memory[start : int(self._ends[number])])

    def __repr__(self) -> str:
        return f"FrozenList of {len(self)} items"


_ENCODE: dict[int, Callable[[Any], bytes]] = {
    _TEXT: lambda text: text.encode("utf-8", "surrogatepass"),
    _BYTES: lambda data: data,
    _PICKLED: lambda item: pickle.dumps(item, pickle.HIGHEST_PROTOCOL),
}
_DECODE: dict[int, Callable[[bytes], Any]] = {
    _TEXT: lambda data: data.decode("utf-8", "surrogatepass"),
    _BYTES: lambda data: data,
    _PICKLED: pickle.loads,
}


def _attached(duplicate: Any, kind: int, count: int, size: int) -> FrozenList:
    items: FrozenList = FrozenList.__new__(FrozenList)
    items._kind = kind
    items._attach(duplicate.detach(), count, size)
    return items
