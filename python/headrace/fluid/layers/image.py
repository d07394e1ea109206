"""Layers of images [N, C, H, W] and volumes [N, C, D, H, W]: convolution, pooling, normalisation by neighbours.

Convolution and pooling also take those with the channels last, as ``data_format`` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from headrace import errors
from headrace.fluid import initializer
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, append_layer, check_shape, check_variable
from headrace.fluid.param_attr import ParamAttrLike

__all__ = [
    "adaptive_pool2d",
    "adaptive_pool3d",
    "affine_channel",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "conv3d_transpose",
    "im2sequence",
    "lrn",
    "max_pool2d_with_index",
    "max_pool3d_with_index",
    "maxout",
    "pixel_shuffle",
    "pool2d",
    "pool3d",
    "shuffle_channel",
    "spp",
    "temporal_shift",
    "unfold",
    "unpool",
]

#: Height and width, or depth, height and width; a number stands for all of them.
Size = Union[int, Sequence[int]]

#: What lies around an image or a volume: as Size; before and after each dimension; a pair for each dimension of the
#: layout; or "SAME", as much as makes the result as large as the input by strides (dilations are ignored), or "VALID".
Padding = Union[int, str, Sequence[Union[int, Sequence[int]]]]

#: By the number of dimensions of a window, the formats with the channels first and last.
_FORMATS = {2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
_NAMES = {2: "a height and a width", 3: "a depth, a height and a width"}


def _extents(value: Size, what: str, dimensions: int = 2) -> list[int]:
    extents = [value] if isinstance(value, int) else list(value) if isinstance(value, (list, tuple)) else []
    for extent in extents or [value]:
        if not isinstance(extent, (int, np.integer)):
            raise errors.TypeMismatch(f"{what} has to be a number or {_NAMES[dimensions]}, got {value!r}")
    if len(extents) == 1:
        extents = extents * dimensions
    if len(extents) != dimensions:
        raise errors.InvalidArgument(f"{what} has {_NAMES[dimensions]}, got {value!r}")
    return extents


def _check_format(data_format: str, layer: str, dimensions: int) -> bool:
    """Whether the channels come last."""
    first, last = _FORMATS[dimensions]
    if data_format not in (first, last):
        raise errors.InvalidArgument(
            f"layers.{layer}: data_format has to be {first!r} or {last!r}, got {data_format!r}"
        )
    return bool(data_format == last)


def _layout(dimensions: int, channels_last: bool) -> str:
    return f"[{', '.join(_FORMATS[dimensions][channels_last])}]"


def _padding_attrs(value: Padding, what: str, dimensions: int, channels_last: bool) -> dict[str, Any]:
    if isinstance(value, str):
        if value.upper() not in ("SAME", "VALID"):
            raise errors.InvalidArgument(f"{what} is 'SAME', 'VALID' or numbers, got {value!r}")
        return {"paddings": [0] * dimensions, "padding_algorithm": value.upper()}
    numbers: list[int] = []
    for border in [value] if isinstance(value, int) else value:
        if isinstance(border, int):
            numbers.append(border)
        else:
            numbers += border
    if not isinstance(value, int) and any(not isinstance(border, int) for border in value):
        inner = numbers[2:-2] if channels_last else numbers[4:]
        others = numbers[:2] + numbers[-2:] if channels_last else numbers[:4]
        if len(value) != 2 + dimensions or len(numbers) != 2 * len(value) or any(others):
            raise errors.InvalidArgument(
                f"{what}: expected a pair for each dimension of {_layout(dimensions, channels_last)}, [0, 0] for N and"
                f" C, got {value!r}"
            )
        numbers = inner
    borders = numbers if len(numbers) == 2 * dimensions else _extents(numbers, what, dimensions)
    return {"paddings": borders, "padding_algorithm": "EXPLICIT"}


def _kernel(value: Size, layer: str, dimensions: int) -> list[int]:
    kernel = _extents(value, f"layers.{layer}: filter_size", dimensions)
    if min(kernel) <= 0:
        raise errors.InvalidArgument(f"layers.{layer}: filter_size must be positive, got {value!r}")
    return kernel


def _check_filters(num_filters: int, layer: str) -> None:
    if not isinstance(num_filters, (int, np.integer)):
        raise errors.TypeMismatch(f"layers.{layer}: num_filters has to be a number, got {num_filters!r}")
    if num_filters <= 0:
        raise errors.InvalidArgument(f"layers.{layer}: num_filters must be positive, got {num_filters}")


def _check_images(input: Variable, layer: str, dimensions: int, channels_last: bool) -> tuple[int, list[int]]:
    """The channels of ``input``, which have to be known, and the extents of its other dimensions without the first."""
    dims = list(check_variable(input, "input", layer).shape)
    channels = dims.pop(-1 if channels_last else 1) if len(dims) == 2 + dimensions else -1
    if channels <= 0:
        raise errors.InvalidArgument(
            f"layers.{layer}: '{input.name}' has to be {_layout(dimensions, channels_last)} with a known C, got "
            f"{list(input.shape)}"
        )
    return channels, dims[1:]


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
    channels_last = _check_format(data_format, layer, dimensions)
    channels, _ = _check_images(input, layer, dimensions, channels_last)
    _check_filters(num_filters, layer)
    is_depthwise = layer == "conv2d" and groups == channels and num_filters % channels == 0 and not use_cudnn
    groups = 1 if groups is None else groups
    if groups <= 0 or channels % groups != 0:
        raise errors.InvalidArgument(f"layers.{layer}: {channels} channels cannot be split into {groups} groups")
    kernel = _kernel(filter_size, layer, dimensions)
    helper = LayerHelper(f"depthwise_{layer}" if is_depthwise else layer, name)  # so Fluid names parameters
    weight = helper.create_weight(
        param_attr,
        [num_filters, channels // groups, *kernel],
        input.dtype,
        default_initializer=initializer.Normal(0.0, math.sqrt(2.0 / (math.prod(kernel) * channels))),
    )
    out = helper.create_variable(input.dtype)
    attrs = {
        "strides": _extents(stride, "stride", dimensions),
        **_padding_attrs(padding, "padding", dimensions, channels_last),
        "dilations": _extents(dilation, "dilation", dimensions),
        "groups": groups,
        "data_format": data_format,
    }
    helper.append_op({"Input": input, "Filter": weight}, {"Output": out}, attrs, type=layer)
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
    channels_last = _check_format(data_format, layer, dimensions)
    channels, extents = _check_images(input, layer, dimensions, channels_last)
    _check_filters(num_filters, layer)
    is_depthwise = layer == "conv2d_transpose" and groups == channels == num_filters and not use_cudnn
    groups = 1 if groups is None else groups
    if groups <= 0 or channels % groups != 0 or num_filters % groups != 0:
        raise errors.InvalidArgument(
            f"layers.{layer}: {channels} channels and {num_filters} filters do not make {groups} groups"
        )
    steps, gaps = _extents(stride, "stride", dimensions), _extents(dilation, "dilation", dimensions)
    paddings = _padding_attrs(padding, "padding", dimensions, channels_last)
    size = [] if output_size is None else _extents(output_size, "output_size", dimensions)
    if filter_size is not None:
        kernel = _kernel(filter_size, layer, dimensions)
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
    helper.append_op({"Input": input, "Filter": weight}, {"Output": out}, attrs, type=layer)
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


def _window_attrs(
    dimensions: int, pool_size: Size, pool_stride: Size, pool_padding: Padding, channels_last: bool = False
) -> dict[str, Any]:
    return {
        "ksize": _extents(pool_size, "pool_size", dimensions),
        "strides": _extents(pool_stride, "pool_stride", dimensions),
        **_padding_attrs(pool_padding, "pool_padding", dimensions, channels_last),
    }


def _pool(
    layer: str,
    input: Variable,
    pool_size: Size,
    pool_type: str,
    pool_stride: Size,
    pool_padding: Padding,
    global_pooling: bool,
    ceil_mode: bool,
    name: str | None,
    exclusive: bool,
    data_format: str,
) -> Variable:
    if not global_pooling and pool_size == -1:
        raise errors.InvalidArgument(f"layers.{layer}: a pool_size is needed unless global_pooling")
    dimensions = 2 if layer == "pool2d" else 3
    channels_last = _check_format(data_format, layer, dimensions)
    attrs = {
        "pooling_type": pool_type,
        **_window_attrs(dimensions, 1 if global_pooling else pool_size, pool_stride, pool_padding, channels_last),
        "global_pooling": global_pooling,
        "ceil_mode": ceil_mode,
        "exclusive": exclusive,
        "data_format": data_format,
    }
    return append_layer(layer, {"X": input}, attrs, name)


def pool2d(
    input: Variable,
    pool_size: Size = -1,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Variable:
    """The maximum ("max") or average ("avg") of each window of images [N, C, H, W]. ``use_cudnn`` has no effect.

    Args:
        global_pooling: the window is the whole image, and ``pool_size`` is not needed.
        ceil_mode: a last window may hang over the border.
        exclusive: averages leave the padding out.
        data_format: "NHWC": of [N, H, W, C], as the result is then.
    """
    sizes = (pool_size, pool_type, pool_stride, pool_padding)
    return _pool("pool2d", input, *sizes, global_pooling, ceil_mode, name, exclusive, data_format)


def pool3d(
    input: Variable,
    pool_size: Size = -1,
    pool_type: str = "max",
    pool_stride: Size = 1,
    pool_padding: Padding = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
) -> Variable:
    """The maximum ("max") or average ("avg") of each window of volumes [N, C, D, H, W]. ``use_cudnn`` has no effect.

    Args:
        global_pooling: the window is the whole volume, and ``pool_size`` is not needed.
        ceil_mode: a last window may hang over the border.
        exclusive: averages leave the padding out.
        data_format: "NDHWC": of [N, D, H, W, C], as the result is then.
    """
    sizes = (pool_size, pool_type, pool_stride, pool_padding)
    return _pool("pool3d", input, *sizes, global_pooling, ceil_mode, name, exclusive, data_format)


def _max_pool_with_index(
    layer: str, dimensions: int, input: Variable, attrs: dict[str, Any], name: str | None
) -> tuple[Variable, Variable]:
    helper = LayerHelper(f"max_pool{dimensions}d_with_index", name)
    out = helper.create_variable(check_variable(input, "input", layer).dtype)
    index = helper.create_variable("int32", stop_gradient=True)
    helper.append_op({"X": input}, {"Out": out, "Mask": index}, attrs)
    return out, index


def max_pool2d_with_index(
    input: Variable, pool_size: Size, pool_stride: Size = 1, pool_padding: Padding = 0, name: str | None = None
) -> tuple[Variable, Variable]:
    """The maximum of each window of images [N, C, H, W], and where it lies within its map, row by row (int32)."""
    attrs = _window_attrs(2, pool_size, pool_stride, pool_padding)
    return _max_pool_with_index("max_pool2d_with_index", 2, input, attrs, name)


def max_pool3d_with_index(
    input: Variable, pool_size: Size, pool_stride: Size = 1, pool_padding: Padding = 0, name: str | None = None
) -> tuple[Variable, Variable]:
    """The maximum of each window of volumes [N, C, D, H, W], and where it lies within its map, row by row (int32)."""
    attrs = _window_attrs(3, pool_size, pool_stride, pool_padding)
    return _max_pool_with_index("max_pool3d_with_index", 3, input, attrs, name)


def unpool(
    input: Variable,
    index: Variable,
    pool_size: Size,
    pool_stride: Size = 1,
    pool_padding: Size = 0,
    name: str | None = None,
) -> Variable:
    """Puts the results of ``max_pool2d_with_index`` back to their original positions, among zeros. The images are the
    smallest that the pooling can have been given.
    """
    attrs = {
        "ksize": _extents(pool_size, "pool_size"),
        "strides": _extents(pool_stride, "pool_stride"),
        "paddings": _extents(pool_padding, "pool_padding"),
    }
    return append_layer("unpool", {"X": input, "Indices": index}, attrs, name)


def spp(input: Variable, pyramid_height: int, pool_type: str = "max", name: str | None = None) -> Variable:
    """Spatial pyramid pooling (He et al., 2014) of images [N, C, H, W]: level l has the maximum ("max") or average
    ("avg") of each of 2^l · 2^l windows; [N, C · (4^pyramid_height - 1) / 3], whatever H and W are.
    """
    return append_layer("spp", {"X": input}, {"pyramid_height": pyramid_height, "pooling_type": pool_type}, name)


def _adaptive_pool(
    dimensions: int, input: Variable, pool_size: Size, pool_type: str, require_index: bool, name: str | None
) -> Any:
    layer = f"adaptive_pool{dimensions}d"
    if pool_type not in ("max", "avg"):
        raise errors.InvalidArgument(f"layers.{layer}: pool_type has to be 'max' or 'avg', got {pool_type!r}")
    if require_index and pool_type != "max":
        raise errors.InvalidArgument(f"layers.{layer}: only maxima have an index (require_index), got {pool_type!r}")
    attrs: dict[str, Any] = {"ksize": _extents(pool_size, "pool_size", dimensions), "adaptive": True}
    if pool_type == "avg":
        return append_layer(f"pool{dimensions}d", {"X": input}, {**attrs, "pooling_type": "avg"}, name)
    out, index = _max_pool_with_index(layer, dimensions, input, attrs, name)
    return (out, index) if require_index else out


def adaptive_pool2d(
    input: Variable, pool_size: Size, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Any:
    """Images [N, C, H, W] in a given size: the maximum ("max") or average ("avg") of windows of nearly equal size.

    Args:
        pool_size: height and width of the result.
        require_index: give also where each maximum lies within its map, row by row (int32).

    Returns:
        The result; with ``require_index`` (result, index).
    """
    return _adaptive_pool(2, input, pool_size, pool_type, require_index, name)


def adaptive_pool3d(
    input: Variable, pool_size: Size, pool_type: str = "max", require_index: bool = False, name: str | None = None
) -> Any:
    """Volumes [N, C, D, H, W] in a given size: the maximum ("max") or average ("avg") of windows of nearly equal size.

    Args:
        pool_size: depth, height and width of the result.
        require_index: give also where each maximum lies within its map, row by row (int32).

    Returns:
        The result; with ``require_index`` (result, index).
    """
    return _adaptive_pool(3, input, pool_size, pool_type, require_index, name)


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
    attrs = {"n": n, "k": float(k), "alpha": float(alpha), "beta": float(beta), "data_format": data_format}
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
    return append_layer("pixel_shuffle", {"X": x}, {"upscale_factor": int(upscale_factor)})


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
    return append_layer("temporal_shift", {"X": x}, {"seg_num": seg_num, "shift_ratio": float(shift_ratio)}, name)


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
    borders = [padding] if isinstance(padding, int) else list(padding)
    borders = borders * (4 // len(borders)) if len(borders) in (1, 2, 4) else borders
    attrs = {
        "kernels": _extents(filter_size, "filter_size"),
        "strides": _extents(stride, "stride"),
        "paddings": borders,
        "out_stride": _extents(out_stride, "out_stride"),
    }
    inputs = {"X": input} if input_image_size is None else {"X": input, "Y": input_image_size}
    return append_layer("im2sequence", inputs, attrs, name)
