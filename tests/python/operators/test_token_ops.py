"""Operators over sequences of tokens: masks, n-grams, erasure, edit distance, alignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.fluid import core
from headrace.testing import OpTest

RNG = np.random.default_rng(83)
TOKEN_TYPES = [np.int32, np.int64]
LENGTHS = [3, 0, 1, 4]


def tokens(lengths: list[int] = LENGTHS, dtype: Any = np.int64, high: int = 4) -> np.ndarray:
    return RNG.integers(0, high, (sum(lengths), 1)).astype(dtype)


def cut(x: np.ndarray, lengths: list[int]) -> list[list[int]]:
    ends = np.cumsum(lengths)
    return [x[end - n : end, 0].tolist() for n, end in zip(lengths, ends)]


@pytest.mark.parametrize("out", [np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_], ids=str)
@pytest.mark.parametrize("maxlen", [-1, 3, 9])
@pytest.mark.parametrize("dtype", TOKEN_TYPES, ids=str)
def test_sequence_mask(dtype: Any, maxlen: int, out: Any) -> None:
    lengths = np.array([[0, 5], [2, 1]], dtype)
    cols = np.arange(5 if maxlen == -1 else maxlen)
    expected = (cols < lengths[..., None]).astype(out)
    attrs = {"maxlen": maxlen, "out_dtype": int(core.convert_dtype(out))}
    OpTest("sequence_mask", {"X": lengths}, attrs, {"Y": expected}).check_outputs()


def test_sequence_mask_of_nothing_and_what_it_refuses() -> None:
    empty = np.zeros((0,), np.int64)
    OpTest("sequence_mask", {"X": empty}, {}, {"Y": np.zeros((0, 0), np.int64)}).check_outputs()
    OpTest("sequence_mask", {"X": empty}, {"maxlen": 0}, {"Y": None}).check_refused(ValueError, "maxlen")
    attrs = {"out_dtype": int(core.convert_dtype("int16"))}
    OpTest("sequence_mask", {"X": empty}, attrs, {"Y": None}).check_refused(NotImplementedError, "out_dtype", "int16")
    attrs = {"out_dtype": 12345}
    OpTest("sequence_mask", {"X": empty}, attrs, {"Y": None}).check_refused(ValueError, "out_dtype", "12345")


@pytest.mark.parametrize("dtype", TOKEN_TYPES, ids=str)
@pytest.mark.parametrize("size", [2, 3, 6])
def test_sequence_enumerate(size: int, dtype: Any) -> None:
    x = tokens(dtype=dtype)
    rows = [(sequence[i : i + size] + [7] * size)[:size] for sequence in cut(x, LENGTHS) for i in range(len(sequence))]
    expected = np.array(rows, dtype)
    attrs = {"win_size": size, "pad_value": 7}
    test = OpTest("sequence_enumerate", {"X": (x, [LENGTHS])}, attrs, {"Out": (expected, [LENGTHS])})
    test.check_outputs()


def test_sequence_enumerate_refuses_what_does_not_fit() -> None:
    x = tokens()
    OpTest("sequence_enumerate", {"X": (x, [LENGTHS])}, {"win_size": 1}).check_refused(ValueError, "win_size")
    OpTest("sequence_enumerate", {"X": (x.T.copy(), [[1]])}, {}).check_refused(ValueError, "X", "[1, 8]")
    OpTest("sequence_enumerate", {"X": x}, {}).check_refused(ValueError, "X", "LoD", when="run")


@pytest.mark.parametrize("dtype", TOKEN_TYPES, ids=str)
@pytest.mark.parametrize("erased", [[], [1, 3], [0, 1, 2, 3]], ids=str)
def test_sequence_erase(erased: list[int], dtype: Any) -> None:
    x = tokens(dtype=dtype)
    kept = [[token for token in sequence if token not in erased] for sequence in cut(x, LENGTHS)]
    expected = np.array([token for sequence in kept for token in sequence], dtype).reshape(-1, 1)
    lod = [[2, 2], [len(sequence) for sequence in kept]]
    inputs = {"X": (x, [[2, 2], LENGTHS])}
    OpTest("sequence_erase", inputs, {"tokens": erased}, {"Out": (expected, lod)}).check_outputs()


def test_sequence_erase_refuses_what_does_not_fit() -> None:
    OpTest("sequence_erase", {"X": tokens()}, {"tokens": [1]}).check_refused(ValueError, "X", "LoD", when="run")
    floats = {"X": (tokens().astype(np.float32), [LENGTHS])}
    OpTest("sequence_erase", floats, {"tokens": [1]}).check_refused(NotImplementedError, "float32")


def levenshtein(a: list[int], b: list[int]) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(levenshtein(a[1:], b) + 1, levenshtein(a, b[1:]) + 1, levenshtein(a[1:], b[1:]) + int(a[0] != b[0]))


@pytest.mark.parametrize("normalized", [False, True])
def test_edit_distance(normalized: bool) -> None:
    ref_lengths = [2, 3, 4, 1] if normalized else [2, 3, 0, 4]
    hyps, refs = tokens(), tokens(ref_lengths)
    pairs = zip(cut(hyps, LENGTHS), cut(refs, ref_lengths))
    expected = np.array([[levenshtein(a, b) / (len(b) if normalized else 1)] for a, b in pairs], np.float32)
    inputs = {"Hyps": (hyps, [LENGTHS]), "Refs": (refs, [ref_lengths])}
    outputs = {"Out": expected, "SequenceNum": np.array([4])}
    OpTest("edit_distance", inputs, {"normalized": normalized}, outputs).check_outputs()


def test_edit_distance_refuses_what_does_not_fit() -> None:
    x = tokens()
    outputs = {"Out": None, "SequenceNum": None}
    inputs = {"Hyps": (x, [LENGTHS]), "Refs": (x, [LENGTHS])}
    test = OpTest("edit_distance", inputs, {"normalized": True}, outputs)
    test.check_refused(ValueError, "Refs", "sequence 1 is empty", when="run")
    wrong: dict[str, Any] = {**inputs, "Refs": (x, [[8]])}
    OpTest("edit_distance", wrong, {}, outputs).check_refused(ValueError, "Refs", "4 sequences", when="run")
    wrong = {**inputs, "Refs": x}
    OpTest("edit_distance", wrong, {}, outputs).check_refused(ValueError, "Refs", "LoD", when="run")
    wrong = {**inputs, "Refs": (x.astype(np.int32), [LENGTHS])}
    OpTest("edit_distance", wrong, {}, outputs).check_refused(TypeError, "Refs", "int64")


@pytest.mark.parametrize("dtype", TOKEN_TYPES, ids=str)
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_align(blank: int, merge: bool, dtype: Any) -> None:
    x = np.array([[1], [1], [0], [1], [2], [2], [0], [0], [1], [1]], dtype)
    lengths = [5, 0, 3, 2]  # a label is repeated across the border of two sequences
    aligned = []
    for sequence in cut(x, lengths):
        merged = [t for i, t in enumerate(sequence) if not (merge and i > 0 and t == sequence[i - 1])]
        aligned.append([t for t in merged if t != blank])
    expected = np.array([token for sequence in aligned for token in sequence], dtype).reshape(-1, 1)
    attrs = {"blank": blank, "merge_repeated": merge}
    outputs = {"Output": (expected, [[len(sequence) for sequence in aligned]])}
    OpTest("ctc_align", {"Input": (x, [lengths])}, attrs, outputs).check_outputs()


def test_ctc_align_of_nothing_but_blanks_is_fluids_minus_one() -> None:
    """A row that belongs to none of the sequences, each of which is empty."""
    x = np.zeros((3, 1), np.int64)
    (output,) = OpTest("ctc_align", {"Input": (x, [[1, 2]])}, {}, {"Output": None}).run()["Output"]
    assert np.asarray(output).tolist() == [[-1]]
    assert output.recursive_sequence_lengths() == [[0, 0]]


def test_ctc_align_refuses_what_does_not_fit() -> None:
    x = np.zeros((3, 1), np.int64)
    output = {"Output": None}
    OpTest("ctc_align", {"Input": x}, {}, output).check_refused(ValueError, "Input", "LoD", when="run")
    OpTest("ctc_align", {"Input": (x, [[1], [3]])}, {}, output).check_refused(ValueError, "one level")
    OpTest("ctc_align", {"Input": (x.reshape(1, 3), [[1]])}, {}, output).check_refused(ValueError, "Input", "[1, 3]")


def pad(rows: list[list[int]], width: int, fill: int = -7, dtype: Any = np.int64) -> np.ndarray:
    return np.array([row + [fill] * (width - len(row)) for row in rows], dtype)


@pytest.mark.parametrize("normalized", [False, True])
def test_edit_distance_of_padded_sequences(normalized: bool) -> None:
    ref_lengths = [2, 3, 4, 1] if normalized else [2, 3, 0, 4]
    hyps, refs = cut(tokens(), LENGTHS), cut(tokens(ref_lengths), ref_lengths)
    expected = [[levenshtein(a, b) / (len(b) if normalized else 1)] for a, b in zip(hyps, refs)]
    given = {
        "Hyps": pad(hyps, 5),
        "Refs": pad(refs, 4, -8),
        "HypsLength": np.array(LENGTHS),
        "RefsLength": np.array(ref_lengths)[:, None],
    }
    outputs: dict[str, Any] = {"Out": np.array(expected, np.float32), "SequenceNum": np.array([4])}
    OpTest("edit_distance", given, {"normalized": normalized}, outputs).check_outputs()
    for change, error, parts, when in (
        ({"HypsLength": np.array([3, 0, 1, 6])}, IndexError, ("HypsLength", "sequence 3", "6", "[0, 5]"), "run"),
        ({"RefsLength": np.array([2, 3, -1, 4])}, IndexError, ("RefsLength", "sequence 2", "-1"), "run"),
        ({"HypsLength": np.array([3, 0, 1])}, ValueError, ("HypsLength", "[4]", "[3]"), "build"),
        ({"RefsLength": np.array([1, 1, 1, 1], np.int32)}, TypeError, ("RefsLength", "int64"), "build"),
        ({"Refs": pad(refs, 4)[:3]}, ValueError, ("Refs", "[4, -1]"), "build"),
    ):
        OpTest("edit_distance", {**given, **change}, {}, outputs).check_refused(error, *parts, when=when)
    del given["RefsLength"]
    OpTest("edit_distance", given, {}, outputs).check_refused(ValueError, "both or none")


@pytest.mark.parametrize("dtype", TOKEN_TYPES, ids=str)
@pytest.mark.parametrize("merge", [False, True])
def test_ctc_align_of_padded_sequences(merge: bool, dtype: Any) -> None:
    rows = [[1, 1, 0, 1, 2], [], [2, 0, 0], [1, 1]]
    aligned = [[[1, 1, 1, 2], [], [2], [1, 1]], [[1, 1, 2], [], [2], [1]]][merge]
    given = {"Input": pad(rows, 6, 1, dtype), "InputLength": np.array([[5], [0], [3], [2]], dtype)}
    outputs: dict[str, Any] = {
        "Output": pad(aligned, 6, 9, dtype),
        "OutputLength": np.array([[len(row)] for row in aligned], dtype),
    }
    attrs = {"merge_repeated": merge, "padding_value": 9}
    OpTest("ctc_align", given, attrs, outputs).check_outputs()
    other = np.int32 if dtype == np.int64 else np.int64
    for change, error, parts, when in (
        ({"InputLength": np.array([5, 0, 3, 7], dtype)}, IndexError, ("InputLength", "sequence 3", "7"), "run"),
        ({"InputLength": np.array([-1, 0, 3, 2], dtype)}, IndexError, ("InputLength", "sequence 0", "-1"), "run"),
        ({"InputLength": np.array([5, 0, 3], dtype)}, ValueError, ("InputLength", "[4]", "[3]"), "build"),
        ({"InputLength": np.array([5, 0, 3, 2], other)}, TypeError, ("InputLength", np.dtype(dtype).name), "build"),
        ({"Input": given["Input"][0]}, ValueError, ("Input", "rank 2"), "build"),
    ):
        OpTest("ctc_align", {**given, **change}, {}, outputs).check_refused(error, *parts, when=when)
    OpTest("ctc_align", given, {}, {"Output": None}).check_refused(ValueError, "OutputLength", "both or none")
