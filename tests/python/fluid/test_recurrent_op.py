"""The operator recurrent, as Fluid's StaticRNN appends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid.core import VarType
from headrace.fluid.framework import Block, Variable

layers = fluid.layers
STEPS, N, WIDTH = 4, 3, 2
RNG = np.random.default_rng(7)
X = RNG.uniform(-1, 1, (STEPS, N, WIDTH))
H0 = RNG.uniform(-1, 1, (N, WIDTH))
W, U = RNG.uniform(-1, 1, (2, WIDTH, WIDTH))
Wires = tuple[str, str]  # the states: before and after a step


def variable(name: str, shape: list[int]) -> Variable:
    block = fluid.default_main_program().global_block()
    return block.create_var(name, shape, "float64", stop_gradient=False)


def elman(block: Block) -> Wires:
    """h = tanh(x · w + before · u), which is the step's output, too."""
    names = {name: block.create_var(name, dtype="float64").name for name in ("xw", "hu", "sum", "h")}
    block.append_op("mul", {"X": "x", "Y": "w"}, {"Out": names["xw"]})
    block.append_op("mul", {"X": "before", "Y": "u"}, {"Out": names["hu"]})
    block.append_op("elementwise_add", {"X": "xw", "Y": "hu"}, {"Out": "sum"})
    block.append_op("tanh", {"X": "sum"}, {"Out": "h"})
    block.create_var("out", dtype="float64")
    block.append_op("rnn_memory_helper", {"X": "h"}, {"Out": "out"})
    return "before", "h"


def recurrent(
    step: Callable[[Block], Wires] = elman, out: str = "out", known: bool = True, **attrs: Any
) -> tuple[Variable, Block]:
    steps = STEPS if known else -1
    program = fluid.default_main_program()
    variable("x", [steps, N, WIDTH])
    variable("h0", [N, WIDTH])
    for name in ("w", "u"):
        variable(name, [WIDTH, WIDTH])
    result = variable(out, [steps, N, WIDTH])
    block = program._create_block()
    for name in ("x", "before"):
        block.create_var(name, [N, WIDTH], "float64", stop_gradient=False)
    before, after = step(block)
    program._rollback()
    program.global_block().append_op(
        "recurrent",
        {"inputs": "x", "initial_states": "h0", "parameters": ["w", "u"]},
        {"outputs": out},
        {"sub_block": block, "ex_states": [before], "states": [after], **attrs},
    )
    return result, block


FEED = {"x": X, "h0": H0, "w": W, "u": U}


def reference(x: np.ndarray = X) -> np.ndarray:
    h, out = H0, []
    for row in x:
        h = np.tanh(row @ W + h @ U)
        out.append(h)
    return np.array(out)


@pytest.mark.parametrize("known", [True, False])
def test_it_runs_the_block_for_each_step(exe: fluid.Executor, known: bool) -> None:
    out, _ = recurrent(known=known)
    (value,) = exe.run(feed=FEED, fetch_list=[out])
    np.testing.assert_allclose(value, reference())
    if not known:
        (value,) = exe.run(feed={**FEED, "x": X[:2]}, fetch_list=[out])
        np.testing.assert_allclose(value, reference(X[:2]))


def test_in_reverse(exe: fluid.Executor) -> None:
    out, _ = recurrent(reverse=True)
    (value,) = exe.run(feed=FEED, fetch_list=[out])
    np.testing.assert_allclose(value, reference(X[::-1])[::-1])


def check_gradients(exe: fluid.Executor, out: Variable, names: list[str]) -> None:
    """Against central differences."""
    weights = variable("weights", list(out.shape))
    weights.stop_gradient = True
    loss = layers.reduce_sum(layers.elementwise_mul(out, weights))
    pairs = fluid.backward.append_backward(loss, names)
    assert [p.name for p, _ in pairs] == sorted(names, key=["x", "h0", "w", "u"].index)
    feed = {**{k: v.copy() for k, v in FEED.items()}, "weights": RNG.uniform(-1, 1, X.shape)}
    gradients = exe.run(feed=feed, fetch_list=[gradient for _, gradient in pairs])
    again = exe.run(feed=feed, fetch_list=[gradient for _, gradient in pairs])
    for (parameter, _), gradient, repeated in zip(pairs, gradients, again):
        np.testing.assert_array_equal(gradient, repeated)
        value = feed[parameter.name]
        for at in np.ndindex(value.shape):
            kept, losses = value[at], []
            for change in (1e-6, -1e-6):
                value[at] = kept + change
                losses.append(float(exe.run(feed=feed, fetch_list=[loss])[0][0]))
            value[at] = kept
            assert gradient[at] == pytest.approx((losses[0] - losses[1]) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("names", [["x", "h0", "w", "u"], ["w"], ["h0"], ["x"]], ids=" ".join)
def test_gradients(exe: fluid.Executor, names: list[str], reverse: bool) -> None:
    out, _ = recurrent(reverse=reverse)
    check_gradients(exe, out, names)


def test_gradients_of_a_state_that_is_the_output_and_is_used_twice(exe: fluid.Executor) -> None:
    def step(block: Block) -> Wires:
        for name in ("xw", "hu", "product", "h"):
            block.create_var(name, dtype="float64")
        block.append_op("mul", {"X": "x", "Y": "w"}, {"Out": "xw"})
        block.append_op("mul", {"X": "before", "Y": "u"}, {"Out": "hu"})
        block.append_op("elementwise_mul", {"X": "hu", "Y": "before"}, {"Out": "product"})
        block.append_op("elementwise_add", {"X": "product", "Y": "xw"}, {"Out": "h"})
        return "before", "h"

    out, _ = recurrent(step, out="h")
    check_gradients(exe, out, ["x", "h0", "w", "u"])


def test_a_state_that_no_parameter_reaches_counts_steps(exe: fluid.Executor) -> None:
    def step(block: Block) -> Wires:
        for name in ("next", "out"):
            block.create_var(name, dtype="float64")
        block.append_op("scale", {"X": "before"}, {"Out": "next"}, {"bias": 1.0})
        block.append_op("elementwise_mul", {"X": "x", "Y": "next"}, {"Out": "out"})
        return "before", "next"

    out, _ = recurrent(step)
    (value,) = exe.run(feed=FEED, fetch_list=[out])
    np.testing.assert_allclose(value, X * (H0 + np.arange(1, STEPS + 1)[:, None, None]))
    check_gradients(exe, out, ["x"])


def test_a_step_may_have_a_loop(exe: fluid.Executor) -> None:
    """Each step makes its state 1.5 times as large in each of three turns."""

    def step(block: Block) -> Wires:
        i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
        h = layers.elementwise_add(
            layers.mul(block.var("x"), block.program.global_block().var("w")), block.var("before")
        )
        more = layers.less_than(i, n)
        loop = layers.While(more)
        with loop.block():
            layers.assign(layers.scale(h, 1.5), h)
            layers.increment(i)
            layers.less_than(i, n, cond=more)
        block.create_var("out", dtype="float64")
        block.append_op("rnn_memory_helper", {"X": h}, {"Out": "out"})
        return "before", h.name

    out, _ = recurrent(step)
    h, expected = H0, []
    for row in X:
        h = (row @ W + h) * 1.5**3
        expected.append(h)
    (value,) = exe.run(feed=FEED, fetch_list=[out])
    np.testing.assert_allclose(value, expected)
    check_gradients(exe, out, ["x", "h0", "w"])


def test_the_program_may_come_from_bytes(exe: fluid.Executor) -> None:
    out, _ = recurrent()
    loss = layers.reduce_sum(out)
    ((_, gradient),) = fluid.backward.append_backward(loss, ["w"])
    wanted = exe.run(feed=FEED, fetch_list=[loss, gradient])
    program = fluid.Program.parse_from_string(fluid.default_main_program().serialize_to_string())
    for a, b in zip(exe.run(program, feed=FEED, fetch_list=[loss.name, gradient.name]), wanted):
        np.testing.assert_array_equal(a, b)


def test_without_training_no_steps_are_kept(exe: fluid.Executor) -> None:
    out, _ = recurrent(is_train=False)
    (value,) = exe.run(feed=FEED, fetch_list=[out])
    np.testing.assert_allclose(value, reference())
    with pytest.raises(ValueError, match="is_train"):
        fluid.backward.append_backward(layers.reduce_sum(out), ["w"])


@pytest.mark.parametrize(
    ("feed", "error", "part"),
    [
        ({"x": np.zeros((0, N, WIDTH))}, ValueError, r"'x' in input slot 'inputs'.*got \[0, 3, 2\]"),
        ({"h0": None}, RuntimeError, "'h0', in input slot 'initial_states' of 'recurrent', has no value"),
    ],
)
def test_bad_input_is_named(exe: fluid.Executor, feed: dict[str, Any], error: type[Exception], part: str) -> None:
    out, _ = recurrent(known=False)
    given = {name: value for name, value in {**FEED, **feed}.items() if value is not None}
    with pytest.raises(error, match=part):
        exe.run(feed=given, fetch_list=[out])


@pytest.mark.parametrize(
    ("attrs", "error", "part"),
    [
        ({"states": ["h", "h"]}, ValueError, "ex_states and states belong together"),
        ({"states": ["nowhere"]}, KeyError, "declares no variable 'nowhere' of its own"),
        ({"ex_states": ["w"]}, ValueError, "'mul' reads 'before' of block 1 before"),
    ],
)
def test_states_that_do_not_fit_are_named(
    exe: fluid.Executor, attrs: dict[str, Any], error: type[Exception], part: str
) -> None:
    out, _ = recurrent(**attrs)
    with pytest.raises(error, match=part):
        exe.run(feed=FEED, fetch_list=[out])


def test_a_block_that_writes_outside_is_refused(exe: fluid.Executor) -> None:
    def step(block: Block) -> Wires:
        wires = elman(block)
        block.append_op("scale", {"X": "h"}, {"Out": "elsewhere"})
        return wires

    variable("elsewhere", [N, WIDTH])
    out, _ = recurrent(step)
    with pytest.raises(ValueError, match="its block writes 'elsewhere'"):
        exe.run(feed=FEED, fetch_list=[out])


def test_step_scopes_stand_in_the_program_if_a_gradient_is_computed() -> None:
    out, _ = recurrent()
    fluid.backward.append_backward(layers.reduce_sum(out), ["w"])
    block = fluid.default_main_program().global_block()
    (forward,) = [op for op in block.ops if op.type == "recurrent"]
    assert block.var(forward.output("step_scopes")[0]).type == VarType.STEP_SCOPES
