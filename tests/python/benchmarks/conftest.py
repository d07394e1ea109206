"""The programs of tests/benchmarks as modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("contest", "content", "jobs", "machine", "plot", "processes", "report", "results")


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the harness, the rows and the command."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = {name: importlib.import_module(f"harness.{name}") for name in MODULES}
    yield SimpleNamespace(**found, rows=importlib.import_module("rows"), run=importlib.import_module("run"))
    for name in list(sys.modules):
        if name == "run" or name.partition(".")[0] in {"harness", "rows", "peers", "texts"}:
            del sys.modules[name]
