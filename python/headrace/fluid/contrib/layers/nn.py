"""Two elementwise functions in one call."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import errors
from headrace.fluid import layers
from headrace.fluid._checks import check_list
from headrace.fluid.framework import Variable

__all__ = ["fused_elemwise_activation"]

_OF_TWO = ("elementwise_add", "elementwise_mul")
_OF_ONE = ("relu", "scale", "sigmoid", "tanh")


def fused_elemwise_activation(
    x: Variable,
    y: Variable,
    functor_list: Sequence[str] | str,
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Variable:
    """A function of two variables and one of one variable: ``["elementwise_add", "relu"]`` is x + relu(y),
    ``["relu", "elementwise_add"]`` is relu(x + y). The executor fuses nothing, so that it costs as much as two layers.

    Args:
        functor_list: one of elementwise_add and elementwise_mul, and one of relu, scale, sigmoid and tanh; or both in
            one string, with a comma in between.
        axis: where the dimensions of y begin among those of x.
        scale: the factor of "scale".
        save_intermediate_out: makes no difference.
    """
    names = functor_list.split(",") if isinstance(functor_list, str) else check_list(functor_list, "functor_list")
    two = [name for name in names if name in _OF_TWO]
    one = [name for name in names if name in _OF_ONE]
    if len(names) != 2 or len(two) != 1 or len(one) != 1:
        raise errors.InvalidArgument(
            f"fused_elemwise_activation takes one of {', '.join(_OF_TWO)} and one of {', '.join(_OF_ONE)}, got {names}"
        )

    def inner(value: Variable) -> Variable:
        return layers.scale(value, scale) if one[0] == "scale" else getattr(layers, one[0])(value)

    def outer(left: Variable, right: Variable) -> Variable:
        made: Variable = getattr(layers, two[0])(left, right, axis=axis)
        return made

    return outer(x, inner(y)) if names[0] in _OF_TWO else inner(outer(x, y))
