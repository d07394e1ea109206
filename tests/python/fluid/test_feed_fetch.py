"""Programs with the operators feed and fetch, as Fluid's saved inference programs have them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid.core import VarType, get_fetch_variable, set_feed_variable

layers = fluid.layers
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def number(value: int) -> bytes:
    out = bytearray()
    value &= 2**64 - 1
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(index: int, value: int | bytes | str) -> bytes:
    """A field of a Protocol Buffers message."""
    if isinstance(value, int):
        return number(index << 3) + number(value)
    value = value.encode() if isinstance(value, str) else value
    return number(index << 3 | 2) + number(len(value)) + value


def attribute(name: str, kind: int, at: int, value: int | str | float | list[str]) -> bytes:
    head = field(1, name) + field(2, kind)
    if isinstance(value, float):
        return field(4, head + number(at << 3 | 5) + struct.pack("<f", value))
    values = value if isinstance(value, list) else [value]
    return field(4, head + b"".join(field(at, item) for item in values))


def operator(op_type: str, inputs: dict[str, str | None], outputs: dict[str, str], attrs: list[bytes]) -> bytes:
    """As Fluid writes it: with slots that hold nothing, and attributes that its passes leave."""
    slots = b""
    for at, names in ((1, inputs), (2, outputs)):
        for slot, name in names.items():
            slots += field(at, field(1, slot) + (b"" if name is None else field(2, name)))
    left = [
        attribute("op_callstack", 5, 8, ["  File 'train.py', line 3, in <module>"]),
        attribute("op_namescope", 2, 5, "/"),
        attribute("op_role", 0, 3, 0),
        attribute("op_role_var", 5, 8, []),
    ]
    return field(4, slots + field(3, op_type) + b"".join(attrs + left))


def variable(name: str, dims: list[int] | None, persistable: bool, kind: int = 7) -> bytes:
    kind_desc = field(1, kind)
    if dims is not None:
        kind_desc += field(3, field(1, field(1, 5) + b"".join(field(2, dim) for dim in dims)) + field(2, 0))
    return field(3, field(1, name) + field(2, kind_desc) + field(3, int(persistable)) + field(4, 0))


def fluid_program(version: int = 1006001) -> bytes:
    """softmax(x · w + b), as Fluid's save_inference_model writes it."""
    block = field(1, 0) + field(2, -1)
    block += variable("feed", None, True, 9) + variable("fetch", None, True, 10)
    block += variable("x", [-1, 3], False) + variable("w", [3, 2], True) + variable("b", [2], True)
    block += b"".join(variable(name, [-1, 2], False) for name in ("product", "sum", "out"))
    mkldnn = attribute("use_mkldnn", 6, 10, 0)
    block += operator("feed", {"X": "feed"}, {"Out": "x"}, [attribute("col", 0, 3, 0)])
    scales = [attribute("scale_x", 1, 4, 1.0), attribute("scale_out", 1, 4, 1.0)]
    columns = [attribute("x_num_col_dims", 0, 3, 1), attribute("y_num_col_dims", 0, 3, 1)]
    block += operator("mul", {"X": "x", "Y": "w"}, {"Out": "product"}, [*columns, *scales, mkldnn])
    formats = [attribute("x_data_format", 2, 5, ""), attribute("y_data_format", 2, 5, "")]
    add = [attribute("axis", 0, 3, 1), *formats, mkldnn]
    block += operator("elementwise_add", {"X": "product", "Y": "b"}, {"Out": "sum"}, add)
    softmax = [
        attribute("axis", 0, 3, -1),
        attribute("data_format", 2, 5, "AnyLayout"),
        attribute("use_cudnn", 6, 10, 1),
    ]
    block += operator("softmax", {"X": "sum"}, {"Out": "out"}, [*softmax, attribute("is_test", 6, 10, 1)])
    block += operator("fetch", {"X": "out"}, {"Out": "fetch"}, [attribute("col", 0, 3, 0)])
    return field(1, block) + field(4, field(1, version))


def saved_tensor(array: np.ndarray) -> bytes:
    """As Fluid's operator save writes it."""
    desc = field(1, 5) + b"".join(field(2, dim) for dim in array.shape)
    return struct.pack("<IQIi", 0, 0, 0, len(desc)) + desc + array.tobytes()


W, B = np.array([[1, 2], [0, -1], [0.5, 1]], np.float32), np.array([0.25, -0.5], np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    e = np.exp(x @ W + B)
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("combined", [False, True])
def test_a_model_that_fluid_has_saved_runs(exe: fluid.Executor, tmp_path: Path, combined: bool) -> None:
    (tmp_path / "__model__").write_bytes(fluid_program())
    if combined:
        (tmp_path / "params").write_bytes(saved_tensor(B) + saved_tensor(W))  # sorted by their names
    else:
        (tmp_path / "w").write_bytes(saved_tensor(W))
        (tmp_path / "b").write_bytes(saved_tensor(B))
    name = "params" if combined else None
    program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe, params_filename=name)
    assert feeds == ["x"]
    assert [fetch.name for fetch in fetches] == ["out"]
    for x in (X, X[:1] - 1):
        (got,) = exe.run(program, feed={"x": x}, fetch_list=fetches)
        np.testing.assert_allclose(got, expected(x), rtol=1e-6)


def test_a_program_of_another_major_release_is_refused() -> None:
    with pytest.raises(errors.DataLoss, match="2000000"):
        fluid.Program.parse_from_string(fluid_program(2000000))


def test_a_damaged_parameter_of_fluid_is_named(exe: fluid.Executor, tmp_path: Path) -> None:
    (tmp_path / "__model__").write_bytes(fluid_program())
    (tmp_path / "w").write_bytes(saved_tensor(W)[:-1])
    (tmp_path / "b").write_bytes(saved_tensor(B))
    with pytest.raises(errors.DataLoss, match="w"):
        fluid.io.load_inference_model(str(tmp_path), exe)
    assert fluid.global_scope().find_var("b") is None


def doubling() -> fluid.Program:
    """Takes x from column 1 and y from column 0, and gives 2 x in column 0 and x + y in column 1."""
    block = fluid.default_main_program().global_block()
    block.create_var("feed", type=VarType.FEED_MINIBATCH, persistable=True)
    block.create_var("fetch", type=VarType.FETCH_LIST, persistable=True)
    x, y = layers.data("x", [3]), layers.data("y", [3])
    for column, name in enumerate(("y", "x")):
        block.append_op("feed", {"X": "feed"}, {"Out": name}, {"col": column})
    for column, out in enumerate((layers.scale(x, 2.0), x + y)):
        block.append_op("fetch", {"X": out}, {"Out": "fetch"}, {"col": column})
    return fluid.default_main_program()


def test_lists_feed_and_are_filled(exe: fluid.Executor) -> None:
    program, scope = doubling(), fluid.global_scope()
    for factor in (1, 3):
        set_feed_variable(scope, fluid.LoDTensor.from_numpy(factor * X), "feed", 1)
        set_feed_variable(scope, fluid.LoDTensor.from_numpy(X), "feed", 0)
        exe.run(program)
        np.testing.assert_array_equal(get_fetch_variable(scope, "fetch", 0), 2 * factor * X)
        np.testing.assert_array_equal(get_fetch_variable(scope, "fetch", 1), (factor + 1) * X)


def test_what_was_fetched_stays(exe: fluid.Executor) -> None:
    program, scope = doubling(), fluid.global_scope()
    exe.run(program, feed={"x": X, "y": X})
    first = get_fetch_variable(scope, "fetch", 0)
    exe.run(program, feed={"x": -X, "y": X})
    np.testing.assert_array_equal(first, 2 * X)


def test_a_name_takes_precedence_over_a_column_which_is_used_no_longer_than_it_is_there(exe: fluid.Executor) -> None:
    program, scope = doubling(), fluid.global_scope()
    set_feed_variable(scope, fluid.LoDTensor.from_numpy(X), "feed", 1)
    exe.run(program, feed={"x": -X, "y": X})
    np.testing.assert_array_equal(get_fetch_variable(scope, "fetch", 0), -2 * X)
    exe.run(program, feed={"y": X})
    np.testing.assert_array_equal(get_fetch_variable(scope, "fetch", 0), 2 * X)
    scope.var("feed").set_lod_tensor_array([])
    with pytest.raises(RuntimeError, match="'x' is fed neither by its name nor in column 1 of 'feed'"):
        exe.run(program, feed={"y": X})


@pytest.mark.parametrize(
    ("value", "error", "part"),
    [
        (X.astype(np.float64), TypeError, "expected dtype float32, got float64"),
        (X[:, :2], ValueError, r"expected shape \[-1, 3\], got \[2, 2\]"),
    ],
)
def test_a_column_that_does_not_fit_is_refused(
    exe: fluid.Executor, value: Any, error: type[Exception], part: str
) -> None:
    program = doubling()
    set_feed_variable(fluid.global_scope(), fluid.LoDTensor.from_numpy(value), "feed", 1)
    with pytest.raises(error, match=f"'x': {part}"):
        exe.run(program, feed={"y": X})


def test_lists_and_columns_are_checked(exe: fluid.Executor) -> None:
    block = fluid.default_main_program().global_block()
    x = layers.data("x", [3])
    block.create_var("fetch", type=VarType.FETCH_LIST, persistable=True)
    block.append_op("fetch", {"X": x}, {"Out": "fetch"}, {"col": 7})
    with pytest.raises(IndexError, match="'col' of 'fetch'"):
        exe.run(feed={"x": X})
    block._remove_op(0)
    block.append_op("fetch", {"X": x}, {"Out": layers.data("list", [1])}, {"col": 0})
    with pytest.raises(TypeError, match="'list' is a LoDTensor"):
        exe.run(feed={"x": X})
    fluid.global_scope().var("fetch")
    with pytest.raises(IndexError, match="no column 3"):
        get_fetch_variable(fluid.global_scope(), "fetch", 3)
    with pytest.raises(KeyError, match="nowhere"):
        get_fetch_variable(fluid.global_scope(), "nowhere", 0)
