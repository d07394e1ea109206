#!/usr/bin/env python3
"""Runs clang-tidy over a build with compile_commands.json whose sources are compiled several at once (unity): what they
include is parsed once for all of them, and all that is ours in it is checked.

    .ci/tidy.py CLANG_TIDY BUILD [OPTION...]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("framework", "operators", "reader", "python")


def units(build: Path) -> list[str]:
    """What the build compiles of our sources, the slowest first."""
    files = {Path(entry["file"]) for entry in json.loads((build / "compile_commands.json").read_text("utf-8"))}
    ours = [path for path in files if "Unity" in path.parts or path.relative_to(ROOT).parts[0] in SOURCES]
    return sorted(map(str, ours), key=lambda path: ("bindings" not in path, path))


def unused_using_declarations() -> list[str]:
    """Names that a source declares by ``using`` and does not use, which clang-tidy looks for in main files only."""
    found = []
    for path in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.cc")):
        text = re.sub(r"//.*", "", path.read_text("utf-8"))
        for match in re.finditer(r"^ *using (?:\w+::)+(\w+);", text, re.MULTILINE):
            if not re.search(rf"\b{match[1]}\b", text.replace(match[0], "")):
                found.append(f"{path.relative_to(ROOT)}: using {match[1]} is unused")
    return found


def main(clang_tidy: str, build: str, *options: str) -> int:
    def check(unit: str) -> str:
        command = [clang_tidy, "--quiet", *options, "-p", build, unit]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode else ""

    with ThreadPoolExecutor(int(os.environ.get("JOBS") or os.cpu_count() or 1)) as pool:
        findings = [*filter(None, pool.map(check, units(Path(build)))), *unused_using_declarations()]
    print("\n".join(findings), end="\n" if findings else "")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
