"""Batches whose arrays overlap, or view a common memory: the memory goes to the slot once, and a pickle says how the
arrays view it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import pickle
import sys
import uuid
from typing import Any

import numpy as np

from headrace.data._samples.batch_tree import Structure
from headrace.data._samples.containers import parts_of
from headrace.data._samples.pickling import unsendable
from headrace.data._samples.planned_arrays import Planned, copying
from headrace.data._samples.ragged import Ragged
from headrace.data._samples.tensors import (
    Array,
    Form,
    array_of_tensor,
    is_plain_tensor,
    is_tensor,
)
from headrace.data._samples.tree_walk import PLAIN_TYPES, Walk


def pickles_as(kind: type[Any], base: type[Any]) -> bool:
    """Whether instances of ``kind`` are pickled as those of ``base`` are."""
    return all(getattr(kind, name) is getattr(base, name) for name in ("__reduce__", "__reduce_ex__"))


def is_sendable(tensor: Any) -> bool:
    """Whether a tensor is nothing but its elements, and these are in the memory of the CPU."""
    return is_plain_tensor(tensor) and tensor.device.type == "cpu" and not tensor.__dict__


def array_or_none(tensor: Any) -> tuple[Array, Form] | None:
    try:
        return array_of_tensor(tensor)
    except TypeError:  # NumPy has nothing like its elements
        return None


@dataclasses.dataclass(frozen=True)
class _Part:
    """An array in a batch that is pickled.

    Attributes:
        value: the element of the batch.
        array: its elements.
        form: of the array.
        kind: the subclass of arrays that it is; None: it is none.
        requires_grad: of the tensor that it is.
    """

    value: Any
    array: Array
    form: Form = None
    kind: type[Any] | None = None
    requires_grad: bool = False


class _Pickler(pickle.Pickler):
    """Pickles a batch but for its arrays, in place of which it writes numbers.

    Attributes:
        parts: the arrays, by number, or :class:`Planned`.
        offsets: the ids of those that are the offsets of a :class:`Ragged`.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.parts: list[_Part | Planned] = []
        self.offsets: set[int] = set()
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        """The number of an array, the same each time that it comes; None for anything else."""
        if type(value) in PLAIN_TYPES:
            return None
        if type(value) is Ragged:
            self.offsets.add(id(value.offsets))
        number = self._numbers.get(id(value))
        if number is not None:
            return number
        part = value if type(value) is Planned else part_of(value)
        if part is None:
            return None
        self.parts.append(part)
        self._numbers[id(value)] = len(self.parts) - 1
        return len(self.parts) - 1


def part_of(value: Any) -> _Part | None:
    kind = type(value)
    if isinstance(value, np.ndarray):
        # A subclass that pickles more than its elements does so itself.
        if not pickles_as(kind, np.ndarray) or value.dtype.hasobject:
            return None
        array = value.view(np.ndarray)
        low, high = _span(array)
        if high - low < array.nbytes:  # elements that share memory are not the consumer's to write to
            array = np.ascontiguousarray(array)
        return _Part(value, array, None, None if kind is np.ndarray else kind)
    if "torch" not in sys.modules or kind is not sys.modules["torch"].Tensor or not is_sendable(value):
        return None
    if value.requires_grad and not value.is_leaf:
        raise RuntimeError(
            "collate_fn returned a tensor that is part of an autograd graph (requires_grad, not a leaf), which cannot "
            "be sent to another process: call detach() on it"
        )
    pair = array_or_none(value)
    return None if pair is None else _Part(value, *pair, None, value.requires_grad)


def _span(array: Array) -> tuple[int, int]:
    """The addresses of the first byte of an array's elements, and of the one behind the last."""
    low: int = array.__array_interface__["data"][0]
    if array.size == 0 or array.flags.c_contiguous:
        return low, low + array.nbytes
    high = low + array.itemsize
    for extent, stride in zip(array.shape, array.strides):
        if stride < 0:
            low += (extent - 1) * stride
        else:
            high += (extent - 1) * stride
    return low, high


def pickle_batch(batch: Any, walk: Walk) -> Structure:
    """The tree of a batch that is pickled; its arrays become leaves."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(batch)
    except (MemoryError, RuntimeError):
        raise
    except Exception as error:
        raise unsendable("collate_fn", error) from error
    body = np.frombuffer(file.getvalue(), np.uint8)
    number = walk.add(Planned(body.shape, body.dtype, copying(body), meaning="storage"), body.dtype)
    shown: dict[int, Any] = {}
    find_shown(batch, shown, set())
    memory = Memory([part for part in pickler.parts if isinstance(part, _Part)], walk)
    arrays: list[Structure] = []
    for part in pickler.parts:
        if isinstance(part, Planned):
            arrays.append((walk.add(part, part.dtype), None, part.form, True, None, False))
        else:
            leaf, dtype = memory.leaf(part, is_offsets=id(part.value) in pickler.offsets)
            arrays.append((leaf, dtype, part.form, id(part.value) in shown, part.kind, part.requires_grad))
    return ("pickled", number, arrays, any(map(is_tensor, shown.values())))


def find_shown(value: Any, shown: dict[int, Any], seen: set[int]) -> bool:
    """Finds the elements that a loader converts to arrays or tensors: those in containers, not in objects. Returns
    whether there are no objects that may refer to arrays.
    """
    if type(value) in PLAIN_TYPES or isinstance(value, _VALUE_TYPES) or id(value) in seen:
        return True
    if isinstance(value, np.ndarray) or is_tensor(value):
        shown[id(value)] = value
        return True
    seen.add(id(value))
    parts = parts_of(value)
    if parts is None:
        return False
    found = [find_shown(part, shown, seen) for part in parts]  # all of them are visited
    return all(found)


# Objects of these are what they are equal to.
_VALUE_TYPES = (
    np.generic,
    pathlib.PurePath,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    enum.Enum,
    range,
    type,
)


class _Group:
    """Arrays that share memory: the bytes from ``begin`` to ``end``."""

    def __init__(self, begin: int, end: int, first: _Part) -> None:
        self.begin, self.end, self.parts = begin, end, [first]
        self.leaf: int | None = None

    def fill(self, place: Array) -> None:
        """Copies the bytes."""
        ctypes.memmove(place.__array_interface__["data"][0], self.begin, self.end - self.begin)

    def element(self) -> np.dtype[Any]:
        """The elements of the memory: those of the arrays, if all have one dtype and form; else bytes."""
        dtype: np.dtype[Any] = self.parts[0].array.dtype
        form = self.parts[0].form or "tensor"
        size = dtype.itemsize
        for part in self.parts:
            array = part.array
            offset = array.__array_interface__["data"][0] - self.begin
            alike = array.dtype == dtype and (part.form or "tensor") == form
            if not alike or any(number % size for number in (offset, *array.strides)):
                return np.dtype(np.uint8)
        return dtype


class Memory:
    """The leaves of arrays, of which some may share memory."""

    def __init__(self, parts: list[_Part], walk: Walk) -> None:
        self._walk = walk
        self._groups: dict[int, _Group] = {}  # by the part
        spans = sorted(((*_span(part.array), i) for i, part in enumerate(parts) if part.array.size))
        group: _Group | None = None
        for begin, end, i in spans:
            if group is not None and begin < group.end:
                group.end = max(group.end, end)
                group.parts.append(parts[i])
            else:
                group = _Group(begin, end, parts[i])
            self._groups[id(parts[i])] = group

    def leaf(self, part: _Part, is_offsets: bool = False) -> tuple[int, np.dtype[Any] | None]:
        """The leaf that has an array's elements, and None; or the leaf that says where these are, and their dtype.

        Args:
            is_offsets: the array has the offsets of the rows of the one before it.
        """
        array, walk = part.array, self._walk
        group = self._groups.get(id(part))
        if group is None or (len(group.parts) == 1 and array.flags.c_contiguous):
            if is_offsets and array.dtype == np.int64 and array.ndim == 1:
                return walk.add(Planned(array.shape, array.dtype, copying(array), meaning="offsets"), array.dtype), None
            return walk.array(array, part.form)[1], None
        if group.leaf is None:
            dtype = group.element()
            shape = ((group.end - group.begin) // dtype.itemsize,)
            group.leaf = walk.add(Planned(shape, dtype, group.fill, meaning="storage"), dtype)
        offset = array.__array_interface__["data"][0] - group.begin
        numbers = np.array([group.leaf, offset, *array.shape, *array.strides], np.int64)
        view = Planned(numbers.shape, numbers.dtype, copying(numbers), meaning="view")
        return walk.add(view, numbers.dtype), array.dtype
