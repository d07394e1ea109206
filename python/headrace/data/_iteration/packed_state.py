"""Packs what varies in a loader's state into one value, so that a state has the same keys and structure always."""

from __future__ import annotations

import json
from typing import Any

# Marks a tuple, which JSON does not know.
_TUPLE = "headrace.tuple"


def pack(values: dict[str, Any]) -> str | tuple[dict[str, Any]]:
    """The values as JSON text; where JSON cannot hold one of them exactly, a tuple of them as they are.

    Checkpoints that take states apart, such as torch's distributed ones, fill in the values of the loader's current
    state: they would lose keys that a nested dict does not have at that time. They keep strings and tuples whole.
    """
    try:
        return json.dumps(_plain(values), separators=(",", ":"))
    except (_NotPlain, RecursionError, ValueError):  # an integer may have too many digits for a text
        return (values,)


def unpack(packed: Any) -> dict[str, Any]:
    """The values that :func:`pack` was given.

    Raises:
        TypeError: it gives other types.
        ValueError: a text is not one that it gives.
    """
    if isinstance(packed, str):
        try:
            values = json.loads(packed, object_hook=_object)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"details of the state cannot be read: {error}") from None
    elif isinstance(packed, (list, tuple)) and len(packed) == 1:
        values = packed[0]
    else:
        raise TypeError(f"details of the state must be a text, got {packed!r:.200}")
    if not isinstance(values, dict):
        raise TypeError(f"details of the state must hold a dict, got {values!r:.200}")
    return values


class _NotPlain(Exception):
    """JSON would give another value back."""


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_plain(item) for item in value]
    if kind is tuple:
        return {_TUPLE: [_plain(item) for item in value]}
    if kind is dict and _TUPLE not in value and all(type(key) is str for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise _NotPlain


def _object(value: dict[str, Any]) -> Any:
    return tuple(value[_TUPLE]) if list(value) == [_TUPLE] and isinstance(value[_TUPLE], list) else value
