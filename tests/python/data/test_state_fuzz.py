"""States that were tampered with are refused with a clear error and without effect, or can be resumed from."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_datasets import Ints

from headrace.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus" / "loader_state"


class Count(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(23))


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "sequential": lambda: DataLoader(Ints(23), 3, seed=5),
    "shuffled": lambda: DataLoader(Ints(23), 3, shuffle=True, seed=5),
    "seekable": lambda: DataLoader(Ints(23), 3, sampler=RandomSampler(Ints(23), generator=4), seed=5),
    "seekable_batches": lambda: DataLoader(
        Ints(23), batch_sampler=BatchSampler(RandomSampler(Ints(23), generator=4), 3, False), seed=5
    ),
    "foreign": lambda: DataLoader(Ints(23), 3, sampler=list(range(22, -1, -1)), seed=5),
    "grain": lambda: DataLoader(Ints(23), 3, shuffle=True, order="grain", seed=5),
    "stream": lambda: DataLoader(Count(), 3, seed=5),
}
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
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        *way, last = chance.choice(list(places(state)) or [("version",)])
        inner: Any = state
        for key in way:
            inner = inner[key]
        kind, odd = chance.randrange(4), copy.deepcopy(chance.choice(ODD))
        if kind == 0:
            del inner[last]
        elif kind == 1 and isinstance(inner, dict):
            inner[chance.choice(("skip", "streams", "next_stream", "plan", "unknown", 3))] = odd
        else:
            inner[last] = odd
    return state


@pytest.mark.parametrize("path", corpus(), ids=lambda path: path.stem)
def test_a_state_of_the_corpus_is_good(path: Path) -> None:
    loader = LOADERS[path.stem.split("-")[0]]()
    state = json.loads(path.read_text())
    loader.load_state_dict(state)
    assert json.loads(json.dumps(loader.state_dict())) == state


@pytest.mark.parametrize("path", corpus(), ids=lambda path: path.stem)
def test_a_state_that_was_tampered_with_is_refused_or_good(path: Path) -> None:
    make = LOADERS[path.stem.split("-")[0]]
    chance = random.Random(path.stem)
    state = json.loads(path.read_text())
    refused = 0
    for _ in range(300):
        loader = make()
        before = loader.state_dict()
        bad = mutated(state, chance)
        try:
            loader.load_state_dict(bad)
        except (TypeError, ValueError):
            assert loader.state_dict() == before
            refused += 1
            continue
        try:
            left = sum(len(batch) for batch in loader)
        except ValueError as error:  # only the dataset can check its own state
            assert "load_state_dict" in str(error), bad  # noqa: PT017
            continue
        assert left <= 23, bad
        assert loader.state_dict()["batch"] == 0
    assert refused > 100


def test_the_corpus_has_every_kind() -> None:
    assert {path.stem.split("-")[0] for path in corpus()} == set(LOADERS)
