"""torch.utils.data.DataLoader."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import contest
from harness.jobs import Job, Loader

NAME = "torch"
KIND = contest.PEER
PACKAGES = ("torch",)
SETTING = (
    "`torch.utils.data.DataLoader` with `persistent_workers=True`, or it would start workers in each epoch. Samples "
    "are tensors made by `torch.from_numpy`. What a `collate_fn` returns stays arrays, which it pickles: for batches "
    "as small as here, that is faster than descriptors of shared memory."
)


def as_tensors(value: Any) -> Any:
    """The same value, its arrays as tensors on the same memory."""
    import torch

    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, tuple):
        return tuple(map(as_tensors, value))
    if isinstance(value, dict):
        return {key: as_tensors(element) for key, element in value.items()}
    return value


class Tensors:
    """A dataset whose arrays are tensors."""

    def __init__(self, dataset: Any) -> None:
        import torch

        self._dataset, self._from_numpy = dataset, torch.from_numpy

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self._dataset[index]
        if isinstance(sample, np.ndarray):
            return self._from_numpy(sample)
        if type(sample) is tuple and len(sample) == 2 and not isinstance(sample[1], np.ndarray):
            return self._from_numpy(sample[0]), sample[1]  # an array and its label: the usual case, fast
        return as_tensors(sample)


def stream(source: Any) -> Any:
    """An iterable dataset of a stream, with tensors."""
    import torch

    class Shards(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = torch.utils.data.get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            for shard in source.shards[first::step]:
                yield from map(as_tensors, source.read(shard))

    return Shards()


def arguments(job: Job) -> dict[str, Any]:
    """Of the loader, and of those that take the same."""
    if job.is_stream:
        dataset = stream(job.dataset)
    elif job.make_tensors is not None:
        dataset = job.make_tensors()
    else:  # a function of arrays gets arrays
        dataset = job.dataset if job.collate is not None else Tensors(job.dataset)
    return {
        "dataset": dataset,
        "batch_size": job.batch_size,
        "num_workers": job.workers,
        "collate_fn": job.collate,
        "multiprocessing_context": job.start_method if job.workers else None,
        "persistent_workers": job.workers > 0,
    }


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    import torch.utils.data

    loader: Any = torch.utils.data.DataLoader(**arguments(job))
    yield Loader(lambda: loader)
