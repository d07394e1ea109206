"""Samples that take time: Python's, or that of something that is waited for."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from harness import content
from harness.contest import Aim, Effort, Family, Row
from harness.jobs import Job, contestant, samples_per_second
from peers import LOADERS, grain_loader, headrace_loader, torch_loader, torchdata_nodes
from texts import Texts, pad

BATCH_SIZE = 64


def padded_rows(batch: Any) -> Any:
    """The samples of such a batch, without their padding."""
    ids, lengths, labels = (content.as_array(batch[key]) for key in ("ids", "lengths", "labels"))
    return ((row[:length], label) for row, length, label in zip(ids, lengths, labels))


def ragged(effort: Effort) -> Job:
    texts = Texts(BATCH_SIZE * (30 if effort.short else 3000))
    return Job(texts, BATCH_SIZE, collate=pad, samples_of=padded_rows)


def spin(seconds: float) -> None:
    """Python's work, of which another thread can do nothing; processor time, since others may use the machine."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Busy:
    """Five milliseconds of Python for each sample."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        spin(5e-3)
        return np.full((28, 28), index, np.float32), index


class OneSlow(Busy):
    """Half a millisecond of Python, and 50 ms of waiting for one sample in a hundred."""

    def __getitem__(self, index: int) -> Any:
        spin(5e-4)
        if index % 100 == 37:
            time.sleep(0.05)
        return np.full((28, 28), index, np.float32), index


class Waiting(Busy):
    """Each sample waits for 5 ms, as for a network."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(5e-3)
        return np.full((28, 28), index, np.float32), index


def busy(effort: Effort) -> Job:
    return Job(Busy(32 * (4 if effort.short else 400)), 16)


def one_slow(effort: Effort) -> Job:
    return Job(OneSlow(32 * (10 if effort.short else 400)), 32)


def waiting(workers: int) -> Row:
    def job(effort: Effort) -> Job:
        return Job(Waiting(16 * (8 if effort.short else 400)), 16, workers=workers)

    peers = (headrace_loader, torch_loader, torchdata_nodes, grain_loader)
    return Row(
        f"waits-{workers}",
        f"waits, {workers} worker{'s' if workers > 1 else ''}",
        f"Samples that wait for 5 ms, batches of 16, {workers} worker{'s' if workers > 1 else ''} of one thread each.",
        "samples/s",
        tuple(contestant(peer, job, samples_per_second) for peer in peers),
        seconds=2,
    )


FAMILY = Family(
    "work",
    "Samples that take time",
    "What the dataset does is most of the work. Two workers, unless a row says something else.",
    (
        Row(
            "ragged",
            "ragged texts",
            "4 to 400 numbers (50 on average) and a label, padded by a `collate_fn` in Python, batches of 64.",
            "samples/s",
            tuple(contestant(peer, ragged, samples_per_second) for peer in LOADERS),
            aims=(Aim("torch", 25), Aim("best peer", 9), Aim("loop", 1.3)),
        ),
        Row(
            "busy",
            "5 ms of Python",
            "Each sample takes 5 ms of processor time in Python, batches of 16.",
            "samples/s",
            tuple(contestant(peer, busy, samples_per_second) for peer in LOADERS),
            aims=(Aim("best peer", 0.99),),
            seconds=3,
        ),
        Row(
            "one-slow",
            "1 slow in 100",
            "Each sample takes 0.5 ms of Python, one in a hundred waits for 50 ms more; batches of 32, in order.",
            "samples/s",
            tuple(contestant(peer, one_slow, samples_per_second) for peer in LOADERS),
            seconds=3,
        ),
        *(waiting(workers) for workers in (1, 2, 4, 8)),
    ),
)
