"""Checks of arguments that several modules take. ``what`` is the argument, as errors name it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from headrace import errors

__all__ = [
    "check_function",
    "check_instance",
    "check_integer",
    "check_list",
    "check_number",
    "check_object",
    "check_optional",
    "check_pairs",
    "check_path",
]


def check_number(value: Any, what: str) -> float:
    """``value`` as a float. TypeMismatch unless it is a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise errors.TypeMismatch(f"{what} has to be a number, got {value!r:.80}") from None


def check_integer(value: Any, what: str) -> int:
    """``value``, which has to be a whole number, as an integer."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or (isinstance(value, (float, np.floating)) and number != value):
        raise errors.TypeMismatch(f"{what} has to be an integer, got {value!r:.80}")
    return number


def check_list(value: Any, what: str) -> list[Any]:
    """``value``, which has to be a list, a tuple or another iterable, but no string, as a list."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise errors.TypeMismatch(f"{what} has to be a list or tuple, got {value!r:.80}")
    return list(value)


def check_pairs(value: Any, what: str) -> list[tuple[Any, Any]]:
    """``value``, which has to be a list of (parameter, gradient) pairs, as a list."""
    pairs = check_list(value, what)
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise errors.TypeMismatch(f"{what} has to be a list of (parameter, gradient) pairs, got {pair!r:.80} in it")
    return pairs


def check_path(value: Any, what: str) -> str:
    """``value``, which has to be a path, as a string."""
    if not isinstance(value, (str, os.PathLike)):
        raise errors.TypeMismatch(f"{what} has to be a path, got {value!r:.80}")
    return os.fspath(value)


def check_function(value: Any, what: str) -> None:
    """TypeMismatch unless ``value`` can be called."""
    if not callable(value):
        hint = ": pass the function, without calling it" if isinstance(value, Iterator) else ""
        raise errors.TypeMismatch(f"{what} has to be a function, got {value!r:.80}{hint}")


def check_instance(value: Any, kind: type, what: str) -> Any:
    """``value``, which has to be an object of ``kind``."""
    if not isinstance(value, kind):
        raise errors.TypeMismatch(f"{what} has to be a {kind.__name__}, got {type(value).__name__}")
    return value


def check_optional(value: Any, kind: type, what: str) -> Any:
    """``value``, which has to be an object of ``kind``, or None."""
    return None if value is None else check_instance(value, kind, what)


def check_object(value: Any, base: type, example: str, what: str) -> None:
    """TypeMismatch unless ``value`` is None, an object of ``base``, or another object that can be called, such as a
    function. A class can be called, too, but its parentheses have been forgotten.

    Args:
        example: of an object of ``base``.
    """
    if isinstance(value, type) and issubclass(value, base):
        raise errors.TypeMismatch(f"{what} is the class {value.__name__}: create an object, {value.__name__}(…)")
    if isinstance(value, type) or not (value is None or callable(value)):
        raise errors.TypeMismatch(f"{what} must be an object such as {example}, got {value!r}")
