"""A sample as bytes: several arrays of any dtype and shape, each with a checksum, one after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.wirehead._format.compression import compress, decompress_into
from headrace.wirehead._stores.store import chunk_name

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Kind:
    """One array of a stored sample.

    Attributes:
        name: as in SAMPLE.
        dtype: of NumPy; see :func:`dtype_name`.
        shape: of the array.
        torch: the generator yielded a tensor of torch.
        compression: of the stored bytes: "none", "zlib", "zstd" or "lz4".
        length: how many bytes are stored.
        crc: CRC-32 of the stored bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    torch: bool
    compression: str
    length: int
    crc: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array itself."""
        return math.prod(self.shape) * dtype_named(self.dtype).itemsize

    def to_document(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Kind:
        """Raises KeyError, TypeError or ValueError if it is none."""
        values = {field.name: document[field.name] for field in dataclasses.fields(cls)}
        kind = cls(**{**values, "shape": tuple(int(n) for n in document["shape"])})
        if kind.length < 0 or any(n < 0 for n in kind.shape):
            raise ValueError(f"{kind.name} has shape {kind.shape} and {kind.length} bytes")
        if kind.compression == "none":
            try:
                expected = kind.nbytes
            except UnknownDtypeError:  # only a process that knows the dtype can tell
                return kind
            if kind.length != expected:
                raise ValueError(f"{kind.name} has {kind.length} bytes, expected {expected}")
        return kind


def check_description(description: Mapping[str, Any]) -> list[Kind]:
    """The kinds of a sample.

    Raises:
        KeyError, TypeError, ValueError: it is not a description, or its lengths do not add up.
    """
    kinds = [Kind.from_document(kind) for kind in description["kinds"]]
    chunk_bytes, length = int(description["chunk_bytes"]), sum(kind.length for kind in kinds)
    if length != description["length"]:
        raise ValueError(f"its arrays have {length} bytes, but its length is {description['length']}")
    if chunk_bytes < 1 or description["chunks"] != -(-length // chunk_bytes):
        raise ValueError(f"{description['chunks']} chunks of {chunk_bytes} bytes for {length} bytes")
    chunk_names(description, ())
    return kinds


def chunk_names(description: Mapping[str, Any], numbers: Iterable[int]) -> list[str]:
    """The names of a sample's chunks that have these numbers.

    Raises:
        KeyError, TypeError, ValueError: it is not a description.
    """
    part, number = int(description["part"]), int(description["number"])
    return [chunk_name(part, description["writer"], number, chunk) for chunk in numbers]


def chunk_lengths(description: Mapping[str, Any]) -> dict[str, int]:
    """The chunks of a sample that :func:`check_description` has found right: their lengths by their names."""
    length, chunk_bytes = int(description["length"]), int(description["chunk_bytes"])
    names = chunk_names(description, range(description["chunks"]))
    return {name: min(chunk_bytes, length - i * chunk_bytes) for i, name in enumerate(names)}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """A dtype as text. Those of ml_dtypes (bfloat16, …) go by their name.

    Raises:
        TypeError: the dtype holds Python objects or has fields.
    """
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise TypeError(f"samples hold numbers, strings or NumPy's dates (np.datetime64), but its dtype is {dtype}")
    is_extension = dtype.kind == "V" and not dtype.str.startswith("|V")
    return str(dtype.name if is_extension else dtype.str)


class UnknownDtypeError(ValueError):
    """This process does not know a dtype."""


def dtype_named(name: str) -> np.dtype[Any]:
    """The dtype that :func:`dtype_name` gave this name. UnknownDtypeError if there is none here."""
    with contextlib.suppress(TypeError, ValueError, SyntaxError):
        return np.dtype(name)
    try:
        dtype: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    except (ImportError, AttributeError, TypeError):
        raise UnknownDtypeError(f"its dtype {name!r} is unknown here: is ml_dtypes installed?") from None
    return dtype


@dataclasses.dataclass(frozen=True)
class NamedArray:
    """One array of a sample. C-contiguous; ``torch``: the generator yielded a tensor of torch."""

    name: str
    array: Array
    torch: bool


def arrays_of(sample: Any, names: Sequence[str]) -> list[NamedArray]:
    """The arrays of a sample. They may share its memory.

    Args:
        sample: a tuple or list of arrays, tensors or numbers in the order of ``names``; a dict with these keys; or,
            if there is one name, the array itself.
        names: the names in SAMPLE.

    Raises:
        TypeError, ValueError: the sample is not of that form; the message begins with "it".
    """
    if isinstance(sample, Mapping):
        if set(sample) != set(names):
            raise ValueError(
                f"it has the keys {list(sample)}, but SAMPLE is {list(names)}: yield a dict with these keys"
            )
        values = [sample[name] for name in names]
    elif isinstance(sample, (tuple, list)):
        values = list(sample)
    else:
        values = [sample]
    if len(values) != len(names):
        length = f" and length {len(values)}" if isinstance(sample, (tuple, list)) else ""
        raise ValueError(
            f"it is of type {type(sample).__name__}{length}, but SAMPLE is {list(names)}: yield "
            f"{f'a tuple of {len(names)} arrays' if len(names) > 1 else 'one array'}, or change SAMPLE"
        )
    return [NamedArray(name, *_as_array(value, name)) for name, value in zip(names, values)]


def encode(arrays: Sequence[NamedArray], compression: str) -> tuple[list[Kind], list[memoryview]]:
    """The kinds of arrays, and the bytes of each; uncompressed, these are the memory of the array.

    Args:
        compression: see :func:`headrace.wirehead._format.compression.compress`.
    """
    kinds, parts = [], []
    for named in arrays:
        array = named.array
        used, stored = compress(_bytes_of(array), compression)
        crc = zlib.crc32(stored)
        kinds.append(Kind(named.name, dtype_name(array.dtype), array.shape, named.torch, used, len(stored), crc))
        parts.append(stored)
    return kinds, parts


def _as_array(value: Any, name: str) -> tuple[Array, bool]:
    """A contiguous array, and whether it was a tensor."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_as_array(value, name, torch), True
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TypeError(f"its {name} has masked elements, which would be stored unmasked: yield its filled()")
    try:
        array = np.asarray(value)
        dtype_name(array.dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"its {name}, of type {type(value).__name__}, cannot be converted to an array: {error}"
        ) from None
    return (array if array.flags.c_contiguous else np.ascontiguousarray(array)), False


def _tensor_as_array(tensor: Any, name: str, torch: Any) -> Array:
    if tensor.layout != torch.strided or tensor.is_nested:
        raise TypeError(f"its {name} is a sparse or nested tensor: yield a dense one, as to_dense() or padding gives")
    try:
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        is_bfloat16 = tensor.dtype == torch.bfloat16
        array: Array = (tensor.view(torch.int16) if is_bfloat16 else tensor).numpy()
        if is_bfloat16:
            array = array.view(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError:
        raise TypeError(f"its {name} is a tensor of bfloat16, which needs `pip install ml_dtypes`") from None
    except (TypeError, RuntimeError) as error:  # of a dtype that NumPy does not have, or without data
        reason = " ".join(str(error).split())
        raise TypeError(f"its {name} is a tensor that cannot be converted to an array: {reason}") from error
    return array


def _bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    data: Any = array.reshape(-1).view(np.uint8) if array.size else bytearray()
    return memoryview(data)


def as_tensor(array: Array) -> Any:
    """A tensor over the same memory, unless its bytes are in the other order; of the dtypes that torch does not have,
    the array itself.
    """
    torch: Any = importlib.import_module("torch")
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(array)
    except TypeError:
        return array


class Decoder:
    """Puts one array together from the stored bytes, piece by piece, straight into its place.

    Args:
        kind: the kind of array.
        out: where to put the array: C-contiguous, of its shape and dtype. None: a fresh one.
    """

    def __init__(self, kind: Kind, out: Array | None = None) -> None:
        self.kind = kind
        self.array = np.empty(kind.shape, dtype_named(kind.dtype)) if out is None else out
        self._place = _bytes_of(self.array)
        self._crc = 0
        self._received = 0
        self._pieces: list[memoryview] = []

    @staticmethod
    def fits(kind: Kind, out: Any) -> bool:
        """Whether an array of this kind can be put into ``out``."""
        return (
            isinstance(out, np.ndarray)
            and out.shape == kind.shape
            and out.dtype == dtype_named(kind.dtype)
            and out.flags.c_contiguous
            and out.flags.writeable
        )

    def feed(self, piece: memoryview) -> None:
        """The next stored bytes."""
        self._crc = zlib.crc32(piece, self._crc)
        if self.kind.compression == "none":
            self._place[self._received : self._received + len(piece)] = piece
        else:
            self._pieces.append(piece)
        self._received += len(piece)

    def finish(self) -> Array:
        """The array.

        Raises:
            ValueError: length or checksum differ from those of the written data.
        """
        kind = self.kind
        if self._received != kind.length:
            raise ValueError(f"{kind.name} has {self._received} bytes, expected {kind.length}")
        if self._crc != kind.crc:
            raise ValueError(f"{kind.name} has checksum {self._crc:08x}, expected {kind.crc:08x}")
        if kind.compression != "none":
            length = decompress_into(kind.compression, self._pieces, self._place)
            if length != kind.nbytes:
                raise ValueError(f"{kind.name} decompresses to {length} bytes, expected {kind.nbytes}")
        return self.array


def pieces_of(kinds: Sequence[Kind], wanted: Sequence[str], chunk_bytes: int) -> Iterator[tuple[int, str, slice]]:
    """Where the bytes of some kinds are: number of the chunk, name of the kind, and which bytes of that chunk."""
    offset = 0
    for kind in kinds:
        end = offset + kind.length
        if kind.name in wanted:
            position = offset
            while position < end:
                chunk = position // chunk_bytes
                stop = min(end, (chunk + 1) * chunk_bytes)
                yield chunk, kind.name, slice(position - chunk * chunk_bytes, stop - chunk * chunk_bytes)
                position = stop
        offset = end


def cut(parts: Sequence[memoryview], chunk_bytes: int) -> Iterator[bytes | memoryview]:
    """The chunks of parts that follow one another; of one part that fits into a chunk, without a copy."""
    pending: list[memoryview] = []
    room = chunk_bytes
    for part in parts:
        while len(part) > 0:
            piece, part = part[:room], part[room:]
            pending.append(piece)
            room -= len(piece)
            if room == 0:
                yield pending[0] if len(pending) == 1 else b"".join(pending)
                pending, room = [], chunk_bytes
    if pending:
        yield pending[0] if len(pending) == 1 else b"".join(pending)
