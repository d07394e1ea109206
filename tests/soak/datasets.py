"""Datasets of the soak, by kind: map-style ones and streams, and functions that collate."""

from __future__ import annotations

import copy
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from graphs import MISSING, Walk

from headrace.data import (
    ChainDataset,
    ConcatDataset,
    IterableDataset,
    IterableMixture,
    MixtureDataset,
    PackedDataset,
    PackedIterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)


class Numbers:
    """The indices. Some of them end the worker that asks for them."""

    def __init__(self, length: int, deadly: frozenset[int] = frozenset(), seconds: float = 0) -> None:
        self.length = length
        self.deadly = deadly
        self.seconds = seconds
        self.scale = 1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if get_worker_info() is not None:
            if index in self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.seconds:
                time.sleep(self.seconds * (index * 7 % 4))  # so that batches overtake one another
        return np.int64(index * self.scale)


class Bulk(Numbers):
    """Also many in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Refused(Exception):
    """Instead of a sample or a batch."""


class Refusing(Numbers):
    """Raises at some indices, or has its ``collate_fn`` do so."""

    def __getitem__(self, index: int) -> Any:
        if index * 5 % 17 < 3:
            raise Refused(f"sample {index}, {self.scale}")
        return super().__getitem__(index)


class RefusingInBulk(Refusing):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def outcomes(batches: Any) -> Iterator[Any]:
    """Batches, with what was raised in the places of those that were refused."""
    iterator = iter(batches)
    while True:
        try:
            outcome = next(iterator)
        except StopIteration:
            return
        except Refused as refused:
            outcome = refused
        yield outcome


class Filling(Numbers):
    """Writes samples to their place in the batch."""

    def __getitem__(self, index: int, out: Any = None) -> Any:  # type: ignore[override]
        if out is None:
            return np.full(5, index * self.scale, np.int16)
        out[...] = index * self.scale
        return out


class Few(Numbers):
    """Arrays of a few numbers."""

    def __getitem__(self, index: int) -> Any:
        return np.full(1 + index % 5, super().__getitem__(index))


class Arrays(Numbers):
    """Arrays that depend on the record's generator; of one size, or of many."""

    def __init__(self, length: int, size: int, ragged: bool, seconds: float) -> None:
        super().__init__(length, seconds=seconds)
        self.size = size
        self.ragged = ragged

    def __getitem__(self, index: int, rng: np.random.Generator) -> Any:  # type: ignore[override]
        super().__getitem__(index)
        array = np.resize(rng.integers(0, 256, 64, np.uint8), self.size) * self.scale
        return (array[: 1 + index * 37 % self.size] if self.ragged else array), index


class Mixed(Numbers):
    """Samples of every type that is collated."""

    def __getitem__(self, index: int) -> Any:
        number = super().__getitem__(index)
        return {
            "array": np.arange(6, dtype=np.float32).reshape(2, 3) * number,
            "numbers": (int(number), float(number) / 3, bool(index % 2)),
            "scalars": [number, np.float16(index)],
            "text": f"sample {number}",
            "bytes": str(number).encode(),
        }


class Objects(Numbers):
    """Samples that a function has to collate: some refer to one object, and something is missing."""

    def __init__(self, length: int, seconds: float) -> None:
        super().__init__(length, seconds=seconds)
        self.shared = [["shared"], {"by": "samples"}, np.arange(3)]

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        own = [index * self.scale]
        return index, MISSING if index % 2 else "text", self.shared[index % 3], own, (own, {"twice": own})


class Draws(Numbers):
    """Samples from the global generators."""

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return index, random.random(), np.random.random(2)


def look(samples: list[Any]) -> Any:
    """What ``collate_fn`` can tell of its samples."""
    return {"length": len(samples), "view": Walk(samples).text}


def gather(samples: list[Any]) -> Any:
    """Arrays, and what is not an array."""
    arrays = [array for array, _ in samples]
    return {"all": np.concatenate(arrays), "indices": [index for _, index in samples], "first": arrays[0]}


def refuse(samples: list[Any]) -> Any:
    """Raises for some batches."""
    if sum(map(int, samples)) % 3 == 1:
        raise Refused(f"a batch of {samples}")
    return np.asarray(samples)


class Stream(IterableDataset[Any]):
    """Numbers that tell the epoch, the worker whose stream it is, and the place in the stream.

    Args:
        length: how many, of all workers.
        own: whether each worker has a part of its own.

    Attributes:
        part: (number, of how many) whose part it is, wherever it is read; None: the worker's that reads it.
        scale: what the numbers are multiplied by.
    """

    def __init__(self, length: int, own: bool = False, seconds: float = 0) -> None:
        self.length = length
        self.own = own
        self.part: tuple[int, int] | None = None
        self.seconds = seconds
        self.epoch = 0
        self.scale = 1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for at in range(self._share()[1]):
            yield self._element(at, self.epoch)

    def _share(self) -> tuple[int, int]:
        """The part that is read here, and how many elements it has."""
        info = get_worker_info()
        part, parts = (0, 1)
        if self.own:
            part, parts = self.part or ((info.id, info.num_workers) if info is not None else (0, 1))
        return part, len(range(part, self.length, parts))

    def _element(self, at: int, epoch: int) -> Any:
        if self.seconds and get_worker_info() is not None:
            time.sleep(self.seconds * (at % 3))
        return np.int64((at + 1000 * epoch + 1_000_000 * self._share()[0]) * self.scale)


class Placed(Stream):
    """Has a state within the epoch; each begins anew."""

    at = 0
    _resumed: int | None = None

    def __iter__(self) -> Iterator[Any]:
        self.at, self._resumed = self._resumed or 0, None
        while self.at < self._share()[1]:
            self.at += 1
            yield self._element(self.at - 1, self.epoch)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at if self._resumed is None else self._resumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumed = state["at"]


class Counting(Stream):
    """Has a state that goes on from epoch to epoch: which epoch it is, whatever the loader says."""

    at = 0
    passes = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self._share()[1]:
            self.at += 1
            yield self._element(self.at - 1, self.passes)
        self.at = 0
        self.passes += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.passes = state["at"], state["passes"]


class Onward(Stream):
    """Has a state that goes on from epoch to epoch: an endless log, of which each epoch reads some more."""

    at = 0
    # Where the epoch in progress ends. After its last element, ``at`` alone would not tell its end from the next epoch.
    end: int | None = None
    _resumed: tuple[int, int | None] | None = None

    def __iter__(self) -> Iterator[Any]:
        end = None
        if self._resumed is not None:
            (self.at, end), self._resumed = self._resumed, None
        share = max(1, self._share()[1])
        self.end = (self.at // share + 1) * share if end is None else end
        while self.at < self.end:
            self.at += 1
            yield self._element(self.at - 1, 0)
        self.end = None

    def state_dict(self) -> dict[str, Any]:
        at, end = (self.at, self.end) if self._resumed is None else self._resumed
        return {"at": at, "end": end}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumed = (state["at"], state["end"])


class Hidden(Stream):
    """As Onward, and has no way to tell."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        share = self._share()[1]
        for _ in range(share):
            self.at += 1
            yield self._element(self.at - 1, 0)


SIMPLE_STREAMS = {
    "stream": Stream,
    "placed stream": Placed,
    "counting stream": Counting,
    "onward stream": Onward,
    "hidden stream": Hidden,
}
STREAMS = (*SIMPLE_STREAMS, "mixture of streams", "packed stream", "chain")
# Those whose state goes on from epoch to epoch.
ONGOING = ("counting stream", "onward stream")
MAPS = (
    *(
        "graph",
        "numbers",
        "refusing",
        "refusing in bulk",
        "bulk",
        "filling",
        "arrays",
        "ragged",
        "mixed",
        "objects",
        "draws",
        "columns",
    ),
    *("concatenated", "subset", "stacked", "mixture", "packed"),
)


def make_map(kind: str, length: int, chance: random.Random, size: int, seconds: float, deadly: frozenset[int]) -> Any:
    """A map-style dataset, but a graph."""
    if kind in ("arrays", "ragged"):
        return Arrays(length, size, kind == "ragged", seconds)
    if kind == "objects":
        return Objects(length, seconds)
    if kind == "columns":
        return TensorDataset(np.arange(length), np.arange(2.0 * length).reshape(length, 2))
    simple = {
        "refusing": Refusing,
        "refusing in bulk": RefusingInBulk,
        "bulk": Bulk,
        "filling": Filling,
        "mixed": Mixed,
        "draws": Draws,
    }.get(kind, Numbers)
    dataset = simple(length, deadly, seconds)
    other = chance.choice([Numbers, Bulk])(chance.randrange(1, 20))
    other.scale = -1
    if kind == "concatenated":
        return ConcatDataset([dataset, other])
    if kind == "subset":
        return Subset(dataset, [chance.randrange(length) for _ in range(length)])
    if kind == "stacked":
        return StackDataset(dataset, copy.copy(dataset))
    if kind == "mixture":
        weights = [chance.randrange(1, 5), chance.randrange(1, 5)]
        ends = chance.choice(["first_exhausted", "all_exhausted", 33])
        return MixtureDataset([dataset, other], weights, length=ends, seed=chance.randrange(9))
    if kind == "packed":
        return PackedDataset(Few(length), chance.randrange(5, 12))
    return dataset


def make_stream(kind: str, length: int, own: bool, chance: random.Random, seconds: float) -> Any:
    if kind in SIMPLE_STREAMS:
        return SIMPLE_STREAMS[kind](length, own, seconds)
    parts = [chance.choice([Stream, Placed])(length) for length in (max(1, length), 9)]
    if kind == "chain":
        return ChainDataset(parts)
    if kind == "packed stream":
        return PackedIterableDataset(parts[0], chance.randrange(2, 7), bins=chance.randrange(1, 5))
    weights = [chance.randrange(1, 5), chance.randrange(1, 5)]
    return IterableMixture(parts, weights, stop=chance.choice(["first_exhausted", "all_exhausted"]))


def scaled_parts(dataset: Any) -> Iterator[Any]:
    """A dataset and those that it is made of, if they have a scale."""
    if hasattr(dataset, "scale"):
        yield dataset
    inner = [dataset.dataset] if hasattr(dataset, "dataset") else []
    several = getattr(dataset, "datasets", ())
    for part in [*inner, *(several.values() if isinstance(several, dict) else several)]:
        yield from scaled_parts(part)


def copy_scales(source: Any, target: Any) -> None:
    """Gives a dataset the scales of one like it."""
    for like, part in zip(scaled_parts(source), scaled_parts(target)):
        part.scale = like.scale
