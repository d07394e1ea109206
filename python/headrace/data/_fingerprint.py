"""Whether what workers were given when they started still is what the main process has."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.data._tensors import is_tensor

_VALUES = frozenset((int, float, complex, bool, str, bytes, type(None), range, np.dtype))
# Larger arrays, and longer containers, are what they are and as long as they are.
_MAX_BYTES = 1 << 16
_MAX_ITEMS = 1000
# Of one fingerprint in all.
_MAX_PARTS = 20_000


class _Itself:
    """An object that equals itself alone. Kept, so that no other one can take its address."""

    __slots__ = ("_object",)

    def __init__(self, value: Any) -> None:
        self._object = value

    def __eq__(self, other: Any) -> bool:
        return type(other) is _Itself and other._object is self._object

    __hash__ = None  # type: ignore[assignment]


def fingerprint(value: Any) -> Any:
    """What equals an earlier fingerprint if ``value`` has not changed since, as far as can be told at little cost.

    Seen are changes of attributes, of what short lists, dicts and sets hold, of small arrays, and of tensors; through
    objects of Python classes and functions' closures, at any depth. Not seen are changes within large arrays, long
    containers and objects that are not Python's own.
    """
    return _Walk().visit(value)


class _Walk:
    def __init__(self) -> None:
        self._left = _MAX_PARTS
        self._under_way: set[int] = set()

    def visit(self, value: Any) -> Any:
        kind = type(value)
        if kind in _VALUES:
            return kind, value if value == value else "nan"
        self._left -= 1
        if self._left < 0 or id(value) in self._under_way:
            return None
        if isinstance(value, np.ndarray):
            small = value.nbytes <= _MAX_BYTES and not value.dtype.hasobject
            return value.tobytes() if small else _Itself(value), value.shape, value.strides, value.dtype.str
        if is_tensor(value):
            return _Itself(value), None if value.is_inference() else value._version
        self._under_way.add(id(value))
        try:
            return self._visit_parts(kind, value)
        finally:
            self._under_way.discard(id(value))

    def _visit_parts(self, kind: type[Any], value: Any) -> Any:
        if kind in (list, tuple, dict, set, frozenset) and len(value) > _MAX_ITEMS:
            return _Itself(value), len(value)
        if kind in (list, tuple):
            return kind, [self.visit(item) for item in value]
        if kind is dict:
            return self._visit_items(value)
        if kind in (set, frozenset):
            return kind, frozenset(map(repr, value))
        if isinstance(value, (type, types.ModuleType)):
            return _Itself(value)
        if isinstance(value, types.FunctionType):
            return _Itself(value.__code__), self.visit(value.__defaults__), self.visit(_closure(value))
        if isinstance(value, types.MethodType):
            return _Itself(value.__func__), self.visit(value.__self__)
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is not dict or not attributes:
            # Nothing in sight that could change; or a container, which may have slots or be written in C.
            length = len(value) if isinstance(value, (list, dict, Mapping)) else None
            return _Itself(value), length
        items = self.visit(list(value.items())) if isinstance(value, dict) and len(value) <= _MAX_ITEMS else None
        return _Itself(kind), self._visit_items(attributes), items

    def _visit_items(self, items: dict[Any, Any]) -> Any:
        return [(self.visit(key), self.visit(item)) for key, item in items.items()]


def _closure(function: types.FunctionType) -> list[Any]:
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # not bound yet
            contents.append(None)
    return contents
