"""Functions of one variable, element by element; each is the operator of its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_variable

__all__ = [
    "abs",
    "exp",
    "gelu",
    "leaky_relu",
    "log",
    "relu",
    "sigmoid",
    "sqrt",
    "square",
    "tanh",
]


def _unary(op_type: str) -> Callable[..., Variable]:
    def layer(x: Variable, name: str | None = None, **attrs: Any) -> Variable:
        helper = LayerHelper(op_type, name)
        out = helper.create_variable(check_variable(x, "x", op_type).dtype)
        helper.append_op({"X": x}, {"Out": out}, attrs)
        return out

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = _document(op_type)
    return layer


def _document(op_type: str) -> str:
    """What the operator says of itself."""
    try:
        info = core.op_info(op_type)
    except errors.NotFound:
        return f"The operator '{op_type}', once a library that has it is loaded."
    lines = [info["comment"], "", "Args:", "    x: " + info["inputs"][0]["comment"]]
    lines += [f"    {attr['name']}: {attr['comment']} ({attr['type']}, {attr['default']})" for attr in info["attrs"]]
    return "\n".join(lines)


abs = _unary("abs")
exp = _unary("exp")
gelu = _unary("gelu")
leaky_relu = _unary("leaky_relu")
log = _unary("log")
relu = _unary("relu")
sigmoid = _unary("sigmoid")
sqrt = _unary("sqrt")
square = _unary("square")
tanh = _unary("tanh")
