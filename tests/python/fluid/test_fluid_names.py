"""Layers and functions that are short for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers, nets
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(4)


def run(exe: fluid.Executor, outs: list[Variable], **feed: Any) -> list[np.ndarray]:
    exe.run(fluid.default_startup_program())
    return exe.run(feed=feed, fetch_list=outs)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_sum_zeros_ones_and_rank(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, 3])
    x.stop_gradient = False
    given = fluid.default_main_program().global_block().create_var(name="given", dtype="float32")
    outs = [layers.sum(x), layers.sum([x, x]), layers.zeros_like(x), layers.ones_like(x, given), layers.rank(x)]
    assert outs[3] is given
    assert outs[2].stop_gradient
    assert outs[3].stop_gradient
    a = RNG.normal(size=(2, 3)).astype(np.float32)
    got = run(exe, outs, x=a)
    for value, want in zip(got, (a, 2 * a, 0 * a, np.ones_like(a), np.int32(2))):
        np.testing.assert_array_equal(value, want)
        assert value.dtype == want.dtype


def test_lod_append(exe: fluid.Executor) -> None:
    x, level = layers.data("x", [1], lod_level=1), fluid.data("level", [None], "int32")
    outs = [layers.lod_append(x, [0, 2, 2, 3]), layers.lod_append(x, level)]
    assert [out.lod_level for out in outs] == [2, 2]
    rows = fluid.create_lod_tensor(np.zeros((3, 1), np.float32), [[1, 2]], fluid.CPUPlace())
    feed = {"x": rows, "level": np.array([0, 2, 2, 3], np.int32)}
    for value in exe.run(feed=feed, fetch_list=outs, return_numpy=False):
        assert value.recursive_sequence_lengths() == [[1, 2], [2, 0, 1]]


def test_losses(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [4, 3]), fluid.data("y", [4, 3])
    label = fluid.data("label", [4, 1], "int64")
    a, b = (RNG.normal(size=(4, 3)).astype(np.float32) for _ in range(2))
    of = np.array([[0], [2], [1], [2]], np.int64)
    outs = [layers.mse_loss(x, y), layers.dice_loss(layers.softmax(x), label), layers.npair_loss(x, y, label, 0.01)]
    mse, dice, npair = run(exe, outs, x=a, y=b, label=of)
    np.testing.assert_allclose(mse, [((a - b) ** 2).mean()], rtol=1e-5)
    p, chosen = softmax(a), np.eye(3)[of[:, 0]]
    want = 1 - 2 * (p * chosen).sum(1) / (p.sum(1) + chosen.sum(1) + 1e-5)
    np.testing.assert_allclose(dice, [want.mean()], rtol=1e-5)
    alike = (of == of.T) / (of == of.T).sum(1, keepdims=True)
    entropy = -(alike * np.log(softmax(a @ b.T))).sum(1, keepdims=True)
    want = (alike * entropy).sum(0).mean() + 0.25 * 0.01 * ((a**2).sum(1).mean() + (b**2).sum(1).mean())
    np.testing.assert_allclose(npair, [want], rtol=1e-5)


def test_image_resize_short() -> None:
    assert layers.image_resize_short(fluid.data("x", [None, 3, 6, 9]), 4).shape == (-1, 3, 4, 6)
    assert layers.image_resize_short(fluid.data("y", [None, 3, 9, 6]), 3, "NEAREST").shape == (-1, 3, 5, 3)
    with pytest.raises(errors.InvalidArgument, match="'z'"):
        layers.image_resize_short(fluid.data("z", [None, 3, None, 6]), 4)


def test_the_number_of_the_run(exe: fluid.Executor) -> None:
    shown = layers.scale(layers.cast(layers.autoincreased_step_counter(), "float32"), 2.0)
    other = layers.autoincreased_step_counter("other", begin=10, step=5)
    assert layers.autoincreased_step_counter() is layers.autoincreased_step_counter()
    exe.run(fluid.default_startup_program())
    got = [exe.run(fetch_list=[shown, other]) for _ in range(3)]
    assert [(float(a[0]), int(b[0])) for a, b in got] == [(2, 14), (4, 19), (6, 24)]


def test_nets_of_images(exe: fluid.Executor) -> None:
    image = fluid.data("image", [None, 3, 8, 8])
    out = nets.img_conv_group(
        image,
        [4, 5],
        2,
        conv_padding=[1, 0],
        conv_act="relu",
        conv_with_batchnorm=[True, False],
        conv_batchnorm_drop_rate=0.5,
        pool_stride=2,
    )
    assert out.shape == (-1, 5, 3, 3)
    types = [op.type for op in fluid.default_main_program().global_block().ops]
    assert types == [
        *("conv2d", "elementwise_add", "batch_norm", "relu", "dropout"),
        *("conv2d", "elementwise_add", "relu", "pool2d"),
    ]
    (value,) = run(exe, [out], image=RNG.normal(size=(2, 3, 8, 8)).astype(np.float32))
    assert value.shape == (2, 5, 3, 3)
    with pytest.raises(errors.InvalidArgument, match="conv_padding"):
        nets.img_conv_group(image, [4, 5], 2, conv_padding=[1])


def test_nets_of_sequences(exe: fluid.Executor) -> None:
    x = layers.data("x", [4], lod_level=1)
    attr = fluid.ParamAttr("filters")
    outs = [
        nets.sequence_conv_pool(x, 3, 3, param_attr=attr, bias_attr=False),
        layers.sequence_pool(layers.sequence_conv(x, 3, 3, param_attr=attr, bias_attr=False, act="sigmoid"), "max"),
        layers.sequence_pool(layers.sequence_conv(x, 3, 3, 1, True, 0, False, attr), "sum"),
    ]
    rows = RNG.normal(size=(3, 4)).astype(np.float32)
    got = run(exe, outs, x=fluid.create_lod_tensor(rows, [[1, 2]], fluid.CPUPlace()))
    np.testing.assert_array_equal(got[0], got[1])
    # Rows from the one that they are around on.
    filters = np.array(fluid.global_scope().find_var("filters").get_tensor()).reshape(3, 4, 3)
    np.testing.assert_allclose(got[2][0], rows[0] @ filters[0], rtol=1e-5)


def test_gated_linear_units(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, 6])
    a = RNG.normal(size=(2, 6)).astype(np.float32)
    (got,) = run(exe, [nets.glu(x)], x=a)
    np.testing.assert_allclose(got, a[:, :3] / (1 + np.exp(-a[:, 3:])), rtol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_attention(exe: fluid.Executor, heads: int) -> None:
    q, k, v = fluid.data("q", [None, 2, 4]), fluid.data("k", [None, 3, 4]), fluid.data("v", [None, 3, 6])
    out = nets.scaled_dot_product_attention(q, k, v, heads)
    assert out.shape == (-1, 2, 6)
    feed = {name: RNG.normal(size=(2, *var.shape[1:])).astype(np.float32) for name, var in zip("qkv", (q, k, v))}
    (got,) = run(exe, [out], **feed)
    parts = list(feed.values())
    if heads > 1:
        parameters = fluid.default_main_program().all_parameters()
        values = [np.array(fluid.global_scope().find_var(p.name).get_tensor()) for p in parameters]
        parts = [x @ w + b for x, w, b in zip(parts, values[::2], values[1::2])]
    want = []
    for a, b, c in zip(*(np.split(x, heads, -1) for x in parts)):
        want.append(softmax(a @ b.swapaxes(1, 2) * (4 // heads) ** -0.5) @ c)
    np.testing.assert_allclose(got, np.concatenate(want, -1), rtol=1e-4)
    types = [op.type for op in fluid.default_main_program().global_block().ops]
    nets.scaled_dot_product_attention(q, k, v, heads, dropout_rate=0.1)
    assert "dropout" in [op.type for op in fluid.default_main_program().global_block().ops[len(types) :]]


@pytest.mark.parametrize(
    ("shapes", "heads", "part"),
    [
        ([[4], [3, 4], [3, 4]], 1, "3 dimensions"),
        ([[2, 5], [3, 4], [3, 4]], 1, "same width"),
        ([[2, 4], [3, 4], [2, 4]], 1, "as many"),
        ([[2, 4], [3, 4], [3, 6]], 4, "4 heads"),
    ],
)
def test_attention_refuses_what_does_not_fit(shapes: list[list[int]], heads: int, part: str) -> None:
    q, k, v = (fluid.data(name, [None, *shape]) for name, shape in zip("qkv", shapes))
    with pytest.raises(errors.InvalidArgument, match=part):
        nets.scaled_dot_product_attention(q, k, v, heads)


def test_bilinear_filters_resize_images(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, 1, 3, 3])
    attr = fluid.ParamAttr("w", fluid.initializer.Bilinear())
    out = layers.conv2d_transpose(x, 1, filter_size=4, padding=1, stride=2, param_attr=attr, bias_attr=False)
    (got,) = run(exe, [out], x=np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3))
    w = np.array([0.25, 0.75, 0.75, 0.25])
    np.testing.assert_allclose(fluid.global_scope().find_var("w").get_tensor(), np.outer(w, w)[None, None])
    # Linear inside: a step of 1/2 along rows, and 3/2 along columns.
    np.testing.assert_allclose(np.diff(got[0, 0, 1:-1, 1:-1]), 0.5, rtol=1e-6)
    np.testing.assert_allclose(np.diff(got[0, 0, 1:-1, 1:-1], axis=0), 1.5, rtol=1e-6)
    with pytest.raises(errors.InvalidArgument, match=r"\[2, 3\]"):
        layers.create_parameter([2, 3], "float32", attr=fluid.ParamAttr(initializer=fluid.initializer.Bilinear()))


def test_integers_are_divided_as_fluid_does(exe: fluid.Executor) -> None:
    n, m = fluid.data("n", [None, 2], "int64"), fluid.data("m", [None, 2], "int64")
    x = fluid.data("x", [None, 2])
    a, b = np.array([[7, -7], [2**62, 8]]), np.array([[2, 2], [3, -3]])
    c = np.array([[7.5, -7.5], [2.0, 3.0]], np.float32)
    outs = [n / 7, n / 2.0, n // m, n % m, n // 2, n % 3, x // 2.0, x % 2, x**2, n / m]
    got = run(exe, outs, n=a, m=b, x=c)
    quotient = np.array([[3, -3], [2**62 // 3, -2]])
    wants = [[[1, -1], [2**62 // 7, 1]], [[3, -3], [2**61, 4]], quotient, a - quotient * b, [[3, -3], [2**61, 4]]]
    wants += [[[1, -1], [2**62 % 3, 2]], np.trunc(c / 2), np.mod(c, 2), c**2, quotient]
    for value, want in zip(got, wants):
        np.testing.assert_array_equal(value, want)
    with pytest.raises(errors.TypeMismatch, match="int64"):
        n / 2.5
    with pytest.raises(errors.InvalidArgument, match="0"):
        n / 0


def test_variables_are_compared(exe: fluid.Executor) -> None:
    x, y, n = fluid.data("x", [None]), fluid.data("y", [None]), fluid.data("n", [None], "int64")
    a, b = np.array([1, 2, 3], np.float32), np.array([2, 2, 2], np.float32)
    outs = [x < y, x <= y, x > y, x >= y, x < 2.5, x >= 2, n > 1]
    assert all(out.stop_gradient and out.dtype == fluid.core.VarDesc.VarType.BOOL for out in outs)
    got = run(exe, outs, x=a, y=b, n=a.astype(np.int64))
    for value, want in zip(got, [a < b, a <= b, a > b, a >= b, a < 2.5, a >= 2, a > 1]):
        np.testing.assert_array_equal(value, want)
    with pytest.raises(errors.TypeMismatch, match="no value while the program is being built"):
        assert x < y


def test_a_batch_meets_a_batch(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None])
    a, b = RNG.normal(size=(2, 3)).astype(np.float32), np.array([1, 2], np.float32)
    (got,) = run(exe, [x * y], x=a, y=b)
    np.testing.assert_array_equal(got, a * b[:, None])


def test_a_program_without_parameters_has_gradients(exe: fluid.Executor) -> None:
    x = fluid.data("x", [3])
    x.stop_gradient = False
    middle = layers.square(x)
    made = layers.fill_constant([3], "float32", 2.0)
    made.stop_gradient = False
    loss = layers.reduce_sum(middle * made)
    layers.relu(layers.sigmoid(made))  # not on the way
    assert fluid.backward.append_backward(loss) == []
    a = np.array([1, 2, 3], np.float32)
    names = ["x@GRAD", f"{middle.name}@GRAD", f"{made.name}@GRAD"]
    got = exe.run(feed={"x": a}, fetch_list=names)
    for value, want in zip(got, (4 * a, [2, 2, 2], a * a)):
        np.testing.assert_array_equal(value, want)


def test_a_loss_that_nothing_differentiates_has_a_gradient_of_its_own(exe: fluid.Executor) -> None:
    loss = layers.reduce_sum(fluid.data("x", [3]))
    assert fluid.backward.append_backward(loss) == []
    with pytest.warns(UserWarning, match="no trainable parameter"):
        assert fluid.optimizer.SGD(0.1).minimize(loss) == ([], [])


@pytest.mark.parametrize("what", ["callbacks", "checkpoints"])
def test_callbacks_and_checkpoints_are_refused(what: str) -> None:
    loss = layers.mean(layers.fc(fluid.data("x", [None, 3]), 1))
    with pytest.raises(errors.Unimplemented, match=what):
        fluid.backward.append_backward(loss, **{what: [loss]})
    assert fluid.backward.append_backward(loss, callbacks=None, checkpoints=None)


def updated(exe: fluid.Executor, optimizer: fluid.optimizer.Optimizer, **kwargs: Any) -> np.ndarray:
    init = fluid.initializer.NumpyArrayInitializer(np.array([3.0, -4.0], np.float32))
    w = layers.create_parameter([2], "float32", name="w", default_initializer=init)
    optimizer.minimize(layers.reduce_sum(layers.square(w)), **kwargs)
    exe.run(fluid.default_startup_program())
    exe.run()
    return np.array(fluid.global_scope().find_var("w").get_tensor())


def test_minimize_clips_gradients(exe: fluid.Executor) -> None:
    own = fluid.clip.GradientClipByValue(0.25)
    clip = fluid.clip.GradientClipByValue(0.5)
    np.testing.assert_allclose(updated(exe, fluid.optimizer.SGD(1.0, grad_clip=own), grad_clip=clip), [2.5, -3.5])


def test_l1_decay(exe: fluid.Executor) -> None:
    decay = fluid.regularizer.L1Decay(0.5)
    assert isinstance(decay, fluid.regularizer.L1DecayRegularizer)
    np.testing.assert_allclose(updated(exe, fluid.optimizer.SGD(0.1, decay)), [3 - 0.65, -4 + 0.85], rtol=1e-6)


def test_the_name_of_an_optimizer_follows_its_regularization() -> None:
    loss = layers.mean(layers.fc(fluid.data("x", [None, 3]), 1))
    fluid.optimizer.Momentum(0.1, 0.9, False, None, "mine").minimize(loss)
    assert any("mine_velocity" in v.name for v in fluid.default_main_program().list_vars())


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exponential_moving_average(exe: fluid.Executor, scheduled: bool, dtype: str) -> None:
    w = layers.create_parameter([2, 3], dtype, name="w")
    w0 = layers.reduce_sum(layers.square(w))
    fluid.optimizer.SGD(0.1).minimize(w0)
    steps = layers.autoincreased_step_counter() if scheduled else None
    average = fluid.optimizer.ExponentialMovingAverage(0.3, steps, "ema")
    average.update()
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.FailedPrecondition, match="first update"), average.apply(exe):
        pass

    def parameter() -> np.ndarray:
        return np.array(fluid.global_scope().find_var("w").get_tensor())

    mean, rest = np.zeros((2, 3)), 1.0
    for step in range(1, 5):
        exe.run()
        decay = min(0.3, (1 + step) / (10 + step)) if scheduled else 0.3
        mean, rest = decay * mean + (1 - decay) * parameter(), rest * decay
    last = parameter()
    with average.apply(exe):
        np.testing.assert_allclose(parameter(), mean / (1 - rest), rtol=1e-5)
    np.testing.assert_array_equal(parameter(), last)
    clone = fluid.default_main_program().clone(for_test=True)
    assert "assign" not in [op.type for op in clone.global_block().ops]
    with fluid.program_guard(fluid.Program(), fluid.Program()), pytest.raises(ValueError, match="no parameters"):
        fluid.optimizer.ExponentialMovingAverage()
    with pytest.raises(errors.InvalidArgument, match="decay"):
        fluid.optimizer.ExponentialMovingAverage(1.0)


def test_a_block_creates_parameters_with_initial_values(exe: fluid.Executor) -> None:
    block = fluid.default_main_program().global_block()
    p = block.create_parameter(
        shape=[2, 3], dtype="float32", name="p", lod_level=1, initializer=fluid.initializer.Constant(2.0)
    )
    assert (p.lod_level, p.persistable, block.ops[0].type) == (1, True, "fill_constant")
    attrs = {"optimize_attr": {"learning_rate": 0.5}, "initializer": fluid.initializer.Constant(3.0)}
    again = block.create_parameter([2, 3], "float32", "p", lod_level=1, **attrs)
    assert again.optimize_attr == {"learning_rate": 0.5}
    assert len(block.ops) == 1  # the value is given once
    other = block.create_parameter([2], "float32")
    assert other.name != p.name
    assert block.all_parameters() == [again, other]
