"""Optimizers: by which operators they update parameters. What all do is in ``_optimizer_base``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

# What is imported as itself is what Fluid's programs take from here, too.
from headrace import errors
from headrace.fluid._checks import check_function
from headrace.fluid._model_average import ExponentialMovingAverage, ModelAverage
from headrace.fluid._optimizer_base import Optimizer, ParamGrads
from headrace.fluid._optimizer_wrappers import LookaheadOptimizer, RecomputeOptimizer
from headrace.fluid._refused import refusal
from headrace.fluid.backward import append_backward as append_backward
from headrace.fluid.clip import GradientClipBase
from headrace.fluid.clip import append_gradient_clip_ops as append_gradient_clip_ops
from headrace.fluid.clip import error_clip_callback as error_clip_callback
from headrace.fluid.core import VarType
from headrace.fluid.framework import Block, Operator, Parameter, Variable
from headrace.fluid.framework import Program as Program
from headrace.fluid.framework import default_main_program as default_main_program
from headrace.fluid.framework import default_startup_program as default_startup_program
from headrace.fluid.framework import program_guard as program_guard
from headrace.fluid.layer_helper import append_random_op
from headrace.fluid.regularizer import WeightDecayRegularizer
from headrace.fluid.regularizer import append_regularization_ops as append_regularization_ops

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


class _OperatorOptimizer(Optimizer):
    """One that updates by a single operator, which keeps tensors and, but for one, takes a learning rate."""

    _type: ClassVar[str]
    #: What it keeps → (input slot, output slot; None if the operator leaves it as it is).
    _state: ClassVar[dict[str, tuple[str, str | None]]] = {}
    _takes_rate: ClassVar[bool] = True

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for parameter in parameters:
            for kind in self._state:
                self._add_accumulator(kind, parameter)

    def _append_optimize_op(self, block: Block, param_and_grad: tuple[Parameter, Variable]) -> Operator:
        parameter, gradient = param_and_grad
        inputs: dict[str, Variable] = {"Param": parameter, "Grad": gradient, **self._inputs()}
        outputs: dict[str, Variable] = {"ParamOut": parameter}
        for kind, (slot, slot_out) in self._state.items():
            inputs[slot] = self._get_accumulator(kind, parameter)
            if slot_out is not None:
                outputs[slot_out] = inputs[slot]
        # There is one in any case, as in Fluid, so that either can load the files of the other.
        self._common_rate(parameter)
        if self._takes_rate:
            inputs["LearningRate"] = self._create_param_lr(param_and_grad)
        return block.append_op(self._type, inputs, outputs, self._attributes(parameter))

    def _inputs(self) -> dict[str, Variable]:
        """The inputs that are the same for all parameters."""
        return {}

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {}


class SGDOptimizer(_OperatorOptimizer):
    """parameter -= learning_rate · gradient."""

    _type = "sgd"


class DpsgdOptimizer(Optimizer):
    """Gradient descent with differential privacy (Abadi et al., 2016): parameter -= learning_rate · (gradient /
    max(1, ‖gradient‖ / clip) + noise / batch_size), where noise is one number for all elements, normally distributed
    with standard deviation ``sigma``, and another one in each run: the same ones when training is repeated if the
    program has a ``random_seed``. As in Fluid, gradients are dense.
    """

    def __init__(
        self,
        learning_rate: float | Variable = 0.001,
        clip: float = 0.9,
        batch_size: float = 0.999,
        sigma: float = 1e-8,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate, None, name)
        self._clip = self._number(clip, "clip")
        self._batch_size = self._number(batch_size, "batch_size")
        self._sigma = self._number(sigma, "sigma")
        if not self._clip > 0 or not self._batch_size > 0 or not self._sigma >= 0:
            raise errors.InvalidArgument(
                f"Dpsgd: clip and batch_size have to be positive, sigma 0 or more; got {clip}, {batch_size} and {sigma}"
            )

    def _append_optimize_op(self, block: Block, param_and_grad: tuple[Parameter, Variable]) -> Operator:
        parameter, gradient = param_and_grad
        if gradient.type == VarType.SELECTED_ROWS:
            raise errors.TypeMismatch(
                f"Dpsgd: the gradient of {parameter.name!r} is sparse, expected a dense one: its noise is for all "
                "elements. Pass is_sparse=False to the embedding"
            )
        return append_random_op(
            block,
            "dpsgd",
            {"Param": parameter, "Grad": gradient, "LearningRate": self._create_param_lr(param_and_grad)},
            {"ParamOut": parameter},
            {"clip": self._clip, "batch_size": self._batch_size, "sigma": self._sigma},
            f"{parameter.name}_dpsgd",
        )


class MomentumOptimizer(_OperatorOptimizer):
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
        self._momentum = self._number(momentum, "momentum")
        self._use_nesterov = bool(use_nesterov)

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {"mu": self._momentum, "use_nesterov": self._use_nesterov}


class AdagradOptimizer(_OperatorOptimizer):
    """moment += gradient²; parameter -= learning_rate · gradient / (√moment + epsilon) (Duchi et al., 2011)."""

    _type = "adagrad"
    _state: ClassVar = {"moment": ("Moment", "MomentOut")}

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
        self._epsilon = self._number(epsilon, "epsilon")
        self._initial = self._number(initial_accumulator_value, "initial_accumulator_value")

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for parameter in parameters:
            self._add_accumulator("moment", parameter, fill_value=self._initial)

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {"epsilon": self._epsilon}


class RMSPropOptimizer(_OperatorOptimizer):
    """square = rho · square + (1 - rho) · gradient²; moment = momentum · moment + learning_rate · gradient / √(square +
    epsilon); parameter -= moment. ``centered`` takes the square of the mean gradient off the mean square.
    """

    _type = "rmsprop"
    # As in Fluid, there is a mean gradient in any case, so that either can load the files of the other.
    _state: ClassVar = {
        "momentum": ("Moment", "MomentOut"),
        "mean_square": ("MeanSquare", "MeanSquareOut"),
        "mean_grad": ("MeanGrad", "MeanGradOut"),
    }

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
        self._rho = self._number(rho, "rho")
        self._epsilon = self._number(epsilon, "epsilon")
        self._momentum = self._number(momentum, "momentum")
        self._centered = bool(centered)

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {"decay": self._rho, "epsilon": self._epsilon, "momentum": self._momentum, "centered": self._centered}


class AdamOptimizer(_OperatorOptimizer):
    """Adam (Kingma and Ba, 2015).

    Args:
        beta1, beta2: may be variables of a single number; their powers then begin as with the defaults.
        lazy_mode: of a sparse gradient, update only the rows that it has, and their moments. Otherwise all rows are
            updated, those that it lacks with a gradient of zero.
    """

    _type = "adam"
    _state: ClassVar = {
        "moment1": ("Moment1", "Moment1Out"),
        "moment2": ("Moment2", "Moment2Out"),
        "beta1_pow_acc": ("Beta1Pow", "Beta1PowOut"),
        "beta2_pow_acc": ("Beta2Pow", "Beta2PowOut"),
    }

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
            key: default if isinstance(beta, Variable) else self._number(beta, key)
            for key, (beta, default) in given.items()
        }
        self._beta_inputs = {
            f"{key.title()}Tensor": beta for key, (beta, _) in given.items() if isinstance(beta, Variable)
        }
        self._epsilon = self._number(epsilon, "epsilon")
        self._lazy_mode = bool(lazy_mode)

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for parameter in parameters:
            self._add_accumulator("moment1", parameter)
            self._add_accumulator("moment2", parameter)
            self._add_accumulator("beta1_pow_acc", parameter, fill_value=self._betas["beta1"], shape=[1])
            self._add_accumulator("beta2_pow_acc", parameter, fill_value=self._betas["beta2"], shape=[1])

    def _inputs(self) -> dict[str, Variable]:
        return self._beta_inputs

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {**self._betas, "epsilon": self._epsilon, "lazy_mode": self._lazy_mode}


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
        self._decay = self._number(lamb_weight_decay, "lamb_weight_decay")
        if exclude_from_weight_decay_fn is not None:
            check_function(exclude_from_weight_decay_fn, f"{type(self).__name__}: exclude_from_weight_decay_fn")
        self._excluded = exclude_from_weight_decay_fn

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        excluded = self._excluded is not None and self._excluded(parameter)
        return {**self._betas, "epsilon": self._epsilon, "weight_decay": 0.0 if excluded else self._decay}


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

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        decays = self._decays is None or self._decays(parameter.name)
        return {**super()._attributes(parameter), "coeff": self._weight_decay if decays else 0.0}


class AdamaxOptimizer(_OperatorOptimizer):
    """Adam with the greatest gradient, decayed, in place of the second moment (Kingma and Ba, 2015)."""

    _type = "adamax"
    _state: ClassVar = {
        "moment": ("Moment", "MomentOut"),
        "inf_norm": ("InfNorm", "InfNormOut"),
        "beta1_pow_acc": ("Beta1Pow", None),
    }

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
        self._beta1, self._beta2 = self._number(beta1, "beta1"), self._number(beta2, "beta2")
        self._epsilon = self._number(epsilon, "epsilon")

    def _create_accumulators(self, block: Block, parameters: Sequence[Parameter]) -> None:
        for parameter in parameters:
            self._add_accumulator("moment", parameter)
            self._add_accumulator("inf_norm", parameter)
            self._add_accumulator("beta1_pow_acc", parameter, fill_value=self._beta1, shape=[1])

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {"beta1": self._beta1, "beta2": self._beta2, "epsilon": self._epsilon}

    def _finish_update(self, block: Block, parameters_and_grads: ParamGrads) -> None:
        for pair in parameters_and_grads:
            power = self._get_accumulator("beta1_pow_acc", pair[0])
            with block.program._optimized_guard(pair):
                block.append_op("scale", {"X": power}, {"Out": power}, {"scale": self._beta1})


class DecayedAdagradOptimizer(_OperatorOptimizer):
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
        self._decay, self._epsilon = self._number(decay, "decay"), self._number(epsilon, "epsilon")

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {"decay": self._decay, "epsilon": self._epsilon}


class AdadeltaOptimizer(_OperatorOptimizer):
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
        self._epsilon, self._rho = self._number(epsilon, "epsilon"), self._number(rho, "rho")

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {"epsilon": self._epsilon, "rho": self._rho}


class FtrlOptimizer(_OperatorOptimizer):
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
        self._l1, self._l2 = self._number(l1, "l1"), self._number(l2, "l2")
        self._lr_power = self._number(lr_power, "lr_power")

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {"l1": self._l1, "l2": self._l2, "lr_power": self._lr_power}


class LarsMomentumOptimizer(_OperatorOptimizer):
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
        self._momentum = self._number(momentum, "momentum")
        self._lars_coeff = self._number(lars_coeff, "lars_coeff")
        self._lars_weight_decay = self._number(lars_weight_decay, "lars_weight_decay")

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
        return {"mu": self._momentum, "lars_coeff": self._lars_coeff, "lars_weight_decay": self._lars_weight_decay}


class ProximalGDOptimizer(_OperatorOptimizer):
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
        self._l1, self._l2 = self._number(l1, "l1"), self._number(l2, "l2")

    def _attributes(self, parameter: Parameter) -> dict[str, float | bool]:
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
