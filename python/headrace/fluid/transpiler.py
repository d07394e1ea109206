"""Where Fluid's programs look for what changes programs that are complete: of that, what makes sense on one machine."""

from __future__ import annotations

from typing import Any

from headrace.fluid._refused import refusal
from headrace.fluid.compiler import memory_optimize, release_memory

__all__ = ["memory_optimize", "release_memory"]


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "transpiler", name)
