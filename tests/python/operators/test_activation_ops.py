"""Functions of one element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


#: type → (function with the default attributes, lowest and highest input).
FUNCTIONS: dict[str, tuple[Any, float, float]] = {
    "abs": (np.abs, -2, 2),
    "exp": (np.exp, -2, 2),
    "gelu": (lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, -2, 2),
    "leaky_relu": (lambda x: np.where(x < 0, 0.02 * x, x), -2, 2),
    "log": (np.log, 0.1, 3),
    "relu": (lambda x: np.maximum(x, 0), -2, 2),
    "sigmoid": (sigmoid, -3, 3),
    "sqrt": (np.sqrt, 0.1, 3),
    "square": (np.square, -2, 2),
    "tanh": (np.tanh, -2, 2),
}


def inputs(low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that do not come near a place where a function has a kink or a step: halves and whole numbers."""
    x = np.random.default_rng(7).uniform(low, high, shape)
    return np.where(np.abs(2 * x - np.round(2 * x)) < 0.02, x + 0.02, x)


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_values_and_derivatives(op_type: str) -> None:
    function, low, high = FUNCTIONS[op_type]
    x = inputs(low, high, (3, 5))
    test = OpTest(op_type, {"X": x}, outputs={"Out": function(x)})
    test.check_outputs()
    test.check_gradients(["X"], tolerance=1e-5)


@pytest.mark.parametrize("op_type", FUNCTIONS)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 1, 2)], ids=str)
def test_any_shape_in_float32_with_its_lod(op_type: str, shape: tuple[int, ...]) -> None:
    function, low, high = FUNCTIONS[op_type]
    x = inputs(low, high, shape).astype(np.float32)
    lengths = [[shape[0]]] if shape else []
    expected = function(x.astype(np.float64)).astype(np.float32).reshape(shape)
    OpTest(op_type, {"X": (x, lengths)}, outputs={"Out": (expected, lengths)}).check_outputs(rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_other_dtypes_are_refused(op_type: str) -> None:
    OpTest(op_type, {"X": np.ones(2, np.int16)}).check_refused(NotImplementedError, "int16", when="run")


def test_the_slope_of_leaky_relu() -> None:
    x = np.array([0.5, -0.5])
    test = OpTest("leaky_relu", {"X": x}, {"alpha": 0.25}, {"Out": np.array([0.5, -0.125])})
    test.check_outputs()
    test.check_gradients(["X"])


def test_nan_comes_through() -> None:
    x = np.array([np.nan])
    for op_type in FUNCTIONS:
        (out,) = OpTest(op_type, {"X": x}).run()["Out"]
        assert np.isnan(np.asarray(out)).all(), op_type
