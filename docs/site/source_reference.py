"""Pages that show source files: the public headers, with their comments, and the examples."""

from __future__ import annotations

import re
from pathlib import Path

from markdown_text import block, escaped, table, toctree

from headrace import sysconfig

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
LANGUAGES = {".py": "python", ".cc": "cpp", ".txt": "cmake", ".yaml": "yaml", ".sbatch": "bash"}
# Headers that programs and libraries of operators include, by what they are for. The others are what these need.
HEADERS = {
    "Operators of your own": (
        *("framework/op_registry.h", "framework/op_info.h", "framework/operator.h"),
        *("framework/attribute.h", "framework/tensor.h", "framework/lod_tensor.h", "framework/selected_rows.h"),
        *("framework/eigen.h", "framework/ddim.h", "framework/data_type.h", "framework/errors.h"),
        *("framework/memory_pool.h", "framework/thread_pool.h", "framework/block_runner.h"),
        *("operators/common/shape_inference.h", "operators/common/kernel_data.h", "operators/math/tensor_size.h"),
        *("operators/math/gemm.h", "operators/math/broadcast.h", "operators/math/ordered_sum.h"),
        *("operators/math/element_loop.h", "operators/math/scratch.h"),
    ),
    "Programs": (
        *("framework/program_desc.h", "framework/block_desc.h", "framework/op_desc.h", "framework/var_desc.h"),
        *("framework/backward.h", "framework/executor.h", "framework/prepared_program.h"),
        *("framework/scope.h", "framework/variable.h"),
        *("framework/model_files.h", "framework/tensor_serialization.h", "framework/op_library.h"),
        *("framework/op_role.h", "framework/profiler.h"),
    ),
    "Readers": (
        *("reader/reader.h", "reader/lod_tensor_blocking_queue.h", "reader/py_reader.h"),
        *("reader/buffered_reader.h", "reader/reader_op_util.h"),
    ),
    "Tests with GoogleTest": ("framework/testing/op_test.h",),
}
CPP = """\
# C++

`find_package(Headrace)` finds the headers of an installed package; `python -m headrace.sysconfig --include` prints
their folder. All names are in namespace `headrace`. The comments state shapes, ownership, thread-safety and errors.

"""
OTHERS = """
The other installed headers are what these need, and may change with any release: {names}.

"""


def header(path: Path, name: str) -> str:
    """The section of a header: the comment at its top as text, then its declarations with their comments."""
    lines = path.read_text("utf-8").splitlines()
    top = 0
    while top < len(lines) and lines[top].startswith("//"):
        top += 1
    text = []
    for line in lines[:top]:
        line = line.removeprefix("//").removeprefix(" ")
        # Indented lines are code.
        text.append(f"    {line.strip()}" if line.startswith("  ") else re.sub(r"\\`", "`", escaped(line)))
    code = [line for line in lines[top:] if not line.startswith(("#include", "#pragma once"))]
    return (
        f"## {name}\n\n" + "\n".join(text) + "\n\n" + block(re.sub(r"\n{3,}", "\n\n", "\n".join(code)).strip(), "cpp")
    )


def headers() -> dict[str, str]:
    include = Path(sysconfig.get_include())
    made, rows = {}, []
    for title, names in HEADERS.items():
        page = f"cpp-{title.split()[0].lower()}"
        made[f"reference/{page}.md"] = f"# C++: {title}\n\n" + "\n".join(header(include / name, name) for name in names)
        rows.append([f"[{title}]({page}.md)", ", ".join(f"`{name}`" for name in names)])
    shown = {name for names in HEADERS.values() for name in names}
    others = sorted({str(path.relative_to(include)) for path in include.rglob("*.h")} - shown)
    text = CPP + table(("For", "Headers"), rows) + OTHERS.format(names=", ".join(f"`{name}`" for name in others))
    made["reference/cpp.md"] = text + toctree(Path(name).stem for name in made)
    return made


def example_files() -> list[Path]:
    return [path for path in sorted(EXAMPLES.rglob("*")) if path.suffix in LANGUAGES]


def example_anchors() -> dict[str, str]:
    """For each example, and each folder of them, the anchor of its (first) section."""
    anchors: dict[str, str] = {}
    for path in example_files():
        anchor = re.sub(r"[^\w-]", "", str(path.relative_to(EXAMPLES)).lower())
        for place in (path, *path.parents):
            if place == ROOT / "docs":
                break
            anchors.setdefault(str(place.relative_to(ROOT)), anchor)
    return anchors


def examples() -> str:
    parts = ["# Examples\n\nThe files of `docs/examples` in a checkout. The tests run them.\n"]
    for path in example_files():
        parts.append(f"## {path.relative_to(EXAMPLES)}\n\n{block(path.read_text('utf-8'), LANGUAGES[path.suffix])}")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    return {**headers(), "examples.md": examples()}
