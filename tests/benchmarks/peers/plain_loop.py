"""The work without any loader."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from harness import contest
from harness.jobs import Job, Loader

NAME = "loop"
KIND = contest.LOOP
PACKAGES = ("numpy",)
SETTING = (
    "A `for` loop in the main process: it gets the samples of a batch one by one and stacks them by `numpy.stack`."
)


def stack(samples: list[Any]) -> Any:
    """A batch: arrays of one more axis, in the structure of a sample."""
    first = samples[0]
    if isinstance(first, tuple):
        return tuple(stack(list(column)) for column in zip(*samples))
    if isinstance(first, dict):
        return {key: stack([sample[key] for sample in samples]) for key in first}
    return np.stack(samples) if isinstance(first, np.ndarray) else np.array(samples)


def batches(samples: Iterable[Any], job: Job) -> Iterator[Any]:
    if job.batch_size is None:
        yield from samples
        return
    collate = job.collate or stack
    batch = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == job.batch_size:
            yield collate(batch)
            batch = []


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    dataset = job.dataset

    def samples() -> Iterator[Any]:
        if job.is_stream:
            return (sample for shard in dataset.shards for sample in dataset.read(shard))
        return (dataset[index] for index in range(len(dataset)))

    yield Loader(lambda: batches(samples(), job))
