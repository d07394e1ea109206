"""What the documentation site is made of. ``make docs`` builds it, which finds what Sphinx warns about."""

from __future__ import annotations

import dataclasses
import importlib
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from headrace import sysconfig
from headrace.fluid import core
from headrace.wirehead import Config

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"
MODULES = sorted(path.stem for path in SITE.glob("*.py") if path.stem != "conf")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules that make the site."""
    monkeypatch.syspath_prepend(str(SITE))
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name)


PAGES = {"docs/guide.md": "guide.md", "docs/design/faults.md": "design/faults.md", "README.md": "index.md"}


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("docs/guide.md", "[a](design/faults.md#x)", "[a](design/faults.md#x)"),
        ("docs/design/faults.md", "[a](../guide.md)", "[a](../guide.md)"),
        ("docs/design/faults.md", "[a](../../README.md)", "[a](../index.md)"),
        ("README.md", "[a](docs/guide.md#samples)", "[a](guide.md#samples)"),
        ("README.md", "[a](LICENSE)", "[a](https://example.org/LICENSE)"),
        ("docs/guide.md", "[a](#samples) [b](https://x.org/y)", "[a](#samples) [b](https://x.org/y)"),
        ("docs/guide.md", "```python\nx[i](y)\n```\n[a](../LICENSE)", "```python\nx[i](y)\n```\n[a](https://example.org/LICENSE)"),
    ],
)  # fmt: skip
def test_links_lead_from_page_to_page(site: Any, path: str, before: str, after: str) -> None:
    assert site.links.rewrite(before, path, PAGES, ROOT, "https://example.org") == after


def test_links_to_other_files_are_text_without_an_address(site: Any) -> None:
    assert site.links.rewrite("see [the *text*](LICENSE).", "README.md", PAGES, ROOT, "") == "see the *text*."


@pytest.mark.parametrize("target", ["nothing.md", "docs/nothing", "../outside"])
def test_a_link_that_leads_nowhere_is_an_error(site: Any, target: str) -> None:
    with pytest.raises(site.links.BrokenLink, match=rf"README\.md: there is no {target}"):
        site.links.rewrite(f"[a]({target})", "README.md", PAGES, ROOT, "")


def test_the_pages_are_staged(site: Any, tmp_path: Path) -> None:
    """With every link of every page, and what a former build has left removed."""
    (tmp_path / "old.md").write_text("# Of a page that was renamed")
    site.build.stage(tmp_path, "")
    staged = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {
        "index.md",
        "guide.md",
        "tutorials/torch.md",
        "changelog.md",
        "design/faults.md",
        "design/transport.svg",
        "reference/operators.md",
    } <= staged
    assert "old.md" not in staged
    assert "<i style=" in (tmp_path / "index.md").read_text("utf-8")
    before = (tmp_path / "guide.md").stat().st_mtime_ns
    site.build.stage(tmp_path, "")
    assert (tmp_path / "guide.md").stat().st_mtime_ns == before


def test_the_chart_shows_the_pages_figures(site: Any) -> None:
    chart = site.figures.chart(
        f"{site.figures.HEAD}\n| --- | --- | --- |\n| a `b` <c> | 64 | 2 |\n| d | 32 | 8 |\n\nend"
    )
    assert "a b &lt;c&gt;" in chart
    assert re.findall(r'width:([\d.]+)%"></i>(\d+)', chart) == [("20.0", "2"), ("80.0", "8")]
    with pytest.raises(ValueError, match="no table"):
        site.figures.chart("# A guide without figures")


def test_a_timeline_is_drawn_from_a_trace(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.pictures, "PICTURES", tmp_path)
    site.pictures.timeline()
    drawn = ElementTree.parse(tmp_path / "timeline.svg").getroot()
    spans = [span.get("class") for span in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert {"page", "sample", "slow", "use"} <= set(spans)
    assert spans.count("sample") > 16


def test_each_picture_is_shown(site: Any) -> None:
    shown = {
        name for page in site.build.DOCS.glob("*.md") for name in re.findall(r"\(pictures/(.+?)\)", page.read_text())
    }
    assert shown == {path.name for path in site.pictures.PICTURES.iterdir()}


def test_operators_are_described_as_the_registry_declares_them(site: Any) -> None:
    page = site.registry_reference.operators()
    for name in core.op_types():
        gradient = name.endswith("_grad") and name.removesuffix("_grad") in core.op_types()
        assert (f"\n## {name}\n" in page) != gradient, name
    section = page.partition("\n## dropout\n")[2].partition("\n## ")[0]
    assert "**dtypes:** float32, float64 · **gradient:** yes" in section
    assert re.search(r"^\| input \| `Seed` \| int32 or int64 .* \(optional\) \|$", section, re.MULTILINE)
    assert "| attribute | `dropout_prob` | double, default `0.5`: probability of being set to zero |" in section
    assert "**gradient:** no" in page.partition("\n## arg_max\n")[2].partition("\n## ")[0]


def test_every_configuration_key_is_described(site: Any) -> None:
    page = site.registry_reference.configuration()
    for field in dataclasses.fields(Config):
        row = next(line for line in page.splitlines() if line.startswith(f"| `{field.name.upper()}` |"))
        assert len(row.split(" | ")[-1]) > 10, row


def test_commands_are_shown_with_their_help(site: Any) -> None:
    page = site.registry_reference.commands()
    for command in site.registry_reference.COMMANDS:
        assert f"usage: python -m {command} " in page


def test_headers_are_shown_with_their_comments(site: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.h"
    path.write_text("// Adds *numbers*.\n//\n//   Add(1, 2);\n#pragma once\n\n#include <x>\n\nint Add(int, int);\n")
    text = site.source_reference.header(path, "a.h")
    assert text == "## a.h\n\nAdds \\*numbers\\*.\n\n    Add(1, 2);\n\n````cpp\nint Add(int, int);\n````\n"
    every = "".join(site.source_reference.headers().values())
    for path in Path(sysconfig.get_include()).rglob("*.h"):
        assert str(path.relative_to(sysconfig.get_include())) in every


def _included(header: Path) -> set[str]:
    return set(re.findall(r'^#include "([^"]+)"', header.read_text(), re.MULTILINE))


def test_the_headers_that_are_shown_are_installed_with_what_they_include(site: Any) -> None:
    include = Path(sysconfig.get_include())
    needed: set[str] = set()
    more = {name for names in site.source_reference.HEADERS.values() for name in names}
    while more:
        needed |= more
        more = {name for header in more for name in _included(include / header)} - needed
    assert needed == {str(path.relative_to(include)) for path in include.rglob("*.h")}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_each_header_that_is_shown_compiles_alone(site: Any, tmp_path: Path) -> None:
    sources = []
    for number, name in enumerate(name for names in site.source_reference.HEADERS.values() for name in names):
        own = (ROOT / name).with_suffix(".cc")
        if own.exists():
            # The build compiles it.
            assert re.findall(r"^#include .*$", own.read_text(), re.MULTILINE)[0] == f'#include "{name}"'
            continue
        sources.append(tmp_path / f"{number}.cc")
        sources[-1].write_text(f'#include "{name}"\n')
    assert sources
    options = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", f"-I{sysconfig.get_include()}"]
    command = ["g++", *options, "-isystem", "/usr/include/eigen3", *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_several_modules_have_is_described_once(site: Any) -> None:
    pages = site.python_reference.pages()
    assert ".. autoclass:: LoDTensor\n" in pages["reference/loader.md"]
    assert ".. autoclass:: LoDTensor\n" not in pages["reference/fluid-core.md"]
    assert "{py:obj}`LoDTensor <headrace.LoDTensor>`" in pages["reference/fluid-core.md"]


def test_public_names_that_the_site_lacks_are_found(site: Any, tmp_path: Path) -> None:
    reference = site.python_reference
    modules = [*(module for module, _ in reference.MODULES.values()), reference.LAYERS]
    names = {f"{name}.{each}" for name in modules for each in reference.public_names(importlib.import_module(name))}
    lines = "\n".join(f"{name} py:class 1 reference/x.html#$ -" for name in sorted(names))
    packed = zlib.compress(f"{lines}\nguide std:doc -1 guide.html -\n".encode())
    (tmp_path / "objects.inv").write_bytes(
        b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# zlib\n" + packed
    )
    described = reference.described(tmp_path)
    assert described == names
    assert reference.undescribed(described) == ["headrace.torch.DataLoader"]
    described |= {"headrace.torch.DataLoader"}
    # Not those that are described under another name.
    assert reference.undescribed(described - {"headrace.fluid.core.LoDTensor"}) == []
    lost = {"headrace.data.Ragged", "headrace.fluid.layers.fc"}
    assert set(reference.undescribed(described - lost)) == lost
