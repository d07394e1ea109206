"""The programs in the documents run as printed, several processes of them where the page says so."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from doc_programs import environment, write_program


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


def test_fsdp_continues_with_fewer_processes(tmp_path: Path) -> None:
    pytest.importorskip("torch", minversion="2.7")
    path = write_program("distributed.md", "train_fsdp.py", tmp_path)

    def losses(processes: int, folder: str, stop_after: int) -> list[tuple[int, float]]:
        count = ["--standalone", "--nproc-per-node", str(processes)]
        launch = [sys.executable, "-m", "torch.distributed.run", *count, str(path), folder, str(stop_after)]
        done = subprocess.run(launch, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        lines = re.findall(rf"{processes} processes, step (\d+): loss ([\d.]+)\n", done.stdout)
        return [(int(step), float(loss)) for step, loss in lines]

    whole = losses(1, "none", 1000)
    first, rest = losses(2, "checkpoint", 10), losses(1, "checkpoint", 1000)
    assert [step for step, _ in first + rest] == [*range(1, 11), *range(1, 22)]
    assert [loss for _, loss in first + rest] == pytest.approx([loss for _, loss in whole], rel=1e-3, abs=1e-5)


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
