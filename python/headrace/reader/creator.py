"""Readers of arrays and files."""

from __future__ import annotations

import glob
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace._core import RecordIOReader
from headrace.reader.decorator import buffered

__all__ = ["np_array", "recordio", "text_file"]


def np_array(x: Any) -> Callable[[], Iterator[Any]]:
    """A reader of the rows of an array, which has at least one dimension."""
    array = np.asarray(x)
    if array.ndim == 0:
        raise errors.InvalidArgument("x has to be an array of at least one dimension")
    return lambda: iter(array)


def text_file(path: str | os.PathLike[str]) -> Callable[[], Iterator[str]]:
    """A reader of the lines of a text file, in UTF-8, without their ends."""
    _check_path("path", path)

    def lines() -> Iterator[str]:
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n")

    return lines


def recordio(paths: str | os.PathLike[str] | Sequence[str], buf_size: int = 100) -> Callable[[], Iterator[Any]]:
    """A reader of the samples in RecordIO files, which a thread reads ahead.

    The records are pickles, as Fluid's ``dataset.common.convert`` writes them: only read files from a
    trusted source, since unpickling runs code. Files of ``fluid.recordio_writer`` hold batches, for
    ``layers.open_files``.

    Args:
        paths: a path, several that are separated by commas, or a list of them; each may be a pattern (``data-*``),
            whose files come in the order of their names.
        buf_size: number of samples to read ahead.

    Raises:
        IoError: there is no such file, when the reader is called.
        DataLoss: a file is damaged, or a record is not a pickle.
    """
    patterns = os.fspath(paths).split(",") if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(patterns, Sequence):
        raise errors.TypeMismatch(f"paths has to be a path or a list of them, got {type(paths).__name__}")
    for pattern in patterns:
        _check_path("each of paths", pattern)

    def samples() -> Iterator[Any]:
        for pattern in patterns:
            for path in sorted(glob.glob(pattern)) or [pattern]:
                yield from _unpickled(path)

    return buffered(samples, buf_size)


def _check_path(name: str, path: Any) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise errors.TypeMismatch(f"{name} has to be a path, got {type(path).__name__}")


def _unpickled(path: str) -> Iterator[Any]:
    for number, record in enumerate(RecordIOReader(path)):
        try:
            sample = pickle.loads(record)
        except Exception as error:  # pickle raises almost anything for other bytes; so may a class that has changed
            raise errors.DataLoss(
                f"'{path}', record {number}: it cannot be unpickled ({type(error).__name__}: {error})"
            ) from error
        yield sample
