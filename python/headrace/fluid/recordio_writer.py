"""Writes what readers yield to RecordIO files, for ``layers.open_recordio_file`` and ``layers.open_files``."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid._checks import check_function, check_instance, check_integer, check_list, check_path
from headrace.fluid.data_feeder import DataFeeder

__all__ = ["convert_reader_to_recordio_file", "convert_reader_to_recordio_files", "create_recordio_writer"]

_SNAPPY = core.RecordIOWriter.Compressor.Snappy


@contextlib.contextmanager
def create_recordio_writer(
    filename: str,
    compressor: core.RecordIOWriter.Compressor = _SNAPPY,
    max_num_records: int = 1000,
) -> Iterator[core.RecordIOWriter]:
    """A writer that is closed in the end. If an error comes out of the block, there is no file."""
    writer = core.RecordIOWriter(
        check_path(filename, "filename"),
        check_instance(compressor, core.RecordIOWriter.Compressor, "compressor"),
        check_integer(max_num_records, "max_num_records"),
    )
    yield writer
    writer.close()


def convert_reader_to_recordio_file(
    filename: str,
    reader_creator: Callable[[], Iterable[Any]],
    feeder: DataFeeder,
    compressor: core.RecordIOWriter.Compressor = _SNAPPY,
    max_num_records: int = 1000,
    feed_order: Sequence[str] | None = None,
) -> int:
    """Writes a record for each batch (a list of samples) that ``reader_creator`` yields.

    Args:
        feeder: makes tensors of a batch.
        compressor: Snappy, Fluid's default, or NoCompress, which takes more room and less time.
        max_num_records: of a chunk, which is read as a whole.
        feed_order: the variables of ``feeder`` in the order of a record's tensors; None: the feeder's order.

    Returns:
        How many records were written.
    """
    check_function(reader_creator, "reader_creator")
    return _write(filename, reader_creator(), feeder, compressor, max_num_records, feed_order)


def convert_reader_to_recordio_files(
    filename: str,
    batch_per_file: int,
    reader_creator: Callable[[], Iterable[Any]],
    feeder: DataFeeder,
    compressor: core.RecordIOWriter.Compressor = _SNAPPY,
    max_num_records: int = 1000,
    feed_order: Sequence[str] | None = None,
) -> int:
    """As ``convert_reader_to_recordio_file``, with ``batch_per_file`` records to a file; the last one may have fewer.
    ``data.recordio`` makes ``data-00000.recordio``, ``data-00001.recordio``, …
    """
    check_function(reader_creator, "reader_creator")
    if check_integer(batch_per_file, "batch_per_file") <= 0:
        raise errors.InvalidArgument(f"batch_per_file has to be a positive number, got {batch_per_file!r}")
    base, extension = os.path.splitext(check_path(filename, "filename"))
    if extension != ".recordio":
        raise errors.InvalidArgument(f"the name of the files has to end in .recordio, got '{filename}'")
    batches = (batch for batch in reader_creator())
    written = 0
    for index, first in enumerate(batches):
        part = itertools.chain([first], itertools.islice(batches, batch_per_file - 1))
        name = f"{base}-{index:05d}{extension}"
        written += _write(name, part, feeder, compressor, max_num_records, feed_order)
    return written


def _write(
    filename: str,
    batches: Iterable[Any],
    feeder: DataFeeder,
    compressor: core.RecordIOWriter.Compressor,
    max_num_records: int,
    feed_order: Sequence[str] | None,
) -> int:
    check_instance(feeder, DataFeeder, "feeder")
    order = None if feed_order is None else check_list(feed_order, "feed_order")
    written = 0
    with create_recordio_writer(filename, compressor, max_num_records) as writer:
        for batch in batches:
            tensors = feeder.feed(batch)
            for name in tensors if order is None else order:
                if name not in tensors:
                    raise errors.NotFound(f"feed_order names '{name}', but the feeder makes {', '.join(tensors)}")
                writer.append_tensor(tensors[name])
            writer.complete_append_tensor()
            written += 1
    return written
