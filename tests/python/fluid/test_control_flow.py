"""While, Switch, arrays."""

from __future__ import annotations

import contextlib
import signal
import threading

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers


def number(value: int) -> fluid.framework.Variable:
    return layers.fill_constant([1], "int64", value)


def test_a_loop_runs_as_long_as_its_condition_holds(exe: fluid.Executor) -> None:
    i, n = number(0), layers.data("n", [1], append_batch_size=False, dtype="int64")
    total = number(0)
    cond = layers.less_than(i, n)
    with layers.While(cond).block():
        layers.assign(total + i, output=total)
        layers.increment(i)
        layers.less_than(i, n, cond=cond)
    for steps in (4, 0, 7):
        got = exe.run(feed={"n": np.array([steps])}, fetch_list=[i, total])
        assert [int(value[0]) for value in got] == [steps, steps * (steps - 1) // 2]


def test_loops_within_loops(exe: fluid.Executor) -> None:
    i, n, count = number(0), number(3), number(0)
    outer = layers.less_than(i, n)
    with layers.While(outer).block():
        j = number(0)
        inner = layers.less_than(j, i)
        with layers.While(inner).block():
            layers.increment(count)
            layers.increment(j)
            layers.less_than(j, i, cond=inner)
        layers.increment(i)
        layers.less_than(i, n, cond=outer)
    (got,) = exe.run(fetch_list=[count])
    assert got.tolist() == [3]


def test_the_block_may_read_its_condition(exe: fluid.Executor) -> None:
    i, n = number(0), number(3)
    cond = layers.less_than(i, n)
    with layers.While(cond).block():
        layers.increment(i)
        layers.logical_and(cond, layers.less_than(i, n), out=cond)
        with layers.ConditionalBlock([cond], is_scalar_condition=True).block():
            layers.logical_not(layers.logical_not(cond), out=cond)
    (got,) = exe.run(fetch_list=[i])
    assert got.tolist() == [3]


def test_a_variable_of_a_step_may_be_written_by_a_block_within_it(exe: fluid.Executor) -> None:
    i, n, last = number(0), number(3), number(0)
    cond = layers.less_than(i, n)
    with layers.While(cond).block():
        mine = layers.create_tensor("int64")
        with layers.ConditionalBlock([cond], is_scalar_condition=True).block():
            layers.assign(i, output=mine)
            layers.increment(mine, value=10)
        layers.assign(mine, output=last)
        layers.increment(i)
        layers.less_than(i, n, cond=cond)
    (got,) = exe.run(fetch_list=[last])
    assert got.tolist() == [12]


def test_arrays_collect_what_steps_make(exe: fluid.Executor) -> None:
    x = layers.data("x", [2], append_batch_size=False, dtype="float32")
    i, n = number(0), number(3)
    states = layers.array_write(x, i)
    cond = layers.less_than(i, n)
    with layers.While(cond).block():
        doubled = layers.scale(layers.array_read(states, i), 2.0)
        layers.increment(i)
        layers.array_write(doubled, i, states)
        layers.less_than(i, n, cond=cond)
    last, length = layers.array_read(states, i), layers.array_length(states)
    for _ in range(2):  # each run begins with an empty array
        got = exe.run(feed={"x": np.array([1, 2], np.float32)}, fetch_list=[last, length])
        assert got[0].tolist() == [8, 16]
        assert got[1].tolist() == [4]


def test_what_is_not_in_an_array_cannot_be_read(exe: fluid.Executor) -> None:
    array = layers.array_write(number(5), number(1))
    missing = layers.array_read(array, number(0))
    with pytest.raises(IndexError, match="read_from_array"):
        exe.run(fetch_list=[missing])
    with pytest.raises(TypeError, match="LoDTensorArray"):
        layers.array_read(number(1), number(0))
    with pytest.raises(TypeError, match="float32"):
        layers.array_write(number(5), layers.fill_constant([1], "float32", 0.0))


@pytest.mark.parametrize(("step", "expected"), [(0, 1.0), (5, 2.0), (50, 3.0)])
def test_switch_takes_the_first_case_that_holds(exe: fluid.Executor, step: int, expected: float) -> None:
    at = layers.data("at", [1], append_batch_size=False, dtype="int64")
    rate = layers.fill_constant([1], "float32", 0.0)
    with layers.Switch() as switch:
        with switch.case(layers.less_than(at, number(3))):
            layers.assign(layers.fill_constant([1], "float32", 1.0), output=rate)
        with switch.case(layers.less_than(at, number(10))):
            layers.assign(layers.fill_constant([1], "float32", 2.0), output=rate)
        with switch.default():
            layers.assign(layers.fill_constant([1], "float32", 3.0), output=rate)
    (got,) = exe.run(feed={"at": np.array([step])}, fetch_list=[rate])
    assert got.tolist() == [expected]


def test_a_block_that_does_not_run_leaves_things_as_they_are(exe: fluid.Executor) -> None:
    x = layers.data("x", [-1, 1], append_batch_size=False, dtype="float32")
    seen = number(0)
    with layers.ConditionalBlock([x]).block():
        layers.increment(seen)
    for rows in (0, 2):
        (got,) = exe.run(feed={"x": np.ones((rows, 1), np.float32)}, fetch_list=[seen])
        assert got.tolist() == [int(rows > 0)]


def test_an_endless_loop_ends_with_ctrl_c(exe: fluid.Executor) -> None:
    i = number(0)
    cond = layers.greater_equal(i, number(0))
    with layers.While(cond).block():
        layers.greater_equal(i, i, cond=cond)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        exe.run()
    timer.join()


def test_misuse_is_refused() -> None:
    i = number(0)
    with pytest.raises(TypeError, match="must be a bool, got int64"):
        layers.While(i)
    with pytest.raises(TypeError, match="single bool"):
        layers.While(layers.less_than(layers.zeros([2], "int64"), layers.ones([2], "int64")))
    with pytest.raises(errors.TypeMismatch, match=r"layers\.array_read: i has to be a Variable, got int"):
        layers.array_read(layers.create_array("float32"), 0)
    with pytest.raises(errors.TypeMismatch, match=r"layers\.array_write: i has to be a Variable, got int"):
        layers.array_write(i, 0)
    cond = layers.less_than(i, number(1))
    with pytest.raises(errors.InvalidArgument, match="never end"), layers.While(cond).block():
        layers.increment(i)
    assert fluid.default_main_program().current_block_idx == 0
    switch = layers.Switch()
    with pytest.raises(errors.FailedPrecondition, match="default"), switch.default():
        pass


def test_a_step_does_not_see_what_the_step_before_has_left(exe: fluid.Executor) -> None:
    i, n = number(0), number(2)
    cond = layers.less_than(i, n)
    with layers.While(cond).block():
        block = fluid.default_main_program().current_block()
        mine = block.create_var("mine", dtype="int64", shape=[1])
        layers.assign(mine, output=i)
        layers.assign(i, output=mine)
        layers.less_than(i, n, cond=cond)
    with pytest.raises(ValueError, match="'mine'"):
        exe.run()


def test_programs_with_blocks_can_be_cloned_and_serialised(exe: fluid.Executor) -> None:
    i, n = number(0), number(5)
    cond = layers.less_than(i, n)
    with layers.While(cond).block():
        layers.increment(i)
        layers.less_than(i, n, cond=cond)
    program = fluid.default_main_program()
    for copy in (program.clone(), fluid.Program.parse_from_string(program.serialize_to_string())):
        (got,) = exe.run(copy, fetch_list=[i.name])
        assert got.tolist() == [5]


def _nested(depth: int) -> fluid.framework.Variable:
    """How often the innermost of loops within loops, each of one step, has run."""
    count = layers.fill_constant([1], "int64", 0)
    once = layers.fill_constant([1], "int64", 1)
    conds = [layers.less_than(count, once) for _ in range(depth)]
    with contextlib.ExitStack() as loops:
        for cond in conds:
            loops.enter_context(layers.While(cond).block())
            layers.logical_not(cond, out=cond)
        layers.increment(count)
    return count


def test_loops_within_loops_have_a_limit(exe: fluid.Executor) -> None:
    (count,) = exe.run(fetch_list=[_nested(64)])
    assert count.item() == 1
    with pytest.raises(errors.InvalidArgument, match="more than 64 blocks deep"):
        _nested(65)
    assert fluid.default_main_program().current_block_idx == 0


@pytest.mark.parametrize("fails", ["in the body", "afterwards"])
def test_a_loop_that_cannot_be_described_changes_nothing(fails: str) -> None:
    """Its block stays in the program: what it wrote would have no gradient."""
    x = layers.data("x", [1], append_batch_size=False)
    x.stop_gradient = False
    condition = layers.less_than(x, layers.fill_constant([1], "float32", 3.0))
    program = fluid.default_main_program()
    kind, message = (ZeroDivisionError, "") if fails == "in the body" else (errors.InvalidArgument, "does not change")
    with pytest.raises(kind, match=message), layers.While(condition).block():
        with layers.Switch() as switch, switch.case(condition):
            layers.assign(layers.scale(x, 2.0), output=x)
        if fails == "in the body":
            raise ZeroDivisionError
    assert program.current_block_idx == 0
    assert not any(block.ops or block.vars for block in program.blocks[1:])
    fluid.backward.append_backward(layers.reduce_sum(layers.square(x)))
    assert program.global_block().has_var("x@GRAD")


def test_a_case_that_cannot_be_described_can_be_described_again(exe: fluid.Executor) -> None:
    x = layers.data("x", [1])
    choice = layers.IfElse(layers.less_than(x, layers.fill_constant([1], "float32", 0.0)))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), choice.true_block():
            choice.output(layers.scale(choice.input(x), -7.0))
            raise ZeroDivisionError
    with choice.true_block():
        choice.output(layers.scale(choice.input(x), -1.0))
    with choice.false_block():
        choice.output(choice.input(x))
    rate = layers.create_global_var([1], 0.0, "float32", persistable=True)
    one = layers.fill_constant([1], "float32", 1.0)
    switch = layers.Switch()
    with pytest.raises(ZeroDivisionError), switch.case(layers.less_than(rate, one)):
        raise ZeroDivisionError
    with switch.case(layers.less_than(one, rate)):
        layers.assign(one * 2.0, rate)
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError), switch.default():
            layers.assign(one * 5.0, rate)
            if _ == 0:
                raise ZeroDivisionError
    exe.run(fluid.default_startup_program())
    fed = {"x": np.array([[-3], [4]], np.float32)}
    absolute, chosen = exe.run(feed=fed, fetch_list=[choice()[0], rate])
    assert absolute.ravel().tolist() == [3, 4]
    assert chosen.tolist() == [5]
