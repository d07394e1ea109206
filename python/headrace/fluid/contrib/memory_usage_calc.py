"""An estimate of a program's memory from its declarations."""

from __future__ import annotations

import math

import numpy as np

from headrace import errors
from headrace.fluid.core import VarType, dtype_name
from headrace.fluid.framework import Program, Variable

__all__ = ["memory_usage"]

_UNITS = ("B", "KB", "MB", "GB", "TB")


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """The least and the most memory that the variables of a program take: the persistable ones, and all of them
    together. What is needed lies between: temporaries that are not needed at the same time share memory.

    Args:
        batch_size: the value for dimensions that the program does not know.

    Returns:
        Both numbers, and their unit: "B", "KB" (1024 B), "MB", "GB" or "TB".
    """
    if not isinstance(program, Program):
        raise errors.TypeMismatch(f"memory_usage takes a Program, got {type(program).__name__}")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise errors.InvalidArgument(f"memory_usage: batch_size has to be a positive number, got {batch_size!r}")
    variables = {var.name: var for var in program.list_vars() if var.type == VarType.LOD_TENSOR}
    least = sum(_bytes(var, batch_size) for var in variables.values() if var.persistable)
    most = sum(_bytes(var, batch_size) for var in variables.values())
    step = min(int(math.log(max(most, 1), 1024)), len(_UNITS) - 1)
    return least / 1024**step, most / 1024**step, _UNITS[step]


def _bytes(var: Variable, batch_size: int) -> int:
    extents = (batch_size if extent < 0 else extent for extent in var.shape)
    return math.prod(extents) * np.dtype(dtype_name(var.dtype)).itemsize
