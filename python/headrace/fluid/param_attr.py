"""How a parameter is to be made."""

from __future__ import annotations

from typing import Union

from headrace import errors
from headrace.fluid.initializer import Initializer
from headrace.fluid.regularizer import WeightDecayRegularizer

__all__ = ["ParamAttr"]


class ParamAttr:
    """Name, initial value and training of a parameter.

    Args:
        name: the variable's name; layers with the same name share the parameter.
        initializer: gives the initial value; the layer has a default.
        learning_rate: factor on the optimizer's learning rate.
        regularizer: goes before the optimizer's.
        trainable: whether optimizers change it.
    """

    def __init__(
        self,
        name: str | None = None,
        initializer: Initializer | None = None,
        learning_rate: float = 1.0,
        regularizer: WeightDecayRegularizer | None = None,
        trainable: bool = True,
    ) -> None:
        self.name = name
        self.initializer = initializer
        self.learning_rate = learning_rate
        self.regularizer = regularizer
        self.trainable = trainable

    @staticmethod
    def _to_attr(value: ParamAttrLike) -> ParamAttr | None:
        """What a layer's ``param_attr`` or ``bias_attr`` means; None: no such parameter."""
        if value is None or value is True:
            return ParamAttr()
        if value is False:
            return None
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
        )

    def __repr__(self) -> str:
        return f"ParamAttr(name={self.name!r}, learning_rate={self.learning_rate}, trainable={self.trainable})"


#: What layers take as ``param_attr`` or ``bias_attr``: True and None mean the defaults, False no such parameter.
ParamAttrLike = Union[ParamAttr, str, Initializer, WeightDecayRegularizer, bool, None]
