"""Builds the libraries that libheadrace.so contains, from the source packages of the Debian distribution: the releases
that are installed.

    python .ci/libraries.py FOLDER [--toolchain FILE]

They are static, position-independent, and hidden once they are linked. The system's own do not serve. Its static ones
are not position-independent. Symbols of its shared ones give way to those of other releases that a package has brought
into the process: after TensorFlow has been imported, they crash. They also need this system's C library, where wheels
are to run on older ones. FOLDER becomes a prefix for CMAKE_PREFIX_PATH.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

# By the package that is installed, the options and the target that CMake builds of its source.
LIBRARIES = {
    "libprotobuf-dev": (
        (
            "protobuf_BUILD_TESTS=OFF",
            "protobuf_BUILD_PROTOC_BINARIES=OFF",
            "protobuf_WITH_ZLIB=OFF",
            f"CMAKE_PROJECT_protobuf_INCLUDE={Path(__file__).resolve().with_name('protobuf.cmake')}",
            "CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",  # -O3 takes half as long again to compile
        ),
        "libprotobuf",  # and not the lite one, too
    ),
    "libsnappy-dev": (("SNAPPY_BUILD_TESTS=OFF", "SNAPPY_BUILD_BENCHMARKS=OFF"), "install"),
}
# Where apt keeps which packages there are.
SOURCES = (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*"))


def output(*command: str | Path, **more: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE, **more).stdout  # type: ignore[call-overload, no-any-return]


def source_options(folder: Path) -> list[str]:
    """Options with which apt, as any user, knows the sources of the distribution's packages."""
    lists = folder / "sources.list.d"
    (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    lists.mkdir(exist_ok=True)
    for path in SOURCES:
        if path.suffix in (".list", ".sources") and path.exists():
            text = re.sub(r"^Types: .*$", "Types: deb-src", path.read_text(), flags=re.MULTILINE)
            (lists / path.name).write_text(re.sub(r"^deb(?=\s)", "deb-src", text, flags=re.MULTILINE))
    options = [f"-oDir::State::Lists={folder / 'lists'}", "-oDir::Etc::SourceList=/dev/null"]
    options += [f"-oDir::Etc::SourceParts={lists}", f"-oDir::Cache={folder}"]
    # Other archives than the distribution's may have no sources.
    subprocess.run(["apt-get", *options, "update"], check=False, stdout=subprocess.DEVNULL)
    return options


def source(package: str, folder: Path, options: list[str]) -> Path:
    """Downloads and unpacks the source of an installed package. Returns where it is."""
    name, version = output("dpkg-query", "-W", "-f", "${source:Package} ${source:Version}", package).split()
    to = folder / name
    to.mkdir()
    output("apt-get", *options, "source", "--download-only", f"{name}={version}", cwd=to)
    (archive,) = to.glob("*.orig.tar.*[!c]")
    with tarfile.open(archive) as file:
        file.extractall(to, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (path for path in to.iterdir() if path.is_dir())
    return unpacked


def make(folder: Path, toolchain: Path | None = None) -> None:
    """Builds into a folder, as a prefix: include/, lib/. ``toolchain``: a file for CMake."""
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"  # removed at the end: what has it is not complete
    work.mkdir(parents=True)
    (folder / "lib").mkdir()
    options = source_options(work)
    environment = {**os.environ, "CXXFLAGS": "-fvisibility=hidden -w"}
    for package, (defines, target) in LIBRARIES.items():
        build = work / f"build-{package}"
        common = (
            *([f"CMAKE_TOOLCHAIN_FILE={toolchain}"] if toolchain is not None else []),
            "CMAKE_BUILD_TYPE=Release",
            f"CMAKE_INSTALL_PREFIX={folder}",
            "CMAKE_INSTALL_LIBDIR=lib",
            "CMAKE_POSITION_INDEPENDENT_CODE=ON",
        )
        where = ("-S", source(package, work, options), "-B", build)
        output("cmake", *where, *(f"-D{define}" for define in (*common, *defines)), env=environment)
        output("cmake", "--build", build, "--parallel", str(os.cpu_count()), "--target", target)
        if target == "libprotobuf":
            output("cmake", "--install", build, "--component", "protobuf-headers")
            shutil.copy(build / "libprotobuf.a", folder / "lib")
    shutil.rmtree(work)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where they are installed; what is there is removed")
    parser.add_argument("--toolchain", type=Path, help="a toolchain file of CMake")
    arguments = parser.parse_args()
    make(arguments.folder.resolve(), arguments.toolchain)
