"""``fluid.data``: a variable whose value is fed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid._variable import Variable
from headrace.fluid.framework import default_main_program

__all__ = ["data"]


def data(name: str, shape: Sequence[int | None], dtype: Any = "float32", lod_level: int = 0) -> Variable:
    """Declares a variable whose value is fed, with exactly the given shape.

    ``layers.data`` is the older form, which puts the batch's dimension in front of the shape.

    Args:
        name: the key of the value in ``Executor.run(feed=...)``.
        shape: of the whole batch; None or -1 fits any extent. A fed value must have this rank and these extents;
            for ``layers.data`` it need not.
        dtype: a fed value must have it.
        lod_level: how many levels of sequences the first dimension packs; a fed value may have others.

    Returns:
        The variable, in the root block of the default main program. Gradients stop there.

    Raises:
        TypeMismatch: ``name`` is not a string, ``shape`` is not a list or tuple, or ``dtype`` is not a tensor's.
        InvalidArgument: a dimension is neither None nor an integer from -1 on.
        AlreadyExists: ``name`` is declared already, with another shape, dtype or LoD level.
    """
    if not isinstance(name, str):
        raise errors.TypeMismatch(f"fluid.data: name has to be a string, got {type(name).__name__}")
    if not isinstance(shape, (list, tuple)):
        raise errors.TypeMismatch(f"fluid.data: the shape of '{name}' has to be a list or tuple, got {shape!r}")
    dims = [-1 if d is None else d for d in shape]
    for d in dims:
        if not isinstance(d, (int, np.integer)) or isinstance(d, bool) or d < -1:
            raise errors.InvalidArgument(
                f"fluid.data: the dimensions of '{name}' have to be None (any extent) or integers of at least -1, "
                f"got {list(shape)}"
            )
    block = default_main_program().global_block()
    variable = block.create_var(
        name=name, shape=dims, dtype=dtype, lod_level=lod_level, stop_gradient=True, is_data=True
    )
    variable._store("need_check_feed", {"need_check_feed": True})
    return variable
