#!/usr/bin/env python3
"""Training a large table of embeddings: headrace's sparse Adam beside torch's.

Both look up the same random rows, sum a function of them, and update table and moments of the rows that occur. One
thread each. They take turns, so that whatever else the machine does hits both alike; the figures are medians over the
rounds, the ratio the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import headrace.fluid as fluid
from headrace.fluid import layers


def headrace_step(rows: int, width: int) -> Callable[[np.ndarray], None]:
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(main, startup):
        ids = layers.data("ids", [-1, 1], append_batch_size=False, dtype="int64")
        found = layers.embedding(ids, [rows, width], is_sparse=True)
        fluid.optimizer.Adam(1e-3, lazy_mode=True).minimize(layers.mean(layers.square(found)))
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup, scope=scope)

    def step(ids: np.ndarray) -> None:
        executor.run(main, feed={"ids": ids}, scope=scope)

    return step


def torch_step(rows: int, width: int) -> Callable[[np.ndarray], None]:
    table = torch.nn.Embedding(rows, width, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters(), 1e-3)

    def step(ids: np.ndarray) -> None:
        optimizer.zero_grad()
        table(torch.from_numpy(ids)).square().mean().backward()
        optimizer.step()

    return step


def seconds(step: Callable[[np.ndarray], None], batches: list[np.ndarray]) -> float:
    start = time.perf_counter()
    for ids in batches:
        step(ids)
    return (time.perf_counter() - start) / len(batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table (default: %(default)s)")
    parser.add_argument("--width", type=int, default=16, help="of a row (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4096, help="rows looked up in a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    steps = {
        "headrace": headrace_step(options.rows, options.width),
        "torch": torch_step(options.rows, options.width),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options.rounds + 1):
        batches = [rng.integers(0, options.rows, (options.batch, 1)) for _ in range(options.steps)]
        for name, step in steps.items():
            took = seconds(step, batches)
            if number > 0:  # the first round warms up
                times[name].append(took)
    for name, values in times.items():
        print(f"{name:10} {statistics.median(values) * 1e3:8.3f} ms per step")
    ratios = [theirs / ours for ours, theirs in zip(times["headrace"], times["torch"])]
    print(f"torch / headrace: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
