"""What is packed and published. ``make wheels`` tests installations; here is what takes seconds."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import headrace
from headrace import sysconfig

ROOT = Path(__file__).parents[2]
PLACE = "https://example.org/someone/headrace"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / ".ci/wheels"))
    yield importlib.import_module("home")
    sys.modules.pop("home")


def test_sysconfig_of_an_editable_install(tmp_path: Path) -> None:
    """Python files stay where they are then, and an import hook finds the compiled half in another folder."""
    sources, built = tmp_path / "checkout/headrace", tmp_path / "site-packages/headrace"
    package = Path(headrace.__file__).parent
    shutil.copytree(package, sources, ignore=shutil.ignore_patterns("*.so", "include", "cmake", "__pycache__"))
    shutil.copytree(
        sysconfig.get_lib(), built, ignore=lambda _, names: [n for n in names if n.endswith((".py", "data"))]
    )
    script = (
        "import importlib.machinery, importlib.util, pathlib, sys\n"
        f"sys.path.insert(0, {str(sources.parent)!r})\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        package, _, name_within = name.rpartition('.')\n"
        f"        files = pathlib.Path({str(built)!r}).glob(name_within + '.*.so')\n"
        "        for file in files if package == 'headrace' else ():\n"
        "            return importlib.util.spec_from_file_location(name, file)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from headrace import sysconfig as own\n"
        "print(own.__file__, own.get_lib(), own.get_include(), own.get_cmake_dir(), sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250)
    assert done.stderr == ""
    file, *folders = done.stdout.splitlines()
    assert file == str(sources / "sysconfig.py")
    assert folders == [str(built), str(built / "include"), str(built / "cmake")]
    assert (built / "libheadrace.so").is_file()


def test_the_readmes_links_work_off_the_repository(home: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    relative = home.RELATIVE.findall(readme)
    assert {target.partition("#")[0] for _, target in relative} >= {"docs/guide.md", "CHANGELOG.md"}
    for _, target in relative:
        assert (ROOT / target.partition("#")[0]).exists(), target
    published = home.absolute_links(readme, PLACE, "1.2.3")
    assert f"]({PLACE}/blob/v1.2.3/docs/guide.md" in published
    assert home.RELATIVE.search(published) is None
    assert home.absolute_links(published, PLACE, "1.2.3") == published
    lone = home.absolute_links(readme, "", "1.2.3")
    assert re.search(r"\]\((?!#|[a-z]+:)", lone) is None
    assert home.absolute_links("[a](b.md) [c](#d) [e](https://f.org/)", "", "1") == "a [c](#d) [e](https://f.org/)"


def test_the_addresses_of_a_project(home: ModuleType, tmp_path: Path) -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    for place in (PLACE, ""):
        (tmp_path / "python/headrace").mkdir(parents=True, exist_ok=True)
        for name in ("README.md", "pyproject.toml", "python/headrace/__init__.py"):
            shutil.copy(ROOT / name, tmp_path / name)
        home.apply(tmp_path, place)
        before = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
        after = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))
        urls = after["project"].pop("urls", {})
        assert after == before
        assert set(urls) == ({"Homepage", "Documentation", "Source", "Changelog", "Issues"} if place else set())
        assert all(url.startswith(PLACE) for url in urls.values())


def test_the_source_distribution(tmp_path: Path) -> None:
    """It holds what a build reads and nothing that was built, and its metadata follows PEP 639."""
    pytest.importorskip("scikit_build_core", reason="of the dependency group build, see pyproject.toml")
    script = "import sys\nfrom scikit_build_core.build import build_sdist\nbuild_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, timeout=280
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
        member = file.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert member is not None
        metadata = member.read().decode().partition("\n\n")[0].splitlines()
    wanted = [
        ROOT / name for name in ("CMakeLists.txt", "LICENSE", "Makefile", "pyproject.toml", ".ci/wheels/build.py")
    ]
    for folder in ("framework", "operators", "reader", "python/bindings", "docs/examples", "tests/python"):
        wanted += [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {str(path.relative_to(ROOT)) for path in wanted} <= names
    assert [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("build/", "dist/"))] == []
    assert f"Version: {headrace.__version__}" in metadata
    assert "License-Expression: Apache-2.0 AND BSD-3-Clause AND MPL-2.0" in metadata
    for name in ("LICENSE", *(f"python/licenses/{name}.txt" for name in ("pybind11", "protobuf", "snappy", "eigen"))):
        assert f"License-File: {name}" in metadata
        assert name in names


def test_cmake_has_the_versions_of_the_package() -> None:
    text = (Path(sysconfig.get_cmake_dir()) / "HeadraceConfigVersion.cmake").read_text()
    assert f'set(PACKAGE_VERSION "{headrace.__version__}")' in text
