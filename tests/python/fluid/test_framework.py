"""Programs, blocks, operators and variables."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from nets import fed_regression, number_reader, regression_batch

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Parameter


def test_layers_go_into_the_default_programs() -> None:
    fed_regression()
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    assert [op.type for op in main.global_block().ops] == [
        "mul",
        "elementwise_add",
        "elementwise_sub",
        "square",
        "mean",
    ]
    assert [op.type for op in startup.global_block().ops] == ["uniform_random", "fill_constant"]
    assert [p.name for p in main.all_parameters()] == ["fc_0.w_0", "fc_0.b_0"]


def test_program_guard_restores_what_was_before() -> None:
    before = fluid.default_main_program(), fluid.default_startup_program()
    inner = fluid.Program()
    with pytest.raises(RuntimeError), fluid.program_guard(inner):
        assert fluid.default_main_program() is inner
        assert fluid.default_startup_program() is before[1]
        raise RuntimeError
    assert (fluid.default_main_program(), fluid.default_startup_program()) == before
    with pytest.raises(TypeError), fluid.program_guard("not a program"):
        pass


def test_shapes_are_inferred_as_the_program_is_built() -> None:
    x = fluid.layers.data("x", [4], dtype="float32")
    out = fluid.layers.fc(x, 3)
    assert x.shape == (-1, 4)
    assert out.shape == (-1, 3)
    assert out.dtype == core.VarDesc.VarType.FP32


@pytest.mark.parametrize(
    ("shape", "append", "expected"),
    [([4], True, (-1, 4)), ([-1, 4], True, (-1, 4)), ([3, 4], False, (3, 4)), ([None, 4], True, (-1, 4))],
)
def test_data_adds_the_dimension_of_the_batch(shape: list[int], append: bool, expected: tuple[int, ...]) -> None:
    assert fluid.layers.data("x", shape, append_batch_size=append).shape == expected


def test_an_unknown_operator_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="no_such_op"):
        fluid.default_main_program().global_block().append_op("no_such_op")


def test_an_operator_with_unknown_variables_or_slots_is_refused() -> None:
    block = fluid.default_main_program().global_block()
    block.create_var(name="x", shape=[2], dtype="float32")
    block.create_var(name="out")
    with pytest.raises(KeyError, match="missing"):
        block.append_op("relu", {"X": "missing"}, {"Out": "out"})
    with pytest.raises(errors.HeadraceError, match="Y"):
        block.append_op("relu", {"X": "x", "Y": "x"}, {"Out": "out"})
    with pytest.raises(TypeError, match="scale"):
        block.append_op("scale", {"X": "x"}, {"Out": "out"}, {"scale": "large"})
    with pytest.raises(TypeError, match="scale"):
        block.append_op("scale", {"X": "x"}, {"Out": "out"}, {"scale": object()})
    with pytest.raises(TypeError, match="X"):
        block.append_op("relu", {"X": 3}, {"Out": "out"})
    assert block.ops == []
    assert block.desc.op_count() == 0


def test_shapes_that_do_not_fit_are_refused_when_the_program_is_built() -> None:
    x = fluid.layers.data("x", [2, 3], append_batch_size=False)
    y = fluid.layers.data("y", [2, 3], append_batch_size=False)
    with pytest.raises(ValueError, match="matmul") as caught:
        fluid.layers.matmul(x, y)
    assert isinstance(caught.value, errors.InvalidArgument)


def test_an_error_names_the_variable_that_it_is_about(exe: fluid.Executor) -> None:
    image, label = fluid.layers.data("image", [3]), fluid.layers.data("label", [4])
    with pytest.raises(
        errors.InvalidArgument, match=r"input Y: .*\[operator 'huber_loss', variable 'label'\]"
    ) as caught:
        fluid.layers.huber_loss(image, label, 1.0)
    assert caught.value.variable == "label"
    joined = fluid.layers.concat([image, fluid.layers.data("other", [-1, -1], append_batch_size=False)], axis=1)
    with pytest.raises(errors.InvalidArgument, match=r"\[operator 'concat', variable 'image', 'other'\]"):
        exe.run(feed={"image": np.ones((2, 3), "f"), "other": np.ones((3, 1), "f")}, fetch_list=[joined])
    block = fluid.default_main_program().global_block()
    with pytest.raises(errors.TypeMismatch, match=r"attribute 'scale'.*\[operator 'scale' \(X=\[image\]\)\]$") as about:
        block.append_op("scale", {"X": image}, {"Out": image}, {"scale": "two"})
    assert about.value.variable is None


def test_a_kernel_that_is_missing_shows_when_the_program_is_built() -> None:
    numbers = fluid.layers.data("numbers", [3], dtype="int32")
    with pytest.raises(errors.Unimplemented, match=r"'log' has no kernel for int32.*variable 'numbers'"):
        fluid.layers.log(numbers)


@pytest.mark.parametrize("op_type", ["scale", "relu", "mean", "is_empty", "isfinite", "shape", "lod_reset"])
def test_kernels_take_tensors_only(op_type: str) -> None:
    block = fluid.default_main_program().global_block()
    x = fluid.data("x", [2, 3])
    array = fluid.layers.array_write(x, fluid.layers.fill_constant([1], "int64", 0))
    table = block.create_var("table", type=core.VarType.LOD_RANK_TABLE)
    slot = "Input" if op_type == "shape" else "X"
    for given, kind in ((array, "LoDTensorArray"), (table, "LoDRankTable")):
        with pytest.raises(errors.TypeMismatch) as raised:
            block.append_op(op_type, {slot: given}, {"Out": block.create_var("out")})
        message = f"variable '{given.name}' in input slot '{slot}' of '{op_type}' is a {kind}, expected a LoDTensor"
        assert str(raised.value).startswith(message)
        with pytest.raises(
            errors.TypeMismatch, match=rf"'{given.name}' in output slot 'Out' of '{op_type}' is a {kind}"
        ):
            block.append_op(op_type, {slot: x}, {"Out": given})


def test_an_array_where_a_program_has_a_tensor_is_an_error_that_says_so(exe: fluid.Executor) -> None:
    block = fluid.default_main_program().global_block()
    block.create_var("kept", [1], "float32", persistable=True)
    fluid.global_scope().var("kept").get_lod_tensor_array()
    out = fluid.layers.scale(block.var("kept"), 2.0)
    with pytest.raises(errors.TypeMismatch, match=r"variable 'kept' holds a LoDTensorArray, expected a LoDTensor "):
        exe.run(fetch_list=[out])


def test_an_operators_gradient_needs_what_it_is_of() -> None:
    block = fluid.default_main_program().global_block()
    x, out = fluid.layers.data("x", [3]), block.create_var("out", dtype="float32")
    with pytest.raises(errors.InvalidArgument, match=r"output slot 'Bias@GRAD'.*but not input slot 'Bias'"):
        names = {"Input": x, "Weight": x, "BatchGate": x, "BatchResetHiddenPrev": x, "BatchHidden": x}
        block.append_op("gru_grad", {**names, "Hidden@GRAD": x}, {"Bias@GRAD": out})


def test_text_that_is_not_utf8_does_not_hide_an_error() -> None:
    fluid.layers.scale(fluid.layers.data("x", [3]), 2.0)
    binary = fluid.default_main_program().serialize_to_string().replace(b"scale", b"sc\xffle")
    with pytest.raises(errors.NotFound, match=r"no operator 'sc\\xffle'"):
        fluid.Program.parse_from_string(binary)


@pytest.mark.parametrize("op_type", ["send", "listen_and_serv", "split_selected_rows", "extract_rows", "get_places"])
def test_operators_of_several_machines_are_refused_with_advice(op_type: str) -> None:
    block = fluid.default_main_program().global_block()
    with pytest.raises(errors.NotFound, match=f"no operator '{op_type}'.*several machines or devices.*made from"):
        block.append_op(op_type, {"X": fluid.layers.data("x", [3])}, {"Out": block.create_var("out")})


def test_a_name_means_one_variable() -> None:
    block = fluid.default_main_program().global_block()
    block.create_var(name="x", shape=[2], dtype="float32")
    block.create_var(name="x", shape=[2])
    with pytest.raises(ValueError, match="'x'"):
        block.create_var(name="x", shape=[3])
    with pytest.raises(KeyError, match="'y'"):
        block.var("y")


def test_operators_tell_their_slots_and_attributes() -> None:
    x = fluid.layers.data("x", [4])
    out = fluid.layers.scale(x, 2.0, bias=1.0)
    op = fluid.default_main_program().global_block().ops[-1]
    assert (op.type, op.input("X"), op.output("Out")) == ("scale", ["x"], [out.name])
    assert (op.input_arg_names, op.output_arg_names) == (["x"], [out.name])
    assert op.attr("scale") == 2.0
    assert op.desc.attr("scale") == 2.0
    assert op.desc.has_attr("scale")
    assert not op.desc.has_attr("nothing")
    with pytest.raises(KeyError, match="'nothing'"):
        op.desc.attr("nothing")
    assert op.has_attr("bias_after_scale")
    assert op.all_attrs()["bias"] == 1.0
    with pytest.raises(KeyError, match="nothing"):
        op.attr("nothing")
    op._set_attr("scale", 3.0)
    assert op.attr("scale") == 3.0


@pytest.mark.parametrize(
    "value",
    [[0, 1], (0, 1), np.array([0, 1]), [np.int64(0), np.int32(1)]],
    ids=["list", "tuple", "array", "NumPy scalars"],
)
def test_list_attributes_come_in_many_forms(value: object) -> None:
    x = fluid.layers.data("x", [2, 3], append_batch_size=False)
    block = fluid.default_main_program().global_block()
    out = block.create_var(name="out")
    block.append_op("reduce_sum", {"X": x}, {"Out": out}, {"dim": value})
    assert block.ops[-1].attr("dim") == [0, 1]


def test_arithmetic_of_variables(exe: fluid.Executor) -> None:
    a = fluid.layers.data("a", [3], append_batch_size=False)
    b = fluid.layers.data("b", [3], append_batch_size=False)
    x, y = np.array([1, 2, 4], np.float32), np.array([4, 3, 8], np.float32)
    cases = {
        "a + b": (a + b, x + y),
        "a - b": (a - b, x - y),
        "a * b": (a * b, x * y),
        "a / b": (a / b, x / y),
        "-a": (-a, -x),
        "a + 1": (a + 1, x + 1),
        "1 + a": (1 + a, x + 1),
        "a - 1": (a - 1, x - 1),
        "1 - a": (1 - a, 1 - x),
        "2 * a": (2 * a, 2 * x),
        "a / 2": (a / 2, x / 2),
        "2 / a": (2 / a, 2 / x),
    }
    values = exe.run(feed={"a": x, "b": y}, fetch_list=[var for var, _ in cases.values()])
    for (name, (_, expected)), value in zip(cases.items(), values):
        np.testing.assert_allclose(value, expected, err_msg=name)


def test_integers_are_exact(exe: fluid.Executor) -> None:
    """Whatever a double holds of them."""
    big = 2**53 + 1
    v = fluid.layers.fill_constant([1], "int64", 2)
    outs = [v + big, big + v, v - big, big - v, v * big, v + 5, v // big, v % big, v**3, v < big, v >= big]
    fetched = exe.run(fetch_list=outs)
    expected = [2 + big, 2 + big, 2 - big, big - 2, 2 * big, 7, 0, 2, 8, True, False]
    assert [value.item() for value in fetched] == expected


def test_an_integer_that_an_attribute_does_not_hold_is_refused() -> None:
    v = fluid.layers.fill_constant([1], "int64", 2)
    for build in (
        lambda: fluid.layers.scale(v, scale=2**53 + 1),
        lambda: fluid.layers.scale(v, bias=2**53 + 1),
        lambda: fluid.layers.increment(v, 2**53 + 1),
        lambda: fluid.layers.fill_constant_batch_size_like(v, [1], "int64", 2**53 + 1),
        lambda: fluid.layers.create_global_var([1], 2**53 + 1, "int64"),
    ):
        with pytest.raises(errors.InvalidArgument, match="9007199254740993 cannot be represented exactly"):
            build()


def test_arithmetic_of_fractions_takes_other_numbers(exe: fluid.Executor) -> None:
    x, count, wide = (
        fluid.data(name, [3], dtype) for name, dtype in (("x", "float32"), ("n", "int32"), ("w", "float64"))
    )
    outs = [x / count, x + wide, x * count, x > count]
    assert [core.dtype_name(out.dtype) for out in outs] == ["float32"] * 3 + ["bool"]
    fed = {"x": np.array([1, 3, 5], np.float32), "n": np.array([2, 4, 4], np.int32), "w": np.array([0.5, 1, 2])}
    values = exe.run(feed=fed, fetch_list=outs)
    for value, expected in zip(values, ([0.5, 0.75, 1.25], [1.5, 4, 7], [2, 12, 20], [False, False, True])):
        np.testing.assert_array_equal(value, expected)
    with pytest.raises(errors.TypeMismatch, match="int32"):
        count * x  # of whole numbers, which would lose the fractions


def test_arithmetic_with_the_wrong_things_is_refused() -> None:
    a = fluid.layers.data("a", [3])
    n = fluid.layers.data("n", [3], dtype="int64")
    with pytest.raises(TypeError, match="str"):
        a + "one"
    with pytest.raises(ValueError, match="0"):
        a / 0
    with pytest.raises(TypeError, match="int64"):
        n * 0.5
    with pytest.raises(TypeError, match="no value"):
        bool(a > 0)


def test_serialisation_gives_back_the_same_program(exe: fluid.Executor) -> None:
    _, _, loss = fed_regression()
    fluid.optimizer.Adam().minimize(loss)
    exe.run(fluid.default_startup_program())
    main = fluid.default_main_program()
    binary = main.desc.serialize_to_string()
    parsed = fluid.Program.parse_from_string(binary)
    assert parsed.serialize_to_string() == binary
    assert str(parsed.desc) == str(main.desc)
    assert [p.name for p in parsed.all_parameters()] == [p.name for p in main.all_parameters()]
    feed = {"x": np.ones((2, 4), np.float32), "y": np.ones((2, 1), np.float32)}
    test = parsed.clone()
    exe.run(test, feed=feed, fetch_list=[loss.name])


@pytest.mark.parametrize("binary", [b"", b"nonsense", b"\x00" * 100])
def test_bytes_that_are_no_program_are_refused(binary: bytes) -> None:
    with pytest.raises(errors.DataLoss):
        fluid.Program.parse_from_string(binary)


@pytest.mark.parametrize("given", ["text", None])
def test_a_program_is_parsed_from_bytes_only(given: object) -> None:
    message = f"Program.parse_from_string: expected bytes, .*, got {type(given).__name__}"
    with pytest.raises(errors.TypeMismatch, match=message):
        fluid.Program.parse_from_string(given)


def test_a_variable_that_is_declared_otherwise_is_refused_by_names() -> None:
    fluid.layers.data("x", [4])
    with pytest.raises(errors.AlreadyExists, match="'x' is already declared with dtype float32, not int64"):
        fluid.layers.data("x", [4], dtype="int64")
    block, array = fluid.default_main_program().global_block(), fluid.core.VarType.LOD_TENSOR_ARRAY
    with pytest.raises(errors.AlreadyExists, match="declared with kind LOD_TENSOR, not LOD_TENSOR_ARRAY"):
        block.create_var("x", type=array)
    with pytest.raises(errors.AlreadyExists, match=r"declared with shape \[-1, 4\], not \[4\]"):
        block.create_var("x", [4])


def test_a_corrupted_program_is_refused_or_parsed_but_never_crashes() -> None:
    fed_regression()
    binary = fluid.default_main_program().serialize_to_string()
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(binary)
        for position in rng.integers(len(binary), size=3):
            damaged[position] = rng.integers(256)
        try:
            fluid.Program.parse_from_string(bytes(damaged[: rng.integers(1, len(damaged) + 1)]))
        except errors.HeadraceError:
            pass


def test_a_clone_is_independent() -> None:
    fed_regression()
    main = fluid.default_main_program()
    clone = main.clone()
    with fluid.program_guard(clone):
        fluid.layers.data("z", [1])
    assert not main.global_block().has_var("z")
    assert clone.global_block().has_var("z")
    assert isinstance(clone.global_block().var("fc_0.w_0"), Parameter)


def test_a_clone_for_test_leaves_the_training_out() -> None:
    """Also the optimizer's state and the learning rate, which would be saved and loaded with the parameters."""
    _, _, loss = fed_regression()
    before = fluid.default_main_program().clone(for_test=True)
    rate = fluid.layers.exponential_decay(0.1, 10, 0.9)
    fluid.optimizer.Momentum(rate, 0.9, regularization=fluid.regularizer.L2Decay(0.1)).minimize(loss)
    test = fluid.default_main_program().clone(for_test=True)
    assert [op.type for op in test.global_block().ops] == [op.type for op in before.global_block().ops]
    assert test.global_block().vars.keys() == before.global_block().vars.keys()


@pytest.mark.parametrize("has_cases", [False, True])
def test_a_clone_for_test_leaves_out_what_serves_training_without_its_role(
    exe: fluid.Executor, has_cases: bool
) -> None:
    """A schedule of the program's own, whose counter runs on in training only, and what is done with gradients."""
    _, _, loss = fed_regression()
    layers, main = fluid.layers, fluid.default_main_program()
    before = main.clone(for_test=True)
    step = layers.learning_rate_scheduler._decay_step_counter()
    rate = layers.floor(step / 3.0) * 0.1
    if has_cases:
        with layers.Switch() as switch:
            with switch.case(layers.less_than(step, layers.fill_constant([1], "float32", 2.0))):
                layers.assign(rate + 0.5, rate)
            with switch.default():
                layers.assign(rate * 0.5, rate)
    optimizer = fluid.optimizer.Momentum(rate, 0.9)
    pairs = [(parameter, layers.scale(gradient, 0.5)) for parameter, gradient in optimizer.backward(loss)]
    optimizer.apply_gradients(pairs)
    layers.sqrt(layers.reduce_sum(layers.square(pairs[0][1])))
    seen = layers.scale(layers.reduce_sum(loss), 2.0)
    test = main.clone(for_test=True)
    forward = [op.type for op in before.global_block().ops]
    assert [op.type for op in test.global_block().ops] == [*forward, "reduce_sum", "scale"]
    assert {var.name for var in test.list_vars() if var.persistable} == {p.name for p in before.all_parameters()}
    exe.run(fluid.default_startup_program())
    feed = dict(zip("xy", regression_batch(0)))
    for program in (test, main, test):
        value, double = exe.run(program, feed=feed, fetch_list=[loss, seen])
        assert double == 2 * value
    assert np.array(fluid.global_scope().find_var("@LR_DECAY_COUNTER@").get_tensor()) == [0]


def test_variables_are_renamed_in_all_that_has_them(exe: fluid.Executor) -> None:
    """As programs do that join one with another, a teacher's with a student's, say."""
    _, _, loss = fed_regression()
    layers, main = fluid.layers, fluid.default_main_program()
    root = main.global_block()
    choice = layers.cond(layers.reduce_sum(root.var("fc_0.w_0")) < 100.0, lambda: loss * 2.0, lambda: loss)
    fluid.optimizer.SGD(0.0).minimize(loss)

    def attributes() -> list[dict[str, Any]]:
        return [{name: op.attr(name) for name in op.attr_names if name != "op_role_var"} for op in root.ops]

    given = attributes()
    exe.run(fluid.default_startup_program())
    feed = dict(zip("xy", regression_batch(0)))
    before = exe.run(feed=feed, fetch_list=[loss, choice])
    weight = root.var("fc_0.w_0")
    scope = fluid.global_scope()
    for name, new in (("fc_0.w_0", "teacher_w"), ("x", "teacher_x"), (loss.name, "teacher_loss")):
        variable = root.var(name)
        described = repr(variable), variable.persistable, variable.stop_gradient, variable.is_data
        assert root._rename_var(name, new) is variable is root.var(new)
        assert (variable.name, root.has_var(name)) == (new, False)
        again = repr(variable).replace(new, name), variable.persistable, variable.stop_gradient, variable.is_data
        assert again == described
    assert [p.name for p in main.all_parameters()] == ["teacher_w", "fc_0.b_0"]
    assert [op.idx for op in root.ops] == list(range(len(root.ops)))
    assert not any(name in main.to_string() for name in ('"fc_0.w_0"', '"x"', '"mean_0.tmp_0"'))
    assert not any(name in str(main) for name in ("[fc_0.w_0]", "[x]", "[mean_0.tmp_0]"))
    assert attributes() == given
    assert {name for op in root.ops if op.has_attr("op_role_var") for name in op.attr("op_role_var")} >= {"teacher_w"}
    scope.var("teacher_w").get_tensor().set(np.array(scope.find_var("fc_0.w_0").get_tensor()), fluid.CPUPlace())
    after = exe.run(main, feed={"teacher_x": feed["x"], "y": feed["y"]}, fetch_list=["teacher_loss", choice])
    np.testing.assert_array_equal(after, before)
    stored = fluid.Program.parse_from_string(main.serialize_to_string())
    assert stored.global_block().var("teacher_w").shape == weight.shape
    with pytest.raises(errors.NotFound, match=r"declares no variable 'fc_0\.w_0'"):
        root._rename_var("fc_0.w_0", "w")
    with pytest.raises(errors.AlreadyExists, match="'teacher_w' cannot be renamed to 'y'"):
        root._rename_var("teacher_w", "y")


def test_operators_are_given_other_variables(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, 2]), fluid.data("y", [None, 2])
    total = fluid.layers.elementwise_add(x, x)
    op = fluid.default_main_program().global_block().ops[0]
    op._rename_input("x", "y")
    op._rename_output(total.name, x.name)
    assert op.input_arg_names == ["y", "y"]
    assert op.output_arg_names == ["x"]
    two = np.full((1, 2), 2, np.float32)
    (got,) = exe.run(feed={"y": two}, fetch_list=[x])
    np.testing.assert_array_equal(got, two + two)
    assert y.name == "y"


def test_names_get_a_prefix_operator_by_operator(exe: fluid.Executor) -> None:
    """PaddleHub renames in the operators before it renames the variable."""
    _, _, loss = fed_regression()
    root = fluid.default_main_program().global_block()
    exe.run(fluid.default_startup_program())
    feed = dict(zip("xy", regression_batch(0)))
    before, last = exe.run(feed=feed, fetch_list=[loss]), loss.name
    for name in list(root.vars):
        for op in root.ops:
            if name in op.input_arg_names:
                op._rename_input(name, "hub_" + name)
            if name in op.output_arg_names:
                op._rename_output(name, "hub_" + name)
        persistable = root.var(name).persistable
        assert root._rename_var(name, "hub_" + name).persistable == persistable
        if persistable:
            tensor = fluid.global_scope().find_var(name).get_tensor()
            fluid.global_scope().var("hub_" + name).get_tensor().set(np.array(tensor), fluid.CPUPlace())
    fluid.default_main_program().desc.flush()
    assert all(name.startswith("hub_") for op in root.ops for name in op.input_arg_names + op.output_arg_names)
    assert {var.name for var in root.iter_parameters()} == {"hub_fc_0.w_0", "hub_fc_0.b_0"}
    after = exe.run(feed={"hub_" + name: value for name, value in feed.items()}, fetch_list=["hub_" + last])
    np.testing.assert_array_equal(after, before)


def test_parameters_are_made_of_what_others_are() -> None:
    """As programs do that connect one with another."""
    layers, clip = fluid.layers, fluid.clip
    attr = fluid.ParamAttr("w", regularizer=fluid.regularizer.L2Decay(0.5), do_model_average=False)
    layers.fc(fluid.data("x", [None, 3]), 2, param_attr=attr, bias_attr=False)
    given = fluid.default_main_program().global_block().var("w")
    given._set_error_clip(clip.ErrorClipByValue(0.1))
    given.optimize_attr["learning_rate"] = 0.5
    keys = [
        "shape",
        "dtype",
        "lod_level",
        "stop_gradient",
        "is_data",
        "error_clip",
        "trainable",
        "optimize_attr",
        "regularizer",
    ]
    keys += ["gradient_clip_attr", "do_model_average"]
    info = {key: copy.deepcopy(getattr(given, key)) for key in keys}
    info["optimize_attr"]["learning_rate"] = 2.0
    assert given.optimize_attr["learning_rate"] == 0.5
    made = fluid.Program().global_block().create_parameter(name="again", **info)
    assert (made.shape, made.do_model_average, made.error_clip.max) == ((3, 2), False, 0.1)
    assert (made.optimize_attr["learning_rate"], made.regularizer.regularization_coeff) == (2.0, 0.5)


def test_descriptions_are_asked_and_changed_as_fluid_does() -> None:
    variable = fluid.data("x", [3, 2])
    assert variable.desc.type() == core.VarDesc.VarType.LOD_TENSOR != core.VarDesc.VarType.FEED_MINIBATCH
    assert variable.desc.get_shape() == [3, 2]
    variable.desc.set_shape((-1, 2))
    variable.desc.set_dtype(core.VarDesc.VarType.INT64)
    variable.desc.set_lod_level(1)
    variable.desc.set_persistable(True)
    assert (variable.shape, variable.dtype, variable.lod_level) == ((-1, 2), core.VarType.INT64, 1)
    assert variable.persistable


def test_pruning_keeps_what_the_targets_need() -> None:
    fed_regression()
    main = fluid.default_main_program()
    prediction = main.global_block().ops[1].output("Out")[0]
    pruned = main._prune([prediction], ["x"])
    assert [op.type for op in pruned.global_block().ops] == ["mul", "elementwise_add"]
    assert not pruned.global_block().has_var("y")
    with pytest.raises(KeyError, match="nothing"):
        main._prune(["nothing"])


def test_a_seed_makes_initial_values_repeat_but_not_each_other(exe: fluid.Executor) -> None:
    def values(seed: int) -> list[np.ndarray]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = seed
        with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
            x = fluid.layers.data("x", [4])
            fluid.layers.fc(fluid.layers.fc(x, 4), 4)
            exe.run(startup)
            return [np.array(fluid.global_scope().find_var(n).get_tensor()) for n in ("fc_0.w_0", "fc_1.w_0")]

    first, again, other, fresh, fresher = values(1), values(1), values(2), values(0), values(0)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], other[0])
    assert not np.array_equal(fresh[0], fresher[0])


def test_names_are_unique_and_can_be_counted_anew() -> None:
    assert fluid.unique_name.generate("a") == "a_0"
    assert fluid.unique_name.generate("a") == "a_1"
    with fluid.unique_name.guard("prefix_"):
        assert fluid.unique_name.generate("a") == "prefix_a_0"
    assert fluid.unique_name.generate("a") == "a_2"


def test_name_scopes_group_operators() -> None:
    x = fluid.layers.data("x", [4])
    with fluid.name_scope("outer"), fluid.name_scope("inner"):
        fluid.layers.relu(x)
    assert fluid.default_main_program().global_block().ops[-1].namescope == "/outer/inner/"


def test_name_scopes_of_the_same_prefix_are_numbered() -> None:
    x = fluid.layers.data("x", [4])
    for _ in range(2):
        with fluid.name_scope("block"):
            fluid.layers.relu(x)
            for _ in range(2):
                with fluid.name_scope("inner"):
                    fluid.layers.relu(x)
    scopes = ["/block/", "/block/inner/", "/block/inner_1/", "/block_1/", "/block_1/inner/", "/block_1/inner_1/"]
    assert [op.namescope for op in fluid.default_main_program().global_block().ops] == scopes
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.name_scope("block"):
        fluid.layers.relu(fluid.layers.data("x", [4]))
        assert fluid.default_main_program().global_block().ops[-1].namescope == "/block/"


def test_a_program_can_be_printed() -> None:
    fed_regression()
    program = fluid.default_main_program()
    text = program.to_string(throw_on_error=True)
    assert '\n    type: "mul"\n' in text
    assert '\n    name: "fc_0.w_0"\n    type {\n      type: LOD_TENSOR\n' in text
    listing = repr(program)
    assert "mul(" in listing
    assert "fc_0.w_0" in listing


def test_a_removed_variable_is_not_found() -> None:
    block = fluid.default_main_program().global_block()
    var = block.create_var(name="x", shape=[2])
    block._remove_var("x")
    with pytest.raises(KeyError, match="x"):
        var.shape  # noqa: B018


def test_a_variable_keeps_its_program(exe: fluid.Executor) -> None:
    def build() -> fluid.Variable:
        with fluid.program_guard(fluid.Program()):
            return fed_regression()[2]

    loss = build()
    gc.collect()
    fluid.optimizer.SGD(0.1).minimize(loss)
    assert loss.block.program.global_block().ops[-1].type == "sgd"


def test_programs_are_freed(exe: fluid.Executor) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        reader, out = number_reader()
        reader.queue.push([np.zeros((1, 1), np.float32)])
        exe.run(startup)
        exe.run(main, fetch_list=[out])
    gone = weakref.ref(main)
    del main, startup, reader, out
    gc.collect()
    assert gone() is None


def test_the_registry_describes_operators() -> None:
    assert {"relu", "mul", "read", "sgd"} <= set(core.op_types())
    info = core.op_info("scale")
    assert [slot["name"] for slot in info["inputs"]] == ["X", "ScaleTensor"]
    assert {attr["name"]: attr["default"] for attr in info["attrs"]}["scale"] == 1.0
    assert "float32" in info["kernels"]
    assert info["differentiable"]
    assert "max" in (fluid.layers.relu.__doc__ or "")
    with pytest.raises(KeyError, match="nothing"):
        core.op_info("nothing")


def test_a_missing_operator_library_is_an_os_error() -> None:
    with pytest.raises(OSError, match="no_such_library"):
        fluid.load_op_library("no_such_library.so")


def test_data_takes_the_shape_as_it_is(exe: fluid.Executor) -> None:
    """fluid.data, unlike layers.data, puts nothing in front of the shape."""
    x = fluid.data("x", [None, 3], lod_level=1)
    y = fluid.data("y", (2, 3), "int64")
    old = fluid.layers.data("old", [2, 3])
    assert (x.shape, x.dtype, x.lod_level) == ((-1, 3), core.VarType.FP32, 1)
    assert (y.shape, y.dtype, y.lod_level) == ((2, 3), core.VarType.INT64, 0)
    assert old.shape == (-1, 2, 3)
    for var in (x, y):
        assert (var.is_data, var.stop_gradient, var.persistable) == (True, True, False)
    doubled = fluid.layers.scale(y, 2.0)
    (value,) = exe.run(feed={"y": np.arange(6).reshape(2, 3)}, fetch_list=[doubled])
    assert value.tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("fed", [(4, 3), (3,), (2, 3, 1), (2, 4)])
def test_data_checks_the_shape_of_what_is_fed(exe: fluid.Executor, fed: tuple[int, ...]) -> None:
    y = fluid.data("y", [2, 3])
    with pytest.raises(errors.InvalidArgument, match="'y'"):
        exe.run(feed={"y": np.zeros(fed, np.float32)}, fetch_list=[y])


@pytest.mark.parametrize("fed", [(0, 3), (1, 3), (7, 3)])
def test_data_takes_any_extent_where_none_is_declared(exe: fluid.Executor, fed: tuple[int, ...]) -> None:
    y = fluid.data("y", [None, 3])
    (value,) = exe.run(feed={"y": np.zeros(fed, np.float32)}, fetch_list=[fluid.layers.scale(y, 1.0)])
    assert value.shape == fed


def test_data_checks_the_dtype_of_what_is_fed(exe: fluid.Executor) -> None:
    y = fluid.data("y", [None], "int64")
    with pytest.raises(errors.TypeMismatch, match="'y'"):
        exe.run(feed={"y": np.zeros(2, np.float32)}, fetch_list=[y])


@pytest.mark.parametrize(
    ("name", "shape", "error"),
    [
        (1, [2], errors.TypeMismatch),
        ("x", 2, errors.TypeMismatch),
        ("x", "ab", errors.TypeMismatch),
        ("x", [2, -2], errors.InvalidArgument),
        ("x", [2, "3"], errors.InvalidArgument),
        ("x", [2.0], errors.InvalidArgument),
        ("x", [True], errors.InvalidArgument),
    ],
)
def test_data_refuses_what_is_no_shape(name: Any, shape: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"fluid\.data"):
        fluid.data(name, shape)


def test_arithmetic_is_added_to_the_variables_own_program(exe: fluid.Executor) -> None:
    x = fluid.data("x", [2])
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        out = (1 - x) / x
    (value,) = exe.run(feed={"x": np.array([0.5, 2], np.float32)}, fetch_list=[out])
    assert value.tolist() == [1, -0.5]


def test_a_variable_by_its_name() -> None:
    x = fluid.data("x", [None, 4])
    assert fluid.framework._get_var("x") is x
    other = fluid.Program()
    y = other.global_block().create_var("y")
    assert fluid.framework._get_var("y", other) is y
    with pytest.raises(errors.NotFound, match="'y'"):
        fluid.framework._get_var("y")
