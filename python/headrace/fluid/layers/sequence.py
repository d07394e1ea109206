"""Layers over sequences of variable length: variables with a LoD."""

from __future__ import annotations

from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_variable

__all__ = ["sequence_first_step", "sequence_last_step", "sequence_pool", "sequence_softmax"]


def sequence_pool(input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Variable:
    """One row for each sequence of the deepest level, which goes.

    Args:
        input: [rows, ...] with a LoD.
        pool_type: "sum", "average", "sqrt" (the sum over the root of the length), "max", "first" or "last".
        is_test: Fluid's; it makes no difference.
        pad_value: what a sequence without rows gives.
    """
    helper = LayerHelper("sequence_pool")
    out = helper.create_variable(check_variable(input, "input", "sequence_pool").dtype)
    outputs = {"Out": out}
    if pool_type.upper() == "MAX":  # the others write no index, so that their gradients must not ask for one
        outputs["MaxIndex"] = helper.create_variable("int32", stop_gradient=True)
    helper.append_op({"X": input}, outputs, {"pooltype": pool_type.upper(), "pad_value": float(pad_value)})
    return out


def sequence_first_step(input: Variable) -> Variable:
    """The first row of each sequence."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """The last row of each sequence."""
    return sequence_pool(input, "last")


def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """softmax within each sequence of [rows, 1]. ``use_cudnn`` makes no difference."""
    helper = LayerHelper("sequence_softmax", name)
    out = helper.create_variable(check_variable(input, "input", "sequence_softmax").dtype)
    helper.append_op({"X": input}, {"Out": out})
    return out
