"""The types of the drop-in, as type checkers see them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import headrace

PROGRAM = Path(__file__).with_name("typed_program.py")
PACKAGE = Path(headrace.__file__).parents[1]
COMMANDS = {
    "mypy": ["--config-file=", "--strict", "--cache-dir"],
    "pyright": ["--pythonpath", sys.executable, "--project"],
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checker", sorted(COMMANDS))
def test_a_typed_program_passes(checker: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    paths = {} if PACKAGE.name == "site-packages" else {"MYPYPATH": str(PACKAGE)}
    command = [sys.executable, "-m", checker, *COMMANDS[checker], str(tmp_path), str(PROGRAM)]
    done = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_runs() -> None:
    subprocess.run([sys.executable, str(PROGRAM)], check=True)
