"""Layers: what they compute, the shapes they declare, what they refuse."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(0)


def constant(array: np.ndarray) -> Variable:
    """A variable that is fed with ``array`` by ``run``."""
    name = fluid.unique_name.generate("in")
    variable = fluid.layers.data(name, list(array.shape), append_batch_size=False, dtype=array.dtype)
    _feed[name] = array
    return variable


_feed: dict[str, np.ndarray] = {}


@pytest.fixture(autouse=True)
def no_feeds() -> None:
    _feed.clear()


def run(*fetches: Variable) -> list[np.ndarray]:
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    return exe.run(feed=dict(_feed), fetch_list=list(fetches))


def parameter(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def test_fc() -> None:
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    out = fluid.layers.fc(constant(x), 5, act="relu", bias_attr=fluid.initializer.Constant(0.1))
    assert out.shape == (2, 5)
    (got,) = run(out)
    expected = np.maximum(x.reshape(2, 12) @ parameter("fc_0.w_0") + 0.1, 0)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_fc_over_the_last_dimension_and_of_several_inputs() -> None:
    a = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    b = RNG.standard_normal((2, 3, 6)).astype(np.float32)
    out = fluid.layers.fc([constant(a), constant(b)], 5, num_flatten_dims=2, bias_attr=False)
    assert out.shape == (2, 3, 5)
    (got,) = run(out)
    expected = a @ parameter("fc_0.w_0") + b @ parameter("fc_0.w_1")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_parameters_of_a_name_are_shared() -> None:
    x = constant(np.ones((1, 4), np.float32))
    a, b = (fluid.layers.fc(x, 3, param_attr="w", bias_attr=False) for _ in range(2))
    assert [p.name for p in fluid.default_main_program().all_parameters()] == ["w"]
    np.testing.assert_array_equal(*run(a, b))
    with pytest.raises(ValueError, match="'w'"):
        fluid.layers.fc(x, 2, param_attr="w")


@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 1), ([1, 2], [2, 0], 2)])
def test_conv2d(stride: int | list[int], padding: int | list[int], groups: int) -> None:
    x = RNG.standard_normal((2, 4, 7, 8)).astype(np.float32)
    out = fluid.layers.conv2d(constant(x), 6, [3, 2], stride, padding, groups=groups, bias_attr=False)
    (got,) = run(out)
    assert got.shape == out.shape
    filters = parameter("conv2d_0.w_0")
    sy, sx = (stride, stride) if isinstance(stride, int) else stride
    py, px = (padding, padding) if isinstance(padding, int) else padding
    padded = np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)))
    expected = np.zeros_like(got)
    for m in range(6):
        channels = slice(m // (6 // groups) * (4 // groups), (m // (6 // groups) + 1) * (4 // groups))
        for i in range(got.shape[2]):
            for j in range(got.shape[3]):
                window = padded[:, channels, i * sy : i * sy + 3, j * sx : j * sx + 2]
                expected[:, m, i, j] = (window * filters[m]).sum((1, 2, 3))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_conv2d_adds_a_bias_for_each_filter() -> None:
    x = constant(np.zeros((1, 1, 3, 3), np.float32))
    bias = fluid.initializer.NumpyArrayInitializer(np.array([1, -2], np.float32))
    (got,) = run(fluid.layers.conv2d(x, 2, 3, bias_attr=bias, act="relu"))
    assert got.ravel().tolist() == [1, 0]


def test_pool2d() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    biggest = fluid.layers.pool2d(constant(x), 2, "max", 2)
    average = fluid.layers.pool2d(constant(x), 2, "avg", 2)
    whole = fluid.layers.pool2d(constant(x), pool_type="avg", global_pooling=True)
    assert biggest.shape == (1, 1, 2, 2)
    got = run(biggest, average, whole)
    assert got[0].ravel().tolist() == [5, 7, 13, 15]
    assert got[1].ravel().tolist() == [2.5, 4.5, 10.5, 12.5]
    assert got[2].ravel().tolist() == [7.5]


def test_losses() -> None:
    logits = RNG.standard_normal((4, 3)).astype(np.float32)
    label = np.array([[0], [2], [1], [2]])
    exp = np.exp(logits)
    probabilities = exp / exp.sum(1, keepdims=True)
    expected = -np.log(probabilities[np.arange(4), label.ravel()])[:, None]
    x, y = constant(logits), constant(label)
    loss, softmax = fluid.layers.softmax_with_cross_entropy(x, y, return_softmax=True)
    two_steps = fluid.layers.cross_entropy(fluid.layers.softmax(x), y)
    got = run(loss, softmax, two_steps, fluid.layers.log_softmax(x), fluid.layers.mean(loss))
    for value, want in zip(got, (expected, probabilities, expected, np.log(probabilities), [expected.mean()])):
        np.testing.assert_allclose(value, want, rtol=1e-5)


def test_accuracy_and_topk() -> None:
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.3, 0.4, 0.3]], np.float32)
    x, label = constant(scores), constant(np.array([[1], [0], [1], [0]]))
    correct, total = fluid.layers.create_tensor("int32"), fluid.layers.create_tensor("int32")
    values, indices = fluid.layers.topk(x, 2)
    got = run(fluid.layers.accuracy(x, label, 1, correct, total), correct, total, values, indices)
    assert [value.tolist() for value in got[:3]] == [[0.5], [2], [4]]
    assert got[4][0].tolist() == [1, 2]
    assert run(fluid.layers.accuracy(x, label, 2))[0][0] == 1.0


def test_functions_take_their_attributes_in_fluids_order() -> None:
    x = constant(np.array([-1.0, 2.0], np.float32))
    slope, named = fluid.layers.leaky_relu(x, 0.5), fluid.layers.leaky_relu(x, name="mine", alpha=0.25)
    assert named.name.startswith("mine")
    got = run(slope, named, fluid.layers.leaky_relu(x, alpha=None))
    assert [value.tolist() for value in got[:2]] == [[-0.5, 2.0], [-0.25, 2.0]]
    np.testing.assert_allclose(got[2], [-0.02, 2.0])
    with pytest.raises(TypeError, match=r"layers\.relu"):
        fluid.layers.relu(x, None, 1.0)


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (fluid.layers.relu, lambda x: np.maximum(x, 0)),
        (fluid.layers.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        (fluid.layers.tanh, np.tanh),
        (fluid.layers.exp, np.exp),
        (fluid.layers.abs, np.abs),
        (fluid.layers.square, np.square),
        (fluid.layers.leaky_relu, lambda x: np.where(x < 0, 0.02 * x, x)),
    ],
)
def test_functions_of_one_variable(layer: object, function: object) -> None:
    x = np.linspace(-2, 2, 9, dtype=np.float32)
    out = layer(constant(x))
    np.testing.assert_allclose(run(out)[0], function(x), rtol=1e-5, atol=1e-6)


def test_elementwise_of_one_shape_does_not_look_at_the_axis(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, 1]), fluid.data("y", [None, 1])
    total = fluid.layers.elementwise_add(x, [y], axis=1)
    a, b = np.array([[1], [2], [3]], np.float32), np.array([[4], [5], [6]], np.float32)
    np.testing.assert_array_equal(exe.run(feed={"x": a, "y": b}, fetch_list=[total])[0], a + b)


def test_reductions_and_elementwise() -> None:
    a = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    b = RNG.standard_normal((3,)).astype(np.float32)
    x, y = constant(a), constant(b)
    cases = [
        (fluid.layers.reduce_sum(x), [a.sum()]),
        (fluid.layers.reduce_sum(x, dim=1), a.sum(1)),
        (fluid.layers.reduce_mean(x, dim=[0, -1], keep_dim=True), a.mean((0, 2), keepdims=True)),
        (fluid.layers.reduce_max(x, dim=-1), a.max(-1)),
        (fluid.layers.elementwise_add(x, y, axis=1), a + b[:, None]),
        (fluid.layers.elementwise_sub(x, y, axis=1, act="relu"), np.maximum(a - b[:, None], 0)),
        (fluid.layers.elementwise_mul(x, x), a * a),
        (fluid.layers.elementwise_max(x, y, axis=1), np.maximum(a, b[:, None])),
        (fluid.layers.matmul(x, x, transpose_y=True, alpha=0.5), 0.5 * a @ a.transpose(0, 2, 1)),
        (fluid.layers.scale(x, 2.0, 1.0, bias_after_scale=False), 2 * (a + 1)),
        (fluid.layers.sums([x, x, x]), 3 * a),
        (fluid.layers.reshape(x, [0, -1]), a.reshape(2, 12)),
        (fluid.layers.cast(x, "int64"), a.astype(np.int64)),
        (fluid.layers.assign(b), b),
        (fluid.layers.fill_constant_batch_size_like(x, [-1, 2], "int64", 3), np.full((2, 2), 3)),
        (fluid.layers.ones([2], "float32"), [1, 1]),
    ]
    for (out, expected), value in zip(cases, run(*(out for out, _ in cases))):
        assert value.shape == np.shape(expected), out
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6, err_msg=str(out))


def test_constants_are_exact() -> None:
    cases: list[tuple[str, Any]] = [
        ("int64", 2**62 + 1),
        ("int64", np.int64(2**62 + 1)),
        ("int32", -5),
        ("bool", True),
        ("bool", False),
        ("float32", np.float32(0.1)),
        ("float64", math.inf),
        ("float64", math.nan),
    ]
    outs = [fluid.layers.fill_constant([2], dtype, value) for dtype, value in cases]
    for (dtype, value), out in zip(cases, run(*outs)):
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, np.full(2, value, dtype))


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "bool"])
def test_an_array_is_part_of_the_program(dtype: str) -> None:
    array = np.array([[0, 1], [2, 0]]).astype(dtype)
    given = fluid.layers.create_tensor(dtype)
    outs = [fluid.layers.assign(array), fluid.layers.assign(array, given), fluid.layers.assign(array[:0])]
    for value, expected in zip(run(*outs), (array, array, array[:0])):
        assert value.dtype == array.dtype
        np.testing.assert_array_equal(value, expected)


def test_a_variable_becomes_what_is_assigned_to_it() -> None:
    array = np.array([2, -1], np.int32)
    new, used, kept = (fluid.layers.create_tensor("float32") for _ in range(3))
    kept.persistable = True
    fluid.layers.assign(np.zeros(2, np.float32), used)
    for variable in (new, used, kept):
        fluid.layers.assign(array, variable)
    for value, dtype in zip(run(new, used, kept), ("int32", "float32", "float32")):
        assert value.dtype == dtype
        assert value.tolist() == [2, -1]


def test_signs_of_an_array_and_of_a_variable() -> None:
    array = np.array([3, 0, -2], np.float32)
    for value in run(fluid.layers.sign(array), fluid.layers.sign(fluid.layers.assign(array))):
        np.testing.assert_array_equal(value, [1, 0, -1])


def test_arrays_of_other_dtypes_are_no_part_of_a_program() -> None:
    for array in (np.zeros(2), np.zeros(2, np.int8)):
        with pytest.raises(TypeError, match=rf"layers\.assign: .*got {array.dtype}; convert it"):
            fluid.layers.assign(array)
    with pytest.raises(TypeError, match="float64"):
        fluid.layers.assign(np.zeros(2), fluid.layers.create_tensor("float64"))


def test_the_exponent_may_be_a_variable() -> None:
    x = np.array([0.5, 1.0, 2.0], np.float32)
    w = fluid.layers.create_parameter(
        [3], "float32", name="w", default_initializer=fluid.initializer.NumpyArrayInitializer(x)
    )
    exponent = fluid.layers.create_parameter(
        [1], "float32", name="exponent", default_initializer=fluid.initializer.Constant(3.0)
    )
    outs = [fluid.layers.pow(w, exponent), fluid.layers.pow(w, factor=3), fluid.layers.pow(w)]
    gradients = dict(fluid.backward.append_backward(fluid.layers.reduce_sum(outs[0])))
    assert list(gradients) == [w]
    *values, gradient = run(*outs, gradients[w])
    for value, expected in zip(values, (x**3, x**3, x)):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, 3 * x**2, rtol=1e-6)
    with pytest.raises(TypeError, match=r"layers\.pow: x"):
        fluid.layers.pow(2.0)


def test_a_reshape_passes_gradients_on() -> None:
    x = constant(np.ones((2, 4), np.float32))
    w = fluid.layers.create_parameter([4, 1], "float32", name="w")
    loss = fluid.layers.mean(fluid.layers.matmul(x, fluid.layers.reshape(w, [4, 1])))
    ((_, gradient),) = fluid.backward.append_backward(loss)
    np.testing.assert_allclose(run(gradient)[0], np.ones((4, 1)))


def test_a_new_variable_takes_part_in_arithmetic_with_a_larger_one() -> None:
    x = np.ones((2, 3), np.float32)
    bias = fluid.layers.create_parameter([3], "float32", default_initializer=fluid.initializer.Constant(2.0))
    np.testing.assert_array_equal(run(bias + constant(x))[0], x + 2)


INITIALIZERS = [
    (fluid.initializer.Constant(3.0), 3, 0, 3, 3),
    (fluid.initializer.Uniform(-1.0, 3.0), 1, 4 / np.sqrt(12), -1, 3),
    (fluid.initializer.Normal(2.0, 0.5), 2, 0.5, -np.inf, np.inf),
    (fluid.initializer.TruncatedNormal(0.0, 1.0), 0, 0.88, -2, 2),
    (fluid.initializer.Xavier(), 0, np.sqrt(2 / 400), -np.sqrt(6 / 400), np.sqrt(6 / 400)),
    (fluid.initializer.Xavier(uniform=False), 0, np.sqrt(2 / 400), -np.inf, np.inf),
    (fluid.initializer.MSRA(), 0, np.sqrt(2 / 100), -np.sqrt(6 / 100), np.sqrt(6 / 100)),
    (fluid.initializer.MSRA(uniform=False), 0, np.sqrt(2 / 100), -np.inf, np.inf),
]


@pytest.mark.parametrize(("init", "mean", "std", "low", "high"), INITIALIZERS)
def test_initial_values(init: fluid.initializer.Initializer, mean: float, std: float, low: float, high: float) -> None:
    fluid.default_startup_program().random_seed = 7
    fluid.layers.create_parameter([100, 300], "float32", name="w", attr=fluid.ParamAttr(initializer=init))
    run()
    w = parameter("w")
    assert w.mean() == pytest.approx(mean, abs=0.02)
    assert w.std() == pytest.approx(std, abs=0.01)
    assert w.min() >= np.float32(low)
    assert w.max() <= np.float32(high)


def test_a_diagonal_is_set_in_initial_values() -> None:
    attrs = fluid.ParamAttr(initializer=fluid.initializer.Uniform(-1.0, 0.0, 3, diag_num=3, diag_step=4, diag_val=2.5))
    fluid.layers.create_parameter([4, 4], "float32", name="w", attr=attrs)
    plain = fluid.ParamAttr(initializer=fluid.initializer.Uniform(-1.0, 0.0, 3))
    fluid.layers.create_parameter([4, 4], "float32", name="plain", attr=plain)
    run()
    expected = parameter("plain").copy()
    np.fill_diagonal(expected[:3, :3], 2.5)
    np.testing.assert_array_equal(parameter("w"), expected)


def test_a_diagonal_that_does_not_fit_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="both positive, got 2 and 0"):
        fluid.initializer.Uniform(diag_num=2)
    attrs = fluid.ParamAttr(initializer=fluid.initializer.Uniform(diag_num=5, diag_step=4))
    fluid.layers.create_parameter([4, 4], "float32", name="w", attr=attrs)
    with pytest.raises(errors.InvalidArgument, match=r"5 elements 5 apart do not fit into dims \[4, 4\]"):
        run()


def test_an_array_as_initial_value() -> None:
    array = RNG.standard_normal((2, 3)).astype(np.float32)
    init = fluid.initializer.NumpyArrayInitializer(array)
    fluid.layers.create_parameter([2, 3], "float32", name="w", default_initializer=init)
    run()
    np.testing.assert_array_equal(parameter("w"), array)
    with pytest.raises(ValueError, match="shape"):
        fluid.layers.create_parameter([3, 2], "float32", default_initializer=init)


def test_image_layers_in_one() -> None:
    x = fluid.layers.data("x", [1, 28, 28])
    out = fluid.nets.simple_img_conv_pool(x, 20, 5, 2, 2, act="relu")
    assert out.shape == (-1, 20, 12, 12)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: fluid.layers.fc(x, 0),
        lambda x: fluid.layers.fc(x, 3, num_flatten_dims=0),
        lambda x: fluid.layers.fc(x, 3, num_flatten_dims=9),
        lambda x: fluid.layers.fc([], 3),
        lambda x: fluid.layers.fc(x, 3, param_attr=False),
        lambda x: fluid.layers.conv2d(x, 3, 3),
        lambda x: fluid.layers.conv2d(fluid.layers.data("i", [3, 8, 8]), 4, [3, 3, 3]),
        lambda x: fluid.layers.conv2d(fluid.layers.data("i", [3, 8, 8]), 4, 3, groups=2),
        lambda x: fluid.layers.conv2d(fluid.layers.data("i", [3, 8, 8]), 4, 9),
        lambda x: fluid.layers.pool2d(fluid.layers.data("i", [3, 8, 8])),
        lambda x: fluid.layers.pool2d(fluid.layers.data("i", [3, 8, 8]), 2, "median"),
        lambda x: fluid.layers.reshape(x, [-1, -1]),
        lambda x: fluid.layers.sums([]),
        lambda x: fluid.layers.reduce_sum(x, dim=7),
        lambda x: fluid.layers.create_parameter([-1], "float32"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(build: object) -> None:
    x = fluid.layers.data("x", [4])
    with pytest.raises(errors.InvalidArgument):
        build(x)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: fluid.layers.fc("x", 3),
        lambda x: fluid.layers.relu(3),
        lambda x: fluid.layers.mean(None),
        lambda x: fluid.layers.cast(x, "complex64"),
        lambda x: fluid.layers.fc(x, 3, param_attr=3),
        lambda x: fluid.layers.cross_entropy(x, "label"),
        lambda x: fluid.layers.softmax(3),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(build: object) -> None:
    x = fluid.layers.data("x", [4])
    with pytest.raises(errors.TypeMismatch):
        build(x)


def test_weights_of_integers_are_refused_by_name() -> None:
    ids, image = fluid.layers.data("ids", [4], dtype="int64"), fluid.layers.data("image", [3, 8, 8], dtype="int32")
    for build, message in (
        (lambda: fluid.layers.fc(ids, 3), r"layers\.fc: the parameter 'fc_0.w_0' would be int64.*embedding"),
        (lambda: fluid.layers.conv2d(image, 4, 3), r"layers\.conv2d: the parameter 'conv2d_0.w_0' would be int32"),
        (lambda: fluid.layers.create_parameter([2], "int64"), r"layers\.create_parameter: .* would be int64"),
    ):
        with pytest.raises(errors.TypeMismatch, match=message):
            build()
    fluid.layers.create_parameter([2], "int64", default_initializer=fluid.initializer.Constant(1))


@pytest.mark.parametrize("value", ["a", None, [1.0, 2.0]])
def test_what_is_no_number_is_refused_by_the_name_of_its_layer(value: object) -> None:
    x = fluid.layers.data("x", [1])
    for build, what in (
        (lambda: fluid.layers.fill_constant([1], "float32", value), "fill_constant: value"),
        (lambda: fluid.layers.fill_constant_batch_size_like(x, [1], "float32", value), "batch_size_like: value"),
        (lambda: fluid.layers.scale(x, value), "scale: scale"),
        (lambda: fluid.layers.scale(x, 1.0, value), "scale: bias"),
        (lambda: fluid.layers.increment(x, value), "increment: value"),
    ):
        with pytest.raises(errors.TypeMismatch, match=rf"{what} has to be a number, got {re.escape(repr(value))}"):
            build()


def test_an_unknown_activation_is_refused() -> None:
    x = fluid.layers.data("x", [4])
    with pytest.raises(KeyError, match="swoosh"):
        fluid.layers.fc(x, 3, act="swoosh")


def test_inputs_that_are_no_variables() -> None:
    for layer in (lambda: fluid.layers.fc(3, 2), lambda: fluid.layers.sums(3), lambda: fluid.layers.concat("x")):
        with pytest.raises(
            errors.TypeMismatch, match=r"input has to be a Variable or a list of Variables, got (int|str)"
        ):
            layer()
    with pytest.raises(errors.TypeMismatch, match=r"layers.fc: input has to be a Variable, got int"):
        fluid.layers.fc([3], 2)
    with pytest.raises(errors.TypeMismatch, match=r"layers.data: name has to be a string, got 4"):
        fluid.layers.data(4, [3])


def test_scale_by_a_variable() -> None:
    x, factor = constant(np.array([1, 2], np.float32)), fluid.layers.fill_constant([1], "float32", 3.0)
    x.stop_gradient = False
    out = fluid.layers.scale(x, factor, bias=1.0, bias_after_scale=False)
    (gradient,) = fluid.gradients(out, x)
    got = run(out, gradient)
    np.testing.assert_array_equal(got, [[6, 9], [3, 3]])


def test_dtypes_of_outputs() -> None:
    x = fluid.layers.data("x", [4], dtype="float64")
    label = fluid.layers.data("label", [1], dtype="int64")
    out = fluid.layers.fc(x, 3)
    assert out.dtype == core.VarDesc.VarType.FP64
    assert fluid.layers.accuracy(out, label).dtype == core.VarDesc.VarType.FP32
    assert fluid.layers.topk(out, 1)[1].dtype == core.VarDesc.VarType.INT64


@pytest.mark.parametrize("by_variable", [False, True])
def test_batch_norm_learns_statistics_and_uses_them_in_tests(by_variable: bool) -> None:
    x = RNG.standard_normal((8, 3, 2, 2)).astype(np.float32) * 2 + 5
    momentum = fluid.layers.fill_constant([1], "float32", 0.5) if by_variable else 0.5
    names = {"moving_mean_name": "mean", "moving_variance_name": "variance"}
    out = fluid.layers.batch_norm(constant(x), momentum=momentum, **names)
    loss = fluid.layers.mean(out)
    test = fluid.default_main_program().clone(for_test=True)
    _, pairs = fluid.optimizer.SGD(0.0).minimize(loss)
    assert sorted(p.name for p, _ in pairs) == ["batch_norm_0.b_0", "batch_norm_0.w_0"]
    (got,) = run(out)
    mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
    expected = (x - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(parameter("mean"), mean / 2, rtol=1e-5)
    np.testing.assert_allclose(parameter("variance"), 0.5 + variance / 2, rtol=1e-4)
    (tested,) = fluid.Executor().run(test, feed=dict(_feed), fetch_list=[out])
    by_statistics = (x - (mean / 2)[:, None, None]) / np.sqrt(0.5 + variance / 2 + 1e-5)[:, None, None]
    np.testing.assert_allclose(tested, by_statistics, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(parameter("mean"), mean / 2, rtol=1e-5)


def test_batch_norm_without_scale_and_bias() -> None:
    x = RNG.standard_normal((8, 3)).astype(np.float32)
    out = fluid.layers.batch_norm(constant(x), param_attr=False, bias_attr=False)
    assert [p.name for p in fluid.default_main_program().all_parameters() if p.trainable] == []
    np.testing.assert_allclose(run(out)[0], (x - x.mean(0)) / x.std(0), rtol=1e-3, atol=1e-3)


def test_layer_norm() -> None:
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    expected = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    plain = fluid.layers.layer_norm(constant(x), scale=False, shift=False)
    scaled = fluid.layers.layer_norm(constant(x), bias_attr=fluid.initializer.Constant(3.0))
    got = run(plain, scaled)
    np.testing.assert_allclose(got[0], expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(got[1], expected + 3, rtol=1e-3, atol=1e-3)


def test_dropout_differs_from_run_to_run_and_does_nothing_in_tests() -> None:
    x = np.ones((100, 100), np.float32)
    out = fluid.layers.dropout(constant(x), 0.25, dropout_implementation="upscale_in_train")
    first, second = run(out)[0], run(out)[0]
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (first == 0).mean() == pytest.approx(0.25, abs=0.03)
    assert not np.array_equal(first, second)
    test = fluid.default_main_program().clone(for_test=True)
    np.testing.assert_array_equal(fluid.Executor().run(test, feed=dict(_feed), fetch_list=[out])[0], x)


def test_dropout_of_a_seeded_program_repeats_with_the_training() -> None:
    x = np.ones((10, 10), np.float32)

    def masks() -> list[np.ndarray]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = 3
        with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
            out = fluid.layers.dropout(fluid.layers.data("x", [10]), 0.5)
            test = main.clone(for_test=True)
            exe = fluid.Executor()
            exe.run(startup)
            values = []
            for _ in range(3):
                values.append(exe.run(main, feed={"x": x}, fetch_list=[out])[0])
                exe.run(test, feed={"x": x}, fetch_list=[out])
            return values

    first, again = masks(), masks()
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])


def test_a_shape_that_is_none_is_refused() -> None:
    layers, image, ids = (
        fluid.layers,
        fluid.layers.data("image", [3, 8, 8]),
        fluid.layers.data("ids", [1], dtype="int64"),
    )
    with pytest.raises(errors.TypeMismatch, match=r"layers.fill_constant: shape has to be a list.* got 'ab'"):
        layers.fill_constant("ab", "float32", 1)
    with pytest.raises(errors.TypeMismatch, match=r"layers.fill_constant: shape .* integers, got 1.5"):
        layers.fill_constant([2, 1.5], "float32", 1)
    with pytest.raises(errors.TypeMismatch, match=r"layers.uniform_random: shape .* got 3"):
        layers.uniform_random(3)
    with pytest.raises(errors.TypeMismatch, match=r"layers.reshape: shape .* got 'ab'"):
        layers.reshape(image, "ab")
    with pytest.raises(errors.TypeMismatch, match=r"layers.create_parameter: shape .* got 'ab'"):
        layers.create_parameter("ab", "float32")
    with pytest.raises(errors.TypeMismatch, match=r"layers.data: the shape of 'x' .* got 'ab'"):
        layers.data("x", "ab")
    with pytest.raises(errors.TypeMismatch, match=r"'fc_0.w_0' has to consist of integers, got \[192, 'ten'\]"):
        layers.fc(image, "ten")
    for size in ("ab", 5, [5, "wide"]):
        with pytest.raises(errors.TypeMismatch, match=r"layers.embedding: size has to"):
            layers.embedding(ids, size)
    with pytest.raises(errors.InvalidArgument, match=r"layers.embedding: .* got \[5\]"):
        layers.embedding(ids, [5])
    assert layers.fill_constant(np.array([2, 3]), "float32", 1).shape == (2, 3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_range(dtype: str) -> None:
    steps = [(0, 10, 3), (5, -5, -2), (2, 3, 1)] + ([(0.5, 2.5, 0.25)] if dtype.startswith("float") else [])
    outs = [fluid.layers.range(*step, dtype) for step in steps]
    for step, out, got in zip(steps, outs, run(*outs)):
        expected = np.arange(*step, dtype=dtype)
        assert out.shape == expected.shape
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_a_range_of_nothing_is_refused() -> None:
    for step in [(0, 1, 0), (0, 0, 1), (0, 3, -1)]:
        with pytest.raises(errors.InvalidArgument, match=r"layers.range: from .* there are no steps"):
            fluid.layers.range(*step, "int64")
    with pytest.raises(errors.InvalidArgument, match=r"layers.range: end must be finite, got inf"):
        fluid.layers.range(0, float("inf"), 1, "float32")
    with pytest.raises(errors.InvalidArgument, match=r"layers.range: step must be an integer for dtype int32, got 0.5"):
        fluid.layers.range(0, 1, 0.5, "int32")
    with pytest.raises(errors.TypeMismatch, match=r"layers.range: step must be a number, got 'one'"):
        fluid.layers.range(0, 1, "one", "float32")
    with pytest.raises(errors.InvalidArgument, match=r"layers.range: end must be an integer for dtype int64, got 2.5"):
        fluid.layers.range(fluid.layers.ones([1], "int64"), 2.5, 1, "int64")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_range_of_variables(dtype: str) -> None:
    numbers = [fluid.layers.fill_constant([1], kind, value) for kind, value in ((dtype, 1), ("int64", 8), (dtype, 3))]
    start, end, step = numbers
    outs = [
        fluid.layers.range(start, end, step, dtype),
        fluid.layers.range(8, start, -2, dtype),
        fluid.layers.range(0, fluid.layers.cast(fluid.layers.shape(constant(np.zeros((4, 5))))[1], dtype), 1, dtype),
    ]
    for out, expected, got in zip(outs, ([1, 4, 7], [8, 6, 4, 2], [0, 1, 2, 3, 4]), run(*outs)):
        assert out.shape == (-1,)
        assert out.stop_gradient
        np.testing.assert_array_equal(got, np.array(expected, dtype))
        assert got.dtype == np.dtype(dtype)


def test_embedding() -> None:
    ids = np.array([[1], [0], [4], [1]])
    out = fluid.layers.embedding(constant(ids), [5, 3], padding_idx=-1, param_attr="table")
    assert out.shape == (4, 3)
    loss = fluid.layers.mean(out)
    ((_, gradient),) = fluid.backward.append_backward(loss)
    got, by_table = run(out, gradient)
    table = parameter("table")
    np.testing.assert_array_equal(got[:2], table[[1, 0]])
    np.testing.assert_array_equal(got[2], np.zeros(3))
    np.testing.assert_allclose(by_table[:, 0], np.array([1, 2, 0, 0, 0]) / 12, rtol=1e-6)
    row = fluid.layers.embedding(constant(np.array([3])), [5, 3], param_attr="table")
    assert row.shape == (3,)
    np.testing.assert_array_equal(run(row)[0], parameter("table")[3])


def test_layout() -> None:
    a = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    x = constant(a)
    halves = fluid.layers.split(x, 2, dim=2)
    parts = fluid.layers.split(x, [1, 2], dim=1)
    cases = [
        (fluid.layers.transpose(x, [2, 0, 1]), a.transpose(2, 0, 1)),
        (fluid.layers.concat([x, x], axis=1), np.concatenate([a, a], 1)),
        (halves[1], a[:, :, 2:]),
        (parts[0], a[:, :1]),
        (parts[1], a[:, 1:]),
        (fluid.layers.unsqueeze(x, [0]), a[None]),
        (fluid.layers.squeeze(fluid.layers.unsqueeze(x, [1]), [1]), a),
        (fluid.layers.flatten(x, axis=2), a.reshape(6, 4)),
        (fluid.layers.argmax(x, axis=1), a.argmax(1)),
    ]
    for (out, expected), value in zip(cases, run(*(out for out, _ in cases))):
        np.testing.assert_array_equal(value, expected, err_msg=str(out))
        assert out.shape == expected.shape


def test_sequences() -> None:
    x = fluid.layers.data("x", [1], lod_level=1)
    kinds = ["sum", "average", "max", "first", "last"]
    outs = [fluid.layers.sequence_pool(x, kind) for kind in kinds]
    outs += [fluid.layers.sequence_first_step(x), fluid.layers.sequence_last_step(x)]
    tensor = fluid.create_lod_tensor(np.array([[1], [3], [2], [5]], np.float32), [[3, 1]])
    exe = fluid.Executor()
    got = [value.ravel().tolist() for value in exe.run(feed={"x": tensor}, fetch_list=outs)]
    assert got == [[6, 5], [2, 5], [3, 5], [1, 5], [2, 5], [1, 5], [2, 5]]
    softmax = fluid.layers.sequence_softmax(x)
    (value,) = exe.run(feed={"x": tensor}, fetch_list=[softmax], return_numpy=False)
    assert np.asarray(value)[3, 0] == 1
    assert np.asarray(value)[:3].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("sum", [2, 2, 2, 7]),
        ("average", [2 / 3, 2 / 3, 2 / 3, 7]),
        ("sqrt", [2 / 3**0.5] * 3 + [7]),
        ("max", [0, 2, 0, 7]),
        ("first", [2, 0, 0, 7]),
        ("last", [0, 0, 2, 7]),
    ],
)
def test_every_kind_of_sequence_pool_trains(kind: str, expected: list[float]) -> None:
    """The gradient of the pooled sequences' sum, weighted by 2 and 7."""
    x = fluid.data("x", [None, 1], lod_level=1)
    x.stop_gradient = False
    weights = fluid.data("weights", [None, 1])
    loss = fluid.layers.reduce_sum(fluid.layers.sequence_pool(x, kind) * weights)
    ((_, gradient),) = fluid.backward.append_backward(loss, [x])
    tensor = fluid.create_lod_tensor(np.array([[1], [3], [2], [5]], np.float32), [[3, 1]])
    feed = {"x": tensor, "weights": np.array([[2], [7]], np.float32)}
    (got,) = fluid.Executor().run(feed=feed, fetch_list=[gradient], return_numpy=False)
    np.testing.assert_allclose(np.asarray(got).ravel(), expected, rtol=1e-6)


@pytest.mark.parametrize("attr", ["use_cudnn", "use_mkldnn", "is_test", "workspace_size_MB"])
def test_attributes_that_choose_a_library_make_no_difference(attr: str) -> None:
    x = constant(np.array([[-1, 2]], np.float32))
    plain, chosen = fluid.layers.relu(x), fluid.layers.relu(x, **{attr: 1})
    assert not chosen.block.ops[-1].has_attr(attr)
    got = run(plain, chosen)
    assert got[0].tolist() == got[1].tolist() == [[0, 2]]


def test_attributes_that_an_operator_has_are_its_own() -> None:
    x = fluid.data("x", [None, 2])
    fluid.layers.dropout(x, 0.5, is_test=True)
    assert fluid.default_main_program().global_block().ops[-1].attr("is_test") is True


def test_attributes_that_decide_something_are_not_dropped() -> None:
    x = fluid.data("x", [None, 2])
    with pytest.raises(errors.Unimplemented, match="'fuse_with_relu' as false, got true"):
        fluid.layers.relu(x, fuse_with_relu=True)
    with pytest.raises(errors.NotFound, match="no_such_operator"):
        x.block.append_op("no_such_operator", {"X": x}, {"Out": x}, {"use_cudnn": True})


def test_layers_take_the_flags_of_fluids_devices() -> None:
    image = fluid.data("image", [None, 1, 4, 4])
    sequence = fluid.data("sequence", [None, 1], lod_level=1)
    net = fluid.layers.conv2d(image, 2, 3, use_cudnn=False)
    net = fluid.layers.pool2d(net, 2, use_cudnn=False)
    net = fluid.layers.fc(net, 3, is_test=True)
    assert fluid.layers.softmax(net, use_cudnn=False).shape == (-1, 3)
    assert fluid.layers.sequence_softmax(sequence, use_cudnn=False).shape == (-1, 1)
    assert fluid.layers.sequence_pool(sequence, "max", True).shape == (-1, 1)


def test_batch_norm_with_a_relu() -> None:
    x = constant(np.array([[-1], [1]], np.float32))
    plain, fused = fluid.layers.batch_norm(x), fluid.layers.batch_norm(x, fuse_with_relu=True)
    got = run(plain, fused)
    assert got[0].min() < 0
    np.testing.assert_array_equal(got[1], np.maximum(got[0], 0))


def test_squeeze_without_axes_never_drops_the_batch(exe: fluid.Executor) -> None:
    x = fluid.layers.data("x", [1, 3], dtype="float32")
    out = fluid.layers.squeeze(x, [])
    assert list(out.shape) == [-1, 3]
    same = fluid.layers.squeeze(out, [])
    for rows in (1, 2):
        got = exe.run(feed={"x": np.ones((rows, 1, 3), np.float32)}, fetch_list=[out, same])
        assert [value.shape for value in got] == [(rows, 3)] * 2


@pytest.mark.parametrize(("mode", "shape"), [("all", (1,)), ("channel", (1, 3, 1, 1)), ("element", (1, 3, 2, 2))])
def test_slopes_begin_as_in_fluid(mode: str, shape: tuple[int, ...]) -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 2, 2)
    out = fluid.layers.prelu(fluid.layers.assign(x), mode, fluid.ParamAttr("slopes"))
    np.testing.assert_array_equal(run(out)[0], x)
    assert parameter("slopes").tolist() == np.ones(shape).tolist()


def test_integers_that_would_be_rounded_are_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"layers.range: start 9007199254740993 cannot be represented"):
        fluid.layers.range(2**53 + 1, 2**53 + 3, 1, "int64")
    whole = fluid.layers.create_tensor("int32")
    for array in (np.array([1.7]), np.array([2.0**33]), np.array([np.nan])):
        with pytest.raises(errors.InvalidArgument, match="is int32, which cannot hold"):
            fluid.layers.assign(array, output=whole)
    fluid.layers.assign(np.array([2.0, -3.0]), output=whole)
    assert run(whole)[0].tolist() == [2, -3]


def test_l2_normalize_without_an_axis() -> None:
    x = np.array([[3, 4], [6, 8]], np.float32)
    np.testing.assert_allclose(run(fluid.layers.l2_normalize(fluid.layers.assign(x), None))[0], [[0.6, 0.8]] * 2)


def test_a_dtype_in_the_place_of_append_batch_size_is_a_warning() -> None:
    with pytest.warns(
        UserWarning, match=r"'int64' is given for append_batch_size of 'ids', .* was dtype='int64' meant"
    ):
        ids = fluid.layers.data("ids", [1], "int64")
    assert ids.dtype == core.VarDesc.VarType.FP32  # as in Fluid
