"""Layers of images [N, C, H, W]: their channels and their patches."""

from __future__ import annotations

import numpy as np

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import (
    LayerHelper,
    append_layer,
    check_integer,
    check_number,
    check_shape,
    check_variable,
)
from headrace.fluid.layers.windows import Size, window_extents

__all__ = [
    "affine_channel",
    "fsp_matrix",
    "im2sequence",
    "lrn",
    "maxout",
    "pixel_shuffle",
    "shuffle_channel",
    "temporal_shift",
    "unfold",
]


def lrn(
    input: Variable,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """input / (k + alpha · Σ input²)^beta, the sum over ``n`` channels around each pixel's (Krizhevsky et al., 2012).

    Args:
        input: [N, C, H, W]; with ``data_format`` "NHWC", [N, H, W, C].
    """
    attrs = {
        "n": n,
        "k": check_number(k, "k", "lrn"),
        "alpha": check_number(alpha, "alpha", "lrn"),
        "beta": check_number(beta, "beta", "lrn"),
        "data_format": data_format,
    }
    return append_layer("lrn", {"X": input}, attrs, name, intermediate="MidOut", intermediate_first=True)


def maxout(x: Variable, groups: int, name: str | None = None, axis: int = 1) -> Variable:
    """The greatest of each ``groups`` neighbouring channels of [N, C, H, W] (Goodfellow et al., 2013).

    Args:
        axis: the dimension of the channels: 1, or 3 (-1) for [N, H, W, C].
    """
    return append_layer("maxout", {"X": x}, {"groups": groups, "axis": axis}, name, exact_name=True)


def pixel_shuffle(x: Variable, upscale_factor: int) -> Variable:
    """Larger images of [N, C, H, W]: upscale_factor² channels of a pixel become a square of pixels (Shi et al.,
    2016).

    Returns:
        [N, C / upscale_factor², H · upscale_factor, W · upscale_factor].
    """
    if not isinstance(upscale_factor, (int, np.integer)):
        raise errors.TypeMismatch(f"layers.pixel_shuffle: upscale_factor has to be an integer, got {upscale_factor!r}")
    return append_layer(
        "pixel_shuffle", {"X": x}, {"upscale_factor": check_integer(upscale_factor, "upscale_factor", "pixel_shuffle")}
    )


def shuffle_channel(x: Variable, group: int, name: str | None = None) -> Variable:
    """The channels of [N, C, H, W], the first of each of ``group`` groups before the second of each (Zhang et al.,
    2017).
    """
    return append_layer("shuffle_channel", {"X": x}, {"group": group}, name)


def unfold(
    x: Variable, kernel_sizes: Size, strides: Size = 1, paddings: Size = 0, dilations: Size = 1, name: str | None = None
) -> Variable:
    """The patches of [N, C, H, W] as columns, [N, C · height · width of a patch, number of patches].

    Args:
        kernel_sizes: height and width of the patches.
        paddings: rows and columns of zeros around the images; four numbers: above, to the left, below, to the right.
    """

    def numbers(value: Size, what: str) -> list[int]:
        return check_shape([value, value] if isinstance(value, int) else value, what, "unfold")

    around = numbers(paddings, "paddings")
    attrs = {
        "kernel_sizes": numbers(kernel_sizes, "kernel_sizes"),
        "strides": numbers(strides, "strides"),
        "paddings": around * 2 if len(around) == 2 else around,
        "dilations": numbers(dilations, "dilations"),
    }
    return append_layer("unfold", {"X": x}, attrs, name, out_slot="Y")


def temporal_shift(x: Variable, seg_num: int, shift_ratio: float = 0.25, name: str | None = None) -> Variable:
    """The images of videos of ``seg_num`` images, [N · seg_num, C, H, W]: the first ``shift_ratio`` of the channels
    come a step later, the next ``shift_ratio`` a step earlier (Lin et al., 2018).
    """
    return append_layer(
        "temporal_shift",
        {"X": x},
        {"seg_num": seg_num, "shift_ratio": check_number(shift_ratio, "shift_ratio", "temporal_shift")},
        name,
    )


def affine_channel(
    x: Variable,
    scale: Variable | None = None,
    bias: Variable | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    act: str | None = None,
) -> Variable:
    """scale · x + bias, channel by channel; both [C] and needed. ``data_layout``: "NHWC": x is [N, ..., C]."""
    inputs = {"X": x, "Scale": scale, "Bias": bias}
    return append_layer("affine_channel", inputs, {"data_layout": data_layout}, name, act, exact_name=True)


def im2sequence(
    input: Variable,
    filter_size: Size = 1,
    stride: Size = 1,
    padding: Size = 0,
    input_image_size: Variable | None = None,
    out_stride: Size = 1,
    name: str | None = None,
) -> Variable:
    """A sequence for each image [N, C, H, W]: its patches, row by row.

    Args:
        padding: up, left, down, right; two numbers: up and down, left and right.
        input_image_size: real height and width of each image, [N, 2], of the dtype of ``input``: patches are taken of
            them, with zeros beyond ``input``. Not used if N is 1.
        out_stride: how many pixels of a real image make one of ``input``.

    Returns:
        [patches, C · height · width of a patch], with LoD.
    """
    borders = [padding] if isinstance(padding, int) else check_shape(padding, "padding", "im2sequence")
    borders = borders * (4 // len(borders)) if len(borders) in (1, 2, 4) else borders
    attrs = {
        "kernels": window_extents(filter_size, "filter_size"),
        "strides": window_extents(stride, "stride"),
        "paddings": borders,
        "out_stride": window_extents(out_stride, "out_stride"),
    }
    inputs = {"X": input} if input_image_size is None else {"X": input, "Y": input_image_size}
    return append_layer("im2sequence", inputs, attrs, name)


def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """How two feature maps go together, for distillation (Yim et al., 2017): the mean over all pixels of the products
    of their channels.

    Args:
        x, y: [N, C, H, W] and [N, D, H, W].

    Returns:
        [N, C, D].
    """
    inputs = {"X": check_variable(x, "x", "fsp_matrix"), "Y": check_variable(y, "y", "fsp_matrix")}
    helper = LayerHelper("fsp_matrix")
    out = helper.create_variable(x.dtype)
    helper.append_op(inputs, {"Out": out}, type="fsp")
    return out
