"""Runs the examples of docs/datasets.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "datasets.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    return names


def test_what_datasets_are_made_of_others(names: dict[str, Any]) -> None:
    assert names["pairs"][1] == {"letter": "b", "digit": 1}
    assert len(names["both"]) == 20
    assert (len(names["train"]), len(names["test"])) == (8, 2)
    assert [names["some"][i] for i in range(3)] == [7, 1, 3]


def test_what_an_order_of_ones_own_gives(names: dict[str, Any]) -> None:
    batches = names["data"].DataLoader(list(range(20)), batch_size=5, sampler=names["EveryOther"]())
    assert [batch.tolist() for batch in batches] == [[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]]
    assert [batch.tolist() for batch in batches] == [[1, 3, 5, 7, 9], [11, 13, 15, 17, 19]]


def test_what_a_mixture_gives(names: dict[str, Any]) -> None:
    assert len(names["mixed"]) == 406
    kinds = [names["mixed"][i][0] for i in range(400)]
    assert [kinds.count(kind) for kind in ("web", "book", "code")] == [280, 40, 80]
    for kinds, _ in list(names["loader"])[:40]:
        assert [kinds.count(kind) for kind in ("web", "book", "code")] == [7, 1, 2]


def test_what_a_row_says(names: dict[str, Any]) -> None:
    row = names["rows"][0]
    assert row["values"].tolist() == [5, 6, 7, 8, 9, 0]
    assert row["values_segment_ids"].tolist() == [1, 1, 1, 2, 2, 0]
    assert row["values_positions"].tolist() == [0, 1, 2, 0, 1, 0]


def test_where_a_stream_goes_on(names: dict[str, Any]) -> None:
    assert sorted(names["first"]) == ["a", "b", "c", "x"]
