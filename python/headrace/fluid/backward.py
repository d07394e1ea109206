"""``append_backward``, ``gradients`` and ``calc_gradient``: add the operators that compute gradients to a program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace import errors
from headrace._warnings import warn
from headrace.fluid import core
from headrace.fluid._checks import check_instance, check_list
from headrace.fluid.clip import append_error_clip_ops, error_clip_callback, find_error_clips
from headrace.fluid.core import VarType
from headrace.fluid.framework import GRAD_VAR_SUFFIX, OpRole, Parameter, Program, Variable

__all__ = ["append_backward", "calc_gradient", "gradients"]

_FLOATS = (VarType.FP16, VarType.BF16, VarType.FP32, VarType.FP64)


def append_backward(
    loss: Variable,
    parameter_list: Sequence[Variable | str] | str | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
    callbacks: Sequence[Callable[..., Any]] | None = None,
    checkpoints: Sequence[Variable | str] | None = None,
) -> list[tuple[Parameter, Variable]]:
    """Adds the operators that compute the gradients of ``loss``, through loops and conditional blocks as well.

    Args:
        loss: a single element.
        parameter_list: variables to differentiate by, or the name of one; those that cannot have a gradient are
            skipped. None: all trainable parameters, and what is fed, whose ``stop_gradient`` is False; or, if there are
            no such parameters, all variables of the root block that do not stop gradients.
        no_grad_set: variables that gradients do not pass.
        callbacks: None, or ``[clip.error_clip_callback]``, to clip the gradients of variables with an ``error_clip``.
        checkpoints: Fluid's; None.

    Returns:
        (parameter, its gradient) for each parameter that the loss depends on, in the order of ``parameter_list``. The
        gradient of any other variable that one passes has its name, with "@GRAD" after it.

    Raises:
        InvalidArgument: the loss is not a single element, a parameter is overwritten after it has been used, or
            nothing in ``parameter_list`` can have a gradient; ``no_grad_set`` has a memory of a StaticRNN.
        FailedPrecondition: without ``parameter_list``, the program comes from bytes that do not say how its parameters
            are trained.
        Unimplemented: an operator on the way has no gradient; there are other callbacks, or checkpoints.
    """
    if not isinstance(loss, Variable):
        raise errors.TypeMismatch(f"append_backward: the loss has to be a Variable, got {type(loss).__name__}")
    if checkpoints:
        raise errors.Unimplemented(f"append_backward: checkpoints has to be None, got {checkpoints!r}")
    callbacks = [] if callbacks is None else check_list(callbacks, "append_backward: callbacks")
    for callback in callbacks:
        if callback is not error_clip_callback:
            raise errors.Unimplemented(
                f"append_backward: callbacks may be None or [clip.error_clip_callback], got {callback!r}"
            )
    program = loss.block.program
    clips = find_error_clips(program) if callbacks else {}
    blocks, ops = program.num_blocks, len(program.global_block().ops)
    no_grad = _without_gradient(program, no_grad_set)
    others: list[str] = []
    if parameter_list is None:
        trained = trained_parameters(program)
        names = [p.name for p in trained if not p.stop_gradient and p.name not in no_grad]
        others = _differentiable(program, given=bool(names)) or ([] if names else [loss.name])
        others = [name for name in others if name not in no_grad]
    else:
        names = _with_gradient(program, no_grad, parameter_list)
    with program._role_guard(OpRole.BACKWARD):
        gradient_of = dict(core.append_backward(program.desc, loss.name, names + others, no_grad))
        program._sync_with_desc()
        append_error_clip_ops(program, clips, blocks, ops)
    root = program.global_block()
    return [(root.var(name), root.var(gradient_of[name])) for name in dict.fromkeys(names) if name in gradient_of]


def _with_gradient(program: Program, no_grad: Collection[str], wanted: Sequence[Variable | str] | str) -> list[str]:
    """Of ``wanted`` those that can have a gradient: Fluid's programs name all parameters, also the statistics of
    batch_norm. NotFound for a missing one, InvalidArgument if none is left.
    """
    items = [wanted] if isinstance(wanted, str) else check_list(wanted, "append_backward: parameter_list")
    names = [
        item.name if isinstance(item, Variable) else check_instance(item, str, "append_backward: a name")
        for item in items
    ]
    if not names:
        raise errors.InvalidArgument("append_backward: the list of parameters is empty")
    root = program.global_block()
    left = []
    for name in names:
        if root.has_var(name):
            variable = root.var(name)
            if name in no_grad or variable.stop_gradient or variable.dtype not in _FLOATS:
                continue
        left.append(name)
    if not left:
        raise errors.InvalidArgument(
            f"append_backward: none of the parameters can have a gradient: each is in no_grad_set, has trainable=False "
            f"or stop_gradient, or is not a tensor of a floating-point type: {', '.join(names)}"
        )
    return left


def _without_gradient(program: Program, no_grad_set: Collection[Variable | str] | None) -> set[str]:
    """The names of ``no_grad_set``, without those that the program does not have. InvalidArgument for a memory of a
    StaticRNN.
    """
    names: set[str] = set()
    if no_grad_set is None:
        return names
    memories = {name for name, copies in program._unrolled.items() if not copies}
    networks = [op for block in program.blocks for op in block.ops if op.type == "recurrent"]
    memories.update(name for op in networks for name in op.attr("ex_states"))
    for item in check_list(no_grad_set, "no_grad_set"):
        name = item.name if isinstance(item, Variable) else check_instance(item, str, "no_grad_set: a name")
        if not program._has_name(name.removesuffix(GRAD_VAR_SUFFIX)):
            warn(f"no_grad_set: the program has no variable '{name}'")
            continue
        if name in memories:
            raise errors.InvalidArgument(
                f"no_grad_set: '{name}' is a memory of a StaticRNN: set its stop_gradient within the step"
            )
        names.update(_in_all_steps(program, name))
    return names


def _in_all_steps(program: Program, name: str) -> list[str]:
    """``name``; for a variable of a step that was unrolled, those that have taken its place."""
    copies = [] if program._declares(name) else program._unrolled.get(name, [])
    return [inner for copy in copies for inner in _in_all_steps(program, copy)] or [name]


def trained_parameters(program: Program) -> list[Parameter]:
    """Those that are trained unless others are named. FailedPrecondition if the program does not say which."""
    parameters = program.all_parameters()
    unknown = [parameter.name for parameter in parameters if not parameter._is_known]
    if unknown:
        raise errors.FailedPrecondition(
            f"the program was parsed from bytes that do not say how '{unknown[0]}' is trained ({len(unknown)} such "
            f"parameters): name the parameters to train, minimize(loss, parameter_list=[…]), or set trainable, "
            f"optimize_attr, regularizer and gradient_clip_attr of each"
        )
    return [parameter for parameter in parameters if parameter.trainable]


def _differentiable(program: Program, given: bool) -> list[str]:
    """Which variables of the root block, other than parameters, a loss may be differentiated by: those that have one
    value throughout.

    Args:
        given: only those that no operator computes.
    """
    writes: dict[str, int] = {}
    reads: set[str] = set()
    for block in program.blocks:
        for op in block.ops:
            reads.update(op.input_arg_names)
            for name in op.output_arg_names:
                writes[name] = writes.get(name, 0) + 1
    return [
        variable.name
        for variable in program.global_block().vars.values()
        if carries_gradient(variable)
        and not isinstance(variable, Parameter)
        and variable.name in reads
        and writes.get(variable.name, 0) <= (0 if given else 1)
    ]


def gradients(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
) -> list[Variable | None]:
    """Adds the operators that compute the gradients of ``targets`` by ``inputs``, which need not be parameters.

    Args:
        targets: variables of any shape in the root block.
        inputs: the variables to differentiate by, of the root block.
        target_gradients: the weights of each target's elements, for each target a variable of its shape; None:
            by 1. The gradients can be differentiated by them, too.
        no_grad_set: variables that gradients do not pass.

    Returns:
        For each input the sum of the gradients of all targets; None if no target depends on it, or if it has
        ``stop_gradient``, as feeds have by default.

    Raises:
        InvalidArgument: a variable is not of the root block of one program, the number or the shapes of
            ``target_gradients`` do not fit, an input is overwritten after it has been used, or ``no_grad_set`` has a
            memory of a StaticRNN.
        Unimplemented: an operator on the way has no gradient. Gradients can be differentiated again, for a gradient
            penalty, say, where the gradient operators have gradients: products, convolutions, elementwise arithmetic,
            sums and means, most activations, moves of elements and ``instance_norm`` have them.
    """
    of, by = _variables(targets, "targets"), _variables(inputs, "inputs")
    weights = _weights(of, target_gradients)
    root = of[0].block.program.global_block()
    everything: dict[str, Sequence[Variable | None]] = {"targets": of, "inputs": by, "target_gradients": weights}
    for what, variables in everything.items():
        for variable in variables:
            if variable is not None and variable.block is not root:
                raise errors.InvalidArgument(
                    f"gradients: '{variable.name}' in {what} has to be of the root block of the program of "
                    f"'{of[0].name}'"
                )
    program = root.program
    no_grad = _without_gradient(program, no_grad_set)
    wanted = [x.name for x in by if carries_gradient(x) and x.name not in no_grad]
    if not wanted:
        return [None] * len(by)
    targets_with_weights = [(target.name, "" if weight is None else weight.name) for target, weight in zip(of, weights)]
    with program._role_guard(OpRole.BACKWARD):
        found = dict(core.append_gradients(program.desc, targets_with_weights, wanted, no_grad))
        program._sync_with_desc()
    return [root.var(found[x.name]) if x.name in found else None for x in by]


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _variables(value: Any, what: str) -> list[Variable]:
    items = _as_list(value)
    for item in items:
        if not isinstance(item, Variable):
            raise errors.TypeMismatch(f"gradients: {what} takes Variables, got {type(item).__name__}")
    if not items:
        raise errors.InvalidArgument(f"gradients: there are no {what}")
    return items


def _weights(targets: list[Variable], given: Any) -> list[Variable | None]:
    weights = [None] * len(targets) if given is None else _as_list(given)
    if len(weights) != len(targets):
        raise errors.InvalidArgument(
            f"gradients: {len(targets)} targets need as many target_gradients, not {len(weights)}"
        )
    for target, weight in zip(targets, weights):
        if weight is None:
            continue
        if not isinstance(weight, Variable):
            raise errors.TypeMismatch(
                f"gradients: target_gradients takes Variables or None, got {type(weight).__name__}"
            )
        if target.dtype != weight.dtype:
            raise errors.TypeMismatch(
                f"gradients: target '{target.name}' is {core.dtype_name(target.dtype)}, but its gradient "
                f"'{weight.name}' {core.dtype_name(weight.dtype)}"
            )
        pairs = list(zip(target.shape, weight.shape))
        if len(target.shape) != len(weight.shape) or any(a != b and -1 not in (a, b) for a, b in pairs):
            raise errors.InvalidArgument(
                f"gradients: target '{target.name}' has shape {list(target.shape)}, but its gradient '{weight.name}' "
                f"{list(weight.shape)}"
            )
    return weights


def carries_gradient(variable: Variable) -> bool:
    """Whether a variable may have a gradient."""
    return not variable.stop_gradient and variable.type == VarType.LOD_TENSOR and variable.dtype in _FLOATS


def calc_gradient(
    targets: Variable | Sequence[Variable],
    inputs: Variable | Sequence[Variable],
    target_gradients: Variable | Sequence[Variable | None] | None = None,
    no_grad_set: Collection[Variable | str] | None = None,
) -> Variable | list[Variable | None] | None:
    """As ``gradients``, but of a single input the gradient itself, as before Fluid 1.6."""
    found = gradients(targets, inputs, target_gradients, no_grad_set)
    return found[0] if len(found) == 1 else found
