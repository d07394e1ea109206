"""What programs written for Fluid use to write layers, schedules and averages of their own."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper

RNG = np.random.default_rng(3)


def value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def scaled(
    input: Any,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    helper = LayerHelper("scaled", **locals())
    dtype = helper.input_dtype()
    products = []
    for item, attr in helper.iter_inputs_and_params():
        weight = helper.create_parameter(attr=attr, shape=[item.shape[-1], size], dtype=dtype, is_bias=False)
        product = helper.create_variable_for_type_inference(dtype)
        helper.append_op(type="mul", inputs={"X": item, "Y": weight}, outputs={"Out": product})
        products.append(product)
    total = helper.create_variable_for_type_inference(dtype)
    helper.append_op(type="sum", inputs={"X": products}, outputs={"Out": total})
    return helper.append_activation(helper.append_bias_op(total, dim_start=1))


def test_a_layer_of_ones_own_computes_what_fc_does(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 2])
    names = [fluid.ParamAttr(name) for name in ("a", "b")]
    mine = scaled([x, y], 4, names, fluid.ParamAttr("bias", fluid.initializer.Constant(0.5)), "tanh")
    theirs = layers.fc([x, y], 4, param_attr=names, bias_attr="bias", act="tanh")
    plain = scaled(x, 4, bias_attr=False)
    exe.run(fluid.default_startup_program())
    feed = {"x": RNG.normal(size=(5, 3)).astype(np.float32), "y": RNG.normal(size=(5, 2)).astype(np.float32)}
    got, want, third = exe.run(feed=feed, fetch_list=[mine, theirs, plain])
    np.testing.assert_array_equal(got, want)
    weight = fluid.default_main_program().all_parameters()[-1]
    np.testing.assert_allclose(third, feed["x"] @ value(weight.name), rtol=1e-5)
    assert weight.name == "scaled_1.w_0"


def test_a_layers_arguments_are_checked() -> None:
    x, n = fluid.data("x", [None, 3]), fluid.data("n", [None, 3], "int64")
    with pytest.raises(errors.TypeMismatch, match="'n' int64"):
        scaled([x, n], 2)
    with pytest.raises(errors.InvalidArgument, match="2 inputs, got 1"):
        scaled([x, x], 2, [None])
    with pytest.raises(errors.TypeMismatch, match="input has to be a Variable, got int"):
        scaled([3], 2)
    helper = LayerHelper("mine", input=[x, x], size="four")
    with pytest.raises(errors.InvalidArgument, match="input has to be one variable, got 2"):
        helper.input()
    with pytest.raises(errors.TypeMismatch, match="size"):
        helper.is_instance("size", int)
    with pytest.raises(errors.TypeMismatch, match="not a parameter"):
        helper.get_parameter("x")


def test_variables_of_a_layer(exe: fluid.Executor) -> None:
    helper = LayerHelper("mine")
    count = helper.create_global_variable(name="count", shape=[1], dtype="float32", persistable=True)
    helper.set_variable_initializer(count, initializer=fluid.initializer.Constant(3.0))
    assert helper.create_or_get_global_variable(name="count") == (count, False)
    other, is_new = helper.create_or_get_global_variable(name="other", dtype="float32", shape=[1])
    assert (other.name, is_new, other.persistable) == ("other", True, True)
    made = helper.create_variable(name="made", dtype="float32", persistable=False)
    helper.append_op(type="scale", inputs={"X": [count]}, outputs={"Out": [made]}, attrs={"scale": 2.0})
    exe.run(fluid.default_startup_program())
    assert exe.run(fetch_list=[made])[0] == [6]
    weight = helper.create_parameter(None, [2], "float32")
    assert helper.get_parameter(weight.name) is weight


def test_a_schedule_of_ones_own(exe: fluid.Executor) -> None:
    from headrace.fluid.initializer import init_on_cpu
    from headrace.fluid.layers.learning_rate_scheduler import _decay_step_counter

    step = _decay_step_counter()
    with init_on_cpu():
        assert fluid.initializer.force_init_on_cpu()
        rate = layers.ops.cos(step * (math.pi / 10)) * 0.1
    assert not fluid.initializer.force_init_on_cpu()
    loss = layers.mean(layers.fc(fluid.data("x", [None, 2]), 1))
    optimizer = fluid.optimizer.SGD(rate)
    optimizer.minimize(loss)
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((1, 2), np.float32)}
    rates = [exe.run(feed=feed, fetch_list=[optimizer._global_learning_rate()])[0].item() for _ in range(3)]
    np.testing.assert_allclose(rates, [0.1 * math.cos(math.pi / 10 * k) for k in range(3)], rtol=1e-6)


def test_the_learning_rate_may_be_fetched(exe: fluid.Executor) -> None:
    loss = layers.mean(layers.fc(fluid.data("x", [None, 2]), 1))
    optimizer = fluid.optimizer.Momentum(0.25, 0.9)
    assert optimizer._global_learning_rate() is None
    optimizer.minimize(loss)
    exe.run(fluid.default_startup_program())
    (rate,) = exe.run(feed={"x": np.ones((1, 2), np.float32)}, fetch_list=[optimizer._global_learning_rate()])
    assert rate == [0.25]
    assert optimizer._global_learning_rate(fluid.Program()) is None


def test_a_parameter_may_be_left_out_of_averages(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, 2])
    attrs = [fluid.ParamAttr("in", do_model_average=True), fluid.ParamAttr("out", do_model_average=False)]
    loss = layers.mean(sum((layers.fc(x, 1, param_attr=attr, bias_attr=False) for attr in attrs), start=0.0))
    main = fluid.default_main_program()
    assert {p.name: p.do_model_average for p in main.all_parameters()} == {"in": True, "out": False}
    stored = fluid.Program.parse_from_string(main.serialize_to_string())
    assert {p.name: p.do_model_average for p in stored.all_parameters()} == {"in": True, "out": False}
    fluid.optimizer.SGD(1.0).minimize(loss)
    average = fluid.optimizer.ExponentialMovingAverage(0.5)
    average.update()
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        exe.run(feed={"x": np.ones((1, 2), np.float32)})
    before = value("in"), value("out")
    with average.apply(exe):
        assert (value("in") != before[0]).all()
        np.testing.assert_array_equal(value("out"), before[1])


def test_variables_are_declared_in_another_program(exe: fluid.Executor) -> None:
    layers.fc(fluid.data("x", [None, 2]), 1, param_attr="w", bias_attr=False)
    exe.run(fluid.default_startup_program())
    main, other = fluid.default_main_program(), fluid.Program()
    with fluid.program_guard(other, fluid.Program()):
        weight = other.global_block()._clone_variable(main.global_block().var("w"))
        plain = other.global_block()._clone_variable(main.global_block().var("x"), force_persistable=False)
        doubled = layers.scale(weight, 2.0)
    assert (weight.persistable, weight.shape, plain.persistable, plain.is_data) == (True, (2, 1), False, True)
    np.testing.assert_array_equal(exe.run(other, fetch_list=[doubled])[0], 2 * value("w"))


def test_predicates_say_what_is_saved(exe: fluid.Executor, tmp_path: Path) -> None:
    loss = layers.mean(layers.fc(fluid.data("x", [None, 2]), 1, param_attr="w", bias_attr=False))
    fluid.optimizer.Adam(0.1).minimize(loss)
    exe.run(fluid.default_startup_program())
    fluid.io.save_vars(exe, str(tmp_path / "p"), predicate=fluid.io.is_parameter)
    fluid.io.save_vars(exe, str(tmp_path / "all"), predicate=fluid.io.is_persistable)
    kept = {path.name for path in (tmp_path / "p").iterdir() if not path.name.startswith(".")}
    assert kept == {"w"}
    assert len(list((tmp_path / "all").glob("w*"))) == 5
    fluid.io.load_vars(exe, str(tmp_path / "p"), predicate=fluid.io.is_parameter)


def test_decorators_keep_signatures() -> None:
    from headrace.fluid.wrapped_decorator import signature_safe_contextmanager, wrap_decorator

    entered = []

    @signature_safe_contextmanager
    def within(n: int) -> Any:
        entered.append(n)
        yield 2 * n

    with within(4) as got:
        assert (got, entered) == (8, [4])
    assert list(inspect.signature(within).parameters) == ["n"]

    @wrap_decorator
    def twice(function: Any) -> Any:
        return lambda *args: 2 * function(*args)

    @twice
    def plus(a: int, b: int) -> int:
        """Adds."""
        return a + b

    assert plus(1, 2) == 6
    assert (plus.__doc__, list(inspect.signature(plus).parameters)) == ("Adds.", ["a", "b"])


@pytest.mark.parametrize("dim", [None, 0, 1, -1])
def test_a_weight_of_direction_and_lengths(exe: fluid.Executor, dim: int | None) -> None:
    x = fluid.data("x", [None, 3])
    attr = fluid.WeightNormParamAttr(dim, "w", fluid.initializer.Normal(0.0, 2.0))
    out = layers.fc(x, 2, param_attr=attr, bias_attr=False)
    loss = layers.reduce_sum(layers.square(out))
    fluid.optimizer.SGD(0.01).minimize(loss)
    main = fluid.default_main_program()
    assert {p.name for p in main.all_parameters()} == {"w_v", "w_g"}
    exe.run(fluid.default_startup_program())
    v, g = value("w_v").astype(float), value("w_g").astype(float)

    def norm(v: np.ndarray) -> np.ndarray:
        axis = None if dim is None else 1 - dim % 2
        return np.sqrt((v * v).sum(axis, keepdims=True))

    assert g.shape == norm(v).shape  # as in Fluid's files
    np.testing.assert_allclose(g.ravel(), norm(v).ravel(), rtol=1e-5)  # so that the weight begins as v
    a = RNG.normal(size=(4, 3))

    def loss_of(v: np.ndarray, g: np.ndarray) -> float:
        return float(((a @ (v * g.reshape(norm(v).shape) / norm(v))) ** 2).sum())

    g2 = g * 1.5
    fluid.global_scope().find_var("w_g").get_tensor().set(g2.astype(np.float32), fluid.CPUPlace())
    got, dv, dg = exe.run(feed={"x": a.astype(np.float32)}, fetch_list=[loss, "w_v@GRAD", "w_g@GRAD"])
    np.testing.assert_allclose(got, [loss_of(v, g2)], rtol=1e-4)
    for gradient, array, of in ((dv, v, lambda p: loss_of(p, g2)), (dg, g2, lambda p: loss_of(v, p))):
        for place in np.ndindex(array.shape):
            step = np.zeros(array.shape)
            step[place] = 1e-5
            want = (of(array + step) - of(array - step)) / 2e-5
            assert gradient[place] == pytest.approx(want, rel=2e-3, abs=2e-3)


def test_a_dimension_of_lengths_that_is_not_there_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"dim has to be in \[-2, 2\)"):
        layers.fc(fluid.data("x", [None, 3]), 2, param_attr=fluid.WeightNormParamAttr(2))


def test_a_name_is_a_string() -> None:
    with pytest.raises(errors.TypeMismatch, match=r"layers\.log_softmax: name has to be a string, got int"):
        layers.log_softmax(fluid.data("x", [None, 3, 2]), -2)


def test_operators_of_schedules_and_updates_are_left_out_of_tests(exe: fluid.Executor) -> None:
    main = fluid.default_main_program()
    x = fluid.data("x", [1])
    kept = layers.create_global_var([1], 1.0, "float32", persistable=True, name="kept")
    out = layers.scale(x, 2.0)
    with main._lr_schedule_guard():
        layers.increment(kept, 1.0)
    with main._optimized_guard([x, out]):
        layers.assign(kept + 10.0, kept)
    test = main.clone(for_test=True)
    assert [op.type for op in test.global_block().ops] == ["scale"]
    assert main.global_block().ops[-1].attr("op_role_var") == ["x", out.name]
    exe.run(fluid.default_startup_program())
    for program, want in ((main, 12.0), (test, 12.0), (main, 23.0)):
        assert exe.run(program, feed={"x": np.ones(1, np.float32)}, fetch_list=[out])[0] == [2]
        assert value("kept") == [want]
