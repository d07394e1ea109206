"""What a state looks like, what becomes of one that is refused, and that it names a place in the order."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, Vectors

from headrace import errors
from headrace.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    IterableMixture,
    PackedIterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.data._iteration.packed_state import pack, unpack
from headrace.fluid import core


class Counted(Ints):
    """A map-style dataset that knows how often it was trained on, and accepts a number only."""

    rounds: Any = 0

    def __getitem__(self, index: int) -> int:
        return 100 * int(self.rounds) + index

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]
        if not isinstance(self.rounds, int):
            raise ValueError("not a number of rounds")


class Stream(IterableDataset[int]):
    """Says where it is."""

    def __init__(self, length: int = 24) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Plain(Stream):
    """Has no state."""

    state_dict = load_state_dict = property()  # type: ignore[assignment]


class Tuples(Stream):
    """Its state is not only lists, dicts and numbers."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": (self.at, [None, ("x",)])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, rest = state["at"]
        assert rest == [None, ("x",)]


class Arrays(Stream):
    """Its state is one that JSON cannot hold."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": np.int64(self.at)}


LOADERS: dict[str, Callable[..., DataLoader]] = {
    "sequential": lambda **more: DataLoader(Ints(24), 4, seed=1, **more),
    "shuffled": lambda **more: DataLoader(Ints(24), 4, True, seed=1, **more),
    "a seed of its own": lambda **more: DataLoader(Ints(24), 4, True, **more),
    "out of order": lambda **more: DataLoader(Ints(24), 4, True, seed=1, in_order=False, **more),
    "sampler": lambda **more: DataLoader(Ints(24), 4, sampler=RandomSampler(range(24), generator=3), **more),
    "weighted": lambda **more: DataLoader(Ints(24), 4, sampler=WeightedRandomSampler([1.0] * 24, 24), **more),
    "subset": lambda **more: DataLoader(Ints(24), 4, sampler=SubsetRandomSampler(range(24)), **more),
    "list": lambda **more: DataLoader(Ints(24), 4, sampler=[*range(23, -1, -1)], **more),
    "batch sampler": lambda **more: DataLoader(
        Ints(24), batch_sampler=BatchSampler(RandomSampler(range(24), generator=3), 4, False), **more
    ),
    "batches": lambda **more: DataLoader(Ints(24), batch_sampler=[[i, i + 1] for i in range(0, 24, 2)], **more),
    "Grain's order": lambda **more: DataLoader(Ints(24), 4, True, seed=1, order="grain", **more),
    "dataset with a state": lambda **more: DataLoader(Counted(24), 4, True, seed=1, **more),
    "stream": lambda **more: DataLoader(Plain(), 4, seed=1, **more),
    "stream with a state": lambda **more: DataLoader(Stream(), 4, seed=1, **more),
    "stream with tuples": lambda **more: DataLoader(Tuples(), 4, seed=1, **more),
    "streams": lambda **more: DataLoader(Stream(), 4, seed=1, iterable_sharding="dataset", **more),
    "mixture": lambda **more: DataLoader(IterableMixture([Stream(), Plain()], [2, 1]), 4, seed=1, **more),
    "packed": lambda **more: DataLoader(PackedIterableDataset(Stream(), 5, bins=2), 2, seed=1, **more),
}


def rows(batch: Any) -> Any:
    return batch["values"].tolist() if isinstance(batch, dict) else np.asarray(batch).tolist()


def structure(state: Any) -> Any:
    """What a checkpoint that takes containers apart sees of a value."""
    if isinstance(state, dict):
        return {key: structure(value) for key, value in state.items()}
    return [structure(value) for value in state] if isinstance(state, list) else ()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_has_the_same_keys_and_no_others_within_them_always(kind: str, num_workers: int) -> None:
    loader = LOADERS[kind](num_workers=num_workers)
    states = [loader.state_dict()]
    batches = iter(loader)
    states.append(loader.state_dict())
    next(batches), next(batches)
    states.append(loader.state_dict())
    loader.load_state_dict(states[-1])
    states.append(loader.state_dict())
    list(loader)
    states.append(loader.state_dict())
    assert [structure(state) for state in states] == [structure(DataLoader(Ints(1)).state_dict())] * 5
    assert all(type(value) in (int, str, type(None)) for state in states for value in state.values())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_what_goes_through_json_resumes_exactly(kind: str, num_workers: int) -> None:
    loader = LOADERS[kind](num_workers=num_workers)
    batches = iter(loader)
    before = [rows(next(batches)) for _ in range(2)]
    state = loader.state_dict()
    resumed = LOADERS[kind](num_workers=num_workers)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert resumed.state_dict() == state
    rest, expected = [rows(batch) for batch in resumed], [rows(batch) for batch in batches]
    assert (sorted(rest) == sorted(expected)) if kind == "out of order" else (rest == expected)
    assert before
    assert rest


def test_what_json_cannot_hold_is_one_value_all_the_same() -> None:
    def make() -> DataLoader:
        return DataLoader(Arrays(), 4, seed=1)

    loader = make()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert structure(state) == structure(make().state_dict())
    with pytest.raises(TypeError, match="int64"):
        json.dumps(state)
    resumed = make()
    resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
    assert [rows(batch) for batch in resumed] == [rows(batch) for batch in batches]


@pytest.mark.parametrize(
    "value",
    [
        *(
            {},
            {"a": (1, (2.5, None), [True, ()])},
            {"a": {"b": {}}, "\ud83d": "\n"},
            {"n": -(1 << 70), "i": float("inf")},
        ),
        *({"a": {1: 2}}, {"a": {"headrace.tuple": [1]}}, {"a": b"x"}, {"a": {1, 2}}, {"a": 10**5000}),
    ],
    ids=range(9),
)
def test_values_come_back_as_they_were(value: Any) -> None:
    packed = pack(value)
    assert unpack(packed) == value
    if isinstance(packed, str):
        assert repr(unpack(packed)) == repr(value)  # 1 is not True


@pytest.mark.parametrize(
    ("details", "error"),
    [
        *(("{", ValueError), ("[]", TypeError), ("[" * 100_000, ValueError), (None, TypeError), ({}, TypeError)),
        *(((1, 2), TypeError), ('{"more": 1}', ValueError), ('{"skip": {"headrace.tuple": 1}}', TypeError)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_details_that_are_none_are_refused(details: Any, error: type[Exception]) -> None:
    loader = DataLoader(Ints(24), 4, seed=1)
    with pytest.raises(error, match=r"details|of the state|unknown key"):
        loader.load_state_dict({**loader.state_dict(), "details": details})


OLD = Path(__file__).parents[2] / "fuzz" / "corpus" / "loader_state"


def test_a_state_of_version_1_is_read() -> None:
    """Those of the corpus are; these have in addition what not every state has."""
    common = {"version": 1, "epoch": 1, "length": 24, "global_batch_size": 4, "num_workers": None, "seed": 1}
    loader = DataLoader(Counted(24), 4, seed=1)
    loader.load_state_dict({**common, "batch": 2, "order": "sequential", "skip": [4], "dataset": {"rounds": 3}})
    assert [rows(batch) for batch in loader] == [[i, i + 1, i + 2, i + 3] for i in (308, 312, 320)]
    stream = DataLoader(Stream(), 4, seed=1)
    streams = {"streams": [[2, {"at": 8}, False]], "next_stream": 0}
    stream.load_state_dict({**common, "batch": 2, "order": "stream", "length": None, **streams})
    assert [rows(batch)[0] for batch in stream] == [8, 12, 16, 20]
    assert len(list(OLD.glob("*.json"))) >= 14


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_that_the_dataset_refuses_changes_nothing(num_workers: int) -> None:
    loader = DataLoader(Counted(24), 4, seed=1, num_workers=num_workers)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    bad = {**state, "batch": 4, "epoch": 7, "details": json.dumps({"dataset": {"rounds": "x"}})}
    with pytest.raises(ValueError, match="not a number of rounds"):
        loader.load_state_dict(bad)
    assert loader.state_dict() == state
    assert rows(next(batches)) == [4, 5, 6, 7]
    assert len(list(batches)) == 4
    assert rows(next(iter(loader))) == [0, 1, 2, 3]


@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_copy_stands_where_the_loader_does(num_workers: int, copies: Callable[[DataLoader], DataLoader]) -> None:
    loader = DataLoader(Ints(24), 4, True, seed=1, num_workers=num_workers)

    def check() -> None:
        other = copies(loader)
        assert other.state_dict() == loader.state_dict()
        resumed = DataLoader(Ints(24), 4, True, seed=1)
        resumed.load_state_dict(loader.state_dict())
        for _ in range(2):
            assert [rows(batch) for batch in other] == [rows(batch) for batch in resumed]

    check()
    batches = iter(loader)
    check()
    next(batches), next(batches)
    check()
    loader.set_epoch(5)
    check()
    next(batches)
    check()
    list(batches)
    check()
    loader.load_state_dict({**loader.state_dict(), "batch": 3})
    check()


def test_a_copy_of_a_stream_in_the_middle_goes_on_there() -> None:
    loader = DataLoader(Stream(), 4, seed=1, num_workers=1)
    batches = iter(loader)
    next(batches), next(batches)
    other = pickle.loads(pickle.dumps(loader))
    assert [rows(batch) for batch in other] == [rows(batch) for batch in batches]


class Fatal(Ints):
    """Some samples end their worker."""

    def __init__(self, length: int, *fatal: int) -> None:
        super().__init__(length)
        self.fatal = fatal

    def __getitem__(self, index: int) -> int:
        if index in self.fatal:
            os._exit(1)
        return index


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize(
    ("size", "taken", "fatal"), [(1, 5, (2, 3)), (2, 2, (2, 3)), (2, 3, (0, 1, 4)), (2, 4, (10, 11))]
)
def test_a_batch_of_which_nothing_is_left_is_not_waited_for_again(
    size: int, taken: int, fatal: tuple[int, ...], in_order: bool
) -> None:
    def make() -> DataLoader:
        return DataLoader(
            Fatal(12, *fatal),
            size,
            num_workers=1,
            seed=0,
            multiprocessing_context="fork",
            on_worker_death="skip",
            max_deaths_per_sample=1,
            in_order=in_order,
        )

    loader = make()
    batches = iter(loader)
    before = [rows(next(batches)) for _ in range(taken)]
    state = loader.state_dict()
    loader.shutdown()
    if in_order:
        assert state["batch"] == before[-1][0] // size + 1
    resumed = make()
    resumed.load_state_dict(state)
    rest = [rows(batch) for batch in resumed]
    resumed.shutdown()
    assert sorted(i for batch in before + rest for i in batch) == [i for i in range(12) if i not in fatal]


@pytest.mark.filterwarnings("ignore:worker")
def test_a_number_of_batches_does_not_name_a_place_behind_samples_that_were_left_out() -> None:
    dataset = Vectors(12)
    loader = DataLoader(Fatal(12, 2, 3), 2, num_workers=1, seed=0, on_worker_death="skip", max_deaths_per_sample=1)
    queue = core.init_lod_tensor_blocking_queue(core.Scope().var("queue"), 4, [[-1]])
    feed = loader._feed(queue)
    for _ in range(3):
        queue.pop(timeout=100)
    with pytest.raises(errors.FailedPrecondition, match="does not say which batches these were"):
        loader.state_dict(batches=3)
    feed.stop()
    assert len(dataset) == 12


def test_what_was_taken_before_its_turn_is_remembered_in_order_too() -> None:
    state = DataLoader(Ints(24), 4, seed=1).state_dict()
    state |= {"batch": 1, "details": json.dumps({"skip": [2, 4]})}
    loader = DataLoader(Ints(24), 4, seed=1)
    loader.load_state_dict(state)
    batches = iter(loader)
    for first, batch, skip in ((4, 3, [4]), (12, 5, []), (20, 6, [])):
        assert rows(next(batches))[0] == first
        now = loader.state_dict()
        assert (now["batch"], json.loads(now["details"]).get("skip", [])) == (batch, skip)
    assert list(batches) == []


class Numbers(IterableDataset[int]):
    """Each iteration is one of its own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(40))


def taken_after(batches: int, **arguments: Any) -> tuple[list[int], dict[str, Any], list[int]]:
    """The samples of that many batches of epoch 1, the state after them, and the samples after that."""
    loader = DataLoader(**arguments)
    list(loader)
    iterator = iter(loader)
    taken = [i for _ in range(batches) for i in np.atleast_1d(rows(next(iterator)))]
    return taken, json.loads(json.dumps(loader.state_dict())), [i for batch in iterator for i in rows(batch)]


ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {"dataset": Ints(40)},
    "shuffled": {"dataset": Ints(40), "shuffle": True, "seed": 7},
    "a seed of its own": {"dataset": Ints(40), "shuffle": True},
    "sampler": {"dataset": Ints(40), "sampler": RandomSampler(range(40), generator=3)},
    "stream": {"dataset": Numbers()},
}


@pytest.mark.parametrize(
    ("before", "taken", "after"), [(4, 4, 8), (8, 2, 4), (4, 3, 8), (3, 5, 7), (2, 19, 40), (4, 10, 3)]
)
@pytest.mark.parametrize("kind", ORDERS)
def test_a_state_of_other_batches_of_the_same_order_goes_on_at_the_sample(
    kind: str, before: int, taken: int, after: int
) -> None:
    first, state, others = taken_after(taken, batch_size=before, **ORDERS[kind])
    loader = DataLoader(batch_size=after, on_state_mismatch="adapt", **ORDERS[kind])
    repeated = len(first) % after
    if repeated:
        with pytest.warns(RuntimeWarning, match=f"begins with {repeated} samples that were already delivered"):
            loader.load_state_dict(state)
    else:
        loader.load_state_dict(state)
    rest = [i for batch in loader for i in rows(batch)]
    assert rest == first[len(first) - repeated :] + others
    assert len(set(first + rest)) == 40
    assert loader.state_dict()["epoch"] == 2


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "change",
    [
        *({"dataset": Ints(60)}, {"shuffle": False}, {"seed": 8}, {"order": "grain"}, {"batch_size": None}),
        *({"shuffle": False, "sampler": [*range(40)]}, {"dataset": Numbers(), "shuffle": False}),
    ],
    ids=range(7),
)
def test_a_state_of_another_order_begins_its_epoch_anew(change: dict[str, Any], num_workers: int) -> None:
    _, state, _ = taken_after(3, dataset=Ints(40), shuffle=True, seed=7, batch_size=4)
    arguments = {"dataset": Ints(40), "shuffle": True, "seed": 7, "batch_size": 4, "num_workers": num_workers, **change}
    strict, loader = DataLoader(**arguments), DataLoader(on_state_mismatch="adapt", **arguments)
    with pytest.raises(ValueError, match='on_state_mismatch="adapt"'):
        strict.load_state_dict(state)
    with pytest.warns(RuntimeWarning, match="The epoch restarts"):
        loader.load_state_dict(state)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)
    strict.set_epoch(1)
    assert [rows(batch) for batch in loader] == [rows(batch) for batch in strict]


def test_the_warning_points_at_who_loads_the_state() -> None:
    loader = DataLoader(Ints(40), 4, seed=1, on_state_mismatch="adapt")
    with pytest.warns(RuntimeWarning, match="restarts") as caught:
        loader.load_state_dict(DataLoader(Ints(50), 4, seed=2).state_dict())
    assert [warning.filename for warning in caught] == [__file__]


def test_a_loader_that_adapts_resumes_its_own_states_exactly_and_refuses_what_is_none() -> None:
    loader = DataLoader(Ints(40), 4, seed=1, on_state_mismatch="adapt")
    state = {**loader.state_dict(), "batch": 3}
    loader.load_state_dict(state)
    assert rows(next(iter(loader))) == [12, 13, 14, 15]
    for bad in ({}, {**state, "version": 9}, {**state, "epoch": -1, "length": 2}, {**state, "details": 3}):
        with pytest.raises((TypeError, ValueError)):
            loader.load_state_dict(bad)
    with pytest.raises(ValueError, match="on_state_mismatch must be"):
        DataLoader(Ints(40), on_state_mismatch="warn")
