"""Optimizers against their definitions, on a single parameter whose gradient is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from nets import fed_regression

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid.framework import Block, Parameter, Variable
from headrace.fluid.optimizer import Optimizer

START = np.array([1.0, -2.0, 3.0], np.float32)
RATE = 0.1
STEPS = 4


def gradient(w: np.ndarray) -> np.ndarray:
    """Of the sum of squares."""
    return 2 * w


def trained(optimizer: Optimizer, attr: fluid.ParamAttr | None = None) -> np.ndarray:
    w = fluid.layers.create_parameter(
        [3], "float32", name="w", attr=attr, default_initializer=fluid.initializer.NumpyArrayInitializer(START)
    )
    loss = fluid.layers.reduce_sum(fluid.layers.square(w))
    optimizer.minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    for _ in range(STEPS):
        exe.run()
    return np.array(fluid.global_scope().find_var("w").get_tensor())


def sgd(decay: float = 0.0, rate: float = RATE) -> np.ndarray:
    w = START.copy()
    for _ in range(STEPS):
        w -= rate * (gradient(w) + decay * w)
    return w


def test_sgd() -> None:
    np.testing.assert_allclose(trained(fluid.optimizer.SGD(RATE)), sgd(), rtol=1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov: bool) -> None:
    w, v = START.copy(), np.zeros(3, np.float32)
    for _ in range(STEPS):
        g = gradient(w)
        v = 0.9 * v + g
        w -= RATE * (g + 0.9 * v if nesterov else v)
    np.testing.assert_allclose(trained(fluid.optimizer.Momentum(RATE, 0.9, nesterov)), w, rtol=1e-5)


def test_adagrad() -> None:
    w, m = START.copy(), np.full(3, 0.5, np.float32)
    for _ in range(STEPS):
        g = gradient(w)
        m += g * g
        w -= RATE * g / (np.sqrt(m) + 1e-6)
    optimizer = fluid.optimizer.Adagrad(RATE, initial_accumulator_value=0.5)
    np.testing.assert_allclose(trained(optimizer), w, rtol=1e-5)


def adam(beta1: float, beta2: float) -> np.ndarray:
    w, m, v = START.copy(), np.zeros(3), np.zeros(3)
    for step in range(1, STEPS + 1):
        g = gradient(w)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        rate = RATE * np.sqrt(1 - beta2**step) / (1 - beta1**step)
        w -= (rate * m / (np.sqrt(v) + 1e-8)).astype(np.float32)
    return w


def test_adam() -> None:
    np.testing.assert_allclose(trained(fluid.optimizer.Adam(RATE, 0.8, 0.9)), adam(0.8, 0.9), rtol=1e-5)


def test_adam_with_betas_of_variables() -> None:
    betas = [fluid.layers.create_global_var([1], beta, "float32", persistable=True) for beta in (0.9, 0.999)]
    np.testing.assert_allclose(trained(fluid.optimizer.Adam(RATE, *betas)), adam(0.9, 0.999), rtol=1e-4)


@pytest.mark.parametrize("decays", [True, False])
def test_adamw(decays: bool) -> None:
    w, m, v = START.copy(), np.zeros(3), np.zeros(3)
    for step in range(1, STEPS + 1):
        g = gradient(w)  # decayed weights have no part in it
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * g * g
        w -= (RATE * 0.25 * w).astype(np.float32) if decays else 0
        rate = RATE * np.sqrt(1 - 0.9**step) / (1 - 0.8**step)
        w -= (rate * m / (np.sqrt(v) + 1e-8)).astype(np.float32)
    asked = []
    choose = lambda name: asked.append(name) or decays  # noqa: E731
    optimizer = fluid.optimizer.AdamW(RATE, 0.8, 0.9, weight_decay=0.25, apply_decay_param_fun=choose)
    np.testing.assert_allclose(trained(optimizer), w, rtol=1e-5)
    assert asked == ["w"]


@pytest.mark.parametrize("decays", [True, False])
def test_lamb(decays: bool) -> None:
    w, m, v = START.copy(), np.zeros(3), np.zeros(3)
    for _ in range(STEPS):
        g = gradient(w)
        m = 0.8 * m + 0.2 * g
        v = 0.9 * v + 0.1 * g * g
        change = m / (np.sqrt(v) + 1e-6) + (0.25 * w if decays else 0)
        w -= (RATE * np.linalg.norm(w) / np.linalg.norm(change) * change).astype(np.float32)
    asked = []
    exclude = lambda parameter: asked.append(parameter.name) or not decays  # noqa: E731
    optimizer = fluid.optimizer.Lamb(RATE, 0.25, 0.8, 0.9, exclude_from_weight_decay_fn=exclude)
    np.testing.assert_allclose(trained(optimizer), w, rtol=1e-5)
    assert asked == ["w"]


def test_adamw_without_decay_is_adam() -> None:
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
        adam = trained(fluid.optimizer.Adam(RATE))
    np.testing.assert_array_equal(trained(fluid.optimizer.AdamW(RATE, weight_decay=0.0)), adam)


@pytest.mark.parametrize("decay", [-0.1, float("nan"), float("inf")])
def test_adamw_refuses_a_decay_that_is_none(decay: float) -> None:
    with pytest.raises(errors.InvalidArgument, match="weight_decay must be a number of 0 or more"):
        fluid.optimizer.AdamW(weight_decay=decay)
    with pytest.raises(errors.TypeMismatch, match="weight_decay must be a number, got NoneType"):
        fluid.optimizer.AdamW(weight_decay=None)  # type: ignore[arg-type]
    with pytest.raises(errors.TypeMismatch, match="apply_decay_param_fun must be callable, got list"):
        fluid.optimizer.AdamW(apply_decay_param_fun=["w"])  # type: ignore[arg-type]


@pytest.mark.parametrize("adagrad", [False, True])
def test_proximal_steps(adagrad: bool) -> None:
    w, moment = START.copy(), np.zeros(3)
    for _ in range(STEPS):
        g = gradient(w)
        moment += g * g
        reached = w - RATE * g / (np.sqrt(moment) if adagrad else 1)
        w = (np.sign(reached) * np.maximum(np.abs(reached) - RATE * 0.5, 0) / (1 + RATE * 2)).astype(np.float32)
    make = fluid.optimizer.ProximalAdagrad if adagrad else fluid.optimizer.ProximalGD
    np.testing.assert_allclose(trained(make(RATE, l1=0.5, l2=2.0)), w, rtol=1e-5)


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop(centered: bool) -> None:
    w, square, mean, moment = START.copy(), np.zeros(3), np.zeros(3), np.zeros(3)
    for _ in range(STEPS):
        g = gradient(w)
        square = 0.9 * square + 0.1 * g * g
        mean = 0.9 * mean + 0.1 * g
        moment = 0.5 * moment + RATE * g / np.sqrt(square - (mean * mean if centered else 0) + 1e-6)
        w -= moment.astype(np.float32)
    optimizer = fluid.optimizer.RMSProp(RATE, rho=0.9, epsilon=1e-6, momentum=0.5, centered=centered)
    np.testing.assert_allclose(trained(optimizer), w, rtol=1e-4)


def test_the_rate_may_be_a_variable() -> None:
    rate = fluid.layers.fill_constant([1], "float32", RATE)
    np.testing.assert_allclose(trained(fluid.optimizer.SGD(rate)), sgd(), rtol=1e-5)


def test_a_parameter_may_have_a_rate_of_its_own() -> None:
    attr = fluid.ParamAttr(learning_rate=0.5)
    np.testing.assert_allclose(trained(fluid.optimizer.SGD(RATE), attr), sgd(rate=RATE / 2), rtol=1e-5)


def test_a_parameter_that_is_not_trainable_stays() -> None:
    _, _, loss = fed_regression()
    frozen = fluid.layers.create_parameter([1], "float32", attr=fluid.ParamAttr(name="frozen", trainable=False))
    _, pairs = fluid.optimizer.SGD(RATE).minimize(fluid.layers.mean(loss * frozen))
    assert [parameter.name for parameter, _ in pairs] == ["fc_0.w_0", "fc_0.b_0"]


def test_a_list_of_all_parameters_does_not_train_frozen_ones() -> None:
    loss = fed_regression()[2]
    frozen = fluid.layers.create_parameter([1], "float32", attr=fluid.ParamAttr(name="frozen", trainable=False))
    total = fluid.layers.mean(loss * frozen)
    names = [parameter.name for parameter in fluid.default_main_program().all_parameters()]
    assert "frozen" in names
    _, pairs = fluid.optimizer.SGD(RATE).minimize(total, parameter_list=names)
    assert [parameter.name for parameter, _ in pairs] == ["fc_0.w_0", "fc_0.b_0"]
    given = fluid.backward.append_backward(total, parameter_list=["frozen"])
    assert fluid.optimizer.SGD(RATE).apply_gradients(given) == []
    with pytest.raises(errors.InvalidArgument, match=r"has trainable=False or stop_gradient.*: frozen"):
        fluid.optimizer.SGD(RATE).minimize(total, parameter_list=[frozen])


def test_weight_decay_from_the_optimizer_or_the_parameter() -> None:
    decay = fluid.regularizer.L2Decay(0.5)
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
        np.testing.assert_allclose(trained(fluid.optimizer.SGD(RATE, decay)), sgd(0.5), rtol=1e-5)
    attr = fluid.ParamAttr(regularizer=decay)
    optimizer = fluid.optimizer.SGD(RATE, fluid.regularizer.L2Decay(0.1))
    np.testing.assert_allclose(trained(optimizer, attr), sgd(0.5), rtol=1e-5)


def test_clipping_by_global_norm() -> None:
    w = START.copy()
    for _ in range(STEPS):
        g = gradient(w)
        w -= RATE * g * min(1.0, 2.0 / float(np.linalg.norm(g)))
    optimizer = fluid.optimizer.SGD(RATE, grad_clip=fluid.clip.GradientClipByGlobalNorm(2.0))
    np.testing.assert_allclose(trained(optimizer), w, rtol=1e-5)


def test_clipping_by_value() -> None:
    w = START.copy()
    for _ in range(STEPS):
        w -= RATE * np.clip(gradient(w), -1, 3)
    optimizer = fluid.optimizer.SGD(RATE, grad_clip=fluid.clip.GradientClipByValue(3.0, -1.0))
    np.testing.assert_allclose(trained(optimizer), w, rtol=1e-5)


def test_clipping_by_the_norm_of_each_gradient() -> None:
    w = START.copy()
    for _ in range(STEPS):
        g = gradient(w)
        w -= RATE * g * min(1.0, 2.0 / float(np.linalg.norm(g)))
    optimizer = fluid.optimizer.SGD(RATE, grad_clip=fluid.clip.GradientClipByNorm(2.0))
    np.testing.assert_allclose(trained(optimizer), w, rtol=1e-5)


def test_l1_decay() -> None:
    w = START.copy()
    for _ in range(STEPS):
        w -= RATE * (gradient(w) + 0.5 * np.sign(w))
    np.testing.assert_allclose(trained(fluid.optimizer.SGD(RATE, fluid.regularizer.L1Decay(0.5))), w, rtol=1e-5)


def test_a_regularizer_is_called_as_fluid_calls_it() -> None:
    class Half(fluid.regularizer.WeightDecayRegularizer):
        def __call__(self, param: Parameter, grad: Variable, block: Block) -> Variable:
            out = block.create_var(dtype=grad.dtype)
            block.append_op("scale", {"X": grad}, {"Out": out}, {"scale": -0.5})
            return out

    np.testing.assert_allclose(trained(fluid.optimizer.SGD(RATE, Half())), sgd(rate=RATE / 2), rtol=1e-5)


@pytest.mark.parametrize("how", ["attr", "all", "name", "clone"])
def test_a_parameter_may_have_a_clip_of_its_own(how: str) -> None:
    w = START.copy()
    for _ in range(STEPS):
        w -= RATE * (np.clip(gradient(w), -1, 1) + 0.5 * w)  # clipped first
    clip = fluid.clip.GradientClipByValue(1.0)
    w_attr = fluid.ParamAttr("w", fluid.initializer.NumpyArrayInitializer(START))
    if how in ("attr", "clone"):
        w_attr.gradient_clip = clip
    parameter = fluid.layers.create_parameter([3], "float32", attr=w_attr)
    loss = fluid.layers.reduce_sum(fluid.layers.square(parameter))
    program = fluid.default_main_program()
    if how in ("all", "name"):
        fluid.clip.set_gradient_clip(clip, None if how == "all" else ["w"])
    if how == "clone":
        program = program.clone()
        loss = program.global_block().var(loss.name)
    decay = fluid.regularizer.L2Decay(0.5)
    # The optimizer's clip is for other parameters.
    fluid.optimizer.SGD(RATE, decay, grad_clip=fluid.clip.GradientClipByNorm(0.01)).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    for _ in range(STEPS):
        exe.run(program)
    np.testing.assert_allclose(np.array(fluid.global_scope().find_var("w").get_tensor()), w, rtol=1e-5)


def test_clips_and_weight_decay_take_parameters_without_a_gradient() -> None:
    loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 2, bias_attr=False))
    unused = fluid.layers.create_parameter([2], "float32")
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByNorm(1.0))
    pairs = [*fluid.backward.append_backward(loss), (unused, None)]
    (weight, _), rest = fluid.regularizer.append_regularization_ops(pairs, fluid.regularizer.L2Decay(0.1))
    assert rest == (unused, None)
    assert [parameter for parameter, _ in fluid.clip.append_gradient_clip_ops(pairs)] == [weight]


def test_clips_and_weight_decay_that_a_program_adds_itself_are_not_in_its_clone_for_tests() -> None:
    x = fluid.data("x", [None, 2])
    loss = fluid.layers.mean(fluid.layers.fc(x, 2))
    pairs = fluid.backward.append_backward(loss)
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(1.0))
    pairs = fluid.clip.append_gradient_clip_ops(pairs)
    pairs = fluid.regularizer.append_regularization_ops(pairs, fluid.regularizer.L2Decay(0.1))
    fluid.optimizer.SGD(0.1).apply_gradients(pairs)
    program = fluid.default_main_program()
    types = [op.type for op in program.clone(for_test=True).global_block().ops]
    assert types == ["mul", "elementwise_add", "mean"]
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((1, 2), np.float32)}
    exe.run(program, feed, [loss])
    exe.run(program.clone(for_test=True), feed, [loss])


def clipped_gradients(clips: list[fluid.clip.GradientClipBase | None], default: object = None) -> list[np.ndarray]:
    """The gradients [2], [4], [6], … of parameters with these clips, after clipping."""
    pairs = []
    for i, clip in enumerate(clips):
        one = fluid.initializer.Constant(1.0)
        w = fluid.layers.create_parameter([1], "float32", attr=fluid.ParamAttr(f"w{i}", one, gradient_clip=clip))
        loss = fluid.layers.scale(w, 2.0 * (i + 1))
        pairs += fluid.backward.append_backward(loss, ["w" + str(i)])
    pairs = fluid.clip.append_gradient_clip_ops(pairs, default)
    assert [parameter.name for parameter, _ in pairs] == [f"w{i}" for i in range(len(clips))]
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    return exe.run(fetch_list=[gradient for _, gradient in pairs])


def test_clips_by_global_norm_are_taken_by_group() -> None:
    def by(limit: float, group: str = "default_group") -> fluid.clip.GradientClipBase:
        return fluid.clip.GradientClipByGlobalNorm(limit, group)

    # 2 and 6 are a group of norm √40, 4 is another; 8 has a limit of its own, 10 and 12 have the optimizer's, 14 none.
    default = fluid.clip.GradientClipByGlobalNorm(1.0)
    value = fluid.clip.GradientClipByValue(5.0)
    got = clipped_gradients([by(2.0), by(1.0, "other"), by(2.0), value, None, None], default)
    both, rest = 2 / np.sqrt(40), 1 / np.sqrt(244)
    np.testing.assert_allclose(np.ravel(got), [2 * both, 1, 6 * both, 5, 10 * rest, 12 * rest], rtol=1e-5)
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        np.testing.assert_allclose(clipped_gradients([None, value]), [[2.0], [4.0]])
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        pytest.raises(errors.InvalidArgument, match=r"'w1' has clip_norm 3.0.*'default_group' have 2.0"),
    ):
        clipped_gradients([by(2.0), by(3.0)])


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32")])
def test_gradients_of_two_dtypes_are_clipped_by_one_factor(dtypes: tuple[str, str]) -> None:
    pairs = []
    for dtype, scale in zip(dtypes, (6.0, 8.0)):
        w = fluid.layers.create_parameter([1], dtype, default_initializer=fluid.initializer.Constant(1.0))
        pairs += fluid.backward.append_backward(fluid.layers.scale(w, scale), [w.name])
    pairs = fluid.clip.GradientClipByGlobalNorm(2.0)(pairs)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    got = exe.run(fetch_list=[gradient for _, gradient in pairs])
    assert [str(gradient.dtype) for gradient in got] == list(dtypes)
    np.testing.assert_allclose(np.ravel(got), np.array([6.0, 8.0]) * 2 / np.hypot(6, 8), rtol=1e-6)


@pytest.mark.parametrize("limit", [-1, 0.0, float("nan"), float("inf")])
def test_a_clip_without_a_sensible_limit_is_refused(limit: float) -> None:
    with pytest.raises(errors.InvalidArgument, match="GradientClipByNorm: clip_norm must be positive"):
        fluid.clip.GradientClipByNorm(limit)
    with pytest.raises(errors.InvalidArgument, match="GradientClipByGlobalNorm: clip_norm must be positive"):
        fluid.clip.GradientClipByGlobalNorm(limit)


def test_what_is_no_number_or_flag_is_refused_by_a_param_attr() -> None:
    for rate in ("0.1", None, True):
        with pytest.raises(errors.TypeMismatch, match=f"ParamAttr: learning_rate must be a number, got {rate!r}"):
            fluid.ParamAttr(learning_rate=rate)
    for trainable in ("no", None, 2):
        with pytest.raises(errors.TypeMismatch, match=f"ParamAttr: trainable must be True or False, got {trainable!r}"):
            fluid.ParamAttr(trainable=trainable)
    for rate, trainable in ((2, 0), (np.float32(0.5), np.False_), (np.int64(1), 1)):
        attr = fluid.ParamAttr(learning_rate=rate, trainable=trainable)
        parameter = fluid.layers.create_parameter([1], "float32", attr=attr)
        assert parameter.trainable is bool(trainable)
        assert parameter.optimize_attr["learning_rate"] == rate


def test_a_class_or_a_number_in_the_place_of_an_object_is_refused() -> None:
    x, loss = fluid.layers.data("x", [1]), fluid.layers.create_parameter([1], "float32", "w")
    clip, decay, xavier = fluid.clip.GradientClipByValue, fluid.regularizer.L2Decay, fluid.initializer.Xavier
    for give, message in (
        (lambda: fluid.ParamAttr(initializer=xavier), r"ParamAttr: initializer is the class XavierInitializer: create"),
        (lambda: fluid.ParamAttr(initializer=0.1), r"ParamAttr: initializer .* such as Constant\(0.1\), got 0.1"),
        (lambda: fluid.ParamAttr(regularizer=decay), r"ParamAttr: regularizer is the class L2DecayRegularizer"),
        (lambda: fluid.ParamAttr(gradient_clip=clip), r"ParamAttr: gradient_clip is the class GradientClipByValue"),
        (lambda: fluid.layers.fc(x, 1, param_attr=xavier), r"an initializer, .*Xavier.*: create an object"),
        (lambda: fluid.layers.create_parameter([1], "float32", default_initializer=xavier), r"default_initializer is"),
        (lambda: fluid.optimizer.SGD(0.1, regularization=0.1), r"SGD.*: regularization .*L2Decay\(0.1\), got 0.1"),
        (lambda: fluid.optimizer.SGD(0.1, regularization=decay), r"SGD.*: regularization is the class L2Decay"),
        (
            lambda: fluid.optimizer.SGD(0.1, grad_clip=1.0),
            r"SGD.*: grad_clip must .* GradientClipByValue\(1.0\), got 1.0",
        ),
        (lambda: fluid.optimizer.SGD(0.1).minimize(loss, grad_clip=clip), r"minimize: grad_clip is the class"),
        (lambda: fluid.clip.set_gradient_clip(clip), r"set_gradient_clip: clip is the class GradientClipByValue"),
        (lambda: fluid.clip.set_gradient_clip(None), r"set_gradient_clip: clip must be a clip, got None"),
    ):
        with pytest.raises(errors.TypeMismatch, match=message):
            give()


def test_a_function_may_take_the_place_of_an_initializer_or_clip(exe: fluid.Executor) -> None:
    def sevens(var: Variable, block: Block) -> fluid.framework.Operator:
        return fluid.initializer.Constant(7.0)(var, block)

    weight = fluid.layers.create_parameter([1], "float32", attr=fluid.ParamAttr("w", sevens))
    fluid.optimizer.SGD(1.0, grad_clip=lambda pairs: [(w, fluid.layers.scale(g, 0.5)) for w, g in pairs]).minimize(
        fluid.layers.mean(weight)
    )
    exe.run(fluid.default_startup_program())
    assert exe.run(fetch_list=[weight])[0].item() == 6.5


def test_what_is_no_clip_is_refused() -> None:
    fluid.layers.create_parameter([1], "float32", "w")
    x = fluid.layers.data("x", [1])
    clip = fluid.clip.GradientClipByValue(1.0)
    with pytest.raises(errors.TypeMismatch, match=r"ParamAttr: gradient_clip.*1\.0"):
        fluid.ParamAttr(gradient_clip=1.0)
    with pytest.raises(errors.TypeMismatch, match=r"set_gradient_clip: clip.*1\.0"):
        fluid.clip.set_gradient_clip(1.0)
    with pytest.raises(errors.TypeMismatch, match="variable 'x'"):
        fluid.clip.set_gradient_clip(clip, [x])
    with pytest.raises(errors.TypeMismatch, match="int"):
        fluid.clip.set_gradient_clip(clip, [1])
    with pytest.raises(errors.NotFound, match="'v'"):
        fluid.clip.set_gradient_clip(clip, ["v"])
    with pytest.raises(errors.InvalidArgument, match=r"min=nan and max=1.0"):
        fluid.clip.GradientClipByValue(1.0, float("nan"))
    with pytest.raises(errors.TypeMismatch, match=r"group_name.*int"):
        fluid.clip.GradientClipByGlobalNorm(1.0, 2)


def test_one_optimizer_may_serve_two_programs() -> None:
    optimizer = fluid.optimizer.Momentum(RATE, 0.9)
    for _ in range(2):
        with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
            trained(optimizer)


def test_minimize_returns_operators_and_gradients() -> None:
    _, _, loss = fed_regression()
    ops, pairs = fluid.optimizer.SGD(RATE).minimize(loss)
    assert [op.type for op in ops] == ["sgd", "sgd"]
    assert [(p.name, g.name) for p, g in pairs] == [("fc_0.w_0", "fc_0.w_0@GRAD"), ("fc_0.b_0", "fc_0.b_0@GRAD")]


def test_only_some_parameters() -> None:
    _, _, loss = fed_regression()
    _, pairs = fluid.optimizer.SGD(RATE).minimize(loss, parameter_list=["fc_0.b_0"])
    assert [p.name for p, _ in pairs] == ["fc_0.b_0"]


@pytest.mark.parametrize("parameters", [False, True])
def test_a_loss_without_parameters_is_differentiated_and_trains_nothing(exe: fluid.Executor, parameters: bool) -> None:
    x = fluid.data("x", [3])
    x.stop_gradient = False
    if parameters:
        fluid.layers.fc(fluid.layers.fill_constant([1, 2], "float32", 1.0), 2)  # that the loss does not depend on
    loss = fluid.layers.reduce_sum(fluid.layers.square(x))
    optimizer = fluid.optimizer.Adam(RATE)
    with pytest.warns(UserWarning, match=f"the loss '{loss.name}' depends on no trainable parameter"):
        assert optimizer.minimize(loss) == ([], [])
    assert optimizer.apply_gradients([]) == []
    with pytest.warns(UserWarning, match="nothing is trained"):
        fluid.optimizer.LookaheadOptimizer(optimizer).minimize(loss)
    exe.run(fluid.default_startup_program())
    (gradient,) = exe.run(feed={"x": np.array([1, 2, 3], np.float32)}, fetch_list=["x@GRAD"])
    np.testing.assert_array_equal(gradient, [2, 4, 6])


def test_persistable_variables_may_be_parameters_that_have_to_be_named() -> None:
    w = fluid.default_main_program().global_block().create_var("w", [3], "float32", persistable=True)
    loss = fluid.layers.reduce_sum(w)
    with pytest.raises(errors.InvalidArgument, match=r"no trainable parameter.* such as 'w'.*parameter_list"):
        fluid.optimizer.SGD(RATE).minimize(loss)
    with pytest.raises(errors.NotFound, match="'v'"):
        fluid.optimizer.SGD(RATE).minimize(loss, parameter_list=[w, "v"])
    assert not fluid.default_main_program().all_parameters()
    _, pairs = fluid.optimizer.SGD(RATE).minimize(loss, parameter_list=[w])
    assert [parameter.name for parameter, _ in pairs] == ["w"]


def test_a_loss_that_cannot_be_minimized_is_refused() -> None:
    x = fluid.layers.data("x", [4])
    out = fluid.layers.fc(x, 2)
    with pytest.raises(errors.InvalidArgument):
        fluid.optimizer.SGD(RATE).minimize(out)
    with pytest.raises(TypeError, match="str"):
        fluid.optimizer.SGD(RATE).minimize("loss")
    with pytest.raises(TypeError, match="learning rate"):
        fluid.optimizer.SGD("fast")


def averaged(**window: float) -> tuple[fluid.optimizer.ModelAverage, list[np.ndarray], fluid.Executor]:
    """Seven steps; the values of the parameter after each."""
    w = fluid.layers.create_parameter(
        [3], "float32", name="w", default_initializer=fluid.initializer.NumpyArrayInitializer(START)
    )
    fluid.optimizer.SGD(RATE).minimize(fluid.layers.reduce_sum(fluid.layers.square(w)))
    average = fluid.optimizer.ModelAverage(**window)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.FailedPrecondition, match="first update"), average.apply(exe):
        pass
    values = []
    for _ in range(7):
        exe.run()
        values.append(parameter())
    return average, values, exe


def parameter() -> np.ndarray:
    return np.array(fluid.global_scope().find_var("w").get_tensor())


def test_model_average_over_all_updates() -> None:
    average, values, exe = averaged(average_window_rate=1.0)
    with average.apply(exe):
        np.testing.assert_allclose(parameter(), np.mean(values, 0), rtol=1e-6)
    np.testing.assert_array_equal(parameter(), values[-1])
    with average.apply(exe, need_restore=False):
        pass
    np.testing.assert_allclose(parameter(), np.mean(values, 0), rtol=1e-6)
    average.restore(exe)
    np.testing.assert_array_equal(parameter(), values[-1])


def test_model_average_over_a_window_and_the_one_before() -> None:
    average, values, exe = averaged(average_window_rate=1.0, min_average_window=2, max_average_window=2)
    # Windows of 2 are full after 2, 4 and 6 updates: the last full one and the 7th value are left.
    with average.apply(exe):
        np.testing.assert_allclose(parameter(), np.mean(values[4:], 0), rtol=1e-6)


def test_model_average_restores_after_an_error_and_needs_parameters() -> None:
    average, values, exe = averaged(average_window_rate=1.0)
    with pytest.raises(ZeroDivisionError), average.apply(exe):
        raise ZeroDivisionError
    np.testing.assert_array_equal(parameter(), values[-1])
    clone = fluid.default_main_program().clone(for_test=True)
    assert "average_accumulates" not in [op.type for op in clone.global_block().ops]
    with fluid.program_guard(fluid.Program(), fluid.Program()), pytest.raises(ValueError, match="no parameters"):
        fluid.optimizer.ModelAverage(0.5)


def error_clipped(clip: fluid.clip.ErrorClipByValue | None, times: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of h, which has ``clip``, and of w, of which it is the double, where the loss is Σ h · times."""
    attr = fluid.ParamAttr("w", fluid.initializer.NumpyArrayInitializer(np.ones(2, np.float32)))
    w = fluid.layers.create_parameter([2], "float32", attr=attr)
    h = w * 2.0
    h._set_error_clip(clip)
    parts = [fluid.layers.elementwise_mul(h, fluid.layers.assign(np.full(2, t, np.float32))) for t in times]
    loss = fluid.layers.reduce_sum(fluid.layers.sums(parts))
    program = fluid.default_main_program().clone()  # which keeps the clip
    with fluid.program_guard(program):
        fluid.optimizer.SGD(0.0).minimize(program.global_block().var(loss.name))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    h_gradient, w_gradient = exe.run(program, fetch_list=[f"{h.name}@GRAD", "w@GRAD"])
    return h_gradient, w_gradient


@pytest.mark.parametrize(
    ("clip", "times", "expected"),
    [
        (None, [3.0], 3.0),
        (fluid.clip.ErrorClipByValue(1.0), [3.0], 1.0),
        (fluid.clip.ErrorClipByValue(1.0), [-3.0], -1.0),
        (fluid.clip.ErrorClipByValue(5.0, 4.0), [3.0], 4.0),
        (fluid.clip.ErrorClipByValue(1.0), [0.5], 0.5),
        # The gradient as a whole is clipped, not what each use adds to it.
        (fluid.clip.ErrorClipByValue(1.0), [3.0, -2.75], 0.25),
        (fluid.clip.ErrorClipByValue(1.0), [0.75, 0.75], 1.0),
    ],
    ids=["none", "above", "below", "bounds", "within", "difference", "sum"],
)
def test_the_gradient_of_a_variable_is_clipped_before_it_is_passed_on(
    clip: fluid.clip.ErrorClipByValue | None, times: list[float], expected: float
) -> None:
    h, w = error_clipped(clip, times)
    np.testing.assert_array_equal(h, [expected] * 2)
    np.testing.assert_array_equal(w, [2 * expected] * 2)


@pytest.mark.parametrize("unrolled", [True, False])
def test_the_gradient_of_a_variable_of_a_step_is_clipped_in_each(unrolled: bool) -> None:
    attr = fluid.ParamAttr("w", fluid.initializer.NumpyArrayInitializer(np.ones(1, np.float32)))
    w = fluid.layers.create_parameter([1], "float32", attr=attr)
    x = fluid.data("x", [3, 1, 1] if unrolled else [None, 1], lod_level=0 if unrolled else 1)
    rnn = fluid.layers.StaticRNN() if unrolled else fluid.layers.DynamicRNN()
    with rnn.step() if unrolled else rnn.block():
        h = fluid.layers.elementwise_mul(rnn.step_input(x), w, axis=0)
        h._set_error_clip(fluid.clip.ErrorClipByValue(1.0))
        result = h * 0.5 + fluid.layers.square(h)
        rnn.step_output(result) if unrolled else rnn.output(result)
    loss = fluid.layers.reduce_sum(rnn())
    fluid.optimizer.SGD(0.0).minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    values = np.array([0.125, 5.0, -4.0], np.float32)
    feed = values.reshape(3, 1, 1) if unrolled else fluid.create_lod_tensor(values.reshape(3, 1), [[3]])
    (got,) = exe.run(feed={"x": feed}, fetch_list=["w@GRAD"])
    # By h: 0.5 + 2 · 0.125 = 0.75, 10.5 → 1, -7.5 → -1.
    np.testing.assert_allclose(got, [0.75 * 0.125 + 1 * 5 + -1 * -4])


def test_a_test_program_has_no_error_clip() -> None:
    _, _, loss = fed_regression()
    variable = next(var for var in loss.block.vars.values() if var.name.startswith("fc_0.tmp"))
    variable.error_clip = fluid.clip.ErrorClipByValue(1.0)
    before = [op.type for op in fluid.default_main_program().global_block().ops]
    fluid.optimizer.SGD(RATE).minimize(loss)
    assert "clip" in [op.type for op in fluid.default_main_program().global_block().ops]
    test = fluid.default_main_program().clone(for_test=True)
    assert [op.type for op in test.global_block().ops] == before


def test_what_is_no_error_clip_is_refused() -> None:
    _, _, loss = fed_regression()
    variable = next(var for var in loss.block.vars.values() if var.name.startswith("fc_0.tmp"))
    variable._set_error_clip(fluid.clip.GradientClipByValue(1.0))  # type: ignore[arg-type]
    ops = len(loss.block.ops)
    with pytest.raises(errors.TypeMismatch, match=rf"'{variable.name}'.*ErrorClipByValue.*GradientClipByValue"):
        fluid.optimizer.SGD(RATE).minimize(loss)
    assert len(loss.block.ops) == ops
    variable.error_clip = None
    array = fluid.layers.array_write(variable, fluid.layers.fill_constant([1], "int64", 0))
    array.error_clip = fluid.clip.ErrorClipByValue(1.0)
    with pytest.raises(errors.TypeMismatch, match=rf"'{array.name}'.*LOD_TENSOR_ARRAY, expected a LOD_TENSOR"):
        fluid.optimizer.SGD(RATE).minimize(loss)
    with pytest.raises(errors.InvalidArgument, match=r"ErrorClipByValue: nothing lies between min=2\.0 and max=1\.0"):
        fluid.clip.ErrorClipByValue(1.0, 2.0)


@pytest.mark.parametrize("name", [None, "mine"])
def test_the_state_has_fluids_names(name: str | None) -> None:
    infix = f"{name}_" if name else ""
    optimizers: list[fluid.optimizer.Optimizer] = []
    kinds: dict[Callable[..., fluid.optimizer.Optimizer], list[str]] = {
        partial(fluid.optimizer.Momentum, momentum=0.9): ["velocity"],
        fluid.optimizer.Adagrad: ["moment"],
        fluid.optimizer.RMSProp: ["mean_grad", "mean_square", "momentum"],
        partial(fluid.optimizer.RMSProp, centered=True): ["mean_grad", "mean_square", "momentum"],
        fluid.optimizer.Adam: ["beta1_pow_acc", "beta2_pow_acc", "moment1", "moment2"],
        fluid.optimizer.Lamb: ["beta1_pow_acc", "beta2_pow_acc", "moment1", "moment2"],
        fluid.optimizer.Adamax: ["beta1_pow_acc", "inf_norm", "moment"],
        fluid.optimizer.DecayedAdagrad: ["moment"],
        fluid.optimizer.Adadelta: ["_avg_squared_grad", "_avg_squared_update"],
        fluid.optimizer.Ftrl: ["linear", "squared"],
        partial(fluid.optimizer.LarsMomentum, momentum=0.9): ["velocity"],
    }
    for optimizer, states in kinds.items():
        main = fluid.Program()
        with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
            x = fluid.layers.data("x", [3])
            loss = fluid.layers.mean(fluid.layers.fc(x, 1, bias_attr=False))
            optimizers.append(optimizer(learning_rate=0.1, name=name))
            optimizers[-1].minimize(loss)
        got = {var.name for var in main.list_vars() if var.persistable}
        made = {f"fc_0.w_0_{infix}{state}_0" for state in states}
        assert got == {"learning_rate_0", "fc_0.w_0", *made}
        assert set(optimizers[-1].get_opti_var_name_list()) == made


def test_two_optimizers_in_one_program_go_one_after_the_other(exe: fluid.Executor) -> None:
    """As in Fluid: the second goes by what the first has made of the weights."""
    layers = fluid.layers
    x = layers.data("x", [1])
    h = layers.fc(x, 1, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(3.0)), bias_attr=False)
    first = layers.mean(layers.square(h))
    fluid.optimizer.SGD(0.25).minimize(first)
    second = layers.mean(
        layers.fc(h, 1, param_attr=fluid.ParamAttr("v", fluid.initializer.Constant(2.0)), bias_attr=False)
    )
    fluid.optimizer.SGD(0.5).minimize(second)
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((1, 1), np.float32)}, fetch_list=[first, second])
    values = {name: np.array(fluid.global_scope().find_var(name).get_tensor()).item() for name in "wv"}
    assert values == {"w": (3 - 0.25 * 6) - 0.5 * 2, "v": 2 - 0.5 * 3}


def test_gradients_of_the_same_weights_are_computed_before_they_are_applied(exe: fluid.Executor) -> None:
    layers = fluid.layers
    x = layers.data("x", [1])
    h = layers.fc(x, 1, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(3.0)), bias_attr=False)
    losses = [layers.mean(layers.square(h)), layers.mean(layers.square(layers.square(h)))]
    optimizers = [fluid.optimizer.SGD(0.25), fluid.optimizer.SGD(0.125)]
    gradients = [optimizer.backward(loss) for optimizer, loss in zip(optimizers, losses)]
    for optimizer, pairs in zip(optimizers, gradients):
        optimizer.apply_gradients(pairs)
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((1, 1), np.float32)})
    (w,) = (np.array(fluid.global_scope().find_var("w").get_tensor()).item(),)
    assert w == 3 - 0.25 * 6 - 0.125 * 4 * 27


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("kind", ["model", "exponential"])
def test_averages_of_running_statistics(kind: str, averaged: bool) -> None:
    x = fluid.data("x", [None, 2])
    out = fluid.layers.batch_norm(
        x, moving_mean_name="mean", moving_variance_name="variance", do_model_average_for_mean_and_var=averaged
    )
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.reduce_mean(fluid.layers.square(out)))
    average: fluid.optimizer.ModelAverage | fluid.optimizer.ExponentialMovingAverage
    if kind == "model":
        average = fluid.optimizer.ModelAverage(1.0, 100, 100)
    else:
        average = fluid.optimizer.ExponentialMovingAverage(0.5)
        average.update()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    means = []
    for scale in (1.0, 2.0):
        exe.run(feed={"x": np.array([[scale, 3], [5 * scale, 7]], np.float32)})
        means.append(np.array(fluid.global_scope().find_var("mean").get_tensor()))
    with average.apply(exe):
        got = np.array(fluid.global_scope().find_var("mean").get_tensor())
    weights = np.array([[0.5], [0.5]] if kind == "model" else [[1 / 3], [2 / 3]])
    np.testing.assert_allclose(got, (weights * means).sum(0) if averaged else means[-1], rtol=1e-5)


@pytest.mark.parametrize(("averaged", "attr"), [(True, fluid.ParamAttr), (False, fluid.WeightNormParamAttr)])
def test_weights_of_normalised_vectors_are_averaged_only_if_asked(averaged: bool, attr: type[fluid.ParamAttr]) -> None:
    assert attr().do_model_average is averaged
    assert attr(do_model_average=True).do_model_average


def test_moving_averages_have_fluids_names() -> None:
    w = fluid.layers.create_parameter([1], "float32", name="w")
    fluid.optimizer.SGD(1.0).minimize(fluid.layers.reduce_sum(w))
    fluid.optimizer.ExponentialMovingAverage(0.5).update()
    kept = {var.name for var in fluid.default_main_program().list_vars() if var.persistable}
    assert kept == {"w", "learning_rate_0", "w_ema_0", "scheduled_ema_decay_rate", "ema_rest_0"}
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run()
    decay = fluid.global_scope().find_var("scheduled_ema_decay_rate").get_tensor()
    np.testing.assert_array_equal(np.array(decay), [0.5])


def test_applying_gradients_has_two_names() -> None:
    w = fluid.layers.create_parameter([1], "float32", name="w", default_initializer=fluid.initializer.Constant(1.0))
    loss = fluid.layers.reduce_sum(w)
    optimizer = fluid.optimizer.SGD(0.5)
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        assert len(optimizer.apply_optimize(loss, startup, optimizer.backward(loss))) == 1
    exe = fluid.Executor()
    exe.run(startup)
    exe.run(main)
    assert np.array(fluid.global_scope().find_var("w").get_tensor())[0] == 0.5


def test_averages_of_one_name_are_two() -> None:
    w = fluid.layers.create_parameter([1], "float32", name="w", default_initializer=fluid.initializer.Constant(1.0))
    fluid.optimizer.SGD(1.0).minimize(fluid.layers.reduce_sum(w))
    averages = [fluid.optimizer.ExponentialMovingAverage(decay, name="ema") for decay in (0.5, 0.75)]
    for average in averages:
        average.update()
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        exe.run()
    got = []
    for average in averages:
        with average.apply(exe):
            got.append(np.array(fluid.global_scope().find_var("w").get_tensor())[0])
    np.testing.assert_allclose(got, [-2 / 3, -4 / 7], rtol=1e-5)  # of 0 and -1


def test_the_rate_of_a_float64_program_is_not_rounded() -> None:
    w = fluid.layers.create_parameter([1], "float64", name="w", default_initializer=fluid.initializer.Constant(0.0))
    fluid.optimizer.SGD(0.1).minimize(fluid.layers.reduce_sum(w))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run()
    assert np.array(fluid.global_scope().find_var("w").get_tensor())[0] == -0.1


def test_parameters_without_a_gradient_are_left_alone() -> None:
    used, unused = (
        fluid.layers.create_parameter([1], "float32", default_initializer=fluid.initializer.Constant(1.0))
        for _ in range(2)
    )
    loss = fluid.layers.reduce_sum(used)
    gradients = fluid.gradients([loss], [used, unused])
    optimizer = fluid.optimizer.SGD(0.5, regularization=fluid.regularizer.L2Decay(1.0))
    assert len(optimizer.apply_gradients([(used, gradients[0]), (unused, None)])) == 1
    assert optimizer.apply_gradients([(unused, None)]) == []
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run()
    values = [np.array(fluid.global_scope().find_var(w.name).get_tensor())[0] for w in (used, unused)]
    assert values == [0, 1]


class Heavy(fluid.optimizer.Optimizer):
    """Momentum, and a count of the updates."""

    def __init__(self, learning_rate: float, name: str | None = None) -> None:
        super().__init__(learning_rate, name=name)
        self.type = "momentum"

    def _create_accumulators(self, block: Any, parameters: Any) -> None:
        for parameter in parameters:
            self._add_accumulator("velocity", parameter, fill_value=1.0)
        self._add_accumulator("count", parameters[0], dtype="int64", shape=[1])

    def _append_optimize_op(self, block: Any, param_and_grad: Any) -> Any:
        velocity = self._get_accumulator("velocity", param_and_grad[0])
        return block.append_op(
            type=self.type,
            inputs={
                "Param": param_and_grad[0],
                "Grad": param_and_grad[1],
                "Velocity": velocity,
                "LearningRate": self._create_param_lr(param_and_grad),
            },
            outputs={"ParamOut": param_and_grad[0], "VelocityOut": velocity},
            attrs={"mu": 0.5},
        )

    def _finish_update(self, block: Any, parameters_and_grads: Any) -> None:
        fluid.layers.increment(self._get_accumulator("count", parameters_and_grads[0][0]), 1)


@pytest.mark.parametrize("name", [None, "own"])
def test_an_optimizer_of_ones_own_updates_by_fluids_hooks(name: str | None) -> None:
    main, startup, optimizer = fluid.Program(), fluid.Program(), Heavy(0.1, name)
    with fluid.program_guard(main, startup):
        w = fluid.layers.create_parameter([1], "float32", default_initializer=fluid.initializer.Constant(2.0))
        w.optimize_attr["learning_rate"] = 2.0
        loss = fluid.layers.reduce_sum(w * 3.0)
    ops, _ = optimizer.minimize(loss, startup)  # outside its programs
    assert [op.type for op in ops] == ["scale", "momentum", "increment"]
    velocity, count = (optimizer._get_accumulator(kind, w) for kind in ("velocity", "count"))
    assert velocity.name.startswith(f"{w.name}_own_velocity" if name else f"{w.name}_velocity")
    exe = fluid.Executor()
    exe.run(startup)
    for _ in range(2):
        exe.run(main)
    now = [
        np.array(fluid.global_scope().find_var(variable.name).get_tensor()).item() for variable in (w, velocity, count)
    ]
    assert now == pytest.approx([2 - 0.2 * 3.5 - 0.2 * 4.75, 4.75, 2])
    assert "increment" not in [op.type for op in main.clone(for_test=True).global_block().ops]
    with pytest.raises(errors.NotFound, match=f"Heavy has no accumulator 'moment' for '{w.name}'"):
        optimizer._get_accumulator("moment", w)


def test_an_optimizer_may_change_the_update_of_another() -> None:
    class Doubled(fluid.optimizer.Adam):
        def _append_optimize_op(self, block: Any, param_and_grad: Any) -> Any:
            update = super()._append_optimize_op(block, param_and_grad)
            moment = self._get_accumulator("moment1", param_and_grad[0])
            block.append_op("scale", {"X": moment}, {"Out": moment}, {"scale": 2.0})
            return update

    w = fluid.layers.create_parameter([1], "float32", default_initializer=fluid.initializer.Constant(2.0))
    optimizer = Doubled()
    optimizer.minimize(fluid.layers.reduce_sum(w))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run()
    moment = fluid.global_scope().find_var(optimizer._get_accumulator("moment1", w).name).get_tensor()
    assert np.array(moment).item() == pytest.approx(0.2)


def test_an_optimizer_without_an_update_says_so() -> None:
    w = fluid.layers.create_parameter([1], "float32")
    with pytest.raises(NotImplementedError, match="Optimizer has no _append_optimize_op"):
        fluid.optimizer.Optimizer(0.1).minimize(fluid.layers.reduce_sum(w))
