"""Operators over sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import layers
from headrace.testing import OpTest

RNG = np.random.default_rng(37)
LENGTHS = [2, 0, 3, 1]
ROWS = RNG.permutation(12).reshape(6, 2) / 12.0
SEQUENCES = np.split(ROWS, np.cumsum(LENGTHS)[:-1])

POOLS: dict[str, Any] = {
    "SUM": lambda s: s.sum(0),
    "AVERAGE": lambda s: s.mean(0),
    "SQRT": lambda s: s.sum(0) / np.sqrt(len(s)),
    "MAX": lambda s: s.max(0),
    "FIRST": lambda s: s[0],
    "LAST": lambda s: s[-1],
}


@pytest.mark.parametrize("kind", POOLS)
def test_pools(kind: str) -> None:
    expected = np.stack([POOLS[kind](s) if len(s) else np.full(2, 0.25) for s in SEQUENCES])
    outputs: dict[str, Any] = {"Out": expected}
    if kind == "MAX":
        outputs["MaxIndex"] = None
    test = OpTest("sequence_pool", {"X": (ROWS, [LENGTHS])}, {"pooltype": kind, "pad_value": 0.25}, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])
    deeper = {**outputs, "Out": (expected, [[3, 1]])}
    OpTest(
        "sequence_pool", {"X": (ROWS, [[3, 1], LENGTHS])}, {"pooltype": kind, "pad_value": 0.25}, deeper
    ).check_outputs()


def test_softmax() -> None:
    x = RNG.uniform(-1, 1, (6, 1))
    parts = [np.exp(s) / np.exp(s).sum() for s in np.split(x, np.cumsum(LENGTHS)[:-1]) if len(s)]
    test = OpTest("sequence_softmax", {"X": (x, [LENGTHS])}, outputs={"Out": (np.concatenate(parts), [LENGTHS])})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("kind", ["SUM", "AVERAGE", "SQRT", "FIRST", "LAST"])
def test_a_pool_without_maxima_may_have_their_output(kind: str) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        x = layers.data("x", [2], dtype="float64", lod_level=1, stop_gradient=False)
        block = fluid.default_main_program().global_block()
        out, index = (block.create_var(name=name, dtype=t) for name, t in (("out", "float64"), ("index", "int32")))
        block.append_op("sequence_pool", {"X": x}, {"Out": out, "MaxIndex": index}, {"pooltype": kind})
        ((_, gradient),) = fluid.backward.append_backward(layers.reduce_sum(out), [x])
        feed = {"x": fluid.create_lod_tensor(ROWS, [LENGTHS], fluid.CPUPlace())}
        (got,) = fluid.Executor().run(feed=feed, fetch_list=[gradient])
    slopes: dict[str, Any] = {"SUM": lambda n: np.ones(n)}
    slopes |= {"AVERAGE": lambda n: np.ones(n) / n, "SQRT": lambda n: np.ones(n) / n**0.5}
    slopes |= {"FIRST": lambda n: np.arange(n) == 0, "LAST": lambda n: np.arange(n) == n - 1}
    expected = np.concatenate([slopes[kind](n) for n in LENGTHS if n])[:, None]
    np.testing.assert_allclose(got, np.broadcast_to(expected, got.shape))


@pytest.mark.parametrize("op_type", ["sequence_pool", "sequence_softmax"])
def test_a_lod_is_needed(op_type: str) -> None:
    OpTest(op_type, {"X": ROWS[:, :1]}).check_refused(ValueError, "X", "LoD", when="run")


def test_expand() -> None:
    y = (np.zeros((4, 1)), [[2, 2]])
    pairs = OpTest(
        "sequence_expand",
        {"X": (ROWS[:4], [[1, 3]]), "Y": y},
        {"ref_level": 0},
        {"Out": (np.concatenate([ROWS[:1], ROWS[:1], ROWS[1:4], ROWS[1:4]]), [[1, 1, 3, 3]])},
    )
    pairs.check_outputs()
    pairs.check_gradients(["X"])
    y = (np.zeros((5, 1)), [[2, 0, 3]])
    rows = OpTest("sequence_expand", {"X": ROWS[:3], "Y": y}, outputs={"Out": ROWS[[0, 0, 2, 2, 2]]})
    rows.check_outputs()
    rows.check_gradients(["X"])
    expected = (ROWS[[0, 0, 2, 2, 2]], [[2, 0, 3]])
    as_y = OpTest("sequence_expand_as", {"X": ROWS[:3], "Y": y}, outputs={"Out": expected})
    as_y.check_outputs()
    as_y.check_gradients(["X"])
    OpTest("sequence_expand", {"X": ROWS[:2], "Y": y}).check_refused(ValueError, "X", "3 sequences", when="run")
    OpTest("sequence_expand_as", {"X": ROWS[:2], "Y": y}).check_refused(ValueError, "X", "3 rows", when="run")
    OpTest("sequence_expand", {"X": ROWS[:3], "Y": ROWS}).check_refused(ValueError, "Y", "LoD", when="run")
    inputs: dict[str, Any] = {"X": ROWS[:3], "Y": y}
    for level in (-2, 1, 7):
        test = OpTest("sequence_expand", inputs, {"ref_level": level})
        test.check_refused(ValueError, "attribute ref_level", f"got {level}")
    deep = OpTest("sequence_expand", {**inputs, "X": (ROWS[:4], [[3], [1, 2, 1]])})
    deep.check_refused(ValueError, "input X", "one level", "got 2")


def test_expanded_sequences_have_a_lod_even_if_there_are_none() -> None:
    y = (np.zeros((0, 1)), [[0, 0]])
    test = OpTest("sequence_expand", {"X": (ROWS[:4], [[1, 3]]), "Y": y}, outputs={"Out": (ROWS[:0], [[]])})
    test.check_outputs()


@pytest.mark.parametrize(
    ("op_type", "slot", "inputs", "attrs"),
    [
        ("sequence_pool", "X", {"X": ROWS}, {}),
        ("sequence_reverse", "X", {"X": ROWS}, {}),
        ("sequence_concat", "X", {"X": [(ROWS, [LENGTHS]), ROWS]}, {}),
        ("sequence_expand", "Y", {"X": ROWS, "Y": ROWS}, {}),
        ("sequence_expand_as", "Y", {"X": ROWS, "Y": ROWS}, {}),
        ("sequence_slice", "X", {"X": ROWS, "Offset": np.zeros(4, np.int64), "Length": np.zeros(4, np.int64)}, {}),
        ("sequence_reshape", "X", {"X": ROWS}, {"new_dim": 1}),
    ],
    ids=str,
)
def test_a_missing_lod_is_that_of_a_variable(op_type: str, slot: str, inputs: Any, attrs: Any) -> None:
    name = f"{slot}_{len(inputs[slot]) - 1 if isinstance(inputs[slot], list) else 0}"
    test = OpTest(op_type, inputs, attrs, {"Y" if op_type == "sequence_reverse" else "Out": None})
    test.check_refused(ValueError, f"input {slot}", f"'{name}'", "LoD of one level", "[6, 2]", when="run")


def test_reverse() -> None:
    expected = np.concatenate([s[::-1] for s in SEQUENCES])
    test = OpTest("sequence_reverse", {"X": (ROWS, [LENGTHS])}, outputs={"Y": (expected, [LENGTHS])})
    test.check_outputs()
    test.check_gradients(["X"])


def test_slice() -> None:
    inputs = {
        "X": (ROWS, [LENGTHS]),
        "Offset": np.array([[1], [0], [0], [0]]),
        "Length": np.array([[1], [0], [2], [1]]),
    }
    expected = (ROWS[[1, 2, 3, 5]], [[1, 0, 2, 1]])
    test = OpTest("sequence_slice", inputs, outputs={"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])
    beyond = {**inputs, "Length": np.array([[2], [0], [2], [1]])}
    OpTest("sequence_slice", beyond).check_refused(IndexError, "Offset and Length", "sequence 0", when="run")
    for slot in ("Offset", "Length"):
        OpTest("sequence_slice", {**inputs, slot: np.ones((2, 2), np.int64)}).check_refused(ValueError, slot, "[2, 2]")
        OpTest("sequence_slice", {**inputs, slot: np.ones((4, 1))}).check_refused(TypeError, slot, "float64")


@pytest.mark.parametrize("length", [-1, 5])
def test_pad_and_unpad(length: int) -> None:
    longest = max(LENGTHS) if length == -1 else length
    padded = np.full((4, longest, 2), 0.5)
    for i, sequence in enumerate(SEQUENCES):
        padded[i, : len(sequence)] = sequence
    inputs = {"X": (ROWS, [LENGTHS]), "PadValue": np.array([0.5])}
    expected = {"Out": padded, "Length": np.array(LENGTHS)}
    test = OpTest("sequence_pad", inputs, {"padded_length": length}, expected)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])
    back = OpTest("sequence_unpad", {"X": padded, "Length": np.array(LENGTHS)}, outputs={"Out": (ROWS, [LENGTHS])})
    back.check_outputs()
    back.check_gradients(["X"])
    short = OpTest("sequence_pad", inputs, {"padded_length": 2}, {"Out": None, "Length": None})
    short.check_refused(ValueError, "padded_length", "3", when="run")
    wrong = OpTest("sequence_unpad", {"X": padded, "Length": np.array([longest + 1, 0, 0, 0])})
    wrong.check_refused(IndexError, "Length", when="run")
    for lengths in (np.ones(3, np.int64), np.ones((4, 2), np.int64), np.ones((1, 4), np.int64)):
        OpTest("sequence_unpad", {"X": padded, "Length": lengths}).check_refused(ValueError, "Length", "[4")
    wrong = OpTest("sequence_unpad", {"X": padded, "Length": np.ones(4, np.int32)})
    wrong.check_refused(TypeError, "Length", "int64", "int32")


@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=str)
def test_pad_with_a_row(shape: tuple[int, ...]) -> None:
    x, row = RNG.uniform(-1, 1, (3, *shape)), RNG.uniform(-1, 1, shape)
    padded = np.stack([np.stack([x[0], x[1]]), np.stack([row, row]), np.stack([x[2], row])])
    inputs = {"X": (x, [[2, 0, 1]]), "PadValue": row}
    test = OpTest("sequence_pad", inputs, outputs={"Out": padded, "Length": np.array([2, 0, 1])})
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])
    wrong = OpTest("sequence_pad", {**inputs, "PadValue": np.ones(3)}, outputs={"Out": None, "Length": None})
    wrong.check_refused(ValueError, "PadValue", str(list(shape)), "[3]")
    wrong = OpTest("sequence_pad", {**inputs, "PadValue": np.ones(1, np.int64)}, outputs={"Out": None, "Length": None})
    wrong.check_refused(TypeError, "PadValue", "float64", "int64")


def test_unpadded_numbers_are_rows_of_width_one() -> None:
    padded = RNG.uniform(-1, 1, (3, 4))
    expected = np.concatenate([padded[0, :2], padded[2, :4]])[:, None]
    test = OpTest(
        "sequence_unpad", {"X": padded, "Length": np.array([2, 0, 4])}, outputs={"Out": (expected, [[2, 0, 4]])}
    )
    test.check_outputs()
    test.check_gradients(["X"])


def test_sequence_concat() -> None:
    x, y = RNG.uniform(-1, 1, (3, 2)), RNG.uniform(-1, 1, (4, 2))
    expected = np.concatenate([x[:1], y[:3], x[1:], y[3:]])
    inputs = {"X": [(x, [[1, 2]]), (y, [[3, 1]])]}
    test = OpTest("sequence_concat", inputs, outputs={"Out": (expected, [[4, 3]])})
    test.check_outputs()
    test.check_gradients(["X"])
    for other, when in (((y, [[3, 0, 1]]), "run"), ((y[:, :1], [[3, 1]]), "build")):
        test = OpTest("sequence_concat", {"X": [(x, [[1, 2]]), other]}, outputs={"Out": None})
        test.check_refused(ValueError, "X", when=when)


def test_lod_reset() -> None:
    x = RNG.uniform(-1, 1, (4, 2))
    y = RNG.uniform(-1, 1, (4, 1))
    for inputs, attrs in (
        ({"X": x}, {"target_lod": [0, 1, 4]}),
        ({"X": (x, [[2, 2]])}, {"target_lod": [0, 1, 4]}),
        ({"X": x, "Y": (y, [[1, 3]])}, {}),
        ({"X": x, "Y": np.array([0, 1, 4], np.int32)}, {}),
    ):
        test = OpTest("lod_reset", inputs, attrs, {"Out": (x, [[1, 3]])})
        test.check_outputs()
        test.check_gradients(["X"])
    levels = (x, [[1, 3], [2, 0, 1, 1]])
    level = np.array([0, 2, 2, 3, 4], np.int32)
    for inputs, attrs, expected in (
        ({"X": (x, [[1, 3]])}, {"target_lod": level.tolist()}, levels),
        ({"X": (x, [[1, 3]]), "Y": level}, {}, levels),
        ({"X": x}, {"target_lod": [0, 1, 4]}, (x, [[1, 3]])),
        ({"X": (x, [[2, 2]]), "Y": (y, [[1, 3]])}, {}, (x, [[1, 3]])),
    ):
        OpTest("lod_reset", inputs, {"append": True, **attrs}, {"Out": expected}).check_outputs()
    wrong = OpTest("lod_reset", {"X": (x, [[1, 3]])}, {"append": True, "target_lod": [0, 1, 4]}, {"Out": None})
    wrong.check_refused(ValueError, when="run")
    for offsets in ([0, 5], [1, 4], [0, 3, 2, 4], [0, -1, 4], [4], []):
        test = OpTest("lod_reset", {"X": x}, {"target_lod": offsets}, {"Out": None})
        test.check_refused(ValueError, "attribute target_lod", str(offsets))
        test = OpTest("lod_reset", {"X": x, "Y": np.array(offsets, np.int32)}, {}, {"Out": None})
        test.check_refused(ValueError, "input Y", "to 4", str(offsets), when="run")
    test = OpTest("lod_reset", {"X": x, "Y": y}, {}, {"Out": None})
    test.check_refused(TypeError, "input Y", "a LoD, or int32 offsets", "float64", "[4, 1]", when="run")


@pytest.mark.parametrize(("length", "start"), [(3, -1), (2, 0), (1, 0), (2, -3), (2, 2), (9, -4)])
def test_sequence_conv(length: int, start: int) -> None:
    x, w = RNG.uniform(-1, 1, (sum(LENGTHS), 2)), RNG.uniform(-1, 1, (length * 2, 3))
    contexts = np.zeros((len(x), length, 2))
    begin = 0
    for rows in LENGTHS:
        for row, place in np.ndindex(rows, length):
            if 0 <= row + start + place < rows:
                contexts[begin + row, place] = x[begin + row + start + place]
        begin += rows
    inputs = {"X": (x, [LENGTHS]), "Filter": w}
    attrs = {"contextLength": length, "contextStart": start}
    expected = contexts.reshape(len(x), -1) @ w
    test = OpTest("sequence_conv", inputs, attrs, {"Out": (expected, [LENGTHS])}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["X", "Filter"])


def test_sequence_conv_refuses_what_does_not_fit() -> None:
    x, w = (np.zeros((6, 2)), [LENGTHS]), np.zeros((6, 3))
    for inputs, attrs, error, part in (
        ({"X": x, "Filter": w}, {"contextLength": 2}, ValueError, "Filter"),
        ({"X": x, "Filter": w}, {"contextLength": 0}, ValueError, "contextLength"),
        ({"X": x, "Filter": w}, {"contextLength": 3, "contextStride": 2}, NotImplementedError, "contextStride"),
    ):
        OpTest("sequence_conv", inputs, attrs, known=["Filter"]).check_refused(error, part)


@pytest.mark.parametrize(
    ("length", "start"), [(3, -1), (2, 0), (2, -3), (2, -1), (1, -1), (2, 2), (1, 4), (9, -4), (4, 0)]
)
def test_sequence_conv_with_rows_around_the_sequences(length: int, start: int) -> None:
    before, after = max(0, -start), max(0, start + length - 1)
    x, w = RNG.uniform(-1, 1, (sum(LENGTHS), 2)), RNG.uniform(-1, 1, (length * 2, 3))
    padding = RNG.uniform(-1, 1, (before + after, 2))
    contexts = np.zeros((len(x), length, 2))
    begin = 0
    for rows in LENGTHS:
        around = np.concatenate([padding[:before], x[begin : begin + rows], padding[before:]])
        for row in range(rows):
            contexts[begin + row] = around[before + row + start :][:length]
        begin += rows
    inputs = {"X": (x, [LENGTHS]), "Filter": w, "PaddingData": padding}
    attrs = {"contextLength": length, "contextStart": start, "paddingTrainable": True}
    expected = contexts.reshape(len(x), -1) @ w
    outputs = {"Out": (expected, [LENGTHS])}
    test = OpTest("sequence_conv", inputs, attrs, outputs, known=["Filter", "PaddingData"])
    test.check_outputs()
    test.check_gradients(["X", "Filter", "PaddingData"])
    test.check_gradients(["PaddingData"])
    ignored = OpTest("sequence_conv", inputs, {**attrs, "paddingTrainable": False}, {"Out": None})
    without = OpTest("sequence_conv", {k: inputs[k] for k in ("X", "Filter")}, {**attrs, "paddingTrainable": False})
    np.testing.assert_array_equal(np.asarray(ignored.run()["Out"][0]), np.asarray(without.run()["Out"][0]))


def test_sequence_conv_refuses_rows_around_the_sequences_that_do_not_fit() -> None:
    inputs = {"X": (np.zeros((6, 2)), [LENGTHS]), "Filter": np.zeros((6, 3))}
    attrs = {"contextLength": 3, "contextStart": -1, "paddingTrainable": True}
    for padding, error in (
        (np.zeros((3, 2)), ValueError),
        (np.zeros((2, 3)), ValueError),
        (np.zeros(2), ValueError),
        (np.zeros((2, 2), np.float32), TypeError),
    ):
        test = OpTest("sequence_conv", {**inputs, "PaddingData": padding}, attrs, known=["Filter"])
        test.check_refused(error, "input PaddingData", "expected", "got")
    OpTest("sequence_conv", inputs, attrs, known=["Filter"]).check_refused(ValueError, "PaddingData", "2 rows", "none")
    alone = {"X": inputs["X"], "Filter": np.zeros((2, 3)), "PaddingData": np.zeros((0, 2))}
    test = OpTest("sequence_conv", alone, {"contextLength": 1, "paddingTrainable": True}, known=["Filter"])
    test.check_refused(ValueError, "paddingTrainable", "expected false")


@pytest.mark.parametrize("is_lod", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "int64"])
def test_sequences_with_tags(is_lod: bool, dtype: str) -> None:
    lengths = [2, 0, 3, 1] if is_lod else [1, 1, 1, 1]
    x = np.arange(2.0 * sum(lengths)).reshape(-1, 2).astype(dtype)
    parts = np.split(x, np.cumsum(lengths)[:-1])
    tags = (np.array([[7], [3], [9], [5], [7], [8]]), [[1, 2, 1, 2]])
    for wanted, kept in (([3, 7], [0, 1, 3]), ([8], [3]), ([9, 9], [1])):
        counts = [lengths[s] for s in kept]
        starts = [[sum(counts[:i]), sum(lengths[:s]), lengths[s]] for i, s in enumerate(kept)]
        outputs = {
            "Out": (np.concatenate([parts[s] for s in kept]), [counts]),
            "LossWeight": (np.ones((len(kept), 1), np.float32), [[1] * len(kept)]),
            "IndexMap": (np.array(starts), [[1] * len(kept)]),
        }
        given = {"Ins": (x, [lengths]) if is_lod else x, "Ins_tag": tags, "Filter_tag": np.array(wanted)}
        test = OpTest("filter_by_instag", given, {"is_lod": is_lod}, outputs, known=["Filter_tag"])
        test.check_outputs()
        if dtype == "float64":
            test.check_gradients(["Ins"], ["Out"])


def test_a_row_without_weight_stands_for_no_sequence() -> None:
    x = np.arange(6.0).reshape(3, 2)
    inputs = {"Ins": x, "Ins_tag": (np.array([1, 2, 3]), [[1, 1, 1]]), "Filter_tag": np.array([4])}
    outputs = {
        "Out": (np.zeros((1, 2)), [[1]]),
        "LossWeight": (np.zeros((1, 1), np.float32), [[1]]),
        "IndexMap": (np.array([[0, 1, 1]]), [[1]]),
    }
    test = OpTest("filter_by_instag", inputs, {"is_lod": False}, outputs, known=["Filter_tag"])
    test.check_outputs()
    test.check_gradients(["Ins"], ["Out"])
    gradient = {"Ins": x, "LossWeight": np.ones((1, 1), np.float32), "Out@GRAD": x[:1]}
    for far in ([0, 3, 1], [1, 0, 1], [0, 0, -1], [0, -1, 1]):
        test = OpTest(
            "filter_by_instag_grad", {**gradient, "IndexMap": np.array([far])}, {"is_lod": False}, {"Ins@GRAD": None}
        )
        test.check_refused(IndexError, "IndexMap", "row 0", when="run")


def test_tags_that_do_not_fit_are_refused() -> None:
    x = np.ones((3, 2))
    good = {"Ins": (x, [[1, 2]]), "Ins_tag": (np.array([1, 2, 3]), [[1, 2]]), "Filter_tag": np.array([4])}
    outputs: dict[str, Any] = dict.fromkeys(["Out", "LossWeight", "IndexMap"])
    for slot, value, error, parts in (
        ("Ins", (np.ones(3), [[1, 2]]), ValueError, ["rank 2"]),
        ("Ins_tag", (np.ones((3, 2), np.int64), [[1, 2]]), ValueError, ["a tag in each row"]),
        ("Ins_tag", (np.array([1, 2, 3], np.int32), [[1, 2]]), TypeError, ["int64"]),
        ("Filter_tag", np.array([4.0]), TypeError, ["int64"]),
    ):
        OpTest("filter_by_instag", {**good, slot: value}, {"is_lod": True}, outputs).check_refused(
            error, f"input {slot}", *parts
        )
    few = OpTest("filter_by_instag", {**good, "Ins_tag": (np.array([1, 2, 3]), [[1, 1, 1]])}, {"is_lod": True}, outputs)
    few.check_refused(ValueError, "input Ins_tag", "2 sequences", "those of 3", when="run")
