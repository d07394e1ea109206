"""RecordIO files: written from readers, read by reader operators."""

from __future__ import annotations

import gc
import os
import re
import struct
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import recordio_writer
from headrace.fluid.framework import Variable

layers = fluid.layers


def samples(count: int, start: int = 0) -> Any:
    """Batches of two samples: a row of numbers, and a sentence of words."""

    def reader() -> Iterable[list[tuple[Any, Any]]]:
        for i in range(start, start + count):
            yield [(np.full(3, i + k / 2, np.float32), [i] * (k + 1)) for k in range(2)]

    return reader


def feeder() -> fluid.DataFeeder:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        row = layers.data("row", [3])
        words = layers.data("words", [1], dtype="int64", lod_level=1)
    return fluid.DataFeeder([row, words], fluid.CPUPlace(), row.block.program)


Compressor = fluid.core.RecordIOWriter.Compressor


def write(
    path: Path, count: int, start: int = 0, per_chunk: int = 1000, compressor: Compressor = Compressor.NoCompress
) -> str:
    wrote = recordio_writer.convert_reader_to_recordio_file(
        str(path), samples(count, start), feeder(), compressor, per_chunk
    )
    assert wrote == count
    return str(path)


SPECS: Any = ([[-1, 3], [-1, 1]], [0, 1], ["float32", "int64"])


def read_all(exe: fluid.Executor, reader: Any, outs: list[Variable]) -> list[int]:
    """The numbers of the batches of a pass, each of which is checked as a whole."""
    numbers = []
    with pytest.raises(fluid.core.EOFException):
        while True:
            row, words = exe.run(fetch_list=outs, return_numpy=False)
            number = int(np.asarray(words)[0, 0])
            np.testing.assert_array_equal(np.asarray(row), [[number] * 3, [number + 0.5] * 3])
            np.testing.assert_array_equal(np.asarray(words), [[number]] * 3)
            assert words.recursive_sequence_lengths() == [[1, 2]]
            numbers.append(number)
    reader.reset()
    return numbers


@pytest.mark.parametrize("compressor", [Compressor.NoCompress, Compressor.Snappy])
@pytest.mark.parametrize("per_chunk", [1, 2, 1000])
def test_what_is_written_is_read_in_every_pass(
    exe: fluid.Executor, tmp_path: Path, per_chunk: int, compressor: Compressor
) -> None:
    reader = layers.open_recordio_file(write(tmp_path / "data", 5, 0, per_chunk, compressor), *SPECS)
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    for _ in range(3):
        assert read_all(exe, reader, outs) == [0, 1, 2, 3, 4]


def test_the_format_is_fluids(tmp_path: Path) -> None:
    data = Path(write(tmp_path / "data", 3, per_chunk=2)).read_bytes()
    counts = []
    while data:
        magic, records, checksum, compressor, size = struct.unpack("<5I", data[:20])
        payload, data = data[20 : 20 + size], data[20 + size :]
        assert (magic, compressor, checksum) == (0x01020304, 0, zlib.crc32(payload))
        counts.append(records)
        for _ in range(records):
            (length,) = struct.unpack_from("<I", payload)
            assert struct.unpack_from("<I", payload, 4) == (2,)  # tensors
            payload = payload[4 + length :]
        assert payload == b""
    assert counts == [2, 1]


def test_chunks_are_compressed_unless_they_are_not_to_be(tmp_path: Path) -> None:
    def zeros() -> Iterable[Any]:
        for _ in range(50):
            yield [(np.zeros(3, np.float32), [0] * 40)]

    plain, compressed = tmp_path / "plain", tmp_path / "compressed"
    recordio_writer.convert_reader_to_recordio_file(str(plain), zeros, feeder(), Compressor.NoCompress)
    recordio_writer.convert_reader_to_recordio_file(str(compressed), zeros, feeder())
    assert compressed.read_bytes()[12:16] == struct.pack("<I", 1)
    assert compressed.read_bytes()[20:27] == b"snappy\0"
    assert compressed.stat().st_size < plain.stat().st_size / 4


def test_decorators_and_passes(exe: fluid.Executor, tmp_path: Path) -> None:
    reader = layers.open_recordio_file(write(tmp_path / "data", 4), *SPECS, pass_num=2)
    reader = layers.double_buffer(layers.shuffle(reader, 8))
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    numbers = read_all(exe, reader, outs)
    assert sorted(numbers) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(read_all(exe, reader, outs)) == sorted(numbers)


def test_a_readers_iterator_may_begin_anew_whenever_it_is_asked_for_one(tmp_path: Path) -> None:
    class Restarting:
        def __iter__(self) -> Any:
            self.left = iter(samples(5)())
            return self

        def __next__(self) -> Any:
            return next(self.left)

    name = str(tmp_path / "part.recordio")
    assert recordio_writer.convert_reader_to_recordio_files(name, 2, Restarting, feeder()) == 5
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_several_files_are_read_at_once(exe: fluid.Executor, tmp_path: Path, threads: int) -> None:
    before = set(os.listdir("/proc/self/task"))
    written = recordio_writer.convert_reader_to_recordio_files(
        str(tmp_path / "part.recordio"), 4, samples(10), feeder()
    )
    assert written == 10
    files = sorted(str(path) for path in tmp_path.iterdir())
    assert [Path(file).name for file in files] == [f"part-{i:05d}.recordio" for i in range(3)]
    reader = layers.open_files(files, *SPECS, thread_num=threads, buffer_size=2)
    outs = layers.read_file(reader)
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        for _ in range(3):
            numbers = read_all(exe, reader, outs)
            assert sorted(numbers) == list(range(10))
            for first in (0, 4, 8):  # those of a file stay in order
                of_file = [n for n in numbers if first <= n < first + 4]
                assert of_file == sorted(of_file)
        exe.run(fetch_list=outs, return_numpy=False)  # ends in the middle of a pass
        assert set(os.listdir("/proc/self/task")) - before
    gc.collect()
    deadline = time.monotonic() + 100
    while set(os.listdir("/proc/self/task")) - before:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_pass_over_files_can_be_cut_short_and_repeats_in_a_test(exe: fluid.Executor, tmp_path: Path) -> None:
    files = [write(tmp_path / str(i), 5, 5 * i) for i in range(3)]
    reader = layers.open_files(files, *SPECS, thread_num=3, is_test=True, pass_num=2)
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    for _ in range(3):
        exe.run(fetch_list=outs, return_numpy=False)
        reader.reset()
    assert read_all(exe, reader, outs) == [*range(15), *range(15)]


def damage(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0x10
    Path(path).write_bytes(data)


def test_a_damaged_chunk_is_named_and_passed_over(exe: fluid.Executor, tmp_path: Path) -> None:
    path = write(tmp_path / "data", 6, per_chunk=2)
    size = len(Path(path).read_bytes()) // 3
    damage(path, size + 60)
    reader = layers.open_recordio_file(path, *SPECS)
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        exe.run(fetch_list=outs, return_numpy=False)
        exe.run(fetch_list=outs, return_numpy=False)
        with pytest.raises(errors.DataLoss, match=r"data', chunk 1, from record 2: the checksum of its 2 records"):
            exe.run(fetch_list=outs, return_numpy=False)
        assert read_all(exe, reader, outs) == [4, 5]


def test_damaged_headers_and_ends_are_named_each_time(exe: fluid.Executor, tmp_path: Path) -> None:
    path = write(tmp_path / "data", 2, per_chunk=1)
    whole = Path(path).read_bytes()
    half = len(whole) // 2
    reader = layers.open_recordio_file(path, *SPECS)
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    cases = {
        "its header is damaged": whole[:half] + b"\0" + whole[half + 1 :],
        r"bytes are expected, \d+ are left": whole[:-1],
        "ends within its header": whole[: half + 7],
    }
    for message, data in cases.items():
        Path(path).write_bytes(data)
        reader.reset()
        exe.run(fetch_list=outs, return_numpy=False)
        for _ in range(2):
            with pytest.raises(errors.DataLoss, match=rf"data', chunk 1, from record 1: .*{message}"):
                exe.run(fetch_list=outs, return_numpy=False)


def chunk(payload: bytes, records: int = 1, compressor: int = 0) -> bytes:
    return struct.pack("<5I", 0x01020304, records, zlib.crc32(payload), compressor, len(payload)) + payload


def test_records_that_hold_no_batch_are_named(exe: fluid.Executor, tmp_path: Path) -> None:
    path = tmp_path / "data"
    record = lambda data: struct.pack("<I", len(data)) + data  # noqa: E731
    path.write_bytes(
        chunk(record(b""))
        + chunk(record(struct.pack("<I", 0)))
        + chunk(struct.pack("<I", 100) + b"short")
        + chunk(record(b"x"), compressor=1)
        + chunk(record(b"x"), compressor=2)
        + chunk(record(struct.pack("<IIQQ", 1, 0, 1, 2**60)))
        + chunk(record(struct.pack("<IIQIi", 1, 0, 0, 0, 6) + b"\x08\x05" + b"\x10\xff\xff\x7f"))
    )
    reader = layers.open_recordio_file(str(path), *SPECS)
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    for number, (error, message) in enumerate(
        [
            (errors.DataLoss, "ends within the number of tensors"),
            (errors.DataLoss, "holds 0 tensors"),
            (errors.DataLoss, "it is cut off"),
            (errors.DataLoss, "not a Snappy stream"),
            (NotImplementedError, "gzip"),
            (errors.DataLoss, "LoD level 0 has"),
            (errors.DataLoss, "only 0 bytes are left"),
        ]
    ):
        with pytest.raises(error, match=message) as caught:
            exe.run(fetch_list=outs)
        if number != 4:
            assert f"data', record {number}" in str(caught.value) or f"record {number}:" in str(caught.value)
    with pytest.raises(fluid.core.EOFException):
        exe.run(fetch_list=outs)


def read_past_damage(exe: fluid.Executor, reader: Any, out: Variable) -> list[int | str]:
    """The numbers of the batches of a pass, and in place of a damaged chunk where it is."""
    found: list[int | str] = []
    while len(found) < 20:
        try:
            found.append(int(np.asarray(exe.run(fetch_list=[out], return_numpy=False)[0])[0, 0]))
        except fluid.core.EOFException:
            break
        except errors.DataLoss as error:
            found += re.findall(r"\w+', chunk \d", str(error))
    reader.reset()
    return found


@pytest.mark.parametrize("threads", [1, 2])
def test_a_damaged_chunk_of_one_of_several_files_is_passed_over(
    exe: fluid.Executor, tmp_path: Path, threads: int
) -> None:
    files = [write(tmp_path / "a", 6, per_chunk=2), write(tmp_path / "b", 6, 10, per_chunk=2)]
    damage(files[0], len(Path(files[0]).read_bytes()) // 3 + 60)
    reader = layers.open_files(files, *SPECS, thread_num=threads, is_test=threads == 1)
    _, words = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    expected: list[int | str] = [0, 1, "a', chunk 1", 4, 5, *range(10, 16)]
    for _ in range(2):
        found = read_past_damage(exe, reader, words)
        assert sorted(found, key=expected.index) == expected
        assert threads > 1 or found == expected


def test_a_file_whose_header_is_damaged_does_not_hold_up_the_others(exe: fluid.Executor, tmp_path: Path) -> None:
    files = [write(tmp_path / "a", 6), write(tmp_path / "b", 3, 10)]
    damage(files[0], 0)
    reader = layers.open_files(files, *SPECS, is_test=True)
    _, words = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        assert read_past_damage(exe, reader, words) == ["a', chunk 0", 10, 11, 12]


def test_records_may_differ_from_what_is_declared(exe: fluid.Executor, tmp_path: Path) -> None:
    shapes = [[7, 4], [-1, 1]]
    reader = layers.open_recordio_file(write(tmp_path / "data", 2), shapes, *SPECS[1:])
    x, _ = layers.read_file(reader)
    doubled = layers.scale(x, 2.0)
    exe.run(fluid.default_startup_program())
    before, after = exe.run(fetch_list=[x, doubled], return_numpy=False)
    assert before.shape() == [2, 3]
    np.testing.assert_array_equal(after, 2 * np.array(before))


@pytest.mark.parametrize("open_file", ["open_recordio_file", "open_files"])
def test_what_an_operator_cannot_make_of_a_record_is_refused(
    exe: fluid.Executor, tmp_path: Path, open_file: str
) -> None:
    reader = getattr(layers, open_file)(write(tmp_path / "data", 2), [[-1, 4], [-1, 1]], *SPECS[1:])
    x, _ = layers.read_file(reader)
    out = layers.mul(x, layers.fill_constant([4, 2], "float32", 1.0))
    exe.run(fluid.default_startup_program())
    with pytest.raises(ValueError, match=rf"'{x.name}'.*\[2, 3\]"):
        exe.run(fetch_list=[out])


def test_the_types_of_a_record_count_and_its_tensors_are_counted(exe: fluid.Executor, tmp_path: Path) -> None:
    path = write(tmp_path / "data", 2)
    reader = layers.open_recordio_file(path, SPECS[0], SPECS[1], ["float64", SPECS[2][1]])
    x, _ = layers.read_file(reader)
    doubled = layers.scale(x, 2.0)
    exe.run(fluid.default_startup_program())
    before, after = exe.run(fetch_list=[x, doubled], return_numpy=False)
    assert [before.dtype(), after.dtype()] == ["float32", "float32"]
    np.testing.assert_array_equal(after, 2 * np.array(before))
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        x, _ = layers.read_file(layers.open_recordio_file(path, SPECS[0], SPECS[1], ["float64", SPECS[2][1]]))
        out = layers.elementwise_add(x, layers.fill_constant([3], "float64", 1.0))
        exe.run(fluid.default_startup_program())
        with pytest.raises(TypeError, match=r"expected dtype float32 as input X has, got float64"):
            exe.run(fetch_list=[out])
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        out = layers.read_file(layers.open_recordio_file(path, *(spec[:1] for spec in SPECS)))
        exe.run(fluid.default_startup_program())
        with pytest.raises(ValueError, match=r"batch 0: expected 1 tensor, for read_file_\d+.tmp_0, got 2"):
            exe.run(fetch_list=[out], return_numpy=False)


def test_files_that_are_not_there(exe: fluid.Executor, tmp_path: Path) -> None:
    layers.open_recordio_file(str(tmp_path / "nowhere"), *SPECS)
    with pytest.raises(OSError, match="nowhere"):
        exe.run(fluid.default_startup_program())
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        layers.open_files([str(tmp_path / "absent")], *SPECS)
        with pytest.raises(OSError, match="absent"):
            exe.run(fluid.default_startup_program())


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"2 shapes, 2 dtypes and 1 LoD level$"):
        layers.open_recordio_file("data", SPECS[0], [0], SPECS[2])
    with pytest.raises(ValueError, match="'file_names' of 'open_files'"):
        layers.open_files([], *SPECS)
    for name in ("thread_num", "buffer_size"):
        with pytest.raises(ValueError, match=name):
            layers.open_files(["data"], *SPECS, **{name: 0})
    with pytest.raises(ValueError, match="at least 1 record"):
        fluid.core.RecordIOWriter(str(tmp_path / "data"), max_num_records=0)
    with pytest.raises(NotImplementedError, match="gzip"):
        fluid.core.RecordIOWriter(str(tmp_path / "data"), Compressor.Gzip)
    with pytest.raises(ValueError, match=r"\.recordio"):
        recordio_writer.convert_reader_to_recordio_files(str(tmp_path / "data"), 2, samples(2), feeder())
    with pytest.raises(ValueError, match="positive"):
        recordio_writer.convert_reader_to_recordio_files(str(tmp_path / "d.recordio"), 0, samples(2), feeder())
    with pytest.raises(KeyError, match="feed_order names 'sentence'"):
        recordio_writer.convert_reader_to_recordio_file(
            str(tmp_path / "data"), samples(2), feeder(), feed_order=["sentence"]
        )
    assert list(tmp_path.iterdir()) == []


def test_a_writer_leaves_a_whole_file_or_none(tmp_path: Path) -> None:
    def fails() -> Iterable[Any]:
        yield from samples(3)()
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        recordio_writer.convert_reader_to_recordio_file(str(tmp_path / "data"), fails, feeder(), max_num_records=1)
    writer = fluid.core.RecordIOWriter(str(tmp_path / "data"))
    writer.append_tensor(np.zeros(3, np.float32))
    with pytest.raises(RuntimeError, match="not been completed"):
        writer.close()
    with pytest.raises(RuntimeError, match="needs a tensor"):
        writer.complete_append_tensor() or writer.complete_append_tensor()  # type: ignore[func-returns-value]
    del writer
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "no folder").write_text("a file")
    with pytest.raises(OSError, match="no folder"):
        fluid.core.RecordIOWriter(str(tmp_path / "no folder" / "data"))
