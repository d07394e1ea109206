"""Hypothesis strategies for :class:`headrace.testing.OpTest`: shapes, tensors, LoDs.

Hypothesis has to be installed. Shapes and lengths shrink; the values follow from a seed, so that examples stay cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

__all__ = ["broadcast_shapes", "lods", "shapes", "tensors"]


def shapes(
    min_rank: int = 0, max_rank: int = 3, min_extent: int = 0, max_extent: int = 4
) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes, including empty dimensions and dimensions of 1."""
    extents = st.integers(min_extent, max_extent)
    return st.lists(extents, min_size=min_rank, max_size=max_rank).map(tuple)


@st.composite
def broadcast_shapes(draw: st.DrawFn, /, **kwargs: int) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(shape of X, shape of Y, attribute axis) as the elementwise operators take them. ``kwargs`` as for ``shapes``; X
    has at least one dimension.
    """
    x = draw(shapes(**{**kwargs, "min_rank": max(1, kwargs.get("min_rank", 1))}))
    begin = draw(st.integers(0, len(x) - 1))
    end = draw(st.integers(begin + 1, len(x)))
    y = tuple(draw(st.sampled_from([1, extent])) for extent in x[begin:end])
    return x, y, begin if end < len(x) else draw(st.sampled_from([begin, -1]))


@st.composite
def tensors(
    draw: st.DrawFn,
    shape: Sequence[int] | st.SearchStrategy[tuple[int, ...]],
    dtype: Any = np.float64,
    low: float = -2.0,
    high: float = 2.0,
    gap: float = 0.0,
) -> np.ndarray:
    """Arrays with values in [low, high], as far as the dtype can represent them; for bool, both values.

    Args:
        shape: of the array, or a strategy for it.
        dtype: a floating-point one, an integer one or bool.
        gap: for functions that are not differentiable where two elements are equal, or where one is 0: all elements are
            at least that far apart from one another and from 0; ``low`` and ``high`` do not count.

    Raises:
        ValueError: there is a gap between integers.
    """
    kind = np.dtype(dtype).kind
    if gap > 0 and kind in "iub":
        raise ValueError(f"a gap of {gap} needs a floating-point dtype, got {np.dtype(dtype)}")
    extents = tuple(draw(shape) if isinstance(shape, st.SearchStrategy) else shape)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = int(np.prod(extents))
    values: np.ndarray
    if gap > 0:
        values = (rng.permutation(size) - size // 2 + 0.5) * 2 * gap
    elif kind == "b":
        values = rng.integers(0, 1, size, endpoint=True)
    elif kind in "iu":
        limits = np.iinfo(dtype)
        values = rng.integers(max(int(low), limits.min), min(int(high), limits.max), size, dtype, endpoint=True)
    else:
        values = rng.uniform(low, high, size)
    return values.reshape(extents).astype(dtype)


@st.composite
def lods(draw: st.DrawFn, levels: int = 1, max_sequences: int = 4, max_length: int = 4) -> list[list[int]]:
    """Lengths of sequences, the outermost level first; empty sequences are among them. The last level's sum is the
    number of rows.
    """
    lengths: list[list[int]] = [draw(st.lists(st.integers(0, max_length), min_size=1, max_size=max_sequences))]
    while len(lengths) < levels:
        inner = len(lengths[0])  # sequences of the level below, to be shared out
        cuts = sorted(draw(st.lists(st.integers(0, inner), max_size=max_sequences - 1)))
        lengths.insert(0, [end - begin for begin, end in zip([0, *cuts], [*cuts, inner])])
    return lengths
