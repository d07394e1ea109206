"""The table of docs/from-torch.md that says which loader takes which argument."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

torch_data = pytest.importorskip("torch.utils.data", reason="PyTorch is not installed")

import headrace  # noqa: E402
import headrace.torch  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "from-torch.md"


def arguments(loader: type) -> set[str]:
    return set(inspect.signature(loader).parameters)


def listed(taken_by: str) -> set[str]:
    (section,) = re.findall(r"^## Arguments\n(.*?)^## ", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    cells = re.findall(rf"^\| ([^|]+) \| {taken_by} \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}


def test_the_table_lists_what_the_drop_in_adds_to_pytorchs_arguments() -> None:
    assert arguments(headrace.torch.DataLoader) - arguments(torch_data.DataLoader) == listed("both")


def test_the_table_lists_what_the_drop_in_lacks() -> None:
    assert arguments(headrace.DataLoader) - arguments(headrace.torch.DataLoader) == listed("`headrace.DataLoader`")
