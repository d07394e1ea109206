"""Takes collated batches apart, into a tree and its leaves.

Nothing here makes reference cycles: the arrays of a batch die with the last reference to them, not when Python's
garbage collector runs next.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import sys
from typing import Any

import numpy as np

from headrace import _core
from headrace.data._samples.batch_tree import (
    LAYOUT_DIMS,
    LAYOUT_LEAVES,
    LAYOUT_TREE_BYTES,
    Structure,
    dtype_in_tree,
    dumps_tree,
    fits_layout,
)
from headrace.data._samples.containers import (
    is_namedtuple,
)
from headrace.data._samples.overlapping_arrays import array_or_none, is_sendable, pickle_batch, pickles_as
from headrace.data._samples.planned_arrays import Planned, copying
from headrace.data._samples.ragged import Ragged
from headrace.data._samples.tensors import (
    Array,
    Form,
)
from headrace.data._samples.tree_walk import MOST_SEPARATE, PLAIN_TYPES, LeafDtypes, Walk

Flat = tuple[bytes, list[Any]]


class Flattener:
    """Takes batches apart. One per thread: it keeps the tree of the batch before, which is usually that of the next.

    A batch is given as its pickled tree and its leaves: arrays, :class:`Planned` or lists of objects to pickle.

    Args:
        feeds: whether the batches go into a queue of a program, each array of its own.
    """

    def __init__(self, feeds: bool = False) -> None:
        self._feeds = feeds
        self._latest: tuple[Any, LeafDtypes] = (None, [])
        self._latest_bytes = b""
        # Of the latest tree, if batches of that kind need not be taken apart here.
        self._plain: _core.PlainTree | None = None

    def collated(self, batch: Any) -> Flat:
        """Takes apart the result of the default collation."""
        walk = Walk()
        return self._flat(walk.visit(batch), walk)

    def result(self, batch: Any) -> Flat:
        """Takes apart the result of a user's function so that it arrives unchanged.

        Plain batches, which consist of lists, dicts, tuples, strings, numbers and whole arrays, each of them once, have
        a tree that the consumer decodes only once. All others are pickled, but for their arrays, which may overlap.

        Raises:
            pickle.PicklingError: something in it cannot be pickled.
            RuntimeError: it has a tensor that is part of an autograd graph.
        """
        leaves = None if self._plain is None else self._plain.leaves(batch)
        if leaves is not None:
            return self._latest_bytes, leaves
        plain = _PlainWalk()
        try:
            structure = plain.visit(batch)
            if not _overlap(plain.arrays):
                flat = self._flat(structure, plain)
                if flat[0] is self._latest_bytes and not plain.varies and Planned not in map(type, plain.leaves):
                    self._plain = _core.PlainTree.of(structure, plain.dtypes, _whole_array)
                return flat
        except _NotPlainError:
            pass
        walk = Walk()
        return self._flat(pickle_batch(batch, walk), walk)

    def _flat(self, structure: Structure, walk: Walk) -> Flat:
        tree = (structure, walk.dtypes)
        if walk.varies or tree != self._latest:
            self._latest_bytes = dumps_tree((structure, [dtype_in_tree(dtype) for dtype in walk.dtypes]))
            self._latest = (None, []) if walk.varies else tree  # what varies is equal to what it is not
            self._plain = None
        leaves = walk.leaves
        if not fits_layout(len(leaves), self._latest_bytes) or any(_dims(leaf) > LAYOUT_DIMS for leaf in leaves):
            if self._feeds:
                raise ValueError(_no_room(leaves, self._latest_bytes))
            return _packed(self._latest_bytes, leaves)
        return self._latest_bytes, leaves


def _no_room(leaves: list[Any], tree: bytes) -> str:
    limits = f"{LAYOUT_LEAVES:,} arrays, of {LAYOUT_DIMS} dimensions each, and {LAYOUT_TREE_BYTES >> 10} KiB of keys"
    dims = max(map(_dims, leaves), default=0)
    return (
        f"a program's reader takes batches of at most {limits} and strings; this one has {len(leaves):,} arrays, "
        f"of up to {dims} dimensions, and {len(tree) >> 10} KiB. Stack arrays, or merge dimensions, in the dataset or "
        "in collate_fn"
    )


def _dims(leaf: Any) -> int:
    return 1 if isinstance(leaf, list) else len(leaf.shape)


_PACKED_TREE = dumps_tree((("packed", 0, 1, 2), ["|u1", "|u1", None]))
# Of arrays in a common leaf: no element that is aligned in a leaf of its own is not there.
_ALIGNMENT = 64


def _packed(tree: bytes, leaves: list[Any]) -> Flat:
    """Joins the leaves of a batch, and its tree, in three leaves, which takes little room in the slot's layout."""
    offsets, end = [], 0
    for leaf in leaves:
        if not isinstance(leaf, list):
            end += -end % _ALIGNMENT
            offsets.append(end)
            end += math.prod(leaf.shape) * leaf.dtype.itemsize
    shapes = [None if isinstance(leaf, list) else leaf.shape for leaf in leaves]
    body = np.frombuffer(pickle.dumps((tree, offsets, shapes), pickle.HIGHEST_PROTOCOL), np.uint8)
    arrays = [leaf for leaf in leaves if not isinstance(leaf, list)]
    objects = [leaf for leaf in leaves if isinstance(leaf, list)]
    joined = Planned((end,), np.dtype(np.uint8), _Packing(arrays, offsets), meaning="storage")
    return _PACKED_TREE, [Planned(body.shape, body.dtype, copying(body), meaning="storage"), joined, [objects]]


@dataclasses.dataclass(frozen=True)
class _Packing:
    """A :attr:`Planned.fill` that writes arrays to their offsets."""

    arrays: list[Any]
    offsets: list[int]

    def __call__(self, place: Array) -> None:
        for array, offset in zip(self.arrays, self.offsets):
            part: Array = np.ndarray(array.shape, array.dtype, place, offset)
            if isinstance(array, Planned):
                array.fill(part)
            else:
                part[...] = array


class _NotPlainError(Exception):
    """A batch has parts that only pickle carries over as they are."""


class _PlainWalk(Walk):
    """Takes one batch apart that is plain.

    Attributes:
        arrays: all arrays so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: list[Array] = []
        self._containers: set[int] = set()

    def visit(self, value: Any) -> Structure:
        """The part of the tree that is for ``value``.

        Raises:
            _NotPlainError: it is not plain.
        """
        kind = type(value)
        if kind is np.ndarray:  # first, and without a further call, because most are
            dtype = value.dtype
            if not value.flags.c_contiguous or dtype.hasobject:
                raise _NotPlainError
            self.arrays.append(value)
            self.leaves.append(value)
            self.dtypes.append(dtype)
            return ("leaf", len(self.leaves) - 1, None)
        if kind in PLAIN_TYPES:
            return ("object", self.add([value], None))
        pair = _whole_array(value)
        if pair is not None:
            return self.array(*pair)
        if kind is Planned:
            return self.planned(value)
        if id(value) in self._containers:
            raise _NotPlainError  # it is there twice, or within itself
        self._containers.add(id(value))
        if kind is dict:
            keys = tuple(value)
            self._note_keys(keys)
            return ("dict", dict, None, keys, self._visit_all(value.values()))
        if kind is list or kind is tuple:
            if all(type(child) in PLAIN_TYPES for child in value):
                return ("object", self.add([value], None))
            if kind is tuple:
                return ("tuple", self._visit_all(value))
            joined = self._joined_if_many(value)
            return ("list", self._visit_all(value)) if joined is None else joined
        if kind is Ragged:
            return self.ragged(value)
        if is_namedtuple(value) and not hasattr(value, "__dict__") and pickles_as(kind, object):
            return ("namedtuple", kind, self._visit_all(value))
        raise _NotPlainError

    def array(self, value: Array, form: Form) -> Structure:
        """The part of the tree that is for an array."""
        self.arrays.append(value)
        return super().array(value, form)

    def _joined_if_many(self, values: list[Any]) -> Structure | None:
        if len(values) <= MOST_SEPARATE:
            return None
        pairs = []
        for value in values:
            pair = _whole_array(value)
            if pair is None:
                return None
            pairs.append(pair)
        joined = self.joined(pairs)
        if joined is not None:
            self.arrays += [array for array, _ in pairs]
        return joined


def _whole_array(value: Any) -> tuple[Array, Form] | None:
    """An array, or a tensor as one, with its form, if it is all of its memory, in C's order; else None."""
    kind = type(value)
    if kind is np.ndarray:
        return (value, None) if value.flags.c_contiguous and not value.dtype.hasobject else None
    if "torch" not in sys.modules or kind is not sys.modules["torch"].Tensor:
        return None
    if value.requires_grad or not is_sendable(value) or not value.is_contiguous():
        return None
    return array_or_none(value)


def _overlap(arrays: list[Array]) -> bool:
    """Whether two of the arrays, all of them contiguous, share memory."""
    if len(arrays) < 2:
        return False
    spans = sorted([(array.__array_interface__["data"][0], array.nbytes) for array in arrays if array.size])
    end = 0
    for begin, size in spans:
        if begin < end:
            return True
        end = begin + size
    return False
