"""The base of optimizers: it adds the backward pass, and has the parameters updated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace import errors
from headrace._warnings import warn
from headrace._weak_collections import WeakKeyMap
from headrace.fluid import initializer
from headrace.fluid._checks import check_list, check_number, check_object, check_optional, check_pairs
from headrace.fluid.backward import append_backward, carries_gradient, trained_parameters
from headrace.fluid.clip import GradientClipBase, append_gradient_clip_ops, error_clip_callback
from headrace.fluid.core import VarType
from headrace.fluid.framework import (
    Block,
    Operator,
    OpRole,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from headrace.fluid.layer_helper import create_initialized_var
from headrace.fluid.regularizer import WeightDecayRegularizer, append_regularization_ops

__all__ = ["Optimizer"]

ParamGrads = list[tuple[Parameter, Variable]]


class Optimizer:
    """Base of the optimizers. One of your own defines ``_append_optimize_op``, and ``_create_accumulators`` if it keeps
    state; they are called within the programs of the loss and of its parameters' initial values.

    Args:
        learning_rate: a number, or a variable of one element that the program computes.
        regularization: weight decay for the parameters that have none of their own.
        name: inserted before the kind in the names of the optimizer's variables: "fc_0.w_0_<name>_moment1_0". Without
            one they are Fluid's, "fc_0.w_0_moment1_0", so that either can load the files of the other.
        grad_clip: clips the gradients of the parameters that have no clip of their own (``ParamAttr(gradient_clip=…)``,
            ``clip.set_gradient_clip``), before weight decay is added.
    """

    def __init__(
        self,
        learning_rate: float | Variable,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        if not isinstance(learning_rate, (int, float, Variable)) or isinstance(learning_rate, bool):
            raise errors.TypeMismatch(
                f"the learning rate has to be a number or a Variable, got {type(learning_rate).__name__}"
            )
        check_object(regularization, WeightDecayRegularizer, "L2Decay(0.1)", f"{type(self).__name__}: regularization")
        check_object(grad_clip, GradientClipBase, "GradientClipByValue(1.0)", f"{type(self).__name__}: grad_clip")
        check_optional(name, str, f"{type(self).__name__}: name")
        self.regularization = regularization
        self._learning_rate = learning_rate
        self._grad_clip = grad_clip
        self._name = name
        #: Fluid's name: programs set their own variable of a program's learning rate here.
        self._learning_rate_map: WeakKeyMap[Program, Variable] = WeakKeyMap()
        if isinstance(learning_rate, Variable):
            self._learning_rate_map[learning_rate.block.program] = learning_rate
        self._accumulators: dict[str, dict[str, Variable]] = {}  # kind → name of the parameter → the latest

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> tuple[list[Operator], ParamGrads]:
        """Adds the backward pass and an update of each parameter to the program of ``loss``.

        A program may have several losses with an optimizer each. As in Fluid, the gradients of a loss are those of the
        parameters as the updates of an earlier ``minimize`` have left them; for all gradients of the same parameters,
        call ``backward`` for each loss first, then ``apply_gradients`` for each.

        Args:
            parameter_list: the variables to train, of which parameters with ``trainable=False`` are left out; None: all
                trainable parameters. A persistable variable that is no parameter yet, as in a program that Fluid has
                stored, becomes one, with a learning rate factor of 1 and neither regularizer nor clip.
            grad_clip: takes the place of the optimizer's.

        Returns:
            The operators that update, and (parameter, gradient) pairs. The operators are those of ``apply_gradients``.
            If the loss depends on no trainable parameter, there are none, and a warning says so.

        Raises:
            InvalidArgument: the loss is not a single element; or, without ``parameter_list``, the program has no
                parameters, but persistable variables that may be meant, as in one that Fluid has stored.
            FailedPrecondition: without ``parameter_list``, for a program from bytes that do not say how its parameters
                are trained; or a parameter had a regularizer or clip of a class of your own, which are not stored.
        """
        check_object(grad_clip, GradientClipBase, "GradientClipByValue(1.0)", "minimize: grad_clip")
        params_grads = self.backward(loss, startup_program, parameter_list, no_grad_set)
        return self._apply(params_grads, startup_program, grad_clip or self._grad_clip), params_grads

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
    ) -> ParamGrads:
        """The first half of ``minimize``: adds the backward pass, and clips the gradients of variables with an
        ``error_clip``.
        """
        if not isinstance(loss, Variable):
            raise errors.TypeMismatch(f"minimize: the loss has to be a Variable, got {type(loss).__name__}")
        program = loss.block.program
        if isinstance(parameter_list, Variable):
            raise errors.TypeMismatch(
                f"minimize: parameter_list has to be a list of variables or of their names, got {parameter_list!r}"
            )
        callbacks = [] if callbacks is None else check_list(callbacks, "backward: callbacks")
        if parameter_list is not None:
            parameter_list = check_list(parameter_list, "minimize: parameter_list")
            for variable in [_trainable(program, item) for item in parameter_list]:
                _make_parameter(program, variable)
            frozen = [parameter.name for parameter in program.all_parameters() if not parameter.trainable]
            no_grad_set = [*check_list([] if no_grad_set is None else no_grad_set, "no_grad_set"), *frozen]
        elif not trained_parameters(program):
            unknown = [variable.name for variable in program.list_vars() if _may_be_parameter(variable)]
            if unknown:
                raise errors.InvalidArgument(
                    f"minimize: the program has no trainable parameter, but persistable variables such as "
                    f"'{unknown[0]}'. A program that Fluid has stored does not say which of them are parameters: name "
                    f"those that are to be trained, minimize(loss, parameter_list=[…])"
                )
        params_grads = append_backward(loss, parameter_list, no_grad_set, [*callbacks, error_clip_callback])
        if not params_grads:
            warn(f"the loss '{loss.name}' depends on no trainable parameter: nothing is trained", UserWarning)
        return params_grads

    def apply_gradients(self, params_grads: ParamGrads, startup_program: Program | None = None) -> list[Operator]:
        """The second half of ``minimize``: clips, adds weight decay, updates. Parameters without a gradient stay.

        Returns:
            The operators that update: of each parameter, perhaps after one that scales its learning rate, and what
            follows (``_finish_update``). As in Fluid, those that clip and add weight decay are not among them.
        """
        return self._apply(params_grads, startup_program, self._grad_clip)

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: ParamGrads
    ) -> list[Operator]:
        """Fluid's name for ``apply_gradients``. ``loss`` makes no difference."""
        return self.apply_gradients(params_grads, startup_program)

    def get_opti_var_name_list(self) -> list[str]:
        """The names of the variables that the optimizer keeps for parameters; the learning rate is not one of them."""
        return [variable.name for of_kind in self._accumulators.values() for variable in of_kind.values()]

    def _apply(
        self, params_grads: ParamGrads, startup_program: Program | None, grad_clip: GradientClipBase | None
    ) -> list[Operator]:
        pairs = check_pairs(params_grads, "apply_gradients: params_grads")
        params_grads = [
            (parameter, gradient)
            for parameter, gradient in pairs
            if gradient is not None and getattr(parameter, "trainable", True)
        ]
        if not params_grads:
            return []
        program = params_grads[0][0].block.program
        startup = default_startup_program() if startup_program is None else startup_program
        params_grads = append_gradient_clip_ops(params_grads, grad_clip)
        params_grads = append_regularization_ops(params_grads, self.regularization)
        block = program.global_block()
        first = len(block.ops)
        with program_guard(program, startup):
            self._create_accumulators(block, [parameter for parameter, _ in params_grads])
            for parameter, gradient in params_grads:
                with program._optimized_guard((parameter, gradient)):
                    self._append_optimize_op(block, (parameter, gradient))
            with program._role_guard(OpRole.OPTIMIZE):
                self._finish_update(block, params_grads)
        added: list[Operator] = block.ops[first:]
        return added

    def _number(self, value: Any, what: str) -> float:
        """The argument ``what`` of the constructor, which has to be a number."""
        return check_number(value, f"{type(self).__name__}: {what}")

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        """Makes the state of an optimizer of one's own, with ``_add_accumulator``, before the updates."""

    def _append_optimize_op(self, block: Block, param_and_grad: tuple[Parameter, Variable]) -> Operator:
        """Adds to ``block`` the operator that updates a parameter."""
        raise NotImplementedError(
            f"{type(self).__name__} has no _append_optimize_op: a subclass of Optimizer defines it"
        )

    def _finish_update(self, block: Block, parameters_and_grads: ParamGrads) -> None:
        """Adds to ``block`` what follows the updates."""

    def _add_accumulator(
        self,
        name: str,
        param: Parameter,
        dtype: Any = None,
        fill_value: float = 0.0,
        shape: Sequence[int] | None = None,
    ) -> Variable:
        """A persistable variable, of the parameter's dtype and shape unless others are given."""
        variable = create_initialized_var(
            default_main_program(),
            default_startup_program(),
            f"{param.name}_{name}" if self._name is None else f"{param.name}_{self._name}_{name}",
            param.shape if shape is None else shape,
            param.dtype if dtype is None else dtype,
            initializer.Constant(fill_value),
        )
        self._accumulators.setdefault(name, {})[param.name] = variable
        return variable

    def _get_accumulator(self, name: str, param: Parameter) -> Variable:
        """What ``_add_accumulator`` has made. NotFound if it has not."""
        found = self._accumulators.get(name, {}).get(param.name)
        if found is None:
            raise errors.NotFound(f"{type(self).__name__} has no accumulator '{name}' for '{param.name}'")
        return found

    def _create_param_lr(self, param_and_grad: tuple[Parameter, Variable]) -> Variable:
        """The learning rate of a parameter."""
        parameter = param_and_grad[0]
        rate, factor = self._common_rate(parameter), parameter.optimize_attr["learning_rate"]
        if factor == 1.0:
            return rate
        block = default_main_program().global_block()
        scaled = block.create_var(dtype=rate.dtype, stop_gradient=True)
        block.append_op("scale", {"X": rate}, {"Out": scaled}, {"scale": float(factor)})
        return scaled

    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        """The variable of the learning rate in ``program`` (None: the default main program), to be fetched, say. None
        before ``minimize`` if the rate is a number.
        """
        found = self._learning_rate_map.get(default_main_program() if program is None else program)
        return self._learning_rate if found is None and isinstance(self._learning_rate, Variable) else found

    def _common_rate(self, parameter: Parameter) -> Variable:
        """The learning rate of all parameters; a number becomes a variable with the first of them."""
        program = default_main_program()
        variable = self._learning_rate_map.get(program)
        if variable is None and isinstance(self._learning_rate, Variable):
            return self._learning_rate
        if variable is None:
            value = initializer.Constant(float(self._learning_rate))
            dtype = VarType.FP64 if parameter.dtype == VarType.FP64 else VarType.FP32
            variable = create_initialized_var(program, default_startup_program(), "learning_rate", [1], dtype, value)
            self._learning_rate_map[program] = variable
        return variable


def _may_be_parameter(variable: Variable) -> bool:
    return variable.persistable and not isinstance(variable, Parameter) and carries_gradient(variable)


def _trainable(program: Program, item: Variable | str) -> Variable:
    """The variable of ``item``. NotFound, InvalidArgument or TypeMismatch if it cannot be trained."""
    root = program.global_block()
    name = item.name if isinstance(item, Variable) else item
    if not isinstance(name, str):
        raise errors.TypeMismatch(f"minimize: parameter_list takes variables or their names, got {item!r}")
    if not root.has_var(name):
        known = [parameter.name for parameter in root.all_parameters()]
        raise errors.NotFound(
            f"minimize: parameter_list names '{name}', which the program does not declare; its parameters are "
            f"{', '.join(known[:5]) or 'none'}{', …' if len(known) > 5 else ''}"
        )
    variable = root.var(name)
    if not isinstance(variable, Parameter) and (not variable.persistable or variable.stop_gradient):
        raise errors.InvalidArgument(
            f"minimize: '{variable.name}' in parameter_list cannot be trained: it "
            f"{'has stop_gradient' if variable.persistable else 'is not persistable'}"
        )
    return variable


def _make_parameter(program: Program, variable: Variable) -> None:
    """Has ``variable`` be a Parameter."""
    if isinstance(variable, Parameter):
        return
    variable.desc.is_parameter = True
    root = program.global_block()
    parameter = Parameter(root, variable.name)
    parameter._set_training(True, None, {"learning_rate": 1.0}, None)
    root.vars[variable.name] = parameter
