"""Operators that move elements: slices, padding, rows by their numbers, stacks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import core, layers
from headrace.testing import OpTest

RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (2, 3, 4))
IMAGES = RNG.uniform(-1, 1, (2, 2, 3, 4))
CHANNELS = RNG.uniform(-1, 1, (2, 6, 2, 3))

#: type, input slot, attributes, expected; of X unless another input is given.
MOVES: list[tuple[str, str, np.ndarray, dict[str, Any], np.ndarray]] = [
    ("slice", "Input", X, {"axes": [0, 2], "starts": [1, 0], "ends": [2, 3]}, X[1:2, :, 0:3]),
    ("slice", "Input", X, {"axes": [1], "starts": [-2], "ends": [-1]}, X[:, -2:-1]),
    ("slice", "Input", X, {"axes": [-1], "starts": [2], "ends": [1000]}, X[..., 2:]),
    ("slice", "Input", X, {"axes": [1], "starts": [2], "ends": [1]}, X[:, 2:1]),
    ("slice", "Input", X, {"axes": [0, 2], "starts": [1, -2], "ends": [2, 9], "decrease_axis": [0]}, X[1, :, -2:]),
    ("slice", "Input", X, {"axes": [1, 2], "starts": [1, 3], "ends": [2, 4], "decrease_axis": [-1, 1]}, X[:, 1, 3]),
    (
        "slice",
        "Input",
        X,
        {"axes": [0, 1, 2], "starts": [1, 0, -1], "ends": [2, 1, 4], "decrease_axis": [0, 1, 2]},
        X[1, 0, 3:],
    ),
    ("crop", "X", X, {"offsets": [0, 1, 2], "shape": [2, 2, 1]}, X[:, 1:, 2:3]),
    ("crop", "X", X, {"shape": [1, 2, 3]}, X[:1, :2, :3]),
    ("crop_tensor", "X", X, {"offsets": [0, 1, 2], "shape": [2, 2, 1]}, X[:, 1:, 2:3]),
    ("crop_tensor", "X", X, {"shape": [-1, 2, 3], "offsets": [0, 1, 0]}, X[:, 1:, :3]),
    ("crop", "X", X, {"shape": [-1, 2, 3], "offsets": [0, 1, 0]}, X[:, 1:, :3]),
    ("reverse", "X", X, {"axis": [0]}, X[::-1]),
    ("reverse", "X", X, {"axis": [1, -1]}, X[:, ::-1, ::-1]),
    ("shuffle_channel", "X", CHANNELS, {"group": 2}, CHANNELS[:, [0, 3, 1, 4, 2, 5]]),
    ("shuffle_channel", "X", CHANNELS, {"group": 3}, CHANNELS[:, [0, 2, 4, 1, 3, 5]]),
    ("shuffle_channel", "X", CHANNELS, {}, CHANNELS),
    ("expand", "X", X, {"expand_times": [2, 1, 3]}, np.tile(X, (2, 1, 3))),
    ("expand", "X", X[:0], {"expand_times": [2, 1, 1]}, X[:0]),
    ("pad", "X", X, {"paddings": [0, 1, 2, 0, 0, 0]}, np.pad(X, ((0, 1), (2, 0), (0, 0)))),
    (
        "pad",
        "X",
        X,
        {"paddings": [1, 1, 0, 0, 1, 2], "pad_value": 0.5},
        np.pad(X, ((1, 1), (0, 0), (1, 2)), constant_values=0.5),
    ),
    (
        "pad2d",
        "X",
        IMAGES,
        {"paddings": [1, 2, 0, 3], "pad_value": -1.0},
        np.pad(IMAGES, ((0, 0), (0, 0), (1, 2), (0, 3)), constant_values=-1.0),
    ),
    (
        "pad2d",
        "X",
        IMAGES,
        {"paddings": [2, 1, 3, 0], "mode": "reflect"},
        np.pad(IMAGES, ((0, 0), (0, 0), (2, 1), (3, 0)), mode="reflect"),
    ),
    (
        "pad2d",
        "X",
        IMAGES,
        {"paddings": [1, 2, 0, 1], "mode": "edge", "data_format": "NHWC"},
        np.pad(IMAGES, ((0, 0), (1, 2), (0, 1), (0, 0)), mode="edge"),
    ),
]


@pytest.mark.parametrize("case", MOVES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_moves(case: tuple[str, str, np.ndarray, dict[str, Any], np.ndarray]) -> None:
    op_type, slot, x, attrs, expected = case
    test = OpTest(op_type, {slot: x}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients([slot])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("times", [(2, 1, 3), (1, 1, 1), (0, 1, 2)], ids=str)
def test_expand_as(times: tuple[int, ...], dtype: str) -> None:
    x, target = X.astype(dtype), np.zeros([n * k for n, k in zip(X.shape, times)], np.int64)
    test = OpTest("expand_as", {"X": (x, [[1, 1]]), "target_tensor": target}, {}, {"Out": np.tile(x, times)})
    test.check_outputs()
    if dtype == "float64":
        test.check_gradients(["X"])


def test_nothing_is_expanded_to_nothing_only() -> None:
    none = X[:, :0]
    OpTest("expand_as", {"X": none, "target_tensor": none}, {}, {"Out": none}).check_outputs()
    OpTest("expand_as", {"X": none, "target_tensor": X}).check_refused(ValueError, "target_tensor", "[2, 0, 4]")


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_pixel_shuffle(factor: int) -> None:
    x = RNG.uniform(-1, 1, (2, 2 * factor**2, 2, 3))
    expected = np.empty((2, 2, 2 * factor, 3 * factor))
    for n, c, h, w in np.ndindex(*expected.shape):
        channel = c * factor**2 + h % factor * factor + w % factor
        expected[n, c, h, w] = x[n, channel, h // factor, w // factor]
    test = OpTest("pixel_shuffle", {"X": x}, {"upscale_factor": factor}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])
    empty = OpTest("pixel_shuffle", {"X": x[:0]}, {"upscale_factor": factor}, {"Out": expected[:0]})
    empty.check_outputs()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32"])
def test_moves_of_any_dtype(dtype: str) -> None:
    x = np.array([[0, 1, 1], [1, 0, 0]]).astype(dtype)
    OpTest("reverse", {"X": x}, {"axis": [1]}, {"Out": x[:, ::-1]}).check_outputs()
    OpTest("expand", {"X": x}, {"expand_times": [1, 2]}, {"Out": np.tile(x, (1, 2))}).check_outputs()
    OpTest("pad", {"X": x}, {"paddings": [1, 0, 0, 0]}, {"Out": np.pad(x, ((1, 0), (0, 0)))}).check_outputs()
    OpTest("stack", {"X": [x, x]}, {"axis": 1}, {"Y": np.stack([x, x], 1)}).check_outputs()


def test_a_slice_of_columns_keeps_the_sequences() -> None:
    x = RNG.uniform(-1, 1, (3, 4))
    attrs = {"axes": [1], "starts": [1], "ends": [2]}
    OpTest("slice", {"Input": (x, [[1, 2]])}, attrs, {"Out": (x[:, 1:2], [[1, 2]])}).check_outputs()
    dropped = {**attrs, "decrease_axis": [1]}
    OpTest("slice", {"Input": (x, [[1, 2]])}, dropped, {"Out": (x[:, 1], [[1, 2]])}).check_outputs()
    attrs = {"axes": [0], "starts": [1], "ends": [2]}
    OpTest("slice", {"Input": (x, [[1, 2]])}, attrs, {"Out": x[1:2]}).check_outputs()


def test_the_dims_of_another_tensor() -> None:
    like = np.zeros((2, 2, 3))
    crop = OpTest("crop", {"X": X, "Y": like}, {"offsets": [0, 1, 0]}, {"Out": X[:, 1:, :3]})
    crop.check_outputs()
    crop.check_gradients(["X"])
    padded = np.zeros((3, 3, 5))
    padded[:2, :3, :4] = X
    pad = OpTest("pad_constant_like", {"X": np.ones((3, 3, 5)), "Y": X}, outputs={"Out": padded})
    pad.check_outputs()
    pad.check_gradients(["Y"])


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "parts"),
    [
        ("slice", {"Input": X}, {"axes": [3], "starts": [0], "ends": [1]}, ["axes"]),
        ("slice", {"Input": X}, {"axes": [0], "starts": [0, 1], "ends": [1]}, ["axes, starts and ends"]),
        (
            "slice",
            {"Input": X},
            {"axes": [1], "starts": [0], "ends": [2], "decrease_axis": [1]},
            ["decrease_axis", "[2, 2, 4]"],
        ),
        ("slice", {"Input": X}, {"axes": [1], "starts": [0], "ends": [1], "decrease_axis": [3]}, ["decrease_axis"]),
        ("crop", {"X": X}, {"shape": [2, 3, 5]}, ["shape", "[2, 3, 4]"]),
        ("crop", {"X": X}, {"shape": [2, 3]}, ["shape"]),
        ("crop_tensor", {"X": X}, {"shape": [2, 3, 5]}, ["shape", "[2, 3, 4]"]),
        ("crop_tensor", {"X": X}, {"shape": [2, 3]}, ["attribute shape", "expected 3"]),
        ("crop_tensor", {"X": X}, {"shape": [2, -2, 4]}, ["attribute shape", "[2, -2, 4]"]),
        ("crop_tensor", {"X": X}, {"shape": [2, 2, 4], "offsets": [0, -1, 0]}, ["attribute offsets", "[0, -1, 0]"]),
        ("crop", {"X": X}, {"shape": [2, -1, 4]}, ["shape", "[2, -1, 4]"]),
        ("crop", {"X": X}, {"shape": [-2, 3, 4]}, ["shape", "[-2, 3, 4]"]),
        ("crop", {"X": X}, {"shape": [-1, 3, 4], "offsets": [1, 0, 0]}, ["offsets", "[1, 0, 0]"]),
        ("crop", {"X": X}, {"shape": [2, 2, 4], "offsets": [0, -1, 0]}, ["offsets", "[0, -1, 0]"]),
        ("crop", {"X": X, "Offsets": np.zeros(3, np.int32)}, {"shape": [2, 3, 5]}, ["Offsets", "[2, 3, 5]"]),
        ("reverse", {"X": X}, {"axis": [-4]}, ["axis"]),
        ("shuffle_channel", {"X": X}, {"group": 1}, ["X", "rank 4"]),
        ("shuffle_channel", {"X": CHANNELS}, {"group": 4}, ["group", "6"]),
        ("shuffle_channel", {"X": CHANNELS}, {"group": 0}, ["group"]),
        ("pixel_shuffle", {"X": X}, {"upscale_factor": 1}, ["X", "rank 4"]),
        ("pixel_shuffle", {"X": CHANNELS}, {"upscale_factor": 2}, ["input X", "multiple of 4", "[2, 6, 2, 3]"]),
        ("pixel_shuffle", {"X": CHANNELS}, {"upscale_factor": 0}, ["upscale_factor", "got 0"]),
        ("expand", {"X": X}, {"expand_times": [2, 1]}, ["expand_times"]),
        ("expand", {"X": X}, {"expand_times": [2, 0, 1]}, ["expand_times"]),
        (
            "expand_as",
            {"X": X, "target_tensor": X[:, :2]},
            {},
            ["target_tensor", "multiples", "[2, 3, 4]", "[2, 2, 4]"],
        ),
        ("expand_as", {"X": X, "target_tensor": X[0]}, {}, ["target_tensor", "multiples"]),
        ("expand_as", {"X": X}, {}, ["target_tensor"]),
        ("pad", {"X": X}, {"paddings": [1, 1]}, ["paddings"]),
        ("pad", {"X": X}, {"paddings": [1, 1, -1, 0, 0, 0]}, ["paddings"]),
        ("pad2d", {"X": X}, {"paddings": [1, 1, 1, 1]}, ["rank 4"]),
        ("pad2d", {"X": IMAGES}, {"paddings": [3, 0, 0, 0], "mode": "reflect"}, ["paddings"]),
        ("pad2d", {"X": IMAGES}, {"paddings": [1, 0, 0, 0], "mode": "wrap"}, ["mode", "wrap"]),
        ("pad_constant_like", {"X": X[:1], "Y": X}, {}, ["Y", "[1, 3, 4]"]),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(op_type: str, inputs: Any, attrs: Any, parts: list[str]) -> None:
    OpTest(op_type, inputs, attrs).check_refused(ValueError, *parts)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("column", [False, True])
def test_gather(dtype: str, column: bool) -> None:
    index = np.array([2, 0, 2, 1], dtype)
    x = RNG.uniform(-1, 1, (3, 2, 2))
    test = OpTest("gather", {"X": x, "Index": index[:, None] if column else index}, outputs={"Out": x[index]})
    test.check_outputs()
    test.check_gradients(["X"])
    OpTest("gather", {"X": x, "Index": index[:0]}, outputs={"Out": x[:0]}).check_outputs()


#: Of an array as large as several threads need: a move, by a layer and by NumPy.
LARGE_MOVES: dict[str, tuple[tuple[int, ...], Any, Any]] = {
    "many rows": (
        (40, 3, 700),
        lambda x: layers.slice(x, axes=[1, 2], starts=[1, 5], ends=[3, 695]),
        lambda x: x[:, 1:3, 5:695],
    ),
    "few rows": ((3, 40, 700), lambda x: layers.slice(x, axes=[2], starts=[1], ends=[600]), lambda x: x[..., 1:600]),
    "one row": ((1, 2, 9000), lambda x: layers.expand(x, [3, 2, 2]), lambda x: np.tile(x, (3, 2, 2))),
    "borders": ((20, 50, 30), lambda x: layers.pad(x, [1, 2, 0, 3, 4, 0]), None),
    "backwards": ((60, 900), lambda x: layers.reverse(x, [0, 1]), lambda x: x[::-1, ::-1]),
    "a vector backwards": ((50_000,), lambda x: layers.reverse(x, [0]), lambda x: x[::-1]),
    "every third": (
        (3, 60_000),
        lambda x: layers.strided_slice(x, axes=[1], starts=[59_000], ends=[10], strides=[-3]),
        lambda x: x[:, 59_000:10:-3],
    ),
    "elements by their numbers": (
        (30_000,),
        lambda x: layers.gather(x, layers.assign(NUMBERS)),
        lambda x: x[NUMBERS],
    ),
    "a vector": ((40_000,), lambda x: layers.expand(x, [3]), lambda x: np.tile(x, 3)),
    "rows by their numbers": (
        (30_000, 4),
        lambda x: layers.gather(x, layers.assign(NUMBERS)),
        lambda x: x[NUMBERS],
    ),
    "a few long rows": ((5, 9000), lambda x: layers.gather(x, layers.assign(NUMBERS % 5)), lambda x: x[NUMBERS % 5]),
}
NUMBERS = RNG.integers(0, 30_000, 500).astype(np.int32)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", LARGE_MOVES)
def test_gradients_add_up_in_the_order_of_the_result(name: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", str(threads))
    dims, layer, move = LARGE_MOVES[name]
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        x = layers.data("x", dims, append_batch_size=False, stop_gradient=False)
        out = layer(x)
        weights = layers.data("weights", out.shape, append_batch_size=False)
        (gradient,) = fluid.gradients(out, x, weights)
        places = np.arange(1, np.prod(dims) + 1, dtype=np.float32).reshape(dims)
        w = RNG.uniform(-1, 1, out.shape).astype(np.float32)
        moved, got = fluid.Executor(fluid.CPUPlace()).run(feed={"x": places, "weights": w}, fetch_list=[out, gradient])
    if move is not None:
        np.testing.assert_array_equal(moved, move(places))
    expected = np.zeros(places.size + 1, np.float32)
    np.add.at(expected, moved.astype(np.int64).ravel(), w.ravel())  # one after the other
    np.testing.assert_array_equal(got, expected[1:].reshape(dims))


@pytest.mark.parametrize("dims", [(3000, 1), (1, 1)])
def test_the_gradient_of_repeated_columns_is_their_sum(dims: tuple[int, ...]) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        x = layers.data("x", dims, append_batch_size=False, stop_gradient=False)
        out = layers.expand(x, [1, 700])
        weights = layers.data("weights", out.shape, append_batch_size=False)
        (gradient,) = fluid.gradients(out, x, weights)
        values, w = RNG.uniform(-1, 1, dims).astype(np.float32), RNG.uniform(0, 1, out.shape).astype(np.float32)
        feed = {"x": values, "weights": w}
        repeated, got = fluid.Executor(fluid.CPUPlace()).run(feed=feed, fetch_list=[out, gradient])
    np.testing.assert_array_equal(repeated, np.tile(values, (1, 700)))
    np.testing.assert_allclose(got, w.sum(1, dtype=np.float64, keepdims=True), rtol=3e-7)


def test_scatter() -> None:
    x, updates = RNG.uniform(-1, 1, (4, 2)), RNG.uniform(-1, 1, (3, 2))
    once = np.array([2, 0, 3])
    replaced = x.copy()
    replaced[once] = updates
    test = OpTest("scatter", {"X": x, "Ids": once, "Updates": updates}, outputs={"Out": replaced})
    test.check_outputs()
    test.check_gradients(["X", "Updates"])
    twice = np.array([1, 3, 1])
    last = x.copy()
    last[1], last[3] = updates[2], updates[1]
    test = OpTest("scatter", {"X": x, "Ids": twice, "Updates": updates}, {"overwrite": True}, {"Out": last})
    test.check_outputs()
    test.check_gradients(["X", "Updates"])
    total = x.copy()
    total[1], total[3] = updates[0] + updates[2], updates[1]
    test = OpTest("scatter", {"X": x, "Ids": twice, "Updates": updates}, {"overwrite": False}, {"Out": total})
    test.check_outputs()
    test.check_gradients(["X", "Updates"])


def test_rows_that_do_not_exist_are_refused() -> None:
    x = np.ones((3, 2))
    for bad in (-1, 3):
        ids = np.array([0, bad])
        OpTest("gather", {"X": x, "Index": ids}).check_refused(IndexError, "Index", "[0, 3)", when="run")
        scatter = OpTest("scatter", {"X": x, "Ids": ids, "Updates": np.ones((2, 2))})
        scatter.check_refused(IndexError, "Ids", "[0, 3)", when="run")
    OpTest("gather", {"X": x, "Index": np.array([[0, 1]])}).check_refused(ValueError, "Index", "[n, 1]")
    OpTest("gather", {"X": x, "Index": np.array([0.0])}).check_refused(TypeError, "Index", "float64")
    OpTest("scatter", {"X": x, "Ids": np.array([0]), "Updates": x}).check_refused(ValueError, "Updates", "[1, 2]")


def test_multiplex() -> None:
    a, b = RNG.uniform(-1, 1, (3, 2)), RNG.uniform(-1, 1, (3, 2))
    ids = np.array([[1], [0], [1]], np.int32)
    test = OpTest("multiplex", {"Ids": ids, "X": [a, b]}, outputs={"Out": np.where(ids == 0, a, b)})
    test.check_outputs()
    test.check_gradients(["X"])
    bad = OpTest("multiplex", {"Ids": ids + np.int32(1), "X": [a, b]})
    bad.check_refused(IndexError, "Ids", "2 variables", when="run")
    OpTest("multiplex", {"Ids": ids, "X": [a, b[:2]]}).check_refused(ValueError, "X")


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2])
def test_stack_and_unstack(axis: int) -> None:
    pieces = [RNG.uniform(-1, 1, (2, 1, 3)) for _ in range(3)]
    whole = np.stack(pieces, axis)
    test = OpTest("stack", {"X": list(pieces)}, {"axis": axis}, {"Y": whole})
    test.check_outputs()
    test.check_gradients(["X"])
    test = OpTest("unstack", {"X": whole}, {"axis": axis, "num": 3}, {"Y": list(pieces)})
    test.check_outputs()
    test.check_gradients(["X"])


def test_stacks_that_do_not_fit_are_refused() -> None:
    OpTest("stack", {"X": [X, X[:1]]}, outputs={"Y": None}).check_refused(ValueError, "X")
    OpTest("stack", {"X": [X, X]}, {"axis": 4}, {"Y": None}).check_refused(ValueError, "axis")
    OpTest("unstack", {"X": X}, {"axis": 1}, {"Y": [None, None]}).check_refused(ValueError, "X", "2")


def test_one_hot() -> None:
    ids = np.array([[2], [0], [1]])
    for dtype, number in (("float32", 5), ("float64", 6), ("int32", 2), ("int64", 3)):
        expected = (np.eye(4, dtype=dtype)[ids[:, 0]], [[1, 2]])
        inputs = {"X": (ids, [[1, 2]])}
        OpTest("one_hot", inputs, {"depth": 4, "dtype": number}, {"Out": expected}).check_outputs()
    OpTest("one_hot", {"X": ids}, {"depth": 2}).check_refused(IndexError, "X", "[0, 2)", when="run")
    for dtype, error in (("bool", NotImplementedError), ("float16", NotImplementedError)):
        attrs = {"depth": 9, "dtype": int(core.convert_dtype(dtype))}
        OpTest("one_hot", {"X": ids}, attrs).check_refused(error, "attribute dtype", dtype)
    OpTest("one_hot", {"X": ids}, {"depth": 9, "dtype": 99}).check_refused(ValueError, "attribute dtype", "99")
    outside = np.array([[1, 0], [0, 0], [0, 1]], np.float32)
    tolerant = {"depth": 2, "allow_out_of_range": True}
    OpTest("one_hot", {"X": np.array([[0], [7], [1]])}, tolerant, {"Out": outside}).check_outputs()
    OpTest("one_hot", {"X": np.array([[0, 1]])}, {"depth": 2}).check_refused(ValueError, "X", "[..., 1]")


@pytest.mark.parametrize(
    "condition",
    [
        np.array([True, False, True]),
        np.array([[True, False], [False, True]]),
        RNG.random((3, 4, 2, 5)) < 0.3,
        np.zeros((2, 3), bool),
        np.ones((2, 3), bool),
        np.ones((1, 1), bool),
        np.ones((2, 0, 3), bool),
    ],
    ids=lambda condition: str(condition.shape),
)
def test_where(condition: np.ndarray) -> None:
    OpTest("where", {"Condition": condition}, outputs={"Out": np.argwhere(condition)}).check_outputs()


def test_where_refuses_what_is_not_true_or_false() -> None:
    OpTest("where", {"Condition": np.array([1.0, 0.0])}).check_refused(TypeError, "Condition", "bool", "float64")


def test_shape_and_findings() -> None:
    OpTest("shape", {"Input": X}, outputs={"Out": np.array([2, 3, 4], np.int32)}).check_outputs()
    OpTest("is_empty", {"X": X[:0]}, outputs={"Out": np.array([True])}).check_outputs()
    OpTest("is_empty", {"X": X}, outputs={"Out": np.array([False])}).check_outputs()
    for dtype in (np.float32, np.float64):
        x = np.array([1.0, np.inf, -np.inf], dtype)
        nan = np.array([np.nan], dtype)
        for op_type, of_inf, of_nan in (("isfinite", False, False), ("isinf", True, False), ("isnan", False, True)):
            OpTest(op_type, {"X": x}, outputs={"Out": np.array([of_inf])}).check_outputs()
            OpTest(op_type, {"X": nan}, outputs={"Out": np.array([of_nan])}).check_outputs()
            fine = np.array([op_type == "isfinite"])
            OpTest(op_type, {"X": x[:1]}, outputs={"Out": fine}).check_outputs()


def resized(x: np.ndarray, size: tuple[int, int], linear: bool, corners: bool, mode: int) -> np.ndarray:
    """Each pixel of the result, looked up or mixed from those of x, by Fluid's rules."""
    out = np.zeros((*x.shape[:2], *size))
    shared = 1 if corners else 0
    ratios = [(i - shared) / (o - shared) if o > 1 else 0.0 for i, o in zip(x.shape[2:], size)]

    def place(axis: int, at: int) -> float:
        if linear and not corners and mode == 0:
            return max(ratios[axis] * (at + 0.5) - 0.5, 0.0)
        return ratios[axis] * at + (0.5 if corners and not linear else 0.0)

    for i, j in np.ndindex(*size):
        y, v = place(0, i), place(1, j)
        top, left = int(y), int(v)
        if not linear:
            out[:, :, i, j] = x[:, :, top, left]
            continue
        bottom, right = min(top + 1, x.shape[2] - 1), min(left + 1, x.shape[3] - 1)
        upper = x[:, :, top, left] * (1 - (v - left)) + x[:, :, top, right] * (v - left)
        lower = x[:, :, bottom, left] * (1 - (v - left)) + x[:, :, bottom, right] * (v - left)
        out[:, :, i, j] = upper * (1 - (y - top)) + lower * (y - top)
    return out


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("size", [(6, 5), (2, 2), (1, 1), (3, 4)], ids=str)
@pytest.mark.parametrize(("corners", "mode"), [(True, 1), (False, 1), (False, 0)])
@pytest.mark.parametrize("op_type", ["bilinear_interp", "nearest_interp"])
def test_interpolation(op_type: str, corners: bool, mode: int, size: tuple[int, int], given: bool) -> None:
    expected = resized(IMAGES, size, op_type == "bilinear_interp", corners, mode)
    inputs = {"X": IMAGES}
    attrs: dict[str, Any] = {"align_corners": corners, "align_mode": mode}
    if given:
        inputs["OutSize"] = np.array(size, np.int32)
    else:
        attrs |= {"out_h": size[0], "out_w": size[1]}
    test = OpTest(op_type, inputs, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])


def along(x: np.ndarray, axis: int, size: int, corners: bool, mode: int) -> np.ndarray:
    """Linear interpolation along one dimension."""
    n = x.shape[axis]
    shared = 1 if corners else 0
    ratio = (n - shared) / (size - shared) if size > 1 else 0.0
    at = np.arange(size) * ratio
    if not corners and mode == 0:
        at = np.maximum((np.arange(size) + 0.5) * ratio - 0.5, 0)
    low = np.minimum(at.astype(int), n - 1)
    share = (at - low).reshape(-1, *[1] * (x.ndim - axis - 1))
    return np.take(x, low, axis) * (1 - share) + np.take(x, np.minimum(low + 1, n - 1), axis) * share


@pytest.mark.parametrize("size", [(3, 6, 5), (1, 1, 1), (2, 2, 7), (4, 3, 4)], ids=str)
@pytest.mark.parametrize(("corners", "mode"), [(True, 1), (False, 1), (False, 0)])
def test_interpolation_of_volumes(corners: bool, mode: int, size: tuple[int, int, int]) -> None:
    """One dimension after the other."""
    x = RNG.uniform(-1, 1, (2, 2, 2, 3, 4))
    expected = x
    for axis, extent in enumerate(size, 2):
        expected = along(expected, axis, extent, corners, mode)
    attrs = {"align_corners": corners, "align_mode": mode, **dict(zip(("out_d", "out_h", "out_w"), size))}
    test = OpTest("trilinear_interp", {"X": x}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])
    last = {**attrs, "data_layout": "NDHWC"}
    moved = OpTest("trilinear_interp", {"X": np.moveaxis(x, 1, -1).copy()}, last, {"Out": np.moveaxis(expected, 1, -1)})
    moved.check_outputs()
    moved.check_gradients(["X"])


def test_interpolation_of_volumes_refuses_what_does_not_fit() -> None:
    x = np.zeros((1, 2, 2, 2, 2))
    for inputs, attrs, part in (
        ({"X": x}, {"out_h": 2, "out_w": 2}, "out_d"),
        ({"X": x[0]}, {"out_d": 2, "out_h": 2, "out_w": 2}, "[N, C, D, H, W]"),
        ({"X": x, "OutSize": np.array([2, 2], np.int32)}, {}, "OutSize"),
        ({"X": x, "SizeTensor": [np.array([2], np.int32)] * 2}, {}, "expected 3 variables, depth, height, width"),
    ):
        OpTest("trilinear_interp", inputs, attrs, {"Out": None}).check_refused(ValueError, part)
    empty = OpTest("trilinear_interp", {"X": x[:, :, :0]}, {"out_d": 2, "out_h": 2, "out_w": 2}, {"Out": None})
    empty.check_refused(ValueError, "not empty", when="run")


def test_interpolated_bytes_are_rounded_down() -> None:
    x = np.array([10, 20, 41], np.uint8).reshape(1, 1, 1, 3)
    attrs = {"out_h": 1, "out_w": 5}
    test = OpTest("bilinear_interp", {"X": x}, attrs, {"Out": np.array([[[[10, 15, 20, 30, 41]]]], np.uint8)})
    test.check_outputs()
    test = OpTest("nearest_interp", {"X": x}, attrs, {"Out": np.array([[[[10, 20, 20, 41, 41]]]], np.uint8)})
    test.check_outputs()


def in_float(in_size: int, out_size: int, corners: bool, mode: int) -> list[tuple[int, int, np.float32, np.float32]]:
    """Fluid's way along one dimension, in float32: the places of both neighbours, and their weights."""
    shared = 1 if corners else 0
    ratio = np.float32(0)
    if out_size > 1:
        ratio = np.float32(in_size - shared) / np.float32(out_size - shared)
    found = []
    for i in range(out_size):
        at = np.float32(ratio * np.float32(i))
        exact = float(at)
        if not corners and mode == 0:
            exact = max(float(ratio) * (i + 0.5) - 0.5, 0)
            at = np.float32(exact)
        low = int(exact)
        past = np.float32(at - np.float32(low))
        found.append((low, min(low + 1, in_size - 1), np.float32(1) - past, past))
    return found


@pytest.mark.parametrize(("corners", "mode"), [(True, 1), (False, 1), (False, 0)])
@pytest.mark.parametrize("size", [(5, 7, 6), (3, 9, 11), (7, 3, 5)], ids=str)
def test_sums_of_bytes_are_rounded_as_in_fluid(size: tuple[int, int, int], corners: bool, mode: int) -> None:
    """A sum of 42.0 less the last bit gives 41: the order and the precision of each step count."""
    x = np.repeat(np.arange(250, dtype=np.uint8), 9).reshape(10, 25, 1, 3, 3).repeat(2, 2)  # the same in each image
    x[1::2, :, 1, 2, 1] = 7
    axes = [in_float(n, out, corners, mode) for n, out in zip(x.shape[2:], size)]
    expected = np.zeros((*x.shape[:2], *size), np.uint8)
    for at in np.ndindex(*size):
        (f, b, d_b, d_f), (n, s, d_s, d_n), (w, e, d_e, d_w) = (axis[i] for axis, i in zip(axes, at))
        total = np.zeros(x.shape[:2], np.float32)
        for (plane, of_plane), (row, of_row), (col, of_col) in itertools.product(
            ((f, d_b), (b, d_f)), ((n, d_s), (s, d_n)), ((w, d_e), (e, d_w))
        ):
            total += x[:, :, plane, row, col].astype(np.float32) * of_plane * of_row * of_col
        expected[(..., *at)] = total.astype(np.uint8)
    attrs = {"align_corners": corners, "align_mode": mode, **dict(zip(("out_d", "out_h", "out_w"), size))}
    OpTest("trilinear_interp", {"X": x}, attrs, {"Out": expected}).check_outputs(rtol=0, atol=0)

    images = x[:, :, 1]
    expected = np.zeros((*images.shape[:2], *size[1:]), np.uint8)
    for at in np.ndindex(*size[1:]):
        (n, s, d_s, d_n), (w, e, d_e, d_w) = (axis[i] for axis, i in zip(axes[1:], at))
        total = np.zeros(images.shape[:2], np.float32)
        for row, col, of_row, of_col in ((n, w, d_s, d_e), (s, w, d_n, d_e), (n, e, d_s, d_w), (s, e, d_n, d_w)):
            total += images[:, :, row, col].astype(np.float32) * of_row * of_col
        expected[(..., *at)] = total.astype(np.uint8)
    del attrs["out_d"]
    OpTest("bilinear_interp", {"X": images}, attrs, {"Out": expected}).check_outputs(rtol=0, atol=0)


def test_nearest_pixels_keep_their_value() -> None:
    """Labels are int32; a float does not hold them all."""
    x = np.array([[[[2**24 + 1, -1], [2**31 - 1, 0]]]], np.int32)
    attrs = {"out_h": 2, "out_w": 4, "align_corners": False}
    OpTest("nearest_interp", {"X": x}, attrs, {"Out": x.repeat(2, axis=3)}).check_outputs(rtol=0, atol=0)


def test_the_nearest_pixel_is_found_in_float() -> None:
    """Where the exact place is a whole number, what float32 makes of it decides, as in Fluid."""
    n, out = next(
        (n, out)
        for n in range(1, 200)
        for out in range(2, 200)
        if int(np.float32(n) / np.float32(out) * np.float32(out - 1)) != n * (out - 1) // out
        or any(int(np.float32(n) / np.float32(out) * np.float32(i)) != n * i // out for i in range(out))
    )
    x = np.arange(n, dtype=np.float32).reshape(1, 1, 1, n)
    ratio = np.float32(n) / np.float32(out)
    expected = np.array([min(int(np.float32(ratio * np.float32(i))), n - 1) for i in range(out)], np.float32)
    attrs = {"out_h": 1, "out_w": out, "align_corners": False}
    OpTest("nearest_interp", {"X": x}, attrs, {"Out": expected.reshape(1, 1, 1, out)}).check_outputs(rtol=0, atol=0)


def test_interpolation_refuses_what_does_not_fit() -> None:
    for inputs, attrs, part in (
        ({"X": IMAGES}, {}, "out_h"),
        ({"X": X}, {"out_h": 2, "out_w": 2}, "[N, C, H, W]"),
        ({"X": IMAGES}, {"out_h": 2, "out_w": 2, "align_mode": 2}, "align_mode"),
    ):
        OpTest("bilinear_interp", inputs, attrs, {"Out": None}).check_refused(ValueError, part)
    empty = OpTest("bilinear_interp", {"X": IMAGES[:, :, :0]}, {"out_h": 2, "out_w": 2}, {"Out": None})
    empty.check_refused(ValueError, "not empty", when="run")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
def test_what_fills_up_fits_the_dtype(dtype: str) -> None:
    x = np.ones(1, dtype)
    attrs = {"paddings": [1, 0], "pad_value": 2.0}
    OpTest("pad", {"X": x}, attrs, {"Out": np.array([2, 1]).astype(dtype)}).check_outputs()
    if dtype != "bool":
        for value in (-1e300, 2.0**63, float("nan")):
            attrs["pad_value"] = value
            OpTest("pad", {"X": x}, attrs).check_refused(ValueError, "pad_value", dtype)
