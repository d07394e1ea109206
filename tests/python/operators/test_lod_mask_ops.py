"""split_lod_tensor and merge_lod_tensor: rows and sequences parted by a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
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


def test_a_deeper_level() -> None:
    x = (ROWS, [[2, 1], [1, 2, 1]])
    mask = np.array([[True], [False], [True]])
    parts = {"OutTrue": (ROWS[[0, 3]], [[1, 1]]), "OutFalse": (ROWS[1:3], [[2]])}
    split = OpTest("split_lod_tensor", {"X": x, "Mask": mask}, {"level": 1}, parts)
    split.check_outputs()
    split.check_gradients(["X"])
    inputs = {"X": x, "Mask": mask, "InTrue": parts["OutTrue"], "InFalse": parts["OutFalse"]}
    merge = OpTest("merge_lod_tensor", inputs, {"level": 1}, {"Out": x})
    merge.check_outputs()
    merge.check_gradients(["InTrue", "InFalse"])


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_that_no_sequence_takes(taken: bool) -> None:
    x = fluid.data("x", [None, 3], lod_level=1)
    choice = fluid.layers.IfElse(fluid.data("mask", [None, 1], "bool"))
    for block, factor in ((choice.true_block, 2.0), (choice.false_block, 3.0)):
        with block():
            choice.output(fluid.layers.scale(choice.input(x), factor))
    feed = {"x": fluid.create_lod_tensor(ROWS.astype(np.float32), [[3, 1]]), "mask": np.full((2, 1), taken)}
    (out,) = fluid.Executor().run(feed=feed, fetch_list=choice(), return_numpy=False)
    assert out.recursive_sequence_lengths() == [[3, 1]]
    np.testing.assert_allclose(np.array(out), ROWS.astype(np.float32) * (2 if taken else 3))


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_without_sequences_may_do_what_needs_them(taken: bool) -> None:
    """As a detector's masks do, for which there are no objects: a factor for each image, expanded to its objects."""
    x = fluid.data("x", [None, 3], lod_level=1)
    choice = fluid.layers.IfElse(fluid.data("mask", [None, 1], "bool"))
    with choice.true_block():
        choice.output(choice.input(x))
    with choice.false_block():
        rows = choice.input(x)
        factors = fluid.layers.sequence_expand(fluid.data("factor", [None, 1]), rows)
        choice.output(rows * factors)
    feed = {
        "x": fluid.create_lod_tensor(ROWS.astype(np.float32), [[3, 1]]),
        "mask": np.full((2, 1), taken),
        "factor": np.array([[2], [5]], np.float32),
    }
    (out,) = fluid.Executor().run(feed=feed, fetch_list=choice(), return_numpy=False)
    factors = np.ones((4, 1)) if taken else np.array([[2], [2], [2], [5]])
    np.testing.assert_allclose(np.array(out), ROWS.astype(np.float32) * factors, rtol=1e-6)
    assert out.recursive_sequence_lengths() == [[3, 1]]


@pytest.mark.parametrize("taken", [True, False])
def test_a_side_that_nothing_takes_needs_no_lod(taken: bool) -> None:
    x = (ROWS, [[3, 1]])
    sides = {"InTrue": x, "InFalse": ROWS[:0]} if taken else {"InTrue": ROWS[:0], "InFalse": x}
    OpTest(
        "merge_lod_tensor", {"X": x, "Mask": np.full((2, 1), taken), **sides}, {"level": 0}, {"Out": x}
    ).check_outputs()


def test_levels_and_masks_that_do_not_fit_are_refused() -> None:
    mask = np.array([[True], [False], [True]])
    inputs: dict[str, Any] = {"X": (ROWS, [[1, 2, 1]]), "Mask": mask}
    split: Any = ("split_lod_tensor", inputs, {"OutTrue": None, "OutFalse": None})
    parts = {"InTrue": (ROWS[:2], [[1, 1]]), "InFalse": (ROWS[:2], [[2]])}
    merge: Any = ("merge_lod_tensor", {**inputs, **parts}, {"Out": None})
    for op_type, good, outputs in (split, merge):
        for level, part in ((7, "attribute level: expected a level of the LoD of X, which has 1"), (-1, "0 or more")):
            OpTest(op_type, good, {"level": level}, outputs).check_refused(ValueError, part, f"got {level}")
        flat = OpTest(op_type, {**good, "X": ROWS}, {"level": 1}, outputs)
        flat.check_refused(ValueError, "attribute level", "which has 0", "got 1", when="run")
        wide = OpTest(op_type, {**good, "Mask": np.ones((3, 2), np.bool_)}, {}, outputs)
        wide.check_refused(ValueError, "input Mask", "[3, 2]")
        numbers = OpTest(op_type, {**good, "Mask": np.ones((3, 1), np.int64)}, {}, outputs)
        numbers.check_refused(TypeError, "input Mask", "bool", "int64")


@pytest.mark.parametrize("chosen", [True, False])
def test_the_part_that_has_no_rows_may_be_declared_otherwise(chosen: bool) -> None:
    """A program chooses between branches: between what is found, and nothing, say."""
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        mask = fluid.data("mask", [None, 1], "bool")
        parts = fluid.data("found", [None, 2, 3]), fluid.data("nothing", [None, 1])
    true, false = parts if chosen else parts[::-1]
    out = program.global_block().create_var("out")
    inputs = {"X": mask, "Mask": mask, "InTrue": true, "InFalse": false}
    program.global_block().append_op("merge_lod_tensor", inputs, {"Out": out}, {"level": 0})
    found = RNG.uniform(-1, 1, (2, 2, 3)).astype(np.float32)
    feed = {"mask": np.full((2, 1), chosen), "found": found, "nothing": np.zeros((0, 1), np.float32)}
    exe = fluid.Executor()
    np.testing.assert_array_equal(exe.run(program, feed, [out])[0], found)
    feed = {"mask": np.array([[True], [False]]), "found": found[:1], "nothing": np.zeros((1, 1), np.float32)}
    with pytest.raises(ValueError, match="rows like those of dims"):
        exe.run(program, feed, [out])


def test_parts_that_do_not_fit_the_mask_are_refused() -> None:
    mask = np.array([[True], [False]])
    OpTest("split_lod_tensor", {"X": ROWS, "Mask": mask}, {}, {"OutTrue": None, "OutFalse": None}).check_refused(
        ValueError, "input Mask", "expected 4", when="run"
    )
    inputs = {"X": mask, "Mask": mask, "InTrue": ROWS[:2], "InFalse": ROWS[2:3]}
    OpTest("merge_lod_tensor", inputs).check_refused(ValueError, "InTrue", "expected 1 and 1", when="run")


def test_a_mask_may_be_declared_as_something_else_if_it_is_fed() -> None:
    control_flow, program = fluid.layers.control_flow, fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x, mask = (fluid.layers.data(name, [1]) for name in ("x", "mask"))
        x.persistable = mask.persistable = True
        parts = control_flow.split_lod_tensor(x, mask)
        merged = control_flow.merge_lod_tensor(*parts, x=x, mask=mask)
    exe, scope = fluid.Executor(), fluid.Scope()
    column = np.arange(4, dtype=np.int32).reshape(4, 1)
    chosen = np.array([[True], [False], [True], [False]])
    got = exe.run(program, {"x": column, "mask": chosen}, [*parts, merged], scope=scope)
    for value, expected in zip(got, (column[::2], column[1::2], column)):
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == np.int32
    with pytest.raises(TypeError, match="input Mask: expected dtype bool, got float32"):
        exe.run(program, {"x": column, "mask": chosen.astype(np.float32)}, scope=scope)
    with (
        fluid.program_guard(program, fluid.Program()),
        pytest.raises(TypeError, match="input Mask: expected dtype bool, got float32"),
    ):
        control_flow.split_lod_tensor(x, fluid.layers.scale(mask, 1.0))
