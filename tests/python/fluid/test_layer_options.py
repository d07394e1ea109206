"""Options of layers that differ from their defaults, against their formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import layers

Array = np.ndarray
X = np.array([[-6.0, -1.5, -0.4, 0.0], [0.3, 0.9, 2.5, 7.0]], np.float32)
SMALL = np.array([[-0.9, -0.25], [0.125, 0.75]], np.float32)
POSITIVE = np.array([[0.25, 1.0, 2.0], [4.0, 9.0, 0.5]], np.float32)
CUBE = np.random.default_rng(7).uniform(-2, 2, (2, 3, 4)).astype(np.float32)
INTEGERS = np.array([[7, -7, 5], [-4, 6, 9]], np.int64)


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _selu(x: Array, scale: float, alpha: float) -> Array:
    return scale * np.where(x > 0, x, alpha * (np.exp(x) - 1))


# Name → the layers, what they are given, the formula.
UNARY: dict[str, tuple[Callable[[Any], Any], Array, Callable[[Array], Array]]] = {
    "brelu": (lambda x: layers.brelu(x, t_min=-1.0, t_max=2.0), X, lambda x: x.clip(-1, 2)),
    "elu": (lambda x: layers.elu(x, alpha=0.3), X, lambda x: np.where(x > 0, x, 0.3 * (np.exp(x) - 1))),
    "hard_shrink": (lambda x: layers.hard_shrink(x, threshold=0.9), X, lambda x: np.where(abs(x) > 0.9, x, 0)),
    "hard_sigmoid": (lambda x: layers.hard_sigmoid(x, slope=0.3, offset=0.1), X, lambda x: (0.3 * x + 0.1).clip(0, 1)),
    "hard_swish": (
        lambda x: layers.hard_swish(x, threshold=5.0, scale=4.0, offset=2.0),
        X,
        lambda x: x * (x + 2).clip(0, 5) / 4,
    ),
    "relu6": (lambda x: layers.relu6(x, threshold=2.0), X, lambda x: x.clip(0, 2)),
    "soft_relu": (lambda x: layers.soft_relu(x, threshold=1.0), X, lambda x: np.log1p(np.exp(x.clip(-1, 1)))),
    "softshrink": (
        lambda x: layers.softshrink(x, alpha=0.9),
        X,
        lambda x: np.where(x > 0.9, x - 0.9, np.where(x < -0.9, x + 0.9, 0)),
    ),
    "stanh": (lambda x: layers.stanh(x, scale_a=0.5, scale_b=2.0), X, lambda x: 2 * np.tanh(0.5 * x)),
    "swish": (lambda x: layers.swish(x, beta=0.5), X, lambda x: x * _sigmoid(0.5 * x)),
    "thresholded_relu": (lambda x: layers.thresholded_relu(x, threshold=0.5), X, lambda x: np.where(x > 0.5, x, 0)),
    "selu": (lambda x: layers.selu(x, scale=1.5, alpha=0.5), X, lambda x: _selu(x, 1.5, 0.5)),
    "selu_by_default": (layers.selu, X, lambda x: _selu(x, 1.0507009873554805, 1.6732632423543772)),
    "logsigmoid": (layers.logsigmoid, X, lambda x: np.log(_sigmoid(x))),
    "tanh_shrink": (layers.tanh_shrink, X, lambda x: x - np.tanh(x)),
    "softsign": (layers.softsign, X, lambda x: x / (1 + abs(x))),
    "reciprocal": (layers.reciprocal, POSITIVE, lambda x: 1 / x),
    "rsqrt": (layers.rsqrt, POSITIVE, lambda x: x**-0.5),
    "acos": (layers.acos, SMALL, np.arccos),
    "asin": (layers.asin, SMALL, np.arcsin),
    "atan": (layers.atan, X, np.arctan),
    "scale_then_act": (lambda x: layers.scale(x, 2.0, 1.0, act="relu"), X, lambda x: (2 * x + 1).clip(0)),
    "scale_after_bias": (lambda x: layers.scale(x, 2.0, 1.0, bias_after_scale=False), X, lambda x: 2 * (x + 1)),
    "cumsum_exclusive": (
        lambda x: layers.cumsum(x, axis=1, exclusive=True),
        CUBE,
        lambda x: np.concatenate([np.zeros_like(x[:, :1]), x.cumsum(1)[:, :-1]], 1),
    ),
    "cumsum_reverse": (
        lambda x: layers.cumsum(x, axis=-1, reverse=True),
        CUBE,
        lambda x: x[..., ::-1].cumsum(-1)[..., ::-1],
    ),
    "cumsum_reverse_exclusive": (
        lambda x: layers.cumsum(x, axis=0, exclusive=True, reverse=True),
        CUBE,
        lambda x: x[::-1].cumsum(0)[::-1] - x,
    ),
    "l2_normalize": (
        lambda x: layers.l2_normalize(x, axis=1, epsilon=0.5),
        CUBE,
        lambda x: x / np.sqrt((x**2).sum(1, keepdims=True) + 0.5),
    ),
    "softmax_axis": (lambda x: layers.softmax(x, axis=1), CUBE, lambda x: _softmax(x, 1)),
    "label_smooth": (lambda x: layers.label_smooth(x, epsilon=0.2), POSITIVE, lambda x: 0.8 * x + 0.2 / 3),
    "reduce_max": (lambda x: layers.reduce_max(x, [0, 2], keep_dim=True), CUBE, lambda x: x.max((0, 2), keepdims=True)),
    "reduce_min": (lambda x: layers.reduce_min(x, -1, keep_dim=True), CUBE, lambda x: x.min(-1, keepdims=True)),
    "reduce_prod": (lambda x: layers.reduce_prod(x, 1, keep_dim=True), CUBE, lambda x: x.prod(1, keepdims=True)),
    "argmin": (lambda x: layers.argmin(x, axis=1), CUBE, lambda x: x.argmin(1)),
    "unstack": (lambda x: layers.unstack(x, axis=1, num=3)[2], CUBE, lambda x: x[:, 2]),
    "shard_index": (
        lambda x: layers.shard_index(x, 10, 2, 1, ignore_value=-9),
        np.array([[1], [6], [9]], np.int64),
        lambda x: np.where(x < 5, -9, x - 5),
    ),
    "one_hot_out_of_range": (
        lambda x: layers.one_hot(x, 3, allow_out_of_range=True),
        np.array([[1], [5], [-1]], np.int64),
        lambda x: (x == np.arange(3)).astype(np.float32),
    ),
    "pool2d_ceil": (
        lambda x: layers.pool2d(x, 2, "max", 2, ceil_mode=True),
        np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3),
        lambda x: np.array([[[[4, 5], [7, 8]]]], np.float32),
    ),
    "pool2d_inclusive": (
        lambda x: layers.pool2d(x, 2, "avg", 2, pool_padding=1, exclusive=False),
        np.ones((1, 1, 2, 2), np.float32),
        lambda x: np.full((1, 1, 2, 2), 0.25, np.float32),
    ),
    "temporal_shift": (
        lambda x: layers.temporal_shift(x, 2, shift_ratio=0.4),
        np.arange(1, 11, dtype=np.float32).reshape(2, 5, 1, 1),
        # Of two steps, two channels come from the one before, two from the one after.
        lambda x: np.array([0, 0, 8, 9, 5, 1, 2, 0, 0, 10], np.float32).reshape(2, 5, 1, 1),
    ),
    "lrn": (
        lambda x: layers.lrn(x, n=3, k=2.0, alpha=0.1, beta=0.5),
        CUBE[:, :, :, None],
        lambda x: (
            x
            / np.sqrt(
                2 + 0.1 * (lambda s: s[:, :-2] + s[:, 1:-1] + s[:, 2:])(np.pad(x**2, [(0, 0), (1, 1), (0, 0), (0, 0)]))
            )
        ),
    ),
    "layer_norm": (
        lambda x: layers.layer_norm(x, scale=False, shift=False, begin_norm_axis=2, epsilon=0.5, act="relu"),
        CUBE,
        lambda x: ((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.5)).clip(0),
    ),
    "group_norm": (
        lambda x: layers.group_norm(x, 3, epsilon=0.5, act="relu"),
        CUBE[:, :, :, None],
        lambda x: ((x - x.mean((2, 3), keepdims=True)) / np.sqrt(x.var((2, 3), keepdims=True) + 0.5)).clip(0),
    ),
    "batch_norm_of_all": (
        lambda x: layers.batch_norm(x, epsilon=0.25, use_global_stats=True, act="relu"),
        CUBE[:, :, :, None],
        lambda x: (x / np.sqrt(1.25)).clip(0),
    ),
}


@pytest.mark.parametrize("case", UNARY)
def test_of_one_input(exe: fluid.Executor, case: str) -> None:
    layer, value, formula = UNARY[case]
    x = fluid.data("x", list(value.shape), value.dtype.name)
    out = layer(x)
    exe.run(fluid.default_startup_program())
    got = exe.run(feed={"x": value}, fetch_list=[out])[0]
    want = formula(value)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


FLOATS = (CUBE, CUBE[::-1] + 0.25)
BOTH = (X > 0, X < 1)
BINARY: dict[str, tuple[Callable[[Any, Any], Any], tuple[Array, Array], Callable[[Array, Array], Array]]] = {
    **{
        f"{name}_then_act": (
            lambda x, y, name=name: getattr(layers, f"elementwise_{name}")(x, y, act="sigmoid"),
            (abs(CUBE) + 0.5, abs(CUBE[::-1]) + 0.5),
            lambda x, y, of=of: _sigmoid(of(x, y)),
        )
        for name, of in {
            "add": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "div": np.divide,
            "max": np.maximum,
            "min": np.minimum,
            "pow": np.power,
        }.items()
    },
    **{
        f"{name}_axis": (
            lambda x, y, name=name: getattr(layers, f"elementwise_{name}")(x, y, axis=0),
            (abs(CUBE) + 0.5, np.array([0.5, 2.0], np.float32)),
            lambda x, y, of=of: of(x, y[:, None, None]),
        )
        for name, of in {"sub": np.subtract, "min": np.minimum, "max": np.maximum, "pow": np.power}.items()
    },
    "mod_axis": (
        lambda x, y: layers.elementwise_mod(x, y, axis=0),
        (INTEGERS, np.array([3, 4], np.int64)),
        lambda x, y: np.fmod(x, y[:, None]),  # as in C
    ),
    "floordiv_axis": (
        lambda x, y: layers.elementwise_floordiv(x, y, axis=0),
        (abs(INTEGERS), np.array([3, 4], np.int64)),
        lambda x, y: x // y[:, None],
    ),
    "greater_than": (layers.greater_than, FLOATS, np.greater),
    "less_equal": (layers.less_equal, (INTEGERS, abs(INTEGERS)), np.less_equal),
    "not_equal": (layers.not_equal, (INTEGERS, abs(INTEGERS)), np.not_equal),
    "logical_or": (layers.logical_or, BOTH, np.logical_or),
    "logical_xor": (layers.logical_xor, BOTH, np.logical_xor),
    "hinge_loss": (
        layers.hinge_loss,
        (SMALL[:, :1], np.array([[0.0], [1.0]], np.float32)),
        lambda x, y: (1 - (2 * y - 1) * x).clip(0),
    ),
    "log_loss": (
        lambda x, y: layers.log_loss(x, y, epsilon=0.1),
        (np.array([[0.2], [0.7]], np.float32), np.array([[0.0], [1.0]], np.float32)),
        lambda x, y: -y * np.log(x + 0.1) - (1 - y) * np.log(1 - x + 0.1),
    ),
    "label_smooth_prior": (
        lambda x, y: layers.label_smooth(x, prior_dist=y, epsilon=0.2),
        (POSITIVE, np.array([[0.5, 0.25, 0.25]], np.float32)),
        lambda x, y: 0.8 * x + 0.2 * y,
    ),
    "cross_entropy_ignores": (
        lambda x, y: layers.cross_entropy(x, y, ignore_index=2),
        (_softmax(CUBE[0], -1), np.array([[2], [0], [3]], np.int64)),
        lambda x, y: np.where(y == 2, 0, -np.log(np.take_along_axis(x, y, 1))),
    ),
    "softmax_with_cross_entropy_ignores": (
        lambda x, y: layers.softmax_with_cross_entropy(x, y, ignore_index=0, axis=1),
        (CUBE, np.array([[[0, 1, 2, 1]], [[2, 0, 1, 1]]], np.int64)),
        lambda x, y: np.where(y == 0, 0, -np.log(np.take_along_axis(_softmax(x, 1), y, 1))),
    ),
    "sigmoid_cross_entropy_ignores": (
        lambda x, y: layers.sigmoid_cross_entropy_with_logits(x, y, ignore_index=-1, normalize=True),
        (X[:, :3], np.array([[1, -1, 0], [0, 1, -1]], np.float32)),
        lambda x, y: np.where(y == -1, 0, x.clip(0) - x * y + np.log1p(np.exp(-abs(x)))) / 4,
    ),
    "mul_of_more_dims": (
        lambda x, y: layers.mul(x, y, x_num_col_dims=1, y_num_col_dims=2),
        (CUBE.reshape(2, 3, 4), np.arange(24, dtype=np.float32).reshape(3, 4, 2)),
        lambda x, y: x.reshape(2, 12) @ y.reshape(12, 2),
    ),
    "gather_rows": (
        lambda x, y: layers.gather(x, y, overwrite=False),
        (CUBE, np.array([1, 1, 0], np.int64)),
        lambda x, y: x[y],
    ),
    "iou_in_pixels": (
        lambda x, y: layers.iou_similarity(x, y, box_normalized=False),
        (np.array([[0, 0, 9, 9]], np.float32), np.array([[5, 5, 14, 14], [0, 0, 9, 4]], np.float32)),
        lambda x, y: np.array([[25 / 175, 0.5]], np.float32),
    ),
}


@pytest.mark.parametrize("case", BINARY)
def test_of_two_inputs(exe: fluid.Executor, case: str) -> None:
    layer, values, formula = BINARY[case]
    x, y = (fluid.data(name, list(value.shape), value.dtype.name) for name, value in zip("xy", values))
    got = exe.run(feed=dict(zip("xy", values)), fetch_list=[layer(x, y)])[0]
    want = formula(*values)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_results_go_where_they_are_wanted(exe: fluid.Executor) -> None:
    x = fluid.data("x", [2, 3])
    names = ("full", "zeros", "less", "either", "empty", "sum")
    types = ("float32", "float32", "bool", "bool", "bool", "float32")
    full, zeros, less, either, empty, total = (layers.create_tensor(t, name=n) for n, t in zip(names, types))
    assert layers.fill_constant([2, 3], "float32", 2.5, out=full) is full
    assert layers.zeros_like(x, out=zeros) is zeros
    assert layers.less_than(x, full, cond=less) is less
    assert layers.logical_or(less, layers.equal(x, full), out=either) is either
    assert layers.is_empty(x, cond=empty) is empty
    assert layers.sums([x, full], out=total) is total
    got = exe.run(feed={"x": POSITIVE}, fetch_list=list(names))
    want = np.full((2, 3), 2.5), np.zeros((2, 3)), POSITIVE < 2.5, POSITIVE <= 2.5, [False], POSITIVE + 2.5
    for array, expected in zip(got, want):
        np.testing.assert_array_equal(array, expected)


def test_rows_are_replaced_or_added(exe: fluid.Executor) -> None:
    x, updates = fluid.data("x", [4, 2]), fluid.data("updates", [3, 2])
    index = layers.assign(np.array([2, 0, 2], np.int64))
    outs = [layers.scatter(x, index, updates, overwrite=flag) for flag in (True, False)]
    values = {"x": np.ones((4, 2), np.float32), "updates": np.arange(6, dtype=np.float32).reshape(3, 2)}
    replaced, added = exe.run(feed=values, fetch_list=outs)
    np.testing.assert_array_equal(replaced, [[2, 3], [1, 1], [4, 5], [1, 1]])
    np.testing.assert_array_equal(added, [[2, 3], [1, 1], [4, 6], [1, 1]])  # the rows named, from 0 on


def test_rows_of_several_inputs(exe: fluid.Executor) -> None:
    a, b = fluid.data("a", [3, 2]), fluid.data("b", [3, 2])
    index = layers.assign(np.array([[1], [0], [1]], np.int32))
    values = {"a": np.zeros((3, 2), np.float32), "b": np.ones((3, 2), np.float32)}
    assert exe.run(feed=values, fetch_list=[layers.multiplex([a, b], index)])[0].tolist() == [[1, 1], [0, 0], [1, 1]]


def test_all_and_any(exe: fluid.Executor) -> None:
    x = fluid.data("x", [2, 3], "bool")
    outs = [layers.reduce_all(x), layers.reduce_any(x, dim=0), layers.reduce_all(x, dim=[1], keep_dim=True)]
    outs += [layers.reduce_any(x, dim=-1, keep_dim=True)]
    value = np.array([[True, False, True], [True, True, True]])
    got = exe.run(feed={"x": value}, fetch_list=outs)
    assert [g.tolist() for g in got] == [[False], [True, True, True], [[False], [True]], [[True], [True]]]


def test_transposed_convolution_of_a_given_size(exe: fluid.Executor) -> None:
    ones = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    x = fluid.data("x", [1, 1, 3, 3])
    out = layers.conv2d_transpose(
        x,
        1,
        output_size=[8, 8],
        filter_size=2,
        stride=2,
        dilation=3,
        padding=0,
        param_attr=ones,
        bias_attr=False,
        act="relu",
    )
    exe.run(fluid.default_startup_program())
    value = np.arange(-4, 5, dtype=np.float32).reshape(1, 1, 3, 3)
    want = np.zeros((8, 8), np.float32)
    for i in range(3):
        for j in range(3):
            for dy in (0, 3):
                for dx in (0, 3):
                    want[2 * i + dy, 2 * j + dx] += value[0, 0, i, j]
    got = exe.run(feed={"x": value}, fetch_list=[out])[0]
    assert out.shape == (1, 1, 8, 8)
    np.testing.assert_array_equal(got[0, 0], want.clip(0))
