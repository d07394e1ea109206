"""Batches that bypass shared memory: without workers, the consumer gets what the collate function made, unchanged."""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace.data._batch_tree import (
    Build,
    Description,
    describe,
    describe_whole,
    field_names,
    flatten_batch,
    is_dataclass,
    is_namedtuple,
    is_plain_array,
    is_sequence,
    make_dataclass,
    make_mapping,
    make_sequence,
    shell_of,
)
from headrace.data._device import DeviceCopies
from headrace.data._ragged import Ragged
from headrace.data._tensors import (
    array_of_tensor,
    is_plain_tensor,
    is_tensor,
    leaves_slot_unchanged,
    to_numpy,
    to_torch,
)


class _HandedOver:
    """A mapping key that no sample has."""


# Written to a slot in place of a batch that is handed over.
_PLACEHOLDER = flatten_batch({_HandedOver: None})


class HandOver:
    """Holds the current batch for a consumer in the same process. Not thread-safe.

    Args:
        to: what the arrays and tensors of a batch become, as for :func:`decode_tree`.
        device: copies tensors to a device; None: they stay where they are.

    Attributes:
        batch: the batch that the placeholder represents; None once the consumer has it.
    """

    def __init__(self, to: str | None, device: DeviceCopies | None) -> None:
        self._to = to
        self._device = device
        self.batch: Any = None

    def put(self, batch: Any) -> tuple[bytes, list[Any]]:
        """Holds ``batch`` for the consumer, and returns what to write to the slot in its place."""
        to = "torch" if self._to is None and _has_tensor(batch) else self._to
        if to in ("torch", "numpy"):
            batch = _converted(batch, _as_tensor if to == "torch" else _as_array)
        self.batch = batch
        return _PLACEHOLDER

    def decoder(self, decode: Callable[[bytes], tuple[Build, Any]]) -> Callable[[bytes], tuple[Build, Any]]:
        """Wraps the scheduler's ``decode`` so that the placeholder yields the current batch.

        The result refers to this object weakly: the garbage collector cannot see the scheduler's references.
        """
        reference, device = weakref.ref(self), self._device

        def take(leaves: list[Any]) -> Any:
            alive = reference()
            batch = None if alive is None else alive.batch
            return batch if device is None else device.submit(_converted(batch, device.copy))

        return lambda tree: (take, [None]) if tree == _PLACEHOLDER[0] else decode(tree)


def describe_as_is(sample: Any) -> Description:
    """As :func:`describe`; a sample that would come out of a slot changed is left to the collate function."""
    return describe(sample) if _fits_in_place(sample) else describe_whole(sample)


_VALUES = frozenset((int, float, bool, complex, str, bytes, type(None)))


def _fits_in_place(sample: Any) -> bool:
    """Whether a batch of such samples survives being written to shared memory unchanged: they consist of numbers,
    strings, and arrays and tensors that are nothing but their elements.
    """
    kind = type(sample)
    if kind in _VALUES or is_plain_array(sample):
        return True
    if kind in (list, tuple):
        return all(map(_fits_in_place, sample))
    if kind is dict:
        return all(type(key) in _VALUES for key in sample) and all(map(_fits_in_place, sample.values()))
    if is_tensor(sample):
        return leaves_slot_unchanged(sample)
    if is_namedtuple(sample):
        return _is_importable(kind) and all(map(_fits_in_place, sample))
    if is_dataclass(sample):
        return _is_importable(kind) and all(_fits_in_place(getattr(sample, name)) for name in field_names(sample))
    return False


def _is_importable(cls: type[Any]) -> bool:
    return getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls


def _has_tensor(batch: Any) -> bool:
    if "torch" not in sys.modules:
        return False
    if isinstance(batch, Ragged):
        return is_tensor(batch.values)
    if isinstance(batch, Mapping):
        return any(_has_tensor(batch[key]) for key in batch)
    if is_dataclass(batch):
        return any(_has_tensor(getattr(batch, name)) for name in field_names(batch))
    return any(map(_has_tensor, batch)) if is_sequence(batch) else is_tensor(batch)


def _as_tensor(value: Any) -> Any:
    return to_torch(value.dtype, None)(value) if isinstance(value, np.ndarray) and is_plain_array(value) else value


def _as_array(value: Any) -> Any:
    if not is_tensor(value) or not is_plain_tensor(value):
        return value
    array, form = array_of_tensor(value)
    convert = to_numpy(form)
    return array if convert is None else convert(array)


def _converted(batch: Any, leaf: Callable[[Any], Any]) -> Any:
    """Rebuilds the containers, with ``leaf`` applied to each value in them."""
    if isinstance(batch, Ragged):
        return dataclasses.replace(batch, values=leaf(batch.values), offsets=leaf(batch.offsets))
    if is_namedtuple(batch):
        return type(batch)(*(_converted(value, leaf) for value in batch))
    if isinstance(batch, Mapping):
        items = {key: _converted(batch[key], leaf) for key in batch}
        return make_mapping(type(batch), shell_of(batch), items)
    if is_dataclass(batch):
        items = {name: _converted(getattr(batch, name), leaf) for name in field_names(batch)}
        return make_dataclass(type(batch), items)
    if type(batch) is tuple:
        return tuple([_converted(value, leaf) for value in batch])
    if is_sequence(batch):
        return make_sequence(type(batch), shell_of(batch), [_converted(value, leaf) for value in batch])
    return leaf(batch)
