"""How a parameter is to be made."""

from __future__ import annotations

import copy
from typing import Literal, Union

import numpy as np

from headrace import errors
from headrace.fluid._checks import check_integer, check_object, check_optional
from headrace.fluid.clip import GradientClipBase
from headrace.fluid.initializer import Initializer
from headrace.fluid.regularizer import WeightDecayRegularizer

__all__ = ["ParamAttr", "WeightNormParamAttr"]


class ParamAttr:
    """Name, initial value and training of a parameter.

    Args:
        name: the variable's name; layers with the same name share the parameter.
        initializer: gives the initial value; the layer has a default.
        learning_rate: factor on the optimizer's learning rate.
        regularizer: goes before the optimizer's.
        trainable: whether optimizers change it.
        gradient_clip: clips the gradient; goes before the optimizer's ``grad_clip``.
        do_model_average: whether ModelAverage and ExponentialMovingAverage average the parameter.
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: WeightDecayRegularizer | None = None,
        trainable: bool = True,
        gradient_clip: GradientClipBase | None = None,
        do_model_average: bool = True,
    ) -> None:
        check_object(initializer, Initializer, "Constant(0.1)", "ParamAttr: initializer")
        check_object(regularizer, WeightDecayRegularizer, "L2Decay(0.1)", "ParamAttr: regularizer")
        check_object(gradient_clip, GradientClipBase, "GradientClipByValue(1.0)", "ParamAttr: gradient_clip")
        if isinstance(learning_rate, bool) or not isinstance(learning_rate, (int, float, np.number)):
            raise errors.TypeMismatch(f"ParamAttr: learning_rate must be a number, got {learning_rate!r}")
        if not (isinstance(trainable, (int, np.bool_)) and trainable in (0, 1)):
            raise errors.TypeMismatch(f"ParamAttr: trainable must be True or False, got {trainable!r}")
        self.name = check_optional(name, str, "ParamAttr: name")
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable
        self.gradient_clip = gradient_clip
        self.do_model_average = do_model_average

    def _named(self, name: str) -> ParamAttr:
        """The same for a parameter of another name."""
        attr = copy.copy(self)
        attr.name = name
        return attr

    @staticmethod
    def _to_attr(value: ParamAttrLike) -> ParamAttr | Literal[False]:
        """The ParamAttr for a layer's ``param_attr`` or ``bias_attr``; False: no such parameter."""
        if value is None or value is True:
            return ParamAttr()
        if value is False:
            return False
        if isinstance(value, ParamAttr):
            return value
        if isinstance(value, str):
            return ParamAttr(name=value)
        if isinstance(value, Initializer):
            return ParamAttr(initializer=value)
        if isinstance(value, WeightDecayRegularizer):
            return ParamAttr(regularizer=value)
        raise errors.TypeMismatch(
            f"a ParamAttr, a name, an initializer, a regularizer or a bool was expected, got {value!r}"
            + (": create an object of that class" if isinstance(value, type) else "")
        )

    def __repr__(self) -> str:
        return f"ParamAttr(name={self.name!r}, learning_rate={self.learning_rate}, trainable={self.trainable})"


class WeightNormParamAttr(ParamAttr):
    """Makes a weight g · v / ‖v‖, of a direction v and lengths g that are trained in its place (Salimans and Kingma,
    2016): the parameters ``name_v`` and ``name_g``. v begins as ``initializer`` says, g as the norms of v.

    Args:
        dim: the dimension of the weight along which each index has a length of its own; None: one length for all.
        name, initializer, learning_rate, regularizer, trainable, gradient_clip: of both parameters, as of ParamAttr.
        do_model_average: as of ParamAttr, but False by default.
    """

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: WeightDecayRegularizer | None = None,
        trainable: bool = True,
        gradient_clip: GradientClipBase | None = None,
        do_model_average: bool = False,
    ) -> None:
        super().__init__(name, initializer, learning_rate, regularizer, trainable, gradient_clip, do_model_average)
        self.dim = None if dim is None else check_integer(dim, "WeightNormParamAttr: dim")


#: What layers take as ``param_attr`` or ``bias_attr``: True and None mean the defaults, False no such parameter.
ParamAttrLike = Union[ParamAttr, str, Initializer, WeightDecayRegularizer, bool, None]
