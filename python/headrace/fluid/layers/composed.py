"""Layers that are made of others."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

from headrace import errors
from headrace.fluid import initializer
from headrace.fluid.core import VarType, dtype_name
from headrace.fluid.framework import OpRole, Variable
from headrace.fluid.layer_helper import LayerHelper, append_layer, as_integers, check_shape, check_variable
from headrace.fluid.layers.control_flow import greater_equal
from headrace.fluid.layers.elementwise import (
    elementwise_add,
    elementwise_div,
    elementwise_floordiv,
    elementwise_mul,
    elementwise_sub,
)
from headrace.fluid.layers.nn import clip, matmul, scale
from headrace.fluid.layers.ops import softplus, sqrt, square
from headrace.fluid.layers.rearrange import expand, gather, scatter_nd_add, shape
from headrace.fluid.layers.reductions import reduce_sum
from headrace.fluid.layers.tensor import assign, cast, fill_constant, ones, reshape, transpose, zeros
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike

__all__ = ["affine_grid", "center_loss", "expand_as", "fsp_matrix", "spectral_norm", "teacher_student_sigmoid_loss"]


def _constant(x: Variable) -> Variable:
    """A copy through which no gradient goes."""
    copy = assign(x)
    copy.stop_gradient = True
    return copy


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """``x``, repeated along each dimension to the shape of ``target_tensor``, whose extents are multiples of its."""
    x = check_variable(x, "x", "expand_as")
    target_tensor = check_variable(target_tensor, "target_tensor", "expand_as")
    own, wanted = x.shape, target_tensor.shape
    if len(own) != len(wanted):
        raise errors.InvalidArgument(
            f"layers.expand_as: both need the same number of dimensions, got {list(own)} and {list(wanted)}"
        )
    for d, (extent, goal) in enumerate(zip(own, wanted)):
        if extent > 0 and goal > 0 and goal % extent != 0:
            raise errors.InvalidArgument(
                f"layers.expand_as: dimension {d} of {list(wanted)} is not a multiple of that of {list(own)}"
            )
    if all(extent > 0 for extent in (*own, *wanted)):
        return expand(x, [goal // extent for extent, goal in zip(own, wanted)], name)
    out = expand(x, elementwise_floordiv(shape(target_tensor), shape(x)), name)
    out.desc.shape = list(wanted)
    return out


def fsp_matrix(x: Variable, y: Variable) -> Variable:
    """How two feature maps go together, for distillation (Yim et al., 2017): the mean over all pixels of the products
    of their channels.

    Args:
        x, y: [N, C, H, W] and [N, D, H, W], with known H and W.

    Returns:
        [N, C, D].
    """
    maps = []
    for what, value in (("x", x), ("y", y)):
        if len(check_variable(value, what, "fsp_matrix").shape) != 4 or min(value.shape[1:]) < 1:
            raise errors.InvalidArgument(
                f"layers.fsp_matrix: '{value.name}' has to be [N, C, H, W] with known C, H, W, is {list(value.shape)}"
            )
        maps.append(reshape(value, [-1, value.shape[1], value.shape[2] * value.shape[3]]))
    if x.shape[2:] != y.shape[2:]:
        raise errors.InvalidArgument(
            f"layers.fsp_matrix: the maps have to have the same size, got {list(x.shape)} and {list(y.shape)}"
        )
    return matmul(maps[0], maps[1], transpose_y=True, alpha=1.0 / (x.shape[2] * x.shape[3]))


def spectral_norm(
    weight: Variable, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Variable:
    """A weight divided by its greatest singular value, as power iteration finds it from two vectors that are drawn in
    the startup program (Miyato et al., 2018). The vectors that it finds count as constants for the gradient.

    Args:
        weight: a parameter of rank 2 or more; as a matrix, its dimension ``dim`` makes the rows.
        power_iters: how many iterations each run makes.
        eps: is added to norms.
    """
    rank = len(check_variable(weight, "weight", "spectral_norm").shape)
    if rank < 2 or not -rank <= dim < rank or min(weight.shape) < 1:
        raise errors.InvalidArgument(
            f"layers.spectral_norm: '{weight.name}' has to have known dims, 2 or more, and dim has to be one of them; "
            f"got {list(weight.shape)} and {dim}"
        )
    if power_iters < 0:
        raise errors.InvalidArgument(f"layers.spectral_norm: power_iters has to be 0 or more, got {power_iters}")
    dim %= rank
    order = [dim, *(d for d in range(rank) if d != dim)]
    rows = weight.shape[dim]
    columns = math.prod(weight.shape) // rows
    matrix = reshape(weight if dim == 0 else transpose(weight, order), [rows, columns])
    helper = LayerHelper("spectral_norm", name)
    normal = initializer.Normal(0.0, 1.0)
    vectors = []
    for extent in (rows, columns):
        vector = helper.create_parameter(
            ParamAttr(trainable=False), [extent], weight.dtype, default_initializer=normal, stop_gradient=True
        )
        assert vector is not None  # the attribute is not False
        vectors.append(reshape(vector, [extent, 1]))
    u, v = vectors
    for _ in range(power_iters):
        v = _normalized(matmul(matrix, u, transpose_x=True), eps)
        u = _normalized(matmul(matrix, v), eps)
    u, v = _constant(u), _constant(v)
    sigma = reshape(matmul(matmul(u, matrix, transpose_x=True), v), [1])
    return elementwise_div(weight, sigma)


def _normalized(x: Variable, eps: float) -> Variable:
    return elementwise_div(x, scale(sqrt(reshape(reduce_sum(square(x)), [1])), bias=eps))


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


def teacher_student_sigmoid_loss(
    input: Variable, label: Variable, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Variable:
    """The logistic loss of clicks, plus that of a teacher's prediction where it is known; [N, 1].

    Args:
        input: [N, 1], a score.
        label: [N, 1]: -2: no click; -1: a click; from 0 to below 1: the teacher's prediction, without a click; from 1
            to 2: that plus 1, with a click.
        soft_max_up_bound, soft_max_lower_bound: there is no gradient for scores beyond them.
    """
    input = check_variable(input, "input", "teacher_student_sigmoid_loss")
    label = check_variable(label, "label", "teacher_student_sigmoid_loss")
    inside = clip(input, soft_max_lower_bound, soft_max_up_bound)
    x = elementwise_add(inside, _constant(elementwise_sub(input, inside)))
    knows = cast(greater_equal(label, fill_constant([1], label.dtype, 0.0)), label.dtype)
    clicks = cast(greater_equal(label, fill_constant([1], label.dtype, -1.0)), label.dtype)
    weight = elementwise_add(elementwise_mul(knows, label), elementwise_sub(clicks, knows))
    total = elementwise_mul(softplus(x), scale(knows, bias=1.0))
    return elementwise_sub(total, elementwise_mul(x, _constant(weight)))


def center_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    alpha: float | Variable,
    param_attr: ParamAttrLike,
    update_center: bool = True,
) -> Variable:
    """½ ‖x - c‖², where c is the centre of the class of each row x (Wen et al., 2016); [N, 1].

    Args:
        input: [N, D].
        label: int64 [N, 1], a class each.
        alpha: how far the centres move in each run towards the rows of their classes: of the sum of the differences,
            divided by 1 and their number.
        param_attr: of the centres, [num_classes, D], which no optimizer changes.
        update_center: whether they move; in a program for testing they never do.
    """
    label = check_variable(label, "label", "center_loss")
    width = check_variable(input, "input", "center_loss").shape[1] if len(input.shape) == 2 else -1
    if width < 1 or label.dtype != VarType.INT64:
        raise errors.InvalidArgument(
            "layers.center_loss: input has to be [N, D] with a known D, and label int64; they are "
            f"{list(input.shape)} and {dtype_name(label.dtype)}"
        )
    helper = LayerHelper("center_loss")
    attr = copy.copy(ParamAttr._to_attr(param_attr))
    if attr is None:
        raise errors.InvalidArgument("layers.center_loss: param_attr=False is not supported; the loss needs centres")
    attr.trainable = False
    centers = helper.create_parameter(attr, [num_classes, width], input.dtype, stop_gradient=True)
    assert centers is not None  # the attribute is not False
    if not isinstance(alpha, Variable):
        alpha = _persistent_number("centerloss_alpha", float(alpha), input.dtype)
    rows = reshape(label, [-1])
    difference = elementwise_sub(input, _constant(gather(centers, rows)))
    loss = scale(reduce_sum(square(difference), dim=1, keep_dim=True), 0.5)
    if update_center:
        with helper.main_program._role_guard(OpRole.OPTIMIZE):
            places = reshape(label, [-1, 1])
            moves = _constant(difference)
            sums = scatter_nd_add(zeros([num_classes, width], input.dtype), places, moves)
            each = reduce_sum(scale(moves, 0.0, bias=1.0), dim=1) * (1.0 / width)
            counts = scatter_nd_add(ones([num_classes], input.dtype), places, each)
            step = elementwise_mul(elementwise_div(sums, counts, axis=0), alpha)
            assign(elementwise_add(centers, step), output=centers)
    return loss


def _persistent_number(name: str, value: float, dtype: VarType) -> Variable:
    """A number that files of parameters have, as in Fluid, whose value is nevertheless set in each run."""
    helper = LayerHelper("fill_constant")
    variable, _ = helper.create_or_get_global_variable(name, shape=[1], dtype=dtype, init=initializer.Constant(value))
    return fill_constant([1], dtype, value, out=variable)
