"""Builds a library of operators and a C++ program against headrace as a wheel and ``cmake --install`` install it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PROGRAM = """\
cmake_minimum_required(VERSION 3.22)
project(Program LANGUAGES CXX)
find_package(Headrace REQUIRED)
find_package(Threads REQUIRED)
add_executable(program {source})
target_link_libraries(program PRIVATE Headrace::headrace Threads::Threads)
"""


def run(*command: str | Path, **more: object) -> str:
    print("+", *command, flush=True)
    done = subprocess.run([str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE, **more)  # type: ignore[call-overload]
    return str(done.stdout).strip()


def build(source: Path, folder: Path, package: str) -> None:
    run("cmake", "-S", source, "-B", folder, f"-DHeadrace_DIR={package}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", folder)


def test_program(source: Path, folder: Path, package: str) -> None:
    """A C++ program trains, without Python."""
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "CMakeLists.txt").write_text(
        PROGRAM.format(source=source / "docs/examples/cpp/train_from_cpp.cc")
    )
    build(folder / "source", folder / "build", package)
    run(folder / "build" / "program", cwd=folder)


def test_python(source: Path, folder: Path, python: Path) -> None:
    """A library of operators is built where ``headrace.sysconfig`` says, loaded, and trains; and so does a program."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    package = run(python, "-m", "headrace.sysconfig", "--cmake-dir", cwd=folder, env=plain)
    for flag, file in (("--include", "framework/op_registry.h"), ("--lib", "libheadrace.so")):
        place = Path(run(python, "-m", "headrace.sysconfig", flag, cwd=folder, env=plain))
        assert (place / file).is_file(), place
    example = source / "docs/examples/plugin"
    build(example, folder / "plugin", package)
    print(run(python, example / "mish.py", folder / "plugin" / "libmish.so", cwd=folder, env=plain))
    test_program(source, folder / "program", package)
