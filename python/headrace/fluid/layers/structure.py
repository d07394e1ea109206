"""Structures of variables: lists, tuples, named tuples and dicts, in any depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace import errors

__all__ = ["check_same", "flatten", "map_structure", "pack"]

#: Decides whether an object is one item although it is a list, or a list although it is not.
IsItem = Callable[[Any], bool]


def _is_item(value: Any) -> bool:
    return not isinstance(value, (list, tuple, Mapping))


def flatten(value: Any, is_item: IsItem = _is_item) -> list[Any]:
    """The items of a structure, in their order; those of a dict in the order of its keys."""
    if is_item(value):
        return [value]
    parts = [value[key] for key in sorted(value)] if isinstance(value, Mapping) else value
    return [item for part in parts for item in flatten(part, is_item)]


def pack(like: Any, items: list[Any], is_item: IsItem = _is_item) -> Any:
    """A structure as ``like`` with other items."""
    left = iter(items)
    return _filled(like, left, is_item)


def _filled(like: Any, left: Iterator[Any], is_item: IsItem) -> Any:
    if is_item(like):
        return next(left)
    if isinstance(like, Mapping):
        made = {key: _filled(like[key], left, is_item) for key in sorted(like)}
        return {key: made[key] for key in like}
    parts = [_filled(part, left, is_item) for part in like]
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def map_structure(function: Callable[..., Any], *structures: Any, is_item: IsItem = _is_item) -> Any:
    """A structure of the results of ``function`` for the items of equal structures.

    Raises:
        InvalidArgument: they are not.
    """
    first, *others = structures
    flat = [flatten(first, is_item)]
    for other in others:
        flat.append(flatten(other, is_item))
        check_same(first, other, is_item)
    return pack(first, [function(*items) for items in zip(*flat)], is_item)


def check_same(one: Any, other: Any, is_item: IsItem = _is_item) -> None:
    """
    Raises:
        InvalidArgument: the structures differ; lists and tuples are alike.
    """
    if _shape(one, is_item) != _shape(other, is_item):
        raise errors.InvalidArgument(
            f"structures of variables differ: {_shown(one, is_item)} and {_shown(other, is_item)}"
        )


def _shape(value: Any, is_item: IsItem) -> Any:
    if is_item(value):
        return None
    if isinstance(value, Mapping):
        return [(key, _shape(value[key], is_item)) for key in sorted(value)]
    return [_shape(part, is_item) for part in value]


def _shown(value: Any, is_item: IsItem) -> str:
    if is_item(value):
        return "a variable"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(value[key], is_item)}" for key in sorted(value)) + "}"
    return "[" + ", ".join(_shown(part, is_item) for part in value) + "]"
