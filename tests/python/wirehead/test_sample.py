"""Samples as bytes."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from headrace.wirehead import MongoTupleheadDataset, WireheadGenerator
from headrace.wirehead._format.sample import Decoder, arrays_of, cut, encode, pieces_of

ARRAYS = [
    np.arange(24, dtype=np.float64).reshape(2, 3, 4),
    np.arange(24, dtype=">i4").reshape(4, 6),
    np.array(3.5, np.float16),
    np.zeros((0, 3), np.uint8),
    np.array([True, False]),
    np.array([1 + 2j], np.complex64),
    np.array(["a", "bcd"]),
    np.array(["2026-11-21"], "M8[ns]"),
    np.asfortranarray(np.arange(12).reshape(3, 4)),
    np.arange(20)[::3],
]


def roundtrip(arrays: list[Any], chunk_bytes: int, compression: str = "none") -> list[Any]:
    names = [f"kind{i}" for i in range(len(arrays))]
    kinds, parts = encode(arrays_of(tuple(arrays), names), compression)
    chunks = [bytes(chunk) for chunk in cut(parts, chunk_bytes)]
    assert all(len(chunk) == chunk_bytes for chunk in chunks[:-1])
    decoders = {kind.name: Decoder(type(kind).from_document(kind.to_document())) for kind in kinds}
    for number, name, part in pieces_of(kinds, names, chunk_bytes):
        decoders[name].feed(memoryview(chunks[number])[part])
    return [decoders[name].finish() for name in names]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 10**6])
@pytest.mark.parametrize("compression", ["auto", "none", "zlib", "zstd", "lz4"])
def test_any_dtype_and_shape_in_chunks_of_any_size(chunk_bytes: int, compression: str) -> None:
    if compression in ("zstd", "lz4"):
        pytest.importorskip({"zstd": "zstandard", "lz4": "lz4"}[compression])
    for array, result in zip(ARRAYS, roundtrip(ARRAYS, chunk_bytes, compression)):
        assert result.dtype == array.dtype
        assert result.shape == array.shape
        assert (result == array).all()


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    (result,) = roundtrip([np.arange(5).astype(ml_dtypes.bfloat16)], 4)
    assert result.dtype == ml_dtypes.bfloat16
    assert result.astype(int).tolist() == [0, 1, 2, 3, 4]


def test_tensors(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    tensors = torch.arange(6).reshape(2, 3).t(), torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    WireheadGenerator([tensors] * 5, config).run()
    first, second = MongoTupleheadDataset(config)[0]
    assert torch.equal(first, tensors[0])
    assert second.dtype == torch.bfloat16
    assert MongoTupleheadDataset(config, to="numpy")[0][0].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_tensors_that_are_views_of_other_numbers(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    WireheadGenerator([(numbers.conj(), numbers.conj().imag)] * 5, config).run()
    first, second = MongoTupleheadDataset(config)[0]
    assert torch.equal(first, torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(second, torch.tensor([-2.0, 4]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda torch: torch.eye(2).to_sparse(), r"its data is a sparse or nested tensor: yield a dense one"),
        (lambda torch: torch.eye(2, device="meta"), "its data is a tensor that cannot be .*no data"),
        (lambda torch: torch.eye(2).to(torch.float8_e4m3fn), "its data is a tensor that cannot be .*Float8_e4m3fn"),
    ],
)
def test_a_tensor_that_numpy_cannot_hold_is_named(make: Any, message: str, config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=f"^sample 1 of this generator cannot be stored: {message}"):
        WireheadGenerator([(1, 2), (make(torch), 2)], config).run()


def test_tensors_of_arrays_in_the_other_byte_order(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    WireheadGenerator([(np.arange(4, dtype=">i4"), np.array([0.5, -2], ">f4"))] * 5, config).run()
    first, second = MongoTupleheadDataset(config)[0]
    assert torch.equal(first, torch.arange(4, dtype=torch.int32))
    assert torch.equal(second, torch.tensor([0.5, -2]))
    assert MongoTupleheadDataset(config, to="numpy")[0][0].dtype == ">i4"


HOW = r"SAMPLE is \['data', 'label'\]: yield a tuple of 2 arrays, or change SAMPLE"


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        ((np.zeros(2),), ValueError, f"it is of type tuple and length 1, but {HOW}"),
        ([1, 2, 3], ValueError, f"it is of type list and length 3, but {HOW}"),
        (np.zeros(2), ValueError, f"it is of type ndarray, but {HOW}"),
        (None, ValueError, f"it is of type NoneType, but {HOW}"),
        (
            {"data": 1, 2: 2},
            ValueError,
            r"it has the keys \['data', 2\], but SAMPLE is \['data', 'label'\]: yield a dict",
        ),
        (
            (np.zeros(2), object()),
            TypeError,
            "its label, of type object, cannot be .*: samples hold numbers.*object",
        ),
        (
            (np.zeros(2), datetime.date(2020, 1, 2)),
            TypeError,
            r"its label, of type date, cannot be .*: samples hold .* NumPy's dates \(np\.datetime64\)",
        ),
        (
            (np.zeros(2, [("a", "i4")]), 0),
            TypeError,
            "its data, of type ndarray, cannot be .*: samples hold numbers",
        ),
        (
            ([[1], [1, 2]], 0),
            TypeError,
            "its data, of type list, cannot be converted to an array: .*inhomogeneous",
        ),
        ((np.ma.array([1, 2], mask=[0, 1]), 0), TypeError, r"its data has masked elements.*: yield its filled\(\)$"),
    ],
)
def test_a_sample_of_another_form_is_named(
    sample: Any, error: type[Exception], message: str, config: dict[str, Any]
) -> None:
    generator = WireheadGenerator([(1, 2), (3, 4), sample], config)
    with pytest.raises(error, match=f"^sample 2 of this generator cannot be stored: {message}") as caught:
        generator.run()
    assert "\n" not in str(caught.value)
    assert generator.stored == 2


def test_a_generator_whose_samples_change_shape_says_so_once(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    samples = [(np.zeros(length), length) for length in (3, 3, 4, 3, 5)]
    assert WireheadGenerator(samples, config).run() == 5
    (said,) = [record.getMessage() for record in caplog.records if "shape" in record.getMessage()]
    assert said.startswith("data of sample 2 of this generator has shape (4,), but earlier samples have (3,): ")
    assert "ragged= or a collate_fn" in said


def test_a_bit_that_changed_is_found() -> None:
    for compression in ("none", "zlib"):
        kinds, parts = encode(arrays_of(np.arange(100), ["data"]), compression)
        damaged = bytearray(parts[0])
        damaged[50] ^= 1
        decoder = Decoder(kinds[0])
        decoder.feed(memoryview(damaged))
        with pytest.raises(ValueError, match="data has checksum"):
            decoder.finish()
        decoder = Decoder(kinds[0])
        decoder.feed(memoryview(parts[0])[:-1])
        with pytest.raises(ValueError, match="bytes, expected"):
            decoder.finish()
