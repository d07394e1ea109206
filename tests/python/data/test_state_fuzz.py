"""States that were tampered with are refused with a clear error and without effect, or can be resumed from."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints

from headrace import errors
from headrace.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus" / "loader_state"


class Count(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(23))


class Place(Count):
    """Says where it is."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 23:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = int(state["at"])


class Shuffled:
    """A sampler that knows nothing of positions, and has another order each epoch."""

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 23

    def __iter__(self) -> Iterator[Any]:
        order = random.Random(self.epoch).sample(range(23), 23)
        yield from order if self.batch is None else (order[i : i + self.batch] for i in range(0, 23, self.batch))


def reads(**arguments: Any) -> Callable[[], DataLoader]:
    return lambda: DataLoader(Ints(23), seed=5, **arguments)


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "sequential": reads(batch_size=3),
    "shuffled": reads(batch_size=3, shuffle=True),
    "seekable": lambda: DataLoader(Ints(23), 3, sampler=RandomSampler(Ints(23), generator=4), seed=5),
    "seekable_batches": lambda: DataLoader(
        Ints(23), batch_sampler=BatchSampler(RandomSampler(Ints(23), generator=4), 3, False), seed=5
    ),
    "foreign": reads(batch_size=3, sampler=list(range(22, -1, -1))),
    "grain": reads(batch_size=3, shuffle=True, order="grain"),
    "stream": lambda: DataLoader(Count(), 3, seed=5),
    "range": reads(batch_size=3, sampler=range(22, -1, -1)),
    "array": reads(batch_size=3, sampler=np.arange(23)),
    "own": reads(batch_size=3, sampler=Shuffled()),
    "subset": reads(batch_size=3, sampler=SubsetRandomSampler(range(23), generator=4)),
    "weighted": reads(batch_size=3, sampler=WeightedRandomSampler([1.0] * 23, 23, False, generator=4)),
    "batches": reads(batch_sampler=[[i, i + 1, i + 2][: 23 - i] for i in range(0, 23, 3)]),
    "own_batches": reads(batch_sampler=Shuffled(3)),
    "foreign_batches": reads(batch_sampler=BatchSampler(list(range(23)), 3, False)),  # type: ignore[arg-type]
    "single": reads(batch_size=None, shuffle=True),
    "stateful_stream": lambda: DataLoader(Place(), 3, seed=5),
}
# Batches in any order of these have numbers, of which some may have been taken before their turn.
NUMBERED = [kind for kind in LOADERS if "stream" not in kind]
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 7, 8, 9, 1 << 31, 1 << 62, 1 << 64, 1 << 200, -(1 << 70), 0.5, float("nan")),
    *("", "x", "shuffled", [], [[]], {}, [1], [4, 2], [2, 2], [[1, None, False]], [[1, 2, 3]], {"sampler": {}}),
    *({"sampler": {"seed": "x", "length": 23}}, {"torch_seed": 1}, b"bytes", object()),
]


def corpus() -> list[Path]:
    return sorted(CORPUS.glob("*.json"))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def mutated(state: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    state = copy.deepcopy(state)
    opened = "details" in state
    if opened:
        state["details"] = json.loads(state["details"])
    names = ("skip", "streams", "next_stream", "plan", "unknown", 3)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        *way, last = chance.choice(list(places(state)) or [("version",)])
        inner: Any = state
        for key in way:
            inner = inner[key]
        kind, odd = chance.randrange(4), copy.deepcopy(chance.choice(ODD))
        if kind == 0:
            del inner[last]
        elif kind == 1 and isinstance(inner, dict):
            inner[chance.choice(names)] = odd
        else:
            inner[last] = odd
    if opened and isinstance(state.get("details"), dict) and chance.random() < 0.95:
        with contextlib.suppress(TypeError):  # not every odd value is JSON's
            state["details"] = json.dumps(state["details"])
    return state


def rows(batch: Any) -> list[int]:
    return np.atleast_1d(np.asarray(batch)).tolist()


@pytest.mark.parametrize("path", corpus(), ids=lambda path: path.stem)
def test_a_state_of_the_corpus_is_good(path: Path) -> None:
    """They are of version 1."""
    make = LOADERS[path.stem.split("-")[0]]
    loader, reference = make(), [rows(batch) for batch in make()]
    state = json.loads(path.read_text())
    loader.load_state_dict(state)
    again = make()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert {name: again.state_dict()[name] for name in ("epoch", "batch", "seed")} == {
        name: state[name] for name in ("epoch", "batch", "seed")
    }
    for each in (loader, again):
        assert [rows(batch) for batch in each] == reference[state["batch"] :]


def originals(kind: str) -> Iterator[dict[str, Any]]:
    """States of the loader of a kind."""
    loader = LOADERS[kind]()
    yield json.loads(json.dumps(loader.state_dict()))
    for _ in zip(range(3), loader):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    yield state
    if kind in NUMBERED:
        details = {**json.loads(state["details"]), "skip": [4, 6]}
        yield {**state, "details": json.dumps(details)}
    for path in corpus():
        if path.stem.split("-")[0] == kind:
            yield json.loads(path.read_text())


@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_that_was_tampered_with_is_refused_or_good(kind: str) -> None:
    make = LOADERS[kind]
    chance = random.Random(kind)
    refused, states = 0, list(originals(kind))
    for trial in range(400):
        loader = make()
        before = loader.state_dict()
        bad = mutated(states[trial % len(states)], chance)
        try:
            loader.load_state_dict(bad)
        except (TypeError, ValueError):
            assert loader.state_dict() == before
            refused += 1
            continue
        try:
            left = sum(len(rows(batch)) for batch in loader)
        except (errors.FailedPrecondition, KeyError, ValueError, TypeError) as error:
            # What the sampler draws shows when it draws; only the dataset can check its own state.
            assert "yields other indices" in str(error) or "stream" in kind, bad  # noqa: PT017
            continue
        assert left <= 23, bad
        assert loader.state_dict()["batch"] == 0
    assert refused > 130


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", NUMBERED)
def test_any_batches_may_have_been_taken(kind: str, num_workers: int, in_order: bool) -> None:
    """Whatever was taken before: a state gives the rest, and so does one that is taken within the rest."""

    def make(in_order: bool = in_order) -> DataLoader:
        arguments = {name: getattr(like, name) for name in ("sampler", "batch_sampler", "shuffle", "order", "seed")}
        if like._config.sampler is None:
            arguments["sampler"] = None
        if like._config.batch_sampler is None:
            arguments |= {"batch_sampler": None, "batch_size": like.batch_size}
        return DataLoader(Ints(23), num_workers=num_workers, in_order=in_order, **arguments)

    chance, like = random.Random(kind), LOADERS[kind]()
    whole = [rows(batch) for batch in make(in_order=True)]
    for _ in range(12 if num_workers == 0 else 1):
        first = chance.randrange(len(whole))
        skip = [batch for batch in range(first + 1, len(whole)) if chance.random() < 0.4]
        loader = make()
        state = loader.state_dict() | {"batch": first, "details": json.dumps({"skip": skip})}
        expected = [batch for number, batch in enumerate(whole) if number >= first and number not in skip]
        loader.load_state_dict(state)
        batches = iter(loader)
        got = [rows(next(batches)) for _ in range(chance.randrange(len(expected) + 1))]
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        got += [rows(batch) for batch in resumed]
        assert sorted(got) == sorted(expected), (first, skip)
        assert not in_order or got == expected
        assert sorted(rows(batch) for batch in resumed) == sorted(rows(batch) for batch in continued(make, loader))


def continued(make: Callable[[], DataLoader], loader: DataLoader) -> DataLoader:
    """One that begins the epoch after that of a state."""
    other = make()
    other.set_epoch(loader.state_dict()["epoch"] + 1)
    return other


def test_the_corpus_has_kinds_that_there_are() -> None:
    assert {path.stem.split("-")[0] for path in corpus()} <= set(LOADERS)
