"""The examples in the documents run as printed: each document's, from top to bottom, in one namespace."""

from __future__ import annotations

import gc
import multiprocessing
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace.fluid as fluid

ROOT = Path(__file__).parents[2]


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """The namespace of a document. Its programs, its scope and its workers end with it."""
    names: dict[str, Any] = {"__name__": "document"}
    with (
        fluid.scope_guard(fluid.Scope()),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
    ):
        yield names
    names.clear()
    gc.collect()
    assert not multiprocessing.active_children()


def run_examples(document: str, names: dict[str, Any]) -> None:
    text = (ROOT / document).read_text("utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert blocks
    for block in blocks:
        # With the lines of the document, for tracebacks.
        source = "\n" * text[: block.start(1)].count("\n") + block[1]
        exec(compile(source, str(ROOT / document), "exec"), names)


def test_the_readme(names: dict[str, Any]) -> None:
    run_examples("README.md", names)
    assert names["images"].shape == (1000 % 32, 28, 28)
    assert names["labels"].dtype == "int64"
    assert names["value"].shape == (1,)
    assert names["reader"].stats()["batches"] == -(-1000 // 32)


def test_the_guide(names: dict[str, Any]) -> None:
    run_examples("docs/guide.md", names)
    losses = names["losses"]
    assert len(losses) == 3 * -(-1000 // 32)
    assert losses[-1] < 0.5 < losses[0]
    assert names["sums"].tolist() == [3, 3]
