"""Readers of arrays and files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import errors, reader
from headrace._core import RecordIOWriter


def write(path: Path, samples: list[Any]) -> str:
    writer = RecordIOWriter(str(path), max_num_records=3)
    for sample in samples:
        writer.write(pickle.dumps(sample))
    writer.close()
    return str(path)


def test_a_recordio_file_of_pickles_is_read_again_and_again(tmp_path: Path) -> None:
    samples: list[Any] = [(1, "word"), None, [], {"a": 2.5}, ([1, 2], 0), b"", "x" * 100_000]
    read = reader.creator.recordio(write(tmp_path / "data", samples), buf_size=2)
    for _ in range(2):
        assert list(read()) == samples


@pytest.mark.parametrize("form", ["list", "commas", "pattern"])
def test_several_files_come_one_after_the_other(tmp_path: Path, form: str) -> None:
    paths = [write(tmp_path / f"part-{i:05d}", list(range(4 * i, 4 * i + 4))) for i in range(3)]
    (tmp_path / "other").write_text("no part")
    given: Any = {"list": paths, "commas": ",".join(paths), "pattern": str(tmp_path / "part-*")}[form]
    assert list(reader.creator.recordio(given)()) == list(range(12))


def test_readers_of_readers_take_it(tmp_path: Path) -> None:
    read = reader.creator.recordio(tmp_path / "data")
    write(tmp_path / "data", [(i, i * i) for i in range(7)])
    assert list(reader.batch(reader.map_readers(sum, read), 3)()) == [[0, 2, 6], [12, 20, 30], [42]]


@pytest.mark.parametrize("name", ["nothing", "nothing-*"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match="nothing"):
        list(reader.creator.recordio(str(tmp_path / name))())


@pytest.mark.parametrize("record", [b"", b"text", b"\x80\xffabc"])
def test_what_is_no_pickle_is_told_with_file_and_record(tmp_path: Path, record: bytes) -> None:
    path = tmp_path / "data"
    writer = RecordIOWriter(str(path))
    writer.write(pickle.dumps(1))
    writer.write(record)
    writer.close()
    records = reader.creator.recordio(str(path))()
    assert next(records) == 1
    with pytest.raises(errors.DataLoss, match="data', record 1: it cannot be unpickled"):
        next(records)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(errors.DataLoss, match="data"):
        list(reader.creator.recordio(str(path))())


def test_batches_of_tensors_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "data"
    writer = RecordIOWriter(str(path))
    writer.append_tensor(np.zeros((2, 2), np.float32))
    with pytest.raises(errors.FailedPrecondition, match="complete_append_tensor"):
        writer.write(b"bytes")
    writer.complete_append_tensor()
    writer.close()
    with pytest.raises(errors.DataLoss, match="record 0"):
        list(reader.creator.recordio(str(path))())
