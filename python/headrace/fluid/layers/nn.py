"""The layers of neural networks.

Shapes are those of a batch: N is its size, -1 in a declared shape is known only at run time. A layer that cannot take
its inputs raises InvalidArgument or TypeMismatch, with the operator's name, when it is added to the program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from headrace import errors
from headrace.fluid import core, initializer
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import (
    LayerHelper,
    append_layer,
    as_integers,
    check_integer,
    check_number,
    check_shape,
    check_variable,
    check_variables,
)
from headrace.fluid.param_attr import ParamAttrLike

__all__ = [
    "add_position_encoding",
    "argmax",
    "argmin",
    "argsort",
    "autoincreased_step_counter",
    "bilinear_tensor_product",
    "clip",
    "clip_by_norm",
    "cos_sim",
    "cumsum",
    "dropout",
    "embedding",
    "fc",
    "l1_norm",
    "l2_normalize",
    "log_softmax",
    "matmul",
    "mean",
    "mul",
    "prelu",
    "scale",
    "softmax",
    "squared_l2_norm",
    "topk",
    "where",
]


def fc(
    input: Variable | Sequence[Variable],
    size: int,
    num_flatten_dims: int = 1,
    param_attr: ParamAttrLike | Sequence[ParamAttrLike] = None,
    bias_attr: ParamAttrLike = None,
    act: str | None = None,
    name: str | None = None,
    is_test: bool = False,
) -> Variable:
    """A fully connected layer: the sum over the inputs of input · weight, plus a bias. ``is_test`` makes no difference.

    Args:
        input: the dimensions from ``num_flatten_dims`` on are seen as one; their extents have to be known.
        size: of the last dimension of the output.

    Returns:
        The first ``num_flatten_dims`` dimensions of the input, then ``size``.
    """
    inputs = check_variables(input, "input", "fc")
    attrs: list[Any] = list(param_attr) if isinstance(param_attr, (list, tuple)) else [param_attr] * len(inputs)
    if not inputs or len(attrs) != len(inputs):
        raise errors.InvalidArgument(f"layers.fc: {len(inputs)} inputs need as many param_attrs, got {len(attrs)}")
    helper = LayerHelper("fc", name)
    products = []
    for x, attr in zip(inputs, attrs):
        rows = x.shape[check_integer(num_flatten_dims, "num_flatten_dims", "fc") :]
        if not rows or any(d < 0 for d in rows):
            raise errors.InvalidArgument(
                f"layers.fc: the dimensions of '{x.name}' from {num_flatten_dims} on have to be known, "
                f"got {list(x.shape)}"
            )
        weight = helper.create_weight(attr, [math.prod(rows), size], x.dtype)
        product = helper.create_variable(x.dtype)
        helper.append_op(
            {"X": x, "Y": weight},
            {"Out": product},
            {"x_num_col_dims": num_flatten_dims, "y_num_col_dims": 1},
            type="mul",
        )
        products.append(product)
    total = products[0]
    if len(products) > 1:
        total = helper.create_variable(total.dtype)
        helper.append_op({"X": products}, {"Out": total}, type="sum")
    biased = helper.append_bias(total, bias_attr, dim_start=num_flatten_dims, size=size)
    return helper.append_activation(biased, act)


def bilinear_tensor_product(
    x: Variable,
    y: Variable,
    size: int,
    act: str | None = None,
    name: str | None = None,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
) -> Variable:
    """x · W · y, row by row, for each of ``size`` matrices W, plus a bias: [N, size] of [N, a] and [N, b]."""
    widths = []
    for what, variable in (("x", x), ("y", y)):
        dims = check_variable(variable, what, "bilinear_tensor_product").shape
        if len(dims) != 2 or dims[1] < 0:
            raise errors.InvalidArgument(
                f"layers.bilinear_tensor_product: '{variable.name}' must be [N, width] with a known width, "
                f"got {list(dims)}"
            )
        widths.append(dims[1])
    helper = LayerHelper("bilinear_tensor_product", name)
    weight = helper.create_weight(param_attr, [size, *widths], x.dtype)
    bias = helper.create_parameter(bias_attr, [1, size], x.dtype, is_bias=True)
    out = helper.create_variable(x.dtype, name=name)
    helper.append_op({"X": x, "Y": y, "Weight": weight, "Bias": bias}, {"Out": out})
    return helper.append_activation(out, act)


def add_position_encoding(input: Variable, alpha: float, beta: float, name: str | None = None) -> Variable:
    """alpha · input + beta · encoding, which encodes by sines and cosines the position of each row in its sequence
    (Vaswani et al., 2017).

    Args:
        input: [sequences, length, width], or [rows, width] with a LoD of one level; the width is even.
    """
    layer = "add_position_encoding"
    attrs = {"alpha": check_number(alpha, "alpha", layer), "beta": check_number(beta, "beta", layer)}
    return append_layer("add_position_encoding", {"X": input}, attrs, name, exact_name=True)


def dropout(
    x: Variable,
    dropout_prob: float,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Variable:
    """Sets elements to zero at random, in training.

    Args:
        dropout_prob: how probable that is.
        is_test: drop nothing; so does ``Program.clone(for_test=True)``.
        seed: if given and not 0, the same elements in each run. Otherwise others in each run: the same ones when
            training is repeated if the program has a ``random_seed``.
        dropout_implementation: "upscale_in_train": the remaining elements are divided by 1 - dropout_prob.
            "downgrade_in_infer": in a test everything is multiplied by it.
    """
    helper = LayerHelper("dropout", name)
    inputs = {"X": check_variable(x, "x", "dropout")}
    out = helper.create_variable(x.dtype)
    mask = helper.create_variable("uint8", stop_gradient=True)
    attrs = {
        "dropout_prob": check_number(dropout_prob, "dropout_prob", "dropout"),
        "is_test": is_test,
        "dropout_implementation": dropout_implementation,
    }
    helper.append_random_op(inputs, {"Out": out, "Mask": mask}, attrs, seed, draws=not is_test)
    return out


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: ParamAttrLike = None,
    dtype: Any = "float32",
) -> Variable:
    """The rows of a table, a parameter of shape ``size`` [rows, width], with the numbers ``input`` (int64 [..., 1]).

    Args:
        padding_idx: the number whose row is zero and does not learn; negative ones count from the back.
        is_sparse: the gradient of the table is SelectedRows: a step costs as much as the rows that it touches, with
            an optimizer that updates only those (SGD, Adagrad, Ftrl, and Adam with ``lazy_mode``).
        is_distributed: Fluid's; has no effect.

    Returns:
        [..., width].
    """
    return _embedding("lookup_table", input, size, is_sparse, padding_idx, param_attr, dtype)


def _embedding(
    op_type: str,
    input: Variable,
    size: Sequence[int],
    is_sparse: bool,
    padding_idx: int | None,
    param_attr: ParamAttrLike,
    dtype: Any,
) -> Variable:
    helper = LayerHelper("embedding")
    size = check_shape(size, "size", "embedding")
    table = helper.create_parameter(param_attr, size, dtype) if len(size) == 2 else None
    if table is None:
        raise errors.InvalidArgument(f"layers.embedding: a table of [rows, width] is needed, got {size}")
    padding = -1 if padding_idx is None else check_integer(padding_idx, "padding_idx", "embedding")
    if padding_idx is not None and padding < 0:
        padding += size[0]
    out = helper.create_variable(dtype)
    ids = check_variable(input, "input", "embedding")
    attrs = {"padding_idx": padding, "is_sparse": is_sparse}
    helper.append_op({"W": table, "Ids": ids}, {"Out": out}, attrs, type=op_type)
    return out


def argmax(x: Variable, axis: int = 0) -> Variable:
    """Where the greatest element is along ``axis``; int64."""
    helper = LayerHelper("arg_max")
    out = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"X": check_variable(x, "x", "argmax")}, {"Out": out}, {"axis": axis})
    return out


def argmin(x: Variable, axis: int = 0) -> Variable:
    """Where the least element is along ``axis``; int64."""
    helper = LayerHelper("arg_min")
    out = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"X": check_variable(x, "x", "argmin")}, {"Out": out}, {"axis": axis})
    return out


def argsort(
    input: Variable, axis: int = -1, descending: bool = False, name: str | None = None
) -> tuple[Variable, Variable]:
    """The elements in order along ``axis``, and where they were (int64). ``descending``: the greatest first."""
    helper = LayerHelper("argsort", name)
    out = helper.create_variable(check_variable(input, "input", "argsort").dtype)
    indices = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"X": input}, {"Out": out, "Indices": indices}, {"axis": axis, "descending": descending})
    return out, indices


def autoincreased_step_counter(counter_name: str | None = None, begin: int = 1, step: int = 1) -> Variable:
    """The number of the run, an int64 [1]: ``begin`` - 1 + ``step`` in the first one, ``step`` more in each after it.

    Args:
        counter_name: of the variable; a program has one counter for each name.
    """
    helper = LayerHelper("global_step_counter")
    name = "@STEP_COUNTER@" if counter_name is None else counter_name
    root = helper.main_program.global_block()
    if root.has_var(name):
        return root.var(name)
    counter = helper.create_global_variable(name, [1], "int64", initializer.Constant(begin - 1))
    root._prepend_op(
        "increment",
        {"X": counter},
        {"Out": counter},
        {"step": core.exact_float(step, "layers.autoincreased_step_counter: step")},
    )
    return counter


def cumsum(
    x: Variable, axis: int | None = None, exclusive: bool | None = None, reverse: bool | None = None
) -> Variable:
    """The sum of the elements up to each one along ``axis``, by default the last dimension.

    Args:
        exclusive: leave the element itself out.
        reverse: add up the elements after it instead.
    """
    return append_layer("cumsum", {"X": x}, {"axis": axis, "exclusive": exclusive, "reverse": reverse})


def clip(x: Variable, min: float, max: float, name: str | None = None) -> Variable:
    """x, not less than ``min`` and not more than ``max``, element by element."""
    attrs = {"min": check_number(min, "min", "clip"), "max": check_number(max, "max", "clip")}
    return append_layer("clip", {"X": x}, attrs, name, exact_name=True)


def clip_by_norm(x: Variable, max_norm: float, name: str | None = None) -> Variable:
    """x, scaled down so that its Euclidean norm is ``max_norm`` if it is greater."""
    attrs = {"max_norm": check_number(max_norm, "max_norm", "clip_by_norm")}
    return append_layer("clip_by_norm", {"X": x}, attrs, name, exact_name=True)


def l2_normalize(x: Variable, axis: int, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """The vectors along ``axis``, scaled to the Euclidean length 1; ``epsilon`` is added to the sum of the squares."""
    helper = LayerHelper("l2_normalize", name)
    out = helper.create_variable(check_variable(x, "x", "l2_normalize").dtype)
    norm = helper.create_variable(x.dtype, stop_gradient=True)
    axis = 0 if len(x.shape) == 1 else 1 if axis is None else axis
    helper.append_op(
        {"X": x},
        {"Out": out, "Norm": norm},
        {"axis": axis, "epsilon": check_number(epsilon, "epsilon", "l2_normalize")},
        type="norm",
    )
    return out


def l1_norm(x: Variable, name: str | None = None) -> Variable:
    """The sum of the absolute values; [1]."""
    return append_layer("l1_norm", {"X": x}, name=name)


def squared_l2_norm(x: Variable, name: str | None = None) -> Variable:
    """The sum of the squares; [1]."""
    return append_layer("squared_l2_norm", {"X": x}, name=name)


def cos_sim(X: Variable, Y: Variable) -> Variable:
    """The cosine of the angle between the rows of ``X`` and those, or the only one, of ``Y``; [rows, 1]."""
    helper = LayerHelper("cos_sim")
    out = helper.create_variable(check_variable(X, "X", "cos_sim").dtype)
    norms = {slot: helper.create_variable(X.dtype, stop_gradient=True) for slot in ("XNorm", "YNorm")}
    helper.append_op({"X": X, "Y": check_variable(Y, "Y", "cos_sim")}, {"Out": out, **norms})
    return out


def prelu(x: Variable, mode: str, param_attr: ParamAttrLike = None, name: str | None = None) -> Variable:
    """x, or a learned slope times x where x < 0.

    Args:
        mode: "all": one slope; "channel": one for each channel (dimension 1); "element": one for each element
            of a sample.
        param_attr: of the slopes, which begin with 1.
    """
    helper = LayerHelper("prelu", name)
    channels = check_variable(x, "x", "prelu").shape[1:2]
    shape = {"all": [1], "channel": [1, *channels, 1, 1], "element": [1, *x.shape[1:]]}
    if mode not in shape:
        raise errors.InvalidArgument(f"layers.prelu: mode has to be 'all', 'channel' or 'element', got {mode!r}")
    alpha = helper.create_weight(param_attr, shape[mode], x.dtype, default_initializer=initializer.Constant(1.0))
    out = helper.create_variable(x.dtype)
    helper.append_op({"X": x, "Alpha": alpha}, {"Out": out}, {"mode": mode})
    return out


def softmax(input: Variable, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Variable:
    """exp(input) divided by its sum along ``axis``. As in Fluid, what is finite counts as at most 64 below the maximum,
    so that no probability is 0 but that of -inf. ``use_cudnn`` has no effect.
    """
    return append_layer("softmax", {"X": input}, {"axis": axis}, name)


def log_softmax(input: Variable, name: str | None = None, axis: int = -1) -> Variable:
    """The logarithm of softmax."""
    return append_layer("log_softmax", {"X": input}, {"axis": axis}, name)


def mean(x: Variable, name: str | None = None) -> Variable:
    """The mean of all elements, [1]."""
    return append_layer("mean", {"X": x}, name=name, exact_name=True)


def topk(input: Variable, k: int | Variable, name: str | None = None) -> tuple[Variable, Variable]:
    """The ``k`` greatest values of each row (the last dimension), in descending order, and their positions (int64).
    ``k`` may be an int32 or int64 variable of one element.
    """
    helper = LayerHelper("top_k", name)
    values = helper.create_variable(check_variable(input, "input", "topk").dtype)
    indices = helper.create_variable("int64", stop_gradient=True)
    inputs, attrs = ({"X": input, "K": as_integers(k)}, {}) if isinstance(k, Variable) else ({"X": input}, {"k": k})
    helper.append_op(inputs, {"Out": values, "Indices": indices}, attrs)
    return values, indices


def where(condition: Variable) -> Variable:
    """The coordinates of the elements of ``condition``, a bool tensor, that are true, in the order of the elements;
    int64 [number of true elements, rank of ``condition``].
    """
    helper = LayerHelper("where")
    out = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"Condition": check_variable(condition, "condition", "where")}, {"Out": out})
    return out


def matmul(
    x: Variable,
    y: Variable,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Variable:
    """alpha · x · y for the matrices in the last two dimensions."""
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": check_number(alpha, "alpha", "matmul")}
    return append_layer("matmul", {"X": x, "Y": y}, attrs, name)


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1, name: str | None = None
) -> Variable:
    """The product of two matrices: the first ``x_num_col_dims`` dimensions of ``x`` are its rows, and so on."""
    attrs = {"x_num_col_dims": x_num_col_dims, "y_num_col_dims": y_num_col_dims}
    return append_layer("mul", {"X": x, "Y": y}, attrs, name, exact_name=True)


def scale(
    x: Variable,
    scale: float | Variable = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """scale · x + bias, or scale · (x + bias).

    Args:
        scale: may be a variable of a single floating-point number, which gets no gradient.
    """
    inputs = {"X": x}
    attrs = {"bias": core.exact_float(bias, "layers.scale: bias"), "bias_after_scale": bias_after_scale}
    if isinstance(scale, Variable):
        inputs["ScaleTensor"] = scale
    else:
        attrs["scale"] = core.exact_float(scale, "layers.scale: scale")
    return append_layer("scale", inputs, attrs, name, act, exact_name=True)
