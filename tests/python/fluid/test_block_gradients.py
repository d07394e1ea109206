"""Losses differentiated through loops, conditional blocks and arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(23)
Feed = dict[str, np.ndarray]


def number(value: int) -> Variable:
    return layers.fill_constant([1], "int64", value)


def parameter(name: str, shape: list[int]) -> Variable:
    init = fluid.initializer.Uniform(-0.8, 0.8, seed=len(name) + sum(shape))
    return layers.create_parameter(shape, "float64", name=name, default_initializer=init)


def data(name: str, shape: list[int], dtype: str = "float64") -> Variable:
    return layers.data(name, shape, append_batch_size=False, dtype=dtype)


def repeat(times: Variable, body: Callable[[Variable], None]) -> None:
    """Runs ``body(i)`` for i in range(times)."""
    i = number(0)
    cond = layers.less_than(i, times)
    with layers.While(cond).block():
        body(i)
        layers.increment(i)
        layers.less_than(i, times, cond=cond)


def check_gradients(exe: fluid.Executor, loss: Variable, feed: Feed | None = None) -> dict[str, np.ndarray]:
    """Compares the gradients of all parameters with central differences; returns them."""
    forward = fluid.default_main_program().clone()
    pairs = fluid.backward.append_backward(loss)
    exe.run(fluid.default_startup_program())
    scope = fluid.global_scope()
    feed = feed or {}
    for _ in range(2):  # what a run keeps must not get into the next
        fetched = exe.run(feed=feed, fetch_list=[gradient for _, gradient in pairs])
    for (variable, _), gradient in zip(pairs, fetched):
        tensor = scope.find_var(variable.name).get_tensor()
        value = np.array(tensor)
        expected = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            losses = []
            for step in (1e-5, -1e-5):
                moved = value.copy()
                moved[place] += step
                tensor.set(moved)
                losses.append(float(exe.run(forward, feed=feed, fetch_list=[loss.name])[0].reshape(())))
            expected[place] = (losses[0] - losses[1]) / 2e-5
        tensor.set(value)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8, err_msg=variable.name)
    return {variable.name: gradient for (variable, _), gradient in zip(pairs, fetched)}


def step_of(state: Variable) -> Variable:
    return layers.tanh(layers.mul(state, parameter("w", [3, 3])))


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_tensor_that_a_loop_carries(exe: fluid.Executor, steps: int) -> None:
    state = layers.mul(data("x", [2, 3]), parameter("first", [3, 3]))
    repeat(data("n", [1], "int64"), lambda i: layers.assign(step_of(state), output=state))
    loss = layers.mean(layers.square(state))
    feed = {"x": RNG.uniform(-1, 1, (2, 3)), "n": np.array([steps])}
    gradients = check_gradients(exe, loss, feed)
    assert (np.abs(gradients["w"]).max() > 0) == (steps > 0)
    assert np.abs(gradients["first"]).max() > 0


def test_a_loop_and_its_steps_one_by_one_have_the_same_gradients(exe: fluid.Executor) -> None:
    feed = {"x": RNG.uniform(-1, 1, (2, 3))}
    state = layers.mul(data("x", [2, 3]), parameter("first", [3, 3]))
    looped = layers.assign(state)
    repeat(number(5), lambda i: layers.assign(step_of(looped), output=looped))
    unrolled = state
    for _ in range(5):
        unrolled = step_of(unrolled)
    gradients = []
    for result in (looped, unrolled):
        pairs = fluid.backward.append_backward(layers.mean(layers.square(result)))
        gradients.append([gradient for _, gradient in pairs])
    exe.run(fluid.default_startup_program())
    fetched = exe.run(feed=feed, fetch_list=gradients[0] + gradients[1])
    for one, other in zip(fetched[:2], fetched[2:]):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
def test_states_in_an_array(exe: fluid.Executor, steps: int) -> None:
    """Each step reads the place before and writes the next; the counter is overwritten between."""
    times = data("n", [1], "int64")
    states = layers.array_write(layers.mul(data("x", [2, 3]), parameter("first", [3, 3])), number(0))
    i = number(0)
    cond = layers.less_than(i, times)
    with layers.While(cond).block():
        after = step_of(layers.array_read(states, i))
        layers.increment(i)
        layers.array_write(after, i, states)
        layers.less_than(i, times, cond=cond)
    last, first = layers.array_read(states, i), layers.array_read(states, number(0))
    loss = layers.mean(layers.square(last)) + layers.mean(first * last)
    check_gradients(exe, loss, {"x": RNG.uniform(-1, 1, (2, 3)), "n": np.array([steps])})


def test_a_place_that_is_read_twice_and_overwritten(exe: fluid.Executor) -> None:
    w = parameter("w", [2])
    places = layers.array_write(layers.square(w), number(0))
    twice = layers.array_read(places, number(0)) * layers.array_read(places, number(0))
    layers.array_write(layers.exp(w), number(0), places)
    loss = layers.reduce_sum(twice + layers.array_read(places, number(0)))
    check_gradients(exe, loss)


def test_what_nobody_reads_has_the_gradient_zero(exe: fluid.Executor) -> None:
    w = parameter("w", [2])
    places = layers.array_write(layers.square(w), number(0))
    layers.array_write(layers.exp(w), number(1), places)
    check_gradients(exe, layers.reduce_sum(layers.array_read(places, number(0))))


@pytest.mark.parametrize("holds", [False, True])
def test_a_conditional_block(exe: fluid.Executor, holds: bool) -> None:
    w = parameter("w", [3, 3])
    state = layers.tanh(w)
    with layers.ConditionalBlock([data("c", [1], "bool")], is_scalar_condition=True).block():
        layers.assign(layers.mul(state, w), output=state)
    check_gradients(exe, layers.mean(layers.square(state)), {"c": np.array([holds])})


@pytest.mark.parametrize("at", [1, 5, 50])
def test_a_switch(exe: fluid.Executor, at: int) -> None:
    w = parameter("w", [2])
    value = layers.scale(w, 1.0)
    where = data("at", [1], "int64")
    with layers.Switch() as switch:
        with switch.case(layers.less_than(where, number(3))):
            layers.assign(layers.square(w), output=value)
        with switch.case(layers.less_than(where, number(10))):
            layers.assign(layers.exp(value), output=value)
        with switch.default():
            layers.assign(layers.scale(value, 3.0), output=value)
    check_gradients(exe, layers.reduce_sum(layers.square(value)), {"at": np.array([at])})


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("in_loop", [False, True])
def test_a_value_that_a_block_may_replace_by_a_constant(exe: fluid.Executor, in_loop: bool, runs: bool) -> None:
    w = parameter("w", [1])
    y = layers.scale(w, 3.0)
    constant = layers.fill_constant([1], "float64", 7.0)
    if in_loop:
        repeat(number(int(runs)), lambda i: layers.assign(constant, output=y))
    else:
        with layers.Switch() as switch, switch.case(layers.less_than(number(0), number(int(runs)))):
            layers.assign(constant, output=y)
    gradients = check_gradients(exe, layers.mean(y) + layers.mean(w))
    np.testing.assert_allclose(gradients["w"], [1.0 if runs else 4.0])


def test_a_state_that_a_loop_resets(exe: fluid.Executor) -> None:
    w = parameter("w", [1])
    state = layers.scale(w, 2.0)

    def step(i: Variable) -> None:
        layers.assign(state * w, output=state)
        with layers.Switch() as switch, switch.case(layers.equal(i, number(1))):
            layers.assign(layers.fill_constant([1], "float64", 0.5), output=state)

    repeat(number(4), step)
    check_gradients(exe, layers.mean(state))


def test_loops_in_loops_with_conditional_blocks(exe: fluid.Executor) -> None:
    w = parameter("w", [3, 3])
    state = layers.mul(data("x", [2, 3]), parameter("first", [3, 3]))
    total = layers.scale(state, 0.5)

    def outer(i: Variable) -> None:
        local = layers.tanh(state)

        def inner(j: Variable) -> None:
            with layers.ConditionalBlock([layers.less_than(j, i)], is_scalar_condition=True).block():
                layers.assign(layers.mul(local, w) + state, output=local)
            layers.assign(total + layers.square(local), output=total)

        repeat(number(2), inner)
        layers.assign(local, output=state)

    repeat(number(3), outer)
    check_gradients(exe, layers.mean(total) + layers.mean(state), {"x": RNG.uniform(-1, 1, (2, 3))})


def test_the_effort_for_loops_in_loops_does_not_double_with_each(exe: fluid.Executor) -> None:
    """40 of them: what doubles with each would never end."""
    depth = 40
    times = data("n", [1], "int64")
    state = layers.mul(data("x", [2, 3]), parameter("first", [3, 3]))

    def turn(level: int) -> None:
        if level < depth:
            repeat(times, lambda _: turn(level + 1))
        layers.assign(layers.scale(state, 1.1), state)

    repeat(times, lambda _: turn(1))
    loss = layers.reduce_sum(state)
    ((_, gradient),) = fluid.backward.append_backward(loss)
    exe.run(fluid.default_startup_program())
    x = np.arange(6.0).reshape(2, 3)
    (value,) = exe.run(feed={"x": x, "n": np.array([1])}, fetch_list=[gradient])
    np.testing.assert_allclose(value, 1.1**depth * np.repeat(x.sum(0)[:, None], 3, 1))


def test_operators_that_overwrite_their_input(exe: fluid.Executor) -> None:
    w = parameter("w", [2])
    x = layers.exp(w)
    block = fluid.default_main_program().current_block()
    block.append_op("scale", {"X": x}, {"Out": x}, {"scale": 2.0})
    layers.assign(layers.square(x), output=x)
    check_gradients(exe, layers.reduce_sum(x * w))


def test_a_sparse_gradient_of_a_loop(exe: fluid.Executor) -> None:
    ids = data("ids", [4, 1], "int64")
    total = layers.fill_constant([1], "float64", 0.0)
    total.stop_gradient = False

    def body(i: Variable) -> None:
        rows = layers.embedding(ids, [6, 2], is_sparse=True, param_attr="table", dtype="float64")
        layers.assign(total + layers.reduce_sum(layers.square(rows)), output=total)

    repeat(data("n", [1], "int64"), body)
    fluid.optimizer.SGD(0.5).minimize(total)
    exe.run(fluid.default_startup_program())
    tensor = fluid.global_scope().find_var("table").get_tensor()
    for steps in (3, 0):
        before = np.array(tensor)
        expected = before.copy()
        np.subtract.at(expected, [1, 1, 5, 0], steps * before[[1, 1, 5, 0]])
        exe.run(feed={"ids": np.array([[1], [1], [5], [0]]), "n": np.array([steps])})
        np.testing.assert_allclose(np.array(tensor), expected, rtol=1e-12)


def test_a_loop_trains(exe: fluid.Executor) -> None:
    state = layers.mul(data("x", [2, 3]), parameter("first", [3, 3]))
    repeat(number(3), lambda i: layers.assign(step_of(state), output=state))
    loss = layers.mean(layers.square(state - data("y", [2, 3])))
    fluid.optimizer.Adam(0.05).minimize(loss)
    exe.run(fluid.default_startup_program())
    feed = {"x": RNG.uniform(-1, 1, (2, 3)), "y": RNG.uniform(-0.5, 0.5, (2, 3))}
    losses = [float(exe.run(feed=feed, fetch_list=[loss])[0].reshape(())) for _ in range(100)]
    assert losses[-1] < losses[0] / 20


def test_a_clone_for_tests_keeps_no_steps_and_computes_the_same(exe: fluid.Executor) -> None:
    state = layers.mul(data("x", [2, 3]), parameter("first", [3, 3]))
    repeat(number(3), lambda i: layers.assign(step_of(state), output=state))
    loss = layers.mean(layers.square(state))
    before = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(0.0).minimize(loss)
    after = fluid.default_main_program().clone(for_test=True)
    assert not [op.type for block in after.blocks for op in block.ops if op.type.endswith("_grad")]
    assert [op.type for block in after.blocks for op in block.ops] == [
        op.type for block in before.blocks for op in block.ops
    ]
    exe.run(fluid.default_startup_program())
    feed = {"x": RNG.uniform(-1, 1, (2, 3))}
    results = [exe.run(program, feed=feed, fetch_list=[loss.name])[0] for program in (before, after, None)]
    assert results[0] == results[1] == results[2]


def test_a_differentiated_loop_can_be_serialised(exe: fluid.Executor) -> None:
    state = layers.mul(data("x", [2, 3]), parameter("first", [3, 3]))
    repeat(number(3), lambda i: layers.assign(step_of(state), output=state))
    pairs = fluid.backward.append_backward(layers.mean(layers.square(state)))
    program = fluid.default_main_program()
    copy = fluid.Program.parse_from_string(program.serialize_to_string())
    exe.run(fluid.default_startup_program())
    feed = {"x": RNG.uniform(-1, 1, (2, 3))}
    fetches = [gradient.name for _, gradient in pairs]
    for one, other in zip(exe.run(program, feed, fetches), exe.run(copy, feed, fetches)):
        np.testing.assert_array_equal(one, other)


def test_an_operator_without_a_gradient_within_a_loop_is_named() -> None:
    w = parameter("w", [1])
    state = layers.scale(w, 2.0)
    repeat(number(2), lambda i: layers.increment(state))
    with pytest.raises(NotImplementedError, match="increment"):
        fluid.backward.append_backward(layers.mean(state))
    assert fluid.default_main_program().num_blocks == 2


def test_a_parameter_that_a_loop_overwrites_is_named() -> None:
    w = parameter("w", [2])
    total = layers.scale(w, 2.0)
    repeat(number(2), lambda i: layers.assign(total * w, output=w))
    with pytest.raises(errors.InvalidArgument, match=r"'w'.*overwrite"):
        fluid.backward.append_backward(layers.mean(w))


def test_a_loop_for_tests_has_no_gradient() -> None:
    state = layers.scale(parameter("w", [2]), 2.0)
    i, n = number(0), number(2)
    cond = layers.less_than(i, n)
    with layers.While(cond, is_test=True).block():
        layers.assign(layers.square(state), output=state)
        layers.increment(i)
        layers.less_than(i, n, cond=cond)
    with pytest.raises(errors.InvalidArgument, match="is_test"):
        fluid.backward.append_backward(layers.mean(state))
