"""Functions of one variable, element by element; each is the operator of its name."""

from __future__ import annotations

import inspect
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

#: The operator's attributes that a function takes, in Fluid's order, by the name that Fluid's layer gives them.
_FUNCTIONS: dict[str, dict[str, str]] = {
    "abs": {},
    "exp": {},
    "gelu": {},
    "leaky_relu": {"alpha": "alpha"},
    "log": {},
    "relu": {},
    "sigmoid": {},
    "sqrt": {},
    "square": {},
    "tanh": {},
}


def _function(op_type: str) -> Callable[..., Variable]:
    attributes = _FUNCTIONS[op_type]
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD
    optional = [inspect.Parameter(name, kinds, default=None, annotation="float | None") for name in attributes]
    signature = inspect.Signature(
        [
            inspect.Parameter("x", kinds, annotation="Variable"),
            *optional,
            inspect.Parameter("name", kinds, default=None, annotation="str | None"),
            inspect.Parameter("attrs", inspect.Parameter.VAR_KEYWORD),  # others of the operator's
        ],
        return_annotation="Variable",
    )

    def layer(*args: Any, **kwargs: Any) -> Variable:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"layers.{op_type}: {error}") from None
        x = check_variable(given.pop("x"), "x", op_type)
        helper = LayerHelper(op_type, given.pop("name", None))
        out = helper.create_variable(x.dtype)
        attrs = given.pop("attrs", {})
        attrs.update((attributes[name], float(value)) for name, value in given.items() if value is not None)
        helper.append_op({"X": x}, {"Out": out}, attrs)
        return out

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = _document(op_type)
    layer.__signature__ = signature  # type: ignore[attr-defined]
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


abs = _function("abs")
exp = _function("exp")
gelu = _function("gelu")
leaky_relu = _function("leaky_relu")
log = _function("log")
relu = _function("relu")
sigmoid = _function("sigmoid")
sqrt = _function("sqrt")
square = _function("square")
tanh = _function("tanh")
