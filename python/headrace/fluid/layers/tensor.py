"""Layers that make tensors or change their form."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid import core
from headrace.fluid._names import free_name
from headrace.fluid.framework import Variable, default_main_program
from headrace.fluid.initializer import Constant, Initializer, NumpyArrayInitializer
from headrace.fluid.layer_helper import (
    Ints,
    LayerHelper,
    as_integers,
    check_integer,
    check_shape,
    check_variable,
    check_variables,
    declare_known,
    ints_argument,
)
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike

__all__ = [
    "assign",
    "cast",
    "concat",
    "create_global_var",
    "create_parameter",
    "create_tensor",
    "diag",
    "eye",
    "fill_constant",
    "fill_constant_batch_size_like",
    "flatten",
    "increment",
    "linspace",
    "ones",
    "ones_like",
    "range",
    "rank",
    "reshape",
    "split",
    "squeeze",
    "sum",
    "sums",
    "transpose",
    "unsqueeze",
    "zeros",
    "zeros_like",
]


def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Variable:
    """A variable to be written to."""
    block = default_main_program().current_block()
    name = free_name("create_tensor", block.program) if name is None else name
    return block.create_var(name=name, dtype=dtype, persistable=bool(persistable))


def create_parameter(
    shape: Sequence[int],
    dtype: Any,
    name: str | None = None,
    attr: ParamAttrLike = None,
    is_bias: bool = False,
    default_initializer: Initializer | None = None,
) -> Variable:
    """A parameter; with a WeightNormParamAttr, the weight computed from its two. An initializer of ``attr`` goes before
    ``default_initializer``.
    """
    given = ParamAttr._to_attr(attr)
    if not given:
        raise errors.InvalidArgument("layers.create_parameter: attr=False means that there is no parameter")
    if name is not None:
        given = given._named(name)
    extents = check_shape(shape, "shape", "create_parameter")
    parameter = LayerHelper("create_parameter").create_parameter(given, extents, dtype, is_bias, default_initializer)
    assert parameter is not None  # attr is not False
    return parameter


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: str | None = None,
) -> Variable:
    """A variable that the startup program fills with ``value``. It survives a run in any case.

    Args:
        persistable: whether ``fluid.io`` saves it; checkpoints and inference models have it in any case.
        force_cpu: Fluid's; makes no difference.
    """
    shape = check_shape(shape, "shape", "create_global_var")
    variable = LayerHelper("global_var", name).create_global_variable(name, shape, dtype, Constant(value))
    if not persistable:
        variable._keep_unsaved()
    return variable


def cast(x: Variable, dtype: Any) -> Variable:
    """The same values in another dtype."""
    helper = LayerHelper("cast")
    out = helper.create_variable(dtype)
    in_dtype = check_variable(x, "x", "cast").dtype
    helper.append_op({"X": x}, {"Out": out}, {"in_dtype": int(in_dtype), "out_dtype": int(core.convert_dtype(dtype))})
    return out


def sums(input: Variable | Sequence[Variable], out: Variable | None = None) -> Variable:
    """The sum of variables of the same shape; or of arrays, place by place, where places that an array lacks are left
    out.
    """
    helper = LayerHelper("sum")
    items = check_variables(input, "input", "sums")
    if not items:
        raise errors.InvalidArgument("layers.sums: there is nothing to add")
    out = helper.create_variable(items[0].dtype) if out is None else out
    helper.append_op({"X": items}, {"Out": out})
    return out


def sum(x: Variable | Sequence[Variable]) -> Variable:
    """The sum of variables of the same shape; see sums."""
    return sums(x)


def assign(input: Variable | np.ndarray, output: Variable | None = None) -> Variable:
    """A copy of a variable, which may also be an array of variables or SelectedRows; or a constant from an array of
    float32, int32, int64 or bool.

    Args:
        output: gets the dtype of an array of float32 or int32, unless it persists or an operator has it already.
    """
    helper = LayerHelper("assign")
    if isinstance(input, Variable):
        output = helper.create_variable(input.dtype) if output is None else output
        helper.append_op({"X": input}, {"Out": output})
        return output
    array = np.asarray(input)
    if output is None:
        if array.dtype.name not in ("float32", "int32", "int64", "bool"):
            raise errors.TypeMismatch(
                f"layers.assign: an array becomes part of the program as float32, int32, int64 or bool, got "
                f"{array.dtype}; convert it with astype, and the variable with layers.cast"
            )
        output = helper.create_variable(array.dtype, stop_gradient=True)
    elif (
        array.dtype.name in ("float32", "int32")
        and output.dtype != core.convert_dtype(array.dtype)
        and not output.persistable
        and not _is_used(output)  # which looks through the program
    ):
        output.desc.dtype = int(core.convert_dtype(array.dtype))
    output.desc.shape = list(array.shape)
    NumpyArrayInitializer(array)(output, helper.main_program.current_block())
    return output


def _is_used(variable: Variable) -> bool:
    """Whether an operator of its program has it."""
    ops = (op for block in variable.block.program.blocks for op in block.ops)
    return any(variable.name in op.input_arg_names + op.output_arg_names for op in ops)


def fill_constant(
    shape: Ints, dtype: Any, value: float, force_cpu: bool = False, out: Variable | None = None
) -> Variable:
    """A tensor of which every element is ``value``.

    Args:
        shape: integers; int32 or int64 variables of one element may be among them; or such a variable that holds all.
        force_cpu: has no effect.
    """
    helper = LayerHelper("fill_constant")
    out = helper.create_variable(dtype, stop_gradient=True) if out is None else out
    inputs, extents = ints_argument(shape, "shape", "fill_constant", "shape", "ShapeTensor", "ShapeTensorList", 0)
    attrs: dict[str, Any] = {**extents, "dtype": int(core.convert_dtype(dtype))}
    attrs["value"] = core.as_float(value, "layers.fill_constant: value")
    if isinstance(value, (int, np.integer)):  # may have more digits than a float holds
        attrs["str_value"] = str(check_integer(value, "value", "fill_constant"))
    helper.append_op(inputs, {"Out": out}, attrs)
    if inputs:
        declare_known(out, extents.get("shape", []))
    return out


def fill_constant_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any,
    value: float,
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    force_cpu: bool = False,
) -> Variable:
    """As fill_constant, with dimension ``output_dim_idx`` taken from dimension ``input_dim_idx`` of ``input``.
    ``force_cpu`` has no effect.
    """
    helper = LayerHelper("fill_constant_batch_size_like")
    out = helper.create_variable(dtype, stop_gradient=True)
    attrs = {
        "shape": check_shape(shape, "shape", "fill_constant_batch_size_like"),
        "dtype": int(core.convert_dtype(dtype)),
        "value": core.exact_float(value, "layers.fill_constant_batch_size_like: value"),
        "input_dim_idx": input_dim_idx,
        "output_dim_idx": output_dim_idx,
    }
    helper.append_op({"Input": check_variable(input, "input", "fill_constant_batch_size_like")}, {"Out": out}, attrs)
    return out


def zeros(shape: Ints, dtype: Any, force_cpu: bool = False) -> Variable:
    """A tensor of zeros; see fill_constant."""
    return fill_constant(shape, dtype, 0)


def ones(shape: Ints, dtype: Any, force_cpu: bool = False) -> Variable:
    """A tensor of ones; see fill_constant."""
    return fill_constant(shape, dtype, 1)


def zeros_like(x: Variable, out: Variable | None = None) -> Variable:
    """Zeros, in the shape and the dtype of ``x``."""
    return _like("fill_zeros_like", "zeros_like", x, out, {})


def ones_like(x: Variable, out: Variable | None = None) -> Variable:
    """Ones, in the shape and the dtype of ``x``."""
    return _like("fill_any_like", "ones_like", x, out, {"value": 1.0})


def _like(op_type: str, layer: str, x: Variable, out: Variable | None, attrs: dict[str, float]) -> Variable:
    helper = LayerHelper(layer)
    out = helper.create_variable(check_variable(x, "x", layer).dtype) if out is None else out
    helper.append_op({"X": x}, {"Out": out}, attrs, type=op_type)
    out.stop_gradient = True
    return out


def rank(input: Variable) -> Variable:
    """The number of dimensions of ``input``: an int32 constant."""
    return assign(np.array(len(check_variable(input, "input", "rank").shape), np.int32))


def range(start: float | Variable, end: float | Variable, step: float | Variable, dtype: Any) -> Variable:
    """start, start + step, start + 2 · step, … before ``end``; [their number]. The three are numbers, or variables of
    one element.
    """
    is_integer = "int" in core.dtype_name(core.convert_dtype(dtype))
    given: dict[str, Any] = {"start": start, "end": end, "step": step}
    has_variables = any(isinstance(value, Variable) for value in given.values())
    for what, value in given.items():
        if isinstance(value, Variable):
            continue
        if not isinstance(value, (int, float, np.number)):
            raise errors.TypeMismatch(f"layers.range: {what} must be a number, got {value!r}")
        if not math.isfinite(value):
            raise errors.InvalidArgument(f"layers.range: {what} must be finite, got {value}")
        if is_integer and (what != "end" or has_variables) and value != int(value):
            raise errors.InvalidArgument(f"layers.range: {what} must be an integer for dtype {dtype}, got {value}")
    if isinstance(start, Variable) or isinstance(end, Variable) or isinstance(step, Variable):
        return _range_of_variables((start, end, step), dtype)
    count = math.ceil((end - start) / step) if step != 0 else 0
    if count <= 0:
        raise errors.InvalidArgument(f"layers.range: from {start} to {end} there are no steps of {step}")
    helper = LayerHelper("range")
    places, out = (helper.create_variable(number, stop_gradient=True) for number in ("int64", dtype))
    helper.append_op({"X": ones([count], "int64")}, {"Out": places}, {"axis": 0, "exclusive": True}, type="cumsum")
    scale, bias = (core.exact_float(given[what], f"layers.range: {what}") for what in ("step", "start"))
    attrs = {"scale": scale, "bias": bias}
    helper.append_op({"X": cast(places, dtype)}, {"Out": out}, attrs, type="scale")
    return out


def _range_of_variables(values: Sequence[float | Variable], dtype: Any) -> Variable:
    helper = LayerHelper("range")
    out = helper.create_variable(dtype, stop_gradient=True)
    number = core.convert_dtype(dtype)
    variables = []
    for value in values:
        if not isinstance(value, Variable):
            value = fill_constant([1], dtype, value)
        variables.append(value if value.dtype == number else cast(value, dtype))
    helper.append_op(dict(zip(("Start", "End", "Step"), variables)), {"Out": out})
    return out


def linspace(start: float | Variable, stop: float | Variable, num: int | Variable, dtype: Any) -> Variable:
    """``num`` evenly spaced numbers from ``start`` to ``stop``, float32 or float64. The three may be variables of one
    element, ``num`` an int32 one.
    """
    variables = {
        slot: value if isinstance(value, Variable) else fill_constant([1], of, value)
        for slot, value, of in (("Start", start, dtype), ("Stop", stop, dtype), ("Num", num, "int32"))
    }
    helper = LayerHelper("linspace")
    out = helper.create_variable(variables["Start"].dtype, stop_gradient=True)
    helper.append_op(variables, {"Out": out})
    if not isinstance(num, Variable):
        declare_known(out, [num])
    return out


def diag(diagonal: Variable | np.ndarray) -> Variable:
    """The square matrix with the elements of ``diagonal``, a variable or an array of one dimension."""
    helper = LayerHelper("diag")
    given = diagonal if isinstance(diagonal, Variable) else assign(diagonal)
    out = helper.create_variable(given.dtype, stop_gradient=True)
    helper.append_op({"Diagonal": given}, {"Out": out})
    return out


def eye(
    num_rows: int, num_columns: int | None = None, batch_shape: Sequence[int] | None = None, dtype: Any = "float32"
) -> Variable:
    """A matrix with ones on its diagonal; square without ``num_columns``. With ``batch_shape``, a batch of them."""
    rows, columns = check_shape([num_rows, num_rows if num_columns is None else num_columns], "the shape", "eye")
    batch = check_shape([] if batch_shape is None else batch_shape, "batch_shape", "eye")
    if rows < 0 or columns < 0 or any(extent <= 0 for extent in batch):
        raise errors.InvalidArgument(
            f"layers.eye: expected rows and columns of 0 or more and a batch_shape of 1 or more, got {rows}, {columns} "
            f"and {batch}"
        )
    helper = LayerHelper("eye")
    out = helper.create_variable(dtype, stop_gradient=True)
    attrs = {"num_rows": rows, "num_columns": columns, "dtype": int(core.convert_dtype(dtype))}
    helper.append_op({}, {"Out": out}, attrs)
    if batch:
        whole = LayerHelper("expand").create_variable(dtype, stop_gradient=True)
        one = reshape(out, [1] * len(batch) + [rows, columns])
        LayerHelper("expand").append_op({"X": one}, {"Out": whole}, {"expand_times": [*batch, 1, 1]})
        out = whole
    return out


def increment(x: Variable, value: float = 1.0, in_place: bool = True) -> Variable:
    """x + value for a single element."""
    helper = LayerHelper("increment")
    out = check_variable(x, "x", "increment") if in_place else helper.create_variable(x.dtype)
    helper.append_op({"X": x}, {"Out": out}, {"step": core.exact_float(value, "layers.increment: value")})
    return out


def reshape(
    x: Variable,
    shape: Ints,
    actual_shape: Variable | None = None,
    act: str | None = None,
    inplace: bool = False,
    name: str | None = None,
) -> Variable:
    """The same elements in another shape: 0 keeps the dimension, -1 (once) takes the remainder.

    Args:
        shape: integers; int32 or int64 variables of one element may be among them; or such a variable that holds all.
        actual_shape: a variable that holds the shape; ``shape`` is the part of it that is known before the run.
        inplace: makes no difference.
    """
    inputs, attrs = ints_argument(shape, "shape", "reshape", "shape", "Shape", "ShapeTensor", -1)
    if actual_shape is not None and not inputs:
        inputs = {"Shape": as_integers(check_variable(actual_shape, "actual_shape", "reshape"))}
    helper = LayerHelper("reshape2", name)
    out = _with_shape(helper, "reshape2", x, attrs, inputs)
    if inputs:
        numbers = attrs.get("shape", [])
        declare_known(out, [(x.shape[d] if d < len(x.shape) else -1) if n == 0 else n for d, n in enumerate(numbers)])
    return helper.append_activation(out, act)


def _with_shape(
    helper: LayerHelper, op_type: str, x: Variable, attrs: dict[str, Any], inputs: dict[str, Any] | None = None
) -> Variable:
    """Adds one of the operators whose gradient needs no more of ``x`` than its shape. ``inputs``: others."""
    out = helper.create_variable(check_variable(x, "x", op_type).dtype)
    outputs = {"Out": out, "XShape": helper.create_variable(x.dtype, stop_gradient=True)}
    helper.append_op({"X": x, **(inputs or {})}, outputs, attrs, type=op_type)
    return out


def squeeze(input: Variable, axes: Sequence[int], name: str | None = None) -> Variable:
    """Without the dimensions ``axes``, which must be 1; empty: without all that the program knows to be 1."""
    dims = check_variable(input, "input", "squeeze").shape
    axes = check_shape(axes, "axes", "squeeze") or [d for d, extent in enumerate(dims) if extent == 1]
    helper = LayerHelper("squeeze", name)
    if not axes:
        return _with_shape(helper, "reshape2", input, {"shape": [0] * len(dims)})
    return _with_shape(helper, "squeeze2", input, {"axes": axes})


def unsqueeze(input: Variable, axes: int | Ints, name: str | None = None) -> Variable:
    """With dimensions of 1 put in at ``axes``, one after the other: integers, among which may be int32 or int64
    variables of one element, or such a variable that holds all.
    """
    places = [axes] if isinstance(axes, int) else axes
    inputs, attrs = ints_argument(places, "axes", "unsqueeze", "axes", "AxesTensor", "AxesTensorList")
    return _with_shape(LayerHelper("unsqueeze2", name), "unsqueeze2", input, attrs, inputs)


def flatten(x: Variable, axis: int = 1, name: str | None = None) -> Variable:
    """A matrix: the first ``axis`` dimensions make its rows."""
    return _with_shape(LayerHelper("flatten", name), "flatten2", x, {"axis": axis})


def transpose(x: Variable, perm: Sequence[int], name: str | None = None) -> Variable:
    """The dimensions in another order: dimension i of the output is dimension ``perm[i]`` of ``x``."""
    return _with_shape(
        LayerHelper("transpose", name), "transpose2", x, {"axis": check_shape(perm, "perm", "transpose")}
    )


def split(
    input: Variable, num_or_sections: int | Sequence[int | Variable], dim: int | Variable = -1, name: str | None = None
) -> list[Variable]:
    """``input`` cut along ``dim`` into a number of equal sections, or into sections of the given extents, one of which
    may be -1: the remainder. The extents, and ``dim``, may be int32 or int64 variables of one element.
    """
    helper = LayerHelper("split", name)
    equal = isinstance(num_or_sections, int)
    if not equal and not isinstance(num_or_sections, Iterable):
        raise errors.TypeMismatch(
            f"layers.split: num_or_sections has to be an integer or a list of integers, got {num_or_sections!r}"
        )
    sections: list[int | Variable] = [] if isinstance(num_or_sections, int) else list(num_or_sections)
    count = num_or_sections if isinstance(num_or_sections, int) else len(sections)
    if count <= 0:
        raise errors.InvalidArgument(f"layers.split: into a positive number of sections, got {num_or_sections!r}")
    out = [helper.create_variable(check_variable(input, "input", "split").dtype) for _ in builtins.range(count)]
    inputs, attrs = ints_argument(sections, "num_or_sections", "split", "sections", "", "SectionsTensorList", -1)
    axis_inputs, axis_attrs = _axis_argument(dim)
    inputs = {"X": input, **inputs, **axis_inputs}
    helper.append_op(inputs, {"Out": out}, {"num": count if equal else 0, **attrs, **axis_attrs})
    if isinstance(dim, int):
        for section, extent in zip(out, attrs.get("sections", [])):
            declare_known(
                section, [extent if d == dim % len(input.shape) else -1 for d in builtins.range(len(input.shape))]
            )
    return out


def _axis_argument(axis: int | Variable) -> tuple[dict[str, Variable], dict[str, int]]:
    """The inputs and the attributes by which an operator takes its axis."""
    return ({"AxisTensor": axis}, {}) if isinstance(axis, Variable) else ({}, {"axis": axis})


def concat(input: Variable | Sequence[Variable], axis: int | Variable = 0, name: str | None = None) -> Variable:
    """Variables one after the other along ``axis``, which may be an int32 or int64 variable of one element."""
    helper = LayerHelper("concat", name)
    items = check_variables(input, "input", "concat")
    if not items:
        raise errors.InvalidArgument("layers.concat: there is nothing to join")
    out = helper.create_variable(items[0].dtype)
    inputs, attrs = _axis_argument(axis)
    helper.append_op({"X": items, **inputs}, {"Out": out}, attrs)
    return out
