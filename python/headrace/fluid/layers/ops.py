"""Functions of one variable, element by element; each is the operator of its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, append_layer, check_number, check_variable
from headrace.fluid.layers.tensor import assign

__all__ = [
    "abs",
    "acos",
    "asin",
    "atan",
    "brelu",
    "ceil",
    "cos",
    "elu",
    "erf",
    "exp",
    "floor",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_swish",
    "leaky_relu",
    "log",
    "logsigmoid",
    "pow",
    "reciprocal",
    "relu",
    "relu6",
    "round",
    "rsqrt",
    "selu",
    "sigmoid",
    "sign",
    "sin",
    "soft_relu",
    "softplus",
    "softshrink",
    "softsign",
    "sqrt",
    "square",
    "stanh",
    "swish",
    "tanh",
    "tanh_shrink",
    "thresholded_relu",
]

#: The operator's attributes that a function takes, in Fluid's order, by the name that Fluid's layer gives them.
_FUNCTIONS: dict[str, dict[str, str]] = {
    "abs": {},
    "acos": {},
    "asin": {},
    "atan": {},
    "brelu": {"t_min": "t_min", "t_max": "t_max"},
    "ceil": {},
    "cos": {},
    "elu": {"alpha": "alpha"},
    "erf": {},
    "exp": {},
    "floor": {},
    "gelu": {},
    "hard_shrink": {"threshold": "threshold"},
    "hard_sigmoid": {"slope": "slope", "offset": "offset"},
    "hard_swish": {"threshold": "threshold", "scale": "scale", "offset": "offset"},
    "leaky_relu": {"alpha": "alpha"},
    "log": {},
    "logsigmoid": {},
    "reciprocal": {},
    "relu": {},
    "relu6": {"threshold": "threshold"},
    "round": {},
    "rsqrt": {},
    "selu": {"scale": "scale", "alpha": "alpha"},
    "sigmoid": {},
    "sign": {},
    "sin": {},
    "soft_relu": {"threshold": "threshold"},
    "softplus": {},
    "softshrink": {"alpha": "lambda"},
    "softsign": {},
    "sqrt": {},
    "square": {},
    "stanh": {"scale_a": "scale_a", "scale_b": "scale_b"},
    "swish": {"beta": "beta"},
    "tanh": {},
    "tanh_shrink": {},
    "thresholded_relu": {"threshold": "threshold"},
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
        attrs.update(
            (attributes[name], check_number(value, name, op_type)) for name, value in given.items() if value is not None
        )
        helper.append_op({"X": x}, {"Out": out}, attrs)
        return out

    layer.__name__ = layer.__qualname__ = op_type
    layer.__doc__ = _document(op_type)
    layer.__signature__ = signature  # type: ignore[attr-defined]
    return layer


def _document(op_type: str) -> str:
    """The operator's documentation."""
    try:
        info = core.op_info(op_type)
    except errors.NotFound:
        return f"The operator '{op_type}', once a library that has it is loaded."
    lines = [info["comment"], "", "Args:", "    x: " + info["inputs"][0]["comment"]]
    lines += [f"    {attr['name']}: {attr['comment']} ({attr['type']}, {attr['default']})" for attr in info["attrs"]]
    return "\n".join(lines)


abs = _function("abs")
acos = _function("acos")
asin = _function("asin")
atan = _function("atan")
brelu = _function("brelu")
ceil = _function("ceil")
cos = _function("cos")
elu = _function("elu")
erf = _function("erf")
exp = _function("exp")
floor = _function("floor")
gelu = _function("gelu")
hard_shrink = _function("hard_shrink")
hard_sigmoid = _function("hard_sigmoid")
hard_swish = _function("hard_swish")
leaky_relu = _function("leaky_relu")
log = _function("log")
logsigmoid = _function("logsigmoid")


def pow(x: Variable, factor: float | Variable = 1.0, name: str | None = None) -> Variable:
    """``x`` to the power of ``factor``, a number, or a float32 or float64 variable of one element, which gets no
    gradient.
    """
    x = check_variable(x, "x", "pow")
    if isinstance(factor, Variable):
        return append_layer("pow", {"X": x, "FactorTensor": factor}, name=name)
    return append_layer("pow", {"X": x}, {"factor": check_number(factor, "factor", "pow")}, name)


reciprocal = _function("reciprocal")
relu = _function("relu")
relu6 = _function("relu6")
round = _function("round")
rsqrt = _function("rsqrt")
selu = _function("selu")
sigmoid = _function("sigmoid")


_sign = _function("sign")


def sign(x: Variable | np.ndarray, name: str | None = None) -> Variable:
    return _sign(assign(x) if isinstance(x, np.ndarray) else x, name=name)


sign.__doc__ = f"{_document('sign')}\n    x may also be an array, which becomes part of the program, as in Fluid."
sin = _function("sin")
soft_relu = _function("soft_relu")
softplus = _function("softplus")
softshrink = _function("softshrink")
softsign = _function("softsign")
sqrt = _function("sqrt")
square = _function("square")
stanh = _function("stanh")
swish = _function("swish")
tanh = _function("tanh")
tanh_shrink = _function("tanh_shrink")
thresholded_relu = _function("thresholded_relu")
