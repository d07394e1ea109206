"""Puts batches together again, from their trees and leaves."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from headrace import errors
from headrace.data._samples.batch_tree import Structure, dtype_of_tree
from headrace.data._samples.containers import make_dataclass, make_mapping, make_sequence
from headrace.data._samples.ragged import Ragged
from headrace.data._samples.tensors import Array, Form, to_numpy, to_torch, with_torch_strides

Build = Callable[[list[Any]], Any]
Convert = Callable[[Array], Any]
# Makes an array of the leaves; the tensors that others are views of are in the second argument, by leaf.
_Locate = Callable[[list[Any], dict[int, Any]], Any]
_Dtypes = list[Optional[np.dtype[Any]]]


def decode_tree(
    tree: bytes, to: str | None = "numpy", move: Callable[[Any], Any] | None = None
) -> tuple[Build, _Dtypes]:
    """Says how to build the batches that have a tree.

    Args:
        to: what arrays become: "numpy", arrays; "torch", tensors, except where torch lacks the dtype; "as made",
            tensors where the batch had tensors; None, tensors if the batch had any, else arrays.
        move: maps each array or tensor to its substitute in the batch.

    Returns:
        A function that builds the batch from its leaves, and the dtypes of these.

    Raises:
        TypeError: NumPy lacks an element type.
    """
    structure, names = pickle.loads(tree)[:2]  # what follows is for comparison only
    dtypes = [dtype_of_tree(name) for name in names]
    forms: list[Form] = [None] * len(dtypes)
    if structure[0] == "packed":
        return _Unpacking(structure, to, move), dtypes
    if structure[0] == "pickled":
        return _pickled_builder(structure, dtypes, to, move), dtypes
    _collect_forms(structure, forms)
    convert = _Conversion(to, move, any(form is not None for form in forms))
    converters = [None if dtype is None else convert(dtype, form) for dtype, form in zip(dtypes, forms)]
    if structure[-1] == [("leaf", i, form) for i, form in enumerate(forms)] and not any(converters):
        # The most common batches, without a call for each array. The list is fresh already.
        if structure[0] == "list":
            return lambda leaves: leaves, dtypes
        if structure[0] == "dict" and structure[1] is dict:
            keys = structure[3]
            return lambda leaves: dict(zip(keys, leaves)), dtypes
    return _builder(structure, converters), dtypes


class _Unpacking:
    """Builds batches of which three leaves hold everything."""

    def __init__(self, structure: Structure, to: str | None, move: Callable[[Any], Any] | None) -> None:
        _, self._body, self._arrays, self._objects = structure
        self._to, self._move = to, move
        # Of the batch before, of which the next one usually has the tree.
        self._latest: tuple[bytes, Build, _Dtypes] | None = None

    def __call__(self, leaves: list[Any]) -> Any:
        tree, offsets, shapes = pickle.loads(leaves[self._body].data)
        latest = self._latest
        if latest is None or latest[0] != tree:
            latest = self._latest = (tree, *decode_tree(tree, self._to, self._move))
        _, build, dtypes = latest
        memory, places, objects = leaves[self._arrays], iter(offsets), iter(leaves[self._objects][0])
        try:
            parts = [
                next(objects) if shape is None else np.ndarray(shape, dtype, memory, next(places))
                for shape, dtype in zip(shapes, dtypes)
            ]
        except (StopIteration, TypeError, ValueError) as error:
            raise errors.DataLoss(f"an array of a batch does not lie within its memory: {error}") from error
        return build(parts)


class _Conversion:
    """The conversion of arrays.

    Args:
        to, move: those of :func:`decode_tree`.
        has_tensors: whether the batch has any.
    """

    def __init__(self, to: str | None, move: Callable[[Any], Any] | None, has_tensors: bool) -> None:
        self._as_torch = to == "torch" or (to is None and has_tensors)
        self._as_made = to == "as made"
        self._move = move

    def __call__(self, dtype: np.dtype[Any], form: Form) -> Convert | None:
        """What converts an array of that dtype and form; None: nothing."""
        as_torch = self._as_torch or (self._as_made and form is not None)
        converter = to_torch(dtype, form) if as_torch else to_numpy(form)
        return converter if self._move is None else _then(converter, self._move)


_AS_MADE = _Conversion("as made", None, False)


def _then(first: Convert | None, second: Convert) -> Convert:
    return second if first is None else lambda leaf: second(first(leaf))


def _collect_forms(structure: Structure, forms: list[Form]) -> None:
    kind = structure[0]
    if kind == "leaf":
        forms[structure[1]] = structure[2]
    elif kind not in ("object", "objects"):
        for child in structure[1:] if kind in ("ragged", "joined") else structure[-1]:
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
    if kind == "joined":
        values, shapes = structure[1][1], structure[2][1]
        return lambda leaves: _split(leaves[values], leaves[shapes], convert[values])
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


def _split(values: Array, shapes: Array, converter: Convert | None) -> list[Any]:
    arrays: list[Any] = []
    begin = 0
    for shape in shapes.tolist():
        end = begin + math.prod(shape)
        array = values[begin:end].reshape(shape)
        # One by one: each tensor has a storage of its own, which is what torch.save writes.
        arrays.append(array if converter is None else converter(array))
        begin = end
    return arrays


def build_arrays(entries: list[Structure], dtypes: _Dtypes, leaves: list[Any]) -> list[Any]:
    """Makes the arrays and tensors of a "pickled" node, as they were; ``dtypes`` are those of the leaves."""
    storages: dict[int, Any] = {}
    return [build(leaves, storages) for build in _array_builders(entries, dtypes, _AS_MADE)]


def _pickled_builder(structure: Structure, dtypes: _Dtypes, to: str | None, move: Callable[[Any], Any] | None) -> Build:
    _, body, arrays, has_tensors = structure
    builders = _array_builders(arrays, dtypes, _Conversion(to, move, has_tensors))
    return lambda leaves: _Unpickler(leaves[body], leaves, builders).load()


def _array_builders(arrays: list[Structure], dtypes: _Dtypes, convert: _Conversion) -> list[_Locate]:
    """Functions for the arrays of a "pickled" node. ``convert`` is for those that are not within objects."""
    builders: list[_Locate] = []
    for leaf, dtype, form, is_shown, kind, requires_grad in arrays:
        element = dtypes[leaf] if dtype is None else dtype
        assert element is not None
        converter = (convert if is_shown else _AS_MADE)(element, form)
        locate: _Locate = _Whole(leaf, converter) if dtype is None else _View(leaf, dtype, form, converter, dtypes)
        if kind is not None or requires_grad:
            locate = _Finished(locate, kind, requires_grad)
        builders.append(locate)
    return builders


class _Unpickler(pickle.Unpickler):
    """Restores a batch that is pickled but for its arrays."""

    def __init__(self, body: Array, leaves: list[Any], builders: list[_Locate]) -> None:
        super().__init__(io.BytesIO(body.data))
        self._leaves, self._builders = leaves, builders
        self._built: dict[int, Any] = {}
        self._storages: dict[int, Any] = {}

    def persistent_load(self, number: Any) -> Any:
        """The array of that number, the same each time that it comes."""
        if number not in self._built:
            self._built[number] = self._builders[number](self._leaves, self._storages)
        return self._built[number]


class _Whole:
    """Makes an array that a leaf consists of."""

    def __init__(self, leaf: int, converter: Convert | None) -> None:
        self._leaf, self._converter = leaf, converter

    def __call__(self, leaves: list[Any], storages: dict[int, Any]) -> Any:
        array = leaves[self._leaf]
        return array if self._converter is None else self._converter(array)


class _View:
    """Makes an array over part of another leaf, as numbers in a leaf say: that leaf, the offset, shape and strides."""

    def __init__(self, leaf: int, dtype: np.dtype[Any], form: Form, converter: Convert | None, dtypes: _Dtypes) -> None:
        self._leaf, self._dtype, self._form, self._converter, self._dtypes = leaf, dtype, form, converter, dtypes

    def __call__(self, leaves: list[Any], storages: dict[int, Any]) -> Any:
        storage, offset, *numbers = leaves[self._leaf].tolist()
        shape, strides = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
        if not 0 <= storage < len(leaves) or not isinstance(leaves[storage], np.ndarray):
            raise errors.DataLoss(f"an array of a batch refers to its leaf {storage}, which does not exist")
        try:
            array = np.ndarray(shape, self._dtype, leaves[storage], offset, strides)
        except (TypeError, ValueError) as error:
            raise errors.DataLoss(f"an array of a batch does not lie within its memory: {error}") from error
        if self._converter is None:
            return array
        if self._form is None or self._dtypes[storage] != self._dtype:
            return self._converter(with_torch_strides(array))
        # Tensors that share memory are views of one tensor.
        if storage not in storages:
            storages[storage] = self._converter(leaves[storage])
        size = self._dtype.itemsize
        return storages[storage].as_strided(shape, [stride // size for stride in strides], offset // size)


class _Finished:
    """Makes an array of a subclass, or a tensor that requires a gradient."""

    def __init__(self, locate: _Locate, kind: type[Any] | None, requires_grad: bool) -> None:
        self._locate, self._kind, self._requires_grad = locate, kind, requires_grad

    def __call__(self, leaves: list[Any], storages: dict[int, Any]) -> Any:
        value = self._locate(leaves, storages)
        if self._kind is not None and type(value) is np.ndarray:
            return value.view(self._kind)
        return value.requires_grad_() if self._requires_grad and hasattr(value, "requires_grad_") else value
