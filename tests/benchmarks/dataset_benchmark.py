#!/usr/bin/env python3
"""headrace.torch.DataLoader beside torch's, with the datasets of the libraries that people train from.

Each case generates its data in a temporary folder and reads it as the library's documentation does, such that torch's
loader fares well: files stay open in each worker, and samples are tensors where the library gives a choice. Both
loaders run in the same process, with the same dataset, arguments and number of persistent workers, in turns, so that
whatever else the machine does hits both alike; the figures are medians over the rounds, the ratios medians of the
rounds' ratios. Each round makes both loaders anew and warms them up: where a worker's allocator finds memory differs
from process to process, and with it the speed, by up to a tenth. A run goes through as many epochs as its time allows;
its first batches are not counted. Cases whose library is not installed are left out.

"seeding" is what the drop-in does for each sample that several workers may make: it seeds the global generators of
random, numpy.random and torch. It is measured alone, in microseconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import itertools
import json
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from loader_benchmark import Contestant, installed
from torch.utils import data

from headrace.data._randomness.sample_seeds import position_key, seed_generators
from headrace.torch import DataLoader

WORDS = ["water", "wheel", "mill", "stream", "gate", "stone", "flour", "channel", "river", "turns", "slowly", "again"]


class TarStream(data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Arrays with labels from tar files, of which each worker reads some."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for path in self.paths[first::step]:
            with tarfile.open(path) as archive:
                for member in archive:
                    file = archive.extractfile(member)
                    assert file is not None
                    yield np.load(BytesIO(file.read())), int(member.name.partition(".")[0])


class Jpegs(data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Pictures decoded by Pillow and augmented by torchvision."""

    def __init__(self, paths: list[Path]) -> None:
        v2 = importlib.import_module("torchvision.transforms.v2")
        self.paths = paths
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(128, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.5] * 3, [0.25] * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths) * 64

    def __getitem__(self, index: int) -> Any:
        with importlib.import_module("PIL.Image").open(self.paths[index % len(self.paths)]) as image:
            return self.transform(image.convert("RGB")), index % 10


class Hdf5(data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Rows of an HDF5 file, which each worker opens for itself."""

    def __init__(self, path: Path, length: int) -> None:
        self.path, self.length = path, length
        self.images: Any = None
        self.labels: Any = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.images is None:
            file = importlib.import_module("h5py").File(self.path)
            self.images, self.labels = file["images"], file["labels"][:]
        return self.images[index], self.labels[index]


class Parquet(data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Rows of a Parquet file, of whose row groups each worker reads some."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[Any]:
        file = importlib.import_module("pyarrow.parquet").ParquetFile(self.path)
        info = data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for group in range(first, file.num_row_groups, step):
            table = file.read_row_group(group)
            features = table["features"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
            yield from zip(torch.from_numpy(features.copy()), table["label"].to_pylist())


class Texts(data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Sentences that a tokenizer turns into ids."""

    def __init__(self, texts: list[str]) -> None:
        tokenizers = importlib.import_module("tokenizers")
        self.tokenizer = tokenizers.ByteLevelBPETokenizer()
        self.tokenizer.train_from_iterator(texts, vocab_size=400, show_progress=False)
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts) * 64

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.tokenizer.encode(self.texts[index % len(self.texts)]).ids)


def pad(samples: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def hugging_face(folder: Path) -> Any:
    datasets = importlib.import_module("datasets")
    rng = np.random.default_rng(0)
    columns = {"input_ids": rng.integers(0, 30000, (20_000, 128)).tolist(), "labels": rng.integers(0, 2, 20_000)}
    return datasets.Dataset.from_dict(columns).with_format("torch")


def jpegs(folder: Path) -> Any:
    image = importlib.import_module("PIL.Image")
    rng = np.random.default_rng(0)
    paths = []
    for i in range(64):
        smooth = image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8)).resize((500, 375))
        paths.append(folder / f"{i}.jpg")
        smooth.save(paths[-1])
    return Jpegs(paths)


def hdf5(folder: Path, rows_per_chunk: int | None = None) -> Any:
    rng = np.random.default_rng(0)
    chunks = None if rows_per_chunk is None else (rows_per_chunk, 3, 32, 32)
    with importlib.import_module("h5py").File(folder / "data.h5", "w") as file:
        file.create_dataset("images", data=rng.random((8_000, 3, 32, 32), np.float32), chunks=chunks)
        file["labels"] = rng.integers(0, 10, 8_000)
    return Hdf5(folder / "data.h5", 8_000)


def chunked_hdf5(folder: Path) -> Any:
    """Each look-up of a row reads all 64 of its chunk."""
    return hdf5(folder, rows_per_chunk=64)


def parquet(folder: Path) -> Any:
    arrow = importlib.import_module("pyarrow")
    rng = np.random.default_rng(0)
    features = arrow.FixedSizeListArray.from_arrays(rng.random(80_000 * 256, np.float32), 256)
    table = arrow.table({"features": features, "label": rng.integers(0, 10, 80_000)})
    importlib.import_module("pyarrow.parquet").write_table(table, folder / "data.parquet", row_group_size=2_000)
    return Parquet(folder / "data.parquet")


def texts(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    return Texts([" ".join(rng.choice(WORDS, rng.integers(10, 40))) for _ in range(1_000)])


def tars(folder: Path) -> Any:
    rng = np.random.default_rng(0)
    paths = []
    for shard in range(8):
        paths.append(folder / f"{shard}.tar")
        with tarfile.open(paths[-1], "w") as archive:
            for i in range(1_000):
                buffer = BytesIO()
                np.save(buffer, rng.random((3, 32, 32), np.float32))
                member = tarfile.TarInfo(f"{i}.npy")
                member.size = buffer.tell()
                buffer.seek(0)
                archive.addfile(member, buffer)
    return TarStream(paths)


def webdataset(folder: Path) -> Any:
    library = importlib.import_module("webdataset")
    rng = np.random.default_rng(0)
    urls = [str(folder / f"{shard}.tar") for shard in range(8)]
    for url in urls:
        with library.TarWriter(url) as archive:
            for i in range(500):
                archive.write({"__key__": f"{i:05}", "npy": rng.random((3, 32, 32), np.float32), "cls": i % 10})
    return library.WebDataset(urls, shardshuffle=False).decode().to_tuple("npy", "cls")


def tensors(folder: Path) -> Any:
    return data.TensorDataset(torch.rand(40_000, 3, 16, 16), torch.arange(40_000))


@dataclasses.dataclass(frozen=True)
class Case:
    """
    Attributes:
        make: makes the dataset in a folder.
        needs: the libraries without which the case is left out.
        workers: instead of the number asked for.
        length: of a run, in multiples of the time asked for: torch's workers finish their batches together, which
            must not matter where few fit in.
    """

    name: str
    make: Callable[[Path], Any]
    batch_size: int
    needs: tuple[str, ...] = ()
    shuffle: bool | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    workers: int | None = None
    length: int = 1


CASES = [
    Case("Hugging Face", hugging_face, 64, ("datasets",), shuffle=True),
    Case("JPEG", jpegs, 32, ("PIL", "torchvision"), shuffle=True, length=3),
    Case("HDF5", hdf5, 64, ("h5py",), shuffle=True),
    Case("HDF5, chunks", chunked_hdf5, 64, ("h5py",), shuffle=True, length=3),
    Case("Parquet", parquet, 64, ("pyarrow",)),
    Case("text", texts, 32, ("tokenizers",), shuffle=True, collate_fn=pad),
    Case("tar", tars, 64),
    Case("webdataset", webdataset, 64, ("webdataset",)),
    Case("tensors", tensors, 64, shuffle=True),
    Case("tensors, no workers", tensors, 64, shuffle=True, workers=0),
]


@dataclasses.dataclass(frozen=True)
class Run:
    """What :meth:`Contestant.run` has to know: it does not count the first tenth of the batches."""

    batches: int


def endless(loader: Any) -> Iterator[Any]:
    """The batches of one epoch after the other."""
    return itertools.chain.from_iterable(itertools.repeat(loader))


def contestants(case: Case, dataset: Any, workers: int) -> list[Contestant]:
    field = []
    for name, kind in (("headrace", DataLoader), ("torch", data.DataLoader)):
        loader = kind(
            dataset,
            batch_size=case.batch_size,
            shuffle=case.shuffle,
            collate_fn=case.collate_fn,
            num_workers=workers,
            persistent_workers=workers > 0,
        )
        field.append(Contestant(name, functools.partial(endless, loader), getattr(loader, "shutdown", lambda: None)))
    return field


def measure(case: Case, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per loader."""
    workers = arguments.workers if case.workers is None else case.workers
    run = Run(arguments.warm_up * 10)
    rates: dict[str, list[float]] = {"headrace": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        dataset = case.make(Path(folder))
        for number in range(arguments.rounds):
            field = contestants(case, dataset, workers)
            try:
                for each in field:
                    each.run(run, arguments.seconds, measure=False)
                for each in field[:: 1 if number % 2 else -1]:
                    each.run(run, arguments.seconds * case.length, measure=True)
                    rates[each.name] += each.rates
            finally:
                for each in field:
                    each.close()
    ratios = [mine / theirs for mine, theirs in zip(rates["headrace"], rates["torch"])]
    return [
        {
            "case": case.name,
            "loader": name,
            "workers": workers,
            "samples_per_s": statistics.median(rates[name]) * case.batch_size,
            "ratio_to_torch": statistics.median(ratios) if name == "headrace" else 1.0,
        }
        for name in rates
    ]


def seeding_us(count: int = 20_000) -> float:
    """Microseconds of processor time to seed the generators for a sample."""
    begin = time.process_time()
    for row in range(count):
        seed_generators(1, 0, position_key(row >> 6, row & 63))
    return (time.process_time() - begin) / count * 1e6


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("--case", action="append", choices=names, help="which cases to run (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of each loader (default: 2)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds to take the median of (default: 7)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=1,
        help="the most that a run takes; JPEG and HDF5 in chunks: thrice (default: 1)",
    )
    parser.add_argument("--warm-up", type=int, default=6, help="batches of each run that are not counted (default: 6)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too; - for standard output only")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    quiet = arguments.json == "-"
    rows: list[dict[str, Any]] = []
    if not quiet:
        print(f"torch {torch.__version__}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        print(f"{'case':22}{'workers':>8}{'headrace: samples/s':>21}{'torch':>11}{'ratio':>8}")
    for case in CASES:
        if (arguments.case and case.name not in arguments.case) or not all(map(installed, case.needs)):
            continue
        mine, theirs = measure(case, arguments)
        rows += [mine, theirs]
        if not quiet:
            figures = f"{mine['samples_per_s']:>21,.0f}{theirs['samples_per_s']:>11,.0f}{mine['ratio_to_torch']:>8.2f}"
            print(f"{case.name:22}{mine['workers']:>8}{figures}", flush=True)
    seeding = seeding_us()
    if not quiet:
        print(f"{'seeding':22}{seeding:>8.1f} µs per sample")
    document = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "seeding_us": seeding, "rows": rows}
    if quiet:
        json.dump(document, sys.stdout, indent=1)
    elif arguments.json:
        Path(arguments.json).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
