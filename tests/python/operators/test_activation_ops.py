"""Functions of one element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

erf = np.vectorize(math.erf, otypes=[float])


def softplus(x: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def round_half_away(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


#: type → (function with the default attributes, lowest and highest input).
FUNCTIONS: dict[str, tuple[Any, float, float]] = {
    "abs": (np.abs, -2, 2),
    "acos": (np.arccos, -0.9, 0.9),
    "asin": (np.arcsin, -0.9, 0.9),
    "atan": (np.arctan, -2, 2),
    "brelu": (lambda x: np.clip(x, 0, 24), -40, 40),
    "ceil": (np.ceil, -3, 3),
    "cos": (np.cos, -3, 3),
    "elu": (lambda x: np.where(x < 0, np.expm1(x), x), -2, 2),
    "erf": (erf, -2, 2),
    "exp": (np.exp, -2, 2),
    "floor": (np.floor, -3, 3),
    "gelu": (lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, -2, 2),
    "hard_shrink": (lambda x: np.where(np.abs(x) > 0.5, x, 0), -2, 2),
    "hard_sigmoid": (lambda x: np.clip(0.2 * x + 0.5, 0, 1), -4, 4),
    "hard_swish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, -5, 5),
    "leaky_relu": (lambda x: np.where(x < 0, 0.02 * x, x), -2, 2),
    "log": (np.log, 0.1, 3),
    "logsigmoid": (lambda x: -softplus(-x), -3, 3),
    "pow": (lambda x: x, 0.1, 2),
    "reciprocal": (lambda x: 1 / x, 0.5, 2),
    "relu": (lambda x: np.maximum(x, 0), -2, 2),
    "relu6": (lambda x: np.clip(x, 0, 6), -9, 9),
    "round": (round_half_away, -3, 3),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.5, 2),
    "selu": (lambda x: 1.0507009873554805 * np.where(x < 0, 1.6732632423543772 * np.expm1(x), x), -2, 2),
    "sigmoid": (sigmoid, -3, 3),
    "sign": (np.sign, -2, 2),
    "sin": (np.sin, -3, 3),
    "soft_relu": (lambda x: softplus(np.clip(x, -40, 40)), -3, 3),
    "softplus": (softplus, -3, 3),
    "softshrink": (lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0), -2, 2),
    "softsign": (lambda x: x / (1 + np.abs(x)), -2, 2),
    "sqrt": (np.sqrt, 0.1, 3),
    "square": (np.square, -2, 2),
    "stanh": (lambda x: 1.7159 * np.tanh(0.67 * x), -2, 2),
    "swish": (lambda x: x * sigmoid(x), -3, 3),
    "tanh": (np.tanh, -2, 2),
    "tanh_shrink": (lambda x: x - np.tanh(x), -2, 2),
    "thresholded_relu": (lambda x: np.where(x > 1, x, 0), -2, 2),
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
    OpTest(op_type, {"X": np.ones(2, np.int16)}).check_refused(NotImplementedError, "int16")


@pytest.mark.parametrize(
    ("op_type", "attrs", "function"),
    [
        ("pow", {"factor": 2.5}, lambda x: x**2.5),
        ("elu", {"alpha": 0.5}, lambda x: np.where(x < 0, 0.5 * np.expm1(x), x)),
        ("relu6", {"threshold": 0.75}, lambda x: np.clip(x, 0, 0.75)),
        ("brelu", {"t_min": 0.25, "t_max": 0.75}, lambda x: np.clip(x, 0.25, 0.75)),
        ("stanh", {"scale_a": 0.5, "scale_b": 2.0}, lambda x: 2 * np.tanh(x / 2)),
        ("swish", {"beta": 2.0}, lambda x: x * sigmoid(2 * x)),
        ("hard_sigmoid", {"slope": 0.5, "offset": 0.25}, lambda x: np.clip(0.5 * x + 0.25, 0, 1)),
        ("hard_swish", {"threshold": 1.0, "scale": 2.0, "offset": 0.25}, lambda x: x * np.clip(x + 0.25, 0, 1) / 2),
        ("hard_swish", {"offset": -0.5}, lambda x: x * np.clip(x - 0.5, 0, 6) / 6),
        ("thresholded_relu", {"threshold": 0.25}, lambda x: np.where(x > 0.25, x, 0)),
        ("softshrink", {"lambda": 0.25}, lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.25, 0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attributes(op_type: str, attrs: dict[str, float], function: Any) -> None:
    x = np.array([0.1, 0.4, 0.6, 0.9])
    test = OpTest(op_type, {"X": x}, attrs, {"Out": function(x)})
    test.check_outputs()
    test.check_gradients(["X"], tolerance=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("exponent", [0.5, 1, 2, 3, -1, 1.5])
def test_pow_of_every_kind_of_number(exponent: float, dtype: Any) -> None:
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 4, -4, 1e-30, 3e20, np.finfo(dtype).tiny / 4], dtype)
    with np.errstate(all="ignore"):
        # Arrays of exponents, since NumPy, too, has other ways for some numbers.
        expected = np.power(x, np.full_like(x, exponent))
        slope = dtype(exponent) * np.power(x, np.full_like(x, exponent - 1))
    test = OpTest("pow", {"X": x}, {"factor": float(exponent)}, {"Out": None})
    out = np.asarray(test.run()["Out"][0])
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    known = ~np.isnan(expected)
    assert np.array_equal(np.signbit(out[known]), np.signbit(expected[known]))
    ones = np.ones_like(x)
    grad = OpTest("pow_grad", {"X": x, "Out@GRAD": ones}, {"factor": float(exponent)}, {"X@GRAD": None})
    np.testing.assert_allclose(np.asarray(grad.run()["X@GRAD"][0]), slope, rtol=1e-6)


def test_cubes_of_floats_are_rounded_once() -> None:
    """As by the function of the C library, to which programs compare them bit by bit."""
    x = np.random.default_rng(5).uniform(-2, 2, 1000).astype(np.float32)
    out = np.asarray(OpTest("pow", {"X": x}, {"factor": 3.0}, {"Out": None}).run()["Out"][0])
    np.testing.assert_array_equal(out, (x.astype(np.float64) ** 3).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_pow_of_integers_is_exact(dtype: type) -> None:
    x = np.array([[-3, 0, 1], [2, 5, 7]], dtype)
    for factor in (0, 1, 2, 5):
        OpTest("pow", {"X": x}, {"factor": float(factor)}, {"Out": x**factor}).check_outputs()
    large = np.array([2**31 + 1], np.int64)  # not exact in float32
    OpTest("pow", {"X": large}, {"factor": 1.0}, {"Out": large}).check_outputs()


@pytest.mark.parametrize("factor", [0.5, -1.0, 2.0**31])
def test_pow_of_integers_takes_whole_numbers_only(factor: float) -> None:
    x = np.array([1, 2], np.int64)
    OpTest("pow", {"X": x}, {"factor": factor}, {"Out": None}).check_refused(
        ValueError, "attribute factor", "an integer of 0", when="run"
    )


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.3, 1.0, 1.5])
def test_leaky_relu_is_the_greater_of_two_lines(alpha: float) -> None:
    x = np.array([-1.5, -0.2, 0.4, 2.0])
    test = OpTest("leaky_relu", {"X": x}, {"alpha": alpha}, {"Out": np.maximum(x, alpha * x)})
    test.check_outputs()
    test.check_gradients(["X"])


def test_large_arguments_do_not_overflow() -> None:
    x = np.array([-1000.0, 1000.0])
    for op_type, expected in (("softplus", [0, 1000]), ("logsigmoid", [-1000, 0]), ("swish", [0, 1000])):
        OpTest(op_type, {"X": x}, outputs={"Out": np.array(expected, float)}).check_outputs()


def test_nan_comes_through() -> None:
    x = np.array([np.nan])
    for op_type in FUNCTIONS:
        (out,) = OpTest(op_type, {"X": x}).run()["Out"]
        assert np.isnan(np.asarray(out)).all(), op_type


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logarithms_of_denormals(dtype: Any) -> None:
    smallest = np.finfo(dtype).smallest_subnormal
    x = np.array([smallest, 3 * smallest, np.finfo(dtype).tiny / 2, np.finfo(dtype).tiny, *[1.0] * 30], dtype)
    exponents = np.log(np.frexp(x)[0].astype(np.float64)) + np.frexp(x)[1] * math.log(2)
    OpTest("log", {"X": x}, {}, {"Out": exponents.astype(dtype)}).check_outputs(rtol=1e-6, atol=0)


#: type → (function in float64, greatest magnitude of the inputs, error in units of the last place of the result, of 1).
WIDE: dict[str, tuple[Any, float, float, float]] = {
    "cos": (np.cos, 2e6, 3, 0.5),
    "elu": (lambda x: np.where(x < 0, np.expm1(np.minimum(x, 0)), x), 200, 4, 0),
    "erf": (erf, 8, 6, 0),
    "exp": (np.exp, 80, 3, 0),
    "gelu": (lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, 20, 6, 20),
    "logsigmoid": (lambda x: -softplus(-x), 80, 4, 0),
    "sigmoid": (lambda x: np.exp(-softplus(-x)), 80, 6, 0),
    "sin": (np.sin, 2e6, 3, 0.5),
    "softplus": (softplus, 80, 4, 0),
    "stanh": (lambda x: 1.7159 * np.tanh(0.67 * x), 30, 8, 0),
    "swish": (lambda x: x * np.exp(-softplus(-x)), 80, 6, 0),
    "tanh": (np.tanh, 30, 6, 0),
}


def wide(largest: float, dtype: Any) -> np.ndarray:
    """Numbers of all magnitudes up to the largest; how many is no multiple of any vector's length."""
    rng = np.random.default_rng(5)
    return (rng.choice([-1, 1], 20_011) * largest * 10.0 ** -(8 * rng.random(20_011) ** 2)).astype(dtype)


@pytest.mark.parametrize("op_type", WIDE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_are_accurate_over_a_wide_range(op_type: str, dtype: Any) -> None:
    function, largest, places, of_one = WIDE[op_type]
    x = wide(largest, dtype)
    expected = function(x.astype(np.float64))
    (out,) = OpTest(op_type, {"X": x}).run()["Out"]
    eps = float(np.finfo(dtype).eps)
    # The reference's own error counts where both have the same precision: these references multiply what exp rounds.
    slack = 1 if dtype == np.float32 else 100
    error = np.abs(np.asarray(out, np.float64) - expected)
    assert (error <= slack * eps * (places * np.abs(expected) + of_one)).all(), x[np.argmax(error)]


@pytest.mark.parametrize("op_type", WIDE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_result_does_not_depend_on_its_place(op_type: str, dtype: Any) -> None:
    x = wide(WIDE[op_type][1], dtype)[:1000]
    (out,) = OpTest(op_type, {"X": x}).run()["Out"]
    for start in (1, 7, 16, 995):
        (part,) = OpTest(op_type, {"X": x[start:]}).run()["Out"]
        assert np.asarray(part).tobytes() == np.asarray(out)[start:].tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_limits(dtype: Any) -> None:
    huge = float(np.finfo(dtype).max)
    x = np.array([-np.inf, -huge, -1e30, np.nan, 1e30, huge, np.inf, *[0.5] * 20], dtype)
    for op_type, below, above in (
        ("elu", -1, 0),
        ("erf", -1, 1),
        ("exp", 0, np.inf),
        ("gelu", 0, 0),
        ("logsigmoid", 0, 0),
        ("sigmoid", 0, 1),
        ("softplus", 0, 0),
        ("swish", 0, 0),
        ("tanh", -1, 1),
    ):
        (out,) = OpTest(op_type, {"X": x}).run()["Out"]
        out = np.asarray(out)
        line_below, line_above = op_type == "logsigmoid", op_type in {"elu", "gelu", "softplus", "swish"}
        begin = 1 if op_type in {"gelu", "swish"} else 0  # infinity times 0 is no number
        assert (out[begin:3] == (x[begin:3] if line_below else below)).all(), op_type
        assert np.isnan(out[3]), op_type
        assert (out[4:7] == (x[4:7] if line_above else above)).all(), op_type
        assert np.isfinite(out[7:]).all(), op_type
    for op_type in ("sin", "cos"):
        (out,) = OpTest(op_type, {"X": x}).run()["Out"]
        assert np.isnan(np.asarray(out)[[0, 3, 6]]).all()
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(np.asarray(out), getattr(np, op_type)(x), rtol=1e-6, atol=1e-7)


def test_at_its_bends_hard_swish_has_the_slope_of_the_flat_side() -> None:
    slope, steep = (
        OpTest("hard_swish", {"X": np.array(x)}, {}, {"Out": None}).gradients(["X"])["X_0"]
        for x in ([-3.0, 3.0], [-4.0, 4.0])
    )
    np.testing.assert_array_equal(slope, steep)
