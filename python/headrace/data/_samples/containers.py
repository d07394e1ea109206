"""The containers that samples and batches consist of: what counts as one, and how one is made again."""

from __future__ import annotations

import collections
import copy
import copyreg
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.data._samples.batch_tree import dumps_tree

# Sequences whose elements are sequences of the same kind.
_TEXTS = (str, bytes, collections.UserString)


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_sequence(value: Any) -> bool:
    """Whether ``value`` is a sequence that is collated element by element."""
    if type(value) in (list, tuple):  # asking an abstract class takes much longer
        return True
    return isinstance(value, Sequence) and not isinstance(value, (*_TEXTS, bytearray, memoryview))


def is_mapping(value: Any) -> bool:
    """Whether ``value`` is a mapping that is collated value by value."""
    return type(value) is dict or (isinstance(value, Mapping) and not _is_like_tensor(value))


def is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and not _is_like_tensor(value)


def _is_like_tensor(value: Any) -> bool:
    """Whether torch's functions take a container for a tensor, as they do a TensorDict. Such a one iterates over its
    rows, and is more than its values: it counts as an object.
    """
    return hasattr(type(value), "__torch_function__")


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


def is_other_array(value: Any) -> bool:
    """Whether ``value`` is an array of another library than NumPy and torch that follows the array API standard, with a
    NumPy dtype: one of JAX, say. Collation makes a NumPy array of it.

    A pandas Series is none: it has more than its elements, and batches hold it in a list.
    """
    if not hasattr(type(value), "__array_namespace__") or isinstance(value, (np.ndarray, np.generic)):
        return False
    return hasattr(type(value), "__array__") and isinstance(getattr(value, "dtype", None), np.dtype)


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
        dumps_tree((function, arguments, state))
    except Exception:
        return None
    return function, arguments, state


def may_have_shell(cls: type[Any]) -> bool:
    """Whether :func:`shell_of` may find more in one instance of a list or dict than in another: attributes."""
    if not issubclass(cls, (list, dict)) or cls in (list, dict, collections.OrderedDict):
        return False
    return cls.__dictoffset__ != 0 or bool(copyreg._slotnames(cls))  # type: ignore[attr-defined]


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


def parts_of(value: Any) -> list[Any] | None:
    """The values of a mapping, the fields of a dataclass's instance, the elements of a sequence; None for what is no
    container.
    """
    cls = type(value)
    if cls is list or cls is tuple:  # asking abstract classes takes much longer
        return list(value)
    if cls is dict:
        return list(value.values())
    if is_mapping(value):
        return [value[key] for key in value]
    if is_dataclass(value):
        return [getattr(value, name) for name in field_names(value)]
    return list(value) if is_sequence(value) else None


def circle_in(value: Any) -> str | None:
    """Where in a container one is that contains itself, such as ``[2]['key'].field``; None: there is none."""
    path: list[Any] = []
    names = [""]
    done: dict[int, Any] = {}  # which keeps their ids
    left = [iter([("", value)])]
    while left and len(left) < sys.getrecursionlimit():
        for name, part in left[-1]:
            if any(part is each for each in path):
                return "".join(names) + name
            parts = None if id(part) in done else parts_of(part)
            if parts is not None:
                path.append(part)
                names.append(name)
                left.append(iter(list(zip(_names_of_parts(part), parts))))
                break
        else:
            left.pop()
            names.pop()
            if path:
                part = path.pop()
                done[id(part)] = part
    return None


def _names_of_parts(value: Any) -> list[str]:
    """How to get at the parts that :func:`parts_of` gives."""
    if is_mapping(value):
        return [f"[{key!r}]" for key in value]
    if is_dataclass(value):
        return [f".{name}" for name in field_names(value)]
    return [f"[{i}]" for i in range(len(value))]


def with_parts(value: Any, parts: list[Any]) -> Any:
    """A copy of a container, its attributes included, with other parts than :func:`parts_of` gives; a list or dict of
    them, if its type cannot be instantiated.
    """
    if is_mapping(value):
        return _like_mapping(value, dict(zip(value, parts)))
    if isinstance(value, tuple):
        return tuple(parts) if type(value) is tuple else _like_tuple(value, parts)
    if is_dataclass(value):
        made = copy.copy(value)
        for name, part in zip(field_names(value), parts):
            object.__setattr__(made, name, part)
        return made
    return make_sequence(type(value), shell_of(value), parts)


def _like_tuple(value: tuple[Any, ...], parts: list[Any]) -> Any:
    """As :func:`with_parts`, whatever the ``__new__`` of its class takes."""
    try:
        made = tuple.__new__(type(value), parts)
    except TypeError:  # a class of C's, such as torch.Size
        return make_sequence(type(value), None, parts)
    if hasattr(made, "__dict__"):
        made.__dict__.update(value.__dict__)
    return made


def _like_mapping(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    if not isinstance(value, (dict, collections.UserDict, collections.ChainMap)):
        # A copy may share with the original what holds the items.
        return make_mapping(type(value), shell_of(value), items)
    try:
        made: Any = copy.copy(value)
        for key, item in items.items():
            made[key] = item
        return made
    except Exception:  # it is read-only
        return make_mapping(type(value), shell_of(value), items)


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
