"""The work without any loader."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness import contest
from harness.jobs import Job, Loader

from peers.batches import grouped

NAME = "loop"
KIND = contest.LOOP
PACKAGES = ("numpy",)
SETTING = (
    "A `for` loop in the main process: it gets the samples of a batch one by one and stacks them by `numpy.stack`."
)


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    dataset = job.dataset

    def samples() -> Iterator[Any]:
        if job.is_stream:
            return (sample for shard in dataset.shards for sample in dataset.read(shard))
        return (dataset[index] for index in range(len(dataset)))

    yield Loader(lambda: grouped(samples(), job))
