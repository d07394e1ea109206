"""What layers share: parameters, temporaries, bias and activation, in the default programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from headrace import errors
from headrace.fluid import core, initializer, unique_name
from headrace.fluid.framework import (
    Operator,
    Parameter,
    Program,
    SlotValue,
    Variable,
    default_main_program,
    default_startup_program,
)
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike

__all__ = ["Ints", "LayerHelper", "append_layer", "check_shape", "check_variable", "declare_known", "ints_argument"]

#: Integers, as attributes or as variables: a list in which there may be variables of one element, or a variable of all.
Ints = Union[Variable, Sequence[Union[int, Variable]]]


def check_variable(value: Any, what: str, layer: str) -> Variable:
    """``value``, which has to be a Variable."""
    if not isinstance(value, Variable):
        raise errors.TypeMismatch(f"layers.{layer}: {what} has to be a Variable, got {type(value).__name__}")
    return value


def check_shape(value: Any, what: str, layer: str) -> list[int]:
    """``value``, which has to be a list or tuple of integers, as a list."""
    if not isinstance(value, (list, tuple, np.ndarray)):
        raise errors.TypeMismatch(f"layers.{layer}: {what} has to be a list or tuple of integers, got {value!r}")
    for extent in value:
        if not isinstance(extent, (int, np.integer)) or isinstance(extent, bool):
            raise errors.TypeMismatch(
                f"layers.{layer}: {what} has to consist of integers, got {extent!r} in {list(value)}"
            )
    return [int(extent) for extent in value]


def ints_argument(
    value: Any, what: str, layer: str, attr: str, tensor: str, items: str
) -> tuple[dict[str, SlotValue], dict[str, list[int]]]:
    """The inputs and attributes by which an operator takes the integers ``value``: a Variable in slot ``tensor``; a
    list with Variables in it in slot ``items`` and, with -1 in their places, in ``attr``; any other list in ``attr``.
    """
    if isinstance(value, Variable):
        return {tensor: value}, {}
    if not isinstance(value, (list, tuple)) or not any(isinstance(item, Variable) for item in value):
        return {}, {attr: check_shape(value, what, layer)}
    numbers = check_shape([-1 if isinstance(item, Variable) else item for item in value], what, layer)
    variables = [item if isinstance(item, Variable) else _constant(item) for item in value]
    return {items: variables}, {attr: numbers}


def declare_known(out: Variable, dims: Sequence[int]) -> None:
    """Declares the dimensions of ``out`` that an operator is given as inputs, but that a layer knows: those of ``dims``
    that are not -1.
    """
    if len(dims) == len(out.shape):
        out.desc.shape = [now if known < 0 else known for known, now in zip(dims, out.shape)]


def _constant(value: int) -> Variable:
    """A variable of one element, int32 [1]."""
    helper = LayerHelper("fill_constant")
    out = helper.create_variable("int32", stop_gradient=True)
    attrs = {"shape": [1], "dtype": int(core.convert_dtype("int32")), "value": float(value)}
    helper.append_op(outputs={"Out": out}, attrs=attrs)
    return out


class LayerHelper:
    """One use of a layer.

    Args:
        layer_type: the layer's name; names of variables begin with it.
        name: the user's name for this use; None: numbered.
    """

    def __init__(self, layer_type: str, name: str | None = None) -> None:
        self.layer_type = layer_type
        self.name = unique_name.generate(layer_type) if name is None else name

    @property
    def main_program(self) -> Program:
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        return default_startup_program()

    def append_op(
        self,
        inputs: Mapping[str, SlotValue] | None = None,
        outputs: Mapping[str, SlotValue] | None = None,
        attrs: Mapping[str, Any] | None = None,
        type: str | None = None,
    ) -> Operator:
        """Adds an operator, of the layer's type unless another is given, to the current block."""
        return self.main_program.current_block().append_op(type or self.layer_type, inputs, outputs, attrs)

    def create_variable(self, dtype: Any, stop_gradient: bool = False) -> Variable:
        """A temporary; its shape is what shape inference finds."""
        name = unique_name.generate(f"{self.name}.tmp")
        return self.main_program.current_block().create_var(name=name, dtype=dtype, stop_gradient=stop_gradient)

    def create_global_variable(
        self, name: str, shape: Sequence[int], dtype: Any, init: initializer.Initializer | None = None
    ) -> Variable:
        """A persistable variable of the root block that is not trained; ``init`` gives it a value in the startup
        program.
        """
        return create_initialized_var(self.main_program, self.startup_program, name, shape, dtype, init)

    def create_parameter(
        self,
        attr: ParamAttrLike,
        shape: Sequence[int],
        dtype: Any,
        is_bias: bool = False,
        default_initializer: initializer.Initializer | None = None,
        stop_gradient: bool = False,
    ) -> Parameter | None:
        """A parameter and, in the startup program, its initialisation; None if ``attr`` is False.

        A parameter that exists already is shared; its shape and dtype have to be the same.
        """
        attr = ParamAttr._to_attr(attr)
        if attr is None:
            return None
        name = attr.name
        if name is None:
            name = unique_name.generate(f"{self.name}.{'b' if is_bias else 'w'}")
        root = self.main_program.global_block()
        if root.has_var(name):
            existing = root.var(name)
            if not isinstance(existing, Parameter):
                raise errors.AlreadyExists(f"'{name}' is the name of a variable that is not a parameter")
            if list(existing.shape) != [int(d) for d in shape] or existing.dtype != core.convert_dtype(dtype):
                raise errors.AlreadyExists(
                    f"parameter '{name}' is shared, but it has shape {list(existing.shape)} and dtype "
                    f"{core.dtype_name(existing.dtype)}, where {list(shape)} and {core.dtype_name(dtype)} are needed"
                )
        init = attr.initializer or default_initializer
        if init is None:
            init = initializer.Constant(0.0) if is_bias else initializer.Xavier()
        parameter = root.create_parameter(
            shape,
            dtype,
            name,
            trainable=attr.trainable,
            regularizer=attr.regularizer,
            optimize_attr={"learning_rate": attr.learning_rate},
            stop_gradient=stop_gradient,
            gradient_clip_attr=attr.gradient_clip,
        )
        startup = self.startup_program.global_block()
        if not startup.has_var(name):
            variable = startup.create_parameter(shape, dtype, name, trainable=attr.trainable)
            init(variable, startup)
        return parameter

    def append_bias(self, x: Variable, attr: ParamAttrLike, dim_start: int = 1, size: int | None = None) -> Variable:
        """``x`` plus a bias of shape ``[size]``, by default that of dimension ``dim_start``; ``x`` itself if ``attr``
        is False.
        """
        shape = [x.shape[dim_start] if size is None else size]
        bias = self.create_parameter(attr, shape, x.dtype, is_bias=True)
        if bias is None:
            return x
        out = self.create_variable(x.dtype)
        self.append_op({"X": x, "Y": bias}, {"Out": out}, {"axis": dim_start}, type="elementwise_add")
        return out

    def append_activation(self, x: Variable, act: str | Mapping[str, Any] | None) -> Variable:
        """``x`` after the activation: an operator's type, or a dict with its type under "type" and its attributes."""
        if act is None:
            return x
        attrs = {"type": act} if isinstance(act, str) else dict(act)
        act_type = attrs.pop("type")
        out = self.create_variable(x.dtype)
        self.append_op({"X": x}, {"Out": out}, attrs, type=act_type)
        return out


def append_layer(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    name: str | None = None,
    act: str | None = None,
    out_slot: str = "Out",
    intermediate: str | None = None,
) -> Variable:
    """Adds an operator with one output, of the dtype of its first input, and perhaps an activation.

    Args:
        inputs: Variables, or lists of them.
        intermediate: the slot of an output of the same dtype that is only for the gradient.
    """
    for slot, value in inputs.items():
        for item in value if isinstance(value, list) else [value]:
            check_variable(item, slot, op_type)
    helper = LayerHelper(op_type, name)
    dtype = next(iter(inputs.values())).dtype
    outputs = {out_slot: helper.create_variable(dtype)}
    if intermediate is not None:
        outputs[intermediate] = helper.create_variable(dtype, stop_gradient=True)
    helper.append_op(inputs, outputs, attrs)
    return helper.append_activation(outputs[out_slot], act)


def create_initialized_var(
    main: Program,
    startup: Program,
    name: str,
    shape: Sequence[int],
    dtype: Any,
    init: initializer.Initializer | None = None,
) -> Variable:
    """A persistable variable, not trained, in the root block of ``main``; ``init`` gives it a value in ``startup``."""
    variable = main.global_block().create_var(name=name, shape=shape, dtype=dtype, persistable=True, stop_gradient=True)
    block = startup.global_block()
    if init is not None and not block.has_var(name):
        init(block.create_var(name=name, shape=shape, dtype=dtype, persistable=True, stop_gradient=True), block)
    return variable
