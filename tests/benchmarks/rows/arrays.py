"""Samples that cost next to nothing: copies of arrays that lie in memory. What is left is the loader's own work."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from harness.contest import Aim, Contestant, Effort, Family, Row
from harness.jobs import Job, Measure, contestant, samples_per_second
from peers import LOADERS, headrace_loader

from rows.limits import POOL_BYTES, memcpy


class Pool:
    """Sample i is a copy of one of the arrays of a pool, and its number."""

    def __init__(self, shape: tuple[int, ...], dtype: str, length: int) -> None:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        count = max(4, min(1024, POOL_BYTES // size))
        self.pool = [np.full(shape, i % 251, dtype) for i in range(count)]
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.pool[index % len(self.pool)].copy(), index


class PoolInPlace(Pool):
    """The same, copied to the place in the batch that the loader gives."""

    def __init__(self, shape: tuple[int, ...], dtype: str, length: int) -> None:
        super().__init__(shape, dtype, length)
        self.sample_spec = ((shape, dtype), 0)

    def __getitem__(self, index: int, out: Any = None) -> Any:
        if out is None:
            return super().__getitem__(index)
        out[0][...] = self.pool[index % len(self.pool)]
        out[1][...] = index
        return out


@dataclasses.dataclass(frozen=True)
class Batches:
    """The job of rows of arrays.

    Attributes:
        count: of batches in an epoch.
        checked: of batches in an epoch whose content is compared.
    """

    shape: tuple[int, ...]
    dtype: str
    batch_size: int
    count: int
    checked: int
    workers: int = 2
    start_method: str = "fork"
    kind: type[Pool] = Pool

    @property
    def bytes(self) -> int:
        """Of the arrays of a batch."""
        return self.batch_size * math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __call__(self, effort: Effort) -> Job:
        length = self.batch_size * (self.checked if effort.short else self.count)
        dataset = self.kind(self.shape, self.dtype, length)
        return Job(dataset, self.batch_size, workers=self.workers, start_method=self.start_method)


TINY = Batches((8,), "float32", batch_size=32, count=6000, checked=200)
DIGITS = Batches((28, 28), "float32", batch_size=64, count=3000, checked=30)
IMAGES = Batches((3, 224, 224), "uint8", batch_size=64, count=600, checked=4)
VOLUMES = Batches((128, 128, 128), "float32", batch_size=2, count=600, checked=8)


def field(batches: Batches, measure: Measure) -> tuple[Contestant, ...]:
    """All loaders at the same work."""
    return tuple(contestant(peer, batches, measure) for peer in LOADERS)


def filling(batches: Batches) -> Contestant:
    """Ours with a dataset that fills rows of the batch."""
    made = contestant(headrace_loader, dataclasses.replace(batches, kind=PoolInPlace), samples_per_second)
    setting = "The dataset has a parameter `out`, and copies to the row of the batch that it is given."
    return dataclasses.replace(made, name="headrace, out", setting=setting)


def row(name: str, title: str, about: str, batches: Batches, aims: tuple[Aim, ...], in_place: bool = False) -> Row:
    """
    Args:
        in_place: also with a dataset that fills rows of the batch.
    """
    limits = [memcpy(batches.bytes, batches.batch_size, processes) for processes in (1, batches.workers)]
    own = [filling(batches)] if in_place else []
    return Row(name, title, about, "samples/s", (*field(batches, samples_per_second), *own, *limits), aims=aims)


FAMILY = Family(
    "arrays",
    "Arrays",
    "Samples that cost next to nothing: copies of arrays of a pool of 64 MiB, with their number. What is left is the "
    "loader's own work. Two workers.",
    (
        row(
            "tiny",
            "8 numbers",
            "32 bytes, batches of 32.",
            TINY,
            (Aim("torch", 80), Aim("best peer", 20), Aim("loop", 1.8)),
        ),
        row(
            "digits",
            "28 × 28",
            "float32, 3 KiB, batches of 64.",
            DIGITS,
            (Aim("torch", 15), Aim("best peer", 5.5), Aim("loop", 2.2)),
        ),
        row(
            "images",
            "3 × 224 × 224",
            "uint8, 147 KiB, batches of 64.",
            IMAGES,
            (
                Aim("torch", 5),
                Aim("best peer", 3),
                Aim("memcpy", 1.4),
                Aim("memcpy, 2 processes", 0.7, ours="headrace, out"),
            ),
            in_place=True,
        ),
        row(
            "volumes",
            "128³",
            "float32, 8 MiB, batches of 2.",
            VOLUMES,
            (Aim("torch", 3.6), Aim("best peer", 2), Aim("memcpy", 1)),
            in_place=True,
        ),
    ),
)
