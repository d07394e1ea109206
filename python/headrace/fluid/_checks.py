"""Checks of arguments that several modules take."""

from __future__ import annotations

from typing import Any

from headrace import errors

__all__ = ["check_number", "check_object"]


def check_number(value: Any, what: str) -> float:
    """``value`` as a float. TypeMismatch unless it is a number; ``what`` is the argument, as errors name it."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise errors.TypeMismatch(f"{what} has to be a number, got {value!r:.80}") from None


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
