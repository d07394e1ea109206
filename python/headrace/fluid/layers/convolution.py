"""Convolution of images [N, C, H, W] and volumes [N, C, D, H, W]; ``data_format``: or with the channels last."""

from __future__ import annotations

import math

from headrace import errors
from headrace.fluid import initializer
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_integer
from headrace.fluid.layers.windows import (
    Padding,
    Size,
    check_filters,
    check_format,
    check_images,
    filter_extents,
    padding_attrs,
    window_extents,
)
from headrace.fluid.param_attr import ParamAttrLike

__all__ = [
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
]


def _convolve(
    layer: str,
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size,
    padding: Padding,
    dilation: Size,
    groups: int | None,
    param_attr: ParamAttrLike,
    bias_attr: ParamAttrLike,
    act: str | None,
    name: str | None,
    data_format: str,
    use_cudnn: bool,
) -> Variable:
    dimensions = 2 if layer == "conv2d" else 3
    channels_last = check_format(data_format, layer, dimensions)
    channels, _ = check_images(input, layer, dimensions, channels_last)
    check_filters(num_filters, layer)
    groups = None if groups is None else check_integer(groups, "groups", layer)
    is_depthwise = layer == "conv2d" and groups == channels and num_filters % channels == 0 and not use_cudnn
    groups = 1 if groups is None else groups
    if groups <= 0 or channels % groups != 0:
        raise errors.InvalidArgument(f"layers.{layer}: {channels} channels cannot be split into {groups} groups")
    kernel = filter_extents(filter_size, layer, dimensions)
    helper = LayerHelper(f"depthwise_{layer}" if is_depthwise else layer, name)  # so Fluid names parameters
    weight = helper.create_weight(
        param_attr,
        [num_filters, channels // groups, *kernel],
        input.dtype,
        default_initializer=initializer.Normal(0.0, math.sqrt(2.0 / (math.prod(kernel) * channels))),
    )
    out = helper.create_variable(input.dtype)
    attrs = {
        "strides": window_extents(stride, "stride", dimensions),
        **padding_attrs(padding, "padding", dimensions, channels_last),
        "dilations": window_extents(dilation, "dilation", dimensions),
        "groups": groups,
        "data_format": data_format,
    }
    helper.append_op({"Input": input, "Filter": weight}, {"Output": out}, attrs, type=helper.layer_type)
    axis = 1 + dimensions if channels_last else 1
    return helper.append_activation(helper.append_bias(out, bias_attr, dim_start=axis, size=num_filters), act)


def conv2d(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Convolution of images [N, C, H, W] with ``num_filters`` filters, plus a bias per filter. If it is
    depthwise, ``use_cudnn=False`` gives its parameters the names that Fluid then gives them: "depthwise_conv2d_…".

    Args:
        data_format: "NHWC": of [N, H, W, C], as the result is then.
    """
    sizes = (filter_size, stride, padding, dilation)
    return _convolve(
        "conv2d", input, num_filters, *sizes, groups, param_attr, bias_attr, act, name, data_format, use_cudnn
    )


def conv3d(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Convolution of volumes [N, C, D, H, W] with ``num_filters`` filters, plus a bias per filter. ``use_cudnn`` has no
    effect.

    Args:
        data_format: "NDHWC": of [N, D, H, W, C], as the result is then.
    """
    sizes = (filter_size, stride, padding, dilation)
    return _convolve(
        "conv3d", input, num_filters, *sizes, groups, param_attr, bias_attr, act, name, data_format, use_cudnn
    )


def _transpose(
    layer: str,
    input: Variable,
    num_filters: int,
    output_size: Size | None,
    filter_size: Size | None,
    padding: Padding,
    stride: Size,
    dilation: Size,
    groups: int | None,
    param_attr: ParamAttrLike,
    bias_attr: ParamAttrLike,
    act: str | None,
    name: str | None,
    data_format: str,
    use_cudnn: bool,
) -> Variable:
    dimensions = 2 if layer == "conv2d_transpose" else 3
    channels_last = check_format(data_format, layer, dimensions)
    channels, extents = check_images(input, layer, dimensions, channels_last)
    check_filters(num_filters, layer)
    groups = None if groups is None else check_integer(groups, "groups", layer)
    is_depthwise = layer == "conv2d_transpose" and groups == channels == num_filters and not use_cudnn
    groups = 1 if groups is None else groups
    if groups <= 0 or channels % groups != 0 or num_filters % groups != 0:
        raise errors.InvalidArgument(
            f"layers.{layer}: {channels} channels and {num_filters} filters do not make {groups} groups"
        )
    steps, gaps = window_extents(stride, "stride", dimensions), window_extents(dilation, "dilation", dimensions)
    paddings = padding_attrs(padding, "padding", dimensions, channels_last)
    size = [] if output_size is None else window_extents(output_size, "output_size", dimensions)
    if filter_size is not None:
        kernel = filter_extents(filter_size, layer, dimensions)
    elif size and all(extent > 0 for extent in extents):
        borders = paddings["paddings"]
        borders = borders if len(borders) == 2 * dimensions else [border for border in borders for _ in range(2)]
        around = [before + after for before, after in zip(borders[::2], borders[1::2])]
        kernel = [
            (want - (extent - 1) * step + border - 1) // gap + 1
            for want, extent, step, border, gap in zip(size, extents, steps, around, gaps)
        ]
    else:
        raise errors.InvalidArgument(f"layers.{layer}: filter_size, or output_size and known dims, are needed")
    helper = LayerHelper(f"depthwise_{layer}" if is_depthwise else layer, name)  # so Fluid names parameters
    weight = helper.create_weight(param_attr, [channels, num_filters // groups, *kernel], input.dtype)
    out = helper.create_variable(input.dtype)
    attrs = {"strides": steps, **paddings, "dilations": gaps, "groups": groups, "output_size": size}
    attrs["data_format"] = data_format
    helper.append_op({"Input": input, "Filter": weight}, {"Output": out}, attrs, type=helper.layer_type)
    axis = 1 + dimensions if channels_last else 1
    return helper.append_activation(helper.append_bias(out, bias_attr, dim_start=axis, size=num_filters), act)


def conv2d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Padding = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Variable:
    """Transposed convolution of images [N, C, H, W], plus a bias per filter. ``use_cudnn`` as for ``conv2d``.

    Args:
        output_size: height and width of the result; None: the least that fits. Gives the filters' size if that is None.
        data_format: "NHWC": of [N, H, W, C], as the result is then.
    """
    sizes = (output_size, filter_size, padding, stride, dilation)
    return _transpose(
        "conv2d_transpose", input, num_filters, *sizes, groups, param_attr, bias_attr, act, name, data_format, use_cudnn
    )


def conv3d_transpose(
    input: Variable,
    num_filters: int,
    output_size: Size | None = None,
    filter_size: Size | None = None,
    padding: Padding = 0,
    stride: Size = 1,
    dilation: Size = 1,
    groups: int | None = None,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    use_cudnn: bool = True,
    act: str | None = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Variable:
    """Transposed convolution of volumes [N, C, D, H, W], plus a bias per filter. ``use_cudnn`` has no effect.

    Args:
        output_size: depth, height and width of the result; None: the least that fits. Gives the filters' size if that
            is None.
        data_format: "NDHWC": of [N, D, H, W, C], as the result is then.
    """
    sizes = (output_size, filter_size, padding, stride, dilation)
    return _transpose(
        "conv3d_transpose", input, num_filters, *sizes, groups, param_attr, bias_attr, act, name, data_format, use_cudnn
    )
