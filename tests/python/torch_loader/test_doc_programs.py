"""The programs in the documents run as printed, several processes of them where the page says so."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

DOCS = Path(__file__).parents[3] / "docs"


def write_program(document: str, name: str, folder: Path) -> Path:
    text = (DOCS / document).read_text("utf-8")
    (program,) = re.findall(rf"^```python\n# {re.escape(name)}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    path = folder / name
    path.write_text(program)
    return path


def environment(**more: str) -> dict[str, str]:
    package = str(Path(headrace.__file__).parents[1])
    path = os.pathsep.join([package, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def free_port() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return str(taken.getsockname()[1])


def test_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = write_program("distributed.md", "train.py", tmp_path)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    done = subprocess.run(launch, env=environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"rank (\d) of 2: epoch (\d), loss ([\d.]+), first samples \[(.*?)\]", done.stdout)
    assert sorted((rank, epoch) for rank, epoch, _, _ in lines) == [(r, e) for r in "01" for e in "012"]
    for epoch in "012":
        samples = [sample for _, which, _, seen in lines if which == epoch for sample in seen.split(", ")]
        assert len(set(samples)) == len(samples) == 8
    assert all(float(loss) < 0.1 for _, epoch, loss, _ in lines if epoch == "2")


def test_slurm(tmp_path: Path) -> None:
    """srun's part is done by hand: it sets these variables."""
    pytest.importorskip("torch")
    path = write_program("distributed.md", "train_slurm.py", tmp_path)
    common = {"SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen([sys.executable, path], env=environment(SLURM_PROCID=rank, **common), stdout=pipe, text=True)
        for rank in "01"
    ]
    printed = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    found = [re.fullmatch(r"rank (\d) of 2: 6 steps, sum of all samples (\d+)\n", text) for text in printed]
    assert [match and match[1] for match in found] == ["0", "1"]
    # Four of the hundred are left out, the same for both.
    (total,) = {int(match[2]) for match in found if match}
    assert 4950 - (99 + 98 + 97 + 96) <= total <= 4950 - (0 + 1 + 2 + 3)


def test_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    path = write_program("howto.md", "train_jax.py", tmp_path)
    command = [sys.executable, "-W", "error::RuntimeWarning", str(path)]
    done = subprocess.run(command, env=environment(JAX_PLATFORMS="cpu"), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1.0, 1.0, 1.0]\n"
