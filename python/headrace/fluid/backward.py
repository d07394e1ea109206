"""The backward pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Parameter, Variable

__all__ = ["append_backward"]


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Adds the operators that compute the gradients of ``loss``, through loops and conditional blocks as well.

    Args:
        loss: a single element.
        parameter_list: by what to differentiate; None: all trainable parameters.
        no_grad_set: variables that gradients do not pass.

    Returns:
        (parameter, its gradient) for each parameter that the loss depends on.

    Raises:
        InvalidArgument: the loss is not a single element, or a parameter is overwritten after it has been used.
        Unimplemented: an operator on the way has no gradient.
    """
    if not isinstance(loss, Variable):
        raise errors.TypeMismatch(f"append_backward: the loss has to be a Variable, got {type(loss).__name__}")
    program = loss.block.program
    if parameter_list is None:
        names = [parameter.name for parameter in program.all_parameters() if parameter.trainable]
        if not names:
            raise errors.InvalidArgument("append_backward: the program has no trainable parameter")
    else:
        names = [item.name if isinstance(item, Variable) else item for item in parameter_list]
        if not names:
            raise errors.InvalidArgument("append_backward: the list of parameters is empty")
    no_grad = {item.name if isinstance(item, Variable) else item for item in no_grad_set or ()}
    with program._backward_guard():
        pairs = core.append_backward(program.desc, loss.name, names, no_grad)
        program._sync_with_desc()
    root = program.global_block()
    return [(root.var(parameter), root.var(gradient)) for parameter, gradient in pairs]  # type: ignore[misc]
