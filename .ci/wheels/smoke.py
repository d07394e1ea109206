"""Tests an installed wheel with nothing but NumPy beside it: what there is, the machine, a loader, a program."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np

import headrace
import headrace.fluid as fluid
from headrace import sysconfig

CONTEXTS = ("fork", "forkserver", "spawn")


class Squares:
    """Some samples that are easy to check."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full((3, 5), index * index, np.float32)


def load(context: str) -> None:
    loader = headrace.DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context=context)
    batches = [np.array(batch) for batch in loader]
    assert np.array_equal(np.concatenate(batches)[:, 0, 0], np.arange(100, dtype=np.float32) ** 2)


def train() -> str:
    """Fits a line by a program. Returns the last loss, which says which kernels ran only in its last digits."""
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        x, y = fluid.data("x", [None, 16]), fluid.data("y", [None, 1])
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(fluid.layers.fc(x, 32), 1), y))
        fluid.optimizer.Adam(learning_rate=0.01).minimize(loss)
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())
        inputs = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
        feed = {"x": inputs, "y": inputs.sum(1, keepdims=True)}
        losses = [float(executor.run(feed=feed, fetch_list=[loss])[0][0]) for _ in range(200)]
    assert losses[-1] < losses[0] / 100, losses
    return f"{losses[0]:.3g} -> {losses[-1]:.3g}"


def again(march: str) -> str:
    """Runs this file on other kernels. Returns what they are said to be."""
    environment = {**os.environ, "HEADRACE_MARCH": march}
    done = subprocess.run([sys.executable, __file__, "--once"], env=environment, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def main() -> None:
    about = json.loads(subprocess.run([sys.executable, "-m", "headrace", "--json"], check=True, stdout=-1).stdout)
    march = about["kernels"]["instruction_set"]
    for context in CONTEXTS:
        load(context)
    losses = train()
    if "--once" not in sys.argv:
        print(f"headrace {about['version']}, {about['python']}, {about['system']}: losses {losses}")
        subprocess.run([sys.executable, "-m", "headrace", "doctor"], check=True)
        package = Path(headrace.__file__).parent
        assert (
            Path(sysconfig.get_lib()) == Path(about["kernels"]["library"]).parents[2 if "-v" in march else 0] == package
        )
        assert (Path(sysconfig.get_include()) / "framework/op_registry.h").is_file()
        assert (Path(sysconfig.get_cmake_dir()) / "HeadraceConfig.cmake").is_file()
        names = {Path(file).name for file in importlib.metadata.files("headrace") or []}
        assert {"LICENSE", "eigen.txt", "libstdc++.txt", "protobuf.txt", "pybind11.txt", "snappy.txt"} <= names, names
        if platform.machine() == "x86_64":
            assert again("x86-64") == "x86-64"
            assert "expected x86-64 or x86-64-v3" in again("i386")
    print(march)


if __name__ == "__main__":
    main()
