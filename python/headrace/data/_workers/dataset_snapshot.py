"""Snapshots of the objects that the workers of an epoch were given, to detect changes of the program's own.

A snapshot is one pickle of all roots together, so that it includes references that two of them share. It is never
unpickled, and so it may name by identity what cannot be pickled. The next one is compared with it while it is written,
and kept nowhere: as long as nothing has changed, that costs little more than a look at each part.

Nothing is guessed: objects that are too large, or cannot be pickled, have no snapshot.
"""

from __future__ import annotations

import functools
import pickle
import sys
import threading
import types
from typing import Any

import numpy as np

from headrace._core import ArrayContents, ArrayVisit
from headrace.data._samples.tensors import is_tensor

# Of the pickle, in bytes; of the arrays outside it, which are merely compared; and of instances, functions and arrays
# of unusual kinds, each of which takes some microseconds. New workers would take no longer than what exceeds that.
_MAX_STREAM = 4 << 20
_MAX_ARRAYS = 64 << 20
_MAX_OBJECTS = 20_000
# Before Python 3.12, how deep pickle may recurse is up to the program, and C's stack has room for thrice as much.
_MAX_DEPTH = 20_000


class Snapshot:
    """Immutable, and so for any thread.

    Attributes:
        objects: those that it names by identity: classes, the code of functions, modules. Kept, so that nothing else
            can take their addresses.
        shares: whether the program and the workers share some of it, and see at once how the other changes that.
    """

    def __init__(self, record: _Record, arrays: ArrayContents, forked: bool) -> None:
        self._stream, self._arrays = bytes(record.stream), arrays
        self.objects, self.shares = record.objects, record.shares
        self._forked = forked

    @classmethod
    def take(cls, roots: tuple[Any, ...], forked: bool) -> Snapshot | None:
        """A snapshot of some objects; None if they have none.

        Args:
            forked: whether workers get them by a fork, so that they share the files that this process has mapped.
        """
        record, arrays = _Record(), ArrayVisit(_MAX_ARRAYS)
        if not _dump(roots, record, arrays, forked):
            return None
        return cls(record, arrays.contents, forked)

    def holds(self, roots: tuple[Any, ...]) -> bool:
        """Whether a snapshot taken now would equal this one."""
        comparison, arrays = _Comparison(self._stream, self.objects), ArrayVisit(self._arrays)
        return _dump(roots, comparison, arrays, self._forked) and comparison.complete and arrays.complete

    def knows(self, other: Snapshot) -> bool:
        """Whether the other one names nothing that this one does not."""
        return {id(each) for each in other.objects} <= {id(each) for each in self.objects}


class _Unequal(Exception):
    """Ends a comparison early."""


class _Record:
    """A sink for a pickler."""

    def __init__(self) -> None:
        self.stream = bytearray()
        self.objects: list[Any] = []
        self.shares = False
        self._numbers: dict[int, int] = {}

    def write(self, data: Any) -> int:
        if len(self.stream) + len(data) > _MAX_STREAM:
            raise OverflowError("too large for a snapshot")
        self.stream += data
        return len(data)

    def number_of(self, value: Any) -> int:
        number = self._numbers.setdefault(id(value), len(self.objects))
        if number == len(self.objects):
            self.objects.append(value)
        return number


class _Comparison:
    """A sink for a pickler that raises _Unequal at the first difference from an earlier pickle."""

    def __init__(self, stream: bytes, objects: list[Any]) -> None:
        self._stream, self._objects = stream, objects
        self.shares = False
        self._at = 0
        self._numbers: dict[int, int] = {}

    @property
    def complete(self) -> bool:
        """Whether nothing is missing at the end."""
        return (self._at, len(self._numbers)) == (len(self._stream), len(self._objects))

    def write(self, data: Any) -> int:
        if not self._stream.startswith(data, self._at):
            raise _Unequal
        self._at += len(data)
        return len(data)

    def number_of(self, value: Any) -> int:
        number = self._numbers.setdefault(id(value), len(self._numbers))
        if not (number < len(self._objects) and self._objects[number] is value):
            raise _Unequal
        return number


def _dump(roots: tuple[Any, ...], sink: _Record | _Comparison, arrays: ArrayVisit, forked: bool) -> bool:
    """Whether all of it could be written."""
    if sys.version_info < (3, 12) and sys.getrecursionlimit() > _MAX_DEPTH:
        return False
    try:
        _Pickler(sink, arrays, forked).dump(roots)
    except Exception:  # whatever the parts raise when they are pickled
        return False
    return True


# Objects without contents, and the modules of those whose contents all processes share.
_LOCKS = type(threading.Lock()), type(threading.RLock())
_SHARED = frozenset(
    f"multiprocessing.{name}"
    for name in ("synchronize", "sharedctypes", "queues", "connection", "managers", "shared_memory")
)


def _same(*_: Any) -> None:
    """A placeholder for an object that a snapshot names by identity, or describes in its own way."""


class _Pickler(pickle.Pickler):
    def __init__(self, sink: _Record | _Comparison, arrays: ArrayVisit, forked: bool) -> None:
        super().__init__(sink, 5, buffer_callback=arrays.note)
        number_of_array = arrays.persistent_id()
        if number_of_array is not None:
            self.persistent_id = number_of_array  # type: ignore[method-assign]
        self._sink, self._number_of = sink, sink.number_of
        self._forked = forked
        self._left = _MAX_OBJECTS

    def reducer_override(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise OverflowError("too many objects for a snapshot")
        if isinstance(value, (type, types.ModuleType, types.CodeType)):
            return _same, (self._number_of(value),)
        if isinstance(value, types.FunctionType):
            if value is _same:
                return NotImplemented
            state = value.__defaults__, value.__kwdefaults__, value.__closure__, value.__dict__
            return _same, (self._number_of(value.__code__), self._number_of(value.__globals__)), state
        if isinstance(value, types.CellType):
            try:
                return _same, (), (value.cell_contents,)
            except ValueError:  # not bound yet
                return _same, ()
        if isinstance(value, types.MethodType):
            return _same, (), (value.__func__, value.__self__)
        if type(value).__module__ in _SHARED:
            self._sink.shares = True
            return _same, (self._number_of(value),)
        if isinstance(value, _LOCKS):
            return _same, (self._number_of(value),)
        if isinstance(value, functools._lru_cache_wrapper):
            return _same, (self._number_of(value),), (value.__dict__,)
        if self._forked and isinstance(value, np.memmap) and value.mode != "c":
            # All processes that map the file see the same contents, which any of them may change.
            self._sink.shares = True
            layout = value.__array_interface__["data"], value.shape, value.strides, value.dtype.str
            return _same, (self._number_of(getattr(value, "_mmap", None)), layout)
        return self._reduce_tensor(value) if is_tensor(value) else NotImplemented

    def _reduce_tensor(self, value: Any) -> Any:
        """Torch's own pickles copy several times, and those of tensors in shared memory their contents, too."""
        about = type(value), str(value.dtype), tuple(value.shape), value.requires_grad, value.__dict__
        shared = value.is_shared()
        if shared or not self._forked:  # to be sent, it moves to shared memory
            self._sink.shares = True
        if shared:
            return _same, (self._number_of(value), value.data_ptr(), value.stride()), about
        if value.device.type != "cpu" or str(value.layout) != "torch.strided" or value.is_quantized or value.is_nested:
            return NotImplemented
        plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        elements = plain.view(sys.modules["torch"].uint8).numpy()
        return _same, (), (*about, value.stride(), pickle.PickleBuffer(elements))
