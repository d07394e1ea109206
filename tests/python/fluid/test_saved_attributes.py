"""What Fluid writes into every program without need: attributes at the values that change nothing, and inputs of
gradient operators.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

_CONV = {"fuse_brelu_threshold": 6.0, "fuse_brelu": False, "fuse_activation": "", "fuse_alpha": 0.5, "fuse_beta": 0.0}
_QUANTISED = {"skip_quant": True, "out_scale": 0.5}
_TABLES = {"trainer_id": 0, "height_sections": [], "epmap": [], "table_names": []}
_UNIFORM = {"diag_num": 0, "diag_step": 0, "diag_val": 1.0}
_INTERP = {"data_layout": "AnyLayout", "out_d": -1}

#: Operator → attributes that it is saved with.
SAVED: dict[str, dict[str, Any]] = {
    "less_than": {"force_cpu": True},
    "lookup_table": {"grad_inplace": False, **_TABLES},
    "lookup_table_v2": {"grad_inplace": False, **_TABLES},
    "fill_constant": {"force_cpu": True},
    "fill_constant_batch_size_like": {"force_cpu": False},
    "bilinear_interp": {"interp_method": "bilinear", "scale": 0.0, **_INTERP},
    "nearest_interp": {"interp_method": "nearest", "scale": -1.0, **_INTERP},
    "trilinear_interp": {"interp_method": "trilinear", "scale": 0.0, "data_layout": "NCDHW"},
    "softmax_with_cross_entropy": {"numeric_stable_mode": False},
    "print": {"first_n": -1, "print_tensor_name": True, "print_phase": "BOTH", "is_forward": True},
    "conv2d": {"padding_algorithm": "EXPLICIT", "data_format": "AnyLayout", **_CONV, **_QUANTISED},
    "conv2d_transpose": {"padding_algorithm": "EXPLICIT", "data_format": "AnyLayout", **_CONV},
    "conv3d": {"data_format": "AnyLayout", **_CONV},
    "pool2d": {"padding_algorithm": "EXPLICIT", "data_format": "AnyLayout"},
    "pool3d": {"data_format": "NCDHW", "padding_algorithm": "EXPLICIT"},
    "slice": {"infer_flags": [1], "decrease_axis": []},
    "gather": {"overwrite": True},
    "matmul": {"head_number": 1},
    "fc": {"padding_weights": False},
    "lod_reset": {"append": False},
    "uniform_random": _UNIFORM,
    "uniform_random_batch_size_like": _UNIFORM,
    "adam": {"min_row_size_to_use_multithread": 1000},
    "nce": _TABLES,
    "hierarchical_sigmoid": _TABLES,
    "ctc_align": {"padding_value": 0},
    "while": {"skip_eager_deletion_vars": ["x"]},
}

#: Values that would change the result.
REFUSED: list[tuple[str, str, Any, str]] = [
    ("lookup_table", "height_sections", [3, 4], "[3, 4]"),
    ("lookup_table", "epmap", ["127.0.0.1:6164"], "127.0.0.1:6164"),
    ("nce", "table_names", ["table"], "'table'"),
    ("bilinear_interp", "interp_method", "nearest", "'nearest'"),
    ("conv2d", "fuse_brelu", True, "true"),
    ("conv2d_transpose", "fuse_activation", "relu", "'relu'"),
    ("matmul", "data_format", "NHWC", "'NHWC'"),
    ("matmul", "head_number", 2, "got 2"),
]


def build() -> list[Variable]:
    """Uses every operator of SAVED. Returns what it computes."""
    fluid.default_startup_program().random_seed = fluid.default_main_program().random_seed = 3
    images, volumes = layers.data("images", [2, 4, 4]), layers.data("volumes", [1, 2, 3, 3])
    words, label = layers.data("words", [1], dtype="int64", lod_level=1), layers.data("label", [1], dtype="int64")
    rows = layers.embedding(words, (7, 4))
    fluid.embedding(words, (7, 4))
    logits = layers.fc(layers.pool2d(layers.conv2d(images, 2, 3), 2), 5)
    loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
    fluid.optimizer.Adam(0.01).minimize(loss)
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 2)
    more = layers.less_than(i, n)
    loop = layers.While(more)
    with loop.block():
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    shown = fluid.default_main_program().current_block().create_var(name="shown", dtype="float32")
    shown.block.append_op("print", {"In": loss}, {"Out": shown}, {"summarize": 0})
    fused = shown.block.create_var(name="fused", dtype="float32")
    shown.block.append_op("fc", {"Input": logits, "W": layers.create_parameter([5, 3], "float32")}, {"Out": fused})
    return [
        layers.cast(i, "float32"),
        layers.fill_constant_batch_size_like(images, [-1, 2], "float32", 3.0),
        layers.resize_bilinear(images, [3, 5]),
        layers.resize_nearest(images, [3, 5]),
        layers.resize_trilinear(volumes, [3, 2, 2]),
        shown,
        layers.conv2d_transpose(images, 2, filter_size=2),
        layers.pool3d(layers.conv3d(volumes, 2, 2), [1, 2, 2]),
        layers.slice(logits, [1], [1], [3]),
        layers.gather(rows, layers.cast(layers.fill_constant([2], "int64", 1), "int32")),
        layers.matmul(logits, logits, transpose_y=True),
        layers.sequence_pool(layers.lod_reset(rows, target_lod=[0, 1, 5]), "sum"),
        layers.uniform_random([2, 3], seed=4),
        layers.uniform_random_batch_size_like(images, [-1, 3], seed=4),
        layers.nce(logits, label, 5, seed=1),
        layers.hsigmoid(logits, label, 5),
        layers.cast(layers.ctc_greedy_decoder(rows, 0), "float32"),
        fused,
    ]


def feed() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {
        "images": rng.normal(size=(2, 2, 4, 4)).astype(np.float32),
        "volumes": rng.normal(size=(2, 1, 2, 3, 3)).astype(np.float32),
        "words": fluid.create_lod_tensor(rng.integers(0, 7, (5, 1)), [[2, 3]], fluid.CPUPlace()),
        "label": np.array([[1], [4]], np.int64),
    }


def fields(message: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """The fields of a protobuf message: number, wire type, value."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        value: bytes | int
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            value = message[at : at + size]
            at += size
        yield key >> 3, key & 7, value


def encode(number: int, wire: int, value: bytes | int) -> bytes:
    def varint(n: int) -> bytes:
        n &= 2**64 - 1
        out = bytearray()
        while n > 127:
            out.append(n & 127 | 128)
            n >>= 7
        return bytes([*out, n])

    key = varint(number << 3 | wire)
    if isinstance(value, int):
        return key + varint(value)
    return key + (varint(len(value)) if wire == 2 else b"") + value


def attribute(name: str, value: Any) -> bytes:
    """An OpDesc.Attr, as Fluid writes it."""
    typed: dict[type, tuple[int, list[tuple[int, int, bytes | int]]]] = {
        bool: (6, [(10, 0, value)] if isinstance(value, bool) else []),
        int: (0, [(3, 0, value)] if isinstance(value, int) else []),
        float: (1, [(4, 5, struct.pack("<f", value))] if isinstance(value, float) else []),
        str: (2, [(5, 2, value.encode())] if isinstance(value, str) else []),
    }
    if isinstance(value, list):
        kind = {"height_sections": 11, "infer_flags": 3, "decrease_axis": 3}.get(name, 5)
        items = [(8, 2, v.encode()) if isinstance(v, str) else (6, 0, v) for v in value]
    else:
        kind, items = typed[type(value)]
    return encode(1, 2, name.encode()) + encode(2, 0, kind) + b"".join(encode(*item) for item in items)


def with_saved_attributes(program: bytes, seen: set[str]) -> bytes:
    def of_op(message: bytes) -> bytes:
        parts = list(fields(message))
        op_type = next(value.decode() for number, _, value in parts if number == 3 and isinstance(value, bytes))
        added = SAVED.get(op_type.removesuffix("_grad"), {})
        seen.update([op_type] if op_type in SAVED else [])
        attrs = b"".join(encode(4, 2, attribute(*item)) for item in added.items())
        # An attribute that is there already goes.
        names = {name.encode() for name in added}
        kept = [part for part in parts if part[0] != 4 or next(fields(part[2]))[2] not in names]  # type: ignore[arg-type]
        return b"".join(encode(*part) for part in kept) + attrs

    return nested(program, 1, lambda block: nested(block, 4, of_op))


def nested(message: bytes, field: int, change: Any) -> bytes:
    return b"".join(encode(n, w, change(v) if n == field else v) for n, w, v in fields(message))


def test_a_program_with_the_attributes_of_fluid_loads_and_runs(exe: fluid.Executor) -> None:
    fetched = [variable.name for variable in build()]
    program = fluid.default_main_program()
    seen: set[str] = set()
    saved = with_saved_attributes(program.desc.serialize_to_string(), seen)
    assert seen == set(SAVED)
    loaded = fluid.Program.parse_from_string(saved)
    exe.run(fluid.default_startup_program())
    state = {v.name: np.array(fluid.global_scope().find_var(v.name).get_tensor()) for v in persistables(program)}
    expected = exe.run(program, feed=feed(), fetch_list=fetched, return_numpy=False)
    for name, value in state.items():
        fluid.global_scope().find_var(name).get_tensor().set(value, fluid.CPUPlace())
    results = exe.run(loaded, feed=feed(), fetch_list=fetched, return_numpy=False)
    for name, got, want in zip(fetched, results, expected):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want), err_msg=name)
        assert got.lod() == want.lod()


def persistables(program: fluid.Program) -> list[Variable]:
    return [v for v in program.list_vars() if v.persistable]


@pytest.mark.parametrize(("op_type", "name", "value", "shown"), REFUSED)
def test_a_value_that_would_change_the_result_is_refused(op_type: str, name: str, value: Any, shown: str) -> None:
    build()
    op = next(op for op in fluid.default_main_program().global_block().ops if op.type == op_type)
    with pytest.raises(errors.Unimplemented) as raised:
        op._set_attr(name, value)
    for part in (op_type, f"'{name}'", shown):
        assert part in str(raised.value)


def test_an_attribute_that_an_operator_lacks_is_left_out_with_a_warning() -> None:
    x = layers.data("x", [2])
    for name, value in (("force_cpu", False), ("lambda", np.zeros(3))):  # an attribute of others; no attribute at all
        with pytest.warns(UserWarning, match=f"'relu' has no attribute '{name}': it is left out") as caught:
            op = x.block.append_op("relu", {"X": x}, {"Out": x}, {name: value})
        assert not op.has_attr(name)
        assert caught[0].filename == __file__


def test_an_attribute_that_is_spelt_almost_so_is_a_mistake() -> None:
    x = layers.data("x", [2])
    with pytest.raises(errors.NotFound, match="'scale' has no attribute 'scal'; did you mean 'scale'"):
        x.block.append_op("scale", {"X": x}, {"Out": x}, {"scal": 2.0})
    with pytest.raises(errors.NotFound, match="no operator 'no_such_op'"):
        x.block.append_op("no_such_op", {"X": x}, {"Out": x}, {"scale": 2.0})


def test_load_combine_reads_files_only(exe: fluid.Executor) -> None:
    block = fluid.default_main_program().global_block()
    out = block.create_var(name="out", shape=[2], dtype="float32")
    block.append_op("load_combine", {}, {"Out": [out]}, {"file_path": "f", "model_from_memory": False})
    with pytest.raises(errors.Unimplemented, match="'model_from_memory' as false, got true"):
        block.append_op("load_combine", {}, {"Out": [out]}, {"file_path": "f", "model_from_memory": True})


@pytest.mark.parametrize("op_type", ["bilinear_interp", "nearest_interp"])
def test_scale_gives_the_size_of_images_that_is_known_at_run_time(exe: fluid.Executor, op_type: str) -> None:
    x = fluid.data("x", [None, 1, None, 4])
    resize = layers.resize_bilinear if op_type == "bilinear_interp" else layers.resize_nearest
    out = resize(x, scale=1.7)
    assert out.shape == (-1, 1, -1, 6)
    expected = resize(x, [5, 6])
    images = np.random.default_rng(1).normal(size=(2, 1, 3, 4)).astype(np.float32)
    got, want = exe.run(fluid.default_main_program(), feed={"x": images}, fetch_list=[out, expected])
    np.testing.assert_array_equal(got, want)
    with pytest.raises(errors.InvalidArgument, match="scale"):
        resize(x, scale=0.1)


def test_gradient_operators_leave_out_what_they_have_no_use_for() -> None:
    """Fluid gives many of them all inputs and results of the operator."""
    x = fluid.data("x", [None, 4, 2, 2])
    x.stop_gradient = False
    out, index = layers.transpose(layers.maxout(x, 2), [0, 2, 3, 1]), fluid.data("index", [2], "int32")
    picked = layers.gather(layers.reshape(out, [-1, 2]), index)
    fluid.backward.append_backward(layers.mean(picked))
    block = fluid.default_main_program().global_block()
    given = {
        "maxout_grad": {"Out": "maxout_0.tmp_0"},
        "transpose2_grad": {"XShape": next(op for op in block.ops if op.type == "transpose2").output("XShape")},
        "reshape2_grad": {"X": out.name, "Out": out.name},
        "gather_grad": {"Out": picked.name},
    }
    for op in [op for op in block.ops if op.type in given]:
        more = given.pop(op.type)
        inputs = {slot: op.input(slot) for slot in op.input_names}
        assert not set(inputs) & set(more)
        result = block.create_var(dtype="float32")
        again = block.append_op(op.type, {**inputs, **more}, {"X@GRAD": result}, op.all_attrs())
        assert {slot: again.input(slot) for slot in again.input_names} == inputs
        with pytest.raises(errors.NotFound, match="no input slot 'Outs'"):
            block.append_op(op.type, {**inputs, "Outs": out}, {"X@GRAD": block.create_var()}, op.all_attrs())
    assert not given


#: Gradient operators → the inputs that they have here and not in Fluid.
LACKING = {
    "elementwise_div_grad": {"X"},
    "pad_grad": {"X"},
    "selu_grad": {"X"},
    "huber_loss_grad": {"X", "Y"},
    "margin_rank_loss_grad": {"X1", "X2"},
    "group_norm_grad": {"X", "Mean"},
}


def without_lacking_inputs(program: bytes, seen: set[str]) -> bytes:
    """``program`` as Fluid saves it."""

    def of_op(message: bytes) -> bytes:
        parts = list(fields(message))
        op_type = next(value.decode() for number, _, value in parts if number == 3 and isinstance(value, bytes))
        lacking = {slot.encode() for slot in LACKING.get(op_type, ())}
        seen.update([op_type] if lacking else [])
        kept = [part for part in parts if part[0] != 1 or next(fields(part[2]))[2] not in lacking]  # type: ignore[arg-type]
        return b"".join(encode(*part) for part in kept)

    return nested(program, 1, lambda block: nested(block, 4, of_op))


def build_training() -> Variable:
    """Twice what has a gradient of LACKING: the gradients have to find the right one."""
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 4])
    for _ in range(2):
        x = layers.selu(layers.fc(layers.elementwise_div(x, y), 4))
        x = layers.slice(layers.pad(x, [0, 0, 1, 0]), [1], [0], [4])
        x = layers.reshape(layers.group_norm(layers.reshape(x, [-1, 4, 1, 1]), 2), [-1, 4])
    rank = layers.margin_rank_loss(layers.fill_constant_batch_size_like(x, [-1, 4], "float32", 1.0), x, y)
    loss = layers.mean(layers.huber_loss(x, y, 0.5)) + layers.mean(rank)
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def test_gradient_operators_find_the_inputs_that_fluid_does_not_give_them(exe: fluid.Executor) -> None:
    loss, program = build_training(), fluid.default_main_program()
    seen: set[str] = set()
    loaded = fluid.Program.parse_from_string(without_lacking_inputs(program.desc.serialize_to_string(), seen))
    assert seen == set(LACKING)
    assert loaded.desc.serialize_to_string() == program.desc.serialize_to_string()
    rng = np.random.default_rng(4)
    given = {name: rng.uniform(0.5, 2, (3, 4)).astype(np.float32) for name in ("x", "y")}
    exe.run(fluid.default_startup_program())
    (first,) = exe.run(loaded, feed=given, fetch_list=[loss.name])
    (second,) = exe.run(loaded, feed=given, fetch_list=[loss.name])
    assert second < first


def test_an_input_that_is_overwritten_is_not_taken_for_one_that_a_gradient_lacks() -> None:
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 4])
    x.stop_gradient = False
    loss = layers.mean(layers.elementwise_div(x, y))
    layers.assign(y, x)
    fluid.backward.append_backward(loss)
    saved = without_lacking_inputs(fluid.default_main_program().desc.serialize_to_string(), set())
    with pytest.raises(errors.DataLoss, match="input slot 'X' of 'elementwise_div_grad' must be given"):
        fluid.Program.parse_from_string(saved)


def test_the_weight_that_is_a_result_of_hsigmoid_in_fluid() -> None:
    cost = layers.hsigmoid(fluid.data("x", [None, 4]), fluid.data("label", [None, 1], "int64"), 5)
    block = fluid.default_main_program().global_block()
    op = next(op for op in block.ops if op.type == "hierarchical_sigmoid")
    inputs = {slot: op.input(slot) for slot in op.input_names}
    outputs = {"Out": block.create_var(dtype="float32"), "PreOut": block.create_var(dtype="float32")}
    again = block.append_op(op.type, inputs, {**outputs, "W_Out": inputs["W"]}, op.all_attrs())
    assert sorted(again.output_names) == ["Out", "PreOut"]
    with pytest.raises(errors.NotFound, match="no output slot 'W_Out'"):
        block.append_op(op.type, inputs, {**outputs, "W_Out": cost}, op.all_attrs())
