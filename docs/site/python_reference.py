"""Pages of Python modules: a table of the public names, then each with its docstring, which Sphinx fills in."""

from __future__ import annotations

import importlib
import re
import sys
import types
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from markdown_text import from_docstring, table, toctree

# Pages: module, title.
MODULES = {
    "loader": ("headrace", "The loader"),
    "data": ("headrace.data", "Datasets, samplers, collation"),
    "errors": ("headrace.errors", "Exceptions"),
    "reader": ("headrace.reader", "Sample readers"),
    "reader-creator": ("headrace.reader.creator", "Sample readers of files and arrays"),
    "wirehead": ("headrace.wirehead", "Wirehead"),
    "wirehead-compat": ("headrace.wirehead.compat", "Wirehead 0.9's names"),
    "testing": ("headrace.testing", "Tests of operators"),
    "testing-strategies": ("headrace.testing.strategies", "Hypothesis strategies"),
    "sysconfig": ("headrace.sysconfig", "Folders for C++ builds"),
    "fluid-programs": ("headrace.fluid", "Programs, executors, places"),
    "fluid-optimizer": ("headrace.fluid.optimizer", "Optimizers"),
    "fluid-initializer": ("headrace.fluid.initializer", "Initializers"),
    "fluid-regularizer": ("headrace.fluid.regularizer", "Weight decay"),
    "fluid-clip": ("headrace.fluid.clip", "Gradient clipping"),
    "fluid-backward": ("headrace.fluid.backward", "Gradients"),
    "fluid-io": ("headrace.fluid.io", "Saving and loading"),
    "fluid-nets": ("headrace.fluid.nets", "Combinations of layers"),
    "fluid-metrics": ("headrace.fluid.metrics", "Metrics in NumPy"),
    "fluid-evaluator": ("headrace.fluid.evaluator", "Metrics in programs"),
    "fluid-average": ("headrace.fluid.average", "Averages"),
    "fluid-profiler": ("headrace.fluid.profiler", "Profiler"),
    "fluid-recordio": ("headrace.fluid.recordio_writer", "RecordIO files"),
    "fluid-unique-name": ("headrace.fluid.unique_name", "Unique names"),
    "fluid-contrib": ("headrace.fluid.contrib", "Contributions"),
    "fluid-contrib-layers": ("headrace.fluid.contrib.layers", "Contributed layers"),
    "fluid-core": ("headrace.fluid.core", "The C++ core"),
}
LAYERS = "headrace.fluid.layers"
# It derives from a class of torch's, which Sphinx does without.
TORCH = """\
# The drop-in for PyTorch

Module `headrace.torch`. It needs PyTorch 2.6 or newer.

```{eval-rst}
.. autoclass:: headrace.torch.DataLoader
   :members:
```
"""
FLUID = """\
# Programs, layers, optimizers

Each name is where Fluid 1.x has it. [Which of Fluid's names are here](../fluid-names.md) is a page of its own.

"""


class Shown:
    """What pages have described so far: what is public in several modules is described where it comes first."""

    def __init__(self) -> None:
        self._places: dict[int, str] = {}

    def elsewhere(self, value: Any, module: str) -> str:
        """The name under which another module's page describes this; empty if none does."""
        place = self._places.get(id(value), "")
        return "" if place.rpartition(".")[0] == module else place

    def add(self, value: Any, name: str) -> None:
        if callable(value):
            self._places.setdefault(id(value), name)


def public_names(module: types.ModuleType) -> list[str]:
    """Those that ``from module import *`` gives, without modules, which have pages of their own."""
    return [name for name in module.__all__ if not isinstance(getattr(module, name), types.ModuleType)]


def page(title: str, module: str, names: Iterable[str], shown: Shown) -> str:
    found = importlib.import_module(module)
    others = {name: shown.elsewhere(getattr(found, name), module) for name in names}
    own = [name for name in others if not others[name]]
    lines = [f".. currentmodule:: {module}", "", ".. autosummary::", "   :nosignatures:", ""]
    lines += [f"   {name}" for name in own]
    for name in own:
        value = getattr(found, name)
        shown.add(value, f"{module}.{name}")
        if isinstance(value, type):
            kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
            lines += ["", f".. {kind}:: {name}", "   :members:", "   :show-inheritance:"]
        else:
            lines += ["", f".. {'autofunction' if callable(value) else 'autodata'}:: {name}"]
    links = ", ".join(f"{{py:obj}}`{name} <{place}>`" for name, place in others.items() if place)
    intro = f"Module `{module}`." + (f" Also here: {links}." if links else "")
    text = "\n".join(lines)
    return f"# {title}\n\n{intro}\n\n```{{eval-rst}}\n{text}\n```\n"


def layer_groups() -> dict[str, list[str]]:
    """The public layers by the module that defines them, the largest first."""
    layers = importlib.import_module(LAYERS)
    groups: dict[str, list[str]] = {}
    for name in sorted(public_names(layers), key=str.lower):
        groups.setdefault(getattr(layers, name).__module__, []).append(name)
    return dict(sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])))


def first_sentence(module: str) -> str:
    doc = " ".join((importlib.import_module(module).__doc__ or "").split())
    return from_docstring(re.split(r"(?<=[.:])\s", doc, maxsplit=1)[0].rstrip(":."))


def pages() -> dict[str, str]:
    made, shown = {"reference/torch.md": TORCH}, Shown()
    rows: list[list[str]] = []
    below: list[str] = []
    for name, (module, title) in MODULES.items():
        made[f"reference/{name}.md"] = page(title, module, public_names(importlib.import_module(module)), shown)
        if module.startswith("headrace.fluid"):
            rows.append([f"[`{module.removeprefix('headrace.')}`]({name}.md)", title])
            below.append(name)
    for group, names in layer_groups().items():
        title = group.removeprefix(f"{LAYERS}.").replace("_", " ").replace(".", ", ")
        name = f"layers-{re.sub(r'[^a-z0-9]+', '-', title)}"
        made[f"reference/{name}.md"] = page(f"Layers: {title}", LAYERS, names, shown)
        rows.append([f"[`fluid.layers`: {title}]({name}.md)", f"{first_sentence(group)} ({len(names)})"])
        below.append(name)
    made["reference/fluid.md"] = FLUID + table(("Module", "Contents"), rows) + "\n" + toctree(below)
    return made


def described(html: Path) -> set[str]:
    """The Python names that a built site describes, which Sphinx lists in ``objects.inv``."""
    packed = (html / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return set(re.findall(r"^(\S+) py:\w+ ", zlib.decompress(packed).decode(), re.MULTILINE))


def undescribed(names: set[str]) -> list[str]:
    """Public names that are not among these, and whose objects have no other name among them."""
    objects = set()
    for name in names:
        module, _, last = name.rpartition(".")
        if module in sys.modules:
            objects.add(id(getattr(sys.modules[module], last, None)))
    missing = []
    for module in [*(module for module, _ in MODULES.values()), LAYERS]:
        found = importlib.import_module(module)
        for name in public_names(found):
            if f"{module}.{name}" not in names and id(getattr(found, name)) not in objects:
                missing.append(f"{module}.{name}")
    return missing + sorted({"headrace.torch.DataLoader"} - names)
