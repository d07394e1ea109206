"""Compression of arrays: which one pays, and back again straight into the array's place."""

from __future__ import annotations

import importlib
import importlib.util
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_SHORTEST = 1024  # bytes; shorter arrays are not worth a thought
_TRIALS, _TRIAL_BYTES = 4, 16384
_PAYS = 0.8  # of the length, at most, that a trial leaves
_INPUT, _OUTPUT = 1 << 14, 1 << 18  # bytes of input and output of a stream per step


def compress(data: memoryview, compression: str) -> tuple[str, memoryview]:
    """The bytes of an array as they are stored, and how they are compressed.

    Args:
        compression: "none", "zlib", "zstd", "lz4"; or "auto": by "zstd" (or "zlib", where zstandard is not installed)
            if a few pieces of the array become smaller by a fifth, else "none".

    Raises:
        ImportError: its library is not installed.
    """
    if compression == "auto":
        compression = _fast()
        if len(data) < _SHORTEST or not _pays(data, _compressor(compression)):
            return "none", data
    if compression == "none":
        return "none", data
    return compression, memoryview(_compressor(compression)(data))


def require_library(compression: str) -> None:
    """
    Raises:
        ImportError: :func:`compress` needs a library that is not installed.
    """
    if compression not in ("auto", "none"):
        _compressor(compression)


def _fast() -> str:
    return "zlib" if importlib.util.find_spec("zstandard") is None else "zstd"


def _pays(data: memoryview, compressor: Callable[[memoryview], bytes]) -> bool:
    if len(data) <= _TRIALS * _TRIAL_BYTES:
        pieces = [data]
    else:
        last = len(data) - _TRIAL_BYTES
        starts = (last * i // (_TRIALS - 1) for i in range(_TRIALS))
        pieces = [data[start : start + _TRIAL_BYTES] for start in starts]
    length = sum(map(len, pieces))
    return sum(len(compressor(piece)) for piece in pieces) < _PAYS * length


def _library(name: str, compression: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.split(".")[0]
        raise ImportError(f"COMPRESSION {compression} needs a library: pip install {package}") from None


def _compressor(compression: str) -> Callable[[memoryview], bytes]:
    if compression == "zlib":
        return lambda data: zlib.compress(data, 1)
    if compression == "zstd":
        compressor: Callable[[memoryview], bytes] = _library("zstandard", "zstd").ZstdCompressor(level=1).compress
        return compressor
    frame = _library("lz4.frame", "lz4")
    return lambda data: bytes(frame.compress(data))


def decompress_into(compression: str, pieces: Sequence[memoryview], place: memoryview) -> int:
    """Decompresses bytes into a place, a little at a time. Returns the number of bytes; if the data does not fit, some
    number greater than the length of the place.

    Args:
        pieces: the compressed bytes, which follow one another.

    Raises:
        ValueError: they are no such data.
        ImportError: the library is not installed.
    """
    if compression == "zstd":
        return _zstd_into(pieces, place)
    length = 0
    for part in _zlib_parts(pieces) if compression == "zlib" else _lz4_parts(pieces):
        if length + len(part) > len(place):
            return length + len(part)
        place[length : length + len(part)] = part
        length += len(part)
    return length


class _Source:
    """Pieces as a file."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._pieces = list(pieces)

    def read(self, size: int) -> memoryview:
        while self._pieces:
            piece = self._pieces[0]
            part, self._pieces[0] = piece[:size], piece[size:]
            if len(part) > 0:
                return part
            del self._pieces[0]
        return memoryview(b"")


def _zstd_into(pieces: Sequence[memoryview], place: memoryview) -> int:
    zstandard = _library("zstandard", "zstd")
    length = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(_Source(pieces)) as reader:
            while length < len(place):
                count = int(reader.readinto(place[length:]))
                if count == 0:
                    return length
                length += count
            return length + len(reader.read(1))
    except zstandard.ZstdError as error:
        raise ValueError(f"the bytes are not zstd data: {error}") from None


def _zlib_parts(pieces: Sequence[memoryview]) -> Iterator[bytes]:
    stream = zlib.decompressobj()
    try:
        for data in _slices(pieces):
            rest: memoryview | bytes = data
            while True:
                part = stream.decompress(rest, _OUTPUT)
                yield part
                rest = stream.unconsumed_tail
                if not rest and len(part) < _OUTPUT:
                    break
    except zlib.error as error:
        raise ValueError(f"the bytes are not zlib data: {error}") from None


def _lz4_parts(pieces: Sequence[memoryview]) -> Iterator[bytes]:
    stream = _library("lz4.frame", "lz4").LZ4FrameDecompressor()
    try:
        for data in _slices(pieces):
            if not stream.eof:
                yield stream.decompress(data, _OUTPUT)
            while not stream.needs_input and not stream.eof:
                yield stream.decompress(b"", _OUTPUT)
    except (RuntimeError, EOFError) as error:
        raise ValueError(f"the bytes are not lz4 data: {error}") from None


def _slices(pieces: Sequence[memoryview]) -> Iterator[memoryview]:
    for piece in pieces:
        for start in range(0, len(piece), _INPUT):
            yield piece[start : start + _INPUT]
