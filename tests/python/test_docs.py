"""The examples in the documents run as printed: each document's, from top to bottom, in one namespace.

Those whose first line names a file are programs, which other tests start.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import multiprocessing
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace.fluid as fluid
from doc_programs import run

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


# What examples may use that need not be installed.
OPTIONAL = {"PIL", "accelerate", "datasets", "h5py", "jax", "lightning", "pyarrow", "torch", "transformers", "zarr"}
PROGRAM = re.compile(r"# \w+\.py\n")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def skip_without(source: str) -> None:
    """Skips a test where something that the source imports is not installed."""
    for node in ast.walk(ast.parse(source)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            name = "torch" if module == "headrace.torch" else module.partition(".")[0]
            if name in OPTIONAL and importlib.util.find_spec(name) is None:
                pytest.skip(f"{name} is not installed")


def run_examples(document: str, names: dict[str, Any]) -> None:
    text = (ROOT / document).read_text("utf-8")
    blocks = [block for block in BLOCK.finditer(text) if not PROGRAM.match(block[1])]
    assert blocks
    for block in blocks:
        skip_without(block[1])
        # With the lines of the document, for tracebacks.
        source = "\n" * text[: block.start(1)].count("\n") + block[1]
        exec(compile(source, str(ROOT / document), "exec"), names)


def test_the_readme(names: dict[str, Any]) -> None:
    run_examples("README.md", names)
    assert names["images"].shape == (1000 % 32, 28, 28)
    assert names["labels"].dtype == "int64"
    assert names["value"].shape == (1,)
    assert names["reader"].stats()["batches"] == -(-1000 // 32)


def test_the_files_that_contributors_are_shown_exist() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Where to find what")[1].split("\n## ")[0]
    files = re.findall(r"`([\w/]+(?:/|\.(?:py|cc|h)))`", section)
    assert len(files) > 20
    folder = ROOT
    for name in files:
        path = ROOT / name if "/" in name else folder / name
        assert path.exists(), name
        folder = path.parent


def test_the_readmes_figures_are_those_of_the_page() -> None:
    """Its small table has some of the rows of from-torch.md."""
    readme, page = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/from-torch.md"))
    head, _, values = re.findall(r"^\|(.*)\|$", readme, re.MULTILINE)[:3]
    shown = [value.strip().removesuffix("×") for value in values.split("|")]
    names = ["JPEGs", "Sentences", "Hugging Face `datasets`", "HDF5: rows", "Parquet", "`TensorDataset`"]
    assert len(head.split("|")) == len(names) == len(shown)
    for name, value in zip(names, shown):
        (row,) = re.findall(rf"^\| {name}[^|]*\| \d+ \| ([\d.]+) \|$", page, re.MULTILINE)
        assert row == value, name


def test_the_page_of_programs(names: dict[str, Any]) -> None:
    run_examples("docs/programs.md", names)
    losses = names["losses"]
    assert len(losses) == 3 * -(-1000 // 32)
    assert losses[-1] < 0.5 < losses[0]
    assert names["sums"].tolist() == [3, 3]


OWN_TESTS = {"programs.md", "wirehead.md"}
RECIPES = "howto.md"  # each stands alone
PAGES = sorted(
    path.name
    for path in (ROOT / "docs").glob("*.md")
    if path.name not in {*OWN_TESTS, RECIPES} and not all(map(PROGRAM.match, BLOCK.findall(path.read_text("utf-8"))))
)


@pytest.mark.parametrize("page", PAGES)
def test_a_page(page: str, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(f"docs/{page}", names)


def recipes() -> dict[str, str]:
    """By its title, the source of each, at its lines of the page."""
    text = (ROOT / "docs" / RECIPES).read_text("utf-8")
    found = {}
    for section in re.finditer(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE):
        source = ""
        for block in BLOCK.finditer(text, section.start(2), section.end(2)):
            if not PROGRAM.match(block[1]):
                source += "\n" * (text[: block.start(1)].count("\n") - source.count("\n")) + block[1]
        if source:
            found[section[1]] = source
    return found


@pytest.mark.parametrize("title", recipes())
def test_a_recipe(title: str, tmp_path: Path) -> None:
    """In a process of its own, as they import what others had better not find imported."""
    source = recipes()[title]
    skip_without(source)
    (tmp_path / "recipe.py").write_text(source)
    run(tmp_path, sys.executable, "recipe.py")
