"""Importing: on the wrong processor, beside other libraries, and what a wheel brings along."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

PEERS = [name for name in ("torch", "paddle", "tensorflow") if importlib.util.find_spec(name) is not None]


def run(script: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout, check=False)


def test_a_processor_without_what_the_kernels_need_is_told_how_to_rebuild() -> None:
    done = run(
        "import sys, types\n"
        "sys.modules['headrace._cpu'] = types.SimpleNamespace(missing=lambda: 'AVX2, FMA', MARCH='x86-64-v3')\n"
        "import headrace"
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError:")
    assert "AVX2, FMA" in last
    assert "cmake.define.HEADRACE_MARCH=x86-64" in last


def test_the_names_are_there() -> None:
    for module in (headrace, headrace.layers, headrace.io, headrace.core, headrace.optimizer, headrace.initializer):
        for name in module.__all__:
            assert getattr(module, name) is not None
    assert headrace.__version__


def test_importing_is_quiet_and_light() -> None:
    script = "import sys, headrace; print(sorted({'torch', 'jax', 'tensorflow', 'paddle', 'scipy'} & set(sys.modules)))"
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


# Each alone, and all together (paddle before tensorflow: the other way round they crash without us).
GROUPS = [[name] for name in PEERS] + ([PEERS] if len(PEERS) > 1 else [])
ORDERS = [order for group in GROUPS for order in (["headrace", *group], [*group, "headrace"])]


@pytest.mark.skipif(not PEERS, reason="none of torch, tensorflow and paddle is installed")
@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_it_works_beside_others_in_any_order_of_import(order: list[str]) -> None:
    imports = "\n".join(f"import {name}" for name in order)
    done = run(
        f"{imports}\n"
        "import numpy as np\n"
        "import headrace as fluid\n"
        "x = fluid.layers.data('x', [2])\n"
        "out = fluid.layers.fc(x, 1, bias_attr=False)\n"
        "exe = fluid.Executor()\n"
        "exe.run(fluid.default_startup_program())\n"
        "binary = fluid.default_main_program().serialize_to_string()\n"
        "program = fluid.Program.parse_from_string(binary)\n"
        "print(exe.run(program, feed={'x': np.ones((3, 2), np.float32)}, fetch_list=[out.name])[0].shape)\n"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "(3, 1)"


def installed() -> Path:
    return Path(headrace.__file__).parent


@pytest.mark.skipif(not (installed() / "include").exists(), reason="not installed from a wheel")
def test_a_wheel_brings_headers_that_compile_and_a_library_to_link(tmp_path: Path) -> None:
    source = tmp_path / "op.cc"
    source.write_text(
        '#include "framework/op_registry.h"\n'
        "namespace {\n"
        "HEADRACE_REGISTER_OP(times_three)\n"
        '    .Comment("Three times X.")\n'
        '    .Input("X", "any shape")\n'
        '    .Output("Out", "shape of X")\n'
        '    .InferShape([](headrace::InferShapeContext& ctx) { ctx.ShareAll("X", "Out"); })\n'
        "    .Kernel<float>([](const headrace::ExecutionContext& ctx) {\n"
        '      const auto& x = ctx.Input("X");\n'
        '      float* out = ctx.Output("Out")->mutable_data<float>();\n'
        "      for (int64_t i = 0; i < x.numel(); ++i) out[i] = 3 * x.data<float>()[i];\n"
        "    });\n"
        "}\n"
    )
    library = tmp_path / "op.so"
    flags = ["-std=c++20", "-shared", "-fPIC", f"-I{installed() / 'include'}"]
    link = [f"-L{installed()}", "-lheadrace"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library), *link], check=True, timeout=110)
    done = run(
        "import numpy as np, headrace as fluid\n"
        f"print(fluid.load_op_library({str(library)!r}))\n"
        "x = fluid.layers.data('x', [2])\n"
        "block = fluid.default_main_program().global_block()\n"
        "out = block.create_var(name='out')\n"
        "block.append_op('times_three', {'X': x}, {'Out': out})\n"
        "print(fluid.Executor().run(feed={'x': np.ones((1, 2), np.float32)}, fetch_list=[out])[0].tolist())\n"
    )
    assert (done.stdout.splitlines(), done.stderr) == (["['times_three']", "[[3.0, 3.0]]"], "")
