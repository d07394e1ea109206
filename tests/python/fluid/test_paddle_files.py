"""Files and programs go from here to Paddle and back: with the paddlepaddle that is installed, if there is one, and
with files that one has written. ``python tests/python/fluid/test_paddle_files.py`` writes these anew.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import layers

FOLDER = Path(__file__).parent / "golden_paddle"

needs_paddle = pytest.mark.skipif(importlib.util.find_spec("paddle") is None, reason="needs paddlepaddle")
one_or_many = pytest.mark.parametrize("filename", [None, "all"], ids=["a file each", "one file"])

# Trains a layer for a step; then says what there is, and what it was.
_WRITE = """
import sys
import numpy as np
import paddle
from paddle import static

paddle.enable_static()
main, startup = static.Program(), static.Program()
with static.program_guard(main, startup):
    loss = paddle.mean(paddle.square(static.nn.fc(static.data("x", [-1, 3], "float32"), 2)))
    paddle.optimizer.Adam(0.01).minimize(loss)
executor = static.Executor(paddle.CPUPlace())
executor.run(startup)
executor.run(main, feed={"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
variables = [variable for variable in main.list_vars() if variable.persistable]
static.io.save_vars(executor, sys.argv[1] + "/each", main, vars=variables)
static.io.save_vars(executor, sys.argv[1], main, vars=variables, filename="all")
scope = static.global_scope()
np.savez(sys.argv[1] + "/expected.npz", **{v.name: np.array(scope.find_var(v.name).get_tensor()) for v in variables})
"""

_READ = """
import sys
import numpy as np
import paddle
from paddle import static

paddle.enable_static()
folder, filename = sys.argv[1:]
expected = np.load(folder + "/expected.npz")
if filename:
    block = static.Program().global_block()
    variables = [
        block.create_var(name=name, shape=array.shape, dtype=str(array.dtype), persistable=True)
        for name, array in expected.items()
    ]
    state = static.io.load_program_state(folder + "/saved/" + filename, variables)
else:
    state = static.io.load_program_state(folder + "/saved")
assert sorted(state) == sorted(expected.files), (sorted(state), expected.files)
for name in expected.files:
    assert state[name].dtype == expected[name].dtype, name
    np.testing.assert_array_equal(state[name], expected[name], err_msg=name)
"""

_CLONE = """
import sys
import paddle
from paddle import static

paddle.enable_static()
program = static.Program.parse_from_string(open(sys.argv[1], "rb").read())
print([op.type for op in program.clone(for_test=True).global_block().ops])
"""


_INFER = """
import sys
import numpy as np
import paddle
from paddle import static

paddle.enable_static()
executor = static.Executor(paddle.CPUPlace())
model = static.load_inference_model(sys.argv[1], executor, model_filename="__model__", params_filename=None)
program, feeds, fetches = model
(y,) = executor.run(program, feed={feeds[0]: np.load(sys.argv[2])}, fetch_list=fetches)
np.save(sys.argv[3], y)
"""


def run_paddle(script: str, *arguments: str) -> str:
    environment = {**os.environ, "FLAGS_enable_pir_api": "0"}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip().splitlines()[-1] if result.stdout.strip() else ""


def network() -> fluid.framework.Variable:
    loss = layers.mean(layers.square(layers.fc(layers.data("x", [3]), 2)))
    fluid.optimizer.Adam(0.01).minimize(loss)
    return loss


def values() -> dict[str, np.ndarray]:
    names = [var.name for var in fluid.default_main_program().list_vars() if var.persistable]
    return {name: np.array(fluid.global_scope().find_var(name).get_tensor()) for name in names}


def check_training_state(exe: fluid.Executor, folder: Path, filename: str | None) -> None:
    network()
    exe.run(fluid.default_startup_program())
    fluid.io.load_persistables(exe, str(folder if filename else folder / "each"), filename=filename)
    expected = np.load(folder / "expected.npz")
    got = values()
    assert sorted(got) == sorted(expected.files)
    for name in expected.files:
        np.testing.assert_array_equal(got[name], expected[name].reshape(got[name].shape), err_msg=name)
    assert got["fc_0.w_0_moment1_0"].any()


@one_or_many
def test_a_training_state_of_paddle_is_loaded(exe: fluid.Executor, filename: str | None) -> None:
    check_training_state(exe, FOLDER, filename)


@needs_paddle
@one_or_many
def test_a_training_state_of_the_installed_paddle_is_loaded(
    exe: fluid.Executor, tmp_path: Path, filename: str | None
) -> None:
    run_paddle(_WRITE, str(tmp_path))
    check_training_state(exe, tmp_path, filename)


@needs_paddle
@one_or_many
def test_paddle_loads_what_is_saved_here(exe: fluid.Executor, tmp_path: Path, filename: str | None) -> None:
    network()
    layers.create_global_var([2, 1], 3, "int64", persistable=True, name="inner/counts")
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((2, 3), np.float32)})
    fluid.io.save_persistables(exe, str(tmp_path / "saved"), filename=filename)
    np.savez(tmp_path / "expected.npz", **values())
    run_paddle(_READ, str(tmp_path), filename or "")


@needs_paddle
def test_paddle_knows_the_roles_of_our_operators(tmp_path: Path) -> None:
    network()
    path = tmp_path / "program"
    path.write_bytes(fluid.default_main_program().serialize_to_string())
    ops = fluid.default_main_program().clone(for_test=True).global_block().ops
    assert run_paddle(_CLONE, str(path)) == str([op.type for op in ops])


@needs_paddle
def test_paddle_runs_a_model_that_is_saved_here(exe: fluid.Executor, tmp_path: Path) -> None:
    x = fluid.data("x", [None, 3])
    y = layers.softmax(layers.scale(layers.clip(layers.fc(x, 4), -1.0, 0.7), 0.1, bias=-0.3) ** 2.0 + 1.5)
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x"], [y], exe)
    rows = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    run_paddle(_INFER, str(tmp_path), str(tmp_path / "rows.npy"), str(tmp_path / "y.npy"))
    (here,) = exe.run(feed={"x": rows}, fetch_list=[y])
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), here, rtol=1e-5)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    run_paddle(_WRITE, str(FOLDER))
