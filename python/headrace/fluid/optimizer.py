"""Optimizers: they add the backward pass and the operators that change the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar

from headrace import errors
from headrace._warnings import warn
from headrace._weak_collections import WeakKeyMap
from headrace.fluid import initializer
from headrace.fluid._checks import check_object
from headrace.fluid._model_average import ExponentialMovingAverage, ModelAverage
from headrace.fluid._optimizer_wrappers import LookaheadOptimizer, RecomputeOptimizer
from headrace.fluid._refused import refusal
from headrace.fluid.backward import append_backward, carries_gradient, trained_parameters
from headrace.fluid.clip import (
    GradientClipBase,
    append_gradient_clip_ops,
    cast,
    error_clip_callback,
)
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

__all__ = [
    "SGD",
    "Adadelta",
    "AdadeltaOptimizer",
    "Adagrad",
    "AdagradOptimizer",
    "Adam",
    "AdamOptimizer",
    "AdamW",
    "AdamWOptimizer",
    "Adamax",
    "AdamaxOptimizer",
    "DecayedAdagrad",
    "DecayedAdagradOptimizer",
    "Dpsgd",
    "DpsgdOptimizer",
    "ExponentialMovingAverage",
    "Ftrl",
    "FtrlOptimizer",
    "Lamb",
    "LambOptimizer",
    "LarsMomentum",
    "LarsMomentumOptimizer",
    "LookaheadOptimizer",
    "ModelAverage",
    "Momentum",
    "MomentumOptimizer",
    "Optimizer",
    "ProximalAdagrad",
    "ProximalAdagradOptimizer",
    "ProximalGD",
    "ProximalGDOptimizer",
    "RMSProp",
    "RMSPropOptimizer",
    "RecomputeOptimizer",
    "SGDOptimizer",
]


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "optimizer", name)


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

    _type = ""

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
        self.regularization = regularization
        self._learning_rate = learning_rate
        self._grad_clip = grad_clip
        self._name = name
        self._rates: WeakKeyMap[Program, Variable] = WeakKeyMap()
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
            parameter_list: the variables to train; None: all trainable parameters. A persistable variable that is no
                parameter yet, as in a program that Fluid has stored, becomes one, with a learning rate factor of 1 and
                neither regularizer nor clip.
            grad_clip: takes the place of the optimizer's.

        Returns:
            The operators that update, and (parameter, gradient) pairs. If the loss depends on no trainable parameter,
            there are none, and a warning says so.

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
        if isinstance(parameter_list, (str, Variable)):
            raise errors.TypeMismatch(
                f"minimize: parameter_list has to be a list of variables or of their names, got {parameter_list!r}"
            )
        if parameter_list is not None:
            for item in parameter_list:
                _make_parameter(program, item)
        elif not trained_parameters(program):
            unknown = [variable.name for variable in program.list_vars() if _may_be_parameter(variable)]
            if unknown:
                raise errors.InvalidArgument(
                    f"minimize: the program has no trainable parameter, but persistable variables such as "
                    f"'{unknown[0]}'. A program that Fluid has stored does not say which of them are parameters: name "
                    f"those that are to be trained, minimize(loss, parameter_list=[…])"
                )
        params_grads = append_backward(loss, parameter_list, no_grad_set, [*(callbacks or ()), error_clip_callback])
        if not params_grads:
            warn(f"the loss '{loss.name}' depends on no trainable parameter: nothing is trained", UserWarning)
        return params_grads

    def apply_gradients(self, params_grads: ParamGrads, startup_program: Program | None = None) -> list[Operator]:
        """The second half of ``minimize``: clips, adds weight decay, updates. Parameters without a gradient stay."""
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
        params_grads = [(parameter, gradient) for parameter, gradient in params_grads if gradient is not None]
        if not params_grads:
            return []
        program = params_grads[0][0].block.program
        startup = default_startup_program() if startup_program is None else startup_program
        with program._role_guard(OpRole.OPTIMIZE):
            params_grads = append_gradient_clip_ops(params_grads, grad_clip)
            params_grads = append_regularization_ops(params_grads, self.regularization)
        updates, block = [], program.global_block()
        with program_guard(program, startup):
            self._create_accumulators(block, [parameter for parameter, _ in params_grads])
            for parameter, gradient in params_grads:
                with program._optimized_guard((parameter, gradient)):
                    updates.append(self._append_optimize_op(block, (parameter, gradient)))
            with program._role_guard(OpRole.OPTIMIZE):
                self._finish_update(block, params_grads)
        return updates

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        """Makes the state of an optimizer of one's own, with ``_add_accumulator``, before the updates."""

    def _append_optimize_op(self, block: Block, param_and_grad: tuple[Parameter, Variable]) -> Operator:
        """Adds to ``block`` the operator that updates a parameter."""
        return self._update(*param_and_grad, block.program, default_startup_program())

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
        program, startup = default_main_program(), default_startup_program()
        return self._accumulator(name, param, program, startup, fill_value, shape, dtype)

    def _get_accumulator(self, name: str, param: Parameter) -> Variable:
        """What ``_add_accumulator`` has made. NotFound if it has not."""
        found = self._accumulators.get(name, {}).get(param.name)
        if found is None:
            raise errors.NotFound(f"{type(self).__name__} has no accumulator '{name}' for '{param.name}'")
        return found

    def _create_param_lr(self, param_and_grad: tuple[Parameter, Variable]) -> Variable:
        """The learning rate of a parameter."""
        return self._rate(param_and_grad[0], default_main_program(), default_startup_program())

    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        """The variable of the learning rate in ``program`` (None: the default main program), to be fetched, say. None
        before ``minimize`` if the rate is a number.
        """
        if isinstance(self._learning_rate, Variable):
            return self._learning_rate
        return self._rates.get(default_main_program() if program is None else program)

    def _common_rate(self, parameter: Parameter, program: Program, startup: Program) -> Variable:
        """The learning rate of all parameters in ``program``; a number becomes a variable with the first of them."""
        if isinstance(self._learning_rate, Variable):
            return self._learning_rate
        variable = self._rates.get(program)
        if variable is None:
            value = initializer.Constant(float(self._learning_rate))
            dtype = VarType.FP64 if parameter.dtype == VarType.FP64 else VarType.FP32
            variable = create_initialized_var(program, startup, "learning_rate", [1], dtype, value)
            self._rates.setdefault(program, variable)
        return variable

    def _rate(self, parameter: Parameter, program: Program, startup: Program) -> Variable:
        """The learning rate of a parameter."""
        rate = self._common_rate(parameter, program, startup)
        factor = parameter.optimize_attr["learning_rate"]
        if factor == 1.0:
            return rate
        block = program.global_block()
        scaled = block.create_var(dtype=rate.dtype, stop_gradient=True)
        block.append_op("scale", {"X": rate}, {"Out": scaled}, {"scale": float(factor)})
        return scaled

    def _accumulator(
        self,
        kind: str,
        parameter: Parameter,
        program: Program,
        startup: Program,
        value: float = 0.0,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
    ) -> Variable:
        """The persistable variable in which the optimizer keeps ``kind`` for ``parameter``."""
        kind_name = kind if self._name is None else f"{self._name}_{kind}"
        variable = create_initialized_var(
            program,
            startup,
            f"{parameter.name}_{kind_name}",
            parameter.shape if shape is None else shape,
            parameter.dtype if dtype is None else dtype,
            initializer.Constant(value),
        )
        self._accumulators.setdefault(kind, {})[parameter.name] = variable
        return variable

    def _update(self, parameter: Parameter, gradient: Variable, program: Program, startup: Program) -> Operator:
        raise NotImplementedError(
            f"{type(self).__name__} has no _append_optimize_op: a subclass of Optimizer defines it"
        )


def _may_be_parameter(variable: Variable) -> bool:
    return variable.persistable and not isinstance(variable, Parameter) and carries_gradient(variable)


def _make_parameter(program: Program, item: Variable | str) -> None:
    """Has ``item`` be a Parameter. NotFound, InvalidArgument or TypeMismatch if it cannot be trained."""
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
    if isinstance(variable, Parameter):
        return
    if not variable.persistable or variable.stop_gradient:
        raise errors.InvalidArgument(
            f"minimize: '{variable.name}' in parameter_list cannot be trained: it "
            f"{'has stop_gradient' if variable.persistable else 'is not persistable'}"
        )
    variable.desc.is_parameter = True
    parameter = Parameter(root, variable.name)
    parameter._set_training(True, None, {"learning_rate": 1.0}, None)
    root.vars[variable.name] = parameter


class SGDOptimizer(Optimizer):
    """parameter -= learning_rate · gradient."""

    _type = "sgd"

    def _update(self, parameter: Parameter, gradient: Variable, program: Program, startup: Program) -> Operator:
        rate = self._rate(parameter, program, startup)
        return program.global_block().append_op(
            "sgd", {"Param": parameter, "Grad": gradient, "LearningRate": rate}, {"ParamOut": parameter}
        )


class DpsgdOptimizer(Optimizer):
    """Gradient descent with differential privacy (Abadi et al., 2016): parameter -= learning_rate · (gradient /
    max(1, ‖gradient‖ / clip) + noise / batch_size), where noise is one number for all elements, normally distributed
    with standard deviation ``sigma``, and drawn afresh in each run, whatever the program's ``random_seed`` is. As in
    Fluid, gradients are dense.
    """

    _type = "dpsgd"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        clip: float = 0.9,
        batch_size: float = 0.999,
        sigma: float = 1e-8,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, None, name)
        self._clip, self._batch_size, self._sigma = float(clip), float(batch_size), float(sigma)
        if not self._clip > 0 or not self._batch_size > 0 or not self._sigma >= 0:
            raise errors.InvalidArgument(
                f"Dpsgd: clip and batch_size have to be positive, sigma 0 or more; got {clip}, {batch_size} and {sigma}"
            )

    def _update(self, parameter: Parameter, gradient: Variable, program: Program, startup: Program) -> Operator:
        if gradient.type == VarType.SELECTED_ROWS:
            raise errors.TypeMismatch(
                f"Dpsgd: the gradient of {parameter.name!r} is sparse, expected a dense one: its noise is for all "
                "elements. Pass is_sparse=False to the embedding"
            )
        block, rate = program.global_block(), self._rate(parameter, program, startup)
        clipped, noise, step, moved = (block.create_var(dtype=gradient.dtype, stop_gradient=True) for _ in range(4))
        block.append_op("clip_by_norm", {"X": gradient}, {"Out": clipped}, {"max_norm": self._clip})
        attrs = {"shape": [1], "dtype": int(gradient.dtype), "mean": 0.0, "std": self._sigma / self._batch_size}
        block.append_op("gaussian_random", outputs={"Out": noise}, attrs=attrs)
        block.append_op("elementwise_add", {"X": clipped, "Y": noise}, {"Out": step})
        block.append_op("elementwise_mul", {"X": step, "Y": cast(rate, gradient.dtype)}, {"Out": moved})
        return block.append_op("elementwise_sub", {"X": parameter, "Y": moved}, {"Out": parameter})


class _StatefulOptimizer(Optimizer):
    """One whose operator keeps tensors of the parameter's shape and, but for one, takes a learning rate."""

    #: Its state variables → (input slot, output slot).
    _state: ClassVar[dict[str, tuple[str, str]]] = {}
    _takes_rate: ClassVar[bool] = True

    def _attributes(self) -> dict[str, float | bool]:
        return {}

    def _update(self, parameter: Parameter, gradient: Variable, program: Program, startup: Program) -> Operator:
        inputs: dict[str, Variable] = {"Param": parameter, "Grad": gradient}
        outputs: dict[str, Variable] = {"ParamOut": parameter}
        for kind, (slot, slot_out) in self._state.items():
            inputs[slot] = outputs[slot_out] = self._accumulator(kind, parameter, program, startup)
        # There is one in any case, as in Fluid, so that either can load the files of the other.
        self._common_rate(parameter, program, startup)
        if self._takes_rate:
            inputs["LearningRate"] = self._rate(parameter, program, startup)
        return program.global_block().append_op(self._type, inputs, outputs, self._attributes())


class MomentumOptimizer(_StatefulOptimizer):
    """velocity = momentum · velocity + gradient; parameter -= learning_rate · velocity, or with Nesterov's
    look-ahead.
    """

    _type = "momentum"
    _state: ClassVar = {"velocity": ("Velocity", "VelocityOut")}

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        use_nesterov: bool = False,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._momentum = float(momentum)
        self._use_nesterov = bool(use_nesterov)

    def _attributes(self) -> dict[str, float | bool]:
        return {"mu": self._momentum, "use_nesterov": self._use_nesterov}


class AdagradOptimizer(Optimizer):
    """moment += gradient²; parameter -= learning_rate · gradient / (√moment + epsilon) (Duchi et al., 2011)."""

    _type = "adagrad"

    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1.0e-6,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        initial_accumulator_value: float = 0.0,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._epsilon = float(epsilon)
        self._initial = float(initial_accumulator_value)

    def _update(self, parameter: Parameter, gradient: Variable, program: Program, startup: Program) -> Operator:
        moment = self._accumulator("moment", parameter, program, startup, self._initial)
        rate = self._rate(parameter, program, startup)
        return program.global_block().append_op(
            "adagrad",
            {"Param": parameter, "Grad": gradient, "Moment": moment, "LearningRate": rate},
            {"ParamOut": parameter, "MomentOut": moment},
            {"epsilon": self._epsilon},
        )


class RMSPropOptimizer(Optimizer):
    """square = rho · square + (1 - rho) · gradient²; moment = momentum · moment + learning_rate · gradient / √(square +
    epsilon); parameter -= moment. ``centered`` takes the square of the mean gradient off the mean square.
    """

    _type = "rmsprop"

    def __init__(
        self,
        learning_rate: float | Variable,
        rho: float = 0.95,
        epsilon: float = 1.0e-6,
        momentum: float = 0.0,
        centered: bool = False,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._rho, self._epsilon, self._momentum = float(rho), float(epsilon), float(momentum)
        self._centered = bool(centered)

    def _update(self, parameter: Parameter, gradient: Variable, program: Program, startup: Program) -> Operator:
        # As in Fluid, there is a mean gradient in any case, so that either can load the files of the other.
        kinds = {"Moment": "momentum", "MeanSquare": "mean_square", "MeanGrad": "mean_grad"}
        state = {slot: self._accumulator(kind, parameter, program, startup) for slot, kind in kinds.items()}
        rate = self._rate(parameter, program, startup)
        return program.global_block().append_op(
            "rmsprop",
            {"Param": parameter, "Grad": gradient, "LearningRate": rate, **state},
            {"ParamOut": parameter, **{f"{slot}Out": variable for slot, variable in state.items()}},
            {"decay": self._rho, "epsilon": self._epsilon, "momentum": self._momentum, "centered": self._centered},
        )


class AdamOptimizer(Optimizer):
    """Adam (Kingma and Ba, 2015).

    Args:
        beta1, beta2: may be variables of a single number; their powers then begin as with the defaults.
        lazy_mode: of a sparse gradient, update only the rows that it has, and their moments. Otherwise all rows are
            updated, those that it lacks with a gradient of zero.
    """

    _type = "adam"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float | Variable = 0.9,
        beta2: float | Variable = 0.999,
        epsilon: float = 1e-8,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        lazy_mode: bool = False,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        # Of each beta: what the operator gets as an attribute, and as an input.
        given = {"beta1": (beta1, 0.9), "beta2": (beta2, 0.999)}
        self._betas = {
            key: default if isinstance(beta, Variable) else float(beta) for key, (beta, default) in given.items()
        }
        self._beta_inputs = {
            f"{key.title()}Tensor": beta for key, (beta, _) in given.items() if isinstance(beta, Variable)
        }
        self._epsilon = float(epsilon)
        self._lazy_mode = bool(lazy_mode)

    def _update(self, parameter: Parameter, gradient: Variable, program: Program, startup: Program) -> Operator:
        moment1 = self._accumulator("moment1", parameter, program, startup)
        moment2 = self._accumulator("moment2", parameter, program, startup)
        power1 = self._accumulator("beta1_pow_acc", parameter, program, startup, self._betas["beta1"], [1])
        power2 = self._accumulator("beta2_pow_acc", parameter, program, startup, self._betas["beta2"], [1])
        rate = self._rate(parameter, program, startup)
        block = program.global_block()
        return block.append_op(
            self._type,
            {
                "Param": parameter,
                "Grad": gradient,
                "Moment1": moment1,
                "Moment2": moment2,
                "Beta1Pow": power1,
                "Beta2Pow": power2,
                "LearningRate": rate,
                **self._beta_inputs,
            },
            {
                "ParamOut": parameter,
                "Moment1Out": moment1,
                "Moment2Out": moment2,
                "Beta1PowOut": power1,
                "Beta2PowOut": power2,
            },
            {
                **self._betas,
                "epsilon": self._epsilon,
                **self._attributes_of(parameter),
            },
        )

    def _attributes_of(self, parameter: Parameter) -> dict[str, float | bool]:
        """The attributes of the operator that are not those of all kinds of Adam."""
        return {"lazy_mode": self._lazy_mode}


class LambOptimizer(AdamOptimizer):
    """LAMB (You et al., 2019): Adam without the correction of the moments, with weight decay, and with steps in
    proportion to the norm of the parameter.

    Args:
        lamb_weight_decay: strength of the weight decay.
        exclude_from_weight_decay_fn: called with each parameter: whether it does not decay; None: all do.
    """

    _type = "lamb"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        lamb_weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        regularization: WeightDecayRegularizer | None = None,
        exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, regularization, name, grad_clip=grad_clip)
        self._decay = float(lamb_weight_decay)
        self._excluded = exclude_from_weight_decay_fn

    def _attributes_of(self, parameter: Parameter) -> dict[str, float | bool]:
        excluded = self._excluded is not None and self._excluded(parameter)
        return {"weight_decay": 0.0 if excluded else self._decay}


class AdamWOptimizer(AdamOptimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019): before each step of Adam, parameter -=
    learning_rate · weight_decay · parameter.

    Args:
        weight_decay: 0 or more.
        apply_decay_param_fun: called with the name of each parameter: whether it decays; None: all do.
        lazy_mode: as Adam's; the rows that a sparse gradient lacks do not decay either.
    """

    _type = "adamw"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        apply_decay_param_fun: Callable[[str], bool] | None = None,
        name: str | None = None,
        lazy_mode: bool = False,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, None, name, lazy_mode, grad_clip)
        if not isinstance(weight_decay, (int, float)) or isinstance(weight_decay, bool):
            raise errors.TypeMismatch(f"AdamW: weight_decay must be a number, got {type(weight_decay).__name__}")
        if not 0 <= weight_decay < math.inf:
            raise errors.InvalidArgument(f"AdamW: weight_decay must be a number of 0 or more, got {weight_decay}")
        if apply_decay_param_fun is not None and not callable(apply_decay_param_fun):
            raise errors.TypeMismatch(
                f"AdamW: apply_decay_param_fun must be callable, got {type(apply_decay_param_fun).__name__}"
            )
        self._weight_decay, self._decays = float(weight_decay), apply_decay_param_fun

    def _attributes_of(self, parameter: Parameter) -> dict[str, float | bool]:
        decays = self._decays is None or self._decays(parameter.name)
        return {**super()._attributes_of(parameter), "coeff": self._weight_decay if decays else 0.0}


class AdamaxOptimizer(Optimizer):
    """Adam with the greatest gradient, decayed, in place of the second moment (Kingma and Ba, 2015)."""

    _type = "adamax"

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._beta1, self._beta2, self._epsilon = float(beta1), float(beta2), float(epsilon)

    def _update(self, parameter: Parameter, gradient: Variable, program: Program, startup: Program) -> Operator:
        moment = self._accumulator("moment", parameter, program, startup)
        norm = self._accumulator("inf_norm", parameter, program, startup)
        power = self._accumulator("beta1_pow_acc", parameter, program, startup, self._beta1, [1])
        rate = self._rate(parameter, program, startup)
        block = program.global_block()
        update = block.append_op(
            "adamax",
            {
                "Param": parameter,
                "Grad": gradient,
                "Moment": moment,
                "InfNorm": norm,
                "Beta1Pow": power,
                "LearningRate": rate,
            },
            {"ParamOut": parameter, "MomentOut": moment, "InfNormOut": norm},
            {"beta1": self._beta1, "beta2": self._beta2, "epsilon": self._epsilon},
        )
        block.append_op("scale", {"X": power}, {"Out": power}, {"scale": self._beta1})
        return update


class DecayedAdagradOptimizer(_StatefulOptimizer):
    """moment = decay · moment + (1 - decay) · gradient²; parameter -= learning_rate · gradient / (√moment +
    epsilon).
    """

    _type = "decayed_adagrad"
    _state: ClassVar = {"moment": ("Moment", "MomentOut")}

    def __init__(
        self,
        learning_rate: float | Variable,
        decay: float = 0.95,
        epsilon: float = 1.0e-6,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._decay, self._epsilon = float(decay), float(epsilon)

    def _attributes(self) -> dict[str, float | bool]:
        return {"decay": self._decay, "epsilon": self._epsilon}


class AdadeltaOptimizer(_StatefulOptimizer):
    """Steps as large as the mean of the former ones, over that of the gradients (Zeiler, 2012). ``learning_rate`` makes
    no difference.
    """

    _type = "adadelta"
    _state: ClassVar = {
        "_avg_squared_grad": ("AvgSquaredGrad", "AvgSquaredGradOut"),
        "_avg_squared_update": ("AvgSquaredUpdate", "AvgSquaredUpdateOut"),
    }
    _takes_rate: ClassVar = False

    def __init__(
        self,
        learning_rate: float | Variable,
        epsilon: float = 1.0e-6,
        rho: float = 0.95,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._epsilon, self._rho = float(epsilon), float(rho)

    def _attributes(self) -> dict[str, float | bool]:
        return {"epsilon": self._epsilon, "rho": self._rho}


class FtrlOptimizer(_StatefulOptimizer):
    """Follow the regularised leader, with ``l1`` and ``l2`` regularisation (McMahan et al., 2013)."""

    _type = "ftrl"
    _state: ClassVar = {
        "squared": ("SquaredAccumulator", "SquaredAccumOut"),
        "linear": ("LinearAccumulator", "LinearAccumOut"),
    }

    def __init__(
        self,
        learning_rate: float | Variable,
        l1: float = 0.0,
        l2: float = 0.0,
        lr_power: float = -0.5,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._l1, self._l2, self._lr_power = float(l1), float(l2), float(lr_power)

    def _attributes(self) -> dict[str, float | bool]:
        return {"l1": self._l1, "l2": self._l2, "lr_power": self._lr_power}


class LarsMomentumOptimizer(_StatefulOptimizer):
    """Momentum with a rate for each parameter that follows from its norm (You et al., 2017)."""

    _type = "lars_momentum"
    _state: ClassVar = {"velocity": ("Velocity", "VelocityOut")}

    def __init__(
        self,
        learning_rate: float | Variable,
        momentum: float,
        lars_coeff: float = 0.001,
        lars_weight_decay: float = 0.0005,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._momentum = float(momentum)
        self._lars_coeff, self._lars_weight_decay = float(lars_coeff), float(lars_weight_decay)

    def _attributes(self) -> dict[str, float | bool]:
        return {"mu": self._momentum, "lars_coeff": self._lars_coeff, "lars_weight_decay": self._lars_weight_decay}


class ProximalGDOptimizer(_StatefulOptimizer):
    """Gradient descent, after each step of which the parameter is brought closer to 0 as ``l1`` and ``l2``
    regularisation ask (Duchi and Singer, 2009).
    """

    _type = "proximal_gd"

    def __init__(
        self,
        learning_rate: float | Variable,
        l1: float = 0.0,
        l2: float = 0.0,
        regularization: WeightDecayRegularizer | None = None,
        name: str | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(learning_rate, regularization, name, grad_clip)
        self._l1, self._l2 = float(l1), float(l2)

    def _attributes(self) -> dict[str, float | bool]:
        return {"l1": self._l1, "l2": self._l2}


class ProximalAdagradOptimizer(ProximalGDOptimizer):
    """The same with the steps of Adagrad."""

    _type = "proximal_adagrad"
    _state: ClassVar = {"moment": ("Moment", "MomentOut")}


SGD = SGDOptimizer
Momentum = MomentumOptimizer
Adagrad = AdagradOptimizer
RMSProp = RMSPropOptimizer
Adam = AdamOptimizer
AdamW = AdamWOptimizer
Lamb = LambOptimizer
Adamax = AdamaxOptimizer
Dpsgd = DpsgdOptimizer
DecayedAdagrad = DecayedAdagradOptimizer
Adadelta = AdadeltaOptimizer
Ftrl = FtrlOptimizer
LarsMomentum = LarsMomentumOptimizer
ProximalGD = ProximalGDOptimizer
ProximalAdagrad = ProximalAdagradOptimizer
