"""An iterator that nobody reads consumes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints

from headrace.data import DataLoader, RandomSampler


class Onward:
    """A sampler that goes on where it was left, in the order of its epoch."""

    def __init__(self) -> None:
        self.at = self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 20:
            self.at += 1
            yield (self.at * 7 + self.epoch) % 20
        self.at, self.epoch = 0, self.epoch + 1

    def set_epoch(self, epoch: int) -> None:
        self.at, self.epoch = 0, epoch

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


def values(loader: Any) -> list[int]:
    return [int(value) for batch in loader for value in batch]


WAYS = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": False}]


@pytest.mark.parametrize("way", WAYS, ids=["without workers", "workers", "workers for one epoch"])
def test_the_next_iterator_begins_where_it_would_have(way: dict[str, Any]) -> None:
    def loader() -> DataLoader:
        return DataLoader(Ints(20), batch_size=4, shuffle=True, seed=3, **way)

    plain, probed = loader(), loader()
    for _ in range(3):
        iter(probed)
        state = probed.state_dict()
        iter(probed)
        assert probed.state_dict() == state
        assert values(probed) == values(plain)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_several_at_a_time_consume_nothing_in_whatever_order_they_go(order: tuple[int, ...]) -> None:
    loader = DataLoader(Ints(20), batch_size=4, shuffle=True, seed=3)
    epochs = [values(loader) for _ in range(2)]
    loader.set_epoch(0)
    assert values(loader) == epochs[0]
    state = loader.state_dict()
    unread = {number: iter(loader) for number in range(3)}
    for number in order:
        del unread[number]
    assert loader.state_dict() == state
    assert values(loader) == epochs[1]


def test_a_state_is_not_used_up() -> None:
    loader = DataLoader(Ints(20), batch_size=4, sampler=RandomSampler(Ints(20), generator=1))
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = values(batches)
    loader.load_state_dict(state)
    iter(loader)
    loader.set_epoch(0)
    assert values(loader) == rest


def test_what_was_chosen_since_stays() -> None:
    loader = DataLoader(Ints(20), batch_size=20, shuffle=True, seed=3)
    epochs = [values(loader) for _ in range(4)]
    loader.set_epoch(0)
    unread = iter(loader)
    loader.set_epoch(1)
    del unread
    assert values(loader) == epochs[1]


def test_iterators_that_are_read_count_however_others_end() -> None:
    loader = DataLoader(Ints(20), batch_size=20, shuffle=True, seed=3)
    epochs = [values(loader) for _ in range(4)]
    loader.set_epoch(0)
    unread, read = iter(loader), iter(loader)
    assert np.array_equal(next(read), epochs[1])
    del unread
    assert values(loader) == epochs[2]
    for _ in iter(loader):
        break
    assert loader.state_dict()["epoch"] == 3


@pytest.mark.parametrize("way", WAYS, ids=["without workers", "workers", "workers for one epoch"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_a_sampler_that_goes_on_loses_nothing_to_several_of_which_some_are_read(
    order: tuple[int, ...], way: dict[str, Any]
) -> None:
    plain = DataLoader(Ints(20), batch_size=4, sampler=Onward())
    epochs = [values(plain) for _ in range(3)]
    loader = DataLoader(Ints(20), batch_size=4, sampler=Onward(), **way)
    dropped, read, last = order
    unread = {number: iter(loader) for number in range(3)}
    del unread[dropped]
    assert values(unread[read]) == epochs[0]
    assert values(unread[last]) == epochs[1]
    assert values(loader) == epochs[2]


@pytest.mark.parametrize("way", WAYS, ids=["without workers", "workers", "workers for one epoch"])
@pytest.mark.parametrize("left", [False, True])
def test_an_epoch_that_is_chosen_at_the_sampler_beside_one_that_nobody_reads_is_the_next(
    left: bool, way: dict[str, Any]
) -> None:
    expected = values(DataLoader(Ints(20), batch_size=4, sampler=Onward()))
    sampler = Onward()
    loader = DataLoader(Ints(20), batch_size=4, sampler=sampler, **way)
    list(itertools.islice(loader, 1 if left else None))
    iter(loader)
    loader.state_dict()
    sampler.set_epoch(0)
    assert values(loader) == expected
