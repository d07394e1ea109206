"""Protocols of clips, regularizers, blocks and programs, for modules that those import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
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
    def _var_recursive(self, name: str) -> Any: ...


class DeclaringProgram(Protocol):
    """A ``framework.Program``, as its blocks know it, and whoever has but a block of it."""

    desc: core.ProgramDesc
    _unrolled: dict[str, list[str]]

    @property
    def blocks(self) -> Sequence[Any]: ...
    def global_block(self) -> Any: ...
    def list_vars(self) -> Iterator[Any]: ...
    def _adopt(self, variable: Any) -> None: ...
    def _has_name(self, name: str) -> bool: ...
    def _next_seed(self) -> int: ...
    def _optimized_guard(self, param_and_grads: Any) -> AbstractContextManager[None]: ...
    def _role_attributes(self) -> dict[str, Any]: ...
