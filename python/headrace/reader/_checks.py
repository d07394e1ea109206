"""Checks of the arguments of readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace import errors


def check_readers(*readers: Any) -> None:
    for reader in readers:
        if not callable(reader):
            raise errors.TypeMismatch(
                f"a reader is a function that returns an iterable, got {type(reader).__name__}"
                + (": pass the function, without calling it" if isinstance(reader, Iterator) else "")
            )


def check_function(name: str, value: Any) -> None:
    if not callable(value):
        raise errors.TypeMismatch(f"{name} has to be a function, got {type(value).__name__}")


def check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise errors.InvalidArgument(f"{name} has to be a positive number, got {value!r}")
