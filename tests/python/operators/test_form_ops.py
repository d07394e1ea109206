"""Operators that change the form of a tensor, fill one, or scale it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core
from headrace.testing import OpTest

RNG = np.random.default_rng(29)
X = RNG.uniform(-1, 1, (2, 1, 3))
NUMBERS = {"float32": 5, "float64": 6, "int32": 2, "int64": 3}
#: The attributes of assign_value.
VALUES = {"bool": "bool_values", "float32": "fp32_values", "int32": "int32_values", "int64": "int64_values"}

FORMS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("reshape", {"shape": [3, 2]}, (3, 2)),
    ("reshape", {"shape": [0, -1]}, (2, 3)),
    ("reshape", {"shape": [-1]}, (6,)),
    ("flatten", {"axis": 0}, (1, 6)),
    ("flatten", {"axis": 2}, (2, 3)),
    ("squeeze", {"axes": [1]}, (2, 3)),
    ("unsqueeze", {"axes": [0, 4]}, (1, 2, 1, 3, 1)),
]


@pytest.mark.parametrize("second", ["", "2"])
@pytest.mark.parametrize("case", FORMS, ids=str)
def test_other_dims(case: tuple[str, dict[str, Any], tuple[int, ...]], second: str) -> None:
    op_type, attrs, shape = case
    outputs: dict[str, Any] = {"Out": X.reshape(shape)}
    if second:
        outputs["XShape"] = np.zeros((0, *X.shape))
    test = OpTest(op_type + second, {"X": X}, attrs, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])


def test_squeeze_of_all_dimensions_of_1() -> None:
    (out,) = OpTest("squeeze", {"X": X}, {"axes": []}).run()["Out"]
    assert out.shape() == [2, 3]


@pytest.mark.parametrize("op_type", ["transpose", "transpose2"])
@pytest.mark.parametrize("axis", [[0, 1, 2], [2, 0, 1], [-1, 1, 0]], ids=str)
def test_transpose(op_type: str, axis: list[int]) -> None:
    outputs: dict[str, Any] = {"Out": X.transpose(axis)}
    if op_type == "transpose2":
        outputs["XShape"] = np.zeros((0, *X.shape))
    test = OpTest(op_type, {"X": X}, {"axis": axis}, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])
    OpTest(op_type, {"X": X}, {"axis": [0, 0, 1]}).check_refused(ValueError, "axis")


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("axis", [(0, 2, 1, 3), (2, 0, 1, 3), (0, 3, 1, 2), (0, 2, 3, 1), (3, 2, 1, 0)], ids=str)
def test_transpose_of_rows_that_are_side_by_side(axis: tuple[int, ...], dtype: str) -> None:
    x = np.arange(3 * 17 * 9 * 16).reshape(3, 17, 9, 16).astype(dtype)
    OpTest("transpose", {"X": x}, {"axis": list(axis)}, {"Out": x.transpose(axis)}).check_outputs()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_and_split(axis: int) -> None:
    pieces = [RNG.uniform(-1, 1, (2, 3, 2)) for _ in range(3)]
    whole = np.concatenate(pieces, axis)
    test = OpTest("concat", {"X": list(pieces)}, {"axis": axis}, {"Out": whole})
    test.check_outputs()
    test.check_gradients(["X"])
    test = OpTest("split", {"X": whole}, {"axis": axis, "num": 3}, {"Out": list(pieces)})
    test.check_outputs()
    test.check_gradients(["X"])
    extent = whole.shape[axis]
    sections = [1, extent - 1]
    parts = np.split(whole, [1], axis)
    for given in (sections, [1, -1], [-1, extent - 1]):
        test = OpTest("split", {"X": whole}, {"axis": axis, "sections": given}, {"Out": list(parts)})
        test.check_outputs()
        test.check_gradients(["X"])
    for given in ([extent + 1, -1], [-1, -1], [-2, extent]):
        test = OpTest("split", {"X": whole}, {"axis": axis, "sections": given}, {"Out": [None, None]})
        test.check_refused(ValueError, "sections")


def test_a_tensor_that_is_joined_to_one_of_fewer_dimensions_may_end_in_ones() -> None:
    x, y = RNG.uniform(-1, 1, (2, 3)), RNG.uniform(-1, 1, (2, 2, 1, 1))
    whole = np.concatenate([x, y[:, :, 0, 0]], 1)
    test = OpTest("concat", {"X": [x, y]}, {"axis": 1}, {"Out": whole})
    test.check_outputs()
    test.check_gradients(["X"])
    for pieces in ([y, x], [x, y.reshape(2, 1, 1, 2)]):
        OpTest("concat", {"X": pieces}, {"axis": 1}).check_refused(ValueError, "X")


def test_forms_that_do_not_fit_are_refused() -> None:
    for op_type, attrs, part in (
        ("reshape", {"shape": [4, 2]}, "shape"),
        ("squeeze", {"axes": [0]}, "axes"),
        ("unsqueeze", {"axes": [7]}, "axes"),
        ("flatten", {"axis": 4}, "axis"),
    ):
        OpTest(op_type, {"X": X}, attrs).check_refused(ValueError, part)
    OpTest("concat", {"X": [X, X[:, :, :2]]}).check_refused(ValueError, "X")
    OpTest("split", {"X": X}, {"num": 2, "axis": 2}, {"Out": [None, None]}).check_refused(ValueError, "num")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_constants(dtype: str) -> None:
    attrs = {"shape": [2, 3], "dtype": NUMBERS[dtype], "value": 3.0}
    OpTest("fill_constant", {}, attrs, {"Out": np.full((2, 3), 3, dtype)}).check_outputs()
    like = {"Input": np.zeros((4, 2))}
    attrs = {"shape": [-1, 3], "dtype": NUMBERS[dtype], "value": 2.0}
    OpTest("fill_constant_batch_size_like", like, attrs, {"Out": np.full((4, 3), 2, dtype)}).check_outputs()
    x = np.ones((2, 2), dtype)
    OpTest("fill_zeros_like", {"X": x}, outputs={"Out": 0 * x}).check_outputs()
    OpTest("fill_any_like", {"X": x}, {"value": 5.0}, {"Out": 5 * x}).check_outputs()
    rows = {"X": (np.ones((2, 2), np.float32), [[1, 1]])}
    typed = {"dtype": NUMBERS[dtype]}
    OpTest("fill_any_like", rows, {**typed, "value": 5.0}, {"Out": (5 * x, [[1, 1]])}).check_outputs()
    OpTest("fill_zeros_like2", rows, typed, {"Out": (0 * x, [[1, 1]])}).check_outputs()
    value = np.array([[1, 2, 3], [4, 5, 6]], dtype)
    OpTest("fill", {}, {**typed, "value": [1, 2, 3, 4, 5, 6], "shape": [2, 3]}, {"Out": value}).check_outputs()
    for copy in ("assign", "rnn_memory_helper"):
        OpTest(copy, {"X": x}, outputs={"Out": x}).check_outputs()


def test_the_gradient_of_a_memory_passes_or_is_zero() -> None:
    x, gradient = RNG.normal(size=(2, 3, 4))
    OpTest("rnn_memory_helper_grad", {"X": x, "Out@GRAD": gradient}, {}, {"X@GRAD": gradient}).check_outputs()
    OpTest("rnn_memory_helper_grad", {"X": x, "Out": x}, {}, {"X@GRAD": np.zeros((3, 4))}).check_outputs()
    for wrong, error in ((gradient[:2], ValueError), (gradient.astype(np.float32), TypeError)):
        test = OpTest("rnn_memory_helper_grad", {"X": x, "Out@GRAD": wrong}, {}, {"X@GRAD": None})
        test.check_refused(error, "Out@GRAD")


def test_a_gradient_of_a_memory_that_the_program_lacks_is_zero() -> None:
    program = fluid.Program()
    block = program.global_block()
    x, out = (block.create_var(name, [2, 3], "float32") for name in ("x", "x@GRAD"))
    elsewhere = fluid.Program().global_block().create_var("out@GRAD", [2, 3], "float32")
    block.append_op("rnn_memory_helper_grad", {"X": x, "Out@GRAD": elsewhere}, {"X@GRAD": out})
    got = fluid.Executor().run(program, {"x": np.ones((2, 3), np.float32)}, [out], scope=fluid.Scope())[0]
    np.testing.assert_array_equal(got, np.zeros((2, 3)))
    for op_type, slot in (("rnn_memory_helper_grad", "Out"), ("relu_grad", "Out@GRAD")):
        with pytest.raises(errors.NotFound, match=r"'out@GRAD'.*it belongs to another program"):
            block.append_op(op_type, {"X": x, slot: elsewhere}, {"X@GRAD": out})


def test_the_gradient_of_a_target_has_its_shape_and_lod() -> None:
    x, weights = RNG.normal(size=(2, 3, 4))
    inputs = {"Target": (x, [[1, 2]]), "Weights": weights}
    OpTest("target_gradient", inputs, {}, {"Out": (weights, [[1, 2]])}).check_outputs()
    for wrong, error in ((weights[:2], ValueError), (weights.astype(np.float32), TypeError)):
        OpTest("target_gradient", {**inputs, "Weights": wrong}, {}, {"Out": None}).check_refused(error, "Weights")


def test_what_a_dtype_is_unless_given() -> None:
    x = np.ones((2, 2))
    OpTest("fill_zeros_like2", {"X": x}, {}, {"Out": np.zeros((2, 2), np.float32)}).check_outputs()
    OpTest("fill", {}, {"value": [1.5], "shape": [1]}, {"Out": np.array([1.5], np.float32)}).check_outputs()
    attrs = {"value": [1.5], "shape": [1], "force_cpu": True}
    OpTest("fill", {}, attrs, {"Out": np.array([1.5], np.float32)}).check_outputs()


def test_constants_that_do_not_fit_are_refused() -> None:
    OpTest("fill", {}, {"value": [1.0, 2.0], "shape": [3]}).check_refused(ValueError, "value", "3 numbers", "got 2")
    OpTest("fill", {}, {"value": [1.0], "shape": [-1]}).check_refused(ValueError, "shape")
    integer = {"value": 1e10, "dtype": NUMBERS["int32"]}
    OpTest("fill_any_like", {"X": np.ones(2)}, integer).check_refused(ValueError, "value", "int32")
    OpTest("fill_any_like", {"X": np.ones(2)}, {"dtype": 99}).check_refused(ValueError, "dtype")
    half = int(core.convert_dtype("float16"))
    OpTest("fill", {}, {"value": [1e10], "shape": [1], "dtype": NUMBERS["int32"]}).check_refused(ValueError, "int32")
    OpTest("fill", {}, {"value": [1.0], "shape": [1], "dtype": half}).check_refused(NotImplementedError, "float16")
    for dtype, constant, parts in (
        ("int32", {"value": 1e10}, ("attribute value", "int32")),
        ("int32", {"str_value": "3000000000"}, ("attribute str_value", "int32", "3000000000")),
        ("int64", {"str_value": "1e30"}, ("int64", "1e+30")),
        ("float32", {"str_value": "one"}, ("attribute str_value", "'one'")),
        ("bool", {"str_value": "yes"}, ("attribute str_value", "'yes'")),
    ):
        attrs = {"shape": [2], "dtype": int(core.convert_dtype(dtype)), **constant}
        OpTest("fill_constant", {}, attrs).check_refused(ValueError, *parts)
        OpTest("fill_constant_batch_size_like", {"Input": np.ones(2)}, attrs).check_refused(ValueError, *parts)


def test_values_that_are_not_those_of_the_tensor_are_refused() -> None:
    for dtype, attr in VALUES.items():
        attrs = {"shape": [2, 2], "dtype": int(core.convert_dtype(dtype))}
        for count in (3, 5):
            test = OpTest("assign_value", {}, {**attrs, attr: [1] * count})
            test.check_refused(ValueError, f"attribute {attr}", "expected 4", f"got {count}")
        other = "int32_values" if dtype == "int64" else "int64_values"
        for values in ({}, {attr: [1] * 4}):
            test = OpTest("assign_value", {}, {**attrs, **values, other: [1] * 4})
            test.check_refused(ValueError, "_values", dtype)


def test_numbers_that_an_integer_does_not_hold_are_refused() -> None:
    for dtype in ("int32", "int64"):
        x = np.ones(1, dtype)
        for op_type, attr in (("scale", "scale"), ("scale", "bias"), ("increment", "step")):
            for value in (0.5, 1e30, float("nan")):
                OpTest(op_type, {"X": x}, {attr: value}).check_refused(ValueError, f"attribute {attr}", dtype)


def test_a_batch_of_sequences_has_the_size_of_their_number() -> None:
    rows = (np.zeros((6, 2)), [[2, 1], [1, 2, 3]])
    attrs = {"shape": [-1, 3], "dtype": NUMBERS["float64"], "value": 2.0}
    OpTest("fill_constant_batch_size_like", {"Input": rows}, attrs, {"Out": np.full((3, 3), 2.0)}).check_outputs()
    columns = {**attrs, "input_dim_idx": 1}
    OpTest("fill_constant_batch_size_like", {"Input": rows}, columns, {"Out": np.full((2, 3), 2.0)}).check_outputs()


def test_values_of_the_program() -> None:
    for dtype, attr in VALUES.items():
        values = [1, 2, 0, 4]
        value = np.array(values, dtype).reshape(2, 2)
        attrs = {"shape": [2, 2], "dtype": int(core.convert_dtype(dtype)), attr: values}
        OpTest("assign_value", {}, attrs, {"Out": value}).check_outputs()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_range(dtype: str) -> None:
    steps = [(0, 7, 3), (0, 6, 3), (5, -4, -2), (3, 4, 9)] + [(0.5, 2.0, 0.25)] * dtype.startswith("float")
    for start, end, step in steps:
        given = zip(("Start", "End", "Step"), (start, end, step))
        test = OpTest(
            "range",
            {slot: np.array([value], dtype) for slot, value in given},
            outputs={"Out": np.arange(start, end, step, dtype=dtype)},
        )
        test.check_outputs()


def test_range_of_extreme_integers() -> None:
    for dtype in ("int32", "int64"):
        info = np.iinfo(dtype)
        low, high, far = (np.array([n], dtype) for n in (info.min, info.max, info.max // 2 + 1))
        expected = np.array([info.min, -(info.max // 2) - 1, 0, info.max // 2 + 1], dtype)
        OpTest("range", {"Start": low, "End": high, "Step": far}, outputs={"Out": expected}).check_outputs()
        down = {"Start": high, "End": low, "Step": low}
        OpTest("range", down, outputs={"Out": np.array([info.max, -1], dtype)}).check_outputs()


@pytest.mark.parametrize("dtype", NUMBERS)
def test_ranges_of_nothing_and_of_different_things_are_refused(dtype: str) -> None:
    def inputs(*values: float) -> dict[str, Any]:
        return {slot: np.array([value]).astype(dtype) for slot, value in zip(("Start", "End", "Step"), values)}

    for values in [(0, 1, 0), (0, 0, 1), (0, 3, -1), (3, 0, 1)]:
        message = f"got {values[0]}, {values[1]} and {values[2]}"
        OpTest("range", inputs(*values)).check_refused(ValueError, "Start, End and Step", message, when="run")
    if dtype.startswith("float"):
        for values in [(0, np.inf, 1), (0, 1, np.nan), (np.nan, 1, 1), (0, 1e30, 1e-5)]:
            OpTest("range", inputs(*values)).check_refused(ValueError, "Start, End and Step", when="run")
    for slot in ("Start", "End", "Step"):
        two = {**inputs(0, 3, 1), slot: np.ones(2, dtype)}
        OpTest("range", two).check_refused(ValueError, f"input {slot}", "single element", "[2]")
    other = {**inputs(0, 3, 1), "End": np.ones(1, "int64" if dtype != "int64" else "int32")}
    OpTest("range", other).check_refused(TypeError, "input End", dtype)


@pytest.mark.parametrize("to", NUMBERS)
@pytest.mark.parametrize("of", NUMBERS)
def test_cast(of: str, to: str) -> None:
    x = np.array([-2, 0, 3]).astype(of)
    attrs = {"in_dtype": NUMBERS[of], "out_dtype": NUMBERS[to]}
    OpTest("cast", {"X": x}, attrs, {"Out": x.astype(to)}).check_outputs()


def test_cast_refuses_dtypes_that_do_not_exist_or_are_not_those_of_x() -> None:
    good = {"in_dtype": NUMBERS["float32"], "out_dtype": NUMBERS["int64"]}
    for attr in good:
        test = OpTest("cast", {"X": np.ones(2, np.float32)}, {**good, attr: 99})
        test.check_refused(ValueError, f"attribute {attr}", "the number of a dtype", "99")
    OpTest("cast", {"X": np.ones(2)}, good).check_refused(TypeError, "input X", "float32", "float64")


def test_scale_sum_increment_mean() -> None:
    test = OpTest("scale", {"X": X}, {"scale": 2.0, "bias": 1.0}, {"Out": 2 * X + 1})
    test.check_outputs()
    test.check_gradients(["X"])
    later = OpTest("scale", {"X": X}, {"scale": 2.0, "bias": 1.0, "bias_after_scale": False}, {"Out": 2 * (X + 1)})
    later.check_outputs()
    later.check_gradients(["X"])
    for factor in (np.array([2.0]), np.array([2.0], np.float32)):
        test = OpTest("scale", {"X": X, "ScaleTensor": factor}, {"scale": 7.0, "bias": 1.0}, {"Out": 2 * X + 1})
        test.check_outputs()
        test.check_gradients(["X"])
    counts = {"X": np.array([3, 4]), "ScaleTensor": np.array([0.5])}
    OpTest("scale", counts).check_refused(ValueError, "input ScaleTensor", "an integer", when="run")
    OpTest("scale", {"X": X, "ScaleTensor": np.array([1.0, 2.0])}).check_refused(ValueError, "ScaleTensor", "single")
    test = OpTest("sum", {"X": [X, 2 * X]}, outputs={"Out": 3 * X})
    test.check_outputs()
    test.check_gradients(["X"])
    OpTest("increment", {"X": np.array([3])}, {"step": 2.0}, {"Out": np.array([5])}).check_outputs()
    test = OpTest("mean", {"X": X}, outputs={"Out": np.array([X.mean()])})
    test.check_outputs()
    test.check_gradients(["X"])
    OpTest("mean", {"X": X[:0]}).check_refused(ValueError, "X", "[0, 1, 3]")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_linspace(dtype: str) -> None:
    def given(start: float, stop: float, num: int) -> dict[str, Any]:
        numbers = {"Start": start, "Stop": stop}
        return {**{k: np.array([v], dtype) for k, v in numbers.items()}, "Num": np.array([num], np.int32)}

    for start, stop, num in ((0, 1, 11), (3, -2, 4), (2, 5, 1), (1, 1, 3)):
        expected = np.linspace(start, stop, num, dtype=dtype)
        OpTest("linspace", given(start, stop, num), outputs={"Out": expected}).check_outputs()
    OpTest("linspace", given(0, 1, 0)).check_refused(ValueError, "input Num", "got 0", when="run")
    for slot, value, error, part in (
        ("Num", np.array([3]), TypeError, "int32"),
        ("Num", np.array([3, 3], np.int32), ValueError, "[1]"),
        ("Stop", np.array([3], np.int32), TypeError, f"{dtype} as input Start has"),
        ("Start", np.zeros((1, 1), dtype), ValueError, "[1]"),
    ):
        OpTest("linspace", {**given(0, 1, 3), slot: value}).check_refused(error, f"input {slot}", part)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_matrices_with_a_diagonal(dtype: str) -> None:
    diagonal = np.array([3, 0, 2]).astype(dtype)
    OpTest("diag", {"Diagonal": diagonal}, outputs={"Out": np.diag(diagonal)}).check_outputs()
    OpTest("diag", {"Diagonal": diagonal[:0]}, outputs={"Out": np.zeros((0, 0), dtype)}).check_outputs()
    for attrs, expected in (
        ({"num_rows": 3}, np.eye(3)),
        ({"num_rows": 2, "num_columns": 4}, np.eye(2, 4)),
        ({"num_rows": 4, "num_columns": 2}, np.eye(4, 2)),
        ({"num_rows": 0, "num_columns": 2}, np.eye(0, 2)),
    ):
        test = OpTest("eye", {}, {**attrs, "dtype": NUMBERS[dtype]}, {"Out": expected.astype(dtype)})
        test.check_outputs()


def test_matrices_of_no_such_size_are_refused() -> None:
    OpTest("diag", {"Diagonal": np.ones((2, 2))}).check_refused(ValueError, "input Diagonal", "rank 1")
    OpTest("eye", {}, {"num_rows": -1}).check_refused(ValueError, "attribute num_rows", "got -1")
    OpTest("eye", {}, {"num_rows": 1, "num_columns": -2}).check_refused(ValueError, "attribute num_columns", "got -2")
    OpTest("eye", {}, {"num_rows": 2**40, "num_columns": 2**40}).check_refused(ValueError)
    OpTest("eye", {}, {"num_rows": 1, "dtype": 99}).check_refused(ValueError, "attribute dtype", "got 99")


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float32"])
def test_size(dtype: str) -> None:
    for shape in ((2, 3), (0, 3), (5,)):
        test = OpTest("size", {"Input": np.zeros(shape, dtype)}, outputs={"Out": np.array([np.prod(shape)])})
        test.check_outputs()
