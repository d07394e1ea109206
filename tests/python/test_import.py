"""Importing: what it costs, who imports whom, other libraries beside it, and what a wheel brings along."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

PEERS = [name for name in ("torch", "paddle", "tensorflow") if importlib.util.find_spec(name) is not None]


def run(script: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout, check=False)


def test_a_processor_without_what_the_kernels_need_is_told_how_to_rebuild() -> None:
    done = run(
        "import sys, types\n"
        "sys.modules['headrace._cpu'] = types.SimpleNamespace(missing=lambda: 'AVX2, FMA', MARCH='x86-64-v3')\n"
        "import headrace"
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError:")
    assert "AVX2, FMA" in last
    assert "cmake.define.HEADRACE_MARCH=x86-64" in last


def test_importing_is_quiet_and_light() -> None:
    done = run(
        "import sys, headrace\n"
        "print(sorted({'torch', 'jax', 'tensorflow', 'paddle', 'scipy'} & set(sys.modules)))\n"
        "print([name for name in sys.modules if name.startswith(('headrace.fluid', 'headrace.wirehead'))])\n"
        "print(headrace.DataLoader.__name__, headrace.__version__)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[]", "[]", f"DataLoader {headrace.__version__}"]


def test_all_modules_import_without_docstrings() -> None:
    """``python -OO`` and ``PYTHONOPTIMIZE=2`` remove them, and assertions."""
    needless = ("headrace.torch", "headrace.__main__", "headrace.wirehead.__main__")
    names = [name for name in modules_under(installed()) if not name.startswith(needless)]
    script = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-OO", "-c", script, *names], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_pytorch_its_loader_says_what_to_install() -> None:
    done = run("import sys\nsys.modules['torch'] = None\nimport headrace\nheadrace.torch")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: headrace.torch needs PyTorch")
    assert "pip install torch" in last


@pytest.mark.parametrize("name", ["fluid", "reader", "wirehead"])
def test_a_subpackage_is_imported_when_it_is_first_used(name: str) -> None:
    done = run(
        "import sys, headrace\n"
        f"print({name!r} in dir(headrace), 'headrace.{name}' in sys.modules)\n"
        f"print(headrace.{name} is sys.modules['headrace.{name}'])\n"
    )
    assert (done.stdout.splitlines(), done.stderr) == (["True False", "True"], "")


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'layers'"):
        _ = headrace.layers


@pytest.mark.parametrize(
    ("name", "instead"), [("batch", "headrace.fluid.io.batch"), ("dataset", "headrace.DataLoader")]
)
def test_names_of_paddle_name_what_takes_their_place(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=f"^headrace has no {name}: .*{instead}"):
        getattr(headrace, name)


def test_only_names_for_users_are_listed() -> None:
    listed = [name for name in dir(headrace) if not name.startswith("_")]
    assert listed == sorted({*headrace.__all__, "data", "fluid", "reader", "torch", "wirehead"})


def installed() -> Path:
    return Path(headrace.__file__).parent


def modules_under(root: Path) -> dict[str, Path]:
    """The modules of the package in the folder ``root``, by name. Of extension modules there is a stub."""
    modules = {}
    for path in [*root.rglob("*.py"), *root.rglob("*.pyi")]:
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


@functools.cache
def import_graph(root: Path) -> dict[str, set[str]]:
    """What each module of the package in ``root`` imports of that package, be it in a function, or for type checkers
    alone. A sub-module stands for itself alone, not for the packages around it, which Python has imported before.
    """
    modules = modules_under(root)
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        if path.suffix == ".pyi":
            continue
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for statement in ast.walk(ast.parse(path.read_text("utf-8"))):
            found: set[str] = set()
            if isinstance(statement, ast.Import):
                found = {alias.name for alias in statement.names}
            elif isinstance(statement, ast.ImportFrom):
                source = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
                found = {
                    joined if (joined := f"{source}.{alias.name}") in modules else source for alias in statement.names
                }
            graph[name] |= found & set(modules)
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import one another in a circle; empty if there are none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize(
    ("b", "found"),
    [
        ("import package.a", True),
        ("from package import a", True),
        ("from . import a", True),
        ("from package.a import name", True),
        ("def function():\n    from package import a", True),
        ("try:\n    import package.a\nexcept ImportError:\n    pass", True),
        ("if TYPE_CHECKING:\n    from package import a", True),
        ("from package import c", False),
        ("import a", False),
    ],
)
def test_a_circle_is_found(tmp_path: Path, b: str, found: bool) -> None:
    root = tmp_path / "package"
    root.mkdir()
    for name, text in {"__init__": "", "a": "from package.b import name", "b": b, "c": ""}.items():
        (root / f"{name}.py").write_text(text)
    assert bool(circle(import_graph(root))) == found


@pytest.mark.parametrize(
    "package",
    ["headrace.data", "headrace.fluid", "headrace.torch", "headrace.wirehead"],
)
def test_no_modules_import_one_another_in_a_circle(package: str) -> None:
    graph = import_graph(installed())
    inside = {name for name in graph if f"{name}.".startswith(f"{package}.")}
    assert package in inside
    assert circle({name: graph[name] & inside for name in inside}) == []


@pytest.mark.parametrize(
    ("package", "some"),
    [
        ("headrace.data", {"_samples", "_datasets", "_workers", "_iteration"}),
        ("headrace.wirehead", {"_stores", "_format", "_protocol", "_datasets", "_command_line", "_benchmarks"}),
    ],
)
def test_no_folders_import_one_another_in_a_circle(package: str, some: set[str]) -> None:
    graph = import_graph(installed())
    rooms: dict[str, set[str]] = {}
    for name in graph:
        if name.startswith(f"{package}."):
            room = rooms.setdefault(name.split(".")[2], set())
            room |= {other.split(".")[2] for other in graph[name] if other.startswith(f"{package}.")}
    assert some <= set(rooms)
    assert circle({room: others - {room} for room, others in rooms.items()}) == []


SHARED = {
    "headrace._core",
    "headrace._next_items",
    "headrace._process_group",
    "headrace._standard_output",
    "headrace._traced",
    "headrace._waiting",
    "headrace._warnings",
    "headrace._weak_collections",
    "headrace._wording",
    "headrace.errors",
}


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("headrace.data", set()),
        ("headrace.fluid", {"headrace.reader"}),
        ("headrace.reader", {"headrace.data"}),
        (
            "headrace.torch",
            {"headrace.data"}
            | {f"headrace.data.{module}" for module in ("_argument_checks", "_config", "_world")}
            | {f"headrace.data._iteration.{module}" for module in ("iterator", "state")}
            | {f"headrace.data._samples.{module}" for module in ("collation", "torch_collation")},
        ),
        ("headrace.wirehead", {"headrace", "headrace.data", "headrace.fluid"}),
    ],
)
def test_packages_import_only_what_they_may(package: str, others: set[str]) -> None:
    graph = import_graph(installed())
    own = {name for name in graph if f"{name}.".startswith(f"{package}.")}
    imported = set().union(*(graph[name] for name in own)) - own
    assert imported
    assert imported <= SHARED | others


# Each alone, and all together (paddle before tensorflow: the other way round they crash without us).
GROUPS = [[name] for name in PEERS] + ([PEERS] if len(PEERS) > 1 else [])
ORDERS = [order for group in GROUPS for order in (["headrace", *group], [*group, "headrace"])]


@pytest.mark.skipif(not PEERS, reason="none of torch, tensorflow and paddle is installed")
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_it_works_beside_others_in_any_order_of_import(order: list[str]) -> None:
    imports = "\n".join(f"import {name}" for name in order)
    done = run(
        f"{imports}\n"
        "import numpy as np\n"
        "import headrace.fluid as fluid\n"
        "x = fluid.layers.data('x', [2])\n"
        "out = fluid.layers.fc(x, 1, bias_attr=False)\n"
        "exe = fluid.Executor()\n"
        "exe.run(fluid.default_startup_program())\n"
        "binary = fluid.default_main_program().serialize_to_string()\n"
        "program = fluid.Program.parse_from_string(binary)\n"
        "print(exe.run(program, feed={'x': np.ones((3, 2), np.float32)}, fetch_list=[out.name])[0].shape)\n",
        timeout=280,  # on a busy machine, the others take minutes
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "(3, 1)"
