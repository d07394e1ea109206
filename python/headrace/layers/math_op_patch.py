"""The arithmetic of Variables: what ``a + b`` and the like add to the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

from headrace import core, errors
from headrace.framework import Variable
from headrace.layer_helper import LayerHelper

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

__all__ = ["add", "divide", "divide_into", "multiply", "negative", "subtract", "subtract_from"]

Operand = Union[Variable, float]

_INTEGERS = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}


def _is_number(value: Operand) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _scale(x: Variable, scale: float, bias: float) -> Variable:
    if core.dtype_name(x.dtype) in _INTEGERS and not (float(scale).is_integer() and float(bias).is_integer()):
        raise errors.TypeMismatch(
            f"'{x.name}' holds integers ({core.dtype_name(x.dtype)}): cast it before arithmetic with fractions"
        )
    helper = LayerHelper("scale")
    out = helper.create_variable(x.dtype)
    helper.append_op({"X": x}, {"Out": out}, {"scale": float(scale), "bias": float(bias)})
    return out


def _elementwise(op_type: str, x: Variable, y: Operand) -> Variable:
    if not isinstance(y, Variable):
        raise errors.TypeMismatch(f"arithmetic with '{x.name}' takes a Variable or a number, got {type(y).__name__}")
    if len(x.shape) < len(y.shape) and op_type in ("elementwise_add", "elementwise_mul"):
        x, y = y, x  # the larger one comes first; these two commute
    helper = LayerHelper(op_type)
    out = helper.create_variable(x.dtype)
    helper.append_op({"X": x, "Y": y}, {"Out": out})
    return out


def negative(x: Variable) -> Variable:
    return _scale(x, -1.0, 0.0)


def add(x: Variable, y: Operand) -> Variable:
    return _scale(x, 1.0, y) if _is_number(y) else _elementwise("elementwise_add", x, y)


def subtract(x: Variable, y: Operand) -> Variable:
    return _scale(x, 1.0, -y) if _is_number(y) else _elementwise("elementwise_sub", x, y)


def subtract_from(x: Variable, y: Operand) -> Variable:
    """y - x for a number y."""
    return _scale(x, -1.0, y) if _is_number(y) else _elementwise("elementwise_sub", x, y)


def multiply(x: Variable, y: Operand) -> Variable:
    return _scale(x, y, 0.0) if _is_number(y) else _elementwise("elementwise_mul", x, y)


def divide(x: Variable, y: Operand) -> Variable:
    if not _is_number(y):
        return _elementwise("elementwise_div", x, y)
    if y == 0:
        raise errors.InvalidArgument(f"'{x.name}' cannot be divided by 0")
    return _scale(x, 1.0 / y, 0.0)


def divide_into(x: Variable, y: Operand) -> Variable:
    """y / x for a number y."""
    if not _is_number(y):
        return _elementwise("elementwise_div", x, y)
    helper = LayerHelper("fill_zeros_like")
    zeros = helper.create_variable(x.dtype, stop_gradient=True)
    helper.append_op({"X": x}, {"Out": zeros})
    numerator = _scale(zeros, 1.0, y)
    numerator.stop_gradient = True
    return _elementwise("elementwise_div", numerator, x)
