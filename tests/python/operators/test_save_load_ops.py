"""save, save_combine, load, load_combine."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.testing import OpTest

RNG = np.random.default_rng(127)
DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"]
Lengths = list[list[int]]


def save(op_type: str, path: Path, tensors: list[tuple[np.ndarray, Lengths]], **attrs: Any) -> None:
    program = fluid.Program()
    block = program.global_block()
    feed = {}
    for i, (value, lengths) in enumerate(tensors):
        block.create_var(f"x{i}", value.shape, value.dtype, len(lengths))
        tensor = fluid.core.LoDTensor.from_numpy(value)
        tensor.set_recursive_sequence_lengths(lengths)
        feed[f"x{i}"] = tensor
    inputs = {"X": [block.var(name) for name in feed]}
    block.append_op(op_type, inputs, {}, {"file_path": str(path), **attrs})
    fluid.Executor().run(program, feed, [], scope=fluid.Scope())


def load(op_type: str, path: Path, count: int = 1) -> list[fluid.LoDTensor]:
    program = fluid.Program()
    block = program.global_block()
    out = [block.create_var(f"out{i}") for i in range(count)]
    block.append_op(op_type, {}, {"Out": out}, {"file_path": str(path)})
    return fluid.Executor().run(program, {}, out, scope=fluid.Scope(), return_numpy=False)


def check(tensor: fluid.LoDTensor, value: np.ndarray, lengths: Lengths) -> None:
    got = np.array(tensor)
    assert got.dtype == value.dtype
    np.testing.assert_array_equal(got, value)
    assert tensor.recursive_sequence_lengths() == lengths


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_comes_back_as_it_was(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    value = RNG.integers(0, 2, shape).astype(dtype)
    save("save", tmp_path / "folder" / "of" / "x", [(np.asarray(value), [])])
    (tensor,) = load("load", tmp_path / "folder" / "of" / "x")
    check(tensor, np.asarray(value), [])
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x"]


def test_several_tensors_with_sequences(tmp_path: Path) -> None:
    tensors: list[tuple[np.ndarray, Lengths]] = [
        (RNG.uniform(size=(5, 2)), [[2, 1], [1, 0, 4]]),
        (np.arange(3), []),
        (np.zeros((0, 1), np.float32), [[0, 0]]),
    ]
    save("save_combine", tmp_path / "all", tensors)
    for tensor, (value, lengths) in zip(load("load_combine", tmp_path / "all", 3), tensors):
        check(tensor, value, lengths)


#: What Fluid 1.x writes for a float32 tensor [[1], [2]] with the LoD [[0, 2]].
FLUID = (
    struct.pack("<IQ", 0, 1)
    + struct.pack("<QQQ", 16, 0, 2)
    + struct.pack("<Ii", 0, 6)
    + bytes([0x08, 5, 0x10, 2, 0x10, 1])
    + struct.pack("<ff", 1, 2)
)


def test_the_files_are_fluids(tmp_path: Path) -> None:
    value = np.array([[1], [2]], np.float32)
    save("save", tmp_path / "ours", [(value, [[2]])])
    assert (tmp_path / "ours").read_bytes() == FLUID
    packed = FLUID.replace(bytes([0x10, 2, 0x10, 1]), bytes([0x12, 2, 2, 1]))
    for name, content in (("fluid", FLUID), ("packed", packed)):
        (tmp_path / name).write_bytes(content)
        check(load("load", tmp_path / name)[0], value, [[2]])


def test_every_truncation_and_every_changed_byte_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for end in range(len(FLUID)):
        path.write_bytes(FLUID[:end])
        with pytest.raises(errors.DataLoss, match="x'"):
            load("load", path)
    header = len(FLUID) - 8
    for at in range(header):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            path.write_bytes(FLUID[:at] + bytes([value]) + FLUID[at + 1 :])
            with contextlib.suppress(errors.DataLoss):
                (tensor,) = load("load", path)
                assert np.array(tensor).nbytes <= 8


def test_what_cannot_be_saved_or_loaded_is_refused(tmp_path: Path) -> None:
    one: list[tuple[np.ndarray, Lengths]] = [(np.ones(2), [])]
    save("save", tmp_path / "x", one)
    with pytest.raises(errors.AlreadyExists, match="overwrite"):
        save("save", tmp_path / "x", one, overwrite=False)
    save("save", tmp_path / "x", one, overwrite=True)
    with pytest.raises(OSError, match="nothing"):
        load("load", tmp_path / "nothing")
    with pytest.raises(OSError, match="folder"):
        save("save", tmp_path / "x" / "below a file", one)
    with pytest.raises(errors.DataLoss, match="more than the 1 tensor that is expected"):
        save("save_combine", tmp_path / "two", one * 2)
        load("load_combine", tmp_path / "two")
    with pytest.raises(errors.DataLoss, match="out1"):
        load("load_combine", tmp_path / "x", 2)
    with pytest.raises(NotImplementedError, match="save_as_fp16"):
        save("save", tmp_path / "x", one, save_as_fp16=True)
    OpTest("load", {}, {"file_path": ""}).check_refused(ValueError, "file_path")


def test_the_layer_loads_into_a_variable(tmp_path: Path) -> None:
    save("save", tmp_path / "w", [(np.array([3.0, 4.0], np.float32), [])])
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        weight = layers.create_global_var([2], 0.0, "float32", persistable=True)
        layers.load(weight, str(tmp_path / "w"))
        twice = layers.scale(weight, 2.0)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        assert exe.run(fetch_list=[twice])[0].tolist() == [6.0, 8.0]
        with pytest.raises(NotImplementedError, match="load_as_fp16"):
            layers.load(weight, str(tmp_path / "w"), load_as_fp16=True)


@pytest.mark.parametrize("kept", [0, 30, -1], ids=["nothing", "a part", "all but a byte"])
def test_a_file_that_is_cut_off_changes_none_of_the_variables(tmp_path: Path, kept: int) -> None:
    path, scope = tmp_path / "all", fluid.Scope()
    save("save_combine", path, [(np.ones(3), []), (np.ones((2, 2)), [])])
    path.write_bytes(path.read_bytes()[:kept])
    program = fluid.Program()
    block = program.global_block()
    out = [block.create_var(name, shape, "float64", persistable=True) for name, shape in (("a", [3]), ("b", [2, 2]))]
    for var in out:
        scope.var(var.name).get_tensor().set(np.full(var.shape, 7.0), fluid.CPUPlace())
    block.append_op("load_combine", {}, {"Out": out}, {"file_path": str(path)})
    with pytest.raises(errors.DataLoss):
        fluid.Executor().run(program, {}, [], scope=scope)
    for var in out:
        np.testing.assert_array_equal(np.array(scope.var(var.name).get_tensor()), np.full(var.shape, 7.0))
