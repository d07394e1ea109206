"""Information about the installation, printed by ``python -m headrace``: version, processor, kernels, features."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

import headrace
import headrace._core as _core
import headrace._cpu as _cpu

# Optional packages and their uses.
_OPTIONAL = {
    "torch": "headrace.torch, tensors, GPUs",
    "pymongo": "headrace.wirehead on MongoDB",
    "pyyaml": "headrace.wirehead's config.yaml",
    "zstandard": "compressed samples in headrace.wirehead",
}


def library() -> str:
    """The path of the libheadrace.so that this process has loaded; empty if the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    paths = {line.split(maxsplit=5)[5] for line in lines if line.endswith("/libheadrace.so")}
    return min(paths, default="")


def instruction_set() -> str:
    """The one that the loaded kernels were compiled for, such as ``"x86-64-v3"``."""
    folder = Path(library()).parent
    march: str = _cpu.MARCH
    return folder.name if folder.parent.name == "glibc-hwcaps" else march or platform.machine()


def processor_flags() -> set[str]:
    """The processor's features, as Linux names them; empty if unknown."""
    return set(_cpuinfo("flags", "Features").split())


def _cpuinfo(*keys: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() in keys), "")


def processors() -> int:
    """How many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it; None if there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def documentation() -> str:
    """Where the documentation is: the address in the package's metadata, or the folder of the checkout in use."""
    checkout = Path(__file__).resolve().parents[2] / "docs"
    if (checkout / "guide.md").is_file():
        return str(checkout)
    try:
        urls = importlib.metadata.metadata("headrace").get_all("Project-URL") or []
    except importlib.metadata.PackageNotFoundError:
        urls = []
    named: dict[str, str] = dict(url.split(", ", 1) for url in urls if ", " in url)
    return named.get("Documentation", "help(headrace)")


def about() -> dict[str, Any]:
    """Everything, as what JSON can hold."""
    kernels = {"instruction_set": instruction_set(), "library": library(), "avx512": _core.uses_avx512()}
    return {
        "version": headrace.__version__,
        "package": str(Path(__file__).resolve().parent),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": installed_version("numpy"),
        "system": f"{platform.system()} {platform.release()}, {' '.join(filter(None, platform.libc_ver()))}",
        "processor": _cpuinfo("model name") or platform.machine() or "unknown",
        "processors": processors(),
        "kernels": kernels,
        "operators": len(_core.op_types()),
        "optional": {name: installed_version(name) for name in _OPTIONAL},
        "documentation": documentation(),
    }


def text(about: dict[str, Any]) -> str:
    """What :func:`about` returns, for people."""
    kernels = about["kernels"]
    wide = "; matrix products and most activations use AVX-512" if kernels["avx512"] else ""
    rows = {
        "package": about["package"],
        "Python": f"{about['python']}, NumPy {about['numpy']}",
        "system": about["system"],
        "processor": f"{about['processor']} ({about['processors']} usable)",
        "kernels": f"compiled for {kernels['instruction_set']}{wide}",
        "operators": str(about["operators"]),
        **{name: f"{version or 'not installed'} ({_OPTIONAL[name]})" for name, version in about["optional"].items()},
        "documentation": about["documentation"],
    }
    lines = [f"headrace {about['version']}", *(f"  {name:<14} {value}" for name, value in rows.items())]
    return "\n".join([*lines, f"Check this machine: {Path(sys.executable or 'python').name} -m headrace doctor"])
