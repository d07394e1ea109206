"""Weight decay: adds the penalty's derivative to the gradients, before the optimizer sees them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.fluid._checks import check_number, check_object, check_pairs
from headrace.fluid._protocols import DeclaringBlock
from headrace.fluid._stored_objects import stored
from headrace.fluid.framework import Parameter, Variable

__all__ = [
    "L1Decay",
    "L1DecayRegularizer",
    "L2Decay",
    "L2DecayRegularizer",
    "WeightDecayRegularizer",
    "append_regularization_ops",
]


class WeightDecayRegularizer:
    """Base of the regularizers. Those below are stored with a program; a subclass of your own has to be set again."""

    def __call__(self, param: Parameter, grad: Variable, block: DeclaringBlock) -> Variable:
        """Adds to ``block`` the operators that compute the penalty's derivative by ``param``, whose gradient is
        ``grad``. Returns the derivative, a tensor even where the gradient is sparse.
        """
        raise NotImplementedError


def _temporary(param: Parameter, block: DeclaringBlock) -> Variable:
    made: Variable = block.create_var(dtype=param.dtype, stop_gradient=True)
    return made


@stored("regularization_coeff")
class L1DecayRegularizer(WeightDecayRegularizer):
    """The penalty coeff · Σ |parameter|."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self.regularization_coeff = check_number(regularization_coeff, "regularizer.L1Decay: regularization_coeff")

    def __call__(self, param: Parameter, grad: Variable, block: DeclaringBlock) -> Variable:
        sign, decay = _temporary(param, block), _temporary(param, block)
        block.append_op("sign", {"X": param}, {"Out": sign})
        block.append_op("scale", {"X": sign}, {"Out": decay}, {"scale": self.regularization_coeff})
        return decay

    def __str__(self) -> str:
        return f"L1Decay, regularization_coeff={self.regularization_coeff:f}"


@stored("regularization_coeff")
class L2DecayRegularizer(WeightDecayRegularizer):
    """The penalty coeff / 2 · Σ parameter²."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self.regularization_coeff = check_number(regularization_coeff, "regularizer.L2Decay: regularization_coeff")

    def __call__(self, param: Parameter, grad: Variable, block: DeclaringBlock) -> Variable:
        decay = _temporary(param, block)
        block.append_op("scale", {"X": param}, {"Out": decay}, {"scale": self.regularization_coeff})
        return decay

    def __str__(self) -> str:
        return f"L2Decay, regularization_coeff={self.regularization_coeff:f}"


def append_regularization_ops(
    parameters_and_grads: Sequence[tuple[Parameter, Variable]], regularization: WeightDecayRegularizer | None = None
) -> list[tuple[Parameter, Variable]]:
    """Adds the operators of weight decay; returns the pairs with the gradients that contain it. None stays None.

    Args:
        regularization: for parameters that have none of their own.
    """
    check_object(regularization, WeightDecayRegularizer, "L2Decay(0.1)", "append_regularization_ops: regularization")
    out = []
    for parameter, gradient in check_pairs(parameters_and_grads, "append_regularization_ops: parameters_and_grads"):
        regularizer = parameter.regularizer or regularization
        total = gradient
        if regularizer is not None and gradient is not None:
            block = gradient.block
            with block.program._optimized_guard(()):
                decay = regularizer(parameter, gradient, block)
                total = block.create_var(dtype=gradient.dtype, stop_gradient=True)
                block.append_op("sum", {"X": [gradient, decay]}, {"Out": total})
        out.append((parameter, total))
    return out


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer
