"""From samples to batches: what a sample looks like, and how a batch is put together and taken apart.

While all samples of a batch look the same, the C++ writer copies each into its row and nothing here runs. What is here
describes the first sample to that writer, collates the batches that need more (a collate function of the user's,
samples that differ), and builds the consumer's object from the arrays of a batch.
"""

from __future__ import annotations

import enum
import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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


def _dump_tree(structure: Structure, dtypes: list[np.dtype[Any] | None]) -> bytes:
    """The tree, pickled so that equal trees give equal bytes: workers compare them.

    Without pickle's memo, that is, which depends on which of the equal parts happen to be one object.
    """
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    pickler.dump((structure, dtypes))
    return buffer.getvalue()


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a torch tensor; torch is never imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_plain_array(value: Any) -> bool:
    """Whether ``value`` is an array, or a NumPy scalar, whose bytes say all: no references to objects, no mask.

    NumPy's strings are strings: they stay together as a list.
    """
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject and not isinstance(value, np.ma.MaskedArray)
    return isinstance(value, np.generic) and not value.dtype.hasobject and not isinstance(value, (str, bytes))


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
        if is_plain_array(value):
            if isinstance(value, np.ndarray):
                return leaf(value.dtype), (NodeKind.ARRAY, kind, value.dtype, value.shape)
            return leaf(value.dtype), (NodeKind.SCALAR, kind, value.dtype)
        if is_tensor(value):
            array = _of_tensor(value)
            return leaf(array.dtype), (NodeKind.TENSOR, kind, array.dtype, array.shape)
        if kind is bool:
            return leaf(np.dtype(np.bool_)), (NodeKind.BOOL, kind, np.dtype(np.bool_))
        if kind is int:
            return leaf(np.dtype(np.int64)), (NodeKind.INT, kind, np.dtype(np.int64))
        if kind is float:
            return leaf(np.dtype(np.float64)), (NodeKind.FLOAT, kind, np.dtype(np.float64))
        if isinstance(value, (tuple, list)):
            pairs = [visit(child) for child in value]
            children = [pair[0] for pair in pairs]
            structure: Structure = ("namedtuple", kind, children) if is_namedtuple(value) else ("list", children)
            return structure, (NodeKind.SEQUENCE, kind, tuple(pair[1] for pair in pairs))
        if isinstance(value, Mapping):
            keys = tuple(value)
            pairs = [visit(value[key]) for key in keys]
            return (
                ("dict", kind, keys, [pair[0] for pair in pairs]),
                (NodeKind.MAPPING, kind, keys, tuple(pair[1] for pair in pairs)),
            )
        return leaf(None), (NodeKind.OBJECT, kind)

    structure, node = visit(sample)
    return _dump_tree(structure, dtypes), node


def default_collate(samples: Sequence[Any], indices: Sequence[Any] | None = None) -> Any:
    """Stacks samples into a batch: arrays and numbers along a new first axis, containers element by element, strings as
    a list.

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


def _collate(samples: Sequence[Any], indices: list[Any], where: str) -> Any:
    first = samples[0]
    if _is_numeric(first):
        return _stack(samples, indices, where)
    if isinstance(first, Mapping):
        for i, sample in enumerate(samples):
            if not isinstance(sample, Mapping) or set(sample) != set(first):
                got = f"keys {sorted(map(str, sample))}" if isinstance(sample, Mapping) else _describe_short(sample)
                raise ValueError(_differs(indices, i, where, got, f"keys {sorted(map(str, first))}"))
        columns = {key: _collate([sample[key] for sample in samples], indices, f"{where}[{key!r}]") for key in first}
        return _mapping(type(first), columns)
    if isinstance(first, (tuple, list)):
        for i, sample in enumerate(samples):
            if not isinstance(sample, (tuple, list)) or len(sample) != len(first):
                got = f"{len(sample)} elements" if isinstance(sample, (tuple, list)) else _describe_short(sample)
                raise ValueError(_differs(indices, i, where, got, f"{len(first)} elements"))
        fields = [_collate(list(column), indices, f"{where}[{i}]") for i, column in enumerate(zip(*samples))]
        return type(first)(*fields) if is_namedtuple(first) else fields
    return list(samples)


def _is_numeric(value: Any) -> bool:
    return type(value) in (bool, int, float) or is_plain_array(value) or is_tensor(value)


def _stack(samples: Sequence[Any], indices: list[Any], where: str) -> np.ndarray[Any, Any]:
    """Arrays, scalars and numbers along a new axis, in a type that holds them all."""
    arrays: list[np.ndarray[Any, Any]] = []
    for i, sample in enumerate(samples):
        if not _is_numeric(sample):
            raise TypeError(_differs(indices, i, where, _describe_short(sample), _describe_short(samples[0])))
        try:
            if is_tensor(sample):
                array = _of_tensor(sample)
            else:  # an explicit type: the default one of an int depends on its value
                array = np.asarray(sample, dtype=_NUMBERS.get(type(sample)))
        except OverflowError:
            raise OverflowError(f"sample {indices[i]!r}{_at(where)}: {sample} does not fit 64 bits") from None
        if arrays and array.shape != arrays[0].shape:
            got = f"shape {array.shape}" if array.ndim else _describe_short(sample)
            raise ValueError(_differs(indices, i, where, got, f"shape {arrays[0].shape}"))
        arrays.append(array)
    return np.stack(arrays)


_NUMBERS: dict[type[Any], type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}


def _of_tensor(tensor: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.detach().numpy()
    return array


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _differs(indices: list[Any], i: int, where: str, got: str, expected: str) -> str:
    return (
        f"sample {indices[i]!r} does not go into one batch with sample {indices[0]!r}{_at(where)}: got {got}, "
        f"expected {expected}. Make them alike in the dataset, or pass a collate_fn."
    )


def _describe_short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a value of type {type(value).__name__}"


def flatten_batch(batch: Any) -> tuple[bytes, list[Any]]:
    """Takes a collated batch apart: the pickled tree, and its leaves as arrays or lists of objects to be pickled."""
    leaves: list[Any] = []
    dtypes: list[np.dtype[Any] | None] = []

    def add(value: Any, dtype: np.dtype[Any] | None) -> int:
        leaves.append(value)
        dtypes.append(dtype)
        return len(leaves) - 1

    def visit(value: Any) -> Structure:
        if is_tensor(value):
            value = _of_tensor(value)
        if isinstance(value, np.ndarray) and is_plain_array(value):
            return ("leaf", add(value, value.dtype))
        if is_namedtuple(value):
            return ("namedtuple", type(value), [visit(child) for child in value])
        if type(value) is tuple:
            return ("tuple", [visit(child) for child in value])
        if type(value) is list and not all(isinstance(child, (str, bytes, int, float, type(None))) for child in value):
            return ("list", [visit(child) for child in value])
        if isinstance(value, Mapping):
            return ("dict", type(value), tuple(value), [visit(value[key]) for key in value])
        return ("object", add([value], None))

    structure = visit(batch)
    return _dump_tree(structure, dtypes), leaves


def decode_tree(tree: bytes, convert: Callable[[Any], Any] | None = None) -> tuple[Build, list[np.dtype[Any] | None]]:
    """The inverse: what builds a batch from its leaves, and the leaves' dtypes.

    Args:
        tree: what :func:`describe` or :func:`flatten_batch` pickled.
        convert: applied to each array.
    """
    structure, dtypes = pickle.loads(tree)
    if convert is None and structure == ("list", [("leaf", i) for i in range(len(dtypes))]):
        return lambda leaves: leaves, dtypes  # the commonest batch: a fresh list already
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
        return lambda leaves: _mapping(cls, {key: build(leaves) for key, build in zip(keys, builders)})
    raise ValueError(f"unknown kind of node {kind!r} in a batch's tree")


def _mapping(cls: type[Any], items: dict[Any, Any]) -> Any:
    if cls is dict:
        return items
    try:
        return cls(items)
    except Exception:  # a defaultdict, say, whose constructor wants something else
        return items
