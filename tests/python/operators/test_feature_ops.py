"""cvm and similarity_focus."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(17)


@pytest.mark.parametrize("lengths", [None, [2, 0, 3]], ids=["rows", "sequences"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("use_cvm", [False, True])
def test_cvm(use_cvm: bool, dtype: Any, lengths: list[int] | None) -> None:
    x = RNG.uniform(0, 5, (5, 6)).astype(dtype)
    counts = RNG.uniform(0, 5, (5 if lengths is None else 3, 2)).astype(dtype)
    logs = np.log(x[:, :2] + 1)
    logs[:, 1] -= logs[:, 0]
    expected = np.concatenate([logs, x[:, 2:]], 1) if use_cvm else x[:, 2:]
    lod = None if lengths is None else [lengths]
    given = {"X": x if lod is None else (x, lod), "CVM": counts}
    test = OpTest("cvm", given, {"use_cvm": use_cvm}, {"Y": expected if lod is None else (expected, lod)})
    test.check_outputs()
    gradient = test.gradients(["X"], ["Y"])["X_0"]
    rows = counts if lengths is None else np.repeat(counts, lengths, 0)
    np.testing.assert_array_equal(gradient[:, :2], rows)
    # The other columns have the gradient of Y, which a copy of Y in a slot of that name shows.
    of_y = OpTest("stack", {"X": [expected]}, {"axis": 0}, {"Y": None}).gradients(["X"], ["Y"])["X_0"]
    np.testing.assert_array_equal(gradient[:, 2:], of_y[:, 2 if use_cvm else 0 :])


@pytest.mark.parametrize(
    ("given", "error", "parts", "when"),
    [
        ({"X": np.ones((2, 1))}, ValueError, ("X", "[2, 1]"), "build"),
        ({"X": np.ones((2, 3, 3))}, ValueError, ("X", "rank 2"), "build"),
        ({"CVM": np.ones((2, 3))}, ValueError, ("CVM", "2]", "[2, 3]"), "build"),
        ({"CVM": np.ones((2, 2), np.float32)}, TypeError, ("CVM", "float64"), "build"),
        ({"CVM": np.ones((3, 2))}, ValueError, ("CVM", "[2, 2]"), "run"),
    ],
    ids=str,
)
def test_cvm_refuses_what_does_not_fit(
    given: dict[str, Any], error: type[Exception], parts: tuple[str, ...], when: str
) -> None:
    good = {"X": np.ones((2, 4)), "CVM": np.ones((2, 2))}
    OpTest("cvm", {**good, **given}, {}, {"Y": None}).check_refused(error, *parts, when=when)


def test_cvm_of_sequences_needs_a_row_for_each() -> None:
    given = {"X": (np.ones((3, 4)), [[1, 2]]), "CVM": np.ones((3, 2))}
    with pytest.raises(ValueError, match=r"CVM.*2 rows"):
        OpTest("cvm", given, {}, {"Y": None}).gradients(["X"], ["Y"])


def focus(x: np.ndarray, axis: int, indexes: list[int]) -> np.ndarray:
    """As the layer is described."""
    maps = np.moveaxis(x, axis, 1)
    mask = np.zeros_like(maps)
    for n, index in itertools.product(range(len(x)), indexes):
        left = maps[n, index].copy()
        for _ in range(min(left.shape)):
            row, col = np.unravel_index(np.argmax(left), left.shape)
            mask[n, :, row, col] = 1
            left[row, :] = left[:, col] = -np.inf
    return np.moveaxis(mask, 1, axis)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("indexes", [[0], [1, 2], [2, 0, 1, 2]], ids=str)
def test_similarity_focus(indexes: list[int], axis: int, dtype: Any) -> None:
    shape = [3, 4, 3, 5]
    shape[axis] = 3
    x = RNG.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)
    test = OpTest("similarity_focus", {"X": x}, {"axis": axis, "indexes": indexes}, {"Out": focus(x, axis, indexes)})
    test.check_outputs()


def test_similarity_focus_of_an_example() -> None:
    """Two samples of two maps, of which the second one counts."""
    maps = np.array([[[7.0, 9.0, 1.0], [6.0, 8.0, 2.0]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    x = np.stack([maps * 0, maps], 1)
    chosen = np.array([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    expected = np.stack([chosen, chosen], 1)
    OpTest("similarity_focus", {"X": x}, {"axis": 1, "indexes": [1]}, {"Out": expected}).check_outputs()


def test_of_equal_elements_the_first_is_chosen_and_nan_is_the_least() -> None:
    x = np.array([[[[1.0, 1.0], [np.nan, -np.inf]]]])
    expected = np.array([[[[1.0, 0.0], [0.0, 1.0]]]])
    OpTest("similarity_focus", {"X": x}, {"axis": 1, "indexes": [0]}, {"Out": expected}).check_outputs()


@pytest.mark.parametrize(
    ("shape", "attrs", "parts"),
    [
        ((2, 3, 4), {}, ("X", "rank 4")),
        ((2, 3, 4, 5), {"axis": 0}, ("axis", "got 0")),
        ((2, 3, 4, 5), {"axis": 4}, ("axis", "got 4")),
        ((2, 3, 4, 5), {"indexes": []}, ("indexes",)),
        ((2, 3, 4, 5), {"indexes": [0, 3]}, ("indexes", "[0, 3)", "got 3")),
        ((2, 3, 4, 5), {"indexes": [-1]}, ("indexes", "got -1")),
    ],
    ids=str,
)
def test_similarity_focus_refuses_what_does_not_fit(
    shape: tuple[int, ...], attrs: dict[str, Any], parts: tuple[str, ...]
) -> None:
    test = OpTest("similarity_focus", {"X": np.zeros(shape)}, {"axis": 1, "indexes": [0], **attrs})
    test.check_refused(ValueError, *parts)
