"""Reductions along some dimensions, and where the greatest element is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(11)
X = RNG.permutation(24).reshape(2, 3, 4) / 7 - 1.6  # no two alike, none near 0

REDUCTIONS: dict[str, Any] = {
    "reduce_sum": np.sum,
    "reduce_mean": np.mean,
    "reduce_max": np.max,
}


@pytest.mark.parametrize("keep_dim", [False, True])
@pytest.mark.parametrize("dim", [[0], [1], [-1], [0, 2], [0, 1, 2], None], ids=str)
@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_reductions(op_type: str, dim: list[int] | None, keep_dim: bool) -> None:
    axes = None if dim is None else tuple(dim)
    expected = np.atleast_1d(REDUCTIONS[op_type](X, axis=axes, keepdims=keep_dim))
    attrs = {"dim": dim or [0], "keep_dim": keep_dim, "reduce_all": dim is None}
    test = OpTest(op_type, {"X": X}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"], tolerance=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_and_nan(dtype: str) -> None:
    x = np.array([[3, -1], [2, 5]], dtype)
    OpTest("reduce_max", {"X": x}, {"dim": [1]}, {"Out": x.max(1)}).check_outputs()
    OpTest("arg_max", {"X": x}, {"axis": 1}, {"Out": x.argmax(1)}).check_outputs()
    nan = np.array([[1.0, np.nan, 2.0]])
    OpTest("reduce_max", {"X": nan}, {"dim": [1]}, {"Out": np.array([np.nan])}).check_outputs()
    OpTest("arg_max", {"X": nan}, {"axis": 1}, {"Out": np.array([1])}).check_outputs()


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_arg_max(axis: int) -> None:
    OpTest("arg_max", {"X": X}, {"axis": axis}, {"Out": X.argmax(axis)}).check_outputs()


@pytest.mark.parametrize("op_type", ["reduce_max", "reduce_mean"])
def test_nothing_has_no_maximum_and_no_mean(op_type: str) -> None:
    OpTest(op_type, {"X": np.ones((2, 0))}, {"dim": [1]}).check_refused(ValueError, "X", "[2, 0]")
    OpTest("reduce_sum", {"X": np.ones((2, 0))}, {"dim": [1]}, {"Out": np.zeros(2)}).check_outputs()


@pytest.mark.parametrize("op_type", REDUCTIONS)
def test_dimensions_that_do_not_exist_are_refused(op_type: str) -> None:
    for dim, part in (([3], "dim"), ([-4], "dim"), ([0, 0], "twice"), ([], "dim")):
        OpTest(op_type, {"X": X}, {"dim": dim}).check_refused(ValueError, part)
