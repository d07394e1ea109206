"""Takes batches of the default collation apart while they are still plans; ``flatten`` does so with finished ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Optional

import numpy as np

from headrace.data._samples.batch_tree import Structure
from headrace.data._samples.containers import (
    field_names,
    is_dataclass,
    is_mapping,
    is_namedtuple,
    is_plain_array,
    is_sequence,
    shell_of,
)
from headrace.data._samples.planned_arrays import Planned, copying
from headrace.data._samples.ragged import Ragged
from headrace.data._samples.tensors import (
    EXTENSION_TYPES,
    Array,
    Form,
    array_of_tensor,
    is_plain_tensor,
    is_tensor,
)

# Lists of more arrays than this share one leaf, which takes less time than one for each.
MOST_SEPARATE = 16
_PLAIN_OBJECTS = (str, bytes, int, float, complex, type(None))
LeafDtypes = list[Optional[np.dtype[Any]]]
PLAIN_TYPES = frozenset((*_PLAIN_OBJECTS, bool))


class Walk:
    """Takes one batch apart. It may take any container apart, and makes another one of the same type of it.

    Attributes:
        leaves, dtypes: so far.
        varies: whether the tree has parts of which equal ones may differ, such as the keys 1 and True.
    """

    def __init__(self) -> None:
        self.leaves: list[Any] = []
        self.dtypes: LeafDtypes = []
        self.varies = False

    def add(self, value: Any, dtype: np.dtype[Any] | None) -> int:
        """Adds a leaf and returns its number."""
        self.leaves.append(value)
        self.dtypes.append(dtype)
        return len(self.leaves) - 1

    def visit(self, value: Any) -> Structure:
        """The part of the tree that is for ``value``."""
        leaf = self._leaf(value)
        if leaf is not None:
            return leaf
        if isinstance(value, Ragged):
            return self.ragged(value)
        if is_namedtuple(value):
            return ("namedtuple", type(value), self._visit_all(value))
        if is_mapping(value):
            keys, shell = tuple(value), shell_of(value)
            self._note_keys(keys)
            self.varies = self.varies or shell is not None
            return ("dict", type(value), shell, keys, self._visit_all([value[key] for key in keys]))
        if is_dataclass(value):
            names = field_names(value)
            return ("dataclass", type(value), names, self._visit_all([getattr(value, name) for name in names]))
        if is_sequence(value) and not all(isinstance(child, _PLAIN_OBJECTS) for child in value):
            if type(value) is tuple:
                return ("tuple", self._visit_all(value))
            if type(value) is not list:
                shell = shell_of(value)
                self.varies = self.varies or shell is not None
                return ("sequence", type(value), shell, self._visit_all(value))
            joined = self._joined_if_many(value)
            return ("list", self._visit_all(value)) if joined is None else joined
        return ("object", self.add([value], None))

    def ragged(self, value: Ragged) -> Structure:
        """The part of the tree that is for a :class:`Ragged`."""
        values = self.visit(value.values)
        offsets = np.ascontiguousarray(_plain(value.offsets), np.int64)
        value._check(offsets)
        planned = Planned(offsets.shape, offsets.dtype, copying(offsets), meaning="offsets")
        return ("ragged", values, self.planned(planned))

    def planned(self, value: Planned) -> Structure:
        """The part of the tree that is for an array that is to be made in its place."""
        return ("leaf", self.add(value, value.dtype), value.form)

    def array(self, value: Array, form: Form) -> Structure:
        """The part of the tree that is for an array."""
        if form in EXTENSION_TYPES:
            return self.planned(Planned(value.shape, value.dtype, copying(value), form, str(form)))
        return ("leaf", self.add(value, value.dtype), form)

    def _leaf(self, value: Any) -> Structure | None:
        """The node of an array, tensor or :class:`Planned`; None for anything else."""
        if isinstance(value, Planned):
            return self.planned(value)
        if is_tensor(value):
            return self.array(*array_of_tensor(value)) if is_plain_tensor(value) else None
        return self.array(value, None) if isinstance(value, np.ndarray) and is_plain_array(value) else None

    def _visit_all(self, values: Iterable[Any]) -> list[Structure]:
        return [self.visit(value) for value in values]

    def _note_keys(self, keys: tuple[Any, ...]) -> None:
        for key in keys:
            if type(key) is not str:
                self.varies = True

    def _joined_if_many(self, values: list[Any]) -> Structure | None:
        """Joins many arrays of one type in one leaf; None if they are few, or of several types."""
        if len(values) <= MOST_SEPARATE:
            return None
        if all(is_tensor(value) and is_plain_tensor(value) for value in values):
            pairs: list[tuple[Array, Form]] = [array_of_tensor(value) for value in values]
        elif all(isinstance(value, np.ndarray) and is_plain_array(value) for value in values):
            pairs = [(value, None) for value in values]
        else:
            return None
        return self.joined(pairs)

    def joined(self, pairs: list[tuple[Array, Form]]) -> Structure | None:
        """The part of the tree that is for a list of arrays in one leaf; None unless they are of one type."""
        first, form = pairs[0]
        if any(array.dtype != first.dtype or array.ndim != first.ndim or kind != form for array, kind in pairs):
            return None
        arrays = [array for array, _ in pairs]
        size = sum(array.size for array in arrays)
        meaning = str(form) if form in EXTENSION_TYPES else ""
        values = self.planned(Planned((size,), first.dtype, _Joining(arrays), form, meaning))
        return ("joined", values, self.array(np.array([array.shape for array in arrays], np.int64), None))


@dataclasses.dataclass(frozen=True)
class _Joining:
    """A :attr:`Planned.fill` that writes arrays one after the other."""

    arrays: list[Array]

    def __call__(self, place: Array) -> None:
        begin = 0
        for array in self.arrays:
            place[begin : begin + array.size].reshape(array.shape)[...] = array
            begin += array.size


def _plain(value: Any) -> Any:
    return array_of_tensor(value)[0] if is_tensor(value) else value
