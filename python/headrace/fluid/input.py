"""``fluid.one_hot`` and ``fluid.embedding``: as the layers, of numbers without a last dimension of 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.fluid.framework import Variable
from headrace.fluid.layers.nn import _embedding
from headrace.fluid.layers.rearrange import _one_hot
from headrace.fluid.param_attr import ParamAttrLike

__all__ = ["embedding", "one_hot"]


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """For each number of ``input``, int32 or int64 [...], ``depth`` elements: 1 at that place, else 0; float32.

    Args:
        depth: may be an int32 or int64 variable of one element.
        allow_out_of_range: other numbers give zeros instead of an error.

    Returns:
        [..., depth].
    """
    return _one_hot("one_hot_v2", input, depth, allow_out_of_range)


def embedding(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: ParamAttrLike = None,
    dtype: Any = "float32",
) -> Variable:
    """The rows of a table, a parameter of shape ``size`` [rows, width], with the numbers ``input`` (int64 [...]). See
    layers.embedding.

    Returns:
        [..., width].
    """
    return _embedding("lookup_table_v2", input, size, is_sparse, padding_idx, param_attr, dtype)
