"""Fluid's helpers for structures of variables, and for numbers or lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace import errors
from headrace.fluid.layers.structure import flatten, map_structure
from headrace.fluid.layers.structure import pack as pack_sequence_as

__all__ = ["convert_to_list", "flatten", "map_structure", "pack_sequence_as"]


def convert_to_list(value: Any, n: int, name: str, dtype: type = int) -> list[Any]:
    """``value`` n times, or its n items.

    Args:
        name: its name in the error.

    Raises:
        InvalidArgument: there are not n of them, or they are no ``dtype``.
    """
    items = list(value) if isinstance(value, Sequence) else [value] * n
    try:
        if len(items) != n:
            raise ValueError
        return [dtype(item) for item in items]
    except (TypeError, ValueError):
        raise errors.InvalidArgument(f"{name} has to be {n} of {dtype.__name__}, got {value!r}") from None
