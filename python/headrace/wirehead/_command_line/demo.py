"""A cache at work on one machine: processes draw shapes, a program learns to tell them apart."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace import DataLoader
from headrace.wirehead._command_line.supervisor import Supervisor
from headrace.wirehead._datasets.datasets import MongoTupleheadDataset
from headrace.wirehead._format.sample import Array
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead.status import status_of

SIZE = 16
SHAPES = ("disc", "ring", "square", "cross")


def shapes(seed: int) -> Iterator[tuple[Array, Array]]:
    """Noisy pictures of shapes: float32 of shape (SIZE * SIZE,), and which one it is, int64 of shape (1,)."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    while True:
        time.sleep(0.005)  # as if it were more work
        label = rng.integers(len(SHAPES))
        y, x = rows - rng.uniform(6, 10), columns - rng.uniform(6, 10)
        radius = rng.uniform(3.5, 5.5)
        distance = np.hypot(y, x)
        inside = (
            distance < radius,
            np.abs(distance - radius) < 1.2,
            np.maximum(np.abs(y), np.abs(x)) < radius,
            (np.minimum(np.abs(y), np.abs(x)) < 1.2) & (np.maximum(np.abs(y), np.abs(x)) < radius + 1),
        )[label]
        picture = inside * rng.uniform(0.5, 1) + rng.normal(0, 0.15, inside.shape)
        yield picture.astype(np.float32).reshape(-1), np.array([label], np.int64)


def run_demo(duration: float, n: int) -> int:
    """Runs for some seconds with ``n`` generator processes and prints the results; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="headrace-wirehead-") as folder:
        path = Path(folder) / "config.json"
        keys: dict[str, Any] = {"DBNAME": "demo", "SWAP_CAP": 100, "DIRECTORY": f"{folder}/cache", "LEASE": 5}
        path.write_text(json.dumps(keys))
        supervisor = Supervisor("headrace.wirehead._command_line.demo:shapes", str(path), n, grace=5)
        thread = threading.Thread(target=supervisor.run)
        print(f"{n} processes draw shapes into {folder}; a generation has {keys['SWAP_CAP']} of them", flush=True)
        thread.start()
        try:
            return _train(keys, duration)
        finally:
            supervisor.stop.set()
            thread.join()


def _train(keys: dict[str, Any], duration: float) -> int:
    import headrace.fluid as fluid

    with MongoTupleheadDataset(keys, timeout=60, to="numpy") as dataset:
        loader = DataLoader(dataset, batch_size=20, num_workers=1, sampler=dataset.sampler(seed=1, infinite=True))
        reader = fluid.layers.py_reader(capacity=4, shapes=[[-1, SIZE * SIZE], [-1, 1]], dtypes=["float32", "int64"])
        picture, label = fluid.layers.read_file(reader)
        hidden = fluid.layers.fc(picture, size=64, act="relu")
        logits = fluid.layers.fc(hidden, size=len(SHAPES))
        loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, label))
        accuracy = fluid.layers.accuracy(fluid.layers.softmax(logits), label)
        fluid.optimizer.Adam(learning_rate=1e-3).minimize(loss)
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(fluid.default_startup_program())
        reader.decorate_loader(loader)
        reader.start()
        start = shown = time.monotonic()
        steps, values = 0, []
        cache = Cache(keys)
        while time.monotonic() - start < duration:
            result = executor.run(fetch_list=[loss, accuracy])
            values.append([float(np.ravel(value)[0]) for value in result])
            steps += 1
            if time.monotonic() - shown >= 1:
                shown = time.monotonic()
                mean = np.mean(values[-20:], axis=0)
                print(
                    f"{shown - start:5.1f} s  step {steps:5d}  generation {cache.current():3d}  "
                    f"loss {mean[0]:.3f}  accuracy {mean[1]:.2f}",
                    flush=True,
                )
        reader.reset()
        loader.shutdown()  # its worker reads, too, and says so in the folder that goes next
        status = status_of(cache)
        cache.close()
    first, last = np.mean(values[:10], axis=0), np.mean(values[-50:], axis=0)
    print(status)
    print(
        f"trained on {steps * 20} samples from {status.generation} generations; {status.samples} were generated; "
        f"loss {first[0]:.3f} -> {last[0]:.3f}, accuracy {first[1]:.2f} -> {last[1]:.2f}"
    )
    return 0
