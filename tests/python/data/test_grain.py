"""headrace.data._datasets.grain: the order of Grain 0.2, as observed, and data sources and samplers like Grain's."""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
from loader_datasets import Random, same

from headrace.data import DataLoader
from headrace.data._datasets.grain import (
    GrainSampler,
    SampledDataset,
    grain_batch_count,
    grain_positions,
    is_grain_sampler,
)


def batches(length: int, size: int, workers: int, shards: int, shard: int, drop: bool) -> list[list[int]]:
    arguments = (size, length, workers, shard, shards, drop)
    return [grain_positions(batch, *arguments).tolist() for batch in range(grain_batch_count(*arguments))]


# (length, batch size, workers, shards, shard, drop_remainder): the batches that Grain 0.2.18 made of range(length).
SEEN = [
    ((8, 2, 2, 1, 0, True), [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ((8, 2, 2, 2, 0, True), [[0, 4], [2, 6]]),
    ((8, 2, 2, 3, 2, False), [[2], [5]]),
    ((8, 2, 3, 1, 0, False), [[0, 3], [1, 4], [2, 5], [6], [7]]),
    ((8, 2, 3, 2, 0, False), [[0, 6], [2], [4]]),
    ((8, 2, 3, 2, 1, True), [[1, 7]]),
    ((8, 3, 2, 1, 0, True), [[0, 2, 4], [1, 3, 5]]),
    ((8, 3, 2, 2, 1, False), [[1, 5], [3, 7]]),
    ((8, 3, 2, 3, 0, True), []),
    ((8, 3, 1, 2, 1, True), [[1, 3, 5]]),
    ((5, 2, 3, 1, 0, False), [[0, 3], [1, 4], [2]]),
    ((1, 2, 1, 3, 0, False), []),
    ((11, 2, 2, 1, 0, False), [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9]]),
    ((11, 2, 3, 2, 1, False), [[1, 7], [3, 9], [5]]),
    ((11, 3, 2, 3, 0, False), [[0, 6], [3]]),
    ((11, 3, 3, 1, 0, False), [[0, 3, 6], [1, 4, 7], [2, 5, 8], [9], [10]]),
    ((11, 3, 3, 1, 0, True), [[0, 3, 6], [1, 4, 7], [2, 5, 8]]),
]


@pytest.mark.parametrize(("arguments", "expected"), SEEN)
def test_the_order_that_grain_was_seen_to_have(arguments: tuple[Any, ...], expected: list[list[int]]) -> None:
    assert batches(*arguments) == expected


def test_the_order_over_a_shuffling_sampler() -> None:
    keys = np.array([5, 2, 0, 4, 6, 1, 7, 3])
    order = [keys[positions].tolist() for positions in batches(8, 2, 2, 1, 0, False)]
    assert order == [[5, 0], [2, 4], [6, 7], [1, 3]]


def simulated(length: int, size: int, workers: int, shards: int, shard: int, drop: bool) -> list[list[int]]:
    """Simulates workers that batch their shares, and a consumer that takes turns."""
    records = [shard + shards * k for k in range(length // shards)]
    queues = []
    for worker in range(max(1, workers)):
        share = records[worker :: max(1, workers)]
        made = [share[i : i + size] for i in range(0, len(share), size)]
        queues.append([batch for batch in made if len(batch) == size or not drop])
    order = []
    while any(queues):
        order += [queue.pop(0) for queue in queues if queue]
    return order


def test_the_order_for_all_small_numbers() -> None:
    for length in range(30):
        for size in (1, 2, 3, 7):
            for workers in range(6):
                for shards in (1, 2, 4):
                    for shard in {0, shards - 1}:
                        for drop in (False, True):
                            arguments = (length, size, workers, shards, shard, drop)
                            assert batches(*arguments) == simulated(*arguments), arguments


def test_without_workers_the_order_is_that_of_the_sampler() -> None:
    assert batches(5, 2, 0, 1, 0, False) == batches(5, 2, 1, 1, 0, False) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("sampler", [[7, 3, 9, 1, 2], np.array([7, 3, 9, 1, 2])], ids=["list", "array"])
def test_a_list_is_a_sampler_with_random_access(sampler: Any) -> None:
    loader = DataLoader(range(10), 2, sampler=sampler, order="grain", num_workers=2, workers="thread")
    assert [np.asarray(batch).tolist() for batch in loader] == [[7, 9], [3, 1], [2]]


def test_a_sampler_without_end() -> None:
    count = grain_batch_count(10, sys.maxsize, 3, 1, 2, False)
    assert grain_positions(count - 2, 10, sys.maxsize, 3, 1, 2, False).max() < sys.maxsize
    assert grain_positions(3, 2, sys.maxsize, 3, 1, 2, False).tolist() == [13, 19]


@pytest.mark.parametrize("batch", [-1, 4])
def test_a_batch_that_is_not_there(batch: int) -> None:
    with pytest.raises(IndexError, match=f"batch {batch} is out of range: there are 4"):
        grain_positions(batch, 2, 8, 2, 0, 1, False)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("batch_size must be at least 1, got 0", (0, 8, 2, 0, 1)),
        ("length must be at least 0, got -1", (2, -1, 2, 0, 1)),
        ("workers must be at least 0, got -1", (2, 8, -1, 0, 1)),
        ("shards must be at least 1, got 0", (2, 8, 2, 0, 0)),
        ("shard must be from 0 to 1, got 2", (2, 8, 2, 2, 2)),
    ],
)
def test_arguments_out_of_range(message: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=message):
        grain_batch_count(*arguments, drop_last=False)


class Metadata(NamedTuple):
    index: int
    record_key: Any
    rng: np.random.Generator | None


class Reversed:
    """A sampler like Grain's: it is indexed, and does not tell its length."""

    def __init__(self, length: int, seed: int | None = None) -> None:
        self.length = length
        self.seed = seed

    def __getitem__(self, index: int) -> Metadata:
        if not 0 <= index < self.length:
            raise IndexError(index)
        rng = None if self.seed is None else np.random.Generator(np.random.Philox(key=self.seed + index))
        return Metadata(index, self.length - 1 - index, rng)


def test_what_is_a_sampler_of_grains() -> None:
    assert is_grain_sampler(Reversed(3))
    assert is_grain_sampler(GrainSampler(Reversed(3)))
    for other in ([0, 1], range(3), iter([1]), None, {0: 1}, np.arange(3), "abc", Random(3)):
        assert not is_grain_sampler(other)


def test_a_sampler_of_grains_gives_keys() -> None:
    sampler = GrainSampler(Reversed(5))
    assert len(sampler) == 5
    assert [sampler[i] for i in range(5)] == [4, 3, 2, 1, 0]
    with pytest.raises(IndexError):
        sampler[5]


class Source:
    """A data source that reads many records in one call."""

    def __getitem__(self, key: int) -> int:
        return key * 10

    def __getitems__(self, keys: list[int]) -> list[int]:
        return [key * 100 for key in keys]


def test_records_in_the_order_of_a_sampler() -> None:
    dataset = SampledDataset(Source(), Reversed(4))
    assert len(dataset) == 4
    assert [dataset[i] for i in range(4)] == [30, 20, 10, 0]
    assert dataset.__getitems__([3, 0]) == [0, 300]
    assert SampledDataset([1, 2, 3], Reversed(3)).__getitems__ is None


def test_records_draw_from_the_samplers_generator() -> None:
    dataset = SampledDataset(Random(4), Reversed(4, seed=9))
    expected = Random(4).__getitem__(2, np.random.Generator(np.random.Philox(key=10)))
    assert same(dataset[1], expected)
    with pytest.raises(ValueError, match="takes rng, but the sampler has no seed"):
        SampledDataset(Random(4), Reversed(4))[0]


def grain_batches(grain: Any, sampler: Any, arguments: tuple[Any, ...]) -> list[list[int]]:
    length, size, workers, shards, shard, drop = arguments
    loader = grain.DataLoader(
        data_source=range(length),
        sampler=sampler,
        operations=[grain.Batch(size, drop_remainder=drop)],
        worker_count=workers,
        shard_options=grain.ShardOptions(shard, shards),
    )
    return [np.asarray(batch).tolist() for batch in loader]


@pytest.fixture(scope="module")
def grain() -> Any:
    pytest.importorskip("grain", reason="grain is not installed; make test-peers does")
    # Grain's workers read flags, which absl.app.run would have parsed.
    importlib.import_module("absl.flags").FLAGS.mark_as_parsed()
    return importlib.import_module("grain.python")


def test_the_order_beside_grain_without_workers(grain: Any) -> None:
    for length in (1, 2, 8, 13):
        for size in (1, 2, 3):
            for shards in (1, 2, 3):
                for shard in range(shards):
                    for drop in (False, True):
                        arguments = (length, size, 0, shards, shard, drop)
                        sampler = grain.SequentialSampler(length, grain.NoSharding())
                        assert grain_batches(grain, sampler, arguments) == batches(*arguments), arguments


@pytest.mark.parametrize(
    "arguments",
    [(8, 2, 2, 1, 0, False), (11, 3, 3, 1, 0, False), (11, 3, 3, 1, 0, True), (13, 2, 2, 2, 1, False)],
)
def test_the_order_beside_grain_with_workers(grain: Any, arguments: tuple[Any, ...]) -> None:
    length, size, workers, shards, shard, drop = arguments
    sampler = grain.IndexSampler(length, grain.ShardOptions(shard, shards), shuffle=True, num_epochs=1, seed=4)
    keys = SampledDataset(range(length), sampler)
    expected = [[keys[position] for position in batch] for batch in batches(*arguments)]
    assert is_grain_sampler(sampler)
    assert grain_batches(grain, sampler, arguments) == expected
    loader = DataLoader(
        range(length), size, sampler=sampler, drop_last=drop, num_workers=workers, shard=(shard, shards), order="grain"
    )
    assert [batch.tolist() for batch in loader] == expected


def test_grains_generators_reach_the_records(grain: Any) -> None:
    class Draw(grain.RandomMapTransform):
        def random_map(self, element: Any, rng: np.random.Generator) -> Any:
            return rng.integers(0, 1 << 30, 3)

    sampler = grain.IndexSampler(6, grain.NoSharding(), shuffle=True, num_epochs=2, seed=11)
    loader = grain.DataLoader(
        data_source=range(6), sampler=sampler, operations=[Draw()], worker_count=0, shard_options=grain.NoSharding()
    )
    dataset = SampledDataset(Random(6), sampler)
    assert len(dataset) == 12
    for position, drawn in enumerate(loader):
        assert same(dataset[position][0], drawn)


def test_an_endless_sampler_of_grains(grain: Any) -> None:
    sampler = GrainSampler(grain.IndexSampler(5, grain.NoSharding(), num_epochs=None, seed=1))
    assert len(sampler) == sys.maxsize
    assert sampler[12] == 2


def test_sources_of_grains_are_datasets(grain: Any) -> None:
    source = grain.RangeDataSource(3, 12, 2)
    dataset = SampledDataset(source, grain.SequentialSampler(len(source), grain.NoSharding()))
    assert [dataset[i] for i in range(len(dataset))] == [3, 5, 7, 9, 11]
