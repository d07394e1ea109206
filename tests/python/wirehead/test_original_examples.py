"""Programs written as the examples of neuroneural/wirehead 0.9 are, with the import changed: a small one, one that is
measured, SynthSeg with a stand-in for its generator, and the same as jobs of SLURM.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import without_waiting
from slurm_stub import install

from headrace.wirehead._command_line.commands import main

pytest.importorskip("torch")

KEYS = {
    "SAMPLE": ["data", "label"],
    "WRITE_COLLECTION": "write",
    "READ_COLLECTION": "read",
    "COUNTER_COLLECTION": "counter",
    "TEMP_COLLECTION": "temp",
    "CHUNKSIZE": 10,
}
UNIT_GENERATOR = """
    import numpy as np
    from headrace.wirehead.compat import WireheadGenerator

    def pairs():
        image, label = np.random.rand(256), np.random.rand(256)
        for _ in range(100):
            yield (image, label)

    if __name__ == "__main__":
        runtime = WireheadGenerator(generator=pairs(), config_path="config.yaml", n_samples=100)
        runtime.run(verbose=True)
"""
UNIT_LOADER = """
    import torch
    from headrace.wirehead.compat import MongoTupleheadDataset

    dataset = MongoTupleheadDataset(config_path="config.yaml")
    for step in range(100):
        data = dataset[[step % 10]]
        image, label = data[0][0], data[0][1]
        assert image.dtype == torch.float32 and image.shape == label.shape == (256,)
    print("read", step + 1)
"""
UNIT_LOGGER = """
    from headrace.wirehead.compat import WireheadLogger

    logger = WireheadLogger("config.yaml")
    for swap in logger.history():
        print(swap)
"""
MEASURED_GENERATOR = """
    import os, sys, uuid
    import numpy as np
    from headrace.wirehead.compat import WireheadGenerator

    def pairs():
        image, label = np.random.rand(32, 32, 32), np.random.rand(32, 32, 32)
        while True:
            yield (image, label)

    class Both:
        def __init__(self, path):
            self.terminal, self.file = sys.stdout, open(path, "w")

        def write(self, text):
            self.terminal.write(text)
            self.file.write(text)
            self.file.flush()

        def flush(self):
            self.terminal.flush()

    if __name__ == "__main__":
        os.makedirs("logs", exist_ok=True)
        sys.stdout = Both(f"logs/{uuid.uuid4()}.txt")
        WireheadGenerator(generator=pairs(), config_path="config.yaml").run(verbose=True)
"""
MEASURED_LOADER = """
    from headrace.wirehead.compat import MongoTupleheadDataset

    dataset = MongoTupleheadDataset(config_path="config.yaml")
    for step in range(60):
        image, label = dataset[[step % 20]][0]
    print("read", tuple(image.shape))
"""
CLEAN = """
    import yaml
    from pymongo import MongoClient

    config = yaml.safe_load(open("config.yaml"))
    client = MongoClient(config["MONGOHOST"])
    client.drop_database(config["DBNAME"])
"""
# What SynthSeg's own generator needs cannot be installed everywhere: these stand for it.
BRAIN_GENERATOR = """
    import numpy as np

    class BrainGenerator:
        def __init__(self, labels, randomise_res=False):
            assert str(labels).endswith(".nii.gz")

        def generate_brain(self):
            label = np.random.choice([0, 2, 3, 4, 41, 42, 53], (24, 24, 24)).astype(np.int32)
            return np.random.rand(24, 24, 24).astype(np.float32) * 100 + label, label
"""
TENSORFLOW = """
    class config:
        @staticmethod
        def list_physical_devices(kind):
            return []
"""
PREPROCESSING = """
    import numpy as np

    MAP = np.zeros(512, np.uint8)
    MAP[[2, 3, 4, 41, 42, 53]] = [1, 2, 3, 1, 2, 4]

    def preprocessing_pipe(data):
        image, label = data
        image = (image - image.min()) / (image.max() - image.min()) * 255
        return image.astype(np.uint8), MAP[label]
"""
SYNTHSEG_GENERATOR = """
    import gc
    from nobrainer.processing.brain_generator import BrainGenerator
    from preprocessing import preprocessing_pipe
    from headrace.wirehead.compat import WireheadGenerator
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")

    def brains(file="example.nii.gz"):
        generator = BrainGenerator(file)
        while True:
            image, label = preprocessing_pipe(generator.generate_brain())
            yield (image, label)
            gc.collect()

    if __name__ == "__main__":
        WireheadGenerator(generator=brains(), config_path="config.yaml").run(verbose=True)
"""
SYNTHSEG_LOADER = """
    import torch
    from headrace.wirehead.compat import MongoheadDataset

    dataset = MongoheadDataset(config_path="config.yaml")
    data = dataset[[0]]
    image, label = data[0]["input"], data[0]["label"]
    print(image.dtype, label.dtype, tuple(image.shape), tuple(label.shape), int(image.max()), int(label.max()))
"""
SLURM_GENERATOR = """
    import argparse, gc, os
    from nobrainer.processing.brain_generator import BrainGenerator
    from preprocessing import preprocessing_pipe
    from headrace.wirehead.compat import WireheadGenerator

    FILES = [f"{number}.nii.gz" for number in range(7)]

    def brains(file):
        generator = BrainGenerator(FILES[file], randomise_res=True)
        print(f"uses {FILES[file]}", flush=True)
        while True:
            yield preprocessing_pipe(generator.generate_brain())
            gc.collect()

    parser = argparse.ArgumentParser()
    for name in ("num_tasks", "num_generators", "generator_id"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    job = int(os.environ["SLURM_JOB_ID"])
    round = 0
    while True:
        file = ((job + round * options.num_tasks) * options.num_generators + options.generator_id) % len(FILES)
        generator = brains(file)
        runtime = WireheadGenerator(generator=generator, config_path="config.yaml")
        for _ in range(5):
            runtime.cycle()
        del generator
        gc.collect()
        round += 1
"""
SLURM_JOB = """\
    #!/bin/bash
    #SBATCH --job-name=generators
    #SBATCH --output=./log/generate_output_%A_%a.log
    #SBATCH --array=0-1

    NUM_GENERATORS=2
    conda activate wirehead
    for i in $(seq 0 $((NUM_GENERATORS-1))); do
      python generator.py 2 $NUM_GENERATORS $i &
      pids+=($!)
    done
    for pid in "${pids[@]}"; do
      wait $pid
    done
"""


def write(folder: Path, **scripts: str) -> None:
    for name, text in scripts.items():
        path = folder / (name.replace("__", "/") + ("" if "sbatch" in name else ".py"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.fixture
def folder(location: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the configuration of an example in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**KEYS, **location, "SWAP_CAP": 20}))
    write(
        tmp_path,
        nobrainer__processing__brain_generator=BRAIN_GENERATOR,
        tensorflow=TENSORFLOW,
        preprocessing=PREPROCESSING,
    )
    return tmp_path


def run(folder: Path, script: str) -> str:
    """What a script prints."""
    done = subprocess.run(
        [sys.executable, script], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout
    return without_waiting(done.stdout)


@contextlib.contextmanager
def running(folder: Path, script: str) -> Iterator[None]:
    """A script that goes on; it ends well when asked to."""
    with open(folder / f"{script}.log", "w") as log:
        process = subprocess.Popen([sys.executable, script], cwd=folder, stdout=log, stderr=log)
        try:
            yield
            process.terminate()
            assert process.wait(100) == 0, (folder / f"{script}.log").read_text()
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_unit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, generator=UNIT_GENERATOR, loader=UNIT_LOADER, logger=UNIT_LOGGER)
    run(folder, "generator.py")
    assert run(folder, "loader.py") == "read 100\n"
    swaps = [json.loads(line) for line in run(folder, "logger.py").splitlines()]
    assert [swap["swap_count"] for swap in swaps] == [1, 2, 3, 4, 5]
    assert main(["config.yaml"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == swaps


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_the_one_that_is_measured(folder: Path) -> None:
    write(folder, generator=MEASURED_GENERATOR, loader=MEASURED_LOADER, clean=CLEAN)
    run(folder, "clean.py")
    with running(folder, "generator.py"):
        assert run(folder, "loader.py") == "read (32, 32, 32)\n"
    assert len(list((folder / "logs").iterdir())) == 1


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_synthseg(folder: Path) -> None:
    write(folder, generator=SYNTHSEG_GENERATOR, loader=SYNTHSEG_LOADER)
    with running(folder, "generator.py"):
        assert run(folder, "loader.py") == "torch.float32 torch.uint8 (24, 24, 24) (24, 24, 24) 255 4\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the jobs' logs."""
    programs = install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    yield programs / "jobs"
    for job in programs.glob("jobs/*[0-9]"):
        subprocess.run(["scancel", job.name], check=True)


def sbatch(folder: Path, script: str) -> str:
    done = subprocess.run(["sbatch", "--parsable", script], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_synthseg_as_jobs_of_slurm(folder: Path, slurm: Path) -> None:
    write(folder, generator=SLURM_GENERATOR, loader=SYNTHSEG_LOADER, **{"generator.sbatch": SLURM_JOB})
    job = sbatch(folder, "generator.sbatch")
    assert run(folder, "loader.py").startswith("torch.float32 torch.uint8 (24, 24, 24)")
    logs = [slurm / f"{job}_{task}.log" for task in (0, 1)]
    deadline = time.monotonic() + 100
    # Each of the four processes has gone on from its first file to another one.
    while any(log.read_text().count("uses ") < 4 for log in logs):
        assert time.monotonic() < deadline, [log.read_text() for log in logs]
        time.sleep(0.05)
    subprocess.run(["scancel", job], check=True)
    assert not any("Traceback" in log.read_text() for log in logs)


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_our_own_jobs_of_slurm(folder: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Path(__file__).parents[3] / "docs" / "examples" / "wirehead" / "slurm"
    write(
        folder,
        generator=SYNTHSEG_GENERATOR.replace("def brains(file=", "def create_generator(file="),
        loader=SYNTHSEG_LOADER,
    )
    monkeypatch.setenv("GENERATORS", "2")
    managed = sbatch(folder, str(jobs / "manager.sbatch"))
    generated = sbatch(folder, str(jobs / "generator.sbatch"))
    assert run(folder, "loader.py").startswith("torch.float32 torch.uint8 (24, 24, 24)")
    deadline = time.monotonic() + 100
    while "SWAP!" not in (slurm / f"{managed}_None.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    subprocess.run(["scancel", generated, managed], check=True)


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_the_command_of_the_original(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config.yaml", "--poll-interval", "1"]) == 0
    assert capsys.readouterr().out == "No swaps recorded yet.\n"
    assert main(["nowhere.yaml"]) == 2
    assert "there is no configuration file nowhere.yaml" in capsys.readouterr().err
    for option, pattern in (("--daemon", r'"swap_cap": 20.*"write_size_mb": 0.0'), ("--tui", r"generation  0 ")):
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.wirehead", "config.yaml", option, "--poll-interval", "0.1"],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        while not re.search(pattern, line := process.stdout.readline()):
            assert line
        process.terminate()
        process.communicate()


def test_the_console_script_is_the_command() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    found = re.search(
        r'\[project\.scripts\]\nheadrace-wirehead = "headrace\.wirehead\._command_line\.commands:(\w+)"', text
    )
    assert found is not None
    assert found[1] == main.__name__
