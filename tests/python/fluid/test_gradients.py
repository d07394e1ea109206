"""``fluid.gradients``: of any variables, by any variables."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((3, 4)).astype(np.float32), RNG.standard_normal((3, 4)).astype(np.float32)


def fed(name: str, stop_gradient: bool = False) -> Variable:
    variable = fluid.data(name, [None, 4])
    variable.stop_gradient = stop_gradient
    return variable


def run(exe: fluid.Executor, *fetches: Variable | None) -> list[np.ndarray]:
    exe.run(fluid.default_startup_program())
    assert all(isinstance(fetch, Variable) for fetch in fetches)
    return exe.run(feed={"x": X, "y": Y}, fetch_list=list(fetches))


def test_of_a_tensor_by_what_is_fed(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    found = fluid.gradients(layers.square(x) * y, [x, y])
    by_x, by_y = run(exe, *found)
    np.testing.assert_allclose(by_x, 2 * X * Y, rtol=1e-6)
    np.testing.assert_allclose(by_y, X * X, rtol=1e-6)


def test_a_single_input_gives_a_list_too(exe: fluid.Executor) -> None:
    x = fed("x")
    fed("y")
    found = fluid.gradients(layers.square(x), x)
    assert isinstance(found, list)
    np.testing.assert_allclose(run(exe, *found)[0], 2 * X, rtol=1e-6)


def test_of_several_targets_with_gradients_of_their_own(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    weight = layers.scale(x, 3.0)  # depends on the input, but no gradient of the targets passes through it
    (by_x,) = fluid.gradients([layers.square(x), x * y], [x], [weight, None])
    np.testing.assert_allclose(run(exe, by_x)[0], 3 * X * 2 * X + Y, rtol=1e-5)


def test_gradients_can_be_differentiated_by_what_they_were_weighted_with(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    (weighted,) = fluid.gradients(layers.square(x), x, y)
    by_x, by_y = run(exe, *fluid.gradients(weighted, [x, y]))
    np.testing.assert_allclose(by_x, 2 * Y, rtol=1e-6)
    np.testing.assert_allclose(by_y, 2 * X, rtol=1e-6)


def test_by_a_variable_between_and_by_the_target_itself(exe: fluid.Executor) -> None:
    x = fed("x")
    fed("y")
    middle = layers.exp(x)
    target = layers.square(middle)
    by_middle, by_target = run(exe, *fluid.gradients(target, [middle, target]))
    np.testing.assert_allclose(by_middle, 2 * np.exp(X), rtol=1e-5)
    np.testing.assert_array_equal(by_target, np.ones_like(X))


def test_by_parameters_in_a_loop(exe: fluid.Executor) -> None:
    x = fed("x")
    fed("y")
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    w = layers.create_parameter([4], "float32", "w", default_initializer=fluid.initializer.Constant(2.0))
    value = layers.assign(x)
    cond = layers.less_than(i, n)
    with layers.While(cond).block():
        layers.assign(layers.elementwise_mul(value, w), value)
        layers.increment(i)
        layers.less_than(i, n, cond=cond)
    (by_w,) = run(exe, *fluid.gradients(value, w))
    np.testing.assert_allclose(by_w, 3 * 2.0**2 * X.sum(axis=0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["cond", "switch_case", "while_loop"])
def test_by_the_result_of_a_condition_or_loop(exe: fluid.Executor, kind: str) -> None:
    x = fed("x")
    fed("y")
    if kind == "cond":
        chosen = layers.less_than(layers.reduce_sum(x), layers.fill_constant([1], "float32", 1e9))
        result = layers.cond(chosen, lambda: x * 2.0, lambda: x * 3.0)
    elif kind == "switch_case":
        which = layers.fill_constant([1], "int64", 1)
        result = layers.switch_case(which, [lambda: x * 2.0, lambda: x * 3.0])
    else:
        count, end = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
        _, result = layers.while_loop(
            lambda i, value: layers.less_than(i, end), lambda i, value: [layers.increment(i), value * 2.0], [count, x]
        )
    (by_result,) = fluid.gradients(layers.reduce_sum(result * result), result)
    values, gradient = run(exe, result, by_result)
    np.testing.assert_allclose(gradient, 2 * values, rtol=1e-6)


def test_what_has_no_gradient_is_none_and_leaves_no_trace(exe: fluid.Executor) -> None:
    x, y, still = fed("x"), fed("y"), fed("still", stop_gradient=True)
    ids = layers.data("ids", [1], dtype="int64")
    ids.stop_gradient = False
    target = layers.square(x) + still
    before = str(fluid.default_main_program())
    assert fluid.gradients(target, [y, still, ids]) == [None, None, None]
    assert fluid.gradients(target, y) == [None]
    assert fluid.gradients(target, x, no_grad_set={x.name}) == [None]
    assert str(fluid.default_main_program()) == before
    by_y, by_x = fluid.gradients(target, [y, x])
    assert by_y is None
    assert isinstance(by_x, Variable)


def test_it_can_be_asked_twice_and_beside_a_backward_pass(exe: fluid.Executor) -> None:
    x = fed("x")
    fed("y")
    out = layers.fc(x, 2, bias_attr=False)
    (first,), (second,) = fluid.gradients(out, x), fluid.gradients(layers.scale(out, 2.0), x)
    fluid.optimizer.SGD(0.0).minimize(layers.mean(out))
    one, two = run(exe, first, second)
    w = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    np.testing.assert_allclose(one, np.tile(w.sum(axis=1), (3, 1)), rtol=1e-5)
    np.testing.assert_allclose(two, 2 * one, rtol=1e-5)


def test_a_backward_pass_goes_on_to_what_is_fed(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y", stop_gradient=True)
    weight = layers.create_parameter([4], "float32", name="weight", default_initializer=fluid.initializer.Constant(2.0))
    loss = layers.reduce_sum(x * weight * y)
    pairs = fluid.backward.append_backward(loss)
    assert [(parameter.name, gradient.name) for parameter, gradient in pairs] == [("weight", "weight@GRAD")]
    block = fluid.default_main_program().global_block()
    assert not block.has_var("y@GRAD")
    by_x, by_weight = run(exe, block.var("x@GRAD"), pairs[0][1])
    np.testing.assert_allclose(by_x, 2 * Y, rtol=1e-6)
    np.testing.assert_allclose(by_weight, (X * Y).sum(0), rtol=1e-5)


def test_a_backward_pass_returns_pairs_in_the_order_of_its_parameters() -> None:
    a, b, c = (layers.create_parameter([2], "float32", name) for name in "abc")
    pairs = fluid.backward.append_backward(layers.mean(a * b + c), [c, "a", b, "c"])
    assert [(variable.name, gradient.name) for variable, gradient in pairs] == [
        ("c", "c@GRAD"),
        ("a", "a@GRAD"),
        ("b", "b@GRAD"),
    ]


def test_no_grad_set_keeps_a_backward_pass_from_what_is_fed(exe: fluid.Executor) -> None:
    x = fed("x")
    fed("y")
    loss = layers.reduce_sum(layers.fc(x, 1))
    fluid.backward.append_backward(loss, no_grad_set={x})
    assert not fluid.default_main_program().global_block().has_var("x@GRAD")


def test_no_grad_set_names_variables_of_the_program() -> None:
    x = fed("x")
    out = layers.square(x)
    loss = layers.reduce_sum(out)
    with pytest.warns(RuntimeWarning, match=r"the program has no variable 'square_0\.tmp_1'"):
        fluid.backward.append_backward(loss, no_grad_set={"square_0.tmp_1"})
    with pytest.warns(RuntimeWarning, match="the program has no variable 'y'"):  # passed over, as in Fluid
        assert fluid.gradients(loss, x, no_grad_set={"y"}) != [None]
    assert fluid.gradients(loss, x, no_grad_set={"x@GRAD"}) != [None]  # as in Fluid, that of a variable makes none
    assert fluid.gradients(loss, x, no_grad_set={out}) == [None]


def test_parameters_that_stop_gradients_are_passed_over(exe: fluid.Executor) -> None:
    # As Fluid's detectors freeze the scales of their first layers.
    x = fed("x")
    frozen, named, trained = (layers.create_parameter([4], "float32", name=name) for name in ("frozen", "named", "w"))
    frozen.stop_gradient = True
    loss = layers.reduce_sum(x * frozen * named * trained)
    pairs = fluid.backward.append_backward(loss, no_grad_set={named})
    assert [parameter.name for parameter, _ in pairs] == ["w"]
    block = fluid.default_main_program().global_block()
    assert not block.has_var("frozen@GRAD")
    exe.run(fluid.default_startup_program())
    scope = fluid.global_scope()
    values = [np.array(scope.find_var(name).get_tensor()) for name in ("frozen", "named")]
    (gradient,) = exe.run(feed={"x": X}, fetch_list=[pairs[0][1]])
    np.testing.assert_allclose(gradient, X.sum(0) * values[0] * values[1], rtol=1e-5)


def test_no_gradient_passes_where_the_shape_alone_is_read(exe: fluid.Executor) -> None:
    x = fed("x")
    fed("y")
    hidden = layers.square(x)
    start = layers.fill_constant_batch_size_like(hidden, [-1, 4], "float32", 3.0)
    start.stop_gradient = False
    by_x, by_start = run(exe, *fluid.gradients(hidden * start, [x, start]))
    np.testing.assert_allclose(by_x, 3 * 2 * X, rtol=1e-6)
    np.testing.assert_allclose(by_start, X * X, rtol=1e-6)


def test_a_test_does_without_it() -> None:
    x = fed("x")
    out = layers.square(x)
    forward = len(fluid.default_main_program().global_block().ops)
    fluid.gradients(out, x)
    test = fluid.default_main_program().clone(for_test=True)
    assert len(test.global_block().ops) == forward


def test_what_does_not_fit_is_refused() -> None:
    x = fed("x")
    out = layers.square(x)
    row = layers.fill_constant([4], "float32", 1.0)
    with pytest.raises(errors.TypeMismatch, match="targets takes Variables, got str"):
        fluid.gradients("out", x)
    with pytest.raises(errors.TypeMismatch, match="inputs takes Variables, got int"):
        fluid.gradients(out, [1])
    with pytest.raises(errors.InvalidArgument, match="there are no inputs"):
        fluid.gradients(out, [])
    with pytest.raises(errors.InvalidArgument, match="1 targets need as many target_gradients, not 2"):
        fluid.gradients(out, x, [None, None])
    with pytest.raises(errors.TypeMismatch, match="target_gradients takes Variables or None, got float"):
        fluid.gradients(out, x, [1.0])
    with pytest.raises(errors.InvalidArgument, match=rf"'{out.name}' has shape \[-1, 4\].*'{row.name}' \[4\]"):
        fluid.gradients(out, x, row)
    with fluid.program_guard(fluid.Program()):
        other = fed("x")
    with pytest.raises(errors.InvalidArgument, match="'x' in inputs has to be of the root block"):
        fluid.gradients(out, other)


def test_gradients_have_gradients(exe: fluid.Executor) -> None:
    x = fed("x")
    fed("y")
    (first,) = fluid.gradients(layers.square(x) * x, x)
    (second,) = fluid.gradients(first, x)
    np.testing.assert_allclose(*run(exe, second, layers.scale(x, 6.0)), rtol=1e-6)


def test_an_operator_is_noted_with_no_gradient_of_a_parameter_but_those_that_it_completes() -> None:
    weight = layers.create_parameter([4], "float32", name="w")
    first, second = layers.split(layers.cumsum(weight), 2, 0)
    ((_, gradient),) = fluid.backward.append_backward(layers.reduce_sum(layers.square(first) * second))
    fluid.gradients(layers.square(gradient), weight)
    noted = [op for op in fluid.default_main_program().global_block().ops if op.has_attr("op_role_var")]
    for op in noted:
        assert {*op.attr("op_role_var")[1::2]} <= {*op.output_arg_names}
    assert noted


def test_gradients_of_gradients_that_have_none_are_refused() -> None:
    x = fed("x")
    (first,) = fluid.gradients(layers.softplus(x), x)
    before = str(fluid.default_main_program())
    with pytest.raises(errors.Unimplemented, match="softplus_grad"):
        fluid.gradients(first, x)
    assert str(fluid.default_main_program()) == before


@pytest.mark.parametrize("way", ["layer", "stored", "no_grad_set"])
@pytest.mark.parametrize("kind", ["smooth_l1_loss", "softmax_with_cross_entropy", "warpctc", "gru", "lstm"])
def test_gradients_that_depend_on_intermediate_results_alone_are_no_constants(kind: str, way: str) -> None:
    """Also if these pass no gradient on: in a stored program, say, of Fluid or of an earlier version."""
    x = fluid.data("x", [None, 4], lod_level=1)
    x.stop_gradient = False
    label = fluid.data("label", [None, 1], "int32", lod_level=1)
    out = {
        "smooth_l1_loss": lambda: layers.smooth_l1(x, layers.scale(x, 0.5)),
        "softmax_with_cross_entropy": lambda: layers.softmax_with_cross_entropy(x, layers.cast(label, "int64")),
        "warpctc": lambda: layers.warpctc(x, label),
        "gru": lambda: layers.dynamic_gru(layers.concat([x, x, x], 1), 4),
        "lstm": lambda: layers.dynamic_lstm(x, 4)[0],
    }[kind]()
    program = fluid.default_main_program()
    (op,) = (op for op in program.global_block().ops if op.type == kind)
    others = {name for name in op.output_arg_names if name != out.name}
    if way == "stored":
        for name in others:
            program.global_block().var(name).stop_gradient = True
        program = fluid.Program.parse_from_string(program.serialize_to_string())
        x, out = (program.global_block().var(variable.name) for variable in (x, out))
    with fluid.program_guard(program):
        no_grad_set = others if way == "no_grad_set" else None
        (first,) = fluid.gradients(out, x, no_grad_set=no_grad_set)
        with pytest.raises(errors.Unimplemented, match=f"{kind}_grad"):
            fluid.gradients(layers.square(first), x, no_grad_set=no_grad_set)


@pytest.mark.parametrize("stops", [False, True])
def test_what_the_user_stops_stays_a_constant(exe: fluid.Executor, stops: bool) -> None:
    x, y = fed("x"), fed("y")
    power = layers.softplus(x)
    power.stop_gradient = stops
    (first,) = fluid.gradients(power * y, y)
    (second,) = fluid.gradients(layers.square(first) + layers.square(x), x)
    slope = 0 if stops else 2 * np.log1p(np.exp(X)) / (1 + np.exp(-X))
    np.testing.assert_allclose(*run(exe, second), 2 * X + slope, rtol=1e-5)


def test_gradients_of_steps_are_no_constants() -> None:
    x = fed("x")
    zeros = layers.fill_constant([4], "float32", 0.0)
    rnn = layers.StaticRNN()
    with rnn.step():
        step = rnn.step_input(x)
        state = rnn.memory(init=zeros)
        new = layers.tanh(step + state)
        rnn.update_memory(state, new)
        rnn.step_output(new)
    (first,) = fluid.gradients(rnn(), x)
    with pytest.raises(errors.Unimplemented, match="recurrent_grad"):
        fluid.gradients(layers.square(first), x)


@pytest.mark.parametrize("kind", ["assign", "switch", "while"])
def test_by_what_is_used_and_then_overwritten_is_refused(kind: str) -> None:
    x, y = fed("x"), fed("y")
    middle = layers.scale(x, 2.0)
    used = layers.square(middle)
    if kind == "assign":
        layers.assign(layers.scale(y, 5.0), output=middle)
    elif kind == "switch":
        with (
            layers.Switch() as switch,
            switch.case(layers.less_than(layers.fill_constant([1], "float32", 0.0), layers.reduce_sum(y))),
        ):
            layers.assign(layers.scale(y, 5.0), output=middle)
    else:
        i, end = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 1)
        again = layers.less_than(i, end)
        with layers.While(again).block():
            layers.assign(layers.scale(middle, 5.0), output=middle)
            layers.increment(i)
            layers.less_than(i, end, cond=again)
    with pytest.raises(errors.InvalidArgument, match=f"'{middle.name}' is used and then overwritten"):
        fluid.gradients([used, layers.reduce_sum(middle)], middle)


def test_targets_on_the_way_to_others_and_twice_the_same(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    middle = layers.square(x)
    found = fluid.gradients([middle, middle * middle, middle], [x, middle], [y, None, None])
    by_x, by_middle = run(exe, *found)
    np.testing.assert_allclose(by_middle, Y + 2 * X**2 + 1, rtol=1e-5)
    np.testing.assert_allclose(by_x, 2 * X * (Y + 2 * X**2 + 1), rtol=1e-5)


def test_a_gradient_that_is_given_adds_one_operator_and_is_not_changed(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    out = layers.relu(layers.exp(x))
    before = len(fluid.default_main_program().global_block().ops)
    found = fluid.gradients(out, [x], y)
    added = fluid.default_main_program().global_block().ops[before:]
    assert [op.type for op in added] == ["target_gradient", "relu_grad", "exp_grad"]
    by_x, given = run(exe, *found, y)
    np.testing.assert_allclose(by_x, Y * np.exp(X), rtol=1e-5)
    np.testing.assert_array_equal(given, Y)


@pytest.mark.parametrize("rows", [1, 2, 40])
def test_a_gradient_of_other_dims_than_its_target_is_refused_by_a_run(exe: fluid.Executor, rows: int) -> None:
    x, y = fed("x"), fed("y")
    for target in (layers.scale(x, 2.0), layers.relu(x), x):
        found = fluid.gradients(target, x, y)
        with pytest.raises(errors.InvalidArgument, match=rf"expected dims \[3, 4\], got \[{rows}, 4\].*'y'"):
            exe.run(feed={"x": X, "y": np.ones((rows, 4), "float32")}, fetch_list=found)


def test_a_gradient_by_the_target_itself_is_a_variable_of_its_own(exe: fluid.Executor) -> None:
    x, y = fed("x"), fed("y")
    (found,) = fluid.gradients(x, x, y)
    layers.assign(layers.scale(found, 100.0), found)
    by_x, given = run(exe, found, y)
    np.testing.assert_allclose(by_x, 100.0 * Y, rtol=1e-6)
    np.testing.assert_array_equal(given, Y)


def test_the_types_of_a_target_and_its_gradient_are_the_same() -> None:
    x = fed("x")
    with pytest.raises(errors.TypeMismatch, match=r"is float32, but its gradient .* float64"):
        fluid.gradients(layers.square(x), x, layers.cast(x, "float64"))


def test_by_one_variable_that_is_named() -> None:
    x, y = fed("x"), fed("y")
    pairs = fluid.backward.append_backward(layers.mean(x * y), "y")
    assert [(variable.name, gradient.name) for variable, gradient in pairs] == [("y", "y@GRAD")]
