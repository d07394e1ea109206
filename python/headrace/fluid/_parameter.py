"""Parameters: variables that optimizers train, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

from headrace.fluid._protocols import GradientClip, Regularizer
from headrace.fluid._stored_objects import to_attributes
from headrace.fluid._variable import Variable

__all__ = ["Parameter"]


class _OptimizeAttr(MutableMapping[str, float]):
    """``Parameter.optimize_attr``: items set in it are set in the parameter."""

    _KEY = "optimize_attr"

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter

    def _all(self) -> dict[str, float]:
        prefix = f"{self._KEY}."
        attributes = self._parameter.desc.attrs
        return {"learning_rate": 1.0} | {
            name[len(prefix) :]: value for name, value in attributes.items() if name.startswith(prefix)
        }

    def replace(self, values: Mapping[str, float]) -> None:
        self._parameter._store(self._KEY, {f"{self._KEY}.{name}": value for name, value in values.items()})

    def __getitem__(self, name: str) -> float:
        return self._all()[name]

    def __setitem__(self, name: str, value: float) -> None:
        self.replace({**self._all(), name: value})

    def __delitem__(self, name: str) -> None:
        self.replace({kept: value for kept, value in self._all().items() if kept != name})

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __reduce__(self) -> tuple[type, tuple[dict[str, float]]]:
        """Copies are dicts of their own."""
        return dict, (self._all(),)

    def __repr__(self) -> str:
        return repr(self._all())


class Parameter(Variable):
    """A variable that optimizers train. How they do is stored with the program, except for regularizers and clips of
    classes of your own.
    """

    def _set_training(
        self,
        trainable: bool,
        regularizer: Regularizer | None,
        optimize_attr: Mapping[str, float],
        gradient_clip: GradientClip | None,
    ) -> None:
        self.trainable = trainable
        self.regularizer = regularizer
        self.optimize_attr = optimize_attr
        self.gradient_clip_attr = gradient_clip

    @property
    def _is_known(self) -> bool:
        """Whether the program says how the parameter is trained: else the bytes that it was parsed from did not."""
        return "trainable" in self.desc.attrs

    @property
    def trainable(self) -> bool:
        """Whether optimizers change it, unless they are given a list of parameters."""
        return bool(self.desc.attrs.get("trainable", True))

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._store("trainable", {"trainable": bool(value)})

    @property
    def do_model_average(self) -> bool:
        """Whether ModelAverage and ExponentialMovingAverage average it."""
        return bool(self.desc.attrs.get("do_model_average", True))

    @do_model_average.setter
    def do_model_average(self, value: bool | None) -> None:
        self._store("do_model_average", {} if value is None or value else {"do_model_average": False})

    @property
    def regularizer(self) -> Regularizer | None:
        """Goes before the optimizer's."""
        found: Regularizer | None = self._stored("regularizer")
        return found

    @regularizer.setter
    def regularizer(self, value: Regularizer | None) -> None:
        self._store("regularizer", to_attributes("regularizer", value), value)

    @property
    def gradient_clip_attr(self) -> GradientClip | None:
        """Goes before the optimizer's."""
        found: GradientClip | None = self._stored("gradient_clip")
        return found

    @gradient_clip_attr.setter
    def gradient_clip_attr(self, value: GradientClip | None) -> None:
        self._store("gradient_clip", to_attributes("gradient_clip", value), value)

    @property
    def optimize_attr(self) -> MutableMapping[str, float]:
        """Under "learning_rate": a factor on the optimizer's."""
        return _OptimizeAttr(self)

    @optimize_attr.setter
    def optimize_attr(self, value: Mapping[str, float]) -> None:
        _OptimizeAttr(self).replace(value)
