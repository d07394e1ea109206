"""The strategies draw what operators take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from headrace.testing import OpTest
from headrace.testing.strategies import broadcast_shapes, lods, shapes, tensors

quick = settings(max_examples=10, deadline=None, derandomize=True)


@quick
@given(st.data(), broadcast_shapes())
def test_broadcast_shapes_fit_elementwise_operators(
    data: st.DataObject, case: tuple[tuple[int, ...], tuple[int, ...], int]
) -> None:
    x_shape, y_shape, axis = case
    x, y = data.draw(tensors(x_shape)), data.draw(tensors(y_shape))
    begin = len(x_shape) - len(y_shape) if axis == -1 else axis
    aligned = y.reshape(y_shape + (1,) * (len(x_shape) - begin - len(y_shape)))
    test = OpTest("elementwise_mul", {"X": x, "Y": y}, {"axis": axis}, {"Out": x * aligned})
    test.check_outputs()
    test.check_gradients(["X", "Y"])


@quick
@given(st.data(), lods(levels=2))
def test_lods_fit_sequence_operators(data: st.DataObject, lengths: list[list[int]]) -> None:
    rows = data.draw(tensors((sum(lengths[-1]), 2)))
    ends = np.cumsum(lengths[-1])
    sums = np.stack([rows[end - n : end].sum(0) for end, n in zip(ends, lengths[-1])])
    expected = (sums, lengths[:-1])
    OpTest("sequence_pool", {"X": (rows, lengths)}, {"pooltype": "SUM"}, {"Out": expected}).check_outputs()


@quick
@given(tensors(shapes(max_rank=2), gap=0.1))
def test_a_gap_keeps_elements_apart(x: np.ndarray) -> None:
    ordered = np.sort(np.append(x.ravel(), 0.0))
    assert (np.diff(ordered) >= 0.1 - 1e-12).all()


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.int64, np.float32, np.float64])
def test_tensors_of_any_dtype_lie_within_their_bounds(dtype: Any) -> None:
    @quick
    @given(tensors((50,), dtype))
    def check(x: np.ndarray) -> None:
        assert x.dtype == dtype
        assert (x >= -2).all()
        assert (x <= 2).all()
        assert len(np.unique(x)) > 1

    check()


def test_integers_have_no_gaps() -> None:
    with pytest.raises(ValueError, match=r"a gap of 0\.5 needs a floating-point dtype, got int64"):
        find(tensors((2,), np.int64, gap=0.5), lambda x: True)


@quick
@given(broadcast_shapes(min_rank=0, max_rank=1))
def test_there_is_always_a_dimension_to_broadcast(case: tuple[tuple[int, ...], tuple[int, ...], int]) -> None:
    assert len(case[0]) == len(case[1]) == 1


@quick
@given(st.data(), shapes(min_rank=1, min_extent=1), st.sampled_from(["float32", "float64"]))
def test_reductions_of_any_shape(data: st.DataObject, shape: tuple[int, ...], dtype: str) -> None:
    x = data.draw(tensors(shape, dtype))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    expected = np.atleast_1d(x.astype(np.float64).sum(axis)).astype(dtype)
    OpTest("reduce_sum", {"X": x}, {"dim": [axis]}, {"Out": expected}).check_outputs()
