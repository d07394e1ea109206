"""Grain's loader and ours with ``order="grain"``, batch by batch: workers, shards, samplers, generators."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grain", reason="compares with Grain, which is not installed")
grain: Any = importlib.import_module("grain.python")
# Grain's workers read flags, which its users' programs parse.
importlib.import_module("absl.flags").FLAGS.mark_as_parsed()

from loader_datasets import same  # noqa: E402

from headrace import data as hr_data  # noqa: E402


class Source:
    """A data source as Grain requires: with a length, records by index, and a stable repr."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Any) -> dict[str, Any]:
        key = int(key)
        return {"key": key, "image": np.full((2, 3), key, np.float32), "id": np.int16(key)}

    def __repr__(self) -> str:
        return f"Source({self.length})"


class Noisy(Source):
    """As :class:`Source`; part of each record is drawn from its generator."""

    def __getitem__(self, key: Any, rng: np.random.Generator) -> Any:  # type: ignore[override]
        return {"key": int(key), "drawn": rng.random(2)}


class AddNoise(grain.RandomMapTransform):  # type: ignore[misc]
    """The same, written for Grain."""

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {"key": element["key"], "drawn": rng.random(2)}


def of_grain(
    length: int, size: int, workers: int, shard: tuple[int, int], drop: bool, sampler: Any, *more: Any
) -> list[dict[str, Any]]:
    loader = grain.DataLoader(
        data_source=Source(length),
        sampler=sampler,
        operations=[*more, grain.Batch(size, drop_remainder=drop)],
        worker_count=workers,
        shard_options=grain.ShardOptions(*shard),
    )
    return list(loader)


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, their in zip(ours, theirs):
        assert set(mine) == set(their)  # Grain sorts them
        for name in their:
            assert same(mine[name], np.asarray(their[name])), name


def index_sampler(length: int, shard: tuple[int, int] = (0, 1), **more: Any) -> Any:
    return grain.IndexSampler(length, grain.ShardOptions(*shard), **more)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_sequential_and_shuffled_samplers_in_process(num_workers: int) -> None:
    """Grain makes the same batches without workers as with one."""
    for length, size in ((2, 2), (8, 3), (13, 4)):
        for shard in ((0, 1), (1, 2)):
            for drop in (False, True):
                for shuffle in (False, True):
                    sampler = index_sampler(length, shard, shuffle=shuffle, num_epochs=1, seed=7)
                    theirs = of_grain(length, size, 0, shard, drop, sampler)
                    loader = hr_data.DataLoader(
                        Source(length),
                        size,
                        sampler=sampler,
                        drop_last=drop,
                        shard=shard,
                        order="grain",
                        num_workers=num_workers if shuffle and not drop else 0,
                    )
                    assert len(loader) == len(theirs)
                    assert_same(list(loader), theirs)


@pytest.mark.parametrize(
    ("length", "size", "workers", "shard", "drop", "epochs"),
    [
        (8, 2, 2, (0, 1), False, 1),
        (11, 3, 3, (0, 1), False, 1),
        (11, 3, 3, (0, 1), True, 1),
        (13, 2, 2, (1, 2), False, 1),
        (14, 2, 2, (2, 3), True, 2),
        (7, 3, 2, (0, 1), False, 3),
    ],
)
def test_worker_processes(
    length: int, size: int, workers: int, shard: tuple[int, int], drop: bool, epochs: int
) -> None:
    sampler = index_sampler(length, shard, shuffle=True, num_epochs=epochs, seed=3)
    theirs = of_grain(length, size, workers, shard, drop, sampler)
    loader = hr_data.DataLoader(
        Source(length), size, sampler=sampler, drop_last=drop, shard=shard, order="grain", num_workers=workers
    )
    assert_same(list(loader), theirs)


def test_seeds_give_different_orders_as_in_grain() -> None:
    keys = []
    for seed in (0, 1, 12345):
        sampler = index_sampler(30, shuffle=True, num_epochs=1, seed=seed)
        theirs = of_grain(30, 4, 0, (0, 1), False, sampler)
        ours = list(hr_data.DataLoader(Source(30), 4, sampler=sampler, order="grain"))
        assert_same(ours, theirs)
        keys.append([int(key) for batch in ours for key in batch["key"]])
    assert len({tuple(order) for order in keys}) == 3
    assert all(sorted(order) == list(range(30)) for order in keys)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shard", [(0, 1), (1, 2)])
def test_the_generator_of_each_record(workers: int, shard: tuple[int, int]) -> None:
    sampler = index_sampler(12, shard, shuffle=True, num_epochs=2, seed=11)
    theirs = of_grain(12, 3, workers, shard, False, sampler, AddNoise())
    loader = hr_data.DataLoader(Noisy(12), 3, sampler=sampler, shard=shard, order="grain", num_workers=workers)
    assert_same(list(loader), theirs)


def test_a_sampler_that_is_only_sequential() -> None:
    sampler = grain.SequentialSampler(9, grain.NoSharding())
    theirs = of_grain(9, 2, 2, (0, 1), False, sampler)
    assert_same(list(hr_data.DataLoader(Source(9), 2, sampler=sampler, order="grain", num_workers=2)), theirs)
    # The order without a sampler is the same.
    assert_same(list(hr_data.DataLoader(Source(9), 2, order="grain", num_workers=2)), theirs)


def test_shards_together_give_each_record_once() -> None:
    sampler = index_sampler(24, shuffle=True, num_epochs=1, seed=2)
    seen = []
    for rank in range(3):
        loader = hr_data.DataLoader(Source(24), 2, sampler=sampler, shard=(rank, 3), order="grain", num_workers=2)
        seen += [int(key) for batch in loader for key in batch["key"]]
    assert sorted(seen) == list(range(24))


def test_going_on_where_a_state_was_taken() -> None:
    """From a state of ours, the batches go on as Grain's would."""
    sampler = index_sampler(20, shuffle=True, num_epochs=1, seed=5)
    theirs = of_grain(20, 3, 2, (0, 1), False, sampler)
    loader = hr_data.DataLoader(Source(20), 3, sampler=sampler, order="grain", num_workers=2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    again = hr_data.DataLoader(Source(20), 3, sampler=sampler, order="grain", num_workers=2)
    again.load_state_dict(state)
    assert_same(list(again), theirs[3:])


def test_sources_of_grains_and_its_range() -> None:
    source = grain.RangeDataSource(3, 33, 2)
    theirs = list(
        grain.DataLoader(
            data_source=source,
            sampler=index_sampler(len(source), shuffle=True, num_epochs=1, seed=1),
            operations=[grain.Batch(4)],
            worker_count=0,
            shard_options=grain.NoSharding(),
        )
    )
    sampler = index_sampler(len(source), shuffle=True, num_epochs=1, seed=1)
    ours = list(hr_data.DataLoader(source, 4, sampler=sampler, order="grain", num_workers=1))
    assert len(ours) == len(theirs)
    assert all(np.array_equal(mine, their) for mine, their in zip(ours, theirs))


def test_array_records_are_a_dataset(tmp_path: Any) -> None:
    module = pytest.importorskip("array_record.python.array_record_module", reason="array_record is not installed")
    path = str(tmp_path / "data.array_record")
    writer = module.ArrayRecordWriter(path, "group_size:1")
    for i in range(20):
        writer.write(np.full(4, i, np.float32).tobytes())
    writer.close()
    sources: Any = importlib.import_module("array_record.python.array_record_data_source")
    loader = hr_data.DataLoader(
        sources.ArrayRecordDataSource([path]), 4, True, seed=3, num_workers=2, multiprocessing_context="spawn"
    )
    for _ in range(2):
        got = [np.frombuffer(record, np.float32).tolist() for batch in loader for record in batch]
        assert sorted(got) == [[float(i)] * 4 for i in range(20)]
    state = loader.state_dict()
    assert state["epoch"] == 2
