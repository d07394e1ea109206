"""The strategies draw what operators take."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.testing import OpTest

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

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
