"""Protocols of clips, regularizers, blocks and programs, for modules that those import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.fluid import core


class ErrorClip(Protocol):
    """Such as ``clip.ErrorClipByValue``."""

    min: float
    max: float


class GradientClip(Protocol):
    """Such as a ``clip.GradientClipBase``: the parameters with their gradients, clipped."""

    def __call__(self, params_grads: list[Any], /) -> list[Any]: ...


class Regularizer(Protocol):
    """Such as a ``regularizer.WeightDecayRegularizer``: the penalty to add to the gradient of a parameter."""

    def __call__(self, param: Any, grad: Any, block: Any, /) -> Any: ...


class DeclaringBlock(Protocol):
    """A ``framework.Block``, as its variables and operators know it."""

    desc: core.BlockDesc

    @property
    def idx(self) -> int: ...
    @property
    def ops(self) -> Sequence[Any]: ...
    @property
    def program(self) -> Any: ...
    def create_var(self, *args: Any, **kwargs: Any) -> Any: ...
    def append_op(self, *args: Any, **kwargs: Any) -> Any: ...


class DeclaringProgram(Protocol):
    """A ``framework.Program``, of which the names that it declares matter."""

    def _has_name(self, name: str) -> bool: ...
