"""Reductions, running sums, rankings, norms, clipping."""

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
    "reduce_min": np.min,
    "reduce_prod": np.prod,
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


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((300, 200), [0]),
        ((4001, 37), [0]),
        ((70, 5000), [0]),
        ((60, 40, 2), [0, 2]),
        ((9, 30, 70), [0, 2]),
        ((131, 7, 300), [0, 2]),
        ((67, 5, 3, 129), [0, 2]),
        ((50, 7, 8), [2]),
        ((50, 70, 9), [2]),
    ],
    ids=str,
)
def test_sums_of_many(shape: tuple[int, ...], dim: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which threads share by results or by parts, with the same bits from any number of them."""
    x = RNG.uniform(-1, 1, shape)
    for values, tolerances in (
        (x, (None, None)),
        (x.astype(np.float32), (1e-5, 1e-4)),
        (RNG.integers(-(2**62), 2**62, shape), (0, 0)),
    ):
        exact = np.longdouble if values.dtype == np.float32 else values.dtype
        expected = values.sum(tuple(dim), dtype=exact).astype(values.dtype)
        results = set()
        for threads in "1", "2", "3", "4":
            monkeypatch.setenv("CPU_NUM", threads)
            test = OpTest("reduce_sum", {"X": values}, {"dim": dim}, {"Out": expected})
            test.check_outputs(*tolerances)
            results.add(np.asarray(test.run()["Out"][0]).tobytes())
        assert len(results) == 1


@pytest.mark.parametrize(("shape", "axis", "y_shape"), [((4001, 37), 1, (37,)), ((131, 7, 300), 1, (7,))], ids=str)
def test_sums_of_gradients(
    shape: tuple[int, ...], axis: int, y_shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of what is broadcast over many rows."""
    x, y, d = (RNG.uniform(-1, 1, dims).astype(np.float32) for dims in (shape, y_shape, shape))
    axes = tuple(i for i in range(len(shape)) if i != axis)
    dy = (x.astype(np.float64) * d).sum(axes).astype(np.float32)
    results = set()
    for threads in "1", "2", "3", "4":
        monkeypatch.setenv("CPU_NUM", threads)
        inputs = {"X": x, "Y": y, "Out@GRAD": d}
        test = OpTest("elementwise_mul_grad", inputs, {"axis": axis}, {"X@GRAD": None, "Y@GRAD": dy})
        test.check_outputs(1e-5, 2e-5)
        results.add(np.asarray(test.run()["Y@GRAD"][0]).tobytes())
    assert len(results) == 1


def test_products_with_zeros() -> None:
    x = np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 4.0], [1.0, 2.0, 3.0]])
    test = OpTest("reduce_prod", {"X": x}, {"dim": [1]}, {"Out": x.prod(1)})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(dtype: str) -> None:
    x = np.array([[3, -1], [2, 5]], dtype)
    for op_type in ("reduce_max", "reduce_min", "reduce_prod", "reduce_sum"):
        for axis in (0, 1):
            expected = REDUCTIONS[op_type](x, axis=axis).astype(dtype)
            OpTest(op_type, {"X": x}, {"dim": [axis]}, {"Out": expected}).check_outputs()
    large = np.array([np.iinfo(dtype).max, 1, np.iinfo(dtype).max - 1], dtype)  # wraps around, and no float holds it
    with np.errstate(over="ignore"):
        OpTest("reduce_sum", {"X": large}, outputs={"Out": np.array([large.sum(dtype=dtype)])}).check_outputs()
    many = np.full(100_000, np.iinfo(dtype).max // 1_000_000 * 3 + 1, dtype)
    OpTest("reduce_sum", {"X": many}, outputs={"Out": many.sum(dtype=dtype, keepdims=True)}).check_outputs()


def test_truth() -> None:
    x = np.array([[True, True], [True, False], [False, False]])
    OpTest("reduce_all", {"X": x}, {"dim": [1]}, {"Out": x.all(1)}).check_outputs()
    OpTest("reduce_any", {"X": x}, {"dim": [1]}, {"Out": x.any(1)}).check_outputs()
    nothing = np.zeros((0,), bool)
    OpTest("reduce_all", {"X": nothing}, {"dim": [0]}, {"Out": np.array([True])}).check_outputs()
    OpTest("reduce_any", {"X": nothing}, {"dim": [0]}, {"Out": np.array([False])}).check_outputs()


def test_nothing_has_no_extreme() -> None:
    for op_type in ("reduce_max", "reduce_min"):
        OpTest(op_type, {"X": np.ones((2, 0))}, {"dim": [1]}).check_refused(ValueError, "X", "[2, 0]")
    OpTest("reduce_prod", {"X": np.ones((2, 0))}, {"dim": [1]}, {"Out": np.ones(2)}).check_outputs()


def test_nan_is_extreme() -> None:
    x = np.array([[1.0, np.nan, 2.0]])
    for op_type in ("reduce_max", "reduce_min"):
        OpTest(op_type, {"X": x}, {"dim": [1]}, {"Out": np.array([np.nan])}).check_outputs()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumsum(axis: int, exclusive: bool, reverse: bool) -> None:
    x = np.flip(X, axis) if reverse else X
    expected = np.cumsum(x, axis) - (x if exclusive else 0)
    expected = np.flip(expected, axis) if reverse else expected
    attrs = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    test = OpTest("cumsum", {"X": X}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_rankings(axis: int) -> None:
    for op_type, function in (("arg_max", np.argmax), ("arg_min", np.argmin)):
        OpTest(op_type, {"X": X}, {"axis": axis}, {"Out": function(X, axis)}).check_outputs()
    order = np.argsort(X, axis, kind="stable")
    expected = {"Out": np.sort(X, axis), "Indices": order}
    test = OpTest("argsort", {"X": X}, {"axis": axis}, expected)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])
    down = {"Out": np.flip(np.sort(X, axis), axis), "Indices": np.flip(order, axis)}
    OpTest("argsort", {"X": X}, {"axis": axis, "descending": True}, down).check_outputs()


def test_rankings_of_equal_elements_and_nan() -> None:
    x = np.array([1.0, np.nan, 0.0, 1.0, 0.0])
    expected = {"Out": np.array([0.0, 0, 1, 1, np.nan]), "Indices": np.array([2, 4, 0, 3, 1])}
    OpTest("argsort", {"X": x}, outputs=expected).check_outputs()
    OpTest("arg_min", {"X": x}, {"axis": 0}, {"Out": np.array([1])}).check_outputs()
    OpTest("arg_max", {"X": x}, {"axis": 0}, {"Out": np.array([1])}).check_outputs()
    OpTest("argsort", {"X": np.ones((2, 0))}, outputs={"Out": np.ones((2, 0)), "Indices": None}).check_outputs()


def test_norms() -> None:
    OpTest("l1_norm", {"X": X}, outputs={"Out": np.array([np.abs(X).sum()])}).check_outputs()
    OpTest("l1_norm", {"X": X}).check_gradients(["X"])
    OpTest("squared_l2_norm", {"X": X}, outputs={"Out": np.array([np.square(X).sum()])}).check_outputs()
    OpTest("squared_l2_norm", {"X": X}).check_gradients(["X"], tolerance=1e-5)
    for axis in (0, 1, -1):
        norm = np.sqrt(np.square(X).sum(axis, keepdims=True) + 1e-3)
        expected = {"Out": X / norm, "Norm": norm}
        test = OpTest("norm", {"X": X}, {"axis": axis, "epsilon": 1e-3}, expected)
        test.check_outputs()
        test.check_gradients(["X"], ["Out"])
    zeros = {"Out": np.zeros((2, 3)), "Norm": None}
    OpTest("norm", {"X": np.zeros((2, 3))}, {"axis": 1}, zeros).check_outputs()


def test_norms_of_many_columns() -> None:
    x, d = RNG.uniform(-1, 1, (2, 2, 70, 130))
    norm = np.sqrt(np.square(x).sum(1, keepdims=True) + 1e-3)
    attrs = {"axis": 1, "epsilon": 1e-3}
    OpTest("norm", {"X": x}, attrs, {"Out": x / norm, "Norm": norm}).check_outputs()
    grad = (d - x * (d * x).sum(1, keepdims=True) / norm**2) / norm
    OpTest("norm_grad", {"X": x, "Norm": norm, "Out@GRAD": d}, attrs, {"X@GRAD": grad}).check_outputs()
    for shape in ((2, 0, 3), (2, 0)):
        norms = np.full((2, 1, *shape[2:]), np.sqrt(1e-3))
        OpTest("norm", {"X": np.zeros(shape)}, attrs, {"Out": np.zeros(shape), "Norm": norms}).check_outputs()


def test_clip() -> None:
    test = OpTest("clip", {"X": X}, {"min": -0.55, "max": 0.75}, {"Out": np.clip(X, -0.55, 0.75)})
    test.check_outputs()
    test.check_gradients(["X"])
    OpTest("clip", {"X": X}, {"min": 1.0, "max": 0.0}).check_refused(ValueError, "min", "max")
    norm = np.linalg.norm(X)
    OpTest("clip_by_norm", {"X": X}, {"max_norm": 2.0}, {"Out": X * 2 / norm}).check_outputs()
    OpTest("clip_by_norm", {"X": X}, {"max_norm": 100.0}, {"Out": X}).check_outputs()
    OpTest("clip_by_norm", {"X": X}, {"max_norm": -1.0}).check_refused(ValueError, "max_norm")


@pytest.mark.parametrize("rows", [1, 3])
def test_cos_sim(rows: int) -> None:
    x, y = RNG.uniform(-1, 1, (3, 2, 2)), RNG.uniform(-1, 1, (rows, 2, 2))
    x_norm, y_norm = (np.sqrt((a * a).sum((1, 2)))[:, None] for a in (x, y))
    outputs = {"Out": (x * y).sum((1, 2))[:, None] / (x_norm * y_norm), "XNorm": x_norm, "YNorm": y_norm}
    test = OpTest("cos_sim", {"X": x, "Y": y}, outputs=outputs, known=["Y"])
    test.check_outputs()
    test.check_gradients(["X", "Y"], ["Out"])
    OpTest("cos_sim", {"X": x, "Y": y[:, :1]}, outputs=dict.fromkeys(outputs)).check_refused(ValueError, "Y")
