"""The types of the loader and its attributes, as type checkers see them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.data import DataLoader
from headrace.data._config import ARGUMENT_NAMES

PROGRAM = Path(__file__).with_name("typed_program.py")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mypy's, of all that it has read of the package."""
    return tmp_path_factory.mktemp("mypy")


def checked(program: Path, cache: Path) -> str:
    """What mypy says of a program."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    package = Path(headrace.__file__).parents[1]
    paths = {} if package.name == "site-packages" else {"MYPYPATH": str(package)}
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--cache-dir", str(cache), str(program)]
    return subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=False).stdout


def test_a_typed_program_passes(cache: Path) -> None:
    assert "Success" in checked(PROGRAM, cache)
    subprocess.run([sys.executable, str(PROGRAM)], check=True)


def test_what_a_loader_lacks_is_an_error(tmp_path: Path, cache: Path) -> None:
    program = tmp_path / "program.py"
    text = "import headrace\nloader = headrace.DataLoader([1])\nloader.nothing\nname: str = loader.batch_size\n"
    program.write_text(text)
    said = checked(program, cache)
    assert 'program.py:3: error: "DataLoader[Any]" has no attribute "nothing"' in said
    assert "program.py:4: error: Incompatible types" in said
    assert "Found 2 errors" in said


def test_every_argument_is_an_attribute() -> None:
    loader = DataLoader([1, 2, 3], seed=3)
    assert all(hasattr(DataLoader, name) for name in ARGUMENT_NAMES)
    for name in ARGUMENT_NAMES:
        before = getattr(loader, name)
        with pytest.raises(ValueError, match=f"{name} cannot be changed"):
            setattr(loader, name, before)
    with pytest.raises(AttributeError, match="nothing"):
        loader.nothing  # type: ignore[attr-defined]  # noqa: B018
