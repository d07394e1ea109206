"""Batches whose samples are made by several workers and collated by one, as num_workers_batches asks for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Everything, Ints, Meeting, Random, same

from headrace.data import DataLoader, get_worker_info


class Makers(Meeting):
    """Samples that tell who made them."""

    def __getitem__(self, index: int) -> Any:
        who = super().__getitem__(index)
        return index, who.worker


def with_collator(samples: list[Any]) -> dict[str, Any]:
    info = get_worker_info()
    return {"samples": samples, "by": -1 if info is None else info.id}


def _indices(batch: dict[str, Any]) -> list[int]:
    return [index for index, _ in batch["samples"]]


class Arrays(Makers):
    def __getitem__(self, index: int) -> Any:
        return np.full(1000, index), super().__getitem__(index)[1]


class Keeping:
    """Keeps samples for later calls, as CutMix does, and tells whether any has changed since."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, int]] = []

    def __call__(self, samples: list[Any]) -> Any:
        changed = [value for array, value in self.kept if (array != value).any()]
        self.kept += [(array, int(array[0])) for array, _ in samples]
        return changed, sorted({maker for _, maker in samples})


@pytest.mark.parametrize("arguments", [{}, {"workers": "thread"}], ids=str)
def test_collate_fn_may_keep_samples(arguments: dict[str, Any]) -> None:
    dataset = Arrays(160, 3)
    loader = DataLoader(
        dataset, 8, collate_fn=Keeping(), num_workers=3, num_workers_batches=1, persistent_workers=False, **arguments
    )
    batches = list(loader)
    assert batches[0][1] == [0, 1, 2]
    assert [changed for changed, _ in batches] == [[]] * 20


def sums(samples: list[Any]) -> Any:
    return np.stack([np.asarray(sample[0], np.float64) for sample in samples]).sum(0), len(samples)


@pytest.mark.parametrize("arguments", [{"num_workers": 4}, {"num_workers": 4, "workers": "thread"}], ids=str)
def test_several_workers_make_one_batch(arguments: dict[str, Any]) -> None:
    loader = DataLoader(
        Makers(64, 4), 16, collate_fn=with_collator, num_workers_batches=4, persistent_workers=False, **arguments
    )
    batches = list(loader)
    assert [_indices(batch) for batch in batches] == [list(range(i, i + 16)) for i in range(0, 64, 16)]
    assert {maker for _, maker in batches[0]["samples"]} == {0, 1, 2, 3}


def test_only_so_many_workers_collate() -> None:
    loader = DataLoader(
        Makers(120, 4), 8, collate_fn=with_collator, num_workers=4, num_workers_batches=1, persistent_workers=False
    )
    batches = list(loader)
    assert {batch["by"] for batch in batches} == {0}
    assert {maker for _, maker in batches[0]["samples"]} == {0, 1, 2, 3}


@pytest.mark.parametrize("num_workers", [1, 2, 5])
@pytest.mark.parametrize(
    ("dataset", "collate"), [(Random(50), sums), (Everything(50), list), (Makers(50, 0), with_collator)]
)
def test_the_batches_are_those_of_one_worker(dataset: Any, collate: Any, num_workers: int) -> None:
    expected = list(DataLoader(dataset, 7, True, collate_fn=collate, seed=3))
    loader = DataLoader(
        dataset, 7, True, collate_fn=collate, seed=3, num_workers=num_workers, num_workers_batches=num_workers
    )
    for number in range(2):
        got = list(loader)
        assert len(got) == 8
        if number == 0 and collate is with_collator:
            assert [_indices(batch) for batch in got] == [_indices(batch) for batch in expected]
        elif number == 0:
            assert all(map(same, got, expected))


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("ragged", ["pad", "list", "lod"])
def test_ragged_batches_do_not_depend_on_the_workers(ragged: str, num_workers: int) -> None:
    class Ragged(Ints):
        def __getitem__(self, index: int) -> Any:
            return np.arange(index % 7 + 1), index

    expected = [str(batch) for batch in DataLoader(Ragged(40), 6, ragged=ragged)]
    assert [str(batch) for batch in DataLoader(Ragged(40), 6, ragged=ragged, num_workers=num_workers)] == expected


def test_samples_that_cannot_be_pickled_are_collated_where_they_were_made() -> None:
    class Odd(Ints):
        def __getitem__(self, index: int) -> Any:
            return lambda: index

    loader = DataLoader(
        Odd(12),
        4,
        num_workers=2,
        num_workers_batches=1,
        collate_fn=lambda functions: np.array([f() for f in functions]),
    )
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_collate_fn_may_write_into_the_samples() -> None:
    def doubled(samples: list[Any]) -> Any:
        for sample in samples:
            sample *= 2
        return np.stack(samples)

    class Arrays(Ints):
        def __getitem__(self, index: int) -> Any:
            return np.full(300, index, np.float32)

    loader = DataLoader(Arrays(20), 4, num_workers=3, num_workers_batches=2, collate_fn=doubled)
    for _ in range(2):
        assert [batch[:, 299].tolist() for batch in loader] == [
            [2 * j for j in range(i, i + 4)] for i in range(0, 20, 4)
        ]


def test_the_first_bad_sample_is_reported_whoever_made_it() -> None:
    class Bad(Ints):
        def __getitem__(self, index: int) -> Any:
            if index % 8 == 6:
                raise LookupError(f"sample {index} is missing")
            time.sleep(0.002)
            if index % 8 == 3:
                raise KeyError(f"no sample {index}")
            return index

    iterator = iter(DataLoader(Bad(16), 8, num_workers=4, num_workers_batches=4, collate_fn=list))
    for first in (3, 11):
        with pytest.raises(KeyError, match=f"no sample {first}"):
            next(iterator)
    assert list(iterator) == []


def test_an_error_in_collate_fn_consumes_its_batch() -> None:
    def picky(samples: list[Any]) -> Any:
        if 5 in samples:
            raise ValueError("not with 5")
        return samples

    iterator = iter(DataLoader(Ints(12), 3, num_workers=3, num_workers_batches=2, collate_fn=picky))
    assert next(iterator) == [0, 1, 2]
    with pytest.raises(ValueError, match="not with 5"):
        next(iterator)
    assert list(iterator) == [[6, 7, 8], [9, 10, 11]]


@pytest.mark.filterwarnings("ignore:worker")
def test_batches_survive_workers_that_are_killed_while_they_collate(tmp_path: Path) -> None:
    def deadly(samples: list[Any]) -> Any:
        mark = tmp_path / str(samples[0])
        if samples[0] % 3 == 0 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return list(samples)

    loader = DataLoader(Ints(60), 4, num_workers=3, num_workers_batches=3, collate_fn=deadly)
    assert list(loader) == [list(range(i, i + 4)) for i in range(0, 60, 4)]


def test_memory_is_bounded() -> None:
    class Large(Ints):
        def __getitem__(self, index: int) -> Any:
            return np.full(1 << 18, index, np.uint8)

    loader = DataLoader(Large(160), 8, num_workers=4, num_workers_batches=4, collate_fn=np.stack, prefetch_factor=2)
    most = 0
    for _ in range(3):
        for _batch in loader:
            most = max(most, loader.stats()["resident_bytes"])
    # The samples and results of all batches in flight and of the one that the loop holds, and the descriptions.
    assert most <= 4 * (2 * (8 << 18) + (300 << 10)) + (1 << 20)
