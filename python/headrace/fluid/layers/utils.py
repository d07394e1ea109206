"""Fluid's helpers for structures of variables, and for numbers or lists of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace import errors
from headrace.fluid.layers.structure import check_same, flatten, map_structure
from headrace.fluid.layers.structure import pack as pack_sequence_as

__all__ = ["assert_same_structure", "convert_to_list", "flatten", "map_structure", "pack_sequence_as"]


def assert_same_structure(nest1: Any, nest2: Any, check_types: bool = True) -> None:
    """
    Args:
        check_types: whether sequences in the same place have to have the same type.

    Raises:
        InvalidArgument: the structures differ.
        TypeMismatch: they differ in the type of a sequence only.
    """
    check_same(nest1, nest2)
    if check_types:
        _check_types(nest1, nest2)


def _check_types(one: Any, other: Any) -> None:
    if not isinstance(one, (list, tuple, Mapping)):
        return
    if type(one) is not type(other):
        raise errors.TypeMismatch(
            f"structures of variables differ: a {type(one).__name__} of one is a {type(other).__name__} of the other"
        )
    keys = list(one) if isinstance(one, Mapping) else range(len(one))
    for key in keys:
        _check_types(one[key], other[key])


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
