"""Operators that take parts of tensors by numbers: coordinates, strides, rows of tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.testing import OpTest

RNG = np.random.default_rng(61)
X = RNG.uniform(-1, 1, (3, 4, 2))
#: Coordinates in X, some of them twice.
INDICES = [
    np.array([[2], [0], [2]]),
    np.array([[2, 1], [0, 3]]),
    np.array([[[2, 1, 0]], [[0, 3, 1]], [[2, 1, 0]]]),
    np.zeros((2, 0), np.int64),
    np.zeros((0, 2), np.int64),
]


def parts(index: np.ndarray) -> tuple[Any, ...]:
    return tuple(index[..., k] for k in range(index.shape[-1]))


def gathered(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    if index.shape[-1] == 0:
        return np.broadcast_to(x, (*index.shape[:-1], *x.shape))
    return x[parts(index)]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index.shape))
def test_gather_nd(index: np.ndarray, dtype: str) -> None:
    given = {"X": X, "Index": index.astype(dtype)}
    test = OpTest("gather_nd", given, outputs={"Out": gathered(X, index)}, known=["Index"])
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32"])
def test_gather_nd_of_any_dtype(dtype: str) -> None:
    x = np.array([[0, 1, 1], [1, 0, 0]]).astype(dtype)
    index = np.array([[1, 0], [0, 2]])
    OpTest("gather_nd", {"X": x, "Index": index}, outputs={"Out": x[parts(index)]}, known=["Index"]).check_outputs()


@pytest.mark.parametrize("index", INDICES, ids=lambda index: str(index.shape))
def test_scatter_nd_add(index: np.ndarray) -> None:
    updates = RNG.uniform(-1, 1, gathered(X, index).shape)
    expected = X.copy()
    if index.shape[-1]:
        np.add.at(expected, parts(index), updates)
    else:
        expected += updates.sum(0)
    given = {"X": X, "Index": index, "Updates": updates}
    test = OpTest("scatter_nd_add", given, outputs={"Out": expected}, known=["Index"])
    test.check_outputs()
    test.check_gradients(["X", "Updates"])


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32"])
def test_scatter_nd_add_of_any_dtype(dtype: str) -> None:
    given = {
        "X": np.array([250, 2], dtype),
        "Index": np.array([[0], [0], [1]], np.int32),
        "Updates": np.array([1, 7, 3], dtype),
    }
    expected = np.array([258, 5]).astype(dtype)
    OpTest("scatter_nd_add", given, outputs={"Out": expected}, known=["Index"]).check_outputs()


def test_parts_that_do_not_exist_are_refused() -> None:
    for bad, part in (([-1, 0], "element 2 is -1"), ([3, 0], "[0, 3) of dimension 0"), ([0, 4], "element 3 is 4")):
        index = np.array([[0, 0], bad])
        OpTest("gather_nd", {"X": X, "Index": index}).check_refused(IndexError, "input Index", part, when="run")
        given = {"X": X, "Index": index, "Updates": np.ones((2, 2))}
        OpTest("scatter_nd_add", given).check_refused(IndexError, "input Index", part, when="run")
    for index, error, part in (
        (np.array([0]), ValueError, "rank"),
        (np.zeros((1, 4), np.int64), ValueError, "[3, 4, 2]"),
        (np.zeros((1, 1)), TypeError, "float64"),
    ):
        OpTest("gather_nd", {"X": X, "Index": index}, known=["X", "Index"]).check_refused(error, "input Index", part)
        given = {"X": X, "Index": index, "Updates": np.ones((1, 4, 2))}
        test = OpTest("scatter_nd_add", given, known=["X", "Index"])
        test.check_refused(error, "input Index", part)
    given = {"X": X, "Index": np.array([[0, 1]]), "Updates": np.ones((2, 2))}
    test = OpTest("scatter_nd_add", given, known=["X", "Index"])
    test.check_refused(ValueError, "input Updates", "[1, 2]", "[2, 2]")
    given["Updates"] = np.ones((1, 2), np.float32)
    test = OpTest("scatter_nd_add", given, known=["X", "Index"])
    test.check_refused(TypeError, "input Updates", "float64 as input X has")


def each(*values: int) -> list[np.ndarray]:
    return [np.array([value], np.int32) for value in values]


STRIDES = [
    ([0], [0], [3], [2], np.s_[::2]),
    ([1, 0], [3, 2], [0, 0], [-1, -2], np.s_[2:0:-2, 3:0:-1]),
    ([1], [-1], [-9], [-2], np.s_[:, ::-2]),
    ([-2], [-9], [9], [3], np.s_[:, ::3]),
    ([1, 2], [9, 0], [0, 2], [-3, 7], np.s_[:, :0:-3, ::7]),
    ([1], [1], [1], [1], np.s_[:, 1:1]),
]


@pytest.mark.parametrize("case", STRIDES, ids=lambda case: str(case[:4]))
@pytest.mark.parametrize("inputs", ["", "Tensor", "TensorList"])
def test_strided_slice(case: tuple[Any, ...], inputs: str) -> None:
    axes, starts, ends, strides, where = case
    values = {"starts": starts, "ends": ends, "strides": strides}
    given: dict[str, Any] = {"Input": X}
    attrs: dict[str, Any] = {"axes": axes}
    for name, numbers in values.items():
        if inputs:
            of_tensor = inputs == "Tensor"
            given[f"{name.capitalize()}{inputs}"] = np.array(numbers, np.int32) if of_tensor else each(*numbers)
        else:
            attrs[name] = numbers
    test = OpTest("strided_slice", given, attrs, {"Out": X[where]}, known=[slot for slot in given if slot != "Input"])
    test.check_outputs()
    test.check_gradients(["Input"])


def test_strided_slices_keep_rows_and_drop_dimensions() -> None:
    attrs = {"axes": [1], "starts": [3], "ends": [0], "strides": [-2]}
    out = (X[:, 3:0:-2], [[1, 2]])
    OpTest("strided_slice", {"Input": (X, [[1, 2]])}, attrs, {"Out": out}).check_outputs()
    attrs = {"axes": [1], "starts": [3], "ends": [1], "strides": [-2], "decrease_axis": [1]}
    test = OpTest("strided_slice", {"Input": X}, attrs, {"Out": X[:, 3]})
    test.check_outputs()
    test.check_gradients(["Input"])


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "float32"])
def test_strided_slice_of_any_dtype(dtype: str) -> None:
    x = np.array([[0, 1, 1], [1, 0, 0]]).astype(dtype)
    attrs = {"axes": [1], "starts": [2], "ends": [-4], "strides": [-2]}
    OpTest("strided_slice", {"Input": x}, attrs, {"Out": x[:, ::-2]}).check_outputs()


def test_strides_that_lead_nowhere_are_refused() -> None:
    def test(**changed: Any) -> OpTest:
        return OpTest(
            "strided_slice", {"Input": X}, {"axes": [1], "starts": [0], "ends": [2], "strides": [1]} | changed
        )

    test(strides=[0]).check_refused(ValueError, "attribute strides", "not 0")
    test(strides=[1, 1]).check_refused(ValueError, "attribute strides", "as many as axes, 1, got 2")
    test(starts=[1, 1]).check_refused(ValueError, "axes, starts and ends")
    test(axes=[3]).check_refused(ValueError, "attribute axes", "got 3")
    test(decrease_axis=[1]).check_refused(ValueError, "attribute decrease_axis")
    given = {"Input": X, "StridesTensor": np.array([0], np.int32)}
    zero = OpTest("strided_slice", given, {"axes": [1], "starts": [0], "ends": [2]})
    zero.check_refused(ValueError, "input StridesTensor", "not 0", when="run")


def test_lookup_table_v2() -> None:
    table = RNG.uniform(-1, 1, (5, 3))
    for ids in (np.array([4, 0, 4]), np.array([[1, 2], [2, 0]])):
        expected = table[ids]
        expected[ids == 2] = 0
        given = {"W": table, "Ids": ids}
        test = OpTest("lookup_table_v2", given, {"padding_idx": 2}, {"Out": expected}, known=["W"])
        test.check_outputs()
        test.check_gradients(["W"])


def test_one_hot_v2() -> None:
    for ids in (np.array([2, 0, 1]), np.array([[2], [1]]), np.array([[1, 2], [0, 0]], np.int32)):
        expected = np.eye(4, dtype=np.float32)[ids]
        OpTest("one_hot_v2", {"X": ids}, {"depth": 4}, {"Out": expected}).check_outputs()
        given = {"X": ids, "depth_tensor": np.array([4], np.int32)}
        OpTest("one_hot_v2", given, {"depth": 9}, {"Out": expected}).check_outputs()
    outside = np.array([1, -1, 4])
    expected = np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    attrs = {"depth": 3, "dtype": 3, "allow_out_of_range": True}
    OpTest("one_hot_v2", {"X": outside}, attrs, {"Out": expected}).check_outputs()


def test_numbers_that_are_not_in_a_table_are_refused() -> None:
    table, ids = np.ones((3, 2)), np.array([0, 3])
    test = OpTest("lookup_table_v2", {"W": table, "Ids": ids})
    test.check_refused(IndexError, "input Ids: row 1 has id 3", "[0, 3)", when="run")
    test = OpTest("lookup_table_v2", {"W": table, "Ids": ids.astype(np.float64)})
    test.check_refused(TypeError, "input Ids", "int64", "float64")
    test = OpTest("lookup_table_v2", {"W": table, "Ids": ids.astype(np.int32)})  # declared it may be, and given int64
    test.check_refused(TypeError, "input Ids", "int64", "int32", when="run")
    OpTest("lookup_table_v2", {"W": table[0], "Ids": ids}).check_refused(ValueError, "input W", "rank 2")
    test = OpTest("lookup_table_v2", {"W": table, "Ids": ids}, {"padding_idx": 3}, known=["W"])
    test.check_refused(ValueError, "attribute padding_idx", "got 3")
    one_hot = OpTest("one_hot_v2", {"X": ids}, {"depth": 3})
    one_hot.check_refused(IndexError, "input X: element 1 is 3", "[0, 3)", when="run")
    OpTest("one_hot_v2", {"X": ids}, {"depth": 0}).check_refused(ValueError, "attribute depth", "got 0")
    OpTest("one_hot_v2", {"X": np.ones(2)}, {"depth": 3}).check_refused(NotImplementedError, "float64")


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
def test_unique(dtype: str, index_dtype: str) -> None:
    for numbers in ([2, 3, 3, 1, 5, 3, 2], [], [7], RNG.integers(0, 50, 300).tolist()):
        chosen = list(dict.fromkeys(numbers))
        outputs = {
            "Out": np.array(chosen, dtype),
            "Index": np.array([chosen.index(x) for x in numbers], index_dtype),
            "Count": np.array([numbers.count(x) for x in chosen], index_dtype),
        }
        given, attrs = {"X": np.array(numbers, dtype)}, {"dtype": 2 if index_dtype == "int32" else 3}
        OpTest("unique_with_counts", given, attrs, outputs).check_outputs()
        del outputs["Count"]
        OpTest("unique", given, attrs, outputs).check_outputs()


def test_every_nan_is_unique() -> None:
    nan = np.nan
    outputs = {"Out": np.array([1, nan, nan, 0]), "Index": np.array([0, 1, 0, 2, 3, 3])}
    OpTest("unique", {"X": np.array([1, nan, 1, nan, 0, -0.0])}, {"dtype": 3}, outputs).check_outputs()


@pytest.mark.parametrize("op_type", ["unique", "unique_with_counts"])
def test_unique_refuses_what_is_no_list(op_type: str) -> None:
    outputs = {"Out": None, "Index": None} | ({"Count": None} if op_type != "unique" else {})
    test = OpTest(op_type, {"X": np.ones((2, 1))}, {"dtype": 3}, outputs)
    test.check_refused(ValueError, "input X", "rank 1")
    test = OpTest(op_type, {"X": np.ones(2)}, {"dtype": 5}, outputs)
    test.check_refused(NotImplementedError, "attribute dtype", "float32")
    OpTest(op_type, {"X": np.ones(2)}, {"dtype": 99}, outputs).check_refused(ValueError, "attribute dtype", "got 99")


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_shard_index(dtype: str) -> None:
    x = np.array([[1], [6], [12], [19]], dtype)
    attrs = {"index_num": 20, "nshards": 2}
    for shard, expected in ((0, [[1], [6], [-1], [-1]]), (1, [[-1], [-1], [2], [9]])):
        out = np.array(expected, dtype)
        OpTest(
            "shard_index", {"X": (x, [[1, 3]])}, {**attrs, "shard_id": shard}, {"Out": (out, [[1, 3]])}
        ).check_outputs()
    for shard, expected in ((0, [[1], [6], [-1], [-1]]), (1, [[-1], [-1], [5], [-1]]), (2, [[-1], [-1], [-1], [5]])):
        uneven = {**attrs, "nshards": 3, "shard_id": shard}  # 7, 7 and 6 rows
        OpTest("shard_index", {"X": x}, uneven, {"Out": np.array(expected, dtype)}).check_outputs()
    given = {**attrs, "shard_id": 0, "ignore_value": 7}
    OpTest("shard_index", {"X": x}, given, {"Out": np.array([[1], [6], [7], [7]], dtype)}).check_outputs()


def test_shards_that_do_not_exist_are_refused() -> None:
    def refused(changed: dict[str, int], error: type[Exception], *parts: str, when: str = "build") -> None:
        attrs = {"index_num": 20, "nshards": 2, "shard_id": 0, **changed}
        OpTest("shard_index", {"X": np.array([[1], [19]])}, attrs).check_refused(error, *parts, when=when)

    refused({"index_num": 0}, ValueError, "attribute index_num", "got 0")
    refused({"nshards": 0}, ValueError, "attribute nshards", "[1, 20]", "got 0")
    refused({"nshards": 21}, ValueError, "attribute nshards", "got 21")
    refused({"shard_id": 2}, ValueError, "attribute shard_id", "[0, 2)", "got 2")
    refused({"shard_id": -1}, ValueError, "attribute shard_id", "got -1")
    refused({"index_num": 19, "nshards": 1}, IndexError, "input X: element 1 is 19", "[0, 19)", when="run")
    attrs = {"index_num": 20, "nshards": 2, "shard_id": 0}
    OpTest("shard_index", {"X": np.array([1])}, attrs).check_refused(ValueError, "input X", "rank")


@pytest.mark.parametrize("shape", ["attribute", "tensor", "list"])
@pytest.mark.parametrize("offsets", ["attribute", "tensor", "list"])
def test_crop_tensor(shape: str, offsets: str) -> None:
    given: dict[str, Any] = {"X": X}
    attrs: dict[str, Any] = {}
    for form, name, slots, values in (
        (shape, "shape", ("Shape", "ShapeTensor"), [2, 3, 1]),
        (offsets, "offsets", ("Offsets", "OffsetsTensor"), [1, 0, 1]),
    ):
        if form == "attribute":
            attrs[name] = values
        elif form == "tensor":
            given[slots[0]] = np.array(values, np.int32)
        else:
            given[slots[1]] = each(*values)
    test = OpTest("crop_tensor", given, attrs, {"Out": X[1:3, :3, 1:]})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("form", ["attribute", "tensor"])
def test_what_is_left_from_the_offsets_on(form: str) -> None:
    x = np.arange(60.0).reshape(5, 4, 3)
    shape, offsets = [-1, 2, -1], [2, 1, 0]
    given = {"X": (x, [[2, 3]])}
    attrs: dict[str, Any] = {"shape": shape, "offsets": offsets}
    if form == "tensor":
        attrs = {}
        given |= {"Shape": np.array(shape, np.int32), "Offsets": np.array(offsets, np.int32)}  # type: ignore[dict-item]
    OpTest("crop_tensor", given, attrs, {"Out": x[2:, 1:3]}).check_outputs()
    attrs, given = {"shape": [-1, 2, -1], "offsets": [6, 0, 0]}, {"X": x}  # type: ignore[dict-item]
    OpTest("crop_tensor", given, attrs).check_refused(ValueError, "attribute offsets", "[6, 0, 0]")


def test_a_part_that_inputs_say_has_to_lie_in_x() -> None:
    for given, parts in (
        ({"Shape": np.array([2, 5, 1], np.int32)}, ["shape", "[2, 5, 1]"]),
        ({"Shape": np.array([2, -2, 1], np.int32)}, ["input Shape", "[2, -2, 1]"]),
        ({"Shape": np.array([1, 1, 1]), "Offsets": np.array([0, -1, 0])}, ["input Offsets", "[0, -1, 0]"]),
    ):
        OpTest("crop_tensor", {"X": X, **given}).check_refused(ValueError, *parts, when="run")
    test = OpTest("crop_tensor", {"X": X, "Shape": np.array([1, 1])})
    test.check_refused(ValueError, "input Shape", "expected 3")
    test = OpTest("crop_tensor", {"X": X, "Shape": np.ones(3)})
    test.check_refused(TypeError, "input Shape", "float64")


@pytest.mark.parametrize(
    ("dtype", "width", "expected"),
    [
        ("int32", 1, [[602, 721], [369, 525]]),
        ("int32", 3, [[693, 245], [594, 552]]),
        ("int32", 9, [[507, 519], [625, 531]]),
        ("int64", 1, [[603, 336], [475, 814]]),
        ("int64", 3, [[919, 825], [994, 190]]),
        ("int64", 9, [[64, 556], [197, 347]]),
    ],
)
def test_hash(dtype: str, width: int, expected: list[list[int]]) -> None:
    """As XXH64 in the package xxhash."""
    x = (np.arange(2 * width).reshape(2, width) * 7 - 3).astype(dtype)
    out = (np.array(expected, dtype)[..., None], [[2]])
    OpTest("hash", {"X": (x, [[2]])}, {"num_hash": 2, "mod_by": 1000}, {"Out": out}).check_outputs()


def test_hashes_of_no_rows_are_refused() -> None:
    x = np.ones((2, 3), np.int32)
    OpTest("hash", {"X": x[0]}).check_refused(ValueError, "input X", "rank 2")
    OpTest("hash", {"X": x}, {"num_hash": 0}).check_refused(ValueError, "attribute num_hash", "got 0")
    OpTest("hash", {"X": x}, {"mod_by": 0}).check_refused(ValueError, "attribute mod_by", "got 0")
    OpTest("hash", {"X": x}, {"mod_by": 2**32}).check_refused(ValueError, "attribute mod_by", "got 4294967296")
    OpTest("hash", {"X": x.astype(np.float32)}).check_refused(NotImplementedError, "float32")


def test_the_run_checks_the_numbers_that_are_fed_to_one_hot() -> None:
    program, exe = fluid.Program(), fluid.Executor()
    with fluid.program_guard(program, fluid.Program()):
        x = fluid.layers.data("x", [12], lod_level=1)
        out = x.block.create_var(dtype="float32")
        x.block.append_op("one_hot", {"X": x}, {"Out": out}, {"depth": 3})
    got = exe.run(program, {"x": np.array([[1], [2]])}, [out], scope=fluid.Scope())[0]
    assert got.tolist() == [[0, 1, 0], [0, 0, 1]]
    for wrong, error in (
        (np.zeros((1, 12), np.int64), errors.InvalidArgument),
        (np.zeros((1, 1), np.float32), errors.Unimplemented),
        (np.array([[3]]), errors.OutOfRange),
    ):
        with pytest.raises(error):
            exe.run(program, {"x": wrong}, scope=fluid.Scope())
