"""Grain's datasets."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from harness import contest
from harness.jobs import Job, Loader

from peers.batches import needs_start_method

NAME = "grain"
KIND = contest.PEER
PACKAGES = ("grain",)
SETTING = (
    "`grain.MapDataset.source(…).batch(…).to_iter_dataset(…).mp_prefetch(…)`, the interface that Grain recommends, "
    "with batches made in the workers. `num_threads=0`: threads within a worker compete for the GIL. "
    "`per_worker_buffer_size=2`, as PyTorch has. Figures over several epochs are of `repeat()`, since each iteration "
    "starts workers."
)


def dataset_of(job: Job, repeat: bool) -> Any:
    import grain
    import grain.experimental

    options = grain.ReadOptions(num_threads=0)
    source = grain.MapDataset.source(job.dataset.shards if job.is_stream else job.dataset)
    if job.is_stream:
        read = job.dataset.read

        class Read(grain.experimental.FlatMapTransform):
            max_fan_out = 1 << 30

            def flat_map(self, element: Any) -> list[Any]:  # it takes nothing that has no length
                return list(read(element))

        source = source.repeat() if repeat else source
        samples = grain.experimental.FlatMapIterDataset(source.to_iter_dataset(options), Read())
        batches = samples.batch(job.batch_size, batch_fn=job.collate)
    else:
        if job.batch_size is not None:
            source = source.batch(job.batch_size, batch_fn=job.collate)
        batches = (source.repeat() if repeat else source).to_iter_dataset(options)
    workers = grain.MultiprocessingOptions(num_workers=job.workers, per_worker_buffer_size=2)
    return batches.mp_prefetch(workers)


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    from absl import flags

    logging.getLogger("absl").setLevel(logging.ERROR)
    flags.FLAGS.mark_as_parsed()  # which it would be, of a program of absl
    needs_start_method(job, ("fork", "spawn"), "it always spawns its workers")
    with contextlib.ExitStack() as stack:

        def start(repeat: bool) -> Any:
            iterator = iter(dataset_of(job, repeat))
            stack.callback(iterator.close)
            return iterator

        yield Loader(lambda: start(False), lambda: start(True))
