#!/usr/bin/env python3
"""headrace.DataLoader beside torch's, and Grain's where it is installed.

Measures batches per second and the CPU time of the main process and of all processes together. Each case is a map-style
dataset that copies its samples from a pool of arrays. All loaders run in the same process with the same number of
persistent worker processes, in turns, so that whatever else the machine does hits all of them alike; the figures are
medians over the rounds, the ratios medians of the rounds' ratios. Of each run the first tenth is not counted (a
loader may have prefetched it while another was measured). The consumer reads one byte of each array.

Torch runs at its best: its dataset returns tensors made with ``from_numpy``, so that it pickles descriptors and not
arrays; the figure for the same NumPy dataset that headrace reads stands beside it ("torch, NumPy").

"feed" is headrace feeding a LoDTensorBlockingQueue, as it does for py_reader, emptied by this process. SPDL has no
loader of this kind: its pipelines run threads in one process, so that a figure here would compare the dataset and not
the transport.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import glob
import importlib
import json
import logging
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

import headrace as hr
from headrace.fluid import core

POOL_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    sample_bytes: int
    batch_size: int
    batches: int
    label: bool = False

    @property
    def batch_bytes(self) -> int:
        return self.sample_bytes * self.batch_size


CASES = [
    Case("tiny", 32, 32, 6000, label=True),
    Case("4 KiB", 4 << 10, 256, 600),
    Case("150 KiB", 150 << 10, 64, 120),
    Case("1 MiB", 1 << 20, 16, 80),
    Case("8 MiB", 8 << 20, 4, 40),
]


class PoolDataset:
    """Sample i is a copy of an array of a pool, and, if asked for, a label."""

    def __init__(self, case: Case, tensors: bool) -> None:
        count = max(4, min(1024, POOL_BYTES // case.sample_bytes))
        self.pool = [np.full(case.sample_bytes // 4, i, np.float32) for i in range(count)]
        self.length = case.batch_size * case.batches
        self.label = case.label
        self.from_numpy = importlib.import_module("torch").from_numpy if tensors else None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index >= self.length:
            raise IndexError(index)
        sample = self.pool[index % len(self.pool)].copy()
        if self.from_numpy is not None:
            sample = self.from_numpy(sample)
        return (sample, index) if self.label else sample


def touch(batch: Any) -> None:
    """Reads one byte of each array."""
    arrays = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else (batch,)
    for array in arrays:
        (array if isinstance(array, np.ndarray) else np.asarray(array)).item(0)


class Contestant:
    """A loader that runs one epoch after the other."""

    def __init__(self, name: str, epoch: Callable[[], Iterator[Any]], close: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.epoch = epoch
        self.close = close
        self.rates: list[float] = []
        self.cpu: list[float] = []
        self.total_cpu: list[float] = []

    def run(self, case: Any, seconds: float, measure: bool) -> None:
        """An epoch, or as much of it as the time allows."""
        iterator = self.epoch()
        for _ in range(max(1, case.batches // 10)):
            touch(next(iterator))
        cpu, workers_cpu, begin = cpu_seconds(), workers_cpu_seconds(), time.perf_counter()
        count, now = 0, begin
        for batch in iterator:
            touch(batch)
            count += 1
            now = time.perf_counter()
            if now - begin > seconds:
                break
        cpu, workers_cpu = cpu_seconds() - cpu, workers_cpu_seconds() - workers_cpu
        if isinstance(iterator, Generator):
            iterator.close()
        if measure:
            self.rates.append(count / (now - begin))
            self.cpu.append(cpu / count)
            self.total_cpu.append((cpu + workers_cpu) / count)


def cpu_seconds() -> float:
    """CPU time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def workers_cpu_seconds() -> float:
    """CPU time so far of all worker processes, those that have ended included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    nanoseconds = 0
    for process in multiprocessing.active_children():
        for path in glob.glob(f"/proc/{process.pid}/task/*/schedstat"):
            with contextlib.suppress(OSError), open(path) as file:
                nanoseconds += int(file.read().split()[0])
    return ended.ru_utime + ended.ru_stime + nanoseconds * 1e-9


def headrace_contestant(case: Case, arguments: argparse.Namespace) -> Contestant:
    loader = hr.DataLoader(
        PoolDataset(case, tensors=False),
        batch_size=case.batch_size,
        num_workers=arguments.workers,
        prefetch_factor=arguments.prefetch,
        seed=1,
    )
    return Contestant("headrace", lambda: iter(loader), loader.shutdown)


def feed_contestant(case: Case, arguments: argparse.Namespace) -> Contestant:
    loader = hr.DataLoader(
        PoolDataset(case, tensors=False),
        batch_size=case.batch_size,
        num_workers=arguments.workers,
        prefetch_factor=arguments.prefetch,
        seed=1,
    )
    shapes = [[-1, case.sample_bytes // 4]] + [[-1]] * case.label
    queue = core.init_lod_tensor_blocking_queue(core.Scope().var("queue"), 4, shapes)

    def epoch() -> Iterator[Any]:
        queue.reopen()
        feed = loader._feed(queue)
        pop = queue.pop
        try:
            while True:
                yield pop()
        except core.EOFException:
            pass
        finally:
            feed.stop()

    return Contestant("feed", epoch, loader.shutdown)


def torch_contestant(case: Case, arguments: argparse.Namespace, tensors: bool) -> Contestant:
    data = importlib.import_module("torch.utils.data")
    loader = data.DataLoader(
        PoolDataset(case, tensors),
        batch_size=case.batch_size,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
    )
    return Contestant("torch" if tensors else "torch, NumPy", lambda: iter(loader))


def grain_contestant(case: Case, arguments: argparse.Namespace) -> Contestant:
    logging.getLogger("absl").setLevel(logging.ERROR)  # grain misses jax, which it does not need for this
    grain = importlib.import_module("grain")
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()  # which it would be, of a program of absl
    dataset = (
        grain.MapDataset.source(PoolDataset(case, tensors=False))
        .batch(case.batch_size)
        .repeat()
        .to_iter_dataset(grain.ReadOptions(num_threads=0))
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=arguments.workers, per_worker_buffer_size=2))
    )

    def epoch() -> Iterator[Any]:
        # With workers of its own, and threads in this process that stay busy as long as it lives.
        iterator = iter(dataset)
        try:
            for _ in range(case.batches):
                yield next(iterator)
        finally:
            iterator.close()

    return Contestant("grain", epoch)


def installed(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def contestants(case: Case, arguments: argparse.Namespace) -> list[Contestant]:
    makers = {
        "headrace": lambda: headrace_contestant(case, arguments),
        "feed": lambda: feed_contestant(case, arguments),
        "torch": lambda: torch_contestant(case, arguments, tensors=True),
        "torch, NumPy": lambda: torch_contestant(case, arguments, tensors=False),
        "grain": lambda: grain_contestant(case, arguments),
    }
    needs = {"torch": "torch", "torch, NumPy": "torch", "grain": "grain"}
    wanted = arguments.loaders or list(makers)
    return [make() for name, make in makers.items() if name in wanted and (name not in needs or installed(needs[name]))]


def measure(case: Case, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per contestant."""
    field = contestants(case, arguments)
    try:
        for each in field:
            each.run(case, arguments.seconds, measure=False)
        for round_number in range(arguments.rounds):
            turn = round_number % len(field)
            for each in field[turn:] + field[:turn]:
                each.run(case, arguments.seconds, measure=True)
                time.sleep(arguments.pause)
    finally:
        for each in field:
            each.close()
    reference = next((each for each in field if each.name == "torch"), None)
    rows = []
    for each in field:
        ratios = [a / b for a, b in zip(each.rates, reference.rates)] if reference is not None else []
        rows.append(
            {
                "case": case.name,
                "loader": each.name,
                "batch_bytes": case.batch_bytes,
                "batches_per_s": statistics.median(each.rates),
                "bytes_per_s": statistics.median(each.rates) * case.batch_bytes,
                "samples_per_s": statistics.median(each.rates) * case.batch_size,
                "main_cpu_us_per_batch": statistics.median(each.cpu) * 1e6,
                "total_cpu_us_per_batch": statistics.median(each.total_cpu) * 1e6,
                "ratio_to_torch": statistics.median(ratios) if ratios else None,
            }
        )
    return rows


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="which cases to run (default: all)")
    parser.add_argument("--loaders", nargs="*", help="which loaders to run (default: all that are installed)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of each loader (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take the median of (default: 5)")
    parser.add_argument("--seconds", type=float, default=1, help="the most that one run takes (default: 1)")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two runs (default: 0.05)")
    parser.add_argument("--prefetch", type=int, default=None, help="headrace's prefetch_factor (default: its own)")
    parser.add_argument("--batches", type=int, default=None, help="batches per epoch, instead of the case's own")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too; - for standard output only")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse(None)
    rows: list[dict[str, Any]] = []
    quiet = arguments.json == "-"
    if not quiet:
        print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {arguments.workers} workers each")
        print(
            f"{'case':10}{'loader':14}{'batches/s':>11}{'GB/s':>8}{'x torch':>9}{'CPU µs/batch: main':>20}{'all':>10}"
        )
    for case in CASES:
        if arguments.case and case.name not in arguments.case:
            continue
        if arguments.batches is not None:
            case = dataclasses.replace(case, batches=arguments.batches)
        for row in measure(case, arguments):
            rows.append(row)
            if not quiet:
                ratio = "" if row["ratio_to_torch"] is None else f"{row['ratio_to_torch']:.2f}"
                print(
                    f"{row['case']:10}{row['loader']:14}{row['batches_per_s']:>11,.0f}{row['bytes_per_s'] / 1e9:>8.2f}"
                    f"{ratio:>9}{row['main_cpu_us_per_batch']:>20.1f}{row['total_cpu_us_per_batch']:>10.1f}",
                    flush=True,
                )
    document = {"workers": arguments.workers, "cpus": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}
    if quiet:
        json.dump(document, sys.stdout, indent=1)
    elif arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(document, file, indent=1)


if __name__ == "__main__":
    main()
