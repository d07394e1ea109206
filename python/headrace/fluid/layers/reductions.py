"""Sums, means, extremes and other reductions over dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import append_layer, check_shape

__all__ = [
    "reduce_all",
    "reduce_any",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
]


def _reduce(
    op_type: str, input: Variable, dim: int | Sequence[int] | None, keep_dim: bool, name: str | None
) -> Variable:
    given = [0] if dim is None else [dim] if isinstance(dim, (int, np.integer)) else dim
    dims = check_shape(given, "dim", op_type)
    return append_layer(op_type, {"X": input}, {"dim": dims, "keep_dim": keep_dim, "reduce_all": dim is None}, name)


def reduce_sum(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """The sum over the dimensions ``dim``; None: over all."""
    return _reduce("reduce_sum", input, dim, keep_dim, name)


def reduce_mean(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """The mean over the dimensions ``dim``; None: over all."""
    return _reduce("reduce_mean", input, dim, keep_dim, name)


def reduce_max(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """The maximum over the dimensions ``dim``; None: over all."""
    return _reduce("reduce_max", input, dim, keep_dim, name)


def reduce_min(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """The minimum over the dimensions ``dim``; None: over all."""
    return _reduce("reduce_min", input, dim, keep_dim, name)


def reduce_prod(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """The product over the dimensions ``dim``; None: over all."""
    return _reduce("reduce_prod", input, dim, keep_dim, name)


def reduce_all(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """Whether all elements are true, over the dimensions ``dim``; None: over all."""
    return _reduce("reduce_all", input, dim, keep_dim, name)


def reduce_any(
    input: Variable, dim: int | Sequence[int] | None = None, keep_dim: bool = False, name: str | None = None
) -> Variable:
    """Whether any element is true, over the dimensions ``dim``; None: over all."""
    return _reduce("reduce_any", input, dim, keep_dim, name)
