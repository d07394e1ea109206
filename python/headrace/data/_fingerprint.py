"""Whether what workers were given when they started still is what the main process has, and what has changed."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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

    __slots__ = ("object",)

    def __init__(self, value: Any) -> None:
        self.object = value

    def __eq__(self, other: Any) -> bool:
        return type(other) is _Itself and other.object is self.object

    __hash__ = None  # type: ignore[assignment]


# The way from a tuple of roots to a part of one of them: its number, then attributes and items.
Path = tuple["Step", ...]


class Step(NamedTuple):
    """To an attribute, or to an item of a list, dict or tuple."""

    key: Any
    attribute: bool = False


class Change(NamedTuple):
    """What is at a path now.

    Attributes:
        removed: nothing is.
    """

    path: Path
    value: Any
    removed: bool = False

    def apply(self, roots: tuple[Any, ...]) -> None:
        """Changes the part of other roots. Raises what the lookup raises if they differ too much for that."""
        container, step = resolve(roots, self.path[:-1]), self.path[-1]
        items = container.__dict__ if step.attribute else container
        if self.removed:
            items.pop(step.key, None)
        else:
            items[step.key] = self.value


def resolve(roots: tuple[Any, ...], path: Path) -> Any:
    """The part at a path."""
    part: Any = roots
    for step in path:
        part = part.__dict__[step.key] if step.attribute else part[step.key]
    return part


@dataclasses.dataclass
class Difference:
    """What has changed between two fingerprints of some roots.

    Attributes:
        changes: which, applied to the roots as they were, make them as they are.
        kept: by id, the paths of objects that were and still are there: those that contain changes, and the parts of
            these that have not changed.
        known: the ids of the classes, and of the code of the functions, that were there.
    """

    changes: list[Change] = dataclasses.field(default_factory=list)
    kept: dict[int, Path] = dataclasses.field(default_factory=dict)
    known: set[int] = dataclasses.field(default_factory=set)

    @property
    def of_roots(self) -> bool:
        """Whether a root itself is another."""
        return any(len(change.path) == 1 for change in self.changes)


def difference(roots: tuple[Any, ...], before: tuple[Any, ...], after: tuple[Any, ...]) -> Difference:
    """What has changed in the roots between their fingerprints before, and those that they have now."""
    found = Difference(known=set(_known(before)))
    for number, value in enumerate(roots):
        _find(value, before[number], after[number], (Step(number),), found)
    return found


def _find(value: Any, before: Any, after: Any, path: Path, found: Difference) -> None:
    if before == after:
        if before is not None and type(value) not in _VALUES:
            found.kept.setdefault(id(value), path)
        return
    parts = _common_parts(value, before, after)
    if parts is None:
        found.changes.append(Change(path, value))
        return
    found.kept.setdefault(id(value), path)
    old, new, attribute, contents = parts
    for key in old.keys() - new.keys():
        found.changes.append(Change((*path, Step(key, attribute)), None, True))
    for key, part in new.items():
        inner = (*path, Step(key, attribute))
        if key in old:
            _find(contents[key], old[key], part, inner, found)
        else:
            found.changes.append(Change(inner, contents[key]))


def _common_parts(value: Any, before: Any, after: Any) -> tuple[dict[Any, Any], dict[Any, Any], bool, Any] | None:
    """Of something that is still the same container: fingerprints of its parts before and after, by key; whether they
    are attributes; and the parts. None: it has to be replaced as a whole.
    """
    if type(value) is list and _is_of_list(before) and _is_of_list(after) and len(before[1]) == len(after[1]):
        return dict(enumerate(before[1])), dict(enumerate(after[1])), False, value
    attribute = type(value) is not dict
    if attribute:
        if not (_is_of_attributes(before) and _is_of_attributes(after)):
            return None
        if before[0] != after[0] or before[2] != after[2]:
            return None
        before, after = before[1], after[1]
    elif type(before) is not list or type(after) is not list:
        return None
    old, new = _by_key(before), _by_key(after)
    if old is None or new is None:
        return None
    return old, new, attribute, value.__dict__ if attribute else value


def _is_of_list(found: Any) -> bool:
    """Whether it is the fingerprint of a list, with those of its items."""
    return type(found) is tuple and found[0] is list and type(found[1]) is list


def _is_of_attributes(found: Any) -> bool:
    """Whether it is the fingerprint of an object with attributes."""
    return type(found) is tuple and len(found) == 3 and type(found[0]) is _Itself and type(found[1]) is list


def _by_key(items: list[tuple[Any, Any]]) -> dict[Any, Any] | None:
    """The fingerprints of a dict's items by key; None where a key is more than a number or a string."""
    if any(key is None or key[0] not in (str, int) for key, _ in items):
        return None
    return {key[1]: part for key, part in items}


def _known(found: Any) -> Iterator[int]:
    """The ids of the classes and code that a fingerprint refers to."""
    if type(found) is _Itself:
        if isinstance(found.object, (type, types.CodeType)):
            yield id(found.object)
    elif type(found) in (list, tuple):
        for part in found:
            yield from _known(part)


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
        if id(value) in self._under_way:
            return None
        if self._left < 0:
            return _Itself(value)
        if isinstance(value, np.ndarray):
            small = value.nbytes <= _MAX_BYTES and not value.dtype.hasobject
            return value.tobytes() if small else _Itself(value), value.shape, value.strides, value.dtype.str
        if is_tensor(value):
            return _Itself(value), None if value.is_inference() else value._version, _bytes_of_small(value)
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
        if isinstance(value, functools.partial):
            return "partial", _Itself(kind), self.visit((value.func, value.args, value.keywords))
        attributes = getattr(value, "__dict__", None)
        slots = _slots(value)
        if slots:
            return "slots", _Itself(kind), self._visit_items(slots), self.visit(attributes)
        if type(attributes) is not dict or not attributes:
            # Nothing in sight that could change; or a container, which may have slots or be written in C.
            length = len(value) if isinstance(value, (list, dict, Mapping)) else None
            return _Itself(value), length
        items = self.visit(list(value.items())) if isinstance(value, dict) and len(value) <= _MAX_ITEMS else None
        return _Itself(kind), self._visit_items(attributes), items

    def _visit_items(self, items: dict[Any, Any]) -> Any:
        return [(self.visit(key), self.visit(item)) for key, item in items.items()]


def _slots(value: Any) -> dict[str, Any]:
    """What an object holds in places that its classes list in ``__slots__``, rather than in a dict."""
    found = {}
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{kind.__name__.lstrip('_')}{name}"
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _bytes_of_small(tensor: Any) -> bytes | None:
    """The elements of a small tensor: if it shares them with an array, its version does not say when that changes."""
    try:
        if tensor.numel() * tensor.element_size() > _MAX_BYTES or tensor.device.type != "cpu":
            return None
        return bytes(tensor.detach().numpy().tobytes())
    except (RuntimeError, TypeError):  # it is no array
        return None


def _closure(function: types.FunctionType) -> list[Any]:
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:  # not bound yet
            contents.append(None)
    return contents
