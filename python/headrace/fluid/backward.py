"""The backward pass."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid.core import VarType
from headrace.fluid.framework import Parameter, Program, Variable

__all__ = ["append_backward"]


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
    callbacks: Sequence[Callable[..., Any]] | None = None,
    checkpoints: Sequence[Variable | str] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Adds the operators that compute the gradients of ``loss``, through loops and conditional blocks as well.

    Args:
        loss: a single element.
        parameter_list: by what to differentiate; None: all trainable parameters, or, if there are none, the variables
            of the root block that do not stop gradients.
        no_grad_set: variables that gradients do not pass.
        callbacks, checkpoints: Fluid's; None.

    Returns:
        (parameter, its gradient) for each parameter that the loss depends on. The gradient of any other variable that
        one passes has its name, with "@GRAD" after it.

    Raises:
        InvalidArgument: the loss is not a single element, or a parameter is overwritten after it has been used.
        Unimplemented: an operator on the way has no gradient; there are callbacks or checkpoints.
    """
    if not isinstance(loss, Variable):
        raise errors.TypeMismatch(f"append_backward: the loss has to be a Variable, got {type(loss).__name__}")
    for what, value in (("callbacks", callbacks), ("checkpoints", checkpoints)):
        if value:
            raise errors.Unimplemented(f"append_backward: {what} has to be None, got {value!r}")
    program = loss.block.program
    parameters = True
    if parameter_list is None:
        names = [parameter.name for parameter in program.all_parameters() if parameter.trainable]
        parameters = bool(names)
        names = names or _differentiable(program, loss)
    else:
        names = [item.name if isinstance(item, Variable) else item for item in parameter_list]
        if not names:
            raise errors.InvalidArgument("append_backward: the list of parameters is empty")
    no_grad = {item.name if isinstance(item, Variable) else item for item in no_grad_set or ()}
    with program._backward_guard():
        pairs = core.append_backward(program.desc, loss.name, names, no_grad)
        program._sync_with_desc()
    root = program.global_block()
    if not parameters:
        return []
    return [(root.var(parameter), root.var(gradient)) for parameter, gradient in pairs]  # type: ignore[misc]


def _differentiable(program: Program, loss: Variable) -> list[str]:
    """The variables of the root block by which ``loss`` may be differentiated: those that have one value throughout."""
    writes: dict[str, int] = {}
    reads: set[str] = set()
    for block in program.blocks:
        for op in block.ops:
            reads.update(op.input_arg_names)
            for name in op.output_arg_names:
                writes[name] = writes.get(name, 0) + 1
    floats = (VarType.FP32, VarType.FP64)
    return [
        variable.name
        for variable in program.global_block().vars.values()
        if variable.type == VarType.LOD_TENSOR
        and variable.dtype in floats
        and not variable.stop_gradient
        and variable.name in reads
        and writes.get(variable.name, 0) <= 1
    ] or [loss.name]
