"""Arithmetic of two variables, element by element."""

from __future__ import annotations

from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import append_layer, check_variable

__all__ = [
    "elementwise_add",
    "elementwise_div",
    "elementwise_floordiv",
    "elementwise_max",
    "elementwise_min",
    "elementwise_mod",
    "elementwise_mul",
    "elementwise_pow",
    "elementwise_sub",
    "minus",
]


def minus(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """x - y, of the same shape."""
    return append_layer("minus", {"X": x, "Y": y}, name=name)


def _elementwise(op_type: str, x: Variable, y: Variable, axis: int, act: str | None, name: str | None) -> Variable:
    x, y = check_variable(x, "X", op_type), check_variable(y, "Y", op_type)
    if x.shape == y.shape:
        axis = -1  # Fluid does not look at it
    return append_layer(op_type, {"X": x, "Y": y}, {"axis": axis}, name, act, exact_name=True)


def elementwise_add(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x + y. The dimensions of ``y`` are those of ``x`` from ``axis`` on; -1: the last ones. With the same shape,
    ``axis`` makes no difference.
    """
    return _elementwise("elementwise_add", x, y, axis, act, name)


def elementwise_sub(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x - y; see elementwise_add."""
    return _elementwise("elementwise_sub", x, y, axis, act, name)


def elementwise_mul(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x · y; see elementwise_add."""
    return _elementwise("elementwise_mul", x, y, axis, act, name)


def elementwise_div(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x / y; see elementwise_add."""
    return _elementwise("elementwise_div", x, y, axis, act, name)


def elementwise_max(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """The greater of x and y; see elementwise_add."""
    return _elementwise("elementwise_max", x, y, axis, act, name)


def elementwise_min(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """The smaller of x and y; see elementwise_add."""
    return _elementwise("elementwise_min", x, y, axis, act, name)


def elementwise_pow(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x to the power of y; see elementwise_add."""
    return _elementwise("elementwise_pow", x, y, axis, act, name)


def elementwise_mod(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """The remainder of x / y, with the sign of x; see elementwise_add."""
    return _elementwise("elementwise_mod", x, y, axis, act, name)


def elementwise_floordiv(
    x: Variable, y: Variable, axis: int = -1, act: str | None = None, name: str | None = None
) -> Variable:
    """x / y, rounded towards zero, as Fluid's is; see elementwise_add."""
    return _elementwise("elementwise_floordiv", x, y, axis, act, name)
