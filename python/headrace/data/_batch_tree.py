"""How a batch is laid out in shared memory, as a tree and its leaves, and how it is put together again.

A tree is a nested tuple. Its leaves are numbered in order; for ``form`` see :mod:`headrace.data._tensors`.

    ("leaf", i, form)                            an array; a list of objects, if the leaf has no dtype
    ("object", i)                                a leaf's only object
    ("objects", i)                               a leaf's objects, as a tuple
    ("list", children), ("tuple", children)
    ("namedtuple", type, children)
    ("sequence", type, shell, children)          another kind of sequence
    ("dict", type, shell, keys, children)        any mapping
    ("dataclass", type, names, children)
    ("ragged", values, offsets)                  a Ragged
    ("pieces", values, shapes)                   a list of arrays, concatenated in `values`

A shell is what pickle would store for the container without its items: (function, arguments, state).
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import io
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from headrace.data._ragged import Ragged
from headrace.data._sample_pickle import unsendable
from headrace.data._tensors import (
    EXTENSION_TYPES,
    Array,
    Form,
    array_of_tensor,
    converters,
    is_plain_tensor,
    is_tensor,
    to_numpy,
    to_torch,
)

Structure = tuple[Any, ...]
Build = Callable[[list[Any]], Any]
Convert = Callable[[Array], Any]
_Dtypes = list[Optional[np.dtype[Any]]]

# Lists of more arrays than this share one leaf: a batch has room to describe about two thousand leaves.
_PIECES = 16
_PLAIN_OBJECTS = (str, bytes, int, float, complex, type(None))


class NodeKind(enum.IntEnum):
    """Kinds of nodes in a sample's description. The numbers must match sample_writer.h."""

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


@dataclasses.dataclass(frozen=True)
class Planned:
    """An array of a batch that is not made until its place is known.

    Attributes:
        fill: writes the elements into an array of this shape and dtype.
        meaning: tells C++ what the elements are: the name of an element type that NumPy lacks, "offsets", or "".
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Callable[[Array], None]
    form: Form = None
    meaning: str = ""

    def make(self) -> Any:
        """Makes the array, or tensor, in memory of its own."""
        array = np.empty(self.shape, self.dtype)
        self.fill(array)
        return array if self.form is None else to_torch(self.dtype, self.form)(array)


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_sequence(value: Any) -> bool:
    """Whether ``value`` is a sequence that is collated element by element."""
    if type(value) in (list, tuple):  # asking an abstract class takes much longer
        return True
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview))


def is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def field_names(value: Any) -> tuple[str, ...]:
    """The names of the fields that are set in this instance of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(value) if hasattr(value, field.name))


def is_plain_array(value: Any) -> bool:
    """Whether ``value`` is an array or NumPy scalar that is nothing but its bytes: no references to objects, no mask.

    NumPy's string scalars do not count: a batch holds them in a list, like Python's strings.
    """
    if type(value) is np.ndarray:
        return not value.dtype.hasobject
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject and not isinstance(value, np.ma.MaskedArray)
    return isinstance(value, np.generic) and not value.dtype.hasobject and not isinstance(value, (str, bytes))


def shell_of(value: Any) -> tuple[Any, ...] | None:
    """Returns the container without its items, if it consists of more than its type and items: attributes, a factory.

    Returns None also if the items cannot be separated from the rest, or the rest cannot be pickled.
    """
    if type(value) in (list, tuple, dict):
        return None
    try:
        function, arguments, state, *items = value.__reduce_ex__(2)
        if all(iterator is None for iterator in items):  # the items are part of the state
            return None
        if not state and (not arguments or (function is copyreg.__newobj__ and arguments == (type(value),))):  # type: ignore[attr-defined]
            return None
        _dumps((function, arguments, state))
    except Exception:
        return None
    return function, arguments, state


def _dumps(value: Any) -> bytes:
    """Pickles such that equal values give equal bytes, which workers compare.

    Pickle's memo would break this: it depends on which equal parts are the same object.
    """
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    try:
        pickler.dump(value)
    except MemoryError:
        raise
    except Exception as error:
        raise unsendable("the dataset or collate_fn", error) from error
    return buffer.getvalue()


Description = tuple[bytes, tuple[Any, ...], Callable[[list[Any]], Any]]


def describe(sample: Any, as_tensors: bool = False) -> Description:
    """Describes a sample, by the rules of :func:`headrace.data.default_collate`.

    Args:
        as_tensors: the batch consists of tensors, whatever the sample consists of.

    Returns:
        The pickled tree of the batch, for the consumer; the description that the writer compiles; and a function that
        builds a sample from a list of its leaves (arrays, or the objects themselves).
    """
    dtypes: _Dtypes = []
    usual_form = "tensor" if as_tensors else None

    def leaf(dtype: np.dtype[Any] | None, form: Form = None) -> Structure:
        dtypes.append(dtype)
        return ("leaf", len(dtypes) - 1, usual_form if form is None and dtype is not None else form)

    def visit_all(values: Any, in_sequence: bool = True) -> tuple[list[Structure], tuple[Any, ...]]:
        pairs = [visit(value, in_sequence) for value in values]
        return [pair[0] for pair in pairs], tuple(pair[1] for pair in pairs)

    def number(kind: NodeKind, value: Any, dtype: type[np.generic]) -> tuple[Structure, tuple[Any, ...]]:
        return leaf(np.dtype(dtype)), (kind, type(value), np.dtype(dtype))

    def visit(value: Any, in_sequence: bool) -> tuple[Structure, tuple[Any, ...]]:
        kind = type(value)
        if is_plain_array(value):
            if isinstance(value, np.ndarray):
                return leaf(value.dtype), (NodeKind.ARRAY, kind, value.dtype, value.shape)
            return leaf(value.dtype), (NodeKind.SCALAR, kind, value.dtype)
        if is_tensor(value):
            array, form = array_of_tensor(value)
            meaning = form if form in EXTENSION_TYPES else ""
            node = (NodeKind.TENSOR, kind, array.dtype, array.shape, meaning, converters(form))
            return leaf(array.dtype, form), node
        if isinstance(value, bool):
            return number(NodeKind.BOOL, value, np.bool_)
        if isinstance(value, int):
            return number(NodeKind.INT, value, np.int64)
        if isinstance(value, float):
            return number(NodeKind.FLOAT, value, np.float64)
        if isinstance(value, complex):
            return number(NodeKind.SCALAR, value, np.complex128)
        if isinstance(value, Mapping):
            keys, shell = tuple(value), shell_of(value)
            children, nodes = visit_all((value[key] for key in keys), in_sequence=False)
            structure: Structure = ("dict", kind, shell, keys, children)
            return structure, (NodeKind.MAPPING, kind, keys, nodes) if shell is None else (NodeKind.WHOLE, kind)
        if is_namedtuple(value):
            children, nodes = visit_all(value)
            return ("namedtuple", kind, children), (NodeKind.SEQUENCE, kind, nodes)
        if is_dataclass(value):
            names = field_names(value)
            children, nodes = visit_all(getattr(value, name) for name in names)
            return ("dataclass", kind, names, children), (NodeKind.FIELDS, kind, names, nodes)
        if is_sequence(value):
            shell = shell_of(value)
            children, nodes = visit_all(value)
            plain = kind is list or isinstance(value, tuple)
            structure = ("list", children) if plain else ("sequence", kind, shell, children)
            # The writer reads lists and tuples, and would miss whatever else a container holds.
            writes = isinstance(value, (list, tuple)) and (plain or shell is None)
            return structure, (NodeKind.SEQUENCE, kind, nodes) if writes else (NodeKind.WHOLE, kind)
        # PyTorch transposes sequences, and so makes tuples of what it does not stack.
        objects = ("objects", leaf(None)[1]) if as_tensors and in_sequence else leaf(None)
        return objects, (NodeKind.OBJECT, kind)

    structure, node = visit(sample, False)
    return _dumps((structure, dtypes)), node, lambda leaves: _sample_of(node, iter(leaves))


def describe_whole(sample: Any) -> Description:
    """Describes a sample that the writer leaves to the collate function."""
    return _dumps((("leaf", 0, None), [None])), (NodeKind.WHOLE, type(sample)), lambda leaves: None


def _sample_of(node: tuple[Any, ...], leaves: Iterator[Any]) -> Any:
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


def flatten_batch(batch: Any) -> tuple[bytes, list[Any]]:
    """Takes a collated batch apart.

    Returns:
        The pickled tree, and the leaves: arrays, :class:`Planned` or lists of objects to pickle.
    """
    leaves: list[Any] = []
    dtypes: _Dtypes = []

    def add(value: Any, dtype: np.dtype[Any] | None) -> int:
        leaves.append(value)
        dtypes.append(dtype)
        return len(leaves) - 1

    def leaf(value: Any) -> Structure | None:
        """The node of an array, tensor or :class:`Planned`; None for anything else."""
        if isinstance(value, Planned):
            return ("leaf", add(value, value.dtype), value.form)
        form: Form = None
        if is_tensor(value):
            if not is_plain_tensor(value):
                return None
            value, form = array_of_tensor(value)
        elif not isinstance(value, np.ndarray) or not is_plain_array(value):
            return None
        if form in EXTENSION_TYPES:
            return leaf(Planned(value.shape, value.dtype, copying(value), form, str(form)))
        return ("leaf", add(value, value.dtype), form)

    def visit_all(values: Any) -> list[Structure]:
        return [visit(value) for value in values]

    def visit(value: Any) -> Structure:
        as_leaf = leaf(value)
        if as_leaf is not None:
            return as_leaf
        if isinstance(value, Ragged):
            values = visit(value.values)
            offsets = np.ascontiguousarray(_plain(value.offsets), np.int64)
            value._check(offsets)
            planned = Planned(offsets.shape, offsets.dtype, copying(offsets), meaning="offsets")
            return ("ragged", values, visit(planned))
        if is_namedtuple(value):
            return ("namedtuple", type(value), visit_all(value))
        if isinstance(value, Mapping):
            return ("dict", type(value), shell_of(value), tuple(value), visit_all(value[key] for key in value))
        if is_dataclass(value):
            names = field_names(value)
            return ("dataclass", type(value), names, visit_all(getattr(value, name) for name in names))
        if is_sequence(value) and not all(isinstance(child, _PLAIN_OBJECTS) for child in value):
            if type(value) is tuple:
                return ("tuple", visit_all(value))
            if type(value) is not list:
                return ("sequence", type(value), shell_of(value), visit_all(value))
            pieces = _pieces(value) if len(value) > _PIECES else None
            if pieces is not None:
                return ("pieces", *map(visit, pieces))
            return ("list", visit_all(value))
        return ("object", add([value], None))

    structure = visit(batch)
    return _dumps((structure, dtypes)), leaves


def _plain(value: Any) -> Any:
    return array_of_tensor(value)[0] if is_tensor(value) else value


def copying(source: Array) -> Callable[[Array], None]:
    """Returns a :attr:`Planned.fill` that copies ``source``."""
    return lambda place: np.copyto(place, source)


def _pieces(values: list[Any]) -> tuple[Planned, Array] | None:
    """Joins arrays in one leaf, and gives their shapes; None unless they share a dtype and number of dimensions."""
    if all(is_tensor(value) and is_plain_tensor(value) for value in values):
        pairs: list[tuple[Array, Form]] = [array_of_tensor(value) for value in values]
    elif all(isinstance(value, np.ndarray) and is_plain_array(value) for value in values):
        pairs = [(value, None) for value in values]
    else:
        return None
    first, form = pairs[0]
    if any(array.dtype != first.dtype or array.ndim != first.ndim or kind != form for array, kind in pairs):
        return None
    arrays = [array for array, _ in pairs]

    def fill(place: Array) -> None:
        begin = 0
        for array in arrays:
            place[begin : begin + array.size].reshape(array.shape)[...] = array
            begin += array.size

    planned = Planned((sum(array.size for array in arrays),), first.dtype, fill, form)
    return planned, np.array([array.shape for array in arrays], np.int64)


def decode_tree(
    tree: bytes, to: str | None = "numpy", move: Callable[[Any], Any] | None = None
) -> tuple[Build, _Dtypes]:
    """The inverse of :func:`describe` and :func:`flatten_batch`.

    Args:
        to: what arrays become: "numpy", arrays; "torch", tensors, except where torch lacks the dtype; "as made",
            tensors where the batch had tensors; None, tensors if the batch had any, else arrays.
        move: maps each array or tensor to what the batch holds in its place.

    Returns:
        A function that builds the batch from its leaves, and the dtypes of these.

    Raises:
        TypeError: NumPy lacks an element type.
    """
    structure, dtypes = pickle.loads(tree)
    forms: list[Form] = [None] * len(dtypes)
    _collect_forms(structure, forms)
    as_torch = to == "torch" or (to is None and any(form is not None for form in forms))
    convert = [
        None
        if dtype is None
        else to_torch(dtype, form)
        if as_torch or (to == "as made" and form is not None)
        else to_numpy(form)
        for dtype, form in zip(dtypes, forms)
    ]
    if move is not None:
        convert = [_then(converter, move) for converter in convert]
    if structure == ("list", [("leaf", i, form) for i, form in enumerate(forms)]) and not any(convert):
        return lambda leaves: leaves, dtypes  # the most common batch: the list is fresh already
    return _builder(structure, convert), dtypes


def _then(first: Convert | None, second: Convert) -> Convert:
    return second if first is None else lambda leaf: second(first(leaf))


def _collect_forms(structure: Structure, forms: list[Form]) -> None:
    kind = structure[0]
    if kind == "leaf":
        forms[structure[1]] = structure[2]
    elif kind not in ("object", "objects"):
        for child in structure[1:] if kind in ("ragged", "pieces") else structure[-1]:
            _collect_forms(child, forms)


def _builder(structure: Structure, convert: list[Convert | None]) -> Build:
    kind = structure[0]
    if kind == "leaf":
        index = structure[1]
        converter = convert[index]
        if converter is None:
            return lambda leaves: leaves[index]
        return lambda leaves: converter(leaves[index])
    if kind == "object":
        index = structure[1]
        return lambda leaves: leaves[index][0]
    if kind == "objects":
        index = structure[1]
        return lambda leaves: tuple(leaves[index])
    if kind == "ragged":
        values, offsets = (_builder(child, convert) for child in structure[1:])
        return lambda leaves: Ragged(values(leaves), offsets(leaves))
    if kind == "pieces":
        values, shapes = _builder(structure[1], convert), structure[2][1]
        return lambda leaves: _split(values(leaves), leaves[shapes])
    builders = [_builder(child, convert) for child in structure[-1]]
    if kind == "list":
        return lambda leaves: [build(leaves) for build in builders]
    if kind == "tuple":
        return lambda leaves: tuple([build(leaves) for build in builders])
    cls = structure[1]
    if kind == "namedtuple":
        return lambda leaves: cls(*[build(leaves) for build in builders])
    if kind == "sequence":
        shell = structure[2]
        return lambda leaves: make_sequence(cls, shell, [build(leaves) for build in builders])
    if kind == "dict":
        _, _, shell, keys, _ = structure
        return lambda leaves: make_mapping(cls, shell, {key: build(leaves) for key, build in zip(keys, builders)})
    if kind == "dataclass":
        names = structure[2]
        return lambda leaves: make_dataclass(cls, {name: build(leaves) for name, build in zip(names, builders)})
    raise ValueError(f"unknown kind of node {kind!r} in a batch's tree")


def _split(values: Any, shapes: Array) -> list[Any]:
    pieces = []
    begin = 0
    for shape in shapes.tolist():
        end = begin + math.prod(shape)
        pieces.append(values[begin:end].reshape(shape))
        begin = end
    return pieces


def _from_shell(shell: tuple[Any, ...]) -> Any:
    function, arguments, state = shell
    container = function(*arguments)
    if hasattr(container, "__setstate__"):
        container.__setstate__(state)
    elif state:
        attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        for name, value in {**(attributes or {}), **(slots or {})}.items():
            setattr(container, name, value)
    return container


def make_mapping(cls: type[Any], shell: tuple[Any, ...] | None, items: dict[Any, Any]) -> Any:
    """Makes a mapping of that type with those items; a dict, if the type cannot be instantiated."""
    return items if cls is dict else _filled(cls, shell, items, "update")


def make_sequence(cls: type[Any], shell: tuple[Any, ...] | None, elements: list[Any]) -> Any:
    """Makes a sequence of that type with those elements; a list, if the type cannot be instantiated."""
    return elements if cls is list else _filled(cls, shell, elements, "extend")


def _filled(cls: type[Any], shell: tuple[Any, ...] | None, content: Any, fill: str) -> Any:
    """Makes a container of that type with that content; returns ``content`` itself if that fails.

    Args:
        shell: makes an empty container, to which the method ``fill`` adds; None: the type's constructor takes it all.
    """
    try:
        if shell is None:
            return cls(content)
        container = _from_shell(shell)
        getattr(container, fill)(content)
        return container
    except Exception:
        return content


def make_dataclass(cls: type[Any], fields: dict[str, Any]) -> Any:
    """Makes an instance with those fields, without running its ``__init__``, which expects those of a sample."""
    instance = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance
