"""SPDL's pipelines, of threads in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness import content, contest
from harness.jobs import Job, Loader

from peers.batches import Fetch, Indices, needs_map_style, needs_start_method

NAME = "spdl, threads"
KIND = contest.PEER
PACKAGES = ("spdl",)
SETTING = (
    "`spdl.pipeline.run_pipeline_in_subprocess` with as many threads as others have workers: the way that SPDL "
    "recommends. A step makes a whole batch, since each step costs some 100 µs. Batches come through a "
    "`SharedMemorySegmentPool` of eight segments, without being pickled, and the source is continuous, so that the "
    "next epoch begins while one ends."
)
SEGMENTS = 8


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    needs_map_style(job, "a stream would run in one of its threads")
    needs_start_method(job, ("fork",), "its threads share one process")
    from spdl.pipeline import PipelineBuilder, SharedMemorySegmentPool, run_pipeline_in_subprocess

    fetch, indices = Fetch(job), Indices(job)
    first = fetch(next(iter(indices)))
    largest = sum(content.as_array(leaf).nbytes for leaf in content.leaves(first))
    pipeline: Any = PipelineBuilder().add_source(indices, continuous=True)
    pipeline = pipeline.pipe(fetch, concurrency=job.workers, output_order="input").add_sink(buffer_size=3)
    batches = run_pipeline_in_subprocess(
        pipeline.get_config(),
        num_threads=job.workers,
        mp_context="fork",
        arena=SharedMemorySegmentPool(4 * largest + (1 << 16), SEGMENTS),  # batches may differ
    )
    yield Loader(lambda: batches)
