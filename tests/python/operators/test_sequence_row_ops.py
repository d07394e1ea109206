"""sequence_reshape, sequence_scatter, row_conv, conv_shift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(89)
LENGTHS = [3, 0, 1, 2]


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


@pytest.mark.parametrize(
    ("lengths", "width", "new"),
    [([2, 0, 4], 3, 6), ([2, 0, 4], 3, 1), ([1, 1], 4, 2), ([0, 0], 2, 3), ([3], 1, 1)],
    ids=str,
)
def test_sequence_reshape(lengths: list[int], width: int, new: int) -> None:
    x = numbers(sum(lengths), width)
    expected = (x.reshape(-1, new), [[n * width // new for n in lengths]])
    test = OpTest("sequence_reshape", {"X": (x, [lengths])}, {"new_dim": new}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])
    integers = (np.arange(x.size, dtype=np.int64).reshape(x.shape), [lengths])
    outputs = {"Out": (integers[0].reshape(-1, new), expected[1])}
    OpTest("sequence_reshape", {"X": integers}, {"new_dim": new}, outputs).check_outputs()


def test_sequence_reshape_refuses_what_does_not_fit() -> None:
    x = numbers(6, 2)
    OpTest("sequence_reshape", {"X": (x, [LENGTHS])}, {"new_dim": 0}).check_refused(ValueError, "new_dim")
    test = OpTest("sequence_reshape", {"X": (x, [LENGTHS])}, {"new_dim": 3})
    test.check_refused(ValueError, "new_dim", "sequence 2", when="run")
    test = OpTest("sequence_reshape", {"X": (x, [[2, 2], LENGTHS])}, {"new_dim": 1})
    test.check_refused(ValueError, "X", "one level")
    OpTest("sequence_reshape", {"X": x}, {"new_dim": 1}).check_refused(ValueError, "X", "LoD", when="run")


@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=str)
def test_sequence_scatter(dtype: Any) -> None:
    x, updates = numbers(4, 5), numbers(6, 1)
    ids = np.array([[0], [3], [3], [2], [4], [0]], dtype)  # column 3 of row 0 twice
    expected = x.copy()
    for row, i, update in zip(np.repeat(range(4), LENGTHS), ids[:, 0], updates[:, 0]):
        expected[row, i] += update
    inputs = {"X": x, "Ids": (ids, [LENGTHS]), "Updates": (updates, [LENGTHS])}
    test = OpTest("sequence_scatter", inputs, outputs={"Out": expected})
    test.check_outputs()
    test.check_gradients(["X", "Updates"])


def test_sequence_scatter_refuses_what_does_not_fit() -> None:
    x, updates, ids = numbers(4, 5), (numbers(6, 1), [LENGTHS]), np.zeros((6, 1), np.int64)
    good: dict[str, Any] = {"X": x, "Ids": (ids, [LENGTHS]), "Updates": updates}
    for change, error, parts, when in (
        ({"Ids": (ids + 5, [LENGTHS])}, IndexError, ("Ids", "[0, 5)"), "run"),
        ({"X": x[:3]}, ValueError, ("Ids", "3 sequences"), "run"),
        ({"Updates": (updates[0], [[6]])}, ValueError, ("Updates", "LoD"), "run"),
        ({"Updates": (updates[0].astype(np.float32), [LENGTHS])}, TypeError, ("Updates", "float64"), "build"),
        ({"Ids": (ids.astype(np.float64), [LENGTHS])}, TypeError, ("Ids", "int64"), "build"),
        ({"Updates": (np.ones((6, 2)), [LENGTHS])}, ValueError, ("Updates", "[6, 1]"), "build"),
    ):
        OpTest("sequence_scatter", {**good, **change}).check_refused(error, *parts, when=when)


@pytest.mark.parametrize("context", [1, 2, 5])
def test_row_conv(context: int) -> None:
    x, w = numbers(6, 3), numbers(context, 3)
    expected, begin = np.zeros_like(x), 0
    for n in LENGTHS:
        for row in range(begin, begin + n):
            behind = x[row : min(row + context, begin + n)]
            expected[row] = (behind * w[: len(behind)]).sum(0)
        begin += n
    inputs = {"X": (x, [LENGTHS]), "Filter": w}
    test = OpTest("row_conv", inputs, outputs={"Out": (expected, [LENGTHS])}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["X", "Filter"])
    OpTest("row_conv", {**inputs, "Filter": w[:, :2]}).check_refused(ValueError, "Filter", "3]")
    OpTest("row_conv", {**inputs, "X": x}).check_refused(ValueError, "X", "LoD", when="run")


@pytest.mark.parametrize("context", [1, 2, 5])
def test_row_conv_of_sequences_of_one_length(context: int) -> None:
    x, w = numbers(2, 3, 4), numbers(context, 4)
    expected = np.zeros_like(x)
    for row in range(3):
        behind = x[:, row : row + context]
        expected[:, row] = (behind * w[: behind.shape[1]]).sum(1)
    test = OpTest("row_conv", {"X": x, "Filter": w}, outputs={"Out": expected}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["X", "Filter"])
    OpTest("row_conv", {"X": x, "Filter": w[:, :3]}).check_refused(ValueError, "Filter", "4]")
    OpTest("row_conv", {"X": x[None], "Filter": w}).check_refused(ValueError, "X", "rank 2")
    OpTest("row_conv", {"X": (x, [[1, 1]]), "Filter": w}).check_refused(ValueError, "X", "without")


@pytest.mark.parametrize(("rows", "cols", "size"), [(2, 5, 3), (3, 4, 1), (1, 3, 3), (0, 3, 1)], ids=str)
def test_conv_shift(rows: int, cols: int, size: int) -> None:
    x, y = numbers(rows, cols), numbers(rows, size)
    expected = np.zeros_like(x)
    for i in range(cols):
        for j in range(size):
            expected[:, i] += x[:, (i + j - size // 2) % cols] * y[:, j]
    test = OpTest("conv_shift", {"X": x, "Y": y}, outputs={"Out": expected})
    test.check_outputs()
    test.check_gradients(["X", "Y"])


def test_conv_shift_refuses_what_does_not_fit() -> None:
    x = numbers(2, 3)
    OpTest("conv_shift", {"X": x, "Y": numbers(2, 2)}).check_refused(ValueError, "Y", "odd")
    OpTest("conv_shift", {"X": x, "Y": numbers(2, 5)}).check_refused(ValueError, "Y", "[2, 5]")
    OpTest("conv_shift", {"X": x, "Y": numbers(1, 3)}).check_refused(ValueError, "Y", "[2, -1]")


def encoding(length: int, width: int) -> np.ndarray:
    half = width // 2
    periods = 10000.0 ** (np.arange(half) / (half - 1)) if half > 1 else np.array([1e4])
    angles = np.arange(length)[:, None] / periods
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)


@pytest.mark.parametrize("width", [2, 6])
def test_add_position_encoding(width: int) -> None:
    attrs = {"alpha": 0.5, "beta": 2.0}
    x = np.random.default_rng(71).uniform(-1, 1, (2, 3, width))
    test = OpTest("add_position_encoding", {"X": x}, attrs, {"Out": 0.5 * x + 2 * encoding(3, width)})
    test.check_outputs()
    test.check_gradients(["X"])
    rows, lengths = x.reshape(6, width), [[2, 0, 3, 1]]
    expected = 0.5 * rows + 2 * np.concatenate([encoding(n, width) for n in lengths[0]])
    test = OpTest("add_position_encoding", {"X": (rows, lengths)}, attrs, {"Out": (expected, lengths)})
    test.check_outputs()
    test.check_gradients(["X"])


def test_positions_need_sequences_and_an_even_width() -> None:
    def refused(x: object, *parts: str, **attrs: float) -> None:
        OpTest("add_position_encoding", {"X": x}, attrs).check_refused(ValueError, *parts)

    refused(np.ones((2, 3, 5)), "input X", "even width", "[2, 3, 5]")
    refused(np.ones(4), "input X", "[sequences, length, width]")
    refused((np.ones((3, 2)), [[1, 1], [2, 1]]), "input X", "one level")
    refused(np.ones((1, 2, 2)), "alpha and beta", "got -1", alpha=-1.0)
    test = OpTest("add_position_encoding", {"X": np.ones((3, 2))})
    test.check_refused(ValueError, "input X", when="run")
