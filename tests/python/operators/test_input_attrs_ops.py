"""Inputs in place of attributes: shapes, places and counts that only the run knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(211)
X = RNG.uniform(-1, 1, (4, 6))
IMAGES = RNG.uniform(-1, 1, (1, 2, 3, 4))


def each(*values: int, dtype: Any = np.int32) -> list[Any]:
    """Variables of one element."""
    return [np.array([value], dtype) for value in values]


def ints(*values: int, dtype: Any = np.int32) -> np.ndarray:
    return np.array(values, dtype)


#: Operator; inputs; attributes; what Out is; the slots of which the program has to know how many elements they have.
CASES: list[tuple[str, dict[str, Any], dict[str, Any], Any, list[str]]] = [
    ("reshape", {"X": X, "Shape": ints(3, -1)}, {}, X.reshape(3, 8), ["Shape"]),
    ("reshape", {"X": X, "Shape": ints(0, 3, 2, dtype=np.int64)}, {"shape": [0, -1, 2]}, X.reshape(4, 3, 2), []),
    ("reshape", {"X": X, "ShapeTensor": each(8, 3)}, {"shape": [-1, 3]}, X.reshape(8, 3), []),
    ("reshape", {"X": X, "ShapeTensor": each(-1, 4, dtype=np.int64)}, {"shape": [-1, -1]}, X.reshape(6, 4), []),
    ("unsqueeze", {"X": X, "AxesTensor": ints(0, -1)}, {}, X.reshape(1, 4, 6, 1), ["AxesTensor"]),
    ("unsqueeze", {"X": X, "AxesTensorList": each(1, 2)}, {}, X.reshape(4, 1, 1, 6), []),
    (
        "slice",
        {"Input": X, "StartsTensor": ints(1, -3), "EndsTensor": ints(9, -1)},
        {"axes": [0, 1], "infer_flags": [-1, -1]},
        X[1:9, -3:-1],
        [],
    ),
    (
        "slice",
        {"Input": X, "StartsTensorList": each(1, 2, dtype=np.int64)},
        {"axes": [0, 1], "starts": [1, -1], "ends": [3, 4], "infer_flags": [1, -1]},
        X[1:3, 2:4],
        [],
    ),
    (
        "slice",
        {"Input": X, "EndsTensorList": each(3, 4)},
        {"axes": [-2, -1], "starts": [0, -5], "ends": [-1, -1], "infer_flags": [-1, -1]},
        X[:3, -5:4],
        [],
    ),
    (
        "slice",
        {"Input": X, "StartsTensorList": each(-1), "EndsTensorList": each(0)},
        {"axes": [0], "starts": [-1], "ends": [-1], "infer_flags": [-1], "decrease_axis": [0]},
        X[-1],
        [],
    ),
    ("expand", {"X": X, "ExpandTimes": ints(1, 3)}, {}, np.tile(X, (1, 3)), []),
    ("expand", {"X": X, "expand_times_tensor": each(2, 1)}, {"expand_times": [-1, 1]}, np.tile(X, (2, 1)), []),
    ("crop", {"X": X, "Offsets": ints(1, 2)}, {"shape": [2, 3]}, X[1:3, 2:5], []),
    ("concat", {"X": [X, 2 * X], "AxisTensor": ints(-1)}, {"axis": 0}, np.concatenate([X, 2 * X], 1), []),
    ("concat", {"X": [X, X[:2]], "AxisTensor": ints(0, dtype=np.int64)}, {}, np.concatenate([X, X[:2]]), []),
    ("split", {"X": X, "AxisTensor": ints(1)}, {"num": 2}, np.split(X, 2, 1), []),
    (
        "split",
        {"X": X, "SectionsTensorList": each(1, -1, 2)},
        {"axis": 1, "sections": [-1, -1, 2]},
        np.split(X, [1, 4], 1),
        [],
    ),
    (
        "split",
        {"X": X, "SectionsTensorList": each(1, 3), "AxisTensor": ints(-2)},
        {"sections": [-1, -1]},
        np.split(X, [1]),
        [],
    ),
    (
        "pad2d",
        {"X": IMAGES, "Paddings": ints(1, 2, 0, 3)},
        {"paddings": [], "pad_value": 0.5},
        np.pad(IMAGES, ((0, 0), (0, 0), (1, 2), (0, 3)), constant_values=0.5),
        [],
    ),
    (
        "pad2d",
        {"X": IMAGES, "Paddings": ints(2, 1, 3, 0, dtype=np.int64)},
        {"mode": "reflect"},
        np.pad(IMAGES, ((0, 0), (0, 0), (2, 1), (3, 0)), mode="reflect"),
        ["Paddings"],
    ),
    (
        "pad2d",
        {"X": IMAGES, "Paddings": ints(1, 0, 0, 1)},
        {"mode": "edge", "data_format": "NHWC"},
        np.pad(IMAGES, ((0, 0), (1, 0), (0, 1), (0, 0)), mode="edge"),
        ["X"],
    ),
    ("pow", {"X": np.abs(X) + 0.1, "FactorTensor": np.array([2.5])}, {}, (np.abs(X) + 0.1) ** 2.5, []),
    ("pow", {"X": X, "FactorTensor": np.array([[3.0]], np.float32)}, {"factor": 2.0}, X**3, ["FactorTensor"]),
    (
        "nearest_interp",
        {"X": IMAGES, "SizeTensor": each(6, 8)},
        {"align_corners": False, "out_h": -1, "out_w": 8},
        IMAGES.repeat(2, 2).repeat(2, 3),
        [],
    ),
    (
        "nearest_interp",
        {"X": IMAGES, "Scale": np.array([2.0], np.float32)},
        {"align_corners": False},
        IMAGES.repeat(2, 2).repeat(2, 3),
        [],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {', '.join(case[1])}")
def test_inputs_in_place_of_attributes(case: Any) -> None:
    op_type, inputs, attrs, out, known = case
    test = OpTest(op_type, inputs, attrs, {"Out": out}, known)
    test.check_outputs()
    slot = next(iter(inputs))
    for number in {"Scale", "FactorTensor"} & set(inputs):  # they have no gradient, but they are no integers
        inputs = {**inputs, number: inputs[number].astype(np.float64)}
    OpTest(op_type, inputs, attrs, {"Out": out}, known).check_gradients([slot])
    if op_type in ("reshape", "unsqueeze"):
        outputs = {"Out": out, "XShape": np.zeros((0, *X.shape))}
        test = OpTest(op_type + "2", inputs, attrs, outputs, known)
        test.check_outputs()
        test.check_gradients(["X"], ["Out"])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "out"),
    [
        ("reshape", {"X": X, "Shape": ints(6, 4)}, {"shape": [1, -1]}, X.reshape(6, 4)),
        ("reshape", {"X": X, "ShapeTensor": each(6, 4)}, {"shape": [1, -1]}, X.reshape(6, 4)),
        ("unsqueeze", {"X": X, "AxesTensorList": each(1, 2)}, {"axes": [0, 0]}, X.reshape(4, 1, 1, 6)),
        ("slice", {"Input": X, "StartsTensorList": each(1)}, {"axes": [1], "starts": [3], "ends": [5]}, X[:, 1:5]),
        ("slice", {"Input": X, "EndsTensor": ints(5)}, {"axes": [1], "starts": [1], "ends": [3]}, X[:, 1:5]),
        ("expand", {"X": X, "ExpandTimes": ints(1, 3)}, {"expand_times": [2, 2]}, np.tile(X, (1, 3))),
        ("expand", {"X": X, "expand_times_tensor": each(1, 3)}, {"expand_times": [2, 2]}, np.tile(X, (1, 3))),
        ("crop", {"X": X, "Offsets": ints(1, 2)}, {"shape": [2, 3], "offsets": [4, 4]}, X[1:3, 2:5]),
        ("concat", {"X": [X, X], "AxisTensor": ints(1)}, {"axis": 0}, np.concatenate([X, X], 1)),
        ("split", {"X": X, "SectionsTensorList": each(1, 3)}, {"sections": [2, 2]}, np.split(X, [1])),
        ("split", {"X": X, "AxisTensor": ints(1)}, {"num": 2, "axis": 0}, np.split(X, 2, 1)),
        ("fill_constant", {"ShapeTensor": ints(2, 3)}, {"shape": [1, 6]}, np.zeros((2, 3), np.float32)),
        ("fill_constant", {"ShapeTensorList": each(2, 3)}, {"shape": [1, 6]}, np.zeros((2, 3), np.float32)),
        ("uniform_random", {"ShapeTensor": ints(2, 3)}, {"shape": [1, 6]}, None),
        ("uniform_random", {"ShapeTensorList": each(2, 3)}, {"shape": [1, 6]}, None),
        ("pad2d", {"X": IMAGES, "Paddings": ints(0, 0, 0, 0)}, {"paddings": [1, 2, 3, 4]}, IMAGES),
        ("pow", {"X": X, "FactorTensor": np.array([2.0])}, {"factor": 3.0}, X**2),
        ("one_hot", {"X": ints(1)[None], "depth_tensor": ints(2)}, {"depth": 9}, np.float32([[0, 1]])),
        ("nearest_interp", {"X": IMAGES, "SizeTensor": each(3, 4)}, {"out_h": 9, "out_w": 9, "scale": 2.0}, IMAGES),
        ("nearest_interp", {"X": IMAGES, "OutSize": ints(3, 4)}, {"out_h": 9, "out_w": 9, "scale": 2.0}, IMAGES),
        ("bilinear_interp", {"X": IMAGES, "Scale": np.ones(1)}, {"out_h": 9, "out_w": 9, "scale": 2.0}, IMAGES),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else None,
)
def test_attributes_that_inputs_replace_say_nothing(
    op_type: str, inputs: Any, attrs: Any, out: Any, known: bool
) -> None:
    OpTest(op_type, inputs, attrs, {"Out": out}, list(inputs) if known else []).check_outputs()


def test_a_shape_from_inputs_keeps_the_sequences_of_rows_that_stay() -> None:
    for shape, lengths in (([4, 2, 3], [[1, 3]]), ([2, 12], [])):
        inputs = {"X": (X, [[1, 3]]), "Shape": ints(*shape)}
        (out,) = OpTest("reshape", inputs, {}, known=["Shape"]).run()["Out"]
        assert out.recursive_sequence_lengths() == lengths
    kept = (X.reshape(4, 1, 6), [[1, 3]])
    OpTest("reshape", {"X": (X, [[1, 3]]), "ShapeTensor": each(4, 1, 6)}, {}, {"Out": kept}).check_outputs()
    OpTest("unsqueeze", {"X": (X, [[1, 3]]), "AxesTensorList": each(1)}, {}, {"Out": kept}).check_outputs()
    (out,) = OpTest("concat", {"X": [(X, [[1, 3]])] * 2, "AxisTensor": ints(1)}).run()["Out"]
    assert out.recursive_sequence_lengths() == [[1, 3]]
    (out,) = OpTest("concat", {"X": [(X, [[1, 3]])] * 2, "AxisTensor": ints(0)}).run()["Out"]
    assert out.recursive_sequence_lengths() == []


@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=str)
def test_tensors_of_a_shape_from_inputs(dtype: Any) -> None:
    full = np.full((2, 3), 7.0, np.float32)
    attrs = {"value": 7.0}
    test = OpTest("fill_constant", {"ShapeTensor": ints(2, 3, dtype=dtype)}, attrs, {"Out": full}, ["ShapeTensor"])
    test.check_outputs()
    listed = {"ShapeTensorList": each(2, 3, dtype=dtype)}
    OpTest("fill_constant", listed, {**attrs, "shape": [-1, 3]}, {"Out": full}).check_outputs()
    attrs = {"seed": 5, "min": 0.0}
    (expected,) = OpTest("uniform_random", {}, {**attrs, "shape": [2, 3]}).run()["Out"]
    outputs = {"Out": np.asarray(expected)}
    test = OpTest("uniform_random", {"ShapeTensor": ints(2, 3, dtype=dtype)}, attrs, outputs, ["ShapeTensor"])
    test.check_outputs()
    OpTest("uniform_random", listed, {**attrs, "shape": [2, -1]}, outputs).check_outputs()


@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=str)
def test_counts_from_inputs(dtype: Any) -> None:
    count = ints(3, dtype=dtype)
    numbers = np.array([[2], [0]])
    test = OpTest("one_hot", {"X": numbers, "depth_tensor": count}, {}, {"Out": np.eye(3, dtype=np.float32)[[2, 0]]})
    test.check_outputs()
    lengths = np.array([0, 2, 5])
    expected = (np.arange(3) < lengths[:, None]).astype(np.int64)
    OpTest("sequence_mask", {"X": lengths, "MaxLenTensor": count}, {"maxlen": 9}, {"Y": expected}).check_outputs()
    places = np.argsort(-X, 1)[:, :3]
    outputs = {"Out": np.take_along_axis(X, places, 1), "Indices": places}
    test = OpTest("top_k", {"X": X, "K": count}, {"k": 1}, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], type[Exception], tuple[str, ...], str]] = [
    ("reshape", {"X": X, "Shape": ints(5, -1)}, {}, ValueError, ("X", "do not fit input Shape [5, -1]"), "run"),
    ("reshape", {"X": X, "Shape": ints(-2, 12)}, {}, ValueError, ("input Shape", "[-2, 12]"), "run"),
    ("reshape", {"X": X, "ShapeTensor": each(-1, -1)}, {}, ValueError, ("input ShapeTensor", "at most one -1"), "run"),
    ("reshape", {"X": X, "Shape": ints(4, 6).astype(np.float32)}, {}, TypeError, ("Shape_0", "float32"), "build"),
    ("reshape", {"X": X, "ShapeTensor": [ints(4), ints(6, 1)]}, {}, ValueError, ("ShapeTensor_1", "[2]"), "build"),
    (
        "reshape",
        {"X": X, "Shape": ints(4, 6), "ShapeTensor": each(4, 6)},
        {},
        ValueError,
        ("Shape", "ShapeTensor", "at most"),
        "build",
    ),
    ("unsqueeze", {"X": X, "AxesTensor": ints(4)}, {}, ValueError, ("AxesTensor", "[-3, 3)", "4"), "run"),
    (
        "slice",
        {"Input": X, "StartsTensor": ints(1, 2, 3)},
        {"axes": [0, 1], "ends": [2, 2]},
        ValueError,
        ("starts", "2, 3 and 2"),
        "build",
    ),
    (
        "slice",
        {"Input": X, "StartsTensor": ints(1)},
        {"axes": [0], "ends": [2], "infer_flags": [1, 1]},
        ValueError,
        ("infer_flags", "got 2"),
        "build",
    ),
    (
        "slice",
        {"Input": X, "StartsTensor": ints(0)},
        {"axes": [0], "ends": [2], "decrease_axis": [0]},
        ValueError,
        ("decrease_axis",),
        "run",
    ),
    (
        "slice",
        {"Input": X, "StartsTensor": ints(7), "EndsTensor": ints(8)},
        {"axes": [0], "decrease_axis": [0]},
        IndexError,
        ("input StartsTensor and input EndsTensor", "dimension 0", "got 7 and 8"),
        "run",
    ),
    ("expand", {"X": X, "ExpandTimes": ints(1, 0)}, {}, ValueError, ("ExpandTimes", "1 or more", "[1, 0]"), "run"),
    ("expand", {"X": X, "expand_times_tensor": each(1)}, {}, ValueError, ("expand_times_tensor", "2 numbers"), "build"),
    ("crop", {"X": X, "Offsets": ints(3, 0)}, {"shape": [2, 3]}, ValueError, ("input Offsets", "[3, 0]"), "run"),
    ("crop", {"X": X, "Offsets": ints(2**62, 0, dtype=np.int64)}, {"shape": [2, 3]}, ValueError, ("Offsets",), "run"),
    ("fill_constant", {"ShapeTensor": ints(2, -1)}, {}, ValueError, ("input ShapeTensor", "[2, -1]"), "run"),
    ("uniform_random", {"ShapeTensorList": each(-3)}, {}, ValueError, ("input ShapeTensorList", "[-3]"), "run"),
    ("one_hot", {"X": np.array([[0]]), "depth_tensor": ints(0)}, {}, ValueError, ("depth_tensor", "got 0"), "run"),
    ("one_hot", {"X": np.array([[0]])}, {}, ValueError, ("attribute depth", "got -1"), "build"),
    ("concat", {"X": [X, X], "AxisTensor": ints(2)}, {}, ValueError, ("AxisTensor", "[-2, 2)", "got 2"), "run"),
    ("concat", {"X": [X, X[:2]], "AxisTensor": ints(1)}, {}, ValueError, ("input X", "[2, 6]"), "run"),
    ("concat", {"X": [X, X], "AxisTensor": ints(0, 1)}, {}, ValueError, ("AxisTensor_0", "[2]"), "build"),
    ("pad2d", {"X": IMAGES, "Paddings": ints(1, 0, 0)}, {}, ValueError, ("Paddings", "expected 4", "?"), "build"),
    ("pad2d", {"X": IMAGES, "Paddings": ints(1, 0, -1, 0)}, {}, ValueError, ("input Paddings", "got -1 and 0"), "run"),
    (
        "pad2d",
        {"X": IMAGES, "Paddings": ints(0, 0, 0, 4)},
        {"mode": "reflect"},
        ValueError,
        ("input Paddings", "less than the extent of dimension 3", "[0, 0, 0, 4]"),
        "run",
    ),
    ("pad2d", {"X": IMAGES, "Paddings": np.zeros(4)}, {}, TypeError, ("Paddings_0", "float64"), "build"),
    ("pow", {"X": X, "FactorTensor": np.ones(2)}, {}, ValueError, ("FactorTensor", "single element", "[2]"), "build"),
    ("pow", {"X": X, "FactorTensor": ints(2)}, {}, TypeError, ("FactorTensor", "float32 or float64", "int32"), "build"),
    ("nearest_interp", {"X": IMAGES, "SizeTensor": each(1, 2, 3)}, {}, ValueError, ("SizeTensor", "got 3"), "build"),
    ("nearest_interp", {"X": IMAGES, "SizeTensor": each(0, 2)}, {}, ValueError, ("SizeTensor", "0 and 2"), "run"),
    ("nearest_interp", {"X": IMAGES, "Scale": np.array([-1.0])}, {}, ValueError, ("Scale", "got -1"), "run"),
    ("nearest_interp", {"X": IMAGES, "Scale": ints(2)}, {}, TypeError, ("Scale", "int32"), "build"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]} {', '.join(case[1])} {case[5]}")
def test_inputs_that_do_not_fit_are_refused(case: Any) -> None:
    op_type, inputs, attrs, error, parts, when = case
    known = [slot for slot in inputs if slot in ("Shape", "ShapeTensor", "AxesTensor", "StartsTensor", "Paddings")]
    OpTest(op_type, inputs, attrs, known=known).check_refused(error, *parts, when=when)


def test_counts_and_sections_that_do_not_fit_are_refused() -> None:
    outputs: dict[str, Any] = {"Out": None, "Indices": None}
    OpTest("top_k", {"X": X, "K": ints(7)}, {}, outputs).check_refused(ValueError, "input K", "got 7", when="run")
    test = OpTest("sequence_mask", {"X": ints(1), "MaxLenTensor": ints(0)}, {}, {"Y": None})
    test.check_refused(ValueError, "MaxLenTensor", "got 0", when="run")
    for sections in (each(3, 4), each(-1, -1), each(7, -1)):
        test = OpTest("split", {"X": X, "SectionsTensorList": sections}, {"axis": 1}, {"Out": [None, None]})
        test.check_refused(ValueError, "input SectionsTensorList", when="run")
    test = OpTest("split", {"X": X, "SectionsTensorList": each(6)}, {"axis": 1}, {"Out": [None, None]})
    test.check_refused(ValueError, "input SectionsTensorList", "expected 2")


def test_how_many_dimensions_there_are_has_to_be_known_before_the_run() -> None:
    for op_type, inputs in (("reshape", {"X": X, "Shape": ints(4, 6)}), ("fill_constant", {"ShapeTensor": ints(2)})):
        with pytest.raises(ValueError, match="expected a known number of elements"):
            OpTest(op_type, inputs).check_outputs()
