"""Arguments of layers with windows that slide over images or volumes: extents, paddings and formats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Union

import numpy as np

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import check_variable

__all__ = [
    "Padding",
    "Size",
    "check_filters",
    "check_format",
    "check_images",
    "filter_extents",
    "padding_attrs",
    "window_extents",
]

#: Height and width, or depth, height and width; a number stands for all of them.
Size = Union[int, Sequence[int]]

#: What lies around an image or a volume: as Size; before and after each dimension; a pair for each dimension of the
#: layout; or "SAME", as much as makes the result as large as the input by strides (dilations are ignored), or "VALID".
Padding = Union[int, str, Sequence[Union[int, Sequence[int]]]]

#: By the number of dimensions of a window, the formats with the channels first and last.
_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
_NAMES = {2: "a height and a width", 3: "a depth, a height and a width"}


def window_extents(value: Size, what: str, dimensions: int = 2) -> list[int]:
    extents = [value] if isinstance(value, int) else list(value) if isinstance(value, (list, tuple)) else []
    for extent in extents or [value]:
        if not isinstance(extent, (int, np.integer)):
            raise errors.TypeMismatch(f"{what} has to be a number or {_NAMES[dimensions]}, got {value!r}")
    if len(extents) == 1:
        extents = extents * dimensions
    if len(extents) != dimensions:
        raise errors.InvalidArgument(f"{what} has {_NAMES[dimensions]}, got {value!r}")
    return extents


def check_format(data_format: str, layer: str, dimensions: int) -> bool:
    """Whether the channels come last."""
    first, last = _FORMATS[dimensions]
    if data_format not in (first, last):
        raise errors.InvalidArgument(
            f"layers.{layer}: data_format has to be {first!r} or {last!r}, got {data_format!r}"
        )
    return bool(data_format == last)


def _layout(dimensions: int, channels_last: bool) -> str:
    return f"[{', '.join(_FORMATS[dimensions][channels_last])}]"


def padding_attrs(value: Padding, what: str, dimensions: int, channels_last: bool) -> dict[str, Any]:
    if isinstance(value, str):
        if value.upper() not in ("SAME", "VALID"):
            raise errors.InvalidArgument(f"{what} is 'SAME', 'VALID' or numbers, got {value!r}")
        return {"paddings": [0] * dimensions, "padding_algorithm": value.upper()}
    if not isinstance(value, (int, Iterable)):
        raise errors.TypeMismatch(f"{what} is 'SAME', 'VALID' or numbers, got {value!r}")
    numbers: list[Any] = []
    for border in [value] if isinstance(value, int) else value:
        if isinstance(border, int):
            numbers.append(border)
        elif isinstance(border, Iterable):
            numbers += border
        else:
            raise errors.TypeMismatch(f"{what} is 'SAME', 'VALID' or numbers, got {value!r}")
    if not isinstance(value, int) and any(not isinstance(border, int) for border in value):
        inner = numbers[2:-2] if channels_last else numbers[4:]
        others = numbers[:2] + numbers[-2:] if channels_last else numbers[:4]
        if len(value) != 2 + dimensions or len(numbers) != 2 * len(value) or any(others):
            raise errors.InvalidArgument(
                f"{what}: expected a pair for each dimension of {_layout(dimensions, channels_last)}, [0, 0] for N and"
                f" C, got {value!r}"
            )
        numbers = inner
    borders = numbers if len(numbers) == 2 * dimensions else window_extents(numbers, what, dimensions)
    return {"paddings": borders, "padding_algorithm": "EXPLICIT"}


def filter_extents(value: Size, layer: str, dimensions: int) -> list[int]:
    kernel = window_extents(value, f"layers.{layer}: filter_size", dimensions)
    if min(kernel) <= 0:
        raise errors.InvalidArgument(f"layers.{layer}: filter_size must be positive, got {value!r}")
    return kernel


def check_filters(num_filters: int, layer: str) -> None:
    if not isinstance(num_filters, (int, np.integer)):
        raise errors.TypeMismatch(f"layers.{layer}: num_filters has to be a number, got {num_filters!r}")
    if num_filters <= 0:
        raise errors.InvalidArgument(f"layers.{layer}: num_filters must be positive, got {num_filters}")


def check_images(input: Variable, layer: str, dimensions: int, channels_last: bool) -> tuple[int, list[int]]:
    """The channels of ``input``, which have to be known, and the extents of its other dimensions without the first."""
    dims = list(check_variable(input, "input", layer).shape)
    channels = dims.pop(-1 if channels_last else 1) if len(dims) == 2 + dimensions else -1
    if channels <= 0:
        raise errors.InvalidArgument(
            f"layers.{layer}: '{input.name}' has to be {_layout(dimensions, channels_last)} with a known C, got "
            f"{list(input.shape)}"
        )
    return channels, dims[1:]
