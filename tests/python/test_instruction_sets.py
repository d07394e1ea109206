"""Which library of kernels is loaded where a package has several. smoke.py in .ci/wheels tests wheels that have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import _cpu, sysconfig

LIBRARY = "import headrace, headrace._about as about; print(about.library())"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that has a folder for further libraries, and none there."""
    copy = tmp_path / "headrace"
    ignored = shutil.ignore_patterns("include", "__pycache__")
    shutil.copytree(Path(headrace.__file__).parent, copy, ignore=ignored)
    for file in Path(sysconfig.get_lib()).glob("*.so"):
        shutil.copy(file, copy)
    (copy / "glibc-hwcaps").mkdir()
    return copy


def run(package: Path, march: str | None, script: str = LIBRARY) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_MARCH"}
    environment["PYTHONPATH"] = str(package.parent)
    if march is not None:
        environment["HEADRACE_MARCH"] = march
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=250)


@pytest.mark.parametrize("march", [None, "", _cpu.MARCH])
def test_the_library_that_suits_the_processor(package: Path, march: str | None) -> None:
    done = run(package, march)
    assert (done.stdout.strip(), done.stderr) == (str(package / "libheadrace.so"), "")


def test_an_instruction_set_that_no_library_has(package: Path) -> None:
    last = run(package, "i386").stderr.strip().splitlines()[-1]
    assert last == f"ImportError: HEADRACE_MARCH=i386: expected {_cpu.MARCH}"


def test_a_library_that_is_missing(package: Path) -> None:
    (package / "libheadrace.so").unlink()
    last = run(package, None).stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "libheadrace.so" in last


def test_the_variable_has_no_effect_where_there_is_one_library() -> None:
    done = run(Path(headrace.__file__).parent, "i386")
    assert done.returncode == 0
