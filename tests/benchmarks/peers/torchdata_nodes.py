"""torchdata's nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness import content, contest
from harness.jobs import Job, Loader

from peers.batches import Fetch, Indices, needs_map_style
from peers.torch_loader import as_tensors

NAME = "torchdata"
KIND = contest.PEER
PACKAGES = ("torchdata", "torch")
SETTING = (
    "`torchdata.nodes.ParallelMapper` with processes; a call makes a whole batch. Batches of 256 KiB and more are "
    "tensors in shared memory; smaller ones are arrays, which it pickles faster. `snapshot_frequency` is high, since "
    "states are not asked for. (Its `StatefulDataLoader` is PyTorch's loader with states.)"
)
LARGE = 256 << 10


class FetchTensors(Fetch):
    """Makes large batches of tensors, small ones of arrays."""

    def __call__(self, indices: list[int]) -> Any:
        batch = super().__call__(indices)
        size = sum(content.as_array(leaf).nbytes for leaf in content.leaves(batch))
        return as_tensors(batch) if size >= LARGE else batch


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    needs_map_style(job, "a stream would run in one process")
    from torchdata.nodes import IterableWrapper, ParallelMapper
    from torchdata.nodes import Loader as Nodes

    mapper = ParallelMapper(
        IterableWrapper(Indices(job)),
        FetchTensors(job),
        num_workers=job.workers,
        method="process",
        multiprocessing_context=job.start_method,
        snapshot_frequency=1 << 20,
    )
    loader = Nodes(mapper)
    yield Loader(lambda: loader)
