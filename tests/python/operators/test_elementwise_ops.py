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
}


@pytest.mark.parametrize("case", BROADCASTS, ids=str)
@pytest.mark.parametrize("op_type", DIFFERENTIABLE)
def test_values_and_derivatives(op_type: str, case: tuple[Any, ...]) -> None:
    x_shape, y_shape, axis, aligned = case
    x, y = RNG.uniform(0.5, 2, x_shape), RNG.uniform(0.5, 2, y_shape)
    expected = DIFFERENTIABLE[op_type](x, y.reshape(aligned))
    test = OpTest(op_type, {"X": x, "Y": y}, {"axis": axis}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X", "Y"], tolerance=1e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(dtype: str) -> None:
    x, y = np.array([7, -7, np.iinfo(dtype).min], dtype), np.array([2, 2, -1], dtype)
    with np.errstate(over="ignore"):
        for op_type, expected in (
            ("elementwise_add", x + y),
            ("elementwise_sub", x - y),
            ("elementwise_mul", x * y),
            ("elementwise_max", np.maximum(x, y)),
            ("elementwise_min", np.minimum(x, y)),
            ("elementwise_div", np.array([3, -3, np.iinfo(dtype).min], dtype)),
        ):
            OpTest(op_type, {"X": x, "Y": y}, outputs={"Out": expected}).check_outputs()
    zero = OpTest("elementwise_div", {"X": x, "Y": 0 * y})
    zero.check_refused(ValueError, "Y", "zero", when="run")


@pytest.mark.parametrize("op_type", DIFFERENTIABLE)
def test_what_does_not_fit_is_refused(op_type: str) -> None:
    OpTest(op_type, {"X": np.ones((2, 3)), "Y": np.ones((2,))}).check_refused(ValueError, "Y", "[2, 3]")
    OpTest(op_type, {"X": np.ones(3), "Y": np.ones((2, 3))}).check_refused(ValueError, "Y")
    wrong_type = {"X": np.ones(3), "Y": np.ones(3, np.float32)}
    OpTest(op_type, wrong_type).check_refused(TypeError, "Y", "float64", "float32")
