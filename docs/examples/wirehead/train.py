"""Trains a MeshNet on synthetic brain scans: once generating in line, once reading from a cache that N processes fill.

    python docs/examples/wirehead/train.py --seconds 60 --generators 2

Prints the share of time that training waited for data, and plots the loss of both against wall time. Without --config
the cache is in a temporary folder; with it, wherever that file says.

MeshNet (Fedorov et al., 2017) is a stack of convolutions whose dilation grows and shrinks, so that few parameters see
much context.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from synthetic_brains import LABELS, SIZE, slices

import headrace.fluid as fluid
from headrace import DataLoader
from headrace.wirehead import Config, MongoTupleheadDataset

HERE = Path(__file__).parent
CHANNELS = 8
DILATIONS = (1, 2, 4, 2, 1)


@dataclasses.dataclass
class Run:
    """What a training run was like: seconds since its start and loss of each step, and seconds spent waiting."""

    name: str
    times: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    waited: float = 0.0

    @property
    def waiting(self) -> float:
        """The share of time that it waited for data."""
        return self.waited / self.times[-1]

    def __str__(self) -> str:
        first, last = np.mean(self.losses[:5]), np.mean(self.losses[-5:])
        return (
            f"{self.name}: {len(self.losses)} steps in {self.times[-1]:.1f} s, "
            f"waited for data {self.waiting:.0%} of the time, loss {first:.3f} -> {last:.3f}"
        )


def meshnet(image: Any, label: Any) -> Any:
    """The mean loss of a MeshNet on slices: image [N, 1, SIZE, SIZE], label [N, 1, SIZE, SIZE]."""
    net = image
    for dilation in DILATIONS:
        net = fluid.layers.conv2d(net, CHANNELS, 3, padding=dilation, dilation=dilation)
        net = fluid.layers.batch_norm(net, act="relu")
    logits = fluid.layers.transpose(fluid.layers.conv2d(net, LABELS, 1), [0, 2, 3, 1])
    logits = fluid.layers.reshape(logits, [-1, LABELS])
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, fluid.layers.reshape(label, [-1, 1])))


def train(name: str, seconds: float, start_feeding: Callable[[Any], Callable[[], float]]) -> Run:
    """Trains for some seconds.

    Args:
        start_feeding: connects a reader with its data, and returns a function that is called before each step and
            returns how long the step had to wait for it.
    """
    program, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    program.random_seed = startup.random_seed = 1
    with fluid.program_guard(program, startup), fluid.unique_name.guard(), fluid.scope_guard(scope):
        shapes = [[-1, 1, SIZE, SIZE]] * 2
        reader = fluid.layers.py_reader(capacity=4, shapes=shapes, dtypes=["float32", "int64"])
        loss = meshnet(*fluid.layers.read_file(reader))
        fluid.optimizer.Adam(learning_rate=3e-3).minimize(loss)
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        provide = start_feeding(reader)
        run = Run(name)
        begin = time.monotonic()
        while not run.times or run.times[-1] < seconds:
            run.waited += provide()
            (value,) = executor.run(program, fetch_list=[loss])
            run.times.append(time.monotonic() - begin)
            run.losses.append(float(np.ravel(value)[0]))
        run.waited += reader.stats(scope)["wait_s"]
        reader.reset()
    return run


def in_line(seconds: float, batch_size: int) -> Run:
    """The training process generates each batch when it needs it."""

    def start_feeding(reader: Any) -> Callable[[], float]:
        samples = slices(seed=0)
        queue = reader.queue

        def provide() -> float:
            begin = time.monotonic()
            images, labels = zip(*itertools.islice(samples, batch_size))
            queue.push([np.stack(images), np.stack(labels)])
            return time.monotonic() - begin

        return provide

    return train("generator in line", seconds, start_feeding)


def from_wirehead(seconds: float, batch_size: int, generators: int, config: Path) -> Run:
    """Processes generate into a cache, and a worker of the loader reads from that."""
    with generating(generators, config), MongoTupleheadDataset(config, to="numpy") as dataset:
        sampler = dataset.sampler(seed=0, infinite=True)
        loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=1)

        def start_feeding(reader: Any) -> Callable[[], float]:
            reader.decorate_loader(loader)
            reader.start()
            return lambda: 0.0

        return train(f"wirehead, {generators} generators", seconds, start_feeding)


@contextlib.contextmanager
def generating(generators: int, config: Path) -> Iterator[None]:
    """Generator processes run meanwhile."""
    command = [sys.executable, "-m", "headrace.wirehead", "generate", "-n", str(generators)]
    process = subprocess.Popen([*command, "--config", str(config.resolve()), "synthetic_brains:slices"], cwd=HERE)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def plot(runs: list[Run], path: str) -> None:
    """Loss against wall time."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for run in runs:
        axes.plot(run.times, run.losses, label=f"{run.name} (waits {run.waiting:.0%} of the time)")
    axes.set(xlabel="wall time [s]", ylabel="loss", yscale="log", title="MeshNet on synthetic brain scans")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(f"plotted to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each of the two runs (default: %(default)g)")
    parser.add_argument("--generators", type=int, default=2, help="processes that generate (default: %(default)d)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--config", type=Path, help="of the cache (default: one in a temporary folder)")
    parser.add_argument("--plot", default="wirehead.png", help="file for the plot (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = options.config
        if config is None:
            config = Path(folder) / "config.json"
            config.write_text(f'{{"DBNAME": "brains", "SWAP_CAP": 64, "DIRECTORY": "{folder}/cache"}}')
        Config.load(config)
        runs = [
            in_line(options.seconds, options.batch_size),
            from_wirehead(options.seconds, options.batch_size, options.generators, config),
        ]
    for run in runs:
        print(run)
    plot(runs, options.plot)


if __name__ == "__main__":
    main()
