"""Scripts as users of the original write them, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import without_waiting

GENERATOR = """
    import sys
    import numpy as np
    from headrace.wirehead import WireheadGenerator

    def create_generator():
        for i in range(int(sys.argv[1])):
            img = np.random.rand(16, 16, 16)
            lab = np.random.rand(16, 16, 16)
            yield (img, lab)

    if __name__ == "__main__":
        brain_generator = create_generator()
        wirehead_runtime = WireheadGenerator(generator=brain_generator, config_path="config.yaml", n_samples=1000)
        wirehead_runtime.run_generator()
"""
MANAGER = """
    from headrace.wirehead import WireheadManager

    if __name__ == "__main__":
        wirehead_runtime = WireheadManager(config_path="config.yaml")
        wirehead_runtime.run_manager()
"""
LOADER = """
    from headrace.wirehead import MongoheadDataset, MongoTupleheadDataset

    idx = [0]

    dict_dataset = MongoheadDataset(config_path="config.yaml")
    data = dict_dataset[idx]
    sample, label = data[0]['input'], data[0]['label']
    print(sample.shape)

    tuple_dataset = MongoTupleheadDataset(config_path="config.yaml")
    for i in range(100):
        idx = [i % 10]
        data = tuple_dataset[idx][0]
        sample, label = data[0], data[1]
    print("done", sample.dtype, label.shape)
"""
TRAIN = """
    import sys
    from {module} import DataLoader
    from headrace.wirehead import MongoheadDataset, MongoTupleheadDataset

    class BatchSampler:
        def __iter__(self):
            return iter([[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]])

    def collate(batches):
        return batches[0]

    if __name__ == "__main__":
        tuples = MongoTupleheadDataset("config.yaml", transform=lambda x: x[None], normalize=lambda x: x * 2)
        for batch in DataLoader(tuples, sampler=BatchSampler(), collate_fn=collate, num_workers=2):
            assert all(image.shape == label.shape == (1, 16, 16, 16) for image, label in batch)
            print("tuples", len(batch))
        dicts = MongoheadDataset(config_path="config.yaml")
        for epoch in range(2):
            for batch in DataLoader(dicts, batch_size=5, shuffle=True, num_workers=2):
                assert batch["input"].shape == batch["label"].shape == (5, 16, 16, 16)
                print("dicts", len(batch["input"]))
"""


@pytest.fixture
def folder(location: dict[str, Any], tmp_path: Path) -> Path:
    """With the scripts and the configuration in it."""
    for name, text in (("generator.py", GENERATOR), ("manager.py", MANAGER), ("loader.py", LOADER)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**location, "SWAP_CAP": 10, "SAMPLE": ["data", "label"]}))
    return tmp_path


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A script that runs; ended at the end."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_one_generator_and_one_loader(folder: Path) -> None:
    with running(folder, "generator.py", "20") as generator, running(folder, "loader.py") as loader:
        output, _ = loader.communicate(timeout=200)
        assert without_waiting(output) == "(16, 16, 16)\ndone float64 (16, 16, 16)\n"
        assert generator.wait(100) == 0


def test_with_a_manager_that_logs_each_swap(folder: Path) -> None:
    with running(folder, "manager.py") as manager:
        assert manager.stdout is not None
        assert manager.stdout.readline().startswith("Manager: manages ")
        with running(folder, "generator.py", "30") as generator:
            lines: list[str] = []
            while sum("SWAP!" in line for line in lines) < 3:
                lines.append(manager.stdout.readline())
                assert lines[-1]
            assert generator.wait(100) == 0
        swaps = [line.split() for line in lines if "SWAP!" in line]
        assert [swap[swap.index("far:") + 1] for swap in swaps] == ["10", "20", "30"]
        assert [swap[swap.index("deleted:") + 1] for swap in swaps] == ["0", "0", "0"]
        assert all(float(swap[swap.index("Time:") + 1]) > 1.7e9 for swap in swaps)
        manager.send_signal(signal.SIGTERM)
        assert manager.wait(100) == 0


def test_a_generator_ends_on_sigterm_and_with_its_error(folder: Path) -> None:
    with running(folder, "generator.py", "1000000") as generator, running(folder, "loader.py") as loader:
        assert loader.wait(100) == 0
        generator.send_signal(signal.SIGTERM)
        assert generator.wait(100) == 0
    text = (folder / "generator.py").read_text().replace("np.random.rand(16, 16, 16)", "1 / 0", 1)
    (folder / "generator.py").write_text(text)
    with running(folder, "generator.py", "1") as generator:
        output, _ = generator.communicate(timeout=200)
        assert generator.returncode == 1
        assert output.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("module", ["headrace", "torch.utils.data"])
def test_training_through_a_loader(folder: Path, module: str) -> None:
    if module != "headrace":
        pytest.importorskip("torch")
    (folder / "train.py").write_text(textwrap.dedent(TRAIN.replace("{module}", module)))
    with running(folder, "generator.py", "40") as generator, running(folder, "train.py") as train:
        output, _ = train.communicate(timeout=200)
        assert without_waiting(output).split("\n") == ["tuples 3", "tuples 3", "tuples 4", *["dicts 5"] * 4, ""]
        assert generator.wait(100) == 0
