"""Datasets, samplers and functions as a user of PyTorch would write them; see test_torch_acceptance.py."""

from __future__ import annotations

import collections
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info


class Point(NamedTuple):
    x: Any
    y: Any


class Items(Dataset[Any]):
    """Applies a function to each index."""

    def __init__(self, length: int, make: Any) -> None:
        self.length = length
        self.make = make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def number(index: int) -> int:
    return 3 * index


def drawn(index: int) -> tuple[int, torch.Tensor, float, float]:
    """The index, and numbers drawn from the global generators."""
    return index, torch.rand(()), random.random(), np.random.random()


def tensor(index: int) -> torch.Tensor:
    return torch.full((2, 3), float(index))


def array(index: int) -> np.ndarray[Any, Any]:
    return np.full((3, 2), index, dtype=np.int16)


def pair(index: int) -> tuple[torch.Tensor, int]:
    return torch.arange(4, dtype=torch.float16) + index, index % 3


def nested(index: int) -> dict[str, Any]:
    return {
        "image": torch.full((2,), index, dtype=torch.uint8),
        "size": (index, float(index)),
        "names": [f"n{index}", str(index).encode()],
        "where": Point(np.float32(index), {"flag": index % 2 == 0, "half": torch.tensor(index, dtype=torch.bfloat16)}),
    }


def _takes_numpys_bool() -> bool:
    """PyTorch 2.6 does not take a scalar of NumPy 2.4."""
    try:
        torch.as_tensor(np.bool_(True))
    except TypeError:
        return False
    return True


# Of which PyTorch makes tensors when they are scalars of NumPy's.
SCALARS = {"uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}
if _takes_numpys_bool():
    SCALARS.add("bool")


def every_dtype(index: int) -> dict[str, Any]:
    """Tensors, arrays and scalars of each dtype that torch and NumPy have in common, and torch's own."""
    dtypes = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"]
    sample: dict[str, Any] = {}
    for name in dtypes:
        sample["tensor " + name] = torch.full((2,), index % 2, dtype=getattr(torch, name))
        sample["array " + name] = np.full((2,), index % 2, dtype=name)
        sample["0-d array " + name] = np.array(index % 2, dtype=name)
        if name in SCALARS:
            sample["scalar " + name] = np.dtype(name).type(index % 2)
    sample["0-d tensor"] = torch.tensor(index)
    sample["bfloat16"] = torch.full((3,), index, dtype=torch.bfloat16)
    sample["uint16"] = np.full(2, index, dtype=np.uint16)
    sample["empty"] = torch.empty(0, 3)
    sample["strided"] = torch.arange(6).reshape(2, 3).t() + index
    sample["python"] = (index, index / 2, index % 2 == 0, str(index), b"x", "")
    return sample


class OwnList(collections.UserList[Any]):
    """A sequence that is not a list."""


def containers(index: int) -> Any:
    kinds = collections.defaultdict(int)
    kinds["a"] = index
    return [
        collections.OrderedDict(b=index, a=-index),
        kinds,
        (index, [index, (index,)]),
        OwnList([index, torch.tensor(index)]),
        Point(index, y=[str(index)]),
        collections.deque([index, index + 1]),
        {1: index, "1": index, (1, 2): {}},
    ]


class Bulk(Items):
    """Can make all samples of a batch in one call; its samples tell whether it did."""

    def __getitem__(self, index: int) -> Any:
        return "alone", super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [("together", self.make(index)) for index in indices]


class Labelled(torch.Tensor):
    """A tensor that carries more than its elements."""

    label = ""


def sparse(index: int) -> torch.Tensor:
    return (torch.eye(3) * index).to_sparse()


def nested_tensor(index: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(index + 1), torch.zeros(2)])


def labelled(index: int) -> torch.Tensor:
    tensor = torch.ones(index).as_subclass(Labelled)
    tensor.label = str(index)
    return tensor


unusual = {"sparse": sparse, "nested": nested_tensor, "subclass": labelled}


class Endless(Dataset[Any]):
    """Accepts every index."""

    def __getitem__(self, index: int) -> int:
        return index * index


def stop_at_1(index: int) -> int:
    if index == 1:
        raise StopIteration
    return index


class Backwards(Sampler[int]):
    """Indices from the end to the start."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length - 1, -1, -1))


class GrowingBatches:
    """Batches of 1, 2, 3, … indices, shuffled by torch's global generator."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[list[int]]:
        indices = torch.randperm(self.length).tolist()
        size = 1
        while indices:
            yield indices[:size]
            indices = indices[size:]
            size += 1


class Keyed(Dataset[Any]):
    """A map-style dataset whose keys are not numbers."""

    def __init__(self) -> None:
        self.values = {"one": 1, "two": 2, ("a", 3): 3}

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> tuple[str, int]:
        return repr(key), self.values[key]


def sum_up(samples: list[Any]) -> dict[str, Any]:
    """A collate function that keeps neither shapes nor lengths."""
    first = torch.stack([torch.as_tensor(sample[0] if isinstance(sample, tuple) else sample) for sample in samples])
    return {"sum": first.sum(0), "count": len(samples), "pair": (first.shape, [str(len(samples))])}


def as_it_is(samples: Any) -> Any:
    return samples


class Failing(Items):
    """Some of its samples cannot be made."""

    def __init__(self, length: int, *bad: int) -> None:
        super().__init__(length, number)
        self.bad = bad

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise LookupError(f"no sample {index}")
        return super().__getitem__(index)


class Sleepy(Items):
    """Some of its samples are slow."""

    def __init__(self, length: int, seconds: float, *slow: int) -> None:
        super().__init__(length, number)
        self.seconds = seconds
        self.slow = slow

    def __getitem__(self, index: int) -> Any:
        if index in self.slow:
            time.sleep(self.seconds)
        return super().__getitem__(index)


class WhoAmI(Dataset[Any]):
    """What torch's get_worker_info says in the worker. The first ``parties`` samples are made all at once, or never.

    With ``batch_size=None`` each of them is a claim of its own, so that as many workers take part. For forked workers.
    """

    def __init__(self, parties: int = 1) -> None:
        self.parties = parties
        self.barrier = multiprocessing.get_context("fork").Barrier(parties)

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[int, ...]:
        info = get_worker_info()
        if info is None:
            return -1, -1, -1, -1, os.getpid(), index
        assert info.dataset is self
        if index < self.parties:
            self.barrier.wait()
        return info.id, info.num_workers, info.seed, torch.initial_seed(), os.getpid(), index


class Drawn(Dataset[Any]):
    """The first numbers of the worker's three global generators."""

    def __init__(self) -> None:
        self.first: tuple[Any, ...] | None = None

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        if self.first is None:
            self.first = (random.random(), float(np.random.random()), float(torch.rand(())))
        time.sleep(0.01)
        info = get_worker_info()
        return (-1 if info is None else info.id, *self.first)


class Counting(Dataset[Any]):
    """Counts, in each worker, how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads += 1
        return os.getpid(), self.reads


def prepare(worker: int) -> None:
    """A ``worker_init_fn`` that leaves something behind in the dataset of its worker."""
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    info.dataset.make = negative


def negative(index: int) -> int:
    return -index


def refuse(worker: int) -> None:
    raise PermissionError(f"worker {worker} does not start")


class Stream(IterableDataset[Any]):
    """A range; if sharded, each worker takes its part."""

    def __init__(self, start: int, stop: int, share: bool = True) -> None:
        self.start, self.stop = start, stop
        self.share = share

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None or not self.share:
            return iter(range(self.start, self.stop))
        size = -(-(self.stop - self.start) // info.num_workers)
        first = self.start + info.id * size
        return iter(range(first, min(first + size, self.stop)))


class MeasuredStream(Stream):
    """An iterable dataset with a length."""

    def __len__(self) -> int:
        return self.stop - self.start


class UnequalStream(IterableDataset[Any]):
    """Each worker's stream ends at a different time, that of worker 0 at once."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        for i in range(5 * worker):
            yield torch.tensor([worker, i])
