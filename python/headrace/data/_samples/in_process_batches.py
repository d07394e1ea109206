"""Batches that bypass shared memory: without workers, the consumer gets the result of the collate function
unchanged.
"""

from __future__ import annotations

import copy
import operator
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.data._samples.containers import (
    field_names,
    is_dataclass,
    is_mapping,
    is_namedtuple,
    is_plain_array,
    parts_of,
    with_parts,
)
from headrace.data._samples.describe import Description, describe, describe_whole
from headrace.data._samples.device_copies import DeviceCopies
from headrace.data._samples.flatten import Flattener
from headrace.data._samples.private_copies import own_copies
from headrace.data._samples.rebuild import Build
from headrace.data._samples.tensors import (
    array_of_tensor,
    is_plain_tensor,
    is_tensor,
    leaves_slot_unchanged,
    to_numpy,
    to_torch,
    with_torch_strides,
)


class _HandedOver:
    """A mapping key that no sample has."""


# Written to a slot in place of a batch that is handed over. It has no leaves, which would have to be pickled.
_PLACEHOLDER = Flattener().collated({_HandedOver: {}})


class HandOver:
    """Holds the current batch for a consumer in the same process. Not thread-safe.

    Args:
        to: the type of the arrays and tensors of a batch, as for :func:`decode_tree`.
        device: copies tensors to a device; None: they stay where they are.

    Attributes:
        batch: the batch that the placeholder represents; None once the consumer has it.
    """

    def __init__(self, to: str | None, device: DeviceCopies | None) -> None:
        self._to = to
        self._device = device
        self.batch: Any = None

    def put(self, holder: list[Any], is_new: bool = False) -> tuple[bytes, list[Any]]:
        """Holds a batch for the consumer, and returns a substitute to write to the slot.

        It becomes the consumer's: arrays that may be the dataset's as well are copied, and so are read-only ones.

        Args:
            holder: has the batch, and the only reference to it that is not the user's.
            is_new: its memory is known to have no other owner.
        """
        shared = not is_new and _is_shared(holder, 0)
        batch = holder.pop()
        if shared:
            copies = own_copies(batch)
            batch = _converted(batch, lambda value: copies.get(id(value), (value, value))[1])
        to = self._to
        if to is None and "torch" in sys.modules:
            kinds: set[type] = set()
            _add_kinds(batch, kinds, {})
            to = "torch" if len(kinds) == 2 else None  # arrays and tensors
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

        return lambda tree: (take, []) if tree == _PLACEHOLDER[0] else decode(tree)


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


_CONTAINER = [object()]
# What it is of an object that only its container refers to.
_ONE_REFERENCE = sys.getrefcount(_CONTAINER[0])


def _is_shared(container: Any, key: Any, alone: bool = True) -> bool:
    """Whether an array or tensor in ``container[key]`` may have other owners, or is read-only.

    Args:
        alone: nobody else has the container.
    """
    alone = alone and sys.getrefcount(container[key]) == _ONE_REFERENCE
    value = container[key]
    kind = type(value)
    if kind in _VALUES:
        return False
    if isinstance(value, np.ndarray):
        return not (alone and value.flags.writeable and _owns_memory(value))
    if not alone:  # such as what contains itself
        return _has_arrays(value, set())
    if kind is dict or kind is list or kind is tuple:
        if not _VALUES.issuperset(map(type, value.values() if kind is dict else value)):
            for each in value if kind is dict else range(len(value)):
                if _is_shared(value, each):
                    return True
        return False
    if is_tensor(value):
        # What would not leave a slot unchanged is handed over as it is.
        return not (kind is sys.modules["torch"].Tensor and _owns_storage(value)) and leaves_slot_unchanged(value)
    return parts_of(value) is not None


def _has_arrays(value: Any, seen: set[int]) -> bool:
    """Whether there may be an array or tensor in a value that others have, too."""
    kind = type(value)
    if kind in _VALUES or id(value) in seen:
        return False
    if isinstance(value, np.ndarray):
        return True
    if kind is dict or kind is list or kind is tuple:
        seen.add(id(value))
        return any(_has_arrays(part, seen) for part in (value.values() if kind is dict else value))
    return leaves_slot_unchanged(value) if is_tensor(value) else parts_of(value) is not None


def _owns_memory(array: Any) -> bool:
    """Whether only the array refers to its memory."""
    chain = [array]
    while (base := chain[-1].base) is not None:
        del base
        chain.append(None)
        chain[-1] = chain[-2].base
        # The references are the array's whose base it is, and the list's.
        if not isinstance(chain[-1], np.ndarray) or sys.getrefcount(chain[-1]) != _ONE_REFERENCE + 1:
            return False
    return bool(chain[-1].flags.owndata)


def _owns_storage(tensor: Any) -> bool:
    """Whether only the tensor refers to its memory."""
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        return False
    use_count = getattr(torch._C, "_storage_Use_Count", None)
    storage = tensor.untyped_storage()
    # Memory that torch has not allocated, such as NumPy's, cannot be resized. The references are the tensor's and ours.
    return use_count is not None and storage.resizable() and use_count(storage._cdata) == 2


def _add_kinds(batch: Any, kinds: set[type], seen: dict[int, Any]) -> None:
    """Adds torch.Tensor if there is a tensor in the batch, and np.ndarray if there is an array."""
    if isinstance(batch, np.ndarray):
        kinds.add(np.ndarray)
    elif is_tensor(batch):
        kinds.add(sys.modules["torch"].Tensor)
    elif id(batch) not in seen:
        parts = parts_of(batch)
        if parts is not None and not _VALUES.issuperset(map(type, parts)):
            seen[id(batch)] = batch  # which keeps its id
            for part in parts:
                _add_kinds(part, kinds, seen)


def _as_tensor(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or not is_plain_array(value):
        return value
    return to_torch(value.dtype, None)(with_torch_strides(value))


def _as_array(value: Any) -> Any:
    if not is_tensor(value) or not is_plain_tensor(value):
        return value
    array, form = array_of_tensor(value)
    convert = to_numpy(form)
    return array if convert is None else convert(array)


class _CircleError(Exception):
    """A container is within itself."""


_OPEN = object()


def _converted(batch: Any, leaf: Callable[[Any], Any]) -> Any:
    """Applies ``leaf`` to each value in the containers, and rebuilds those in which that has changed one. What is there
    twice stays one.
    """
    done: dict[int, tuple[Any, Any]] = {}
    try:
        return _converted_part(batch, leaf, done)
    except _CircleError:
        return _converted_circle(batch, leaf)


def _converted_part(batch: Any, leaf: Callable[[Any], Any], done: dict[int, tuple[Any, Any]]) -> Any:
    """Does so with a part of a batch.

    Args:
        done: what is in the batch, by its ``id``, and what became of it; ``_OPEN``: its parts are in progress.

    Raises:
        _CircleError: it contains something that contains itself.
    """
    if id(batch) not in done:
        parts = parts_of(batch)
        if parts is None:
            made = leaf(batch)
        else:
            done[id(batch)] = batch, _OPEN
            converted = [_converted_part(part, leaf, done) for part in parts]
            made = batch if all(map(operator.is_, parts, converted)) else _rebuilt(batch, converted)
        done[id(batch)] = batch, made
    made = done[id(batch)][1]
    if made is _OPEN:
        raise _CircleError
    return made


def _converted_circle(batch: Any, leaf: Callable[[Any], Any]) -> Any:
    """The same, of one that contains itself: all containers are copied if there is something to convert."""
    made: dict[int, Any] = {}
    values: list[Any] = []  # which keep their ids
    left, seen = [batch], set()
    while left:
        value = left.pop()
        if id(value) not in seen:
            seen.add(id(value))
            parts = parts_of(value)
            values.append(value)
            if parts is None:
                made[id(value)] = leaf(value)
            else:
                left += parts
                made.update((id(key), key) for key in (value if is_mapping(value) else ()))
    if all(made.get(id(value), value) is value for value in values):
        return batch
    return copy.deepcopy(batch, made)


def _rebuilt(container: Any, parts: list[Any]) -> Any:
    """A container like the given one with these parts; the given one, if its type makes something else of them."""
    made = with_parts(container, parts)
    if type(container) in (list, tuple, dict):
        return made
    held = parts_of(made) if type(made) is type(container) else None
    return made if held is not None and len(held) == len(parts) and all(map(operator.is_, held, parts)) else container
