"""headrace.DataLoader."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness import contest
from harness.jobs import Job, Loader

NAME = "headrace"
KIND = contest.OURS
PACKAGES = ("headrace", "numpy")
SETTING = (
    "`headrace.DataLoader` with `persistent_workers=True`, as torch's, and NumPy arrays. (Without it, the loader "
    "checks at each epoch whether the dataset has changed.)"
)


class Shards:
    """Of a stream, those of a worker."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        from headrace.data import get_worker_info

        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for shard in self._stream.shards[first::step]:
            yield from self._stream.read(shard)


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    import headrace

    loader: Any = headrace.DataLoader(
        Shards(job.dataset) if job.is_stream else job.dataset,
        batch_size=job.batch_size,
        num_workers=job.workers,
        collate_fn=job.collate,
        persistent_workers=job.workers > 0,
        multiprocessing_context=job.start_method,
        iterable_sharding="dataset" if job.is_stream else None,
        seed=1,
    )
    try:
        yield Loader(lambda: loader)
    finally:
        loader.shutdown()
