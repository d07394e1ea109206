"""The folders of the package that a C++ build against it needs; ``paddle.sysconfig`` has the same functions.

::

    cmake -S . -B build -DHeadrace_DIR=$(python -m headrace.sysconfig --cmake-dir)
"""

from __future__ import annotations

import argparse
from pathlib import Path

import headrace._core as _core

__all__ = ["get_cmake_dir", "get_include", "get_lib"]

# The folder of the compiled half: an editable install keeps it, and the files installed with it, apart from this file.
_PACKAGE = Path(_core.__file__).resolve().parent


def get_include() -> str:
    """The folder to search for headers such as ``framework/op_registry.h``."""
    return str(_PACKAGE / "include")


def get_lib() -> str:
    """The folder of ``libheadrace.so``."""
    return str(_PACKAGE)


def get_cmake_dir() -> str:
    """The folder of ``HeadraceConfig.cmake``, which defines the target ``Headrace::headrace``."""
    return str(_PACKAGE / "cmake")


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m headrace.sysconfig", description="Prints the folders needed to build C++ code against Headrace."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    for flag, function, of in (
        ("--include", get_include, "the headers"),
        ("--lib", get_lib, "libheadrace.so"),
        ("--cmake-dir", get_cmake_dir, "HeadraceConfig.cmake"),
    ):
        which.add_argument(flag, action="store_const", const=function, dest="which", help=f"print the folder of {of}")
    print(parser.parse_args().which())


if __name__ == "__main__":
    _main()
