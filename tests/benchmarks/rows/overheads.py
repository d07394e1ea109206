"""What a loader costs apart from its speed: starts, ends of epochs, the consumer's time, memory."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import content, jobs
from harness.contest import Aim, Effort, Family, Row
from harness.jobs import Job, Make, contestant
from peers import LOADERS, headrace_loader, paddle_loader, torch_drop_in, torch_loader, torchdata_nodes

from rows.arrays import DIGITS, TINY, VOLUMES, Pool
from rows.limits import memcpy

SHORT = dataclasses.replace(TINY, count=8, checked=8)
START_METHODS = ("fork", "forkserver")


class Fresh(Pool):
    """Arrays that are made for each sample: nothing that a worker would have to keep."""

    def __init__(self, shape: tuple[int, ...], dtype: str, length: int) -> None:
        self.shape, self.dtype, self.length = shape, dtype, length

    def __getitem__(self, index: int) -> Any:
        return np.full(self.shape, index % 251, self.dtype), index


class Prepared:
    """Samples that are batches, and lie in memory: what is left is the way to the consumer."""

    def __init__(self, size: int, length: int) -> None:
        self.batches = [np.full(size // 4, number, np.float32) for number in range(64)]
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.batches[index % len(self.batches)]


def whole(batch: Any) -> Any:
    """The samples of a batch that is one."""
    return ((content.as_array(leaf),) for leaf in content.leaves(batch))


def transport(effort: Effort) -> Job:
    return Job(Prepared(1 << 20, 64 if effort.short else 20_000), None, samples_of=whole)


def proportional_memory(process: int) -> int:
    """Bytes of a process and its descendants, of which those that several share count once."""
    total = 0
    for line in Path(f"/proc/{process}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            total = int(line.split()[1]) << 10
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text("ascii").split():
            try:
                total += proportional_memory(int(child))
            except (FileNotFoundError, ProcessLookupError):
                pass  # it has ended
    return total


def memory(make: Make, job: Job, effort: Effort) -> float:
    """MiB that a loader adds at most while it is read, its workers included. The libraries that it needs are imported
    before: a program that trains has them anyway.
    """
    job.dataset[0]
    with make():
        pass
    before, most = proportional_memory(os.getpid()), 0
    with make() as loader:
        batches = loader.endless()
        end = time.perf_counter() + effort.warm_up + effort.seconds
        while time.perf_counter() < end:
            for _ in range(4):
                batch = next(batches)
                content.touch(batch)
            most = max(most, proportional_memory(os.getpid()))
        del batch
        if hasattr(batches, "close"):
            batches.close()
    return (most - before) / 2**20


def first(start_method: str) -> Row:
    job = dataclasses.replace(DIGITS, start_method=start_method)
    return Row(
        f"first-{start_method}",
        f"first batch, {start_method}",
        f"From the making of the loader to its first batch of 64 samples, 28 × 28, workers by `{start_method}`.",
        "ms",
        tuple(contestant(peer, job, jobs.first_batch) for peer in LOADERS if peer.NAME != "loop"),
        higher_is_better=False,
        aims=(Aim("torch", 2), Aim("torch", 2, ours="headrace.torch")),
    )


def memory_row(workers: int, start_method: str) -> Row:
    job = dataclasses.replace(VOLUMES, kind=Fresh, workers=workers, start_method=start_method)
    aim = (Aim("torch", 1 / 0.3), Aim("torch", 1 / 0.3, ours="headrace.torch")) if workers == 8 else ()
    peers = (headrace_loader, torch_drop_in, torch_loader, torchdata_nodes, paddle_loader)
    return Row(
        f"memory-{workers}-{start_method}",
        f"memory, {workers}, {start_method}",
        f"What the loader adds with batches of two volumes of 128³ (16 MiB), {workers} workers, started by "
        f"`{start_method}`: proportional memory of all processes, less that of this one before, with its libraries.",
        "MiB",
        tuple(contestant(peer, job, memory) for peer in peers),
        higher_is_better=False,
        aims=aim,
    )


FAMILY = Family(
    "overheads",
    "Overheads",
    "What a loader costs apart from the samples. Two workers, unless a row says something else.",
    (
        Row(
            "transport",
            "transport alone",
            "A sample is a batch of 1 MiB that lies in the workers' memory (`batch_size=None`).",
            "batches/s",
            (*(contestant(peer, transport, jobs.samples_per_second) for peer in LOADERS), memcpy(1 << 20, 1)),
        ),
        Row(
            "consumer",
            "consumer's processor time",
            "The main process's processor time for each of these batches.",
            "µs/batch",
            tuple(contestant(peer, transport, jobs.consumer_cpu) for peer in LOADERS if peer.NAME != "loop"),
            higher_is_better=False,
        ),
        Row(
            "epochs",
            "short epochs",
            "Epochs of 8 batches of 32 samples of 32 bytes, one after the other.",
            "epochs/s",
            tuple(contestant(peer, SHORT, jobs.epochs_per_second) for peer in LOADERS),
            aims=(Aim("torch", 30),),
        ),
        *(first(method) for method in START_METHODS),
        *(memory_row(workers, method) for workers in (2, 8) for method in START_METHODS),
    ),
)
