"""paddle.io.DataLoader."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from harness import contest
from harness.jobs import Job, Loader

from peers.batches import Indices, needs_start_method

NAME = "paddle"
KIND = contest.PEER
PACKAGES = ("paddlepaddle",)
SETTING = (
    "`paddle.io.DataLoader` with `use_shared_memory=True`, its faster way. With `persistent_workers=True` it hangs at "
    "the end of an epoch, so figures over several epochs are of a sampler, or a stream, that starts again by itself."
)


def stream(job: Job, repeat: bool) -> Any:
    import paddle.io

    class Shards(paddle.io.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
        def __iter__(self) -> Iterator[Any]:
            info = paddle.io.get_worker_info()
            shards = job.dataset.shards[info.id :: info.num_workers]
            for shard in itertools.cycle(shards) if repeat else shards:
                yield from job.dataset.read(shard)

    return Shards()


def samples(job: Job) -> Any:
    import paddle.io

    class Samples(paddle.io.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
        def __getitem__(self, index: int) -> Any:
            return job.dataset[index]

        def __len__(self) -> int:
            return len(job.dataset)

    return Samples()


def batch_sampler(job: Job, repeat: bool) -> Any:
    import paddle.io

    class Batches(paddle.io.BatchSampler):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self) -> None:
            self._indices = Indices(job, repeat)

        def __iter__(self) -> Iterator[list[int]]:
            return iter(self._indices)

        def __len__(self) -> int:
            return len(self._indices)

    return Batches()


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    needs_start_method(job, ("fork",), "it always forks its workers")
    import paddle

    options: dict[str, Any] = {
        "places": paddle.CPUPlace(),
        "num_workers": job.workers,
        "collate_fn": job.collate,
        "use_shared_memory": True,
    }

    def loader(repeat: bool) -> Any:
        if job.is_stream:
            return paddle.io.DataLoader(stream(job, repeat), batch_size=job.batch_size, **options)
        if job.batch_size is None:
            return paddle.io.DataLoader(samples(job), batch_size=None, **options)
        return paddle.io.DataLoader(samples(job), batch_sampler=batch_sampler(job, repeat), **options)

    yield Loader(lambda: loader(False), lambda: loader(True))
