"""split_ids, merge_ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid.core import VarType
from headrace.testing import OpTest


def column(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64).reshape(-1, 1)


def test_ids_are_split_by_their_remainders() -> None:
    ids = [column(7, 0, 3, 3), column(), column(9, 5, 0)]
    parts = [column(0, 3, 9), column(7), column(5), column()]
    OpTest("split_ids", {"Ids": ids}, {}, {"Out": [column(*p) for p in ([0, 3, 9], [7], [5])]}).check_outputs()
    OpTest("split_ids", {"Ids": column(4)}, {}, {"Out": [column(4), column()]}).check_outputs()
    OpTest("split_ids", {"Ids": column(4, -1)}, {}, {"Out": parts[:2]}).check_refused(IndexError, "-1", when="run")
    OpTest("split_ids", {"Ids": np.zeros((2, 2), np.int64)}, {}, {"Out": parts[:2]}).check_refused(ValueError, "Ids")


def test_selected_rows_are_split_as_they_are() -> None:
    program, scope = fluid.Program(), fluid.Scope()
    names = ["x", "first", "second"]
    for name in names:
        program.global_block().create_var(name, [9, 2], "float64", persistable=True, type=VarType.SELECTED_ROWS)
    program.global_block().append_op("split_ids", {"Ids": names[:1]}, {"Out": names[1:]})
    x, *parts = (scope.var(name).get_selected_rows() for name in names)
    x.set_height(9)
    for rows in ([4, 7, 0, 1, 4], [3], []):
        x.set_rows(rows)
        x.get_tensor().set(np.array([[i, row] for i, row in enumerate(rows)], float).reshape(-1, 2))
        fluid.Executor().run(program, scope=scope)
        for remainder, part in enumerate(parts):
            expected = [(i, row) for i, row in enumerate(rows) if row % 2 == remainder]
            assert part.rows() == [row for _, row in expected]
            assert part.height() == 9
            np.testing.assert_array_equal(np.array(part.get_tensor()), np.array(expected, float).reshape(-1, 2))


def test_parts_of_selected_rows_are_declared_as_such() -> None:
    block = fluid.Program().global_block()
    rows = [block.create_var(name, [9, 2], "float64", type=VarType.SELECTED_ROWS) for name in "xy"]
    part = block.create_var("part")
    block.append_op("split_ids", {"Ids": rows[0]}, {"Out": part})
    assert (part.type, part.shape) == (VarType.SELECTED_ROWS, (9, 2))
    with pytest.raises(errors.InvalidArgument, match="input Ids: expected one variable, since it holds SelectedRows"):
        block.append_op("split_ids", {"Ids": rows}, {"Out": part})


def test_rows_are_put_together_in_the_order_of_the_ids() -> None:
    row = {i: np.array([i + 0.5, -i]) for i in (0, 3, 7, 5)}
    inputs: dict[str, Any] = {
        "Ids": [(column(3, 7, 3), [[1, 2]]), column(), column(5)],
        "Rows": [column(0, 3), column(7), column(5)],
        "X": [np.stack([row[0], row[3]]), row[7][None], row[5][None]],
    }
    out = [(np.stack([row[3], row[7], row[3]]), [[1, 2]]), np.zeros((0, 2)), row[5][None]]
    test = OpTest("merge_ids", inputs, {}, {"Out": out})
    test.check_outputs()

    def check_refused(error: type[Exception], *parts: str, **changed: Any) -> None:
        OpTest("merge_ids", {**inputs, **changed}, {}, {"Out": [None] * 3}).check_refused(error, *parts, when="run")

    check_refused(KeyError, "id 8 in row 0", Ids=[column(3), column(), column(8)])
    check_refused(ValueError, "id 3 occurs twice", Rows=[column(0, 3), column(3), column(5)])
    check_refused(ValueError, "1 rows in variable 0", Rows=[column(0), column(7), column(5)])
