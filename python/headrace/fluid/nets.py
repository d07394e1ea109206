"""Combinations of layers that are used often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace import errors
from headrace.fluid import layers
from headrace.fluid._checks import check_integer, check_list
from headrace.fluid.framework import Variable
from headrace.fluid.layers.windows import Size
from headrace.fluid.param_attr import ParamAttrLike

__all__ = ["glu", "img_conv_group", "scaled_dot_product_attention", "sequence_conv_pool", "simple_img_conv_pool"]


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
        use_cudnn,
        act,
    )
    return layers.pool2d(convolved, pool_size, pool_type, pool_stride, pool_padding, global_pooling=global_pooling)


def _for_each(value: Any, count: int, what: str) -> list[Any]:
    values = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(values) != count:
        raise errors.InvalidArgument(f"nets.img_conv_group: {count} convolutions, but {len(values)} of {what}")
    return values


def img_conv_group(
    input: Variable,
    conv_num_filter: Sequence[int],
    pool_size: Size,
    conv_padding: int | Sequence[int] = 1,
    conv_filter_size: int | Sequence[int] = 3,
    conv_act: str | None = None,
    param_attr: ParamAttrLike | Sequence[ParamAttrLike] = None,
    conv_with_batchnorm: bool | Sequence[bool] = False,
    conv_batchnorm_drop_rate: float | Sequence[float] = 0.0,
    pool_stride: Size = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Variable:
    """A conv2d for each of ``conv_num_filter``, with batch_norm and dropout after it or not, then a pool2d. What is
    given as a list has an item for each conv2d.
    """
    filter_numbers = check_list(conv_num_filter, "nets.img_conv_group: conv_num_filter")
    count = len(filter_numbers)
    out = input
    for filters, padding, size, attr, normalize, drop_rate in zip(
        filter_numbers,
        _for_each(conv_padding, count, "conv_padding"),
        _for_each(conv_filter_size, count, "conv_filter_size"),
        _for_each(param_attr, count, "param_attr"),
        _for_each(conv_with_batchnorm, count, "conv_with_batchnorm"),
        _for_each(conv_batchnorm_drop_rate, count, "conv_batchnorm_drop_rate"),
    ):
        act = None if normalize else conv_act
        out = layers.conv2d(out, filters, size, padding=padding, param_attr=attr, use_cudnn=use_cudnn, act=act)
        if normalize:
            out = layers.batch_norm(out, act=conv_act)
            if abs(drop_rate) > 1e-5:
                out = layers.dropout(out, drop_rate)
    return layers.pool2d(out, pool_size, pool_type, pool_stride)


def sequence_conv_pool(
    input: Variable,
    num_filters: int,
    filter_size: int,
    param_attr: ParamAttrLike = None,
    act: str | None = "sigmoid",
    pool_type: str = "max",
    bias_attr: ParamAttrLike = None,
) -> Variable:
    """A sequence_conv, then a sequence_pool."""
    convolved = layers.sequence_conv(
        input, num_filters, filter_size, param_attr=param_attr, bias_attr=bias_attr, act=act
    )
    return layers.sequence_pool(convolved, pool_type)


def glu(input: Variable, dim: int = -1) -> Variable:
    """The first half along ``dim``, times sigmoid of the second (Dauphin et al., 2017)."""
    values, gates = layers.split(input, 2, dim)
    return layers.elementwise_mul(values, layers.sigmoid(gates))


def scaled_dot_product_attention(
    queries: Variable, keys: Variable, values: Variable, num_heads: int = 1, dropout_rate: float = 0.0
) -> Variable:
    """Means of ``values``, weighted by how similar their keys are to each query (Vaswani et al., 2017).

    Args:
        queries: [N, queries, D].
        keys: [N, keys, D].
        values: [N, keys, E].
        num_heads: with more than one, each of the three goes through an fc first; each head takes a part of D and E.
        dropout_rate: of the weights.

    Returns:
        [N, queries, E].
    """
    given = {"queries": queries, "keys": keys, "values": values}
    for name, value in given.items():
        if not isinstance(value, Variable):
            raise errors.TypeMismatch(
                f"nets.scaled_dot_product_attention: {name} has to be a Variable, got {type(value).__name__}"
            )
    shapes = [list(variable.shape) for variable in given.values()]
    if any(len(shape) != 3 for shape in shapes):
        raise errors.InvalidArgument(f"nets.scaled_dot_product_attention: inputs of 3 dimensions, got {shapes}")
    if shapes[0][2] != shapes[1][2] or shapes[1][1] != shapes[2][1]:
        raise errors.InvalidArgument(
            "nets.scaled_dot_product_attention: queries and keys must have the same width, and there must be as many "
            f"keys as values, got {shapes}"
        )
    num_heads = check_integer(num_heads, "nets.scaled_dot_product_attention: num_heads")
    if num_heads <= 0 or any(shape[2] <= 0 or shape[2] % num_heads for shape in shapes[1:]):
        raise errors.InvalidArgument(
            f"nets.scaled_dot_product_attention: the widths of {shapes[1:]} cannot be split into {num_heads} heads"
        )
    heads = [queries, keys, values]
    if num_heads > 1:
        heads = [layers.fc(variable, variable.shape[2], num_flatten_dims=2) for variable in heads]
        heads = [layers.reshape(x, [0, 0, num_heads, x.shape[2] // num_heads]) for x in heads]
        heads = [layers.transpose(x, [0, 2, 1, 3]) for x in heads]
    query, key, value = heads
    scaled = layers.scale(query, (shapes[1][2] // num_heads) ** -0.5)
    weights = layers.softmax(layers.matmul(scaled, key, transpose_y=True))
    if dropout_rate:
        weights = layers.dropout(weights, dropout_rate)
    out = layers.matmul(weights, value)
    if num_heads > 1:
        out = layers.reshape(layers.transpose(out, [0, 2, 1, 3]), [0, 0, shapes[2][2]])
    return out
