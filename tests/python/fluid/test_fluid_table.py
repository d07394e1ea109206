"""The page that says which names of Fluid 1.6 are supported."""

from __future__ import annotations

import copy
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import headrace.fluid as fluid
from headrace.fluid._refused import REFUSED

DOCS = Path(__file__).parents[3] / "docs"


def _table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fluid_names", DOCS / "fluid_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = _table()


def stated() -> dict[str, str]:
    """What the page says of each name: "supported", "different" or "refused"."""
    said, part = {}, ""
    for line in TABLE.PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            part = line.removeprefix("## ")
        elif line.startswith("Supported: "):
            said.update({f"{part}.{name}": "supported" for name in re.findall(r"`(\w+)`", line)})
        elif row := re.match(r"\| `(\w+)` \| (\w+) \|", line):
            said[f"{part}.{row[1]}"] = row[2]
    return said


def owner(name: str) -> tuple[object, str]:
    *path, last = name.split(".")[1:]
    found: object = fluid
    for step in path:
        found = fluid.Program() if step == "Program" else getattr(found, step)
    return found, last


def test_the_page_is_what_the_script_writes() -> None:
    assert TABLE.PAGE.read_text(encoding="utf-8") == TABLE.page(), "run: python docs/fluid_names.py"


def test_the_page_has_every_name() -> None:
    said = stated()
    assert len(said) >= 503
    assert set(said.values()) == {"supported", "different", "refused"}


@pytest.mark.parametrize("name", sorted(name for name, what in stated().items() if what != "refused"))
def test_a_name_that_is_here_can_be_used(name: str) -> None:
    found, last = owner(name)
    assert hasattr(found, last)


@pytest.mark.parametrize("name", sorted(name for name, what in stated().items() if what == "refused"))
def test_a_name_that_is_refused_says_what_to_do(name: str) -> None:
    found, last = owner(name)
    with pytest.raises(AttributeError, match=rf"has no {last}: \w+ .{{10}}"):
        getattr(found, last)


def test_importing_what_is_refused_says_what_to_do() -> None:
    for part in ("fluid", "layers", "contrib", "transpiler"):
        package = "headrace.fluid" if part == "fluid" else f"headrace.fluid.{part}"
        for name in REFUSED[part]:
            for statement in (f"import {package}.{name}", f"from {package} import {name}"):
                with pytest.raises(ImportError, match=rf"^{package} has no {name}: \w+ .{{10}}"):
                    exec(statement, {})
    with pytest.raises(ImportError, match=r"headrace\.fluid has no dygraph: layers are added to a program"):
        exec("from headrace.fluid.dygraph.nn import Conv2D", {})
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from headrace.fluid import nonsense", {})
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'headrace\.fluid\.nonsense'"):
        exec("import headrace.fluid.nonsense", {})


def test_names_that_programs_find_where_fluid_has_them_by_accident() -> None:
    from headrace.fluid.contrib.mixed_precision.decorator import OptimizerWithMixedPrecison
    from headrace.fluid.layers import core

    assert core.VarDesc is fluid.core_avx.VarDesc is fluid.core.VarDesc
    assert OptimizerWithMixedPrecison is fluid.contrib.mixed_precision.OptimizerWithMixedPrecision
    names = copy.deepcopy(fluid.unique_name.generator)
    assert fluid.unique_name.generate("fc") == names("fc")
    with fluid.unique_name.guard(names):
        assert fluid.unique_name.generator is names
    assert fluid.unique_name.generator is not names


def test_what_serves_models_in_fluid_says_what_does_so_here() -> None:
    with pytest.raises(AttributeError, match=r"headrace\.fluid\.core has no AnalysisConfig: .*load_inference_model"):
        fluid.core.AnalysisConfig("model")


def test_what_is_refused_is_not_there() -> None:
    for part, names in REFUSED.items():
        found = fluid if part == "fluid" else getattr(fluid, part)
        for name in names:
            assert not hasattr(found, name), name
        with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
            _ = found.nonsense
