"""The sampler of a loader whose order is not PyTorch's: libraries make loaders of their own of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

from headrace.torch import DataLoader  # noqa: E402

ORDERS: list[dict[str, Any]] = [
    {"seed": 7},
    {"seed": 7, "shuffle": True},
    {"shard": (1, 2)},
    {"shard": (2, 3), "seed": 7, "shuffle": True},
    {"shard": (0, 2), "seed": 7, "shuffle": True, "drop_last": True},
    {"seed": 7, "drop_last": True},
]
each_order = pytest.mark.parametrize("order", ORDERS, ids=str)


def make(length: int = 23, batch_size: int | None = 4, **arguments: Any) -> DataLoader:
    return DataLoader(list(range(length)), batch_size, **arguments)


def lists(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


class Lightnings:
    """What Lightning puts in a batch sampler's place to see its lists."""

    def __init__(self, batch_sampler: Any) -> None:
        vars(self).update(vars(batch_sampler))
        self._batch_sampler = batch_sampler
        self.left: Any = None

    def __iter__(self) -> Iterator[list[int]]:
        self.left = iter(self._batch_sampler)
        return self

    def __next__(self) -> list[int]:
        return list(next(self.left))

    def __len__(self) -> int:
        return len(self._batch_sampler)


@each_order
def test_it_gives_the_loaders_indices_in_their_order(order: dict[str, Any]) -> None:
    for length in (0, 1, 5, 7, 8, 23, 24) if not order.get("shuffle") else (1, 5, 7, 8, 23, 24):
        loader = make(length, **order)
        for epoch in (0, 1, 3):
            loader.set_epoch(epoch)
            batches = list(loader.batch_sampler)
            loader.set_epoch(epoch)
            indices = list(loader.sampler)
            assert len(loader) == len(loader.batch_sampler) == len(batches)
            assert batches == lists(loader)
            assert len(loader.sampler) == len(indices)
            assert [index for batch in batches for index in batch] == indices[: sum(map(len, batches))]


@each_order
def test_pytorchs_loader_reads_the_same_epochs_from_it(order: dict[str, Any]) -> None:
    loader, expected = make(**order), make(**order)
    theirs = torch_data.DataLoader(loader.dataset, batch_sampler=loader.batch_sampler)
    assert [lists(theirs) for _ in range(3)] == [lists(expected) for _ in range(3)]
    lists(loader)
    assert lists(theirs) == lists(loader)


@each_order
def test_a_loader_that_is_given_it_reads_the_same(order: dict[str, Any]) -> None:
    expected = lists(make(**order))
    for more in ({}, {name: order[name] for name in ("seed", "shard") if name in order}):
        size = {"drop_last": order.get("drop_last", False)}
        by_sampler = DataLoader(list(range(23)), 4, sampler=make(**order).sampler, **size, **more)
        assert (lists(by_sampler), len(by_sampler)) == (expected, len(expected))
        seen = Lightnings(make(**order).batch_sampler)
        by_batches = DataLoader(list(range(23)), batch_sampler=seen, **more)
        assert (lists(by_batches), len(by_batches)) == (expected, len(expected))


@pytest.mark.parametrize("drop_last", [False, True])
def test_of_a_sampler_that_is_given_the_batch_sampler_gives_the_share(drop_last: bool) -> None:
    for length in range(25):
        given = list(reversed(range(length)))
        for shard in ((0, 2), (1, 2), (2, 3)):
            arguments: dict[str, Any] = {"sampler": given, "drop_last": drop_last}
            loader = make(length, **arguments, shard=shard)
            assert loader.sampler is given
            assert list(loader.batch_sampler) == lists(loader)
            assert len(loader.batch_sampler) == len(loader)
            again = DataLoader(loader.dataset, batch_sampler=Lightnings(loader.batch_sampler), shard=shard)
            assert lists(again) == lists(loader)


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True, "seed": 3}, {"sampler": [5, 4, 3, 2, 1, 0]}])
def test_a_shard_may_be_a_list(arguments: dict[str, Any]) -> None:
    for shard in ((0, 1), (1, 2)):
        loaders = [make(6, **arguments, drop_last=True, shard=given) for given in (shard, list(shard))]
        assert lists(loaders[0]) == lists(loaders[1])
        assert len(loaders[0]) == len(loaders[1])
        assert loaders[1].shard == shard
        assert repr(loaders[0]) == repr(loaders[1])


def test_a_share_of_a_share_is_refused() -> None:
    with pytest.raises(ValueError, match="would each take a share"):
        DataLoader(list(range(23)), 4, sampler=make(shard=(1, 2)).sampler, shard=(1, 3))


def test_a_loader_without_batches_has_it_as_well() -> None:
    order: dict[str, Any] = {"shard": (1, 2), "seed": 3, "shuffle": True}
    assert list(make(batch_size=None, **order).sampler) == list(make(batch_size=None, **order))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_is_chosen_at_it_is_the_loaders(workers: int) -> None:
    loader = make(seed=7, shuffle=True, num_workers=workers)
    epochs = [lists(loader) for _ in range(5)]
    loader.batch_sampler.set_epoch(2)
    assert loader.state_dict()["epoch"] == 2
    assert lists(loader) == epochs[2]
    assert lists(loader) == epochs[3]
    batches = iter(loader)
    next(batches)
    loader.sampler.set_epoch(1)  # during an iteration: of the next one
    assert len(list(batches)) == 5
    assert lists(loader) == epochs[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iteration_that_is_not_read_yet_is_of_the_epoch_that_is_chosen(workers: int) -> None:
    loader = make(seed=7, shuffle=True, num_workers=workers)
    epochs = [lists(loader) for _ in range(4)]
    loader = make(seed=7, shuffle=True, num_workers=workers)
    batches = iter(loader)
    loader.sampler.set_epoch(2)
    assert lists(batches) == epochs[2]
    assert lists(loader) == epochs[3]
    batches = iter(loader)
    loader.sampler.set_epoch(0)
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 0)
    assert lists(batches) == epochs[0]
    batches = iter(loader)
    loader.sampler.set_epoch(3)
    del batches
    assert lists(loader) == epochs[3]


def test_a_state_goes_before_the_epoch_that_is_chosen_at_it_unless_nothing_is_left() -> None:
    loader = make(seed=7, shuffle=True)
    epochs = [lists(loader) for _ in range(3)]
    loader.set_epoch(1)
    batches = iter(loader)
    states = []
    for _ in range(6):
        next(batches)
        states.append(loader.state_dict())
    for early in (False, True):
        for number, state in enumerate(states):
            again = make(seed=7, shuffle=True)
            again.load_state_dict(state)
            started = iter(again) if early else None
            again.sampler.set_epoch(2)
            rest = lists(again if started is None else started)
            assert rest == (epochs[1][number + 1 :] if number < 5 else epochs[2])


def test_it_follows_a_state_and_a_generator() -> None:
    loader = make(shuffle=True, shard=(0, 2), generator=np.random.default_rng(3))
    assert list(loader.batch_sampler) == lists(loader)
    batches = iter(loader)
    next(batches)
    again = make(shuffle=True, shard=(0, 2), generator=np.random.default_rng(4))
    again.load_state_dict(loader.state_dict())
    whole = list(again.batch_sampler)
    assert whole[1:] == lists(again)


def test_a_copy_has_its_own() -> None:
    loader = make(seed=7, shuffle=True)
    epochs = [lists(loader) for _ in range(4)]
    loader.set_epoch(0)
    assert loader.state_dict()["epoch"] == 0
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        other.batch_sampler.set_epoch(3)
        assert other.batch_sampler.sampler is other.sampler
        assert lists(other) == epochs[3]
        assert loader.state_dict()["epoch"] == 0
    assert lists(loader) == epochs[0]


def test_bad_arguments_are_those_errors_still() -> None:
    for arguments, error, words in (
        ({"shuffle": True, "seed": 1, "length": 0}, ValueError, "num_samples"),
        ({"shard": (2, 2)}, ValueError, "shard"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 1, "batch_size": 0}, ValueError, "batch_size"),
        ({"shard": (0, 2), "shuffle": True}, ValueError, "needs a seed"),
    ):
        with pytest.raises(error, match=words):
            make(**arguments)  # type: ignore[arg-type]
