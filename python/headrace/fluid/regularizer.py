"""Weight decay: adds the penalty's derivative to the gradients, before the optimizer sees them."""

from __future__ import annotations

from headrace.fluid.framework import Block, Parameter, Variable

__all__ = ["L1Decay", "L1DecayRegularizer", "L2Decay", "L2DecayRegularizer", "WeightDecayRegularizer"]


class WeightDecayRegularizer:
    """Base of the regularizers."""

    def __call__(self, parameter: Parameter, block: Block) -> Variable:
        """Adds the operators that compute the penalty's derivative by ``parameter``."""
        raise NotImplementedError


class L1DecayRegularizer(WeightDecayRegularizer):
    """The penalty coeff · Σ |parameter|."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self.coeff = regularization_coeff

    def __call__(self, parameter: Parameter, block: Block) -> Variable:
        sign = block.create_var(dtype=parameter.dtype, stop_gradient=True)
        decay = block.create_var(dtype=parameter.dtype, stop_gradient=True)
        block.append_op("sign", {"X": parameter}, {"Out": sign})
        block.append_op("scale", {"X": sign}, {"Out": decay}, {"scale": float(self.coeff)})
        return decay


class L2DecayRegularizer(WeightDecayRegularizer):
    """The penalty coeff / 2 · Σ parameter²."""

    def __init__(self, regularization_coeff: float = 0.0) -> None:
        self.coeff = regularization_coeff

    def __call__(self, parameter: Parameter, block: Block) -> Variable:
        decay = block.create_var(dtype=parameter.dtype, stop_gradient=True)
        block.append_op("scale", {"X": parameter}, {"Out": decay}, {"scale": float(self.coeff)})
        return decay


L1Decay = L1DecayRegularizer
L2Decay = L2DecayRegularizer
