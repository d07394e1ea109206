"""PyTorch's datasets and samplers mixed with headrace's give the same batches in either loader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, Random, Vectors

from headrace import data as ours
from headrace.data import DataLoader
from headrace.data._datasets.capabilities import is_torch_dataset
from headrace.data._datasets.iterable_datasets import is_iterable_dataset
from headrace.data._datasets.mixtures import IterableMixture, MixtureDataset, MixtureSampler
from headrace.data._datasets.packing import PackedDataset

torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
theirs = pytest.importorskip("torch.utils.data")

Loader = Callable[..., Any]


class TorchRows(theirs.Dataset):  # type: ignore[misc, name-defined]
    """A dataset of torch's: a tensor and a number."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.full((3,), float(index)), index


class TorchBulk(TorchRows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class TorchCount(theirs.IterableDataset):  # type: ignore[misc, name-defined]
    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))


class AsTorchs(theirs.IterableDataset):  # type: ignore[misc, name-defined]
    """Iterable for torch's loader, which checks for its own class."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)


class OurCount(ours.IterableDataset[int]):
    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))


def plain(value: Any) -> Any:
    """A batch as lists and numbers, whichever loader made it."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def generator(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def epochs(loader: Any, count: int = 2) -> list[Any]:
    return [[plain(batch) for batch in loader] for _ in range(count)]


WEIGHTS = [0.5, 0, 3, 1, 2, 0.25]
OUR_SAMPLERS: dict[str, Callable[[Any], Any]] = {
    "sequential": lambda data: ours.SequentialSampler(data),
    "random": lambda data: ours.RandomSampler(data, generator=4),
    "random with replacement": lambda data: ours.RandomSampler(data, True, 30, generator=4),
    "random, more than there are": lambda data: ours.RandomSampler(data, num_samples=50, generator=4),
    "random, numpy": lambda data: ours.RandomSampler(data, generator=np.random.default_rng(2)),
    "subset": lambda data: ours.SubsetRandomSampler([1, 4, 9, 16], generator=4),
    "weighted": lambda data: ours.WeightedRandomSampler(WEIGHTS, 25, generator=4),
    "weighted without replacement": lambda data: ours.WeightedRandomSampler(WEIGHTS, 4, False, generator=4),
    "mixture": lambda data: MixtureSampler([5, 10, 5], [1, 2, 3], generator=4),
}
# The same sampler twice: ours with one of torch's generators, and torch's own.
TWINS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "random": (
        lambda data: ours.RandomSampler(data, generator=generator(4)),
        lambda data: theirs.RandomSampler(data, generator=generator(4)),
    ),
    "random with replacement": (
        lambda data: ours.RandomSampler(data, True, 70, generator(4)),
        lambda data: theirs.RandomSampler(data, True, 70, generator(4)),
    ),
    "random, more than there are": (
        lambda data: ours.RandomSampler(data, num_samples=70, generator=generator(4)),
        lambda data: theirs.RandomSampler(data, num_samples=70, generator=generator(4)),
    ),
    "subset": (
        lambda data: ours.SubsetRandomSampler([1, 4, 9, 16], generator(4)),
        lambda data: theirs.SubsetRandomSampler([1, 4, 9, 16], generator(4)),
    ),
    "weighted": (
        lambda data: ours.WeightedRandomSampler(WEIGHTS, 25, generator=generator(4)),
        lambda data: theirs.WeightedRandomSampler(WEIGHTS, 25, generator=generator(4)),
    ),
    "weighted without replacement": (
        lambda data: ours.WeightedRandomSampler(torch.tensor(WEIGHTS), 4, False, generator(4)),
        lambda data: theirs.WeightedRandomSampler(torch.tensor(WEIGHTS), 4, False, generator(4)),
    ),
}


@pytest.mark.parametrize("name", OUR_SAMPLERS)
def test_our_samplers_in_both_loaders(name: str) -> None:
    data = TorchRows(20)
    expected = epochs(theirs.DataLoader(data, batch_size=3, sampler=OUR_SAMPLERS[name](data)))
    assert epochs(DataLoader(data, batch_size=3, sampler=OUR_SAMPLERS[name](data))) == expected
    batches = ours.BatchSampler(OUR_SAMPLERS[name](data), 3, False)
    assert epochs(theirs.DataLoader(data, batch_sampler=batches)) == expected
    batches = ours.BatchSampler(OUR_SAMPLERS[name](data), 3, False)
    assert epochs(DataLoader(data, batch_sampler=batches, num_workers=2)) == expected


@pytest.mark.parametrize("name", TWINS)
def test_our_samplers_with_torchs_generator_are_torchs(name: str) -> None:
    data = TorchRows(20)
    ours_, theirs_ = (make(data) for make in TWINS[name])
    assert len(ours_) == len(theirs_)
    for _ in range(3):
        assert list(ours_) == list(theirs_)
    assert not ours_.seekable
    ours_, theirs_ = (make(data) for make in TWINS[name])
    for epoch in range(3):
        ours_.set_epoch(epoch)
        expected = list(theirs_)
        assert ours_.take(0, len(ours_)).tolist() == expected
        assert ours_.take(1, 3).tolist() == expected[1:3]


@pytest.mark.parametrize("which", ["ours", "torch's"])
@pytest.mark.parametrize("name", TWINS)
def test_torchs_orders_in_both_loaders(name: str, which: str) -> None:
    data = TorchRows(20)
    make = TWINS[name][0 if which == "ours" else 1]
    num_workers = 2 if name == "random" else 0
    expected = epochs(theirs.DataLoader(data, batch_size=3, sampler=TWINS[name][1](data)))
    assert epochs(theirs.DataLoader(data, batch_size=3, sampler=make(data))) == expected
    assert epochs(DataLoader(data, batch_size=3, sampler=make(data), num_workers=num_workers)) == expected


@pytest.mark.parametrize("batch_sampler", [ours.BatchSampler, theirs.BatchSampler])
@pytest.mark.parametrize("sampler", [ours.SequentialSampler, theirs.SequentialSampler])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batch_samplers_go_with_samplers_of_either_kind(batch_sampler: Any, sampler: Any, drop_last: bool) -> None:
    data = TorchRows(11)
    expected = epochs(theirs.DataLoader(data, batch_size=4, drop_last=drop_last))
    batches = batch_sampler(sampler(data), 4, drop_last)
    assert len(batches) == len(expected[0])
    assert epochs(theirs.DataLoader(data, batch_sampler=batches)) == expected
    assert epochs(DataLoader(data, batch_sampler=batches)) == expected


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("length", "world"), [(12, 3), (13, 3), (14, 3), (2, 5), (1, 1), (7, 7)])
def test_shares_of_processes_are_torchs(length: int, world: int, drop_last: bool) -> None:
    data = TorchRows(length)
    for rank in range(world):
        mine = ours.DistributedSampler(data, world, rank, shuffle=False, drop_last=drop_last)
        expected = theirs.DistributedSampler(data, world, rank, shuffle=False, drop_last=drop_last)
        assert (len(mine), mine.total_size) == (len(expected), expected.total_size)
        assert list(mine) == list(expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_distributed_sampler_in_our_loader(num_workers: int) -> None:
    data = TorchRows(13)
    expected = []
    for epoch in range(3):
        sampler = theirs.DistributedSampler(data, 2, 1, seed=5)
        sampler.set_epoch(epoch)
        expected.append([plain(batch) for batch in theirs.DataLoader(data, batch_size=2, sampler=sampler)])
    sampler = theirs.DistributedSampler(data, 2, 1, seed=5)
    loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=num_workers)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert [plain(batch) for batch in loader] == expected[epoch]


COMPOSED: dict[str, Callable[[Any, Any], Any]] = {
    "subset": lambda lib, data: lib.Subset(data, [7, 1, 3, 0, 5]),
    "subset of a subset": lambda lib, data: lib.Subset(lib.Subset(data, [7, 1, 3, 0, 5]), [4, 2]),
    "concatenation": lambda lib, data: lib.ConcatDataset([data, lib.Subset(data, [2, 1]), data]),
    "tuples": lambda lib, data: lib.StackDataset(data, data),
    "dicts": lambda lib, data: lib.StackDataset(left=data, right=data),
    "tensors": lambda lib, data: lib.TensorDataset(torch.arange(12).reshape(6, 2), torch.arange(6) / 2),
}


@pytest.mark.parametrize("data", [TorchRows(8), TorchBulk(8), Vectors(8)], ids=lambda data: type(data).__name__)
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_datasets_in_both_loaders(name: str, data: Any) -> None:
    make = COMPOSED[name]
    expected = epochs(theirs.DataLoader(make(theirs, data), batch_size=3), 1)
    assert len(make(ours, data)) == len(make(theirs, data))
    assert epochs(theirs.DataLoader(make(ours, data), batch_size=3), 1) == expected
    assert epochs(DataLoader(make(theirs, data), batch_size=3), 1) == expected
    assert epochs(DataLoader(make(ours, data), batch_size=3), 1) == expected
    mixed = ours.ConcatDataset([make(theirs, data), theirs.Subset(make(ours, data), [0])])
    again = theirs.ConcatDataset([make(ours, data), ours.Subset(make(theirs, data), [0])])
    assert epochs(DataLoader(mixed, batch_size=3), 1) == epochs(theirs.DataLoader(again, batch_size=3), 1)


def test_bulk_reading_is_asked_for_by_torchs_loader() -> None:
    read: list[list[int]] = []

    class Spy(Ints):
        def __getitems__(self, indices: list[int]) -> list[int]:
            read.append(indices)
            return indices

    list(theirs.DataLoader(ours.Subset(Spy(6), [5, 4, 3]), batch_size=2))
    assert read == [[5, 4], [3]]


def test_a_dataset_without_bulk_reading_is_read_one_by_one_by_torchs_loader() -> None:
    assert epochs(theirs.DataLoader(ours.ConcatDataset([Ints(3), Ints(2)]), batch_size=5), 1) == [[[0, 1, 2, 0, 1]]]


@pytest.mark.parametrize(
    "make",
    [
        lambda lib, data: lib.Subset(data, [3, 1, 2, 0]),
        lambda lib, data: lib.ConcatDataset([lib.Subset(data, [1, 2]), data]),
        lambda lib, data: lib.StackDataset(data, lib.Subset(data, range(6))),
        lambda lib, data: lib.StackDataset(left=data, right=lib.ConcatDataset([data])),
    ],
)
def test_generators_reach_datasets_inside_of_torchs(make: Any) -> None:
    expected = epochs(DataLoader(make(ours, Random(6)), batch_size=4, seed=1))
    assert epochs(DataLoader(make(theirs, Random(6)), batch_size=4, seed=1)) == expected
    mixed = ours.Subset(make(theirs, Random(6)), range(4))
    assert epochs(DataLoader(mixed, batch_size=4, seed=1))[0][0] == expected[0][0]


@pytest.mark.parametrize("lengths", [[6, 4], [0.5, 0.5], [0.34, 0.33, 0.33], [10, 0]])
def test_a_split_with_torchs_generator_is_torchs(lengths: list[Any]) -> None:
    data = TorchRows(10)
    mine = ours.random_split(data, lengths, generator(3))
    expected = theirs.random_split(data, lengths, generator(3))
    assert [list(part.indices) for part in mine] == [list(part.indices) for part in expected]
    for left, right in zip(mine, expected):
        if len(right):
            assert epochs(DataLoader(left, batch_size=4)) == epochs(theirs.DataLoader(right, batch_size=4))


def test_what_is_iterable_of_torchs() -> None:
    assert is_iterable_dataset(TorchCount(0, 3))
    assert is_iterable_dataset(theirs.ChainDataset([TorchCount(0, 3)]))
    assert not is_iterable_dataset(TorchRows(3))
    with pytest.raises(TypeError, match="TorchCount is iterable"):
        ours.ConcatDataset([TorchCount(0, 3)])


def test_what_is_made_of_torchs_datasets_gives_tensors() -> None:
    rows = TorchRows(3)
    for dataset in (rows, ours.Subset(rows, [0]), ours.ConcatDataset([Ints(3), rows]), ours.StackDataset(x=rows)):
        assert is_torch_dataset(dataset)
    assert not is_torch_dataset(ours.StackDataset(x=Ints(3)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ours.ChainDataset([OurCount(0, 5), TorchCount(7, 10)]),
        lambda: theirs.ChainDataset([TorchCount(0, 5), TorchCount(7, 10)]),
        lambda: IterableMixture([OurCount(0, 5), TorchCount(7, 20)], [2, 1]),
        lambda: TorchCount(0, 9),
        lambda: OurCount(0, 9),
    ],
)
def test_streams_of_either_kind_in_torchs_loader(make: Any) -> None:
    samples = list(make())
    expected = [samples[i : i + 3] for i in range(0, len(samples), 3)]
    assert epochs(theirs.DataLoader(AsTorchs(make()), batch_size=3)) == [expected, expected]


def test_mixed_and_packed_datasets_in_both_loaders() -> None:
    texts = [np.full(1 + i % 5, i) for i in range(30)]
    for data in (
        MixtureDataset([TorchRows(10), TorchRows(20)], [1, 3], seed=1),
        PackedDataset(texts, 8),
        PackedDataset([torch.from_numpy(text) for text in texts], 8),
    ):
        assert epochs(DataLoader(data, batch_size=3)) == epochs(theirs.DataLoader(data, batch_size=3))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_our_datasets_in_workers_of_torchs_loader(num_workers: int) -> None:
    data = ours.ConcatDataset([ours.Subset(TorchBulk(30), range(5, 25)), TorchRows(7)])
    loaders = [
        theirs.DataLoader(data, batch_size=4, sampler=ours.RandomSampler(data, generator=1), num_workers=number)
        for number in (0, num_workers)
    ]
    assert epochs(loaders[0]) == epochs(loaders[1])


def test_errors_are_of_the_same_type_as_torchs() -> None:
    bad: list[Callable[[Any], Any]] = [
        lambda package: package.RandomSampler([1], replacement=1),
        lambda package: package.RandomSampler([1], num_samples=0),
        lambda package: package.RandomSampler([]),
        lambda package: package.WeightedRandomSampler([1.0], 0),
        lambda package: package.WeightedRandomSampler([1.0], 1, replacement=1),
        lambda package: package.WeightedRandomSampler([[1.0]], 1),
        lambda package: package.BatchSampler([1], 0, False),
        lambda package: package.BatchSampler([1], 1, 1),
        lambda package: package.DistributedSampler([1, 2], 2, 2),
        lambda package: package.StackDataset(),
        lambda package: package.StackDataset([1], [1, 2]),
        lambda package: package.random_split([1, 2], [1, 2]),
        lambda package: package.Subset([1, 2], [0])[1],
        lambda package: package.ConcatDataset([[1], [2]])[2],
    ]
    for make in bad:
        with pytest.raises(Exception) as expected:  # noqa: PT011
            make(theirs)
        with pytest.raises(type(expected.value)):
            make(ours)


def test_a_torch_generator_goes_on_from_sampler_to_sampler() -> None:
    shared = generator(9)
    mine, other = ours.RandomSampler(range(9), generator=shared), theirs.RandomSampler(range(9), generator=shared)
    alone = theirs.RandomSampler(range(9), generator=generator(9))
    assert [list(mine), list(other), list(mine)] == [list(alone) for _ in range(3)]


def test_torchs_seed_decides_where_nobody_else_does() -> None:
    def orders(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        drawn = [ours.RandomSampler(range(30)), ours.WeightedRandomSampler(WEIGHTS, 30)]
        split = ours.random_split(range(30), [15, 15], None)
        return [*map(list, drawn), *(list(part.indices) for part in split)]

    assert orders(1) == orders(1)
    assert orders(1) != orders(2)
