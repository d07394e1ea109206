"""Describes samples for the C++ writer, which copies each sample to its row as long as it fits the description."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from headrace.data._samples.batch_tree import LAYOUT_DIMS, Dtypes, Structure, dtype_in_tree, dumps_tree, fits_layout
from headrace.data._samples.containers import (
    field_names,
    is_dataclass,
    is_mapping,
    is_namedtuple,
    is_other_array,
    is_plain_array,
    is_sequence,
    make_dataclass,
    make_mapping,
    may_have_shell,
    shell_of,
)
from headrace.data._samples.tensors import EXTENSION_TYPES, Form, array_of_tensor, converters, is_tensor, to_torch

Node = tuple[Any, ...]
# The pickled tree of a batch, for the consumer; the description that the writer compiles; and a function that builds a
# sample from a list of its leaves (arrays, or the objects themselves).
Description = tuple[bytes, Node, Callable[[list[Any]], Any]]


class NodeKind(enum.IntEnum):
    """Kinds of nodes in a sample's description. The numbers must match sample_template.h."""

    SEQUENCE = 0
    MAPPING = 1
    ARRAY = 2
    FLOAT = 3
    INT = 4
    BOOL = 5
    SCALAR = 6
    TENSOR = 7
    OBJECT = 8
    FIELDS = 9
    WHOLE = 10


def describe(sample: Any, as_tensors: bool = False) -> Description:
    """Describes a sample, by the rules of :func:`headrace.data.default_collate`. One that the layout of a slot has no
    room for is left to the collate function.

    Args:
        as_tensors: the batch consists of tensors, by the rules of torch's ``default_collate``, whatever the sample
            consists of.
    """
    walk = _Walk(as_tensors)
    structure, node = walk.visit(sample, False)
    # Samples of other types may give the same tree. Whichever sample a worker sees first, the batch is to be the same.
    kinds = hashlib.blake2b(",".join(walk.kinds).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    tree = dumps_tree((structure, walk.dtypes, kinds))
    if walk.dims >= LAYOUT_DIMS or not fits_layout(len(walk.dtypes), tree):
        return describe_whole(sample)
    return tree, node, lambda leaves: _sample_of(node, iter(leaves))


class _Walk:
    """Walks over one sample.

    Attributes:
        dtypes: of the leaves; None: objects.
        kinds: the types of all that it has visited.
        dims: the most dimensions of an array.
    """

    def __init__(self, as_tensors: bool) -> None:
        self._as_tensors = as_tensors
        self.dtypes: Dtypes = []
        self.kinds: list[str] = []
        self.dims = 0

    def visit(self, value: Any, in_sequence: bool) -> tuple[Structure, Node]:
        """The part of the batch's tree, and of the description, that is for ``value``."""
        structure, node = self._visit(value, in_sequence)
        # The writer takes any array for an array.
        name = "" if node[0] == NodeKind.ARRAY else f"{node[1].__module__}.{node[1].__qualname__}"
        self.kinds.append(f"{int(node[0])}{name}")
        if node[0] in (NodeKind.ARRAY, NodeKind.TENSOR):
            self.dims = max(self.dims, len(node[3]))
        return structure, node

    def _visit(self, value: Any, in_sequence: bool) -> tuple[Structure, Node]:
        kind = type(value)
        if is_plain_array(value):
            if isinstance(value, np.ndarray):
                return self._leaf(value.dtype), (NodeKind.ARRAY, kind, value.dtype, value.shape, self._as_tensors)
            return self._leaf(value.dtype), (NodeKind.SCALAR, kind, value.dtype)
        if is_tensor(value):
            array, form = array_of_tensor(value)
            meaning = form if form in EXTENSION_TYPES else ""
            node = (NodeKind.TENSOR, kind, array.dtype, array.shape, meaning, converters(value, form))
            return self._leaf(array.dtype, form), node
        if isinstance(value, bool):
            return self._number(NodeKind.BOOL, value, np.bool_)
        if isinstance(value, int):
            return self._number(NodeKind.INT, value, np.int64)
        if isinstance(value, float):
            return self._number(NodeKind.FLOAT, value, np.float64)
        if isinstance(value, complex):
            return self._number(NodeKind.SCALAR, value, np.complex128)
        if is_mapping(value):
            keys, shell = tuple(value), shell_of(value)
            children, nodes = self._visit_all([value[key] for key in keys], in_sequence=False)
            structure: Structure = ("dict", kind, shell, keys, children)
            whole = shell is not None or may_have_shell(kind)
            return structure, (NodeKind.WHOLE, kind) if whole else (NodeKind.MAPPING, kind, keys, nodes)
        if is_namedtuple(value):
            children, nodes = self._visit_all(value)
            return ("namedtuple", kind, children), (NodeKind.SEQUENCE, kind, nodes)
        if is_dataclass(value):
            names = field_names(value)
            children, nodes = self._visit_all([getattr(value, name) for name in names])
            structure = ("dataclass", kind, names, children)
            # The writer would miss the others in a sample that has them.
            whole = len(names) < len(dataclasses.fields(value))
            return structure, (NodeKind.WHOLE, kind) if whole else (NodeKind.FIELDS, kind, names, nodes)
        if is_sequence(value):
            shell = shell_of(value)
            children, nodes = self._visit_all(value)
            plain = kind is list or isinstance(value, tuple)
            structure = ("list", children) if plain else ("sequence", kind, shell, children)
            # The writer reads lists and tuples, and would miss whatever else a container holds.
            writes = plain or (isinstance(value, list) and shell is None and not may_have_shell(kind))
            return structure, (NodeKind.SEQUENCE, kind, nodes) if writes else (NodeKind.WHOLE, kind)
        if is_other_array(value) and not self._as_tensors:
            return self._leaf(value.dtype), (NodeKind.WHOLE, kind)  # the writer reads no such memory
        leaf = self._leaf(None)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.hasobject:
            return leaf, (NodeKind.WHOLE, kind)  # the writer would take any array of that type for one of objects
        # PyTorch transposes sequences, and so makes tuples of elements that it does not stack.
        return ("objects", leaf[1]) if self._as_tensors and in_sequence else leaf, (NodeKind.OBJECT, kind)

    def _visit_all(self, values: Any, in_sequence: bool = True) -> tuple[list[Structure], tuple[Node, ...]]:
        pairs = [self.visit(value, in_sequence) for value in values]
        return [pair[0] for pair in pairs], tuple(pair[1] for pair in pairs)

    def _leaf(self, dtype: np.dtype[Any] | None, form: Form = None) -> Structure:
        self.dtypes.append(dtype_in_tree(dtype))
        if form is None and dtype is not None and self._as_tensors:
            form = "tensor"
        return ("leaf", len(self.dtypes) - 1, form)

    def _number(self, kind: NodeKind, value: Any, dtype: type[np.generic]) -> tuple[Structure, Node]:
        return self._leaf(np.dtype(dtype)), (kind, type(value), np.dtype(dtype))


def describe_whole(sample: Any) -> Description:
    """Describes a sample that the writer leaves to the collate function."""
    return dumps_tree((("leaf", 0, None), [None])), (NodeKind.WHOLE, type(sample)), lambda leaves: None


def _sample_of(node: Node, leaves: Iterator[Any]) -> Any:
    kind, cls = node[:2]
    if kind == NodeKind.SEQUENCE:
        elements = [_sample_of(child, leaves) for child in node[2]]
        return elements if cls is list else cls(*elements) if hasattr(cls, "_fields") else cls(elements)
    if kind in (NodeKind.MAPPING, NodeKind.FIELDS):
        items = {key: _sample_of(child, leaves) for key, child in zip(node[2], node[3])}
        return make_mapping(cls, None, items) if kind == NodeKind.MAPPING else make_dataclass(cls, items)
    if kind == NodeKind.TENSOR:
        _, _, dtype, _, meaning, converter = node
        return (converter[1] if converter is not None else to_torch(dtype, meaning or None))(next(leaves))
    return next(leaves)


def sample_prototype(spec: Any) -> Any:
    """Makes a sample of the form that ``spec`` gives: a nested structure of (shape, dtype) pairs and of examples.

    Raises:
        TypeError, ValueError: a shape or dtype is invalid.
    """
    if isinstance(spec, Mapping):
        return make_mapping(type(spec), None, {key: sample_prototype(spec[key]) for key in spec})
    if is_namedtuple(spec):
        return type(spec)(*map(sample_prototype, spec))
    if type(spec) is tuple and len(spec) == 2 and _is_shape(spec[0]) and isinstance(spec[1], (str, type, np.dtype)):
        return np.zeros(*spec)
    if is_dataclass(spec):
        return make_dataclass(type(spec), {name: sample_prototype(getattr(spec, name)) for name in field_names(spec)})
    if isinstance(spec, (list, tuple)):
        return type(spec)(map(sample_prototype, spec))
    return spec


def _is_shape(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value))
