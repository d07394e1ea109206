"""Learning rates that change, against their formulas, over some steps of SGD."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

STEPS = 10

Case = tuple[Callable[[], Variable], Callable[[int], float]]


def _polynomial(step: int) -> float:
    return (0.1 - 0.01) * (1 - min(step, 4) / 4) ** 2 + 0.01


def _cycling(step: int) -> float:
    steps = 3 * max(1, math.ceil(step / 3))
    return (0.1 - 0.0001) * (1 - step / steps) + 0.0001


def _piecewise(step: int) -> float:
    return 1.0 if step < 3 else 0.5 if step < 7 else 0.1


def _warmed_up(step: int) -> float:
    return 0.1 + 0.4 * step / 4 if step < 4 else _piecewise(step)


def _variable() -> Variable:
    return layers.fill_constant([1], "float32", 0.1)


CASES: dict[str, Case] = {
    # The first step is 1.
    "noam": (lambda: layers.noam_decay(64, 4), lambda s: 64**-0.5 * min((s + 1) ** -0.5, 4**-1.5 * (s + 1))),
    "exponential": (lambda: layers.exponential_decay(0.1, 3, 0.5), lambda s: 0.1 * 0.5 ** (s / 3)),
    "exponential_stairs": (lambda: layers.exponential_decay(0.1, 3, 0.5, True), lambda s: 0.1 * 0.5 ** (s // 3)),
    "exponential_of_a_variable": (
        lambda: layers.exponential_decay(_variable(), 3, 0.5),
        lambda s: 0.1 * 0.5 ** (s / 3),
    ),
    "natural_exp": (lambda: layers.natural_exp_decay(0.1, 3, 0.5), lambda s: 0.1 * math.exp(-0.5 * s / 3)),
    "natural_exp_stairs": (
        lambda: layers.natural_exp_decay(0.1, 3, 0.5, staircase=True),
        lambda s: 0.1 * math.exp(-0.5 * (s // 3)),
    ),
    "inverse_time": (lambda: layers.inverse_time_decay(0.1, 3, 0.5), lambda s: 0.1 / (1 + 0.5 * s / 3)),
    "inverse_time_stairs": (lambda: layers.inverse_time_decay(0.1, 3, 0.5, True), lambda s: 0.1 / (1 + 0.5 * (s // 3))),
    "inverse_time_of_a_variable": (
        lambda: layers.inverse_time_decay(_variable(), 3, 0.5),
        lambda s: 0.1 / (1 + 0.5 * s / 3),
    ),
    "polynomial": (lambda: layers.polynomial_decay(0.1, 4, 0.01, 2.0), _polynomial),
    "polynomial_of_a_variable": (lambda: layers.polynomial_decay(_variable(), 4, 0.01, 2.0), _polynomial),
    "polynomial_cycle": (lambda: layers.polynomial_decay(0.1, 3, cycle=True), _cycling),
    "piecewise": (lambda: layers.piecewise_decay([3, 7], [1.0, 0.5, 0.1]), _piecewise),
    "piecewise_of_one": (lambda: layers.piecewise_decay([], [0.3]), lambda s: 0.3),
    "cosine": (lambda: layers.cosine_decay(0.1, 2, 5), lambda s: 0.1 * 0.5 * (math.cos((s // 2) * math.pi / 5) + 1)),
    "warmup": (lambda: layers.linear_lr_warmup(0.3, 4, 0.1, 0.5), lambda s: 0.1 + 0.1 * s if s < 4 else 0.3),
    "warmup_of_another": (
        lambda: layers.linear_lr_warmup(layers.piecewise_decay([3, 7], [1.0, 0.5, 0.1]), 4, 0.1, 0.5),
        _warmed_up,
    ),
}


def counter() -> int:
    return int(np.asarray(fluid.global_scope().find_var("@LR_DECAY_COUNTER@").get_tensor()).item())


def minimized(rate: Variable) -> Variable:
    """The loss is the sum of a parameter, which has a gradient of 1."""
    w = layers.create_parameter([2], "float32", "w", default_initializer=fluid.initializer.Constant(0.0))
    loss = layers.reduce_sum(w)
    fluid.optimizer.SGD(rate).minimize(loss)
    return loss


@pytest.mark.parametrize("name", CASES)
def test_a_rate_follows_its_formula(exe: fluid.Executor, name: str) -> None:
    make, formula = CASES[name]
    rate = make()
    assert rate.shape == (1,)
    minimized(rate)
    exe.run(fluid.default_startup_program())
    expected = np.array([formula(step) for step in range(STEPS)])
    got = [exe.run(fetch_list=[rate])[0].item() for _ in range(STEPS)]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-8)
    w = np.array(fluid.global_scope().find_var("w").get_tensor())
    np.testing.assert_allclose(w, np.full(2, -expected.sum()), rtol=1e-5)


def test_stairs_go_down_at_each_multiple(exe: fluid.Executor) -> None:
    # 41 · (1 / 41) is less than 1 in float32.
    rate = layers.exponential_decay(1.0, 41, 0.5, staircase=True)
    exe.run(fluid.default_startup_program())
    got = [exe.run(fetch_list=[rate])[0].item() for _ in range(84)]
    assert got == [1.0] * 41 + [0.5] * 41 + [0.25] * 2


def test_rates_share_a_counter_that_a_test_leaves_alone(exe: fluid.Executor) -> None:
    layers.noam_decay(64, 4)
    loss = minimized(layers.linear_lr_warmup(layers.exponential_decay(0.1, 3, 0.5), 2, 0.0, 0.1))
    test = fluid.default_main_program().clone(for_test=True)
    exe.run(fluid.default_startup_program())
    for step in range(1, 4):
        exe.run()
        exe.run(test, fetch_list=[loss.name])
        assert counter() == step


def test_the_counter_is_saved(exe: fluid.Executor, tmp_path: Path) -> None:
    minimized(layers.cosine_decay(0.1, 2, 5))
    exe.run(fluid.default_startup_program())
    for _ in range(3):
        exe.run()
    fluid.io.save_persistables(exe, str(tmp_path))
    exe.run(fluid.default_startup_program())
    assert counter() == -1
    fluid.io.load_persistables(exe, str(tmp_path))
    exe.run()
    assert counter() == 3


def test_what_makes_no_rate_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"piecewise_decay: 2 boundaries need 3 values, got 2"):
        layers.piecewise_decay([1, 2], [0.1, 0.2])
    with pytest.raises(errors.InvalidArgument, match=r"ascending, got \[2, 1\]"):
        layers.piecewise_decay([2, 1], [0.1, 0.2, 0.3])
    for steps in (0, -1, float("nan")):
        with pytest.raises(errors.InvalidArgument, match=r"exponential_decay: decay_steps must be positive"):
            layers.exponential_decay(0.1, steps, 0.5)
    with pytest.raises(errors.TypeMismatch, match=r"cosine_decay: learning_rate must be .* got str"):
        layers.cosine_decay("0.1", 1, 1)
    with pytest.raises(errors.TypeMismatch, match=r"noam_decay: warmup_steps must be a number, got str"):
        layers.noam_decay(8, "ten")


def test_rates_have_the_names_that_programs_look_for() -> None:
    rates = [layers.piecewise_decay([2], [0.1, 0.01]) for _ in range(2)]
    warm = layers.linear_lr_warmup(rates[0], 3, 0.0, 0.1)
    assert (rates[0].name, warm.name) == ("learning_rate", "learning_rate_warmup")
    assert rates[1].name != rates[0].name
