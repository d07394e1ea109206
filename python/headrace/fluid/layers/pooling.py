"""Pooling of images [N, C, H, W] and volumes [N, C, D, H, W]; pool2d and pool3d also take the channels last."""

from __future__ import annotations

from typing import Any

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, append_layer, check_variable
from headrace.fluid.layers.windows import Padding, Size, check_format, padding_attrs, window_extents

__all__ = [
    "adaptive_pool2d",
    "adaptive_pool3d",
    "max_pool2d_with_index",
    "max_pool3d_with_index",
    "pool2d",
    "pool3d",
    "spp",
    "unpool",
]


def _window_attrs(
    dimensions: int, pool_size: Size, pool_stride: Size, pool_padding: Padding, channels_last: bool = False
) -> dict[str, Any]:
    return {
        "ksize": window_extents(pool_size, "pool_size", dimensions),
        "strides": window_extents(pool_stride, "pool_stride", dimensions),
        **padding_attrs(pool_padding, "pool_padding", dimensions, channels_last),
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
    channels_last = check_format(data_format, layer, dimensions)
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
        "ksize": window_extents(pool_size, "pool_size"),
        "strides": window_extents(pool_stride, "pool_stride"),
        "paddings": window_extents(pool_padding, "pool_padding"),
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
    attrs: dict[str, Any] = {"ksize": window_extents(pool_size, "pool_size", dimensions), "adaptive": True}
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
