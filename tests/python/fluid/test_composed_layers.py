"""Distributions, optimizers, and layers with state or of several operators, against the same in NumPy."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(8)


def value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor()).astype(float)


def run(exe: fluid.Executor, outs: list[Any], **feed: np.ndarray) -> list[np.ndarray]:
    exe.run(fluid.default_startup_program())
    return exe.run(feed={k: v.astype(np.float32) if v.dtype == float else v for k, v in feed.items()}, fetch_list=outs)


def fed(name: str, shape: list[int | None], dtype: str = "float32") -> Variable:
    x = fluid.data(name, shape, dtype)
    x.stop_gradient = dtype == "int64"
    return x


def test_expand_as(exe: fluid.Executor) -> None:
    x, like, known = fed("x", [None, 2]), fed("like", [None, 6]), fed("known", [1, 3])
    out, static = layers.expand_as(x, like), layers.expand_as(known, fluid.data("wide", [4, 3]))
    fluid.backward.append_backward(layers.reduce_sum(out * like) + layers.reduce_sum(static))
    a, b = RNG.normal(size=(2, 2)), RNG.normal(size=(4, 6))
    got = run(exe, [out, static, "x@GRAD"], x=a, like=b, known=np.ones((1, 3)), wide=np.zeros((4, 3)))
    np.testing.assert_allclose(got[0], np.tile(a, (2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(got[1], np.ones((4, 3)))
    np.testing.assert_allclose(got[2], b.reshape(2, 2, 3, 2).sum((0, 2)), rtol=1e-5)
    with pytest.raises(errors.InvalidArgument, match="multiple"):
        layers.expand_as(x, fluid.data("odd", [None, 5]))


def test_fsp_matrix(exe: fluid.Executor) -> None:
    x, y = fed("x", [None, 3, 2, 4]), fed("y", [None, 5, 2, 4])
    out = layers.fsp_matrix(x, y)
    a, b = RNG.normal(size=(2, 3, 2, 4)), RNG.normal(size=(2, 5, 2, 4))
    (got,) = run(exe, [out], x=a, y=b)
    np.testing.assert_allclose(got, np.einsum("nchw,ndhw->ncd", a, b) / 8, rtol=1e-4, atol=1e-6)
    with pytest.raises(errors.InvalidArgument, match="input Y"):
        layers.fsp_matrix(x, fluid.data("z", [None, 5, 4, 4]))


@pytest.mark.parametrize("dim", [0, 1])
def test_spectral_norm(exe: fluid.Executor, dim: int) -> None:
    weight = layers.create_parameter([4, 3, 2], "float32", name="weight")
    out = layers.spectral_norm(weight, dim, power_iters=50)
    toward = RNG.normal(size=(4, 3, 2)).astype(np.float32)
    fluid.backward.append_backward(layers.reduce_sum(out * layers.assign(toward)))
    got, gradient = run(exe, [out, "weight@GRAD"])
    w = value("weight")
    matrix = np.moveaxis(w, dim, 0).reshape(w.shape[dim], -1)
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    np.testing.assert_allclose(got, w / s[0], rtol=1e-3, atol=1e-5)
    outer = np.outer(u[:, 0], v[0]).reshape(np.moveaxis(w, dim, 0).shape)
    want = toward / s[0] - (toward * w).sum() / s[0] ** 2 * np.moveaxis(outer, 0, dim)
    np.testing.assert_allclose(gradient, want, rtol=1e-2, atol=1e-3)
    assert [p.name for p in fluid.default_main_program().all_parameters() if p.trainable] == ["weight"]


def test_affine_grid(exe: fluid.Executor) -> None:
    theta = fed("theta", [None, 2, 3])
    out = layers.affine_grid(theta, [-1, 3, 2, 3])
    fluid.backward.append_backward(layers.reduce_sum(out))
    a = RNG.normal(size=(2, 2, 3))
    got, gradient = run(exe, [out, "theta@GRAD"], theta=a)
    want = np.zeros((2, 2, 3, 2))
    for h, y in enumerate((-1.0, 1.0)):
        for w, x in enumerate((-1.0, 0.0, 1.0)):
            want[:, h, w] = a @ np.array([x, y, 1.0])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, np.tile([0, 0, 6], (2, 2, 1)), atol=1e-6)
    of_a_variable = layers.affine_grid(theta, fluid.data("extents", [4], dtype="int32"))
    (got,) = run(exe, [of_a_variable], theta=a, extents=np.array([2, 3, 2, 3], np.int32))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(errors.InvalidArgument, match=r"\[N, C, H, W\]"):
        layers.affine_grid(theta, [2, 3])


def test_teacher_student_sigmoid_loss(exe: fluid.Executor) -> None:
    x, label = fed("x", [None, 1]), fluid.data("label", [None, 1])
    loss = layers.teacher_student_sigmoid_loss(x, label)
    fluid.backward.append_backward(layers.reduce_sum(loss))
    scores, labels = np.array([0.3, -0.7, 1.2, 0.4, 20.0, -20.0]), np.array([-2.0, -1.0, 0.3, 1.6, 0.5, -1.0])
    got, gradient = run(exe, [loss, "x@GRAD"], x=scores[:, None], label=labels[:, None])
    want, slope = [], []
    for s, y in zip(scores, labels):
        click = float(-1 <= y < 0 or y >= 1)
        teacher = y - click if y >= 0 else None
        plain = max(s, 0) + math.log1p(math.exp(-abs(s)))
        p = 1 / (1 + math.exp(-s))
        want.append(plain - s * click + (0 if teacher is None else plain - s * teacher))
        slope.append(0 if abs(s) > 15 else p - click + (0 if teacher is None else p - teacher))
    np.testing.assert_allclose(got[:, 0], want, rtol=1e-5)
    np.testing.assert_allclose(gradient[:, 0], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("update", [True, False])
def test_center_loss(exe: fluid.Executor, tmp_path: Path, update: bool) -> None:
    x, label = fed("x", [None, 2]), fluid.data("label", [None, 1], "int64")
    loss = layers.center_loss(x, label, 3, 0.5, fluid.ParamAttr("centers"), update)
    test = fluid.default_main_program().clone(for_test=True)
    fluid.backward.append_backward(layers.reduce_sum(loss))
    exe.run(fluid.default_startup_program())
    before = value("centers")
    a, of = RNG.normal(size=(4, 2)).astype(np.float32), np.array([[0], [2], [0], [0]])
    exe.run(test, feed={"x": a, "label": of})
    np.testing.assert_array_equal(value("centers"), before)
    got, gradient = exe.run(feed={"x": a, "label": of}, fetch_list=[loss, "x@GRAD"])
    moves = a - before[of[:, 0]]
    np.testing.assert_allclose(got, 0.5 * (moves**2).sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(gradient, moves, rtol=1e-5, atol=1e-6)
    want = before.copy()
    if update:
        want[0] += 0.5 * moves[[0, 2, 3]].sum(0) / 4
        want[2] += 0.5 * moves[1] / 2
    np.testing.assert_allclose(value("centers"), want, rtol=1e-5, atol=1e-6)
    fluid.io.save_persistables(exe, str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["centerloss_alpha", "centers"]  # as in Fluid


def test_programs_have_operators_of_fluids_names(exe: fluid.Executor) -> None:
    x, label = fed("x", [None, 1]), fluid.data("label", [None, 1], "int64")
    weight, maps = layers.create_parameter([2, 3], "float32"), fluid.data("maps", [None, 3, 2, 2])
    for layer, expected in (
        (lambda: layers.expand_as(x, weight), ["expand_as"]),
        (lambda: layers.fsp_matrix(maps, maps), ["fsp"]),
        (lambda: layers.spectral_norm(weight), ["spectral_norm"]),
        (lambda: layers.teacher_student_sigmoid_loss(x, x), ["teacher_student_sigmoid_loss"]),
        (lambda: layers.center_loss(x, label, 3, 0.5, None), ["fill_constant", "center_loss"]),
    ):
        before = len(fluid.default_main_program().global_block().ops)
        layer()
        assert [op.type for op in fluid.default_main_program().global_block().ops[before:]] == expected


def test_a_gradient_penalty_of_a_normalised_weight(exe: fluid.Executor) -> None:
    """The gradient by x is w / σ, whatever x is, so that its squared length depends on w through σ alone."""
    x, weight = fed("x", [None, 3]), layers.create_parameter([3, 1], "float32", name="weight")
    out = layers.matmul(x, layers.spectral_norm(weight, power_iters=30))
    (gradient,) = fluid.gradients(out, x)
    ((_, by_weight),) = fluid.backward.append_backward(layers.reduce_sum(layers.square(gradient) * x))
    given = RNG.normal(size=(2, 3))
    got = run(exe, [gradient, by_weight], x=given)
    w = value("weight")[:, 0]
    length = np.linalg.norm(w)
    np.testing.assert_allclose(got[0], np.tile(w / length, (2, 1)), rtol=1e-5)
    total = given.sum(0)
    want = 2 * w * total / length**2 - 2 * w * (w**2 * total).sum() / length**4
    np.testing.assert_allclose(got[1][:, 0], want, rtol=1e-4, atol=1e-5)


def test_uniform_and_normal_distributions(exe: fluid.Executor) -> None:
    x = fed("x", [3])
    flat = layers.Uniform(1.0, [2.0, 3.0, 5.0])
    bell, other = layers.Normal([0.0, 1.0, 2.0], 2.0), layers.Normal(x, layers.exp(x))
    outs = [flat.entropy(), flat.log_prob(x), bell.entropy(), bell.log_prob(x), bell.kl_divergence(other)]
    draws = [flat.sample([4000], seed=3), bell.sample([4000], seed=3)]
    a = np.array([0.5, 2.0, 4.0])
    got = run(exe, [*outs, *draws], x=a)
    np.testing.assert_allclose(got[0], np.log([1, 2, 4]), rtol=1e-6)
    np.testing.assert_allclose(got[1], [-np.inf, -math.log(2), -math.log(4)], rtol=1e-6)
    np.testing.assert_allclose(got[2], [0.5 * math.log(2 * math.pi * math.e * 4)] * 3, rtol=1e-6)
    mean = np.array([0.0, 1.0, 2.0])
    np.testing.assert_allclose(got[3], -((a - mean) ** 2) / 8 - math.log(2 * math.sqrt(2 * math.pi)), rtol=1e-5)
    s = np.exp(a)
    np.testing.assert_allclose(got[4], np.log(s / 2) + (4 + (mean - a) ** 2) / (2 * s**2) - 0.5, rtol=1e-4, atol=1e-6)
    assert got[5].shape == got[6].shape == (4000, 3)
    assert (got[5] >= 1).all()
    assert (got[5] < [2, 3, 5]).all()
    np.testing.assert_allclose(got[5].mean(0), [1.5, 2, 3], rtol=0.03)
    np.testing.assert_allclose(got[6].mean(0), mean, atol=0.15)
    np.testing.assert_allclose(got[6].std(0), [2, 2, 2], rtol=0.05)


def test_samples_of_parameters_that_a_batch_gives(exe: fluid.Executor) -> None:
    mean, width = (layers.data(name, [3]) for name in ("mean", "width"))
    bell, flat = layers.Normal(mean, 2.0), layers.Uniform(mean, mean + width)
    draws = [bell.sample([4000], seed=3), flat.sample([40, 100], seed=3), bell.sample([])]
    assert [draw.shape for draw in draws] == [(4000, -1, 3), (40, 100, -1, 3), (-1, 3)]
    for rows in (2, 5):
        means, widths = np.arange(3.0 * rows).reshape(rows, 3), np.full((rows, 3), 4.0)
        bells, flats, one = run(exe, draws, mean=means, width=widths)
        assert bells.shape == (4000, rows, 3)
        np.testing.assert_allclose(bells.mean(0), means, atol=0.2)
        np.testing.assert_allclose(bells.std(0), np.full((rows, 3), 2.0), rtol=0.06)
        flats = flats.reshape(4000, rows, 3)
        assert ((means <= flats) & (flats <= means + 4)).all()
        np.testing.assert_allclose(flats.mean(0), means + 2, atol=0.2)
        assert one.shape == (rows, 3)
    with pytest.raises(errors.InvalidArgument, match=r"except for their first extent, but these have \[3, -1\]"):
        layers.Normal(layers.transpose(mean, [1, 0]), 1.0).sample([2])
    with pytest.raises(errors.InvalidArgument, match=r"not compatible: \[\[2, 3\], \[3, 2\]\]"):
        layers.Uniform(np.zeros((2, 3)), np.ones((3, 2))).sample([2])


def test_samples_of_one_distribution_have_the_shape_that_is_asked_for(exe: fluid.Executor) -> None:
    bell, flat = layers.Normal(5.0, 2), layers.Uniform(1, 3.0)
    draws = [bell.sample([4000], seed=3), flat.sample([40, 100], seed=3), bell.sample([])]
    assert [draw.shape for draw in draws] == [(4000,), (40, 100), (1,)]
    bells, flats, _ = run(exe, draws)
    np.testing.assert_allclose([bells.mean(), bells.std(), flats.mean()], [5, 2, 2], rtol=0.05)


def test_distributions_of_classes_and_of_several_dimensions(exe: fluid.Executor) -> None:
    x, y = fed("x", [2, 3]), fed("y", [2, 3])
    one, two = layers.Categorical(x), layers.Categorical(y)
    wide = [
        layers.MultivariateNormalDiag(loc, np.diag(s))
        for loc, s in (([1.0, 2.0], [2.0, 0.5]), ([0.0, 3.0], [1.0, 4.0]))
    ]
    outs = [one.entropy(), one.kl_divergence(two), wide[0].entropy(), wide[0].kl_divergence(wide[1])]
    a, b = RNG.normal(size=(2, 2, 3))
    got = run(exe, outs, x=a, y=b)
    p, q = (np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in (a, b))
    np.testing.assert_allclose(got[0], -(p * np.log(p)).sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(got[1], (p * np.log(p / q)).sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_allclose(got[2], [0.5 * (2 * (1 + math.log(2 * math.pi)) + math.log(1.0))], rtol=1e-5)
    want = 0.5 * (2 / 1 + 0.5 / 4 + 1 / 1 + 1 / 4 - 2 + math.log(4 / 1))
    np.testing.assert_allclose(got[3], [want], rtol=1e-5)
    with pytest.raises(errors.TypeMismatch, match="Categorical"):
        one.kl_divergence(layers.Normal(0.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match=r"\[D, D\]"):
        layers.MultivariateNormalDiag([1.0, 2.0], [1.0])


def weights(exe: fluid.Executor, optimizer: Any, steps: int) -> list[np.ndarray]:
    """The weight before and after each step of a loss whose gradient is 2 · w."""
    weight = layers.create_parameter([2], "float32", name="weight")
    optimizer.minimize(layers.reduce_sum(layers.square(weight)))
    exe.run(fluid.default_startup_program())
    seen = [value("weight")]
    for _ in range(steps):
        exe.run()
        seen.append(value("weight"))
    return seen


def test_lookahead(exe: fluid.Executor) -> None:
    inner = fluid.optimizer.SGD(0.1)
    seen = weights(exe, fluid.optimizer.LookaheadOptimizer(inner, alpha=0.25, k=3), 7)
    slow = fast = seen[0]
    for step in range(1, 8):
        fast = fast - 0.1 * 2 * fast
        if step % 3 == 0:
            slow = slow + 0.25 * (fast - slow)
            fast = slow
        np.testing.assert_allclose(seen[step], fast, rtol=1e-5)
    for alpha, k, part in ((2.0, 3, "alpha"), (0.5, 0, "k has")):
        with pytest.raises(errors.InvalidArgument, match=part):
            fluid.optimizer.LookaheadOptimizer(inner, alpha, k)
    with pytest.raises(errors.TypeMismatch, match="wraps an optimizer"):
        fluid.optimizer.LookaheadOptimizer(3)


def test_lookahead_takes_statistics_along_and_has_fluids_names(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, 2])
    out = layers.batch_norm(layers.fc(x, 2, param_attr="w", bias_attr=False), moving_mean_name="mean")
    fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(0.0), alpha=0.5, k=2).minimize(layers.reduce_mean(out))
    kept = {var.name: var.dtype for var in fluid.default_main_program().list_vars() if var.persistable}
    assert {"w@SLOW", "mean@SLOW"} <= set(kept)
    types = fluid.core.VarDesc.VarType
    assert [kept[f"lookahead_{what}"] for what in ("k", "alpha", "step")] == [types.INT32, types.FP32, types.INT32]
    exe.run(fluid.default_startup_program())
    means = [value("mean")]
    for _ in range(2):
        exe.run(feed={"x": np.array([[1, 2], [3, 5]], np.float32)})
        means.append(value("mean"))
    batch = (means[1] - means[0]) / 0.1
    np.testing.assert_allclose(means[2], 0.5 * (means[1] + 0.1 * (batch - means[1])), rtol=1e-4)
    np.testing.assert_array_equal(value("lookahead_step"), [2])


def test_two_lookaheads_of_one_program_count_by_themselves(exe: fluid.Executor) -> None:
    weight = layers.create_parameter([1], "float32", name="weight")
    for k in (2, 3):
        optimizer = fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(0.1), k=k)
        optimizer.minimize(layers.reduce_sum(layers.square(weight)))
    exe.run(fluid.default_startup_program())
    exe.run()
    names = [var.name for var in fluid.default_main_program().list_vars() if var.name.startswith("lookahead_step")]
    assert len(names) == 2
    assert [value(name).item() for name in names] == [1, 1]


def test_programs_that_are_built_alike_share_a_lookahead(exe: fluid.Executor) -> None:
    programs, startup = [fluid.Program(), fluid.Program()], fluid.Program()
    for program in programs:
        with fluid.program_guard(program, startup), fluid.unique_name.guard():
            weight = layers.create_parameter(
                [1], "float32", name="weight", default_initializer=fluid.initializer.Constant(0.0)
            )
            optimizer = fluid.optimizer.LookaheadOptimizer(fluid.optimizer.SGD(1.0), alpha=0.5, k=3)
            optimizer.minimize(layers.reduce_sum(layers.scale(weight, -1.0)))
    exe.run(startup)
    seen = []
    for step in range(6):
        exe.run(programs[step % 2])
        seen.append(value("weight").item())
    assert seen == [1.0, 2.0, 1.5, 2.5, 3.5, 3.0]


def test_recompute_is_the_optimizer_that_it_wraps(exe: fluid.Executor) -> None:
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    optimizer._set_checkpoints(["weight"])
    seen = weights(exe, optimizer, 2)
    np.testing.assert_allclose(seen[2], seen[0] * 0.8**2, rtol=1e-5)


def test_recompute_in_two_parts(exe: fluid.Executor) -> None:
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    weight = layers.create_parameter([3], "float32", name="weight", default_initializer=fluid.initializer.Constant(2.0))
    squares = layers.square(weight)
    pairs = optimizer.backward(layers.reduce_sum(squares), None, None, None, checkpoints=[squares])
    assert [parameter.name for parameter, _ in pairs] == ["weight"]
    optimizer.apply_gradients(pairs)
    run(exe, [])
    np.testing.assert_allclose(value("weight"), 2.0 - 0.1 * 4.0, rtol=1e-6)


def test_recompute_clips_gradients(exe: fluid.Executor) -> None:
    weight = layers.create_parameter([3], "float32", name="weight", default_initializer=fluid.initializer.Constant(2.0))
    optimizer = fluid.optimizer.RecomputeOptimizer(fluid.optimizer.SGD(0.1))
    clip = fluid.clip.GradientClipByValue(0.5)
    optimizer.minimize(layers.reduce_sum(layers.square(weight)), grad_clip=clip)
    run(exe, [])
    np.testing.assert_allclose(value("weight"), 2.0 - 0.1 * 0.5, rtol=1e-6)


def test_private_gradient_descent(exe: fluid.Executor) -> None:
    seen = weights(exe, fluid.optimizer.Dpsgd(0.1, clip=0.5, batch_size=2.0, sigma=0.2), 200)
    noise = []
    for before, after in zip(seen, seen[1:]):
        gradient = 2 * before
        clipped = gradient / max(1.0, float(np.linalg.norm(gradient)) / 0.5)
        rest = (before - after) / 0.1 - clipped
        assert rest[0] == pytest.approx(rest[1], abs=1e-4)  # one number for all elements
        noise.append(rest[0])
    assert np.std(noise) == pytest.approx(0.1, rel=0.3)
    with pytest.raises(errors.InvalidArgument, match="clip"):
        fluid.optimizer.Dpsgd(clip=0.0)


def test_private_gradient_descent_of_float64_without_noise(exe: fluid.Executor) -> None:
    three = fluid.initializer.Constant(3.0)
    weight = layers.create_parameter([2], "float64", name="weight", default_initializer=three)
    fluid.optimizer.Dpsgd(0.125, clip=4.0, sigma=0.0).minimize(layers.reduce_sum(layers.square(weight)))
    exe.run(fluid.default_startup_program())
    expected = np.full(2, 3.0)
    for _ in range(6):
        exe.run()
        gradient = 2 * expected
        expected = expected - 0.125 * gradient * min(1.0, 4.0 / float(np.linalg.norm(gradient)))
    assert value("weight").dtype == np.float64
    np.testing.assert_allclose(value("weight"), expected, rtol=1e-12)


def test_gradients_with_noise_are_dense(exe: fluid.Executor) -> None:
    words = layers.data("words", [1], dtype="int64")
    loss = layers.mean(layers.embedding(words, [10, 4], is_sparse=True))
    with pytest.raises(TypeError, match=r"is sparse, expected a dense one.*Pass is_sparse=False"):
        fluid.optimizer.Dpsgd(0.1).minimize(loss)
