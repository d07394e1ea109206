"""Libraries that train with PyTorch's loader, with the drop-in in its place, in two processes."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

SCRIPT = Path(__file__).with_name("distributed_script.py")
LIBRARIES = {"lightning": "lightning", "accelerate": "accelerate", "trainer": "transformers"}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_two_processes_are_given_every_sample_once_in_each_epoch(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(LIBRARIES[name]) is None:
        pytest.skip(f"{LIBRARIES[name]} is not installed")
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    common |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), name, str(tmp_path)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "NODE_RANK": "0"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=380)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)[-4000:]
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert len(first) == len(second) == 2
    for mine, theirs in zip(first, second):
        assert sorted(mine + theirs) == list(range(40))
    assert first[0] != first[1]
