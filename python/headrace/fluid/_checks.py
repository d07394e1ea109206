"""Checks of arguments that several modules take, and words for their errors."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from headrace import errors

__all__ = ["check_object", "counted"]


def counted(number: int | Sized, noun: str) -> str:
    """How many there are: "1 level", "2 levels"."""
    number = number if isinstance(number, int) else len(number)
    return f"{number} {noun}{'' if number == 1 else 's'}"


def check_object(value: Any, base: type, example: str, what: str) -> None:
    """TypeMismatch unless ``value`` is None, an object of ``base``, or another object that can be called, such as a
    function. A class can be called, too, but its parentheses have been forgotten.

    Args:
        example: of an object of ``base``.
        what: the argument, as errors name it.
    """
    if isinstance(value, type) and issubclass(value, base):
        raise errors.TypeMismatch(f"{what} is the class {value.__name__}: create an object, {value.__name__}(…)")
    if isinstance(value, type) or not (value is None or callable(value)):
        raise errors.TypeMismatch(f"{what} must be an object such as {example}, got {value!r}")
