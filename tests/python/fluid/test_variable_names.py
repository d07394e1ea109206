"""The names that layers give to variables are Fluid's, so that programs, and saved files, may refer to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Union

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import layers
from headrace.fluid.framework import Variable

Made = Union[Variable, Sequence[Variable]]


def data(name: str, *shape: int, dtype: str = "float32", lod_level: int = 0) -> Variable:
    return fluid.data(name, [-1, *shape], dtype, lod_level)


def truth() -> Variable:
    return data("truth", 4, dtype="bool")


def rows() -> Variable:
    return data("rows", 4)


def image() -> Variable:
    return data("image", 4, 8, 8)


def boxes() -> Variable:
    return fluid.data("boxes", [3, 4])


def numbers(name: str, *shape: int, dtype: str = "int64") -> Variable:
    return fluid.data(name, shape, dtype)


def yolo_loss(name: str) -> Variable:
    boxes, labels = data("gt", 6, 4), data("classes", 6, dtype="int32")
    return layers.yolov3_loss(
        data("map", 21, 8, 8), boxes, labels, [9, 9, 5, 5, 2, 2], [0, 1, 2], 2, 0.7, 32, name=name
    )


#: The layers whose output is called just as the user says; that of others merely begins with the name.
EXACT: dict[str, Callable[[str], Variable]] = {
    "elementwise_add": lambda name: layers.elementwise_add(rows(), rows(), name=name),
    "elementwise_floordiv": lambda name: layers.elementwise_floordiv(numbers("a", 2), numbers("b", 2), name=name),
    "scale": lambda name: layers.scale(rows(), 2.0, name=name),
    "logical_and": lambda name: layers.logical_and(truth(), truth(), name=name),
    "logical_not": lambda name: layers.logical_not(truth(), name=name),
    "clip": lambda name: layers.clip(rows(), 0.0, 1.0, name=name),
    "clip_by_norm": lambda name: layers.clip_by_norm(rows(), 1.0, name=name),
    "mean": lambda name: layers.mean(rows(), name=name),
    "mul": lambda name: layers.mul(rows(), fluid.data("weight", [4, 2]), name=name),
    "sigmoid_cross_entropy_with_logits": lambda name: layers.sigmoid_cross_entropy_with_logits(
        rows(), data("labels", 4), name=name
    ),
    "maxout": lambda name: layers.maxout(image(), 2, name=name),
    "space_to_depth": lambda name: layers.space_to_depth(image(), 2, name=name),
    "sequence_reverse": lambda name: layers.sequence_reverse(data("words", 4, lod_level=1), name=name),
    "affine_channel": lambda name: layers.affine_channel(
        image(), fluid.data("scales", [4]), fluid.data("biases", [4]), name=name
    ),
    "similarity_focus": lambda name: layers.similarity_focus(image(), 1, [0], name=name),
    "log_loss": lambda name: layers.log_loss(data("p", 1), data("label", 1), name=name),
    "add_position_encoding": lambda name: layers.add_position_encoding(data("steps", 5, 4), 1.0, 1.0, name=name),
    "bilinear_tensor_product": lambda name: layers.bilinear_tensor_product(rows(), rows(), 3, name=name),
    "gather_nd": lambda name: layers.gather_nd(rows(), numbers("index", 3, 1), name=name),
    "scatter_nd_add": lambda name: layers.scatter_nd_add(
        boxes(), numbers("index", 2, 1), fluid.data("updates", [2, 4]), name=name
    ),
    "iou_similarity": lambda name: layers.iou_similarity(boxes(), boxes(), name=name),
    "box_coder": lambda name: layers.box_coder(boxes(), None, boxes(), name=name),
    "polygon_box_transform": lambda name: layers.polygon_box_transform(image(), name=name),
    "yolov3_loss": yolo_loss,
}


@pytest.mark.parametrize("layer", EXACT)
def test_a_layers_name_is_that_of_its_output_where_it_is_in_fluid(layer: str) -> None:
    assert EXACT[layer]("mine").name == "mine"
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        unnamed = EXACT[layer](None)  # type: ignore[arg-type]
    assert unnamed.name == f"{layer}_0.tmp_0"


def test_a_loss_is_fetched_by_the_name_it_was_given(exe: fluid.Executor) -> None:
    layers.mean(rows(), name="my_loss")
    (loss,) = exe.run(feed={"rows": np.full((2, 4), 3.0, np.float32)}, fetch_list=["my_loss"])
    assert loss == 3.0


def test_an_activation_follows_an_output_that_has_the_layers_name() -> None:
    out = layers.elementwise_add(rows(), rows(), act="relu", name="sum")
    assert out.name == "sum.tmp_0"
    assert fluid.default_main_program().current_block().has_var("sum")


def test_a_global_variable_without_a_name_is_called_as_in_fluid() -> None:
    made = [layers.create_global_var([1], 0.0, "float32") for _ in range(2)]
    assert [variable.name for variable in made] == ["_generated_var_0", "_generated_var_1"]


def test_blocks_take_a_number_of_automatic_names_as_in_fluid() -> None:
    one = layers.fill_constant([1], "float32", 1.0)
    rate = layers.create_global_var([1], 0.0, "float32")
    going = layers.less_than(one, rate)
    with layers.Switch() as switch:
        with switch.case(going):
            layers.assign(one, rate)
        with switch.default():
            layers.assign(one, rate)
    with layers.While(going).block():
        layers.less_than(one, rate, cond=going)
    rnn = layers.StaticRNN()
    with rnn.step():
        rnn.step_output(layers.scale(rnn.step_input(fluid.data("steps", [3, 2, 4])), 2.0))
    assert rate.name == "_generated_var_0"
    assert layers.create_global_var([1], 0.0, "float32").name == "_generated_var_5"


def test_operators_on_variables_give_temporaries() -> None:
    x, y = rows(), fluid.data("fixed", [2, 4])
    made = [x + x, x * 2.0, 1.0 - x, x / x, x**2.0, y < y, x.astype("int64"), 2.0 / y, -x]
    assert [variable.name for variable in made] == [f"tmp_{i}" for i in (0, 1, 2, 3, 5, 6, 7, 9, 10)]
    assert layers.elementwise_add(x, x).name == "elementwise_add_0.tmp_0"
    assert y[0].name == "fixed_slice_0"
    assert y[::-1].name == "fixed_slice_reverse_0"
    with fluid.unique_name.guard("net_"):
        assert (x + x).name == "net_tmp_0"


def test_temporaries_of_a_loaded_program_are_left_alone(exe: fluid.Executor) -> None:
    out = rows() + 1.0
    loaded = fluid.Program.parse_from_string(fluid.default_main_program().serialize_to_string())
    with fluid.unique_name.guard(), fluid.program_guard(loaded):
        again = loaded.global_block().var(out.name) * 2.0 + 3.0
    feed = {"rows": np.ones((1, 4), np.float32)}
    for value, want in zip(exe.run(loaded, feed, [out.name, again]), (2.0, 7.0)):
        np.testing.assert_array_equal(value, np.full((1, 4), want))


#: What a layer is called with, and the numbers of its results among its temporaries.
NUMBERED: dict[str, tuple[Callable[[], Made], str]] = {
    "batch_norm": (lambda: layers.batch_norm(image()), "batch_norm_0.tmp_2"),
    "batch_norm with an activation": (lambda: layers.batch_norm(image(), act="relu"), "batch_norm_0.tmp_3"),
    "layer_norm": (lambda: layers.layer_norm(rows()), "layer_norm_0.tmp_2"),
    "instance_norm": (lambda: layers.instance_norm(image()), "instance_norm_0.tmp_2"),
    "data_norm": (lambda: layers.data_norm(rows()), "_generated_var_2"),
    "square_error_cost": (lambda: layers.square_error_cost(rows(), rows()), "square_error_cost_0.tmp_1"),
    "cross_entropy": (lambda: layers.cross_entropy(rows(), data("id", 1, dtype="int64")), "cross_entropy2_0.tmp_0"),
    "cross_entropy of soft labels": (
        lambda: layers.cross_entropy(rows(), rows(), soft_label=True),
        "cross_entropy_0.tmp_0",
    ),
    "smooth_l1": (lambda: layers.smooth_l1(rows(), rows()), "smooth_l1_loss_0.tmp_1"),
    "huber_loss": (lambda: layers.huber_loss(data("p", 1), data("label", 1), 1.0), "huber_loss_0.tmp_1"),
    "lrn": (lambda: layers.lrn(image()), "lrn_0.tmp_1"),
    "linear_chain_crf": (
        lambda: layers.linear_chain_crf(data("words", 4, lod_level=1), data("tags", 1, dtype="int64", lod_level=1)),
        "linear_chain_crf_0.tmp_3",
    ),
    "gru_unit": (
        lambda: layers.gru_unit(data("gates", 12), rows(), 12),
        "gru_unit_0.tmp_2 gru_unit_0.tmp_1 gru_unit_0.tmp_0",
    ),
    "transpose": (lambda: layers.transpose(rows(), [1, 0]), "transpose_0.tmp_0"),
    "squeeze": (lambda: layers.squeeze(data("p", 1), [1]), "squeeze_0.tmp_0"),
    "unsqueeze": (lambda: layers.unsqueeze(rows(), [1]), "unsqueeze2_0.tmp_0"),
    "flatten": (lambda: layers.flatten(image()), "flatten_0.tmp_0"),
    "reshape": (
        lambda: [layers.reshape(rows(), [-1, 2], act="relu"), layers.reshape(rows(), [-1, 2])],
        "reshape2_0.tmp_2 reshape2_1.tmp_0",
    ),
    "auc": (
        lambda: layers.auc(data("p", 2), data("label", 1, dtype="int64"))[:2],
        "auc_0.tmp_0 auc_0.tmp_1",
    ),
    "arrays": (
        lambda: [layers.create_array("float32"), layers.array_write(rows(), numbers("i", 1))],
        "array_0.out array_write_0.out",
    ),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_temporaries_are_numbered_as_in_fluid(case: str) -> None:
    build, names = NUMBERED[case]
    made = build()
    assert " ".join(variable.name for variable in ([made] if isinstance(made, Variable) else made)) == names


def chosen() -> None:
    layers.cond(layers.less_than(numbers("i", 1), numbers("n", 1)), rows, lambda: rows() * 2.0)


def repeated(steps: int) -> None:
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(fluid.data("steps", [steps, 2, 4]))
        before = rnn.memory(shape=[2, 4], batch_ref=word)
        rnn.update_memory(before, layers.scale(word + before, 2.0))
        rnn.step_output(before)
    rnn()


def ranked() -> None:
    words = data("words", 4, lod_level=1)
    layers.lod_tensor_to_array(words, layers.lod_rank_table(words))


#: What else has names of its own.
UNNUMBERED: dict[str, Callable[[], object]] = {
    "arithmetic": lambda: rows() * 2.0 + 1.0,
    "create_tensor": lambda: layers.create_tensor("float32"),
    "create_global_var": lambda: layers.create_global_var([1], 0.0, "float32", persistable=True),
    "cond": chosen,
    "StaticRNN that is unrolled": lambda: repeated(2),
    "StaticRNN that is not": lambda: repeated(-1),
    "rank tables": ranked,
    "random_crop": lambda: layers.random_crop(image(), [2, 2]),
    "precision_recall": lambda: layers.precision_recall(rows(), data("id", 1, dtype="int64"), 4),
    "ChunkEvaluator": lambda: fluid.evaluator.ChunkEvaluator(
        data("tags", 1, dtype="int64", lod_level=1), data("truth", 1, dtype="int64", lod_level=1), "IOB", 2
    ),
    "readers": lambda: layers.read_file(layers.open_files("a", [[-1, 2]], [0], ["float32"])),
    "py_reader": lambda: layers.read_file(layers.py_reader(2, [[-1, 2]], ["float32"])),
}
GENERATED: dict[str, Callable[[], object]] = {**{name: build for name, (build, _) in NUMBERED.items()}, **UNNUMBERED}


def generated(program: fluid.Program) -> list[str]:
    """The variables that neither users name nor programs share."""
    variables = [variable for block in program.blocks for variable in block.vars.values()]
    return [v.name for v in variables if not isinstance(v, fluid.framework.Parameter) and not v._is_fed_as_declared]


@pytest.mark.parametrize("case", GENERATED)
def test_a_loaded_program_is_built_further_with_names_of_its_own(case: str) -> None:
    GENERATED[case]()
    stored = [p.serialize_to_string() for p in (fluid.default_main_program(), fluid.default_startup_program())]
    main, startup = (fluid.Program.parse_from_string(binary) for binary in stored)
    before = [generated(main), generated(startup)]
    assert before[0]
    with fluid.unique_name.guard(), fluid.program_guard(main, startup), fluid.scope_guard(fluid.Scope()):
        GENERATED[case]()
    assert [len(generated(main)), len(generated(startup))] == [2 * len(names) for names in before]


@pytest.mark.parametrize("scopes", [("", "", ""), ("net", "net", "net"), ("train", "train", "test")])
def test_programs_that_are_built_alike_share_what_has_the_same_first_value(
    exe: fluid.Executor, scopes: tuple[str, ...]
) -> None:
    startup = fluid.Program()
    rates, velocities, counts = [], [], []
    for rate, scope in zip((0.5, 0.25, 0.5), scopes):
        main = fluid.Program()
        in_scope = fluid.name_scope(scope) if scope else contextlib.nullcontext()
        with fluid.program_guard(main, startup), fluid.unique_name.guard(), in_scope:
            share = layers.fc(rows(), 2, act="softmax")
            counts.append(layers.auc(share, numbers("label", 3, 1))[2][2].name)
            optimizer = fluid.optimizer.Momentum(rate, 0.9)
            optimizer.minimize(layers.reduce_mean(share))
        assert [parameter.name for parameter in main.all_parameters()] == ["fc_0.w_0", "fc_0.b_0"]
        variable = optimizer._global_learning_rate(main)
        assert variable is not None
        rates.append(variable.name)
        velocities.append(optimizer.get_opti_var_name_list())
    assert rates == ["learning_rate_0", "learning_rate_1", "learning_rate_0"]
    assert [names[0] for names in velocities] == ["fc_0.w_0_velocity_0"] * 3
    assert len(set(counts)) == 1
    exe.run(startup)
    found = [fluid.global_scope().find_var(name).get_tensor() for name in rates]
    assert [np.asarray(tensor).item() for tensor in found] == [0.5, 0.25, 0.5]


def test_a_program_that_is_built_again_goes_on_with_the_state_of_the_first(exe: fluid.Executor) -> None:
    """For another batch size, or as a test program, after the startup program has run."""
    startup = fluid.Program()

    def build(size: int) -> tuple[fluid.Program, list[Variable]]:
        main = fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            x = layers.data("x", [size, 4], append_batch_size=False)
            share = layers.fc(x, 2, act="softmax")
            label = layers.fill_constant([size, 1], "int64", 1)
            _, _, states = layers.auc(share, label)
            loss = layers.reduce_mean(layers.square(share))
            rate = layers.exponential_decay(0.1, 10, 0.5)
            fluid.optimizer.Adam(rate).minimize(loss)
        return main, [loss, *states]

    main, fetches = build(8)
    exe.run(startup)
    exe.run(main, feed={"x": np.ones((8, 4), np.float32)}, fetch_list=fetches)
    ops = len(startup.global_block().ops)
    again, fetches = build(2)
    assert len(startup.global_block().ops) == ops
    found = exe.run(again, feed={"x": np.ones((2, 4), np.float32)}, fetch_list=fetches)
    assert found[3].sum() == 10  # all positives: of both runs
    names = {var.name for var in main.list_vars() if var.persistable}
    assert names == {var.name for var in again.list_vars() if var.persistable}
