"""Combinations of layers that are used often."""

from __future__ import annotations

from headrace.fluid import layers
from headrace.fluid.framework import Variable
from headrace.fluid.layers.image import Size
from headrace.fluid.param_attr import ParamAttrLike

__all__ = ["simple_img_conv_pool"]


def simple_img_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: Size,
    pool_size: Size,
    pool_stride: Size,
    pool_padding: Size = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Size = 1,
    conv_padding: Size = 0,
    conv_dilation: Size = 1,
    conv_groups: int = 1,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    act: str | None = None,
    use_cudnn: bool = True,
) -> Variable:
    """A conv2d, then a pool2d."""
    convolved = layers.conv2d(
        input,
        num_filters,
        filter_size,
        conv_stride,
        conv_padding,
        conv_dilation,
        conv_groups,
        param_attr,
        bias_attr,
        act=act,
    )
    return layers.pool2d(convolved, pool_size, pool_type, pool_stride, pool_padding, global_pooling=global_pooling)
