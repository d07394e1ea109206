"""The programs of docs/tutorials do what their pages say, by fork, and those without torch by spawn, too."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import headrace.fluid as fluid
from doc_programs import DOCS, run, run_program, write_programs
from headrace import sysconfig
from test_docs import run_examples

START_METHODS = ["fork", "spawn"]
# Importing torch, and compiling, take long on a crowded machine.
pytestmark = pytest.mark.timeout(1000)


def test_a_pytorch_script(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert write_programs("tutorials/torch.md", tmp_path) == ["train.py", "resume.py"]
    before = run_program(tmp_path, "fork", "train.py")
    losses = [float(loss) for loss in re.findall(r"^epoch \d: mean loss ([\d.]+)$", before, re.MULTILINE)]
    assert len(losses) == 4
    assert losses[-1] < 0.3 < losses[0]

    # The change as the page prints it.
    (change,) = re.findall(r"^```diff\n(.*?)^```", (DOCS / "tutorials/torch.md").read_text("utf-8"), re.S | re.M)
    script = (tmp_path / "train.py").read_text()
    old, new = (re.findall(rf"^{re.escape(sign)}(.*\n)", change, re.MULTILINE) for sign in "-+")
    assert "".join(old) in script
    (tmp_path / "train.py").write_text(script.replace("".join(old), "".join(new)))
    assert "headrace" in (tmp_path / "train.py").read_text()
    assert run_program(tmp_path, "fork", "train.py") == before


def test_a_pytorch_script_that_resumes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_programs("tutorials/torch.md", tmp_path)
    run_program(tmp_path, "fork", "resume.py", "55", status=1)
    resumed = run_program(tmp_path, "fork", "resume.py")
    assert resumed.startswith("continuing at step 50\nstep 100: loss ")
    (tmp_path / "checkpoint.pt").unlink()
    assert run_program(tmp_path, "fork", "resume.py") == resumed.removeprefix("continuing at step 50\n")


def test_what_the_pytorch_tutorial_says_of_speed(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "document"}
    run_examples("docs/tutorials/torch.md", names)
    assert capsys.readouterr().out.startswith("The consumer waited for data ")


@pytest.mark.parametrize("start", START_METHODS)
def test_a_py_reader(start: str, tmp_path: Path) -> None:
    assert write_programs("tutorials/py_reader.md", tmp_path) == ["waves.py", "classify.py"]
    *passes, saved = run_program(tmp_path, start, "waves.py").splitlines()
    assert saved == "saved waves.model"
    found = [re.fullmatch(r"pass \d: mean loss ([\d.]+), ([\d.]+) % of the test set right", line) for line in passes]
    losses, shares = zip(*((float(line[1]), float(line[2])) for line in found if line))
    assert len(losses) == 4
    assert losses[-1] < 0.2 < losses[0]
    assert shares[-1] > 95
    assert run_program(tmp_path, start, "classify.py") == "[0, 1, 2]\n"


def test_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    assert write_programs("tutorials/jax.md", tmp_path) == ["train_jax.py"]
    # The program chooses the loader's start method itself; the second time, it resumes.
    for epoch, start in zip((0, 5), START_METHODS):
        printed = run_program(tmp_path, start, "train_jax.py", JAX_PLATFORMS="cpu")
        assert printed == f"starting with epoch {epoch}\n[1.0, 1.0, 1.0]\n"
        assert '"epoch"' in (tmp_path / "weights.json").read_text()


@pytest.mark.skipif(not Path(sysconfig.get_cmake_dir()).exists(), reason="not installed from a wheel")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed")
def test_cpp_alone(tmp_path: Path) -> None:
    assert write_programs("tutorials/cpp.md", tmp_path) == ["train.cc", "serve.cc", "CMakeLists.txt"]
    (commands,) = re.findall(r"^```sh\n(.*?)^```", (DOCS / "tutorials/cpp.md").read_text("utf-8"), re.S | re.M)
    *lines, last = run(tmp_path, "sh", "-ec", commands).splitlines()
    losses = [float(loss) for loss in re.findall(r"pass \d: 200 steps, mean loss ([\d.]+)$", "\n".join(lines), re.M)]
    assert len(losses) == 4
    assert losses[-1] < 0.15 < losses[0]
    assert last == "1600 of 1600 right"

    executor = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path / "model"), executor)
        points = np.array([[-1, -1], [1, -1], [-1, 1], [1, 1]], np.float32)
        (probabilities,) = executor.run(program, feed={feeds[0]: points}, fetch_list=fetches)
    assert probabilities.argmax(axis=1).tolist() == [0, 1, 2, 3]
