"""A loader in one of several processes that do not shard the dataset."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from loader_datasets import Ints

from headrace.data import BatchSampler, DataLoader, DistributedSampler, _world


@pytest.fixture(autouse=True)
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_world, "_warned", False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")


def told(loader: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(loader)
    about_it = [each for each in caught if "one of" in str(each.message)]
    assert {each.filename for each in about_it} <= {__file__}
    return [str(each.message) for each in about_it]


def test_it_is_told_what_to_write_and_once() -> None:
    (text,) = told(DataLoader(Ints(8), batch_size=2))
    assert "one of 2" in text
    assert "shard=(rank, 2)" in text
    assert "DistributedSampler" in text
    assert told(DataLoader(Ints(8), batch_size=2)) == []


def test_what_shares_out_is_not_warned_of() -> None:
    sampler = DistributedSampler(Ints(8), 2, 0)
    assert told(DataLoader(Ints(8), shard=(0, 2))) == []
    assert told(DataLoader(Ints(8), sampler=sampler)) == []
    assert told(DataLoader(Ints(8), batch_sampler=BatchSampler(sampler, 2, False))) == []
    assert told(DataLoader(iter([1, 2]))) == []
    assert len(told(DataLoader(Ints(8)))) == 1


def test_a_program_of_one_process_is_not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert told(DataLoader(Ints(8))) == []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK")
    assert told(DataLoader(Ints(8))) == []


def test_a_process_group_says_more_than_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("torch.distributed", reason="torch is not installed; make test-peers does")
    assert len(told(DataLoader(Ints(8)))) == 1
    monkeypatch.setattr(_world, "_warned", False)
    distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert told(DataLoader(Ints(8))) == []
    finally:
        distributed.destroy_process_group()
    assert len(told(DataLoader(Ints(8)))) == 1


def test_samples_are_not_shared_out_twice() -> None:
    sampler = DistributedSampler(Ints(8), 2, 0)
    for given in ({"sampler": sampler}, {"batch_sampler": BatchSampler(sampler, 2, False)}):
        with pytest.raises(
            ValueError, match=r"shard=\(1, 2\) and the sampler \(DistributedSampler\).*Leave out shard="
        ):
            DataLoader(Ints(8), shard=(1, 2), **given)
    loader = DataLoader(Ints(8), sampler=DistributedSampler(Ints(8), 1, 0, shuffle=False), shard=(1, 2))
    assert sorted(int(value) for batch in loader for value in batch) == [1, 3, 5, 7]


def test_what_to_write_fits_the_arguments() -> None:
    (text,) = told(DataLoader(Ints(8), batch_size=2, shuffle=True, seed=3))
    assert "shard=(rank, 2), drop_last=True;" in text
    _world._warned = False
    (text,) = told(DataLoader(Ints(8), batch_sampler=[[1, 2]]))
    assert "batch_sampler draw from" in text
