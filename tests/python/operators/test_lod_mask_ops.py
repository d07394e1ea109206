"""split_lod_tensor and merge_lod_tensor: rows and sequences parted by a mask."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(37)
ROWS = RNG.uniform(-1, 1, (4, 3))
MASKS = [[True, False, True, False], [False] * 4, [True] * 4]


@pytest.mark.parametrize("mask", MASKS)
def test_rows(mask: list[bool]) -> None:
    column = np.array(mask)[:, None]
    parts = {"OutTrue": ROWS[mask], "OutFalse": ROWS[np.logical_not(mask)]}
    split = OpTest("split_lod_tensor", {"X": ROWS, "Mask": column}, {"level": 0}, parts)
    split.check_outputs()
    split.check_gradients(["X"])
    inputs = {"X": column, "Mask": column, "InTrue": parts["OutTrue"], "InFalse": parts["OutFalse"]}
    merge = OpTest("merge_lod_tensor", inputs, {"level": 0}, {"Out": ROWS})
    merge.check_outputs()
    merge.check_gradients([slot for slot in ("InTrue", "InFalse") if inputs[slot].size])


def test_sequences() -> None:
    mask = np.array([[True], [False], [True]])
    x = (ROWS, [[1, 2, 1]])
    parts = {"OutTrue": (ROWS[[0, 3]], [[1, 1]]), "OutFalse": (ROWS[1:3], [[2]])}
    split = OpTest("split_lod_tensor", {"X": x, "Mask": mask}, {"level": 0}, parts)
    split.check_outputs()
    split.check_gradients(["X"])
    inputs = {"X": x, "Mask": mask, "InTrue": parts["OutTrue"], "InFalse": parts["OutFalse"]}
    merge = OpTest("merge_lod_tensor", inputs, {"level": 0}, {"Out": x})
    merge.check_outputs()
    merge.check_gradients(["InTrue", "InFalse"])


def test_parts_that_do_not_fit_the_mask_are_refused() -> None:
    mask = np.array([[True], [False]])
    OpTest("split_lod_tensor", {"X": ROWS, "Mask": mask}, {}, {"OutTrue": None, "OutFalse": None}).check_refused(
        ValueError, "input Mask", "expected 4", when="run"
    )
    inputs = {"X": mask, "Mask": mask, "InTrue": ROWS[:2], "InFalse": ROWS[2:3]}
    OpTest("merge_lod_tensor", inputs).check_refused(ValueError, "InTrue", "expected 1 and 1", when="run")
