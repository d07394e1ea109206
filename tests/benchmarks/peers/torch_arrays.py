"""torch.utils.data.DataLoader with NumPy arrays."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from harness import contest
from harness.jobs import Job, Loader

from peers import torch_loader
from peers.batches import needs_batches, needs_map_style, stack

NAME = "torch, arrays"
KIND = contest.PEER
PACKAGES = ("torch",)
SETTING = (
    "The same with a `collate_fn` that stacks NumPy arrays, as programs of JAX use it. It pickles arrays: faster than "
    "descriptors of shared memory where batches are small, slower where they are large."
)


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    needs_map_style(job, "the row's batches are tensors")
    needs_batches(job, "there is nothing to stack")
    if job.collate is not None:
        raise contest.LeftOut("it is the same as torch, whose collate_fn returns arrays here")
    with torch_loader.make(dataclasses.replace(job, collate=stack)) as loader:
        yield loader
