"""From samples to batches: what a sample looks like, and how a batch is put together and taken apart.

While all samples of a batch look the same, the C++ writer copies each into its row and nothing here runs. What is here describes the
first sample to that writer, collates the batches that need more (a collate function of the user's, samples that differ), and builds
the consumer's object from the arrays of a batch.
"""

from __future__ import annotations

import enum
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

# A structure is a nested tuple: ("leaf", i), ("list", children), ("tuple", children), ("dict", type, keys, children),
# ("namedtuple", type, children), ("object", i). Leaves are numbered in order.
Structure = tuple[Any, ...]
Build = Callable[[list[Any]], Any]


class NodeKind(enum.IntEnum):
    """Kinds of nodes of a sample's description; the numbers are those of sample_writer.h."""

    SEQUENCE = 0
    MAPPING = 1
    ARRAY = 2
    FLOAT = 3
    INT = 4
    BOOL = 5
    SCALAR = 6
    TENSOR = 7
    OBJECT = 8


def dumps(value: Any) -> bytes:
    """Pickled ``value``."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a torch tensor; torch is never imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def describe(sample: Any) -> tuple[bytes, tuple[Any, ...]]:
    """What a sample looks like: the tree that the consumer gets, pickled, and the description that the writer compiles.

    As with PyTorch's ``default_collate``, tuples become lists, numbers become arrays, strings stay strings.
    """
    dtypes: list[np.dtype[Any] | None] = []

    def leaf(dtype: np.dtype[Any] | None) -> Structure:
        dtypes.append(dtype)
        return ("leaf", len(dtypes) - 1)

    def visit(value: Any) -> tuple[Structure, tuple[Any, ...]]:
        kind = type(value)
        if isinstance(value, np.ndarray) and value.dtype != object:
            return leaf(value.dtype), (NodeKind.ARRAY, kind, value.dtype, value.shape)
        if is_tensor(value):
            array = value.detach().numpy()
            return leaf(array.dtype), (NodeKind.TENSOR, kind, array.dtype, array.shape)
        if kind is bool:
            return leaf(np.dtype(np.bool_)), (NodeKind.BOOL, kind, np.dtype(np.bool_))
        if kind is int:
            return leaf(np.dtype(np.int64)), (NodeKind.INT, kind, np.dtype(np.int64))
        if kind is float:
            return leaf(np.dtype(np.float64)), (NodeKind.FLOAT, kind, np.dtype(np.float64))
        if isinstance(value, np.generic) and value.dtype != object:
            return leaf(value.dtype), (NodeKind.SCALAR, kind, value.dtype)
        if isinstance(value, (tuple, list)):
            pairs = [visit(child) for child in value]
            children = [pair[0] for pair in pairs]
            structure: Structure = ("namedtuple", kind, children) if is_namedtuple(value) else ("list", children)
            return structure, (NodeKind.SEQUENCE, kind, tuple(pair[1] for pair in pairs))
        if isinstance(value, dict):
            keys = tuple(value)
            pairs = [visit(value[key]) for key in keys]
            return (
                ("dict", kind, keys, [pair[0] for pair in pairs]),
                (NodeKind.MAPPING, kind, keys, tuple(pair[1] for pair in pairs)),
            )
        return leaf(None), (NodeKind.OBJECT, kind)

    structure, node = visit(sample)
    return dumps((structure, dtypes)), node


def default_collate(samples: Sequence[Any], indices: Sequence[Any] | None = None) -> Any:
    """Stacks samples into a batch: arrays and numbers along a new first axis, containers element by element, strings as a list.

    Args:
        samples: at least one sample.
        indices: their dataset indices, for messages.

    Raises:
        ValueError: samples that differ in shape or structure; the message names the first that differs.
        TypeError: samples of types that do not go together.
    """
    if not samples:
        raise ValueError("cannot make a batch of no samples")
    return _collate(samples, list(indices) if indices is not None else list(range(len(samples))), "")


def _differs(indices: list[Any], i: int, where: str, got: str, expected: str) -> str:
    place = f" at {where}" if where else ""
    return (
        f"sample {indices[i]!r} does not go into one batch with sample {indices[0]!r}{place}: {got}, expected {expected}. "
        "Make them alike in the dataset, or pass a collate_fn."
    )


def _collate(samples: Sequence[Any], indices: list[Any], where: str) -> Any:
    first = samples[0]
    kind = type(first)
    if isinstance(first, (np.ndarray, np.generic)) or is_tensor(first):
        arrays = [_as_array(sample) for sample in samples]
        for i, array in enumerate(arrays):
            if not isinstance(samples[i], (np.ndarray, np.generic)) and not is_tensor(samples[i]):
                raise TypeError(_differs(indices, i, where, _describe_short(samples[i]), _describe_short(first)))
            if array.shape != arrays[0].shape:
                raise ValueError(_differs(indices, i, where, f"an array of shape {array.shape}", f"shape {arrays[0].shape}"))
        return np.stack(arrays)
    if kind in (bool, int, float):
        for i, sample in enumerate(samples):
            if not isinstance(sample, (bool, int, float)):
                raise TypeError(_differs(indices, i, where, _describe_short(sample), "a number"))
        if kind is float or all(isinstance(sample, (bool, int)) for sample in samples):
            return np.asarray(samples, dtype={bool: np.bool_, int: np.int64, float: np.float64}[kind])
        return np.asarray(samples, dtype=np.float64)
    if isinstance(first, Mapping):
        for i, sample in enumerate(samples):
            if not isinstance(sample, Mapping) or set(sample) != set(first):
                got = f"keys {sorted(map(str, sample))}" if isinstance(sample, Mapping) else _describe_short(sample)
                raise ValueError(_differs(indices, i, where, got, f"keys {sorted(map(str, first))}"))
        return {key: _collate([sample[key] for sample in samples], indices, f"{where}[{key!r}]") for key in first}
    if isinstance(first, (tuple, list)):
        for i, sample in enumerate(samples):
            if not isinstance(sample, (tuple, list)) or len(sample) != len(first):
                got = f"{len(sample)} elements" if isinstance(sample, (tuple, list)) else _describe_short(sample)
                raise ValueError(_differs(indices, i, where, got, f"{len(first)} elements"))
        columns = [_collate(list(column), indices, f"{where}[{i}]") for i, column in enumerate(zip(*samples))]
        return kind(*columns) if is_namedtuple(first) else columns
    return list(samples)


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(value.detach().numpy() if is_tensor(value) else value)


def _describe_short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a value of type {type(value).__name__}"


def flatten_batch(batch: Any) -> tuple[bytes, list[Any]]:
    """Takes a collated batch apart: the pickled tree, and its leaves as contiguous arrays or lists of objects to be pickled."""
    leaves: list[Any] = []
    dtypes: list[np.dtype[Any] | None] = []

    def add(value: Any, dtype: np.dtype[Any] | None) -> int:
        leaves.append(value)
        dtypes.append(dtype)
        return len(leaves) - 1

    def visit(value: Any) -> Structure:
        if is_tensor(value):
            value = value.detach().numpy()
        if isinstance(value, np.ndarray) and value.dtype != object:
            return ("leaf", add(value, value.dtype))
        if is_namedtuple(value):
            return ("namedtuple", type(value), [visit(child) for child in value])
        if type(value) is tuple:
            return ("tuple", [visit(child) for child in value])
        if type(value) is list and not all(isinstance(child, (str, bytes, int, float, type(None))) for child in value):
            return ("list", [visit(child) for child in value])
        if isinstance(value, dict):
            return ("dict", type(value), tuple(value), [visit(child) for child in value.values()])
        return ("object", add([value], None))

    structure = visit(batch)
    return dumps((structure, dtypes)), leaves


def decode_tree(tree: bytes, convert: Callable[[Any], Any] | None = None) -> tuple[Build, list[np.dtype[Any] | None]]:
    """The inverse: what builds a batch from its leaves, and the leaves' dtypes.

    Args:
        tree: what :func:`describe` or :func:`flatten_batch` pickled.
        convert: applied to each array.
    """
    structure, dtypes = pickle.loads(tree)
    return _builder(structure, convert, dtypes), dtypes


def _builder(structure: Structure, convert: Callable[[Any], Any] | None, dtypes: list[Any]) -> Build:
    kind = structure[0]
    if kind == "leaf":
        index = structure[1]
        if convert is None or dtypes[index] is None:
            return lambda leaves: leaves[index]
        return lambda leaves: convert(leaves[index])
    if kind == "object":
        index = structure[1]
        return lambda leaves: leaves[index][0]
    children = structure[-1]
    if kind == "list" and convert is None and children == [("leaf", i) for i in range(len(children))]:
        return lambda leaves: leaves  # the commonest batch: a fresh list already
    builders = [_builder(child, convert, dtypes) for child in children]
    if kind == "list":
        return lambda leaves: [build(leaves) for build in builders]
    if kind == "tuple":
        return lambda leaves: tuple([build(leaves) for build in builders])
    if kind == "namedtuple":
        cls = structure[1]
        return lambda leaves: cls(*[build(leaves) for build in builders])
    if kind == "dict":
        _, cls, keys, _ = structure
        if cls is dict:
            return lambda leaves: {key: build(leaves) for key, build in zip(keys, builders)}
        return lambda leaves: _mapping(cls, {key: build(leaves) for key, build in zip(keys, builders)})
    _unknown(kind)


def _mapping(cls: type[Any], items: dict[Any, Any]) -> Any:
    try:
        return cls(items)
    except TypeError:  # a defaultdict, say, whose constructor wants something else
        return items


def _unknown(kind: Any) -> NoReturn:
    raise ValueError(f"unknown kind of node {kind!r} in a batch's tree")
