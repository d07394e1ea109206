"""Choices and loops as functions of functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable


def number(value: float, dtype: str = "float32") -> Variable:
    return layers.fill_constant([1], dtype, value)


def fed(name: str) -> Variable:
    x = fluid.data(name, [1])
    x.stop_gradient = False
    return x


def run(exe: fluid.Executor, outs: list[Any], **feed: float) -> list[float]:
    exe.run(fluid.default_startup_program())
    values = exe.run(feed={name: np.array([v], np.float32) for name, v in feed.items()}, fetch_list=outs)
    return [value.item() for value in values]


def test_one_branch_is_computed_and_differentiated(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    out = layers.cond(x < y, lambda: x * y, lambda: x * x + y)
    loss = layers.mean(out * 3.0)
    fluid.backward.append_backward(loss)
    for a, b in ((2.0, 5.0), (5.0, 2.0), (3.0, 3.0)):
        got = run(exe, [out, "x@GRAD", "y@GRAD"], x=a, y=b)
        want = [a * b, 3 * b, 3 * a] if a < b else [a * a + b, 6 * a, 3]
        assert got == want


def test_parameters_of_the_branch_that_is_taken_are_trained(exe: fluid.Executor) -> None:
    x = fed("x")
    attrs = {name: fluid.ParamAttr(name, fluid.initializer.Constant(1.0)) for name in "ab"}

    def branch(name: str) -> Any:
        return lambda: layers.fc(layers.reshape(x, [1, 1]), 1, param_attr=attrs[name], bias_attr=False)

    loss = layers.mean(layers.cond(x > 0.0, branch("a"), branch("b")))
    fluid.optimizer.SGD(0.5).minimize(loss)
    assert run(exe, [loss], x=2.0) == [2]
    weights = {name: np.array(fluid.global_scope().find_var(name).get_tensor()).item() for name in "ab"}
    assert weights == {"a": 0.0, "b": 1.0}


@pytest.mark.parametrize("signs", [(1, -1, 1), (-1, 1, -1)])
def test_it_does_not_matter_which_branch_comes_first(exe: fluid.Executor, signs: tuple[int, ...]) -> None:
    """The results of a branch that has not been taken are not there, and their gradients need nothing of them."""
    x = fluid.data("x", [None, 2])
    w = layers.create_parameter([2], "float32", "w", default_initializer=fluid.initializer.Constant(0.5))
    h = x * w
    sign = layers.reduce_sum(x) > 0.0
    outer = layers.cond(sign, lambda: layers.cond(sign, lambda: h * 2.0, lambda: h * h), lambda: layers.exp(h))
    loss = layers.reduce_sum(outer)
    (by_w,) = fluid.gradients(loss, w)
    exe.run(fluid.default_startup_program())
    for rows, s in enumerate(signs, 1):  # other shapes, too
        values = np.full((rows, 2), s, np.float32)
        got, gradient = exe.run(feed={"x": values}, fetch_list=[loss, by_w])
        want = [2 * rows, 2 * rows] if s > 0 else [2 * rows * np.exp(-0.5), -rows * np.exp(-0.5)]
        np.testing.assert_allclose([got.item(), gradient[0]], want, rtol=1e-6)


@pytest.mark.parametrize("order", [1, -1])
def test_the_gradient_passes_whichever_branch_depends_on_parameters(exe: fluid.Executor, order: int) -> None:
    x, p = fluid.data("x", [3]), fluid.data("p", [1], "bool")
    w = layers.create_parameter([3], "float32", "w", default_initializer=fluid.initializer.Constant(1.0))
    branches = [lambda: x, lambda: x * w][::order]
    out = layers.cond(p, *branches)
    assert not out.stop_gradient
    assert layers.cond(p, lambda: x, lambda: x).stop_gradient
    fluid.optimizer.SGD(1.0).minimize(layers.reduce_sum(out) + layers.reduce_sum(w) * 0.0)
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.full(3, 0.25, np.float32), "p": np.array([order < 0])})
    np.testing.assert_array_equal(np.asarray(fluid.global_scope().find_var("w").get_tensor()), [0.75] * 3)


def test_structures_and_none_are_returned(exe: fluid.Executor) -> None:
    x, total = fed("x"), layers.create_global_var([1], 0.0, "float32", persistable=True, name="total")
    out = layers.cond(
        x > 0.0,
        lambda: {"b": [x, number(1)], "a": (x + x,)},
        lambda: {"b": [number(2), x], "a": (x * x,)},
    )
    assert set(out) == {"a", "b"}
    assert isinstance(out["a"], tuple)
    assert run(exe, [out["a"][0], *out["b"]], x=3.0) == [6, 3, 1]
    assert run(exe, [out["a"][0], *out["b"]], x=-3.0) == [9, 2, -3]

    def add() -> None:
        layers.assign(total + x, total)

    assert layers.cond(x > 0.0, add) is None
    assert layers.cond(x > 0.0) is None
    exe.run(fluid.default_startup_program())
    for value, want in ((2.0, 2.0), (-7.0, 2.0), (1.0, 3.0)):
        assert exe.run(feed={"x": np.array([value], np.float32)}, fetch_list=[total])[0] == [want]


def test_choices_lie_in_choices(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    out = layers.cond(
        x > 0.0,
        lambda: layers.cond(y > 0.0, lambda: x * y, lambda: x + y),
        lambda: layers.cond(y > 0.0, lambda: x - y, lambda: y * y),
    )
    fluid.backward.append_backward(layers.mean(out))
    assert run(exe, [out, "x@GRAD", "y@GRAD"], x=2.0, y=3.0) == [6, 3, 2]
    assert run(exe, [out, "x@GRAD", "y@GRAD"], x=2.0, y=-3.0) == [-1, 1, 1]
    assert run(exe, [out, "x@GRAD", "y@GRAD"], x=-2.0, y=3.0) == [-5, 1, -1]
    assert run(exe, [out, "x@GRAD", "y@GRAD"], x=-2.0, y=-3.0) == [9, 0, -6]


def test_branches_may_have_different_extents(exe: fluid.Executor) -> None:
    x = fed("x")
    out = layers.cond(x > 0.0, lambda: layers.ones([2, 3], "float32"), lambda: layers.zeros([4, 3], "float32"))
    assert out.shape == (-1, 3)
    for value, shape in ((1.0, (2, 3)), (-1.0, (4, 3))):
        assert exe.run(feed={"x": np.array([value], np.float32)}, fetch_list=[out])[0].shape == shape


@pytest.mark.parametrize(
    ("true", "false", "error", "part"),
    [
        (lambda: number(1), lambda: None, errors.InvalidArgument, "None"),
        (lambda: number(1), None, errors.InvalidArgument, "None"),
        (lambda: number(1), lambda: [number(1)], errors.InvalidArgument, "a variable and"),
        (lambda: number(1), lambda: number(1, "int64"), errors.TypeMismatch, "float32 and int64"),
        (lambda: 1.0, lambda: 2.0, errors.TypeMismatch, "fill_constant"),
        (number, 3, errors.TypeMismatch, "functions"),
    ],
)
def test_branches_that_do_not_fit_are_refused(true: Any, false: Any, error: type[Exception], part: str) -> None:
    x = fed("x")
    with pytest.raises(error, match=part):
        layers.cond(x > 0.0, true if true is not number else lambda: number(1), false)
    with pytest.raises(errors.TypeMismatch, match="must be a bool"):
        layers.cond(x, lambda: x, lambda: x)


def test_the_first_case_that_holds(exe: fluid.Executor) -> None:
    x = fed("x")
    pairs = [(x < 1.0, lambda: number(10)), (x < 2.0, lambda: number(20)), (x < 3.0, lambda: x)]
    outs = [layers.case(pairs, lambda: number(40)), layers.case(pairs), layers.case(pairs[:1])]
    for value, want in ((0.0, [10, 10, 10]), (1.5, [20, 20, 10]), (2.5, [2.5, 2.5, 10]), (9.0, [40, 9, 10])):
        assert run(exe, outs, x=value) == want
    with pytest.raises(errors.TypeMismatch, match="pred_fn_pairs"):
        layers.case([])
    with pytest.raises(errors.TypeMismatch, match="condition, function"):
        layers.case([(x < 1.0, 3)])  # type: ignore[list-item]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_case_of_a_number(exe: fluid.Executor, dtype: str) -> None:
    i = fluid.data("i", [1], dtype)
    functions = [lambda: number(10), lambda: number(20), lambda: number(30)]
    outs = [
        layers.switch_case(i, functions, lambda: number(-1)),
        layers.switch_case(i, {2: functions[0], 0: functions[1]}),
        layers.switch_case(i, [(7, functions[0]), (1, functions[2])], lambda: number(0)),
        layers.switch_case(i, functions[:1]),
    ]
    for value, want in ((0, [10, 20, 0, 10]), (1, [20, 10, 30, 10]), (2, [30, 10, 0, 10]), (7, [-1, 10, 10, 10])):
        got = exe.run(feed={"i": np.array([value], dtype)}, fetch_list=outs)
        assert [v.item() for v in got] == want
    with pytest.raises(errors.InvalidArgument, match="two functions for 1"):
        layers.switch_case(i, [(1, functions[0]), (1, functions[1])])
    with pytest.raises(errors.TypeMismatch, match="integer"):
        layers.switch_case(number(1), functions)


def test_a_loop_and_its_gradient(exe: fluid.Executor) -> None:
    x = fed("x")
    i, n = number(0, "int64"), number(4, "int64")
    result = layers.while_loop(lambda i, p: layers.less_than(i, n), lambda i, p: (layers.increment(i), p * x), [i, x])
    assert isinstance(result, list)
    fluid.backward.append_backward(layers.mean(result[1]))
    assert run(exe, [*result, "x@GRAD", i], x=3.0) == [4, 3**5, 5 * 3**4, 0]


def test_a_loop_that_is_never_entered_gives_what_it_was_given(exe: fluid.Executor) -> None:
    x = fed("x")
    out = layers.while_loop(lambda v: v < 0.0, lambda v: v + 1.0, [x])
    fluid.backward.append_backward(layers.mean(out[0]))
    assert run(exe, [out[0], "x@GRAD"], x=3.0) == [3, 1]


def test_variables_change_places_in_structures(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    i, n = number(0), number(3)
    out = layers.while_loop(
        lambda i, s: i < n, lambda i, s: [i + 1.0, {"b": s["a"], "a": s["b"]}], [i, {"a": x, "b": y}]
    )
    assert run(exe, [out[1]["a"], out[1]["b"], x], x=1.0, y=2.0) == [2, 1, 1]


def test_arrays_and_loops_in_loops(exe: fluid.Executor) -> None:
    n = number(3, "int64")
    array = layers.array_write(number(0), number(0, "int64"))

    def body(i: Variable, kept: Variable) -> list[Variable]:
        zero = layers.fill_constant([1], "int64", 0)
        _, total = layers.while_loop(
            lambda j, s: layers.less_than(j, i), lambda j, s: [layers.increment(j), s + 2.0], [zero, number(0)]
        )
        layers.array_write(total, i, kept)
        return [layers.increment(i), kept]

    i, kept = layers.while_loop(lambda i, _: layers.less_than(i, n), body, [number(0, "int64"), array])
    assert kept is array
    outs = [layers.array_read(kept, number(k, "int64")) for k in range(3)]
    assert run(exe, [*outs, i]) == [0, 2, 4, 3]


@pytest.mark.parametrize(
    ("condition", "body", "error", "part"),
    [
        (lambda v: v < 1.0, lambda v: [v, v], errors.InvalidArgument, "1 values"),
        (lambda v: v < 1.0, lambda v: layers.cast(v, "int64"), errors.TypeMismatch, "int64"),
        (lambda v: v < 1.0, lambda v: 3, errors.TypeMismatch, "Variable"),
        (lambda v: v, lambda v: v, errors.TypeMismatch, "bool"),
        (3, lambda v: v, errors.TypeMismatch, "functions"),
    ],
)
def test_loops_that_do_not_fit_are_refused(condition: Any, body: Any, error: type[Exception], part: str) -> None:
    with pytest.raises(error, match=part):
        layers.while_loop(condition, body, [number(0)])
    with pytest.raises(errors.TypeMismatch, match="loop_vars"):
        layers.while_loop(lambda: number(0) < 1.0, lambda: number(0), [])


def test_what_a_branch_would_write_has_no_value_in_a_run_without_it(exe: fluid.Executor) -> None:
    """Whatever it wrote in the run before."""
    x = fluid.data("x", [1])
    written = layers.create_tensor("float32")
    with layers.Switch() as switch, switch.case(layers.less_than(layers.fill_constant([1], "float32", 0.0), x)):
        layers.assign(layers.scale(x, 10.0), output=written)
    out = layers.scale(written, 1.0)
    for fetches in ([out], [written]):
        assert exe.run(feed={"x": np.float32([3])}, fetch_list=fetches)[0] == [30]
        with pytest.raises(errors.FailedPrecondition, match=written.name):
            exe.run(feed={"x": np.float32([-1])}, fetch_list=fetches)
        assert exe.run(feed={"x": np.float32([4])}, fetch_list=fetches)[0] == [40]


def test_a_step_of_a_loop_does_not_see_what_a_branch_wrote_in_the_step_before(exe: fluid.Executor) -> None:
    i, end = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 2)
    first = layers.fill_constant([1], "int64", 1)
    again = layers.less_than(i, end)
    with layers.While(again).block():
        written = layers.create_tensor("float32")
        with layers.Switch() as switch, switch.case(layers.less_than(i, first)):
            layers.assign(layers.fill_constant([1], "float32", 10.0), output=written)
        layers.scale(written, 1.0)
        layers.increment(i)
        layers.less_than(i, end, cond=again)
    with pytest.raises(errors.FailedPrecondition, match=written.name):
        exe.run()
