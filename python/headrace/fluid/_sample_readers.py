"""Functions over sample readers: functions without arguments that return an iterable of samples."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace import errors

__all__ = ["batch", "shuffle"]


def batch(
    reader: Callable[[], Iterable[Any]], batch_size: int, drop_last: bool = False
) -> Callable[[], Iterator[list[Any]]]:
    """A reader of lists of ``batch_size`` samples of ``reader``; the last one may be shorter unless ``drop_last``."""
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
        raise errors.InvalidArgument(f"batch_size has to be a positive number, got {batch_size!r}")

    def batches() -> Iterator[list[Any]]:
        samples: list[Any] = []
        for sample in reader():
            samples.append(sample)
            if len(samples) == batch_size:
                yield samples
                samples = []
        if samples and not drop_last:
            yield samples

    return batches


def shuffle(reader: Callable[[], Iterable[Any]], buf_size: int) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of ``reader``, shuffled (by Python's ``random``) within runs of ``buf_size``."""
    if not isinstance(buf_size, int) or isinstance(buf_size, bool) or buf_size <= 0:
        raise errors.InvalidArgument(f"buf_size has to be a positive number, got {buf_size!r}")

    def shuffled() -> Iterator[Any]:
        for run in batch(reader, buf_size)():
            random.shuffle(run)
            yield from run

    return shuffled
