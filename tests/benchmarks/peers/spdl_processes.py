"""SPDL's loader with the arguments of PyTorch's, of processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness import contest
from harness.jobs import Job, Loader

from peers.batches import Indices, needs_batches, needs_map_style, stack

NAME = "spdl, processes"
KIND = contest.PEER
PACKAGES = ("spdl",)
SETTING = (
    "`spdl.dataloader.get_pytorch_dataloader`, for work that holds the GIL, with `in_order=True`, as the "
    "others. Figures over several epochs are of an endless sampler, since each iteration starts workers."
)


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    needs_map_style(job, "it takes map-style datasets only")
    needs_batches(job, "it would be the same as with one sample per batch")
    from spdl.dataloader import get_pytorch_dataloader

    def loader(repeat: bool) -> Any:
        return get_pytorch_dataloader(
            job.dataset,
            batch_size=None,
            batch_sampler=Indices(job, repeat),
            num_workers=job.workers,
            collate_fn=job.collate or stack,
            multiprocessing_context=job.start_method,
            in_order=True,
        )

    yield Loader(lambda: loader(False), lambda: loader(True))
