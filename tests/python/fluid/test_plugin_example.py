"""docs/examples/plugin, built and run as a user of the installed package would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import sysconfig

EXAMPLE = Path(__file__).parents[3] / "docs/examples/plugin"
PAGE = Path(__file__).parents[3] / "docs/operator-libraries.md"
pytestmark = pytest.mark.timeout(1000)  # compiling takes minutes on a busy machine
FAST = "-DCMAKE_CXX_FLAGS_RELEASE=-O0"  # to be compiled
STRICT = "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def where(flag: str) -> str:
    return run(sys.executable, "-m", "headrace.sysconfig", flag).strip()


def test_sysconfig_names_folders() -> None:
    assert where("--include") == sysconfig.get_include()
    assert where("--lib") == sysconfig.get_lib()
    assert where("--cmake-dir") == sysconfig.get_cmake_dir()
    assert (Path(sysconfig.get_lib()) / "libheadrace.so").exists()
    assert (Path(sysconfig.get_include()) / "framework/op_registry.h").exists()
    assert (Path(sysconfig.get_include()) / "framework/testing/op_test.h").exists()


@pytest.mark.skipif(not Path(sysconfig.get_cmake_dir()).exists(), reason="not installed from a wheel")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed")
def test_the_example_is_built_loaded_checked_and_trained(tmp_path: Path) -> None:
    run("cmake", "-S", str(EXAMPLE), "-B", str(tmp_path), f"-DHeadrace_DIR={where('--cmake-dir')}", FAST, STRICT)
    run("cmake", "--build", str(tmp_path))
    lines = run(sys.executable, str(EXAMPLE / "mish.py"), str(tmp_path / "libmish.so")).splitlines()
    assert lines[0] == "operators: mish, mish_grad"
    if (tmp_path / "mish_test").exists():  # GoogleTest is installed
        assert "100% tests passed" in run("ctest", "--test-dir", str(tmp_path))
    first, last = lines[1].removeprefix("loss ").split(" -> ")
    assert float(last) < float(first) / 10


@pytest.mark.skipif(not Path(sysconfig.get_cmake_dir()).exists(), reason="not installed from a wheel")
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_the_command_of_the_page_builds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = re.findall(r"^g\+\+ .*libmish\.so.*$", PAGE.read_text("utf-8"), re.MULTILINE)
    shutil.copy(EXAMPLE / "mish_op.cc", tmp_path)
    (tmp_path / "python").symlink_to(sys.executable)  # which the command calls by that name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    run("sh", "-c", command)
    lines = run(sys.executable, str(EXAMPLE / "mish.py"), str(tmp_path / "libmish.so")).splitlines()
    assert lines[0] == "operators: mish, mish_grad"
