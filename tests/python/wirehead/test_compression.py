"""Compression: when it pays, and how much memory it takes to undo."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.wirehead import Config, MongoTupleheadDataset, WireheadGenerator
from headrace.wirehead._command_line.commands import main
from headrace.wirehead._format.compression import compress, decompress_into
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer

LIBRARIES = {"zlib": "zlib", "zstd": "zstandard", "lz4": "lz4"}
NOISE = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)
LABELS = np.repeat(np.arange(64, dtype=np.uint8), 1 << 14)


@pytest.fixture(params=LIBRARIES)
def compression(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    pytest.importorskip(LIBRARIES[name])
    return name


def test_auto_compresses_what_becomes_smaller() -> None:
    used, stored = compress(memoryview(LABELS), "auto")
    assert used in ("zlib", "zstd")
    assert len(stored) < len(LABELS) / 10
    used, stored = compress(memoryview(NOISE), "auto")
    assert (used, stored.obj) == ("none", NOISE)
    assert compress(memoryview(b""), "auto") == ("none", b"")
    # Half of it is noise: what is left is three quarters.
    assert compress(memoryview(np.concatenate([NOISE, LABELS])), "auto")[0] in ("zlib", "zstd")


def test_auto_does_without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert compress(memoryview(LABELS), "auto")[0] == "zlib"


def test_auto_leaves_a_folder_as_it_is() -> None:
    keys: dict[str, Any] = {"SWAP_CAP": 1, "DBNAME": "x"}
    assert Config.load(keys).compression_of_arrays == "none"
    assert Config.load({**keys, "MONGOHOST": "db"}).compression_of_arrays == "auto"
    assert Config.load({**keys, "COMPRESSION": "zlib"}).compression_of_arrays == "zlib"


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(ImportError, match="COMPRESSION lz4 needs a library: pip install lz4"):
        compress(memoryview(LABELS), "lz4")


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_library_that_is_missing_is_named_before_anything_is_generated(
    location: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    keys = {**location, "SWAP_CAP": 2, "COMPRESSION": "lz4"}
    with pytest.raises(ImportError, match="COMPRESSION lz4 needs a library: pip install lz4"):
        WireheadGenerator([(1, 2)], keys)
    (tmp_path / "config.json").write_text(json.dumps(keys))
    path = str(tmp_path / "config.json")
    assert main(["generate", "--config", path, "wirehead_functions:none"]) == 2
    assert capsys.readouterr().err == "headrace.wirehead: COMPRESSION lz4 needs a library: pip install lz4\n"
    assert main(["status", "--config", path]) == 0
    Cache(keys).close()
    with pytest.raises(TimeoutError):  # who reads may need another library, or none: the cache says so
        MongoTupleheadDataset(keys, timeout=0)


def in_pieces(stored: memoryview, length: int) -> list[memoryview]:
    return [stored[start : start + length] for start in range(0, len(stored), length)]


@pytest.mark.parametrize("length", [7, 1000, 1 << 30])
@pytest.mark.parametrize("array", [LABELS, NOISE[: 1 << 16]], ids=["labels", "noise"])
def test_pieces_are_decompressed_into_their_place(compression: str, array: Any, length: int) -> None:
    _, stored = compress(memoryview(array), compression)
    place = np.zeros_like(array)
    assert decompress_into(compression, in_pieces(stored, length), memoryview(place)) == len(array)
    assert (place == array).all()


def test_what_is_longer_or_shorter_than_its_place_shows(compression: str) -> None:
    _, stored = compress(memoryview(LABELS), compression)
    assert decompress_into(compression, [stored], memoryview(bytearray(100))) > 100
    assert decompress_into(compression, [stored], memoryview(bytearray(len(LABELS) + 1))) == len(LABELS)
    assert decompress_into(compression, [stored[: len(stored) // 2]], memoryview(bytearray(len(LABELS)))) < len(LABELS)
    with pytest.raises(ValueError, match=f"not {compression} data"):
        decompress_into(compression, [memoryview(bytes(NOISE[:1000]))], memoryview(bytearray(10)))


def test_a_volume_is_decompressed_without_a_second_one(compression: str) -> None:
    volume = np.tile(LABELS, 16)
    _, stored = compress(memoryview(volume), compression)
    place = np.zeros_like(volume)
    assert peak(lambda: decompress_into(compression, [stored], memoryview(place))) < len(volume) / 8
    assert (place == volume).all()


def peak(action: Any) -> int:
    """The most bytes that Python and NumPy had allocated during a call beyond what they had before."""
    action()  # what is made once
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["none", "auto"])
def test_a_sample_is_read_into_its_row_without_a_second_volume(location: dict[str, Any], name: str) -> None:
    volume = np.tile(LABELS, 8)
    cache = Cache({**location, "SWAP_CAP": 1, "COMPRESSION": name})
    writer, reader = Writer(cache), Reader(cache, ("data", "label"))
    writer.put((volume, np.uint8(1)))
    assert GenerationManager(cache).step() is not None
    row = {"data": np.zeros_like(volume), "label": np.zeros((), np.uint8)}
    generation = reader.pin_current(10)
    used = peak(lambda: reader.read(generation, 0, row))
    assert (row["data"] == volume).all()
    # What a driver receives is in memory twice for a moment, as a message and as its documents.
    received = 0 if cache.config.is_local else 2 * sum(kind.length for kind in reader.describe(generation, 0))
    assert used < received + len(volume) / 8
    writer.close()
    reader.close()
    cache.close()
