"""Layers that normalize what they are given, and learn a scale and a bias."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace import errors
from headrace.fluid import initializer
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_integer, check_number, check_variable
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike

__all__ = [
    "batch_norm",
    "data_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "spectral_norm",
]


def batch_norm(
    input: Variable,
    act: str | None = None,
    is_test: bool = False,
    momentum: float | Variable = 0.9,
    epsilon: float = 1e-05,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    fuse_with_relu: bool = False,
) -> Variable:
    """Normalises each channel of [N, C, ...] over the batch, then scales and shifts it (Ioffe and Szegedy, 2015).

    Args:
        is_test: use the running statistics, which training gathers with the weight 1 - ``momentum``; so does
            ``Program.clone(for_test=True)``.
        momentum: may be a variable of a single number.
        data_layout: "NHWC": of [N, ..., C].
        use_global_stats: use them in training too.
        fuse_with_relu: apply relu, before ``act``; of Fluid before 1.6.
        do_model_average_for_mean_and_var: whether ``optimizer.ModelAverage`` and ``ExponentialMovingAverage`` also
            average the running statistics.
        in_place: Fluid's; it makes no difference.
    """
    axis = -1 if data_layout == "NHWC" else 1
    input = check_variable(input, "input", "batch_norm")
    channels = input.shape[axis] if len(input.shape) > 1 else -1
    if channels <= 0:
        raise errors.InvalidArgument(
            f"layers.batch_norm: '{input.name}' must have a known number of channels (dimension {axis}), "
            f"got {list(input.shape)}"
        )
    helper = LayerHelper("batch_norm", name)
    one, zero = initializer.Constant(1.0), initializer.Constant(0.0)

    def parameter(attr: ParamAttrLike, is_bias: bool, default: initializer.Initializer) -> Variable:
        made = helper.create_parameter(attr, [channels], input.dtype, is_bias, default, stop_gradient=attr is False)
        if made is None:  # the operator needs one all the same
            made = helper.create_parameter(ParamAttr(initializer=default, trainable=False), [channels], input.dtype)
        assert made is not None
        return made

    scale = parameter(param_attr, False, one)
    bias = parameter(bias_attr, True, zero)
    averaged = do_model_average_for_mean_and_var
    mean = parameter(ParamAttr(moving_mean_name, zero, trainable=False, do_model_average=averaged), False, zero)
    variance = parameter(ParamAttr(moving_variance_name, one, trainable=False, do_model_average=averaged), False, one)
    mean.stop_gradient = variance.stop_gradient = True
    saved = {slot: helper.create_variable(input.dtype, stop_gradient=True) for slot in ("SavedMean", "SavedVariance")}
    out = helper.create_variable(input.dtype)
    inputs = {"X": input, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}
    if isinstance(momentum, Variable):
        inputs["MomentumTensor"] = momentum
    helper.append_op(
        inputs,
        {"Y": out, "MeanOut": mean, "VarianceOut": variance, **saved},
        {
            **(
                {} if isinstance(momentum, Variable) else {"momentum": check_number(momentum, "momentum", "batch_norm")}
            ),
            "epsilon": check_number(epsilon, "epsilon", "batch_norm"),
            "is_test": is_test,
            "data_layout": data_layout,
            "use_global_stats": use_global_stats,
        },
    )
    return helper.append_activation(helper.append_activation(out, "relu" if fuse_with_relu else None), act)


def data_norm(
    input: Variable,
    act: str | None = None,
    epsilon: float = 1e-05,
    param_attr: Mapping[str, float] | None = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_mkldnn: bool = False,
) -> Variable:
    """Normalises the columns of [N, C] by statistics of all batches so far, which are parameters: their "gradients" are
    the statistics of the batch, as in Fluid, so that an optimizer of their own has to add them up.

    Args:
        param_attr: a dict with the first values of the statistics: "batch_size" (10,000), "batch_sum" (0) and
            "batch_square" (10,000).
        in_place, use_mkldnn, moving_mean_name, moving_variance_name, do_model_average_for_mean_and_var: Fluid's; they
            have no effect.
    """
    input = check_variable(input, "input", "data_norm")
    width = input.shape[1] if len(input.shape) == 2 else -1
    if width <= 0:
        raise errors.InvalidArgument(
            f"layers.data_norm: '{input.name}' must be [N, C] with a known C, got {list(input.shape)}"
        )
    first = {"batch_size": 1e4, "batch_sum": 0.0, "batch_square": 1e4}
    if not isinstance(param_attr or {}, dict):
        raise errors.TypeMismatch(f"layers.data_norm: param_attr has to be a dict, got {param_attr!r}")
    for key, value in (param_attr or {}).items():
        if key not in first:
            raise errors.InvalidArgument(f"layers.data_norm: param_attr must have keys of {list(first)}, got {key!r}")
        first[key] = float(value)
    helper = LayerHelper("data_norm", name)
    statistics = {}
    for slot, key in (("BatchSize", "batch_size"), ("BatchSum", "batch_sum"), ("BatchSquareSum", "batch_square")):
        attr = ParamAttr(f"{helper.name}.{key}", initializer.Constant(first[key]))
        statistics[slot] = helper.create_parameter(attr, [width], input.dtype)
    block = helper.main_program.current_block()  # which names the outputs, as Fluid has it
    saved = {slot: block.create_var(dtype=input.dtype, stop_gradient=True) for slot in ("Means", "Scales")}
    out = block.create_var(dtype=input.dtype, stop_gradient=False)
    attrs = {"epsilon": check_number(epsilon, "epsilon", "data_norm"), "data_layout": data_layout}
    helper.append_op({"X": input, **statistics}, {"Y": out, **saved}, attrs)
    return helper.append_activation(out, act)


def layer_norm(
    input: Variable,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-05,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """Normalises each row, made of the dimensions from ``begin_norm_axis`` on, then scales and shifts its elements."""
    begin_norm_axis = check_integer(begin_norm_axis, "begin_norm_axis", "layer_norm")
    width = check_variable(input, "input", "layer_norm").shape[begin_norm_axis:]
    if not width or any(d <= 0 for d in width):
        raise errors.InvalidArgument(
            f"layers.layer_norm: the dimensions of '{input.name}' from {begin_norm_axis} on have to be known, "
            f"got {list(input.shape)}"
        )
    helper = LayerHelper("layer_norm", name)
    size = [math.prod(width)]
    one = initializer.Constant(1.0)
    weights = {
        "Scale": helper.create_parameter(param_attr, size, input.dtype, default_initializer=one) if scale else None,
        "Bias": helper.create_parameter(bias_attr, size, input.dtype, is_bias=True) if shift else None,
    }
    statistics = {slot: helper.create_variable(input.dtype, stop_gradient=True) for slot in ("Mean", "Variance")}
    out = helper.create_variable(input.dtype)
    helper.append_op(
        {"X": input, **weights},
        {"Y": out, **statistics},
        {"begin_norm_axis": begin_norm_axis, "epsilon": check_number(epsilon, "epsilon", "layer_norm")},
    )
    return helper.append_activation(out, act)


def group_norm(
    input: Variable,
    groups: int,
    epsilon: float = 1e-05,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    act: str | None = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Normalises ``groups`` groups of channels of each image of [N, C, ...], then scales and shifts each channel (Wu
    and He, 2018).

    Args:
        param_attr, bias_attr: of the scale and the shift. Unlike in other layers, None means that there is none, as in
            Fluid; True: one with the defaults.
        data_layout: "NHWC": of [N, ..., C].
    """
    if data_layout not in ("NCHW", "NHWC"):
        raise errors.InvalidArgument(f"layers.group_norm: data_layout has to be 'NCHW' or 'NHWC', got {data_layout!r}")
    axis, dims = (-1, "[N, ..., C]") if data_layout == "NHWC" else (1, "[N, C, ...]")
    input = check_variable(input, "input", "group_norm")
    channels = input.shape[axis] if len(input.shape) > 1 else -1
    if channels <= 0:
        raise errors.InvalidArgument(
            f"layers.group_norm: '{input.name}' must be {dims} with a known C, got {list(input.shape)}"
        )
    helper = LayerHelper("group_norm", name)
    one = initializer.Constant(1.0)
    weights = {
        "Scale": helper.create_parameter(param_attr or False, [channels], input.dtype, default_initializer=one),
        "Bias": helper.create_parameter(bias_attr or False, [channels], input.dtype, is_bias=True),
    }
    block = helper.main_program.current_block()  # which names the outputs, as Fluid has it
    statistics = {slot: block.create_var(dtype=input.dtype, stop_gradient=True) for slot in ("Mean", "Variance")}
    out = block.create_var(dtype=input.dtype, stop_gradient=False)
    helper.append_op(
        {"X": input, **weights},
        {"Y": out, **statistics},
        {"groups": groups, "epsilon": check_number(epsilon, "epsilon", "group_norm"), "data_layout": data_layout},
    )
    return helper.append_activation(out, act)


def instance_norm(
    input: Variable,
    epsilon: float = 1e-05,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    name: str | None = None,
) -> Variable:
    """Normalises each channel of each image of [N, C, ...], then scales and shifts it (Ulyanov et al., 2016)."""
    input = check_variable(input, "input", "instance_norm")
    channels = input.shape[1] if len(input.shape) > 1 else -1
    if channels <= 0:
        raise errors.InvalidArgument(
            f"layers.instance_norm: '{input.name}' must be [N, C, ...] with a known C, got {list(input.shape)}"
        )
    helper = LayerHelper("instance_norm", name)
    one = initializer.Constant(1.0)
    scale = helper.create_parameter(param_attr, [channels], input.dtype, default_initializer=one)
    bias = helper.create_parameter(bias_attr, [channels], input.dtype, is_bias=True)
    if scale is None or bias is None:
        raise errors.InvalidArgument("layers.instance_norm: expected attributes of scale and bias, got False")
    saved = {slot: helper.create_variable(input.dtype, stop_gradient=True) for slot in ("SavedMean", "SavedVariance")}
    out = helper.create_variable(input.dtype)
    attrs = {"epsilon": check_number(epsilon, "epsilon", "instance_norm")}
    helper.append_op({"X": input, "Scale": scale, "Bias": bias}, {"Y": out, **saved}, attrs)
    return out


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
    dim = check_integer(dim, "dim", "spectral_norm")
    rank = len(check_variable(weight, "weight", "spectral_norm").shape)
    if rank < 2 or not -rank <= dim < rank or min(weight.shape) < 1:
        raise errors.InvalidArgument(
            f"layers.spectral_norm: '{weight.name}' has to have known dims, 2 or more, and dim has to be one of them; "
            f"got {list(weight.shape)} and {dim}"
        )
    rows = weight.shape[dim]
    helper = LayerHelper("spectral_norm", name)
    inputs = {"Weight": weight}
    for slot, extent in (("U", rows), ("V", math.prod(weight.shape) // rows)):
        vector = helper.create_parameter(
            ParamAttr(trainable=False),
            [extent],
            weight.dtype,
            default_initializer=initializer.Normal(0.0, 1.0),
            stop_gradient=True,
        )
        assert vector is not None  # the attribute is not False
        inputs[slot] = vector
    out = helper.create_variable(weight.dtype)
    helper.append_op(
        inputs, {"Out": out}, {"dim": dim, "power_iters": power_iters, "eps": check_number(eps, "eps", "spectral_norm")}
    )
    return out
