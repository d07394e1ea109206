"""Fluid's transformations of complete programs, as far as they make sense on one machine."""

from __future__ import annotations

from typing import Any

from headrace import errors
from headrace.fluid._refused import refusal
from headrace.fluid.compiler import memory_optimize, release_memory
from headrace.fluid.core import CPUPlace, Scope
from headrace.fluid.framework import Program

__all__ = ["InferenceTranspiler", "memory_optimize", "release_memory"]


class InferenceTranspiler:
    """Fluid's, which folds batch_norm into the convolution before it. Here a program for inference stays as it is: its
    results are the same.
    """

    def transpile(self, program: Program, place: CPUPlace, scope: Scope | None = None) -> None:
        """Changes nothing.

        Raises:
            TypeMismatch: ``program``, ``place`` or ``scope`` is something else.
        """
        for value, kind in ((program, Program), (place, CPUPlace), (scope, Scope)):
            if not isinstance(value, kind) and not (kind is Scope and value is None):
                raise errors.TypeMismatch(
                    f"InferenceTranspiler.transpile takes a {kind.__name__}, got {type(value).__name__}"
                )


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "transpiler", name)
