"""Datasets of the libraries that people train from: the drop-in gives what PyTorch's loader gives, batch by batch."""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

from headrace.torch import DataLoader  # noqa: E402

CLASSES = (DataLoader, torch_data.DataLoader)


def library(name: str) -> Any:
    """A module, or a reason to skip the test."""
    pytest.importorskip(name.partition(".")[0], reason=f"{name.partition('.')[0]} is not installed")
    return importlib.import_module(name)


def same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        same(list(got.values()), list(expected.values()))
    elif isinstance(expected, (list, tuple)):
        assert len(got) == len(expected)
        for mine, theirs in zip(got, expected):
            same(mine, theirs)
    else:
        assert got == expected


def compare(dataset: Any, workers: int, **arguments: Any) -> None:
    """Two epochs, the second shuffled alike if the first was."""
    epochs = []
    for kind in CLASSES:
        torch.manual_seed(3)
        loader = kind(dataset, num_workers=workers, **arguments)
        epochs.append([list(loader), list(loader)])
    assert epochs[0][0]
    same(epochs[0], epochs[1])


both = pytest.mark.parametrize("workers", [0, 2])


@both
def test_torchvision_images(workers: int, tmp_path: Path) -> None:
    image, datasets = library("PIL.Image"), library("torchvision.datasets")
    v2 = library("torchvision.transforms.v2")
    rng = np.random.default_rng(0)
    for label in ("left", "right"):
        (tmp_path / label).mkdir()
        for i in range(5):
            picture = image.fromarray(rng.integers(0, 255, (20, 30, 3), np.uint8))
            picture.save(tmp_path / label / f"{i}.jpg")
    transform = v2.Compose([v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    compare(datasets.ImageFolder(tmp_path, transform), workers, batch_size=3, shuffle=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_torchvision_augmentations(workers: int) -> None:
    v2 = library("torchvision.transforms.v2")
    datasets = library("torchvision.datasets")
    transform = v2.Compose([v2.ToImage(), v2.RandomCrop(16), v2.RandomHorizontalFlip()])
    dataset = datasets.FakeData(12, (3, 24, 24), 5, transform)
    compare(dataset, workers, batch_size=4, shuffle=True)


@both
@pytest.mark.parametrize("kept", ["Tensor", "TVTensor"])
def test_torchvision_types(kept: str, workers: int) -> None:
    tv_tensors = library("torchvision.tv_tensors")
    samples = [(tv_tensors.Image(torch.full((3, 2, 2), i)), {"mask": tv_tensors.Mask(torch.ones(2))}) for i in range(5)]
    with tv_tensors.set_return_type(kept):
        compare(samples, workers, batch_size=2)


class Rows(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Rows of a store that each worker opens for itself."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: Any = None

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Any:
        if self.store is None:
            self.store = self.open()
        return {"x": self.store["x"][index], "y": self.store["y"][index]}

    def open(self) -> Any:
        raise NotImplementedError


class Hdf5Rows(Rows):
    def open(self) -> Any:
        return importlib.import_module("h5py").File(self.path)


class ZarrRows(Rows):
    def open(self) -> Any:
        return importlib.import_module("zarr").open_group(self.path, mode="r")


def columns() -> dict[str, Any]:
    return {"x": np.arange(66, dtype=np.float32).reshape(11, 6), "y": np.arange(11)}


@both
def test_h5py(workers: int, tmp_path: Path) -> None:
    with library("h5py").File(tmp_path / "rows.h5", "w") as file:
        for name, values in columns().items():
            file[name] = values
    compare(Hdf5Rows(tmp_path / "rows.h5"), workers, batch_size=4, shuffle=True)


@both
def test_zarr(workers: int, tmp_path: Path) -> None:
    group = library("zarr").open_group(tmp_path / "rows.zarr", mode="w")
    for name, values in columns().items():
        group[name] = values
    compare(ZarrRows(tmp_path / "rows.zarr"), workers, batch_size=4, shuffle=True)


class ParquetStream(torch_data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Any]:
        file = importlib.import_module("pyarrow.parquet").ParquetFile(self.path)
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for group in range(first, file.num_row_groups, step):
            yield from file.read_row_group(group).to_pylist()


@both
def test_pyarrow(workers: int, tmp_path: Path) -> None:
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    table = arrow.table({"x": np.arange(20) / 4, "y": np.arange(20), "text": [f"row {i}" for i in range(20)]})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=3)
    compare(ParquetStream(tmp_path / "rows.parquet"), workers, batch_size=4)


@both
def test_webdataset(workers: int, tmp_path: Path) -> None:
    webdataset = library("webdataset")
    for shard in range(3):
        with tarfile.open(tmp_path / f"{shard}.tar", "w") as archive:
            for i in range(5):
                array = io.BytesIO()
                np.save(array, np.full((2, 2), 10 * shard + i, np.float32))
                for suffix, content in (("npy", array.getvalue()), ("cls", b"%d" % i)):
                    member = tarfile.TarInfo(f"{shard}{i}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    urls = [str(tmp_path / f"{shard}.tar") for shard in range(3)]
    dataset = webdataset.WebDataset(urls, shardshuffle=False).decode().to_tuple("npy", "cls")
    compare(dataset, workers, batch_size=2)


@both
@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_hugging_face_rows(form: str | None, workers: int) -> None:
    datasets = library("datasets")
    rows = datasets.Dataset.from_dict(
        {"x": [[i, i + 1] for i in range(11)], "y": list(range(11)), "t": list("abcdefghijk")}
    )
    compare(rows.with_format(form), workers, batch_size=4, shuffle=True)


@both
def test_hugging_face_streams(workers: int) -> None:
    datasets = library("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(24))})
    stream = rows.to_iterable_dataset(num_shards=4).shuffle(seed=5, buffer_size=6)
    for epoch in (0, 2):
        stream.set_epoch(epoch)
        compare(stream, workers, batch_size=4)


@both
def test_hugging_face_streams_resume(workers: int) -> None:
    datasets = library("datasets")

    def make() -> DataLoader:
        rows = datasets.Dataset.from_dict({"x": list(range(24))})
        return DataLoader(rows.to_iterable_dataset(num_shards=4), batch_size=3, num_workers=workers)

    loader = make()
    expected = list(loader)
    for taken in (1, 3, len(expected)):
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        resumed = make()
        resumed.load_state_dict(loader.state_dict())
        same(list(resumed), expected[taken:])
    for _ in batches:
        pass
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    same(list(resumed), expected)
