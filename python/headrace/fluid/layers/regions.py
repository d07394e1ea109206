"""Layers that look at images [N, C, H, W] between pixels: at the places of a grid, or in regions of any size.

Regions ("RoIs") are rows of [R, 4], left, upper, right and lower border in pixels of the original image, with a LoD of
one level: a sequence for each of the N images. ``spatial_scale`` times those are places in the layer's input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid import initializer
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import (
    LayerHelper,
    append_layer,
    as_integers,
    check_integer,
    check_number,
    check_shape,
    check_variable,
)
from headrace.fluid.layers.windows import Size, check_filters, check_images, filter_extents, window_extents
from headrace.fluid.param_attr import ParamAttrLike

__all__ = [
    "affine_grid",
    "deformable_conv",
    "deformable_roi_pooling",
    "grid_sampler",
    "prroi_pool",
    "psroi_pool",
    "roi_align",
    "roi_perspective_transform",
    "roi_pool",
]


def affine_grid(theta: Variable, out_shape: Sequence[int] | Variable, name: str | None = None) -> Variable:
    """Where the pixels of an image come from that an affine map distorts, for ``grid_sampler``.

    Args:
        theta: [N, 2, 3]: source (x, y) = theta · (x, y, 1). The corners of images are -1 and 1.
        out_shape: [N, C, H, W] of the image, of which H and W count; a variable: int32 or int64 [4].

    Returns:
        [N, H, W, 2].
    """
    inputs = {"Theta": check_variable(theta, "theta", "affine_grid")}
    attrs = {}
    if isinstance(out_shape, Variable):
        inputs["OutputShape"] = as_integers(out_shape)
    else:
        attrs["output_shape"] = check_shape(out_shape, "out_shape", "affine_grid")
    return append_layer("affine_grid", inputs, attrs, name, out_slot="Output")


def grid_sampler(x: Variable, grid: Variable, name: str | None = None) -> Variable:
    """Images at the places of a grid, each from the four pixels around it; beyond the border are zeros (Jaderberg et
    al., 2015).

    Args:
        x: [N, C, H, W].
        grid: [N, GH, GW, 2], column and row of each place, as ``affine_grid`` gives them: -1 and 1 are the centers of
            the border pixels.

    Returns:
        [N, C, GH, GW].
    """
    return append_layer("grid_sampler", {"X": x, "Grid": grid}, None, name, out_slot="Output")


def _bins(layer: str, pooled_height: Any, pooled_width: Any, spatial_scale: Any) -> dict[str, Any]:
    for what, value in (("pooled_height", pooled_height), ("pooled_width", pooled_width)):
        if not isinstance(value, (int, np.integer)):
            raise errors.TypeMismatch(f"layers.{layer}: {what} has to be an integer, got {value!r}")
    return {
        "pooled_height": int(pooled_height),
        "pooled_width": int(pooled_width),
        "spatial_scale": check_number(spatial_scale, "spatial_scale", layer),
    }


def _check_scale(layer: str, spatial_scale: Any) -> None:
    if not isinstance(spatial_scale, float):
        raise errors.TypeMismatch(f"layers.{layer}: spatial_scale has to be a float, got {spatial_scale!r}")


def roi_pool(
    input: Variable, rois: Variable, pooled_height: int = 1, pooled_width: int = 1, spatial_scale: float = 1.0
) -> Variable:
    """The maxima of ``pooled_height`` · ``pooled_width`` bins of each region, whose borders are rounded to pixels
    (Girshick, 2015); 0 where a bin has no pixels.

    Returns:
        [R, C, pooled_height, pooled_width].
    """
    input = check_variable(input, "input", "roi_pool")
    rois = check_variable(rois, "rois", "roi_pool")
    helper = LayerHelper("roi_pool")
    out = helper.create_variable(input.dtype)
    argmax = helper.create_variable("int64", stop_gradient=True)
    attrs = _bins("roi_pool", pooled_height, pooled_width, spatial_scale)
    helper.append_op({"X": input, "ROIs": rois}, {"Out": out, "Argmax": argmax}, attrs)
    return out


def roi_align(
    input: Variable,
    rois: Variable,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    name: str | None = None,
) -> Variable:
    """The means of bins of each region, from places between pixels (He et al., 2017).

    Args:
        sampling_ratio: how many rows and columns of places a bin has; 0 or less: one for each pixel, rounded up.

    Returns:
        [R, C, pooled_height, pooled_width].
    """
    attrs = _bins("roi_align", pooled_height, pooled_width, spatial_scale)
    return append_layer("roi_align", {"X": input, "ROIs": rois}, {**attrs, "sampling_ratio": sampling_ratio}, name)


def psroi_pool(
    input: Variable,
    rois: Variable,
    output_channels: int,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    name: str | None = None,
) -> Variable:
    """The means of bins of each region, each bin of a channel in a channel of ``input`` of its own (Dai et al., 2016).

    Args:
        input: [N, output_channels · pooled_height · pooled_width, H, W].
        spatial_scale: a float.

    Returns:
        [R, output_channels, pooled_height, pooled_width].
    """
    if not isinstance(output_channels, (int, np.integer)):
        raise errors.TypeMismatch(f"layers.psroi_pool: output_channels has to be an integer, got {output_channels!r}")
    _check_scale("psroi_pool", spatial_scale)
    attrs = {
        **_bins("psroi_pool", pooled_height, pooled_width, spatial_scale),
        "output_channels": check_integer(output_channels, "output_channels", "psroi_pool"),
    }
    return append_layer("psroi_pool", {"X": input, "ROIs": rois}, attrs, name)


def prroi_pool(
    input: Variable,
    rois: Variable,
    spatial_scale: float = 1.0,
    pooled_height: int = 1,
    pooled_width: int = 1,
    name: str | None = None,
) -> Variable:
    """The means over the area of bins of each region, without places that are chosen (Jiang et al., 2018). The regions
    have gradients, too.

    Args:
        spatial_scale: a float.

    Returns:
        [R, C, pooled_height, pooled_width].
    """
    _check_scale("prroi_pool", spatial_scale)
    attrs = _bins("prroi_pool", pooled_height, pooled_width, spatial_scale)
    return append_layer("prroi_pool", {"X": input, "ROIs": rois}, attrs, name)


def roi_perspective_transform(
    input: Variable,
    rois: Variable,
    transformed_height: int,
    transformed_width: int,
    spatial_scale: float = 1.0,
    name: str | None = None,
) -> tuple[Variable, Variable, Variable]:
    """Regions with four corners, straightened to rectangles: as high as ``transformed_height`` says, and as wide as
    their shapes make them then, ``transformed_width`` at most; the rest is 0.

    Args:
        rois: [R, 8], with a LoD: the corners (x, y), clockwise from the upper left.

    Returns:
        [R, C, transformed_height, transformed_width]; where that lies within region and image, int32 [R, 1,
        transformed_height, transformed_width]; and the matrices that map (column, row, 1) to places in ``input``,
        [R, 9].
    """
    input = check_variable(input, "input", "roi_perspective_transform")
    rois = check_variable(rois, "rois", "roi_perspective_transform")
    helper = LayerHelper("roi_perspective_transform", name)
    out = helper.create_variable(input.dtype)
    mask = helper.create_variable("int32", stop_gradient=True)
    matrix = helper.create_variable(input.dtype, stop_gradient=True)
    attrs = {
        "transformed_height": check_integer(transformed_height, "transformed_height", "roi_perspective_transform"),
        "transformed_width": check_integer(transformed_width, "transformed_width", "roi_perspective_transform"),
        "spatial_scale": check_number(spatial_scale, "spatial_scale", "roi_perspective_transform"),
    }
    helper.append_op({"X": input, "ROIs": rois}, {"Out": out, "Mask": mask, "TransformMatrix": matrix}, attrs)
    return out, mask, matrix


def deformable_conv(
    input: Variable,
    offset: Variable,
    mask: Variable | None,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Size = 0,
    dilation: Size = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    modulated: bool = True,
    name: str | None = None,
) -> Variable:
    """Convolution of places that other layers say, plus a bias per filter (Dai et al., 2017; Zhu et al., 2018).
    ``im2col_step`` has no effect.

    Args:
        input: [N, C, H, W].
        offset: [N, 2 · deformable_groups · KH · KW, OH, OW]: how many rows and columns further each place lies.
        mask: [N, deformable_groups · KH · KW, OH, OW]: the weight of each position. None if not ``modulated``.
        deformable_groups: how many groups of channels have places of their own.

    Returns:
        [N, num_filters, OH, OW].
    """
    offset = check_variable(offset, "offset", "deformable_conv")
    channels, _ = check_images(input, "deformable_conv", 2, False)
    check_filters(num_filters, "deformable_conv")
    groups = 1 if groups is None else check_integer(groups, "groups", "deformable_conv")
    if groups <= 0 or channels % groups != 0:
        raise errors.InvalidArgument(
            f"layers.deformable_conv: {channels} channels cannot be split into {groups} groups"
        )
    kernel = filter_extents(filter_size, "deformable_conv", 2)
    helper = LayerHelper("deformable_conv", name)
    weight = helper.create_weight(
        param_attr,
        [num_filters, channels // groups, *kernel],
        input.dtype,
        default_initializer=initializer.Normal(0.0, math.sqrt(2.0 / (math.prod(kernel) * channels))),
    )
    inputs = {"Input": input, "Offset": offset, "Filter": weight}
    if modulated:
        inputs["Mask"] = check_variable(mask, "mask", "deformable_conv")
    attrs = {
        "strides": window_extents(stride, "stride"),
        "paddings": window_extents(padding, "padding"),
        "dilations": window_extents(dilation, "dilation"),
        "groups": groups,
        "deformable_groups": 1 if deformable_groups is None else deformable_groups,
    }
    out = helper.create_variable(input.dtype)
    helper.append_op(inputs, {"Output": out}, attrs, type=None if modulated else "deformable_conv_v1")
    return helper.append_bias(out, bias_attr, dim_start=1, size=num_filters)


def deformable_roi_pooling(
    input: Variable,
    rois: Variable,
    trans: Variable,
    no_trans: bool = False,
    spatial_scale: float = 1.0,
    group_size: Sequence[int] = (1, 1),
    pooled_height: int = 1,
    pooled_width: int = 1,
    part_size: Sequence[int] | None = None,
    sample_per_part: int = 1,
    trans_std: float = 0.1,
    position_sensitive: bool = False,
    name: str | None = None,
) -> Variable:
    """The means of bins of each region, which are shifted as ``trans`` says (Dai et al., 2017).

    Args:
        trans: [R, 2 · classes, *part_size]: shifts to the right and downwards, in ``trans_std`` of the extents of the
            region. ``no_trans``: they do not count.
        group_size: height and width of the bins that have channels of ``input`` of their own.
        part_size: height and width of ``trans``; None: those of the bins.
        sample_per_part: how many rows and columns of places a bin is the mean of.
        position_sensitive: whether each bin has channels of its own: C / (pooled_height · pooled_width) come out.

    Returns:
        [R, channels, pooled_height, pooled_width].
    """
    channels, _ = check_images(input, "deformable_roi_pooling", 2, False)
    attrs = _bins("deformable_roi_pooling", pooled_height, pooled_width, spatial_scale)
    attrs |= {
        "no_trans": no_trans,
        "output_dim": channels // (pooled_height * pooled_width) if position_sensitive else channels,
        "group_size": window_extents(group_size, "group_size"),
        "part_size": window_extents([pooled_height, pooled_width] if part_size is None else part_size, "part_size"),
        "sample_per_part": sample_per_part,
        "trans_std": check_number(trans_std, "trans_std", "deformable_roi_pooling"),
    }
    inputs = {"Input": input, "ROIs": rois, "Trans": trans}
    return append_layer("deformable_psroi_pooling", inputs, attrs, name, out_slot="Output", intermediate="TopCount")
