"""Builds the static runtime of Protocol Buffers for an older system than this one: the release of the system's protoc,
from the source package of the Debian distribution, with a toolchain of sysroot.py.

The system's own libraries do not serve: the shared one needs this system's C library, and the static one is not
position-independent.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

# Where apt keeps which packages there are.
SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))


def output(*command: str | Path, **more: object) -> str:
    return subprocess.run([str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE, **more).stdout  # type: ignore[call-overload, no-any-return]


def source_archive(folder: Path) -> Path:
    """Downloads the source of the package libprotobuf-dev that is installed, by apt, as any user."""
    version = output("dpkg-query", "-W", "-f", "${source:Version}", "libprotobuf-dev")
    lists = folder / "sources.list.d"
    (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    lists.mkdir(exist_ok=True)
    for path in [SOURCES[0], *SOURCES[1].glob("*")]:
        if path.suffix in (".list", ".sources") and path.exists():
            # Packages of sources in the place of binary ones.
            text = re.sub(r"^Types: .*$", "Types: deb-src", path.read_text(), flags=re.MULTILINE)
            (lists / path.name).write_text(re.sub(r"^deb(?=\s)", "deb-src", text, flags=re.MULTILINE))
    options = [f"-oDir::State::Lists={folder / 'lists'}", "-oDir::Etc::SourceList=/dev/null"]
    options += [f"-oDir::Etc::SourceParts={lists}", f"-oDir::Cache={folder}"]
    output("apt-get", *options, "update")
    output("apt-get", *options, "source", "--download-only", f"protobuf={version}", cwd=folder)
    (archive,) = folder.glob("protobuf_*.orig.tar.*")
    return archive


def make(folder: Path, toolchain: Path) -> Path:
    """Builds into a folder. Returns it; its parts are include/ and lib/libprotobuf.a."""
    work = folder / "work"
    work.mkdir(parents=True)
    with tarfile.open(source_archive(work)) as file:
        file.extractall(work, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (source,) = work.glob("protobuf-*/")
    options = {
        "CMAKE_TOOLCHAIN_FILE": toolchain,
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_INSTALL_PREFIX": folder,
        "CMAKE_INSTALL_LIBDIR": "lib",
        "CMAKE_POSITION_INDEPENDENT_CODE": "ON",
        "CMAKE_CXX_VISIBILITY_PRESET": "hidden",
        "protobuf_BUILD_TESTS": "OFF",
        "protobuf_BUILD_PROTOC_BINARIES": "OFF",
        "protobuf_WITH_ZLIB": "OFF",
    }
    output("cmake", "-S", source, "-B", work / "build", *(f"-D{name}={value}" for name, value in options.items()))
    output("cmake", "--build", work / "build", "--parallel", str(os.cpu_count()), "--target", "install")
    shutil.rmtree(work)
    return folder
