"""Programs that the documents print, to be started as their readers start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import headrace

DOCS = Path(__file__).parents[2] / "docs"
# As the program would, if this were the platform's start method.
START = """
import multiprocessing, runpy, sys
multiprocessing.set_start_method(sys.argv.pop(1))
del sys.argv[0]
sys.path[0] = "."
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def write_programs(document: str, folder: Path) -> list[str]:
    """Writes all blocks of a document that begin with the name of a file; returns these names."""
    text = (DOCS / document).read_text("utf-8")
    found = re.findall(r"^```(?:python|cpp|cmake)\n(?:#|//) (\S+\.\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for name, program in found:
        (folder / name).write_text(program)
    return [name for name, _ in found]


def write_program(document: str, name: str, folder: Path) -> Path:
    assert name in write_programs(document, folder)
    return folder / name


def environment(**more: str) -> dict[str, str]:
    """Of a program that uses this package; its commands say python."""
    package = str(Path(headrace.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PYTHONPATH": path, "PATH": programs, "OMP_NUM_THREADS": "1", **more}


def run(folder: Path, *command: str, status: int = 0, **more: str) -> str:
    """Runs a command and returns what it prints."""
    done = subprocess.run(
        command, cwd=folder, env=environment(**more), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def run_program(folder: Path, start: str, name: str, *arguments: str, status: int = 0, **more: str) -> str:
    """Runs a Python program whose processes start by this method."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-c", START, start, name, *arguments]
    return run(folder, *command, status=status, **more)
