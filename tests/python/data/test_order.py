"""The seed decides the order of batches, and nothing that is there for speed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loader_datasets import Everything, Ints, Random, same

from headrace.data import (
    DataLoader,
    MixtureSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.data._datasets.grain import grain_positions

WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 1},
    {"num_workers": 2},
    {"num_workers": 7},
    {"num_workers": 3, "workers": "thread"},
    {"num_workers": 2, "threads_per_worker": 3},
    {"num_workers": 2, "multiprocessing_context": "spawn"},
    {"num_workers": 2, "multiprocessing_context": "forkserver"},
    {"num_workers": 2, "persistent_workers": False},
    {"num_workers": 2, "prefetch_factor": 1},
]


class Global(Ints):
    """Draws from the global generators."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), np.random.random(2)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("dataset", [Random(40), Everything(40)], ids=lambda dataset: type(dataset).__name__)
def test_the_seed_decides_the_batches(way: dict[str, Any], dataset: Any) -> None:
    plain = DataLoader(dataset, batch_size=7, shuffle=True, seed=11)
    expected = [list(plain), list(plain)]
    loader = DataLoader(dataset, batch_size=7, shuffle=True, seed=11, **way)
    for epoch in expected:
        got = list(loader)
        assert len(got) == len(epoch) == 6
        assert all(map(same, got, epoch))


@pytest.mark.parametrize("way", [way for way in WAYS if not {"workers", "threads_per_worker"} & set(way)], ids=str)
def test_global_generators_can_be_seeded_per_record(way: dict[str, Any]) -> None:
    before = random.getstate(), np.random.get_state()[1].copy()  # type: ignore[union-attr]
    loader = DataLoader(Global(20), batch_size=4, shuffle=True, seed=11, seed_records=True, **way)
    first, second = list(loader), list(loader)
    expected = DataLoader(Global(20), batch_size=1, seed=11, seed_records=True)
    values = {int(index[0]): (one[0], two[0].tolist()) for index, one, two in expected}
    for indices, ones, twos in first:
        assert [values[int(i)] for i in indices] == [(one, two.tolist()) for one, two in zip(ones, twos)]
    assert not same(first, second)
    assert random.getstate() == before[0]
    assert (np.random.get_state()[1] == before[1]).all()  # type: ignore[index]


def test_a_numpy_generator_gives_the_seed() -> None:
    loaders = [DataLoader(Ints(20), 4, True, generator=np.random.default_rng(3)) for _ in range(2)]
    assert loaders[0].seed == loaders[1].seed
    assert same(list(loaders[0]), list(loaders[1]))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_loaders_share_an_epoch_without_repeating_or_leaving_out_a_sample(drop_last: bool, num_workers: int) -> None:
    for length in (1, 7, 12, 13, 24, 25):
        loaders = [
            DataLoader(Ints(length), 2, True, seed=4, shard=(rank, 3), drop_last=drop_last, num_workers=num_workers)
            for rank in range(3)
        ]
        got = [[batch.tolist() for batch in loader] for loader in loaders]
        assert [len(batches) for batches in got] == [len(loader) for loader in loaders]
        taken = sorted(i for batches in got for batch in batches for i in batch)
        if drop_last:
            assert len(taken) == len(set(taken)) == length // 6 * 6
            assert len({len(batches) for batches in got}) == 1
        else:
            assert taken == list(range(length))


def test_grains_order_is_its_documents_example() -> None:
    keys = [5, 2, 0, 4, 6, 1, 7, 3]
    loader = DataLoader(Ints(8), 2, sampler=_Listed(keys), order="grain", num_workers=2)
    assert [batch.tolist() for batch in loader] == [[5, 0], [2, 4], [6, 7], [1, 3]]
    loader = DataLoader(keys, 2, order="grain", num_workers=2)
    assert [batch.tolist() for batch in loader] == [[5, 0], [2, 4], [6, 7], [1, 3]]
    with pytest.raises(ValueError, match="random access"):
        DataLoader(Ints(8), 2, sampler=set(keys), order="grain", num_workers=2)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_grains_order_with_shards_and_odd_ends(num_workers: int, shard: tuple[int, int]) -> None:
    loader = DataLoader(Ints(31), 3, order="grain", num_workers=num_workers, shard=shard)
    expected = [
        grain_positions(batch, 3, 31, max(1, num_workers), *shard, False).tolist() for batch in range(len(loader))
    ]
    assert [batch.tolist() for batch in loader] == expected


class _Metadata:
    def __init__(self, index: int, record_key: int) -> None:
        self.index = index
        self.record_key = record_key
        self.rng = np.random.Generator(np.random.Philox(key=42 + index))


class _Listed:
    """Like Grain's samplers: indexed, not iterated over."""

    def __init__(self, keys: list[int]) -> None:
        self.keys = keys

    def __getitem__(self, index: int) -> _Metadata:
        if index >= len(self.keys):
            raise IndexError(index)
        return _Metadata(index, self.keys[index])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_of_grains_brings_its_generators(num_workers: int) -> None:
    keys = [5, 2, 0, 4]
    loader = DataLoader(Random(8), 2, sampler=_Listed(keys), num_workers=num_workers)
    got = [float(value) for _, values in loader for value in values]
    rngs = [_Metadata(i, 0).rng for i in range(4)]
    assert got == [float((rng.integers(0, 1 << 30, 3), rng.random())[1]) for rng in rngs]


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True},
        {"sampler": RandomSampler(range(8))},
        {"sampler": RandomSampler(range(8), replacement=True)},
        {"sampler": WeightedRandomSampler([1, 2, 3], 8)},
        {"sampler": SubsetRandomSampler(range(8))},
        {"sampler": MixtureSampler([4, 4])},
    ],
    ids=["shuffle", "random", "random with replacement", "weighted", "subset", "mixture"],
)
def test_loaders_that_share_a_dataset_need_the_same_seed(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the same"):
        DataLoader(Ints(8), shard=(0, 2), **arguments)
    DataLoader(Ints(8), shard=(0, 1), **arguments)


def test_loaders_with_the_same_seed_share_a_dataset() -> None:
    def seeded(sampler: RandomSampler) -> RandomSampler:
        sampler.seed = 4
        return sampler

    ways: list[Callable[[], dict[str, Any]]] = [
        lambda: {"shuffle": True, "seed": 4},
        lambda: {"shuffle": True, "generator": np.random.default_rng(4)},
        lambda: {"sampler": RandomSampler(range(8), generator=4)},
        lambda: {"sampler": seeded(RandomSampler(range(8)))},
        lambda: {"sampler": SequentialSampler(range(8))},
        lambda: {"sampler": MixtureSampler([4, 4], generator=4)},
        lambda: {"sampler": MixtureSampler([4, 4], shuffle=False)},
        lambda: {"sampler": [7, 6, 5, 4, 3, 2, 1, 0]},
    ]
    for way in ways:
        loaders = [DataLoader(Ints(8), batch_size=2, shard=(rank, 2), **way()) for rank in range(2)]
        assert sorted(int(i) for loader in loaders for batch in loader for i in batch) == list(range(8))
