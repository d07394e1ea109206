"""Layers that give images and volumes another size."""

from __future__ import annotations

from typing import Any

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import (
    Ints,
    append_layer,
    as_integers,
    check_list,
    check_number,
    check_variable,
    declare_known,
    ints_argument,
)

__all__ = ["image_resize", "image_resize_short", "resize_bilinear", "resize_nearest", "resize_trilinear"]

#: How to resample → the operator, and the formats of data that it takes: channels first and last.
_KINDS = {
    "BILINEAR": ("bilinear_interp", ("NCHW", "NHWC")),
    "NEAREST": ("nearest_interp", ("NCHW", "NHWC")),
    "TRILINEAR": ("trilinear_interp", ("NCDHW", "NDHWC")),
}


def image_resize(
    input: Variable,
    out_shape: Ints | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    resample: str = "BILINEAR",
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """Images [N, C, H, W] or volumes [N, C, D, H, W] of another size.

    Args:
        out_shape: height and width of the result, or depth, height and width: numbers, each of which may be a variable,
            int32 or int64 [1]; or one variable, int32 [2] or [3].
        scale: alternatively a factor for them: a number, or a variable, float32 [1].
        resample: "BILINEAR": the weighted mean of the four nearest pixels; "NEAREST": the nearest one; "TRILINEAR", for
            volumes: the weighted mean of the eight nearest.
        actual_shape: as a variable for ``out_shape``, over which it has precedence.
        align_corners: let the corner pixels of both images coincide.
        align_mode: otherwise, unless "NEAREST": 0 lets the centers of pixels coincide, 1 their edges.
        data_format: "NHWC": of [N, H, W, C], as the result is then. For volumes "NCDHW" or "NDHWC".
    """
    if resample not in _KINDS:
        raise errors.InvalidArgument(f"layers.image_resize: resample must be one of {list(_KINDS)}, got {resample!r}")
    op_type, formats = _KINDS[resample]
    if data_format not in formats:
        raise errors.InvalidArgument(
            f"layers.image_resize: data_format has to be '{formats[0]}' or '{formats[1]}', got {data_format!r}"
        )
    dimensions = ["height", "width"] if resample != "TRILINEAR" else ["depth", "height", "width"]
    known: list[int] = []
    inputs: dict[str, Any] = {"X": check_variable(input, "input", "image_resize")}
    attrs: dict[str, Any] = {"align_corners": align_corners, "align_mode": align_mode, "data_layout": data_format}
    size = out_shape if actual_shape is None else actual_shape
    if isinstance(size, Variable):
        inputs["OutSize"] = as_integers(size)
    elif size is not None:
        size = check_list(size, "out_shape", "image_resize")
        if len(size) != len(dimensions):
            raise errors.InvalidArgument(
                f"layers.image_resize: out_shape must be {' and '.join(dimensions)}, got {list(size)}"
            )
        given, sizes = ints_argument(size, "out_shape", "image_resize", "size", "OutSize", "SizeTensor", 1)
        inputs |= given
        known = sizes["size"]
        attrs |= {f"out_{dimension[0]}": extent for dimension, extent in zip(dimensions, known)}
    elif isinstance(scale, Variable):
        inputs["Scale"] = scale
    elif scale is not None:
        attrs["scale"] = check_number(scale, "scale", "image_resize")
        if not attrs["scale"] > 0:
            raise errors.InvalidArgument(f"layers.image_resize: scale must be greater than 0, got {scale}")
    else:
        raise errors.InvalidArgument("layers.image_resize: out_shape or scale is needed")
    out = append_layer(op_type, inputs, attrs, name)
    if "SizeTensor" in inputs:
        declare_known(out, [-1, -1, *known] if data_format == formats[0] else [-1, *known, -1])
    return out


def image_resize_short(input: Variable, out_short_len: int, resample: str = "BILINEAR") -> Variable:
    """Images [N, C, H, W], of a known size, of which the shorter side becomes ``out_short_len``; the ratio stays."""
    dims = check_variable(input, "input", "image_resize_short").shape
    if len(dims) != 4 or min(dims[2:]) <= 0:
        raise errors.InvalidArgument(
            f"layers.image_resize_short: '{input.name}' has to be [N, C, H, W] with a known size, got {list(dims)}"
        )
    short = min(dims[2:])
    size = [out_short_len if extent == short else int(extent * (out_short_len / short) + 0.5) for extent in dims[2:]]
    return image_resize(input, size, resample=resample)


def resize_bilinear(
    input: Variable,
    out_shape: Ints | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCHW",
) -> Variable:
    """image_resize with weighted means."""
    return image_resize(input, out_shape, scale, name, "BILINEAR", actual_shape, align_corners, align_mode, data_format)


def resize_nearest(
    input: Variable,
    out_shape: Ints | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """image_resize with the nearest pixels."""
    return image_resize(input, out_shape, scale, name, "NEAREST", actual_shape, align_corners, data_format=data_format)


def resize_trilinear(
    input: Variable,
    out_shape: Ints | None = None,
    scale: float | Variable | None = None,
    name: str | None = None,
    actual_shape: Variable | None = None,
    align_corners: bool = True,
    align_mode: int = 1,
    data_format: str = "NCDHW",
) -> Variable:
    """image_resize of volumes, with weighted means."""
    return image_resize(
        input, out_shape, scale, name, "TRILINEAR", actual_shape, align_corners, align_mode, data_format
    )
