"""Taking a loader's state, and resuming from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, Raising, Vectors, same

from headrace import errors
from headrace.data import DataLoader
from headrace.data._samplers.samplers import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler
from headrace.data._samplers.weighted import WeightedRandomSampler
from headrace.fluid import core


class Foreign:
    """A sampler that knows nothing of positions."""

    def __iter__(self) -> Iterator[int]:
        yield from (7, 3, 9, 1, 2, 8, 8, 0, 4, 6, 5)

    def __len__(self) -> int:
        return 11


LOADERS: dict[str, Callable[..., DataLoader]] = {
    "sequential": lambda **more: DataLoader(Ints(23), batch_size=3, seed=5, **more),
    "shuffled": lambda **more: DataLoader(Ints(23), batch_size=3, shuffle=True, seed=5, **more),
    "drop_last": lambda **more: DataLoader(Ints(23), batch_size=3, shuffle=True, seed=5, drop_last=True, **more),
    "sequential sampler": lambda **more: DataLoader(Ints(23), 3, sampler=SequentialSampler(Ints(20)), seed=5, **more),
    "with replacement": lambda **more: DataLoader(
        Ints(23), 3, sampler=RandomSampler(Ints(23), replacement=True, num_samples=17, generator=4), seed=5, **more
    ),
    "subset": lambda **more: DataLoader(
        Ints(23), 3, sampler=SubsetRandomSampler([5, 3, 8, 22, 1, 0, 9], generator=4), seed=5, **more
    ),
    "weighted": lambda **more: DataLoader(
        Ints(4), 2, sampler=WeightedRandomSampler([1, 2, 3, 4], 11, generator=4), seed=5, **more
    ),
    "batch sampler": lambda **more: DataLoader(
        Ints(23), batch_sampler=BatchSampler(RandomSampler(Ints(23), generator=4), 4, False), seed=5, **more
    ),
    "foreign sampler": lambda **more: DataLoader(Ints(23), 2, sampler=Foreign(), seed=5, **more),
    "foreign batch sampler": lambda **more: DataLoader(
        Ints(9), batch_sampler=[[1, 2], [3], [4, 5, 6], [8]], seed=5, **more
    ),
    "no batches": lambda **more: DataLoader(Ints(11), None, True, seed=5, **more),
    "Grain's order": lambda **more: DataLoader(Ints(23), 2, shuffle=True, seed=5, order="grain", **more),
}


def rows(batch: Any) -> list[int]:
    return np.atleast_1d(np.asarray(batch)).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_restored_loader_goes_on_with_exactly_the_next_batch(kind: str, num_workers: int) -> None:
    make = LOADERS[kind]
    loader = make(num_workers=num_workers)
    epochs = [[rows(batch) for batch in loader] for _ in range(3)]
    assert epochs[0]
    loader = make(num_workers=num_workers)
    second = make(num_workers=num_workers)
    for taken in range(len(epochs[1]) + 1):
        loader.set_epoch(1)
        iterator = iter(loader)
        assert [rows(next(iterator)) for _ in range(taken)] == epochs[1][:taken]
        state = json.loads(json.dumps(loader.state_dict()))
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert [rows(batch) for batch in second] == epochs[1][taken:]
        assert [rows(batch) for batch in second] == epochs[2]
        del iterator


class Counting(Foreign):
    """Shifts its indices with each epoch, and has a state that says in which one it is."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        yield from ((index + self.epoch) % 11 for index in super().__iter__())
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


@pytest.mark.parametrize("taken", [0, 2])
def test_the_state_of_a_sampler_is_kept_between_epochs_and_within_one(taken: int) -> None:
    loader, resumed = (DataLoader(Ints(11), 4, sampler=Counting(), seed=5) for _ in range(2))
    assert [rows(batch)[0] for batch in loader] == [7, 2, 4]
    if taken:
        batches = iter(loader)
        assert [rows(next(batches))[0] for _ in range(taken)] == [8, 3]
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert [rows(batch)[0] for batch in resumed] == [8, 3, 5][taken:]
    assert [rows(batch)[0] for batch in resumed] == [9, 4, 6]


class Remembering(Counting):
    """Goes on where it was left, in the order of its epoch."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        order = [(index + self.epoch) % 11 for index in Foreign.__iter__(self)]
        while self.at < 11:
            self.at += 1
            yield order[self.at - 1]
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterator_that_nobody_reads_costs_a_sampler_that_goes_on_nothing(num_workers: int) -> None:
    def make() -> DataLoader:
        return DataLoader(Ints(11), 2, sampler=Remembering(), seed=5, num_workers=num_workers)

    whole, loader = make(), make()
    for _ in range(3):
        epoch = [rows(batch) for batch in whole]
        assert len(epoch) == 6
        iter(loader)
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        iter(loader)
        iter(resumed)
        assert [rows(batch) for batch in resumed] == epoch
        assert [rows(batch) for batch in loader] == epoch


def left_in_epoch_1(taken: int, **arguments: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """The indices of three epochs of a sampler that goes on, and a state after that many batches of the second."""
    epochs = [list(order) for order in [Remembering()] * 3]
    loader = DataLoader(seed=5, sampler=Remembering(), **arguments)
    list(loader)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    return epochs, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("before", "taken", "after"), [(2, 3, 3), (4, 2, 3), (3, 1, 4), (2, 0, 5), (2, 6, 4)])
def test_other_batches_of_a_sampler_with_a_state_go_on_at_the_sample(
    before: int, taken: int, after: int, num_workers: int
) -> None:
    epochs, state = left_in_epoch_1(taken, dataset=Ints(11), batch_size=before)
    resumed = DataLoader(
        Ints(11), after, sampler=Remembering(), seed=5, num_workers=num_workers, on_state_mismatch="adapt"
    )
    repeated = before * taken % after
    if repeated:
        with pytest.warns(RuntimeWarning, match=f"begins with {repeated} samples that were already delivered"):
            resumed.load_state_dict(state)
    else:
        resumed.load_state_dict(state)
    begin = before * taken - repeated
    assert [i for batch in resumed for i in rows(batch)] == epochs[1][begin:]
    assert [i for batch in resumed for i in rows(batch)] == epochs[2]


@pytest.mark.parametrize("change", [{"dataset": Ints(12)}, {"seed": 6}], ids=["dataset", "seed"])
def test_an_epoch_that_restarts_is_the_samplers_too(change: dict[str, Any]) -> None:
    epochs, state = left_in_epoch_1(2, dataset=Ints(11), batch_size=2)
    arguments: dict[str, Any] = {"dataset": Ints(11), "batch_size": 2, "seed": 5, **change}
    resumed = DataLoader(sampler=Remembering(), on_state_mismatch="adapt", **arguments)
    with pytest.warns(RuntimeWarning, match=r"The epoch restarts$"):
        resumed.load_state_dict(state)
    assert resumed.state_dict()["epoch"] == 1
    for epoch in epochs[1:]:
        assert [i for batch in resumed for i in rows(batch)] == epoch


def test_the_state_of_another_sampler_is_said_to_be_dropped() -> None:
    _, state = left_in_epoch_1(2, dataset=Ints(11), batch_size=2)
    for sampler in (Counting(), Foreign()):
        resumed = DataLoader(Ints(11), 2, sampler=sampler, seed=5, on_state_mismatch="adapt")
        with pytest.warns(RuntimeWarning, match=r"The epoch restarts, without the sampler's part of the state$"):
            resumed.load_state_dict(state)
        assert [i for batch in resumed for i in rows(batch)] == list(Foreign())


class Untold(Counting):
    """Has no state while it stands at the beginning of an epoch in which ``fails`` says so."""

    fails: tuple[int, ...] = (0,)
    at = 0

    def __iter__(self) -> Iterator[int]:
        for index in super().__iter__():
            self.at += 1
            yield index
            self.at %= len(self)

    def state_dict(self) -> dict[str, int]:
        if self.at == 0 and self.epoch in self.fails:
            raise LookupError(f"no state before epoch {self.epoch}")
        return super().state_dict()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("batched", [False, True])
def test_a_sampler_that_cannot_tell_its_state_is_heard_of_once_that_matters(num_workers: int, batched: bool) -> None:
    def make() -> DataLoader:
        order = {"batch_sampler": Batches(sampler)} if batched else {"batch_size": 4, "sampler": sampler}
        return DataLoader(Ints(11), num_workers=num_workers, seed=5, **order)

    sampler: Any = Counting()
    whole = make()
    epochs = [[rows(batch) for batch in whole] for _ in range(4)]
    for fails in (0, 1, 2):
        sampler = Untold()
        sampler.fails = (fails,)
        loader = make()
        for epoch in range(3):
            for taken in range(4):
                if taken == 0:
                    batches = iter(loader)
                else:
                    assert rows(next(batches)) == epochs[epoch][taken - 1]
                if epoch != fails or epoch == 0:  # before the first one nothing is lost
                    state = json.loads(json.dumps(loader.state_dict()))
                    sampler = Untold()
                    sampler.fails = ()
                    resumed = make()
                    resumed.load_state_dict(state)
                    assert [rows(batch) for batch in resumed] == epochs[epoch][taken:]
                    assert [rows(batch) for batch in resumed] == epochs[epoch + 1]
                else:
                    with pytest.raises((LookupError, errors.FailedPrecondition), match=f"before epoch {epoch}"):
                        loader.state_dict()
            assert list(batches) == []


class Batches:
    """Lists of four indices of a sampler, which it does not know."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        indices = list(self.sampler)
        return iter([indices[0:4], indices[4:8], indices[8:]])


def test_the_state_is_small_whatever_the_dataset() -> None:
    loader = DataLoader(Ints(1 << 40), batch_size=1 << 10, shuffle=True, seed=1)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 300


def test_restoring_takes_no_time_with_the_built_in_orders() -> None:
    length = (1 << 33) + 1
    for arguments in ({"shuffle": True}, {"sampler": RandomSampler(range(length), replacement=True, generator=3)}, {}):
        loader = DataLoader(Ints(length), batch_size=4, seed=9, **arguments)  # type: ignore[arg-type]
        state = {**loader.state_dict(), "batch": 1 << 30}
        loader.load_state_dict(state)
        here = rows(next(iter(loader)))
        loader.load_state_dict({**state, "batch": (1 << 30) - 1})
        iterator = iter(loader)
        next(iterator)
        assert rows(next(iterator)) == here


@pytest.mark.parametrize(("before", "after"), [(0, 3), (3, 0), (1, 2), (2, 7)])
def test_the_number_of_workers_may_change(before: int, after: int) -> None:
    expected = [rows(batch) for batch in DataLoader(Ints(50), 4, shuffle=True, seed=2)]
    loader = DataLoader(Ints(50), 4, shuffle=True, seed=2, num_workers=before)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    other = DataLoader(Ints(50), 4, shuffle=True, seed=2, num_workers=after)
    other.load_state_dict(loader.state_dict())
    assert [rows(batch) for batch in other] == expected[5:]


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 4), (4, 2)])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_number_of_hosts_may_change(before: int, after: int, num_workers: int) -> None:
    def group(world: int) -> list[DataLoader]:
        return [
            DataLoader(Ints(61), 8 // world, shuffle=True, seed=2, shard=(rank, world), num_workers=num_workers)
            for rank in range(world)
        ]

    def global_batches(loaders: list[DataLoader]) -> list[set[int]]:
        shares = [[rows(batch) for batch in loader] for loader in loaders]
        return [
            {i for share in shares for i in (share[batch] if batch < len(share) else [])}
            for batch in range(max(map(len, shares)))
        ]

    everything = global_batches(group(1))
    assert [len(batch) for batch in everything] == [8] * 7 + [5]
    old = group(before)
    iterators = [iter(loader) for loader in old]
    for iterator in iterators:
        for _ in range(3):
            next(iterator)
    states = [loader.state_dict() for loader in old]
    assert all(state == states[0] for state in states)
    new = group(after)
    for loader in new:
        loader.load_state_dict(states[0])
    assert global_batches(new) == everything[3:]


def test_a_state_taken_at_the_end_begins_the_next_epoch() -> None:
    loader = DataLoader(Ints(4), 2, seed=1)
    assert loader.state_dict()["epoch"] == 0
    for _ in loader:
        pass
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)


def test_a_state_taken_after_the_last_batch_has_nothing_left_of_the_epoch() -> None:
    loader = DataLoader(Ints(4), 2, seed=1, shuffle=True)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    other = DataLoader(Ints(4), 2, seed=1, shuffle=True)
    other.load_state_dict(state)
    assert list(other) == []
    assert [rows(batch) for batch in other] == [rows(batch) for batch in loader]


def test_a_state_taken_after_breaking_off_is_that_place() -> None:
    loader = DataLoader(Ints(10), 2, seed=1, num_workers=1)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    other = DataLoader(Ints(10), 2, seed=1)
    other.load_state_dict(loader.state_dict())
    assert [rows(batch) for batch in other] == [[6, 7], [8, 9]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_failed_counts_as_taken(num_workers: int) -> None:
    loader = DataLoader(Raising(10, 5), 2, seed=1, num_workers=num_workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(KeyError):
        next(iterator)
    assert loader.state_dict()["batch"] == 3
    assert rows(next(iterator)) == [6, 7]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loading_during_an_iteration_ends_it(num_workers: int) -> None:
    loader = DataLoader(Ints(10), 2, seed=1, num_workers=num_workers)
    state = loader.state_dict()
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict({**state, "batch": 3})
    with pytest.raises(RuntimeError, match="another state was loaded"):
        next(iterator)
    assert [rows(batch) for batch in loader] == [[6, 7], [8, 9]]


def test_without_a_seed_the_state_brings_its_own() -> None:
    loader = DataLoader(Ints(30), 3, shuffle=True, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    other = DataLoader(Ints(30), 3, shuffle=True)
    other.load_state_dict(loader.state_dict())
    assert all(same(a, b) for a, b in zip(other, iterator))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"version": 99}, ValueError, "version 99"),
        ({"length": 11}, ValueError, "length=11"),
        ({"seed": 2}, ValueError, "seed=2"),
        ({"order": "sequential"}, ValueError, "order='sequential'"),
        ({"global_batch_size": 3}, ValueError, "global_batch_size=3"),
        ({"batch": -1}, ValueError, "batch of the state must be from 0"),
        ({"epoch": "x"}, TypeError, "epoch of the state must be an integer"),
    ],
    ids=str,
)
def test_a_state_of_another_loader_is_a_clear_error(change: dict[str, Any], error: type[Exception], words: str) -> None:
    loader = DataLoader(Ints(10), 2, shuffle=True, seed=1)
    with pytest.raises(error, match=words):
        loader.load_state_dict({**loader.state_dict(), **change})


@pytest.mark.parametrize(
    ("state", "error"), [({}, ValueError), (None, TypeError), ([1], TypeError), ({"epoch": 1}, ValueError)]
)
def test_what_is_no_state_is_refused(state: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="not a state of a loader"):
        DataLoader(Ints(10)).load_state_dict(state)


def test_a_feeding_loader_is_told_how_far_the_program_is() -> None:
    loader = DataLoader(Vectors(20), 2, seed=1, num_workers=1)
    queue = core.init_lod_tensor_blocking_queue(core.Scope().var("queue"), 4, [[-1, 3, 4], [-1]])
    feed = loader._feed(queue)
    for _ in range(3):
        queue.pop(timeout=100)
    with pytest.raises(errors.FailedPrecondition, match="batches=n"):
        loader.state_dict()
    state = loader.state_dict(batches=3)
    feed.stop()
    other = DataLoader(Vectors(20), 2, seed=1)
    other.load_state_dict(state)
    assert next(iter(other))[1].tolist() == [6, 7]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_choosing_the_epoch_of_a_loaded_state_keeps_its_place(num_workers: int) -> None:
    loader = DataLoader(Ints(12), batch_size=3, shuffle=True, seed=5, num_workers=num_workers)
    list(loader)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [rows(batch) for batch in batches]
    resumed = DataLoader(Ints(12), batch_size=3, shuffle=True, seed=5, num_workers=num_workers)
    resumed.load_state_dict(state)
    for epoch in range(state["epoch"], 3):  # as every training loop does
        resumed.set_epoch(epoch)
        assert (resumed.state_dict()["epoch"], resumed.state_dict()["batch"]) == (epoch, 1 if epoch == 1 else 0)
        got = [rows(batch) for batch in resumed]
        assert got == rest if epoch == 1 else len(got) == 4


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_the_epoch_may_be_chosen_at_the_loaders_own_sampler(name: str) -> None:
    loader = DataLoader(Ints(23), 3, shuffle=True, seed=5)
    epochs = [[rows(batch) for batch in loader] for _ in range(3)]
    assert loader.sampler is loader.sampler
    getattr(loader, name).set_epoch(1)
    assert list(loader.batch_sampler) == epochs[1]
    getattr(loader, name).set_epoch(1)
    assert [rows(batch) for batch in loader] == epochs[1]
    assert [rows(batch) for batch in loader] == epochs[2]


def test_a_chosen_epoch_shows_in_the_state() -> None:
    loader = DataLoader(Ints(6), batch_size=2)
    loader.set_epoch(3)
    assert loader.state_dict()["epoch"] == 3
    list(loader)
    loader.set_epoch(7)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (7, 0)
    batches = iter(loader)
    next(batches)
    loader.set_epoch(9)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (9, 0)
    next(batches)  # while the iteration goes on regardless
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (7, 2)
    del batches
    loader.set_epoch(9)
    next(iter(loader))
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (9, 1)


def test_a_state_goes_before_an_epoch_that_was_chosen_at_the_sampler() -> None:
    def make() -> DataLoader:
        return DataLoader(Ints(12), batch_size=3, sampler=RandomSampler(Ints(12), generator=3))

    loader = make()
    batches = iter(loader)
    next(batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    resumed.sampler.set_epoch(0)
    assert [[rows(batch) for batch in resumed] for _ in range(2)] == [
        [rows(batch) for batch in batches],
        [rows(batch) for batch in loader],
    ]
