"""Operators of two variables, of which Y is broadcast into X."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(3)

#: Shapes of X and Y, attribute axis, and the shape that Y has under X.
BROADCASTS = [
    ((2, 3, 4), (2, 3, 4), -1, (2, 3, 4)),
    ((2, 3, 4), (4,), -1, (4,)),
    ((2, 3, 4), (3,), 1, (3, 1)),
    ((2, 3, 4), (2, 3), 0, (2, 3, 1)),
    ((2, 3, 4), (1,), -1, (1,)),
    ((2, 3, 4), (2, 1, 4), 0, (2, 1, 4)),
    ((0, 3), (3,), -1, (3,)),
    ((2, 1), (2, 1), -1, (2, 1)),
]

DIFFERENTIABLE: dict[str, Any] = {
    "elementwise_add": np.add,
    "elementwise_sub": np.subtract,
    "elementwise_mul": np.multiply,
    "elementwise_div": np.divide,
    "elementwise_max": np.maximum,
    "elementwise_min": np.minimum,
    "elementwise_pow": np.power,
}
#: [7, -7, 7, -7, 6, 0] with [3, 3, -3, -3, -1, 5].
WHOLE = {"elementwise_mod": [1, -1, 1, -1, 0, 0], "elementwise_floordiv": [2, -2, -2, 2, -6, 0]}
COMPARISONS: dict[str, Any] = {
    "less_than": np.less,
    "less_equal": np.less_equal,
    "greater_than": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}
LOGIC: dict[str, Any] = {"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor}


@pytest.mark.parametrize("case", BROADCASTS, ids=str)
@pytest.mark.parametrize("op_type", DIFFERENTIABLE)
def test_values_and_derivatives(op_type: str, case: tuple[Any, ...]) -> None:
    x_shape, y_shape, axis, aligned = case
    x, y = RNG.uniform(0.5, 2, x_shape), RNG.uniform(0.5, 2, y_shape)
    expected = DIFFERENTIABLE[op_type](x, y.reshape(aligned))
    test = OpTest(op_type, {"X": x, "Y": y}, {"axis": axis}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X", "Y"], tolerance=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("op_type", WHOLE)
def test_division_truncates(op_type: str, dtype: str) -> None:
    x = np.array([7, -7, 7, -7, 6, 0], dtype)
    y = np.array([3, 3, -3, -3, -1, 5], dtype)
    expected = np.array(WHOLE[op_type], dtype)
    if op_type == "elementwise_mod" and expected.dtype.kind == "f":
        expected = np.mod(x, y)  # which has the sign of y
    OpTest(op_type, {"X": x, "Y": y}, outputs={"Out": expected}).check_outputs()


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_overflow_as_numpys_do(dtype: str) -> None:
    least = np.array([np.iinfo(dtype).min], dtype)
    minus_one = np.array([-1], dtype)
    OpTest("elementwise_floordiv", {"X": least, "Y": minus_one}, outputs={"Out": least}).check_outputs()
    OpTest("elementwise_mod", {"X": least, "Y": minus_one}, outputs={"Out": np.zeros(1, dtype)}).check_outputs()
    x, y = np.array([3, -2, 2, 7, 1, -1], dtype), np.array([4, 3, 0, 30, -5, -3], dtype)
    with np.errstate(over="ignore"):
        expected = np.array([81, -8, 1, 7, 1, -1], dtype)
        expected[3] = np.power(np.array(7, dtype), np.array(30, dtype))
    OpTest("elementwise_pow", {"X": x, "Y": y}, outputs={"Out": expected}).check_outputs()


@pytest.mark.parametrize("op_type", ["elementwise_div", "elementwise_mod", "elementwise_floordiv"])
def test_integers_are_not_divided_by_zero(op_type: str) -> None:
    OpTest(op_type, {"X": np.array([1]), "Y": np.array([0])}).check_refused(ValueError, "Y", "zero", when="run")


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("op_type", COMPARISONS)
def test_comparisons(op_type: str, dtype: str) -> None:
    x = np.array([[0, 1, 2], [2, 1, 0]]).astype(dtype)
    y = np.array([1, 1, 1]).astype(dtype)
    OpTest(op_type, {"X": x, "Y": y}, outputs={"Out": COMPARISONS[op_type](x, y)}).check_outputs()
    column = np.array([1, 0]).astype(dtype)
    expected = COMPARISONS[op_type](x, column[:, None])
    OpTest(op_type, {"X": x, "Y": column}, {"axis": 0}, {"Out": expected}).check_outputs()


def test_nan_compares_as_ieee_says() -> None:
    x = np.array([np.nan, np.nan, 1.0])
    y = np.array([np.nan, 1.0, np.nan])
    for op_type, function in COMPARISONS.items():
        OpTest(op_type, {"X": x, "Y": y}, outputs={"Out": function(x, y)}).check_outputs()


@pytest.mark.parametrize("op_type", LOGIC)
def test_logic(op_type: str) -> None:
    x, y = np.array([[False, False], [True, True]]), np.array([[False, True], [False, True]])
    OpTest(op_type, {"X": x, "Y": y}, outputs={"Out": LOGIC[op_type](x, y)}).check_outputs()
    OpTest("logical_not", {"X": x}, outputs={"Out": ~x}).check_outputs()
    OpTest(op_type, {"X": x, "Y": y[:1]}).check_refused(ValueError, "Y", "[2, 2]")
    OpTest(op_type, {"X": x.astype(int), "Y": y.astype(int)}).check_refused(NotImplementedError, "int64")


@pytest.mark.parametrize("op_type", [*DIFFERENTIABLE, *WHOLE, *COMPARISONS])
def test_what_does_not_fit_is_refused(op_type: str) -> None:
    OpTest(op_type, {"X": np.ones((2, 3)), "Y": np.ones((2,))}).check_refused(ValueError, "Y", "[2, 3]")
    OpTest(op_type, {"X": np.ones(3), "Y": np.ones((2, 3))}).check_refused(ValueError, "Y")
    wrong_type = {"X": np.ones(3), "Y": np.ones(3, np.float32)}
    OpTest(op_type, wrong_type).check_refused(TypeError, "Y", "float64", "float32")
