"""What several loaders need: batches made by a function of their indices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from harness.contest import LeftOut
from harness.jobs import Job


def stack(samples: list[Any]) -> Any:
    """A batch: arrays of one more axis, in the structure of a sample."""
    first = samples[0]
    if isinstance(first, tuple):
        return tuple(stack(list(column)) for column in zip(*samples))
    if isinstance(first, dict):
        return {key: stack([sample[key] for sample in samples]) for key in first}
    return np.stack(samples) if isinstance(first, np.ndarray) else np.array(samples)


def grouped(samples: Iterable[Any], job: Job) -> Iterator[Any]:
    """Batches of samples that come one by one."""
    if job.batch_size is None:
        yield from samples
        return
    collate, batch = job.collate or stack, []
    for sample in samples:
        batch.append(sample)
        if len(batch) == job.batch_size:
            yield collate(batch)
            batch = []


class Fetch:
    """Makes the batch of some indices."""

    def __init__(self, job: Job) -> None:
        self._dataset, self._collate = job.dataset, job.collate or stack

    def __call__(self, indices: list[int]) -> Any:
        return self._collate([self._dataset[index] for index in indices])


class Indices:
    """Lists of indices, one for each batch of an epoch, or of one epoch after the other."""

    def __init__(self, job: Job, repeat: bool = False) -> None:
        self._length, self._size, self._repeat = len(job.dataset), job.batch_size or 1, repeat

    def __len__(self) -> int:
        return self._length // self._size

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            for begin in range(0, self._length, self._size):
                yield list(range(begin, begin + self._size))
            if not self._repeat:
                return


def needs_map_style(job: Job, why: str) -> None:
    """Raises LeftOut for a stream."""
    if job.is_stream:
        raise LeftOut(why)


def needs_batches(job: Job, why: str) -> None:
    """Raises LeftOut for samples that are batches."""
    if job.batch_size is None:
        raise LeftOut(why)


def needs_start_method(job: Job, methods: Iterable[str], why: str) -> None:
    """Raises LeftOut for others."""
    if job.start_method not in methods:
        raise LeftOut(why)


#: A shard of a stream to its samples; a class, since it is sent to workers.
class ReadShard:
    def __init__(self, read: Callable[[Any], Iterator[Any]]) -> None:
        self._read = read

    def __call__(self, shard: Any) -> list[Any]:
        return list(self._read(shard))
