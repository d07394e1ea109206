"""tf.data over a Python function."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from harness import content, contest
from harness.jobs import Job, Loader

from peers.batches import Fetch, Indices, needs_map_style, needs_start_method

NAME = "tf.data"
KIND = contest.PEER
PACKAGES = ("tensorflow-cpu",)
SETTING = (
    "`tf.data.Dataset.range(…).map(tf.numpy_function, num_parallel_calls=workers).prefetch(2)`: a call makes a whole "
    "batch, since each costs some 100 µs. Samples that Python makes are the rare case for tf.data, which has no "
    "processes: its threads share the GIL."
)


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    needs_map_style(job, "a stream in Python would run in one of its threads")
    needs_start_method(job, ("fork",), "its threads share the process")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    fetch, indices = Fetch(job), list(Indices(job))
    first = fetch(indices[0])
    keys = list(first) if isinstance(first, dict) else None
    types = [tf.as_dtype(content.as_array(leaf).dtype) for leaf in content.leaves(first)]

    def make_batch(number: Any) -> list[Any]:
        return [np.asarray(leaf) for leaf in content.leaves(fetch(indices[int(number)]))]

    def dataset(repeat: bool) -> Any:
        numbers = tf.data.Dataset.range(len(indices))
        numbers = numbers.repeat() if repeat else numbers
        batches = numbers.map(lambda n: tf.numpy_function(make_batch, [n], types), num_parallel_calls=job.workers)
        return map(structured, batches.prefetch(2).as_numpy_iterator())

    def structured(arrays: Any) -> Any:
        return arrays if keys is None else dict(zip(keys, arrays))

    yield Loader(lambda: dataset(False), lambda: dataset(True))
