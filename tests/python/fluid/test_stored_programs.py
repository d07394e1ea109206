"""A program that is stored is the program: it trains, is evaluated and is cloned for a test as the original is, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from program_builders import NETWORKS, OPTIMIZERS, Network, mlp, with_everything_on_parameters

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import OpRole, Parameter, Variable

STEPS = 3
PROGRAMS = Path(__file__).parents[2] / "operators" / "programs"

State = dict[str, np.ndarray]


def stored(program: fluid.Program) -> fluid.Program:
    """The program, through bytes."""
    binary = program.serialize_to_string()
    parsed = fluid.Program.parse_from_string(binary)
    assert parsed.serialize_to_string() == binary
    assert parsed.to_string() == program.to_string()
    return parsed


def state(main: fluid.Program) -> State:
    scope = fluid.global_scope()
    names = [v.name for v in main.list_vars() if v.persistable and v.type == fluid.core.VarType.LOD_TENSOR]
    return {name: np.array(scope.find_var(name).get_tensor()) for name in names}


def history(main: fluid.Program, startup: fluid.Program, network: Network) -> list[np.ndarray | State]:
    """All that is computed: an evaluation, and training steps with evaluations between them."""
    test = main.clone(for_test=True)
    assert not any(op.is_backward for block in test.blocks for op in block.ops)
    out: list[np.ndarray | State] = []
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        exe.run(startup)
        for step in range(STEPS):
            before = state(main)
            out.append(exe.run(test, feed=network.batch(step), fetch_list=[network.loss.name])[0])
            assert_same(state(main), before)
            out.append(exe.run(main, feed=network.batch(step), fetch_list=[network.loss.name])[0])
            out.append(state(main))
    return out


def assert_same(got: object, expected: object) -> None:
    if isinstance(expected, dict):
        assert isinstance(got, dict)
        assert list(got) == list(expected)
        for name in expected:
            np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    elif isinstance(expected, list):
        assert isinstance(got, list)
        assert len(got) == len(expected)
        for one, other in zip(got, expected):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(got, expected)


def check(build: Callable[[], Network], optimizer: Callable[[], fluid.optimizer.Optimizer]) -> None:
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    main.random_seed = 5
    network = build()
    forward, forward_startup = stored(main), stored(startup)
    with fluid.unique_name.guard():
        optimizer().minimize(network.loss)
    expected = history(main, startup, network)
    assert_same(history(stored(main), stored(startup), network), expected)
    # What decides how it trains is in the bytes from before minimize, too.
    forward.random_seed = 5
    with fluid.program_guard(forward, forward_startup), fluid.unique_name.guard():
        loss = forward.global_block().var(network.loss.name)
        optimizer().minimize(loss)
    assert_same(history(forward, forward_startup, network), expected)


@pytest.mark.parametrize("build", NETWORKS, ids=[build.__name__ for build in NETWORKS])
def test_every_kind_of_network(build: Callable[[], Network]) -> None:
    check(build, OPTIMIZERS["Adam"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_every_optimizer(optimizer: Callable[[], fluid.optimizer.Optimizer]) -> None:
    check(mlp, optimizer)


@pytest.mark.parametrize("name", ["SGD", "Momentum", "L2Decay", "global norm"])
def test_what_belongs_to_parameters(name: str) -> None:
    check(with_everything_on_parameters, OPTIMIZERS[name])
    main = fluid.default_main_program()
    changed = {op.input("Param")[0] for op in main.global_block().ops if op.type in ("sgd", "momentum")}
    assert changed == {"still", "l1", "by_value", "l2", "by_norm"}


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.program")), ids=lambda path: path.name)
def test_programs_in_files(path: Path) -> None:
    """Those were written before there were roles; what they have is kept."""
    program = fluid.Program.parse_from_string(path.read_bytes())
    again = stored(program)
    assert [op.all_attrs() for op in again.global_block().ops] == [op.all_attrs() for op in program.global_block().ops]


RATES: dict[str, Callable[[], float | Variable]] = {
    "number": lambda: 0.1,
    "piecewise": lambda: layers.piecewise_decay([1], [0.1, 0.01]),
    "exponential": lambda: layers.exponential_decay(0.1, 1, 0.5),
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("looks_ahead", [False, True])
def test_a_program_is_trained_where_it_was_not_built(rate: str, looks_ahead: bool) -> None:
    """Elsewhere, the counters of names begin anew."""
    count, step = layers.fill_constant([1], "int64", 3), layers.fill_constant([1], "int64", 0)
    _, h = layers.while_loop(
        lambda step, h: layers.less_than(step, count),
        lambda step, h: [layers.increment(step), layers.fc(h, 4, act="tanh", param_attr="w")],
        [step, fluid.data("x", [None, 4])],
    )
    network = Network(layers.reduce_mean(h) * 2.0, lambda n: {"x": np.full((2, 4), n + 1, np.float32)})
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    elsewhere, elsewhere_startup = stored(main), stored(startup)

    def losses(main: fluid.Program, startup: fluid.Program) -> list[float]:
        with fluid.program_guard(main, startup):
            optimizer: Any = fluid.optimizer.SGD(RATES[rate]())
            if looks_ahead:
                optimizer = fluid.optimizer.LookaheadOptimizer(optimizer, k=2)
            optimizer.minimize(main.global_block().var(network.loss.name))
        exe, scope = fluid.Executor(), fluid.Scope()
        exe.run(startup, scope=scope)
        runs = [exe.run(main, network.batch(n), [network.loss.name], scope=scope) for n in range(STEPS)]
        return [values[0].item() for values in runs]

    with fluid.unique_name.guard():
        seen = losses(elsewhere, elsewhere_startup)
    assert len(set(seen)) == STEPS
    assert seen == losses(main, startup)


def test_another_optimizer_has_the_rate_that_it_was_given() -> None:
    network = mlp()
    fluid.optimizer.SGD(0.5).minimize(network.loss)
    main, startup = stored(fluid.default_main_program()).clone(for_test=True), stored(fluid.default_startup_program())
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        optimizer = fluid.optimizer.SGD(0.25)
        optimizer.minimize(main.global_block().var(network.loss.name))
    fluid.Executor().run(startup)
    rate = optimizer._global_learning_rate(main)
    assert rate is not None
    assert np.asarray(fluid.global_scope().find_var(rate.name).get_tensor()).item() == 0.25


def test_averages_are_left_out_of_a_test() -> None:
    network = mlp()
    fluid.optimizer.SGD(0.1).minimize(network.loss)
    fluid.optimizer.ModelAverage(0.5, 1, 2)
    fluid.optimizer.ExponentialMovingAverage(0.9).update()
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    assert_same(history(stored(main), stored(startup), network), history(main, startup, network))


def test_roles_are_fluids() -> None:
    network = mlp()
    fluid.optimizer.SGD(layers.exponential_decay(0.1, 2, 0.5)).minimize(network.loss)
    ops = stored(fluid.default_main_program()).global_block().ops
    roles = {op.type: OpRole(op.attr("op_role")) for op in ops}
    assert roles["relu"] == OpRole.FORWARD
    assert roles["mean"] == OpRole.LOSS
    assert roles["relu_grad"] == OpRole.BACKWARD
    assert roles["sgd"] == OpRole.OPTIMIZE
    assert roles["increment"] == OpRole.LR_SCHED
    filled = next(op for op in ops if op.output_arg_names == [f"{network.loss.name}@GRAD"])
    assert OpRole(filled.attr("op_role")) == OpRole.BACKWARD | OpRole.LOSS
    update = next(op for op in ops if op.type == "sgd")
    assert update.attr("op_role_var") == [update.input("Param")[0], update.input("Grad")[0]]
    completes = next(op for op in ops if update.input("Grad")[0] in op.output_arg_names)
    assert update.attr("op_role_var")[0] in completes.attr("op_role_var")


def test_name_scopes_are_stored() -> None:
    with fluid.name_scope("encoder"), fluid.name_scope("layer"):
        layers.fc(layers.data("x", [2]), 2)
    assert {op.namescope for op in stored(fluid.default_main_program()).global_block().ops} == {"/encoder/layer/"}


def test_what_can_be_set_on_a_parameter_is_stored_when_it_is_set() -> None:
    w = layers.create_parameter([2], "float32", name="w")
    w.trainable = False
    w.optimize_attr["learning_rate"] = 0.5
    w.regularizer = fluid.regularizer.L2Decay(3)
    w.gradient_clip_attr = fluid.clip.GradientClipByGlobalNorm(2.0, "group")
    w.error_clip = fluid.clip.ErrorClipByValue(1.0)
    (parsed,) = stored(fluid.default_main_program()).all_parameters()
    assert isinstance(parsed, Parameter)
    assert not parsed.trainable
    assert parsed.optimize_attr == {"learning_rate": 0.5}
    assert isinstance(parsed.regularizer, fluid.regularizer.L2Decay)
    assert parsed.regularizer.regularization_coeff == 3
    assert isinstance(parsed.gradient_clip_attr, fluid.clip.GradientClipByGlobalNorm)
    assert (parsed.gradient_clip_attr.clip_norm, parsed.gradient_clip_attr.group_name) == (2.0, "group")
    assert parsed.error_clip is not None
    assert (parsed.error_clip.max, parsed.error_clip.min) == (1.0, -1.0)
    w.regularizer = w.gradient_clip_attr = w.error_clip = None
    (parsed,) = stored(fluid.default_main_program()).all_parameters()
    assert parsed.regularizer is parsed.gradient_clip_attr is parsed.error_clip is None


def test_a_clone_has_the_objects_that_were_given() -> None:
    decay = fluid.regularizer.L2Decay(3)
    layers.create_parameter([2], "float32", attr=fluid.ParamAttr("w", regularizer=decay))
    (copy,) = fluid.default_main_program().clone().all_parameters()
    assert copy.regularizer is decay


def test_what_is_stored_with_a_program_cannot_be_changed_behind_its_back() -> None:
    for thing, name in [
        (fluid.regularizer.L2Decay(3), "regularization_coeff"),
        (fluid.clip.GradientClipByValue(3), "max"),
        (fluid.clip.GradientClipByNorm(3), "clip_norm"),
        (fluid.clip.ErrorClipByValue(3), "min"),
    ]:
        with pytest.raises(AttributeError, match="create a new one"):
            setattr(thing, name, 5)


class Mine(fluid.regularizer.L2Decay):
    """A user's own."""


def test_a_regularizer_of_ones_own_has_to_be_set_again() -> None:
    x = layers.data("x", [2])
    loss = layers.mean(layers.fc(x, 1, param_attr=fluid.ParamAttr("w", regularizer=Mine(0.5)), bias_attr=False))
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    parsed, parsed_startup = stored(main), stored(startup)
    with fluid.program_guard(parsed, parsed_startup):
        again = parsed.global_block().var(loss.name)
        with pytest.raises(errors.FailedPrecondition, match=r"regularizer of 'w' was of class .*Mine.*set it again"):
            fluid.optimizer.SGD(0.1).minimize(again)
    parsed = stored(main)
    with fluid.program_guard(parsed, parsed_startup):
        parsed.global_block().var("w").regularizer = Mine(0.5)
        with fluid.unique_name.guard():
            fluid.optimizer.SGD(0.1).minimize(parsed.global_block().var(loss.name))
    with fluid.unique_name.guard():
        fluid.optimizer.SGD(0.1).minimize(loss)  # which has it still
    network = Network(loss, lambda step: {"x": np.full((2, 2), step, np.float32)})
    assert_same(history(parsed, parsed_startup, network), history(main, startup, network))


def foreign(program: fluid.Program, keep_parameters: bool) -> fluid.Program:
    """As Fluid stores it: nothing says how a parameter is trained, nor, in Fluid 1, which variables are parameters."""
    desc = program.desc.copy()
    for var in desc.block(0).vars():
        var.attrs = {}
        var.is_parameter = var.is_parameter and keep_parameters
    return fluid.Program.parse_from_string(desc.serialize_to_string())


def built() -> tuple[Variable, fluid.Program, fluid.Program]:
    x = layers.data("x", [2])
    hidden = layers.fc(x, 2, param_attr=fluid.ParamAttr("frozen", trainable=False), bias_attr=False)
    loss = layers.mean(layers.square(layers.fc(hidden, 1, param_attr="w", bias_attr=False)))
    return loss, fluid.default_main_program(), fluid.default_startup_program()


@pytest.mark.parametrize("keep_parameters", [False, True])
def test_a_program_that_does_not_say_what_is_trained_is_not_trained_by_guessing(keep_parameters: bool) -> None:
    loss, main, startup = built()
    parsed = foreign(main, keep_parameters)
    network = Network(loss, lambda step: {"x": np.full((2, 2), step, np.float32)})
    with fluid.program_guard(parsed, startup):
        again = parsed.global_block().var(loss.name)
        with pytest.raises((errors.FailedPrecondition, errors.InvalidArgument), match="parameter_list"):
            fluid.optimizer.SGD(0.1).minimize(again)
        _, pairs = fluid.optimizer.SGD(0.1).minimize(again, parameter_list=["w"])
    assert [(parameter.name, gradient.name) for parameter, gradient in pairs] == [("w", "w@GRAD")]
    with fluid.unique_name.guard():
        fluid.optimizer.SGD(0.1).minimize(loss)
    expected = [out for out in history(main, startup, network) if not isinstance(out, dict)]
    assert_same([out for out in history(parsed, startup, network) if not isinstance(out, dict)], expected)


def test_only_what_persists_can_be_made_a_parameter() -> None:
    loss, main, startup = built()
    parsed = foreign(main, keep_parameters=False)
    with fluid.program_guard(parsed, startup), pytest.raises(errors.InvalidArgument, match=r"'x'.*cannot be trained"):
        fluid.optimizer.SGD(0.1).minimize(parsed.global_block().var(loss.name), parameter_list=["x"])


def test_a_training_program_of_fluid_is_cloned_for_a_test() -> None:
    """It has roles, and attributes that we leave out."""
    loss, main, startup = built()
    fluid.optimizer.SGD(0.1).minimize(loss)
    parsed = foreign(main, keep_parameters=False)
    network = Network(loss, lambda step: {"x": np.full((2, 2), step, np.float32)})
    test = parsed.clone(for_test=True)
    assert [op.type for op in test.global_block().ops] == ["mul", "mul", "square", "mean"]
    assert_same(history(parsed, startup, network), history(main, startup, network))


def test_damaged_attributes_of_a_parameter_are_reported() -> None:
    w = layers.create_parameter([2], "float32", name="w")
    w.desc.attrs = {"trainable": True, "regularizer": "L2DecayRegularizer"}
    (parsed,) = stored(fluid.default_main_program()).all_parameters()
    with pytest.raises(errors.DataLoss, match=r"regularizer of 'w'"):
        _ = parsed.regularizer
