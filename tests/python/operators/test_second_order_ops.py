"""Gradients of gradient operators, against central differences of these; gradient penalties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import Variable, layers
from headrace.testing import OpTest

RNG = np.random.default_rng(37)


def numbers(*shape: int) -> np.ndarray:
    """Neither close to zero nor of one sign."""
    return RNG.uniform(0.4, 1.2, shape) * RNG.choice([-1.0, 1.0], shape)


def check_product(
    op_type: str, inputs: dict[str, np.ndarray], x: str, y: str, out: str, attrs: dict[str, Any], known: Sequence[str]
) -> None:
    """Of an operator that is linear in ``x`` and in ``y``."""
    d = f"{out}@GRAD"
    both = {f"{x}@GRAD": None, f"{y}@GRAD": None}
    OpTest(f"{op_type}_grad", inputs, attrs, both, known).check_gradients([x, y, d], tolerance=1e-5)
    for first, other in ((x, y), (y, x)):
        alone = {f"{first}@GRAD": None}
        OpTest(f"{op_type}_grad", inputs, attrs, alone, known).check_gradients([other, d], tolerance=1e-5)
        test = OpTest(f"{op_type}_grad", inputs, attrs, both, known)
        test.check_gradients([other, d], list(alone), tolerance=1e-5)


@pytest.mark.parametrize(
    ("op_type", "x", "y", "d", "attrs"),
    [
        ("mul", (2, 3), (3, 4), (2, 4), {}),
        ("mul", (2, 3, 4), (2, 2, 5), (2, 3, 5), {"x_num_col_dims": 2, "y_num_col_dims": 2}),
        ("matmul", (2, 3, 4), (2, 5, 4), (2, 3, 5), {"transpose_Y": True, "alpha": 0.5}),
        ("matmul", (2, 3, 4), (4, 5), (2, 3, 5), {}),
        ("fsp", (2, 3, 2, 2), (2, 1, 2, 2), (2, 3, 1), {}),
        ("elementwise_mul", (2, 3), (2, 3), (2, 3), {}),
        ("elementwise_mul", (2, 3, 2), (3,), (2, 3, 2), {"axis": 1}),
        ("elementwise_mul", (2, 3), (2, 1), (2, 3), {}),
    ],
)
def test_products(
    op_type: str, x: tuple[int, ...], y: tuple[int, ...], d: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    inputs = {"X": numbers(*x), "Y": numbers(*y), "Out@GRAD": numbers(*d)}
    check_product(op_type, inputs, "X", "Y", "Out", attrs, ())


@pytest.mark.parametrize(
    ("op_type", "x", "filters", "d", "attrs"),
    [
        ("conv2d", (2, 3, 4, 5), (2, 3, 3, 3), (2, 2, 4, 5), {"paddings": [1, 1]}),
        ("conv2d", (1, 4, 5, 5), (2, 2, 2, 2), (1, 2, 2, 2), {"strides": [2, 2], "groups": 2}),
        ("conv2d", (1, 4, 4, 2), (3, 2, 2, 2), (1, 3, 3, 3), {"data_format": "NHWC"}),
        ("depthwise_conv2d", (1, 3, 4, 4), (3, 1, 3, 3), (1, 3, 2, 2), {"groups": 3}),
        ("conv3d", (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), (1, 2, 2, 2, 2), {}),
        ("conv2d_transpose", (1, 2, 3, 3), (2, 3, 2, 2), (1, 3, 6, 6), {"strides": [2, 2]}),
        ("depthwise_conv2d_transpose", (1, 2, 3, 3), (2, 1, 2, 2), (1, 2, 4, 4), {"groups": 2}),
        ("conv3d_transpose", (1, 2, 2, 2, 2), (2, 1, 2, 2, 2), (1, 1, 3, 3, 3), {}),
    ],
)
def test_convolutions(
    op_type: str, x: tuple[int, ...], filters: tuple[int, ...], d: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    inputs = {"Input": numbers(*x), "Filter": numbers(*filters), "Output@GRAD": numbers(*d)}
    check_product(op_type, inputs, "Input", "Filter", "Output", attrs, ["Filter"])


@pytest.mark.parametrize(("y_shape", "axis"), [((2, 3, 2), -1), ((3,), 1), ((2, 1, 2), 0)], ids=str)
@pytest.mark.parametrize("op_type", ["elementwise_add_grad", "elementwise_sub_grad"])
def test_sums(op_type: str, y_shape: tuple[int, ...], axis: int) -> None:
    inputs = {"X": numbers(2, 3, 2), "Y": numbers(*y_shape), "Out@GRAD": numbers(2, 3, 2)}
    for outputs in (["X@GRAD", "Y@GRAD"], ["X@GRAD"], ["Y@GRAD"]):
        test = OpTest(op_type, inputs, {"axis": axis}, dict.fromkeys(outputs))
        for some in {tuple(outputs), (outputs[0],), (outputs[-1],)}:
            test.check_gradients(["Out@GRAD"], some)


@pytest.mark.parametrize(("y_shape", "axis"), [((2, 3, 2), -1), ((3,), 1)], ids=str)
def test_quotients(y_shape: tuple[int, ...], axis: int) -> None:
    inputs = {"X": numbers(2, 3, 2), "Y": numbers(*y_shape), "Out@GRAD": numbers(2, 3, 2)}
    for outputs in (["X@GRAD", "Y@GRAD"], ["X@GRAD"], ["Y@GRAD"]):
        test = OpTest("elementwise_div_grad", inputs, {"axis": axis}, dict.fromkeys(outputs))
        for some in {tuple(outputs), (outputs[0],), (outputs[-1],)}:
            by = ["X", "Y", "Out@GRAD"] if "Y@GRAD" in some else ["Y", "Out@GRAD"]
            test.check_gradients(by, some, tolerance=1e-5)


@pytest.mark.parametrize(
    ("op_type", "read", "curved", "attrs"),
    [
        ("relu", "Out", False, {}),
        ("relu6", "Out", False, {"threshold": 0.9}),
        ("leaky_relu", "X", False, {"alpha": 0.1}),
        ("brelu", "X", False, {"t_min": -0.9, "t_max": 0.8}),
        ("thresholded_relu", "X", False, {"threshold": 0.7}),
        ("hard_shrink", "X", False, {"threshold": 0.7}),
        ("softshrink", "X", False, {"lambda": 0.7}),
        ("hard_sigmoid", "Out", False, {}),
        ("abs", "X", False, {}),
        ("square", "X", True, {}),
        ("sqrt", "Out", True, {}),
        ("rsqrt", "Out", True, {}),
        ("reciprocal", "Out", True, {}),
        ("log", "X", True, {}),
        ("exp", "Out", True, {}),
        ("tanh", "Out", True, {}),
        ("sigmoid", "Out", True, {}),
    ],
)
def test_activations(op_type: str, read: str, curved: bool, attrs: dict[str, Any]) -> None:
    inputs = {read: numbers(3, 4), "Out@GRAD": numbers(3, 4)}
    test = OpTest(f"{op_type}_grad", inputs, attrs, {"X@GRAD": None})
    test.check_gradients([read, "Out@GRAD"] if curved else ["Out@GRAD"], tolerance=1e-5)


def test_the_second_derivative_of_square_is_known_at_zero() -> None:
    inputs = {"X": np.zeros(2), "Out@GRAD": numbers(2)}
    OpTest("square_grad", inputs, {}, {"X@GRAD": None}).check_gradients(["X", "Out@GRAD"], tolerance=1e-5)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs"),
    [
        ("mean_grad", {"X": numbers(2, 3), "Out@GRAD": numbers(1)}, {}),
        ("reduce_sum_grad", {"X": numbers(2, 3, 2), "Out@GRAD": numbers(2, 2)}, {"dim": [1]}),
        ("reduce_mean_grad", {"X": numbers(2, 3, 2), "Out@GRAD": numbers(2, 1, 1)}, {"dim": [1, 2], "keep_dim": True}),
        ("reduce_mean_grad", {"X": numbers(2, 3), "Out@GRAD": numbers(1)}, {"dim": [0], "reduce_all": True}),
        ("transpose_grad", {"Out@GRAD": numbers(2, 3, 4)}, {"axis": [2, 0, 1]}),
        ("transpose2_grad", {"Out@GRAD": numbers(2, 3, 4)}, {"axis": [2, 0, 1]}),
        ("reshape_grad", {"X": numbers(2, 6), "Out@GRAD": numbers(3, 4)}, {"shape": [3, -1]}),
        ("reshape2_grad", {"XShape": np.zeros((0, 2, 6)), "Out@GRAD": numbers(3, 4)}, {"shape": [3, -1]}),
        ("flatten2_grad", {"XShape": np.zeros((0, 2, 3, 2)), "Out@GRAD": numbers(2, 6)}, {"axis": 1}),
        ("squeeze2_grad", {"XShape": np.zeros((0, 2, 1, 2)), "Out@GRAD": numbers(2, 2)}, {"axes": [1]}),
        ("unsqueeze2_grad", {"XShape": np.zeros((0, 2, 2)), "Out@GRAD": numbers(2, 1, 2)}, {"axes": [1]}),
        ("dropout_grad", {"Mask": np.array([[0, 1, 1]], np.uint8), "Out@GRAD": numbers(1, 3)}, {"dropout_prob": 0.3}),
        ("dropout_grad", {"Out@GRAD": numbers(1, 3)}, {"dropout_prob": 0.3, "is_test": True}),
    ],
)
def test_linear(op_type: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> None:
    known = ["XShape"] if "XShape" in inputs else []
    OpTest(op_type, inputs, attrs, {"X@GRAD": None}, known).check_gradients(["Out@GRAD"])


@pytest.mark.parametrize("axis", [1, None])
def test_concat(axis: int | None) -> None:
    inputs: dict[str, Any] = {"X": [numbers(2, 1), numbers(2, 3)], "Out@GRAD": numbers(2, 4)}
    if axis is None:
        inputs["AxisTensor"] = np.array([1], np.int32)
    test = OpTest("concat_grad", inputs, {} if axis is None else {"axis": axis}, {"X@GRAD": [None, None]})
    test.check_gradients(["Out@GRAD"])


def test_the_gradient_of_a_concat_grad_takes_a_missing_one_for_zero() -> None:
    inputs = {"X": [numbers(2, 1), numbers(2, 3)], "X@GRAD@GRAD": [None, numbers(2, 3)]}
    expected = np.concatenate([np.zeros((2, 1)), inputs["X@GRAD@GRAD"][1]], 1)
    test = OpTest("concat_grad_grad", inputs, {"axis": 1}, {"Out@GRAD@GRAD": expected})
    test.check_outputs()
    inputs["X@GRAD@GRAD"][1] = numbers(2, 2)
    OpTest("concat_grad_grad", inputs, {"axis": 1}, {"Out@GRAD@GRAD": None}).check_refused(
        ValueError, "X@GRAD@GRAD", "[2, 3], got [2, 2]"
    )


Build = Callable[..., Variable]


def check_program(build: Build, values: Sequence[np.ndarray], firsts: Sequence[int], used: Sequence[int]) -> None:
    """Σ weight · gradient over the first-order gradients number ``used`` of those by the inputs ``firsts``: its
    gradients by all inputs, and by weights of the result, are those of central differences.
    """
    program = fluid.Program()
    feed = {f"x{i}": value.copy() for i, value in enumerate(values)}
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        inputs = [fluid.data(f"x{i}", value.shape, "float64") for i, value in enumerate(values)]
        for x in inputs:
            x.stop_gradient = False
        out = build(*inputs)
        weights = fluid.data("weights", out.shape, "float64")
        weights.stop_gradient = False
        gradients = fluid.gradients(layers.reduce_sum(out * weights), [inputs[i] for i in firsts])
        objective: Any = 0.0
        for i in used:
            factors = fluid.data(f"factors{i}", gradients[i].shape, "float64")
            feed[factors.name] = np.random.default_rng(i).uniform(-1, 1, gradients[i].shape)
            objective = layers.reduce_sum(gradients[i] * factors) + objective
        by = [*inputs, weights]
        derivatives = fluid.gradients(objective, by)
    feed["weights"] = np.random.default_rng(7).uniform(-1, 1, out.shape)
    exe = fluid.Executor()

    def run(*fetches: Variable) -> list[np.ndarray]:
        return exe.run(program, feed, list(fetches), scope=fluid.Scope())

    found = run(*(d for d in derivatives if d is not None))
    actual = iter(found)
    for x, derivative in zip(by, derivatives):
        value = feed[x.name]
        expected = np.zeros(value.shape)
        for at in np.ndindex(value.shape):
            kept = value[at]
            ends = []
            for step in (1e-5, -1e-5):
                value[at] = kept + step
                ends.append(run(objective)[0].item())
            value[at] = kept
            expected[at] = (ends[0] - ends[1]) / 2e-5
        got = np.zeros(value.shape) if derivative is None else next(actual)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, err_msg=x.name)


def instance_norm(x: Variable, scale: Variable, bias: Variable) -> Variable:
    block = x.block
    out, *statistics = (block.create_var(fluid.unique_name.generate("norm"), dtype="float64") for _ in range(3))
    outputs = dict(zip(("Y", "SavedMean", "SavedVariance"), ([out], *([s] for s in statistics))))
    block.append_op("instance_norm", {"X": [x], "Scale": [scale], "Bias": [bias]}, outputs, {"epsilon": 0.1})
    return out


@pytest.mark.parametrize(
    ("firsts", "used"),
    [([0], [0]), ([0, 1, 2], [0, 1, 2]), ([0, 1, 2], [0]), ([0, 1, 2], [1]), ([0, 1, 2], [2]), ([1, 2], [0])],
    ids=str,
)
def test_instance_norm(firsts: list[int], used: list[int]) -> None:
    check_program(instance_norm, [numbers(2, 3, 2, 2), numbers(3), numbers(3)], firsts, used)


@pytest.mark.parametrize("used", [[0, 1], [0], [1]], ids=str)
@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (lambda x, y: layers.mul(x, y), [(2, 3), (3, 2)]),
        (lambda x, y: layers.elementwise_mul(x, y, axis=0), [(2, 3), (2,)]),
        (lambda x, y: layers.elementwise_div(x, y, axis=0), [(2, 3), (2,)]),
        (lambda x, y: layers.square(layers.elementwise_add(x, y, axis=0)), [(2, 3), (2,)]),
        (lambda x, y: layers.square(layers.elementwise_sub(x, y)), [(2, 3), (2, 3)]),
        (lambda x, y: layers.square(layers.concat([x, y], 1)), [(2, 3), (2, 1)]),
        (lambda x, y: layers.sums([layers.square(x), layers.square(y), x]), [(2, 3), (2, 3)]),
    ],
)
def test_some_gradients_are_not_used(build: Build, shapes: list[tuple[int, ...]], used: list[int]) -> None:
    check_program(build, [numbers(*shape) for shape in shapes], [0, 1], used)


def rows(*numbers: int) -> Variable:
    return layers.assign(np.array(numbers, np.int32))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda x: layers.slice(x, [1], [1], [3]), (2, 4)),
        (lambda x: layers.reshape(layers.slice(x, [1], [layers.fill_constant([1], "int32", 1)], [3]), [2, 2]), (2, 4)),
        (lambda x: layers.strided_slice(x, [1], [3], [0], [-2]), (2, 4)),
        (lambda x: layers.crop_tensor(x, [2, 2], [0, 1]), (2, 4)),
        (lambda x: layers.expand(x, [2, 3]), (2, 2)),
        (lambda x: layers.expand_as(x, layers.zeros([4, 6], "int64")), (2, 2)),
        (lambda x: layers.reverse(x, 1), (2, 3)),
        (lambda x: layers.pad(x, [0, 1, 2, 0], pad_value=0.5), (2, 3)),
        (lambda x: layers.pad2d(x, [1, 0, 0, 2], "constant", 0.5), (1, 2, 2, 3)),
        (lambda x: layers.pad2d(x, [1, 0, 0, 2], "reflect"), (1, 2, 2, 3)),
        (lambda x: layers.pad_constant_like(layers.zeros([3, 4], "float64"), x, 0.5), (2, 3)),
        (lambda x: layers.shuffle_channel(x, 2), (1, 4, 1, 2)),
        (lambda x: layers.gather(x, rows(2, 0, 2)), (3, 2)),
        (lambda x: layers.split(x, 2, 1)[1], (2, 4)),
        (lambda x: layers.elementwise_mul(*layers.split(x, 2, 1)), (2, 4)),
        (lambda x: layers.clip(x, -0.7, 0.8), (3, 4)),
    ],
)
def test_moves(build: Build, shape: tuple[int, ...]) -> None:
    check_program(lambda x: layers.square(build(x)), [numbers(*shape)], [0], [0])


def network(x: Variable) -> Variable:
    hidden = layers.conv2d(x, 3, 3, stride=2, padding=1, param_attr="w0", bias_attr="b0")
    hidden = layers.leaky_relu(hidden, 0.1)
    hidden = layers.instance_norm(hidden, param_attr="s0", bias_attr="t0")
    hidden = layers.fc(layers.tanh(hidden), 4, act="sigmoid", param_attr="w1", bias_attr="b1")
    return layers.fc(hidden, 1, param_attr="w2", bias_attr="b2")


def test_a_gradient_penalty_trains() -> None:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 5
    rate = 0.1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        x = fluid.data("x", [None, 2, 4, 4], "float64")
        x.stop_gradient = False
        out = network(x)
        names = [p.name for p in main.all_parameters()]
        (gradient,) = fluid.gradients(out, x, no_grad_set=names)
        flat = layers.reshape(gradient, [-1, 32])
        norm = layers.sqrt(layers.reduce_sum(layers.square(flat), dim=1) + 1e-16)
        loss = layers.reduce_mean(layers.square(norm - 1.0)) + layers.reduce_mean(out)
        reading = main.clone()
        fluid.optimizer.SGD(rate).minimize(loss)
    scope = fluid.Scope()
    exe = fluid.Executor()
    feed = {"x": np.random.default_rng(2).uniform(-1, 1, (3, 2, 4, 4))}
    exe.run(startup, scope=scope)
    tensors = {name: scope.find_var(name).get_tensor() for name in names}
    before = {name: np.array(tensor) for name, tensor in tensors.items()}

    def loss_now() -> float:
        return exe.run(reading, feed, [loss.name], scope=scope)[0].item()

    expected = {}
    for name, value in before.items():
        expected[name] = value.copy()
        for at in np.ndindex(value.shape):
            ends = []
            for step in (1e-5, -1e-5):
                changed = value.copy()
                changed[at] += step
                tensors[name].set(changed, fluid.CPUPlace())
                ends.append(loss_now())
            expected[name][at] -= rate * (ends[0] - ends[1]) / 2e-5
        tensors[name].set(value, fluid.CPUPlace())
    first = exe.run(main, feed, [loss], scope=scope)[0].item()
    for name in names:
        np.testing.assert_allclose(np.array(tensors[name]), expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
    for _ in range(20):
        last = exe.run(main, feed, [loss], scope=scope)[0].item()
    assert last < first


def test_third_derivatives_by_a_term_of_a_sum() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x, y = (fluid.data(name, [2, 3], "float64") for name in "xy")
        x.stop_gradient = y.stop_gradient = False
        s = x - y
        derivative = layers.reduce_sum(s * s * s * x)
        for _ in range(3):
            (gradient,) = fluid.gradients(derivative, y)
            derivative = layers.reduce_sum(gradient)
    values = {"x": np.full((2, 3), 0.5), "y": np.full((2, 3), 2.0)}
    (third,) = fluid.Executor().run(program, values, [gradient], scope=fluid.Scope())
    np.testing.assert_allclose(third, np.full((2, 3), -6 * 0.5))


def test_a_term_without_a_gradient_adds_no_operators() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()), fluid.unique_name.guard():
        x, y = (fluid.data(name, [2, 3], "float64") for name in "xy")
        x.stop_gradient = y.stop_gradient = False
        by_x, _ = fluid.gradients(layers.elementwise_div(x, y), [x, y])
        before = len(program.global_block().ops)
        fluid.gradients(layers.reduce_sum(by_x), [y])
    added = [op.type for op in program.global_block().ops[before:]]
    assert "scale" not in added
    assert "fill_zeros_like" not in added
    assert added.count("elementwise_div_grad") == 1
