"""Data as people have it, in the formats of other libraries.

It is made of what packages ship, so nothing is downloaded: the photographs and the handwritten digits of scikit-learn,
and the texts of Python's own documentation.
"""

from __future__ import annotations

import functools
import importlib
import pydoc_data.topics
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from harness.contest import Aim, Contestant, Effort, Family, Row
from harness.jobs import Job, Peer, Stream, contestant, samples_per_second
from peers import LOADERS, plain_loop, torch_drop_in, torch_loader

from rows.python_work import pad, padded_rows


def photographs() -> list[Any]:
    """Two, of 427 × 640 pixels."""
    return list(importlib.import_module("sklearn.datasets").load_sample_images().images)


def patches(count: int, height: int, width: int) -> Iterator[Any]:
    """Parts of the photographs, uint8, [height, width, 3]."""
    images, rng = photographs(), np.random.default_rng(0)
    for number in range(count):
        image = images[number % len(images)]
        top, left = (rng.integers(0, size - part + 1) for size, part in zip(image.shape, (height, width)))
        yield image[top : top + height, left : left + width]


def small_patches(count: int) -> Any:
    """float32, [count, 3, 32, 32]."""
    return np.stack([patch.transpose(2, 0, 1) for patch in patches(count, 32, 32)]).astype(np.float32) / 255


def paragraphs() -> list[str]:
    """Of Python's documentation, of 20 characters and more."""
    texts = pydoc_data.topics.topics.values()
    return [part.strip() for text in texts for part in re.split(r"\n\s*\n", text) if len(part.strip()) >= 20]


class Repeated:
    """A dataset whose samples come again and again, as epochs do.

    Attributes:
        length: of its own samples.
        times: how often each comes.
    """

    length: int
    times: int

    def __len__(self) -> int:
        return self.length * self.times


class Jpegs(Repeated):
    """Pictures in files: decoded, cropped at random, flipped, scaled to 128 × 128 and normalised.

    The crop is drawn from the number of the sample, so that all loaders deliver the same.
    """

    def __init__(self, folder: Path, times: int) -> None:
        self.paths = sorted(folder.glob("*.jpg"))
        self.length, self.times = len(self.paths), times

    def __getitem__(self, index: int) -> Any:
        image = importlib.import_module("PIL.Image")
        rng = np.random.default_rng(index)
        with image.open(self.paths[index % self.length]) as file:
            picture = file.convert("RGB")
        size = int(rng.uniform(0.5, 1.0) * picture.height)
        left, top = rng.integers(0, picture.width - size + 1), rng.integers(0, picture.height - size + 1)
        picture = picture.resize((128, 128), image.Resampling.BILINEAR, box=(left, top, left + size, top + size))
        pixels = np.asarray(picture)[:, :: -1 if rng.random() < 0.5 else 1]
        return (pixels.transpose(2, 0, 1).astype(np.float32) - 127.5) / 64, index % 10


def make_jpegs(effort: Effort) -> None:
    image = importlib.import_module("PIL.Image")
    for number, patch in enumerate(patches(64, 375, 500)):
        image.fromarray(patch).save(effort.folder / f"{number:03}.jpg", quality=90)


class Hdf5(Repeated):
    """Rows of an HDF5 file, which each worker opens for itself."""

    def __init__(self, path: Path, times: int) -> None:
        self.path, self.times = path, times
        with importlib.import_module("h5py").File(path) as file:
            self.length = len(file["images"])
        self.images: Any = None
        self.labels: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.images is None:
            file = importlib.import_module("h5py").File(self.path)
            self.images, self.labels = file["images"], file["labels"][:]
        row = index % self.length
        return self.images[row], self.labels[row]


def make_hdf5(effort: Effort) -> None:
    count = 512 if effort.short else 4096
    with importlib.import_module("h5py").File(effort.folder / "data.h5", "w") as file:
        file["images"] = small_patches(count)
        file["labels"] = np.arange(count) % 10


class HuggingFace(Repeated):
    """Rows of a map-style dataset: 128 tokens and a label."""

    def __init__(self, folder: Path, times: int, format: str) -> None:
        library = importlib.import_module("datasets")
        library.disable_progress_bars()
        self.rows = library.load_from_disk(str(folder / "tokens")).with_format(format)
        self.length, self.times = len(self.rows), times

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % self.length]


def make_hugging_face(effort: Effort) -> None:
    library = importlib.import_module("datasets")
    library.disable_progress_bars()
    encoded = b"\n".join(text.encode() for text in paragraphs())
    count = 512 if effort.short else 4096
    ids = np.resize(np.frombuffer(encoded, np.uint8), (count, 128)).astype(np.int64)  # bytes are tokens
    rows = library.Dataset.from_dict({"input_ids": ids, "labels": np.arange(count) % 2})
    rows.save_to_disk(str(effort.folder / "tokens"))


class Tokenised(Repeated):
    """Texts that a tokenizer, trained on them, makes numbers of."""

    def __init__(self, folder: Path, times: int) -> None:
        tokenizers = importlib.import_module("tokenizers")
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.texts = paragraphs()
        self.length, self.times = len(self.texts) // 32 * 32, times

    def __getitem__(self, index: int) -> Any:
        return {"ids": np.array(self.tokenizer.encode(self.texts[index % self.length]).ids), "label": index % 2}


def make_tokenizer(effort: Effort) -> None:
    tokenizers = importlib.import_module("tokenizers")
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(paragraphs(), vocab_size=5000, show_progress=False)
    tokenizer.save(str(effort.folder / "tokenizer.json"))


class Parquet(Stream):
    """Rows of Parquet files: the 64 pixels of a digit, and which it is."""

    def __init__(self, folder: Path) -> None:
        self.shards = sorted(folder.glob("*.parquet"))

    def read(self, shard: Any) -> Iterator[Any]:
        file = importlib.import_module("pyarrow.parquet").ParquetFile(shard)
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            pixels = table["pixels"].combine_chunks().flatten().to_numpy().reshape(len(table), -1).copy()
            yield from zip(pixels, table["label"].to_pylist())


def make_parquet(effort: Effort) -> None:
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    digits = importlib.import_module("sklearn.datasets").load_digits()
    rows = 1024 if effort.short else 8192
    pixels = np.resize(digits.data.astype(np.float32), (rows, 64))
    column = arrow.FixedSizeListArray.from_arrays(pixels.ravel(), 64)
    table = arrow.table({"pixels": column, "label": np.resize(digits.target, rows)})
    for shard in range(8):
        parquet.write_table(table, effort.folder / f"{shard}.parquet", row_group_size=1024)


class Tars(Stream):
    """Arrays in tar files, labelled by their names."""

    def __init__(self, folder: Path) -> None:
        self.shards = sorted(folder.glob("*.tar"))

    def read(self, shard: Any) -> Iterator[Any]:
        with tarfile.open(shard) as archive:
            for member in archive:
                file: Any = archive.extractfile(member)
                yield np.load(BytesIO(file.read())), int(member.name.partition(".")[0])


def make_tars(effort: Effort) -> None:
    images = small_patches(128 if effort.short else 1024)
    for shard in range(8):
        with tarfile.open(effort.folder / f"{shard}.tar", "w") as archive:
            for number, image in enumerate(images):
                buffer = BytesIO()
                np.save(buffer, image)
                member = tarfile.TarInfo(f"{number}.npy")
                member.size = buffer.tell()
                buffer.seek(0)
                archive.addfile(member, buffer)


def repeated(
    kind: Callable[..., Any], batch_size: int, times: int, *path: str, **options: Any
) -> Callable[[Effort], Job]:
    """The job of a map-style dataset, each of whose samples comes so often; once to compare contents."""

    def job(effort: Effort) -> Job:
        return Job(kind(effort.folder.joinpath(*path), 1 if effort.short else times), batch_size, **options)

    return job


def hugging_face(effort: Effort) -> Job:
    times = 1 if effort.short else 64
    tensors = functools.partial(HuggingFace, effort.folder, times)
    return Job(tensors("numpy"), 64, make_tensors=lambda: tensors("torch"))


def tensor_dataset(effort: Effort) -> Job:
    import torch
    from torch.utils.data import TensorDataset

    images = np.concatenate([small_patches(1024)] * (1 if effort.short else 32))[:, :, ::2, ::2].copy()
    labels = np.arange(len(images))
    arrays = list(zip(images, labels))  # what the loop gets
    return Job(arrays, 64, make_tensors=lambda: TensorDataset(torch.from_numpy(images), torch.from_numpy(labels)))


def stream(kind: Callable[[Path], Stream]) -> Callable[[Effort], Job]:
    return lambda effort: Job(kind(effort.folder), 64)


def field(job: Callable[[Effort], Job], peers: Iterable[Peer] = LOADERS) -> tuple[Contestant, ...]:
    return tuple(contestant(peer, job, samples_per_second) for peer in peers)


FAMILY = Family(
    "real",
    "Real data",
    "Files in the formats of other libraries, made of what scikit-learn and Python ship: photographs, handwritten "
    "digits and texts. Each dataset reads as the library's documentation does, and keeps files open in each worker. "
    "Two workers.",
    (
        Row(
            "jpeg",
            "JPEG folder",
            "Photographs of 500 × 375, decoded and resized by Pillow, cropped, flipped, normalised; batches of 32.",
            "samples/s",
            field(repeated(Jpegs, 32, 64)),
            aims=(Aim("torch", 1.1), Aim("torch", 1.1, ours="headrace.torch")),
            prepare=make_jpegs,
            seconds=4,
        ),
        Row(
            "hdf5",
            "HDF5",
            "Rows of 12 KiB by h5py, batches of 64.",
            "samples/s",
            field(repeated(Hdf5, 64, 64, "data.h5")),
            prepare=make_hdf5,
        ),
        Row(
            "parquet",
            "Parquet stream",
            "Rows of 256 bytes and a label by pyarrow, eight files, batches of 64.",
            "samples/s",
            field(stream(Parquet)),
            prepare=make_parquet,
        ),
        Row(
            "hugging-face",
            "Hugging Face",
            "Rows of 128 tokens and a label by `datasets`, map-style, batches of 64. The loop and loaders of arrays "
            'read `with_format("numpy")`, loaders of tensors `with_format("torch")`.',
            "samples/s",
            field(hugging_face),
            prepare=make_hugging_face,
        ),
        Row(
            "tokens",
            "tokenised text",
            "Paragraphs by `tokenizers` (byte-level BPE), one by one, padded by a `collate_fn`, batches of 32.",
            "samples/s",
            field(repeated(Tokenised, 32, 64, collate=pad, samples_of=padded_rows)),
            prepare=make_tokenizer,
            seconds=2,
        ),
        Row(
            "tar",
            "tar stream",
            "Arrays of 12 KiB in eight tar files by Python's `tarfile`, batches of 64.",
            "samples/s",
            field(stream(Tars)),
            prepare=make_tars,
        ),
        Row(
            "tensors",
            "TensorDataset",
            "Rows of 3 KiB of `torch.utils.data.TensorDataset`, batches of 64; the loop's are arrays.",
            "samples/s",
            field(tensor_dataset, (plain_loop, torch_drop_in, torch_loader)),
        ),
    ),
)
