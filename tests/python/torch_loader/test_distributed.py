"""Two processes share the samples out once, in programs of the libraries that start them, or are told how to."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

SCRIPT = Path(__file__).with_name("distributed_script.py")
# Of each program, the library that it needs, and what it is told.
SHARE = r"drop_last=True, seed=0.*the same number of steps"
PROGRAMS = {
    "torchrun": (
        "torch",
        {
            "unshared": r"pass shard=\(rank, 2\), " + SHARE,
            "twice": r"shard=\(., 2\) and the sampler \(DistributedSampler\).*Leave out shard=, or the sampler",
            "twice, by batches": r"shard=\(., 2\) and the sampler \(DistributedSampler\).*Leave out shard=, or the",
        },
    ),
    "lightning": (
        "lightning",
        {
            "unshared": r"leave out use_distributed_sampler=False, or .*shard=\(trainer\.global_rank.*" + SHARE,
            "twice": r"and the sampler.*Lightning.*: leave out shard=, or pass use_distributed_sampler=False",
        },
    ),
    "accelerate": ("accelerate", {"unshared": r"shard=\(accelerator\.process_index.*" + SHARE}),
    "trainer": (
        "transformers",
        {"unshared": r"get_train_dataloader .* shard=\(self\.accelerator\.process_index.*" + SHARE},
    ),
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_samples_are_shared_out_once(name: str, tmp_path: Path) -> None:
    library, texts = PROGRAMS[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
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
    (seen, said), (their_seen, their_said) = (
        json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)
    )
    for way, length in (("sampler", 40), ("share", 43)):
        mine, theirs = seen[way], their_seen[way]
        assert len(mine) == len(theirs) == 2
        assert mine[0] != mine[1]
        for epoch, others in zip(mine, theirs):
            assert len(epoch) == len(others) == 20
            assert len({*epoch, *others}) == 40
            assert {*epoch, *others} <= set(range(length))
    for each in (said, their_said):
        assert each.keys() == texts.keys()
        for way, text in texts.items():
            assert re.search(text, each[way]), (way, each[way])
