"""The generators of records, which are functions of seed, epoch and index, and the global generators of workers."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import GloballyRandom, Random, same

from headrace import _core
from headrace.data import DataLoader, IterableDataset, get_worker_info, record_generator
from headrace.data._randomness import global_generators
from headrace.data._randomness.sample_seeds import generators_restored, seed_generators


def draw(seed: int, epoch: int, index: Any) -> list[int]:
    return record_generator(seed, epoch, index).integers(0, 1 << 62, 4).tolist()


def test_the_same_record_draws_the_same() -> None:
    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert draw(1, 2, "name") == draw(1, 2, "name")
    assert draw(1, 2, np.int32(3)) == draw(1, 2, 3)


def test_each_of_seed_epoch_and_index_matters() -> None:
    keys = [
        (seed, epoch, index) for seed in range(4) for epoch in range(4) for index in (0, 1, 2, -1, 1 << 64, "0", (0, 1))
    ]
    assert len({tuple(draw(*key)) for key in keys}) == len(keys)


class Key:
    def __init__(self, number: int) -> None:
        self.number = number
        self.words = frozenset(["a", f"b{number}", "c"])


class Keyed:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(1 << 60))


@pytest.mark.parametrize("make", [Key, lambda i: (i, Key(i)), lambda i: ("a", float(i)), lambda i: b"%d" % i, str])
def test_what_a_record_draws_depends_on_the_value_of_its_key(make: Any) -> None:
    def draws(**arguments: Any) -> list[int]:
        loader = DataLoader(Keyed(), 4, sampler=[make(i) for i in range(4)], seed=7, **arguments)
        (batch,) = loader
        drawn: list[int] = batch.tolist()
        return drawn

    expected = draws()
    assert len(set(expected)) == 4
    assert draws() == draws(num_workers=1) == expected
    assert draws(num_workers=1, multiprocessing_context="spawn") == expected  # and so not on hashes of this process


def test_a_key_that_has_no_value_elsewhere_is_refused() -> None:
    with pytest.raises(TypeError, match="use integers, strings or tuples"):
        draw(1, 2, lambda: 3)


def test_seed_and_epoch_do_not_add_up() -> None:
    assert draw(0, 1, 0) != draw(1, 0, 0)
    assert draw(11, 1, 0) != draw(1, 11, 0)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_the_loader_hands_each_record_its_generator(num_workers: int) -> None:
    loader = DataLoader(Random(7), batch_size=3, seed=4, shuffle=False, num_workers=num_workers)
    for epoch in range(2):
        numbers = np.concatenate([batch[0] for batch in loader])
        for index in range(7):
            assert same(numbers[index], record_generator(4, epoch, index).integers(0, 1 << 30, 3))


def drawn(batches: Any) -> tuple[float, ...]:
    return tuple(float(number) for batch in batches for column in batch for number in column)


def test_workers_that_start_anew_draw_other_numbers() -> None:
    loader = DataLoader(GloballyRandom(4), batch_size=2, num_workers=2, persistent_workers=False, seed=5)
    epochs = [drawn(loader) for _ in range(3)]
    epochs += [drawn(pair) for pair in zip(*zip(loader, loader))]
    loader.shutdown()
    epochs.append(drawn(loader))
    assert len({number for epoch in epochs for number in epoch}) == 6 * 8


def test_iterations_at_once_draw_different_numbers() -> None:
    loader = DataLoader(GloballyRandom(4), batch_size=2, num_workers=2, seed=5)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second))
    loader.shutdown()
    numbers = [drawn(batches) for batches in (*zip(*pairs), loader)]
    assert len({number for each in numbers for number in each}) == 3 * 8


def test_a_seed_repeats_what_the_workers_draw() -> None:
    def epochs(seed: int | None) -> list[Any]:
        loader = DataLoader(GloballyRandom(4), batch_size=2, num_workers=1, persistent_workers=False, seed=seed)
        return [drawn(loader) for _ in range(2)]

    assert epochs(7) == epochs(7)
    assert epochs(7) != epochs(8)
    assert epochs(None) != epochs(None)


def test_workers_that_go_on_within_an_epoch_do_not_repeat_its_beginning() -> None:
    loader = DataLoader(GloballyRandom(8), batch_size=4, num_workers=1, seed=7)
    batches = iter(loader)
    before = drawn([next(batches)])
    loader.load_state_dict(loader.state_dict())
    loader.shutdown()
    assert not set(before) & set(drawn(loader))


class Mortal(GloballyRandom):
    """Kills its worker the first time that it makes sample 6. Each sample also says how the worker was seeded."""

    def __init__(self, length: int, mark: Path) -> None:
        super().__init__(length)
        self.mark = mark

    def __getitem__(self, index: int) -> Any:
        if index == 6 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        info = get_worker_info()
        assert info is not None
        return *super().__getitem__(index), info.seed


def do_nothing(worker_id: int) -> None:
    pass


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize(
    "arguments",
    [{"num_workers": 1}, {"num_workers": 2}, {"num_workers": 2, "worker_init_fn": do_nothing}],
    ids=["one worker", "two workers", "worker_init_fn"],
)
def test_a_worker_in_place_of_another_repeats_none_of_its_numbers(arguments: dict[str, Any], tmp_path: Path) -> None:
    loader = DataLoader(Mortal(24, tmp_path / "mark"), batch_size=2, seed=5, **arguments)
    epochs = [list(loader) for _ in range(2)]
    assert loader.stats()["worker_deaths"] == 1
    numbers = drawn(columns[:2] for epoch in epochs for columns in epoch)
    assert len(set(numbers)) == len(numbers) == 2 * 48


@pytest.mark.filterwarnings("ignore:worker")
def test_a_worker_in_place_of_another_is_told_its_own_seed(tmp_path: Path) -> None:
    loader = DataLoader(Mortal(12, tmp_path / "mark"), batch_size=2, num_workers=1, seed=5)
    batches = list(loader)
    first, second = batches[0], batches[3]
    assert first[2].tolist() != second[2].tolist()
    for number, _, seed in (first, second):
        assert random.Random(int(seed[0])).random() == number[0]


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize("sharding", ["engine", "dataset"])
def test_a_worker_in_place_of_another_shuffles_a_stream_as_that_did(sharding: str, tmp_path: Path) -> None:
    class Shuffled(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for number in random.sample(range(12), 12):
                if number == 6 and not (tmp_path / "mark").exists():
                    (tmp_path / "mark").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                yield number

    loader = DataLoader(Shuffled(), num_workers=1, seed=5, iterable_sharding=sharding, multiprocessing_context="fork")
    numbers = [int(batch[0]) for batch in loader]
    assert loader.stats()["worker_deaths"] == 1
    assert sorted(numbers) == list(range(12))


class RandomInPlace(GloballyRandom):
    sample_spec = (0.0, 0.0)

    def __getitem__(self, index: int, out: Any = None) -> Any:
        numbers = super().__getitem__(index)
        if out is None:
            return numbers
        for place, number in zip(out, numbers):
            place[...] = number
        return out


class RandomInBulk(GloballyRandom):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def with_a_number(samples: list[Any]) -> Any:
    return np.stack(samples), random.random()


@pytest.mark.parametrize("kind", [GloballyRandom, RandomInPlace, RandomInBulk])
@pytest.mark.parametrize("collate", [None, with_a_number])
@pytest.mark.parametrize("key", [True, "position"])
def test_a_seeded_sample_draws_the_same_whatever_worker_makes_it(kind: Any, collate: Any, key: bool | str) -> None:
    def epochs(workers: int) -> list[Any]:
        loader = DataLoader(kind(40), 4, True, seed=3, seed_records=key, collate_fn=collate, num_workers=workers)
        return [[tuple(batch) if collate else batch for batch in loader] for _ in range(2)]

    expected = epochs(0)
    for workers in (1, 2, 3):
        assert same(epochs(workers), expected)
    assert not same(*expected)


@pytest.fixture
def own_generators() -> Iterator[None]:
    with generators_restored():
        yield


def draws() -> tuple[Any, ...]:
    numbers = [random.random() for _ in range(700)], [random.gauss(0, 1) for _ in range(3)]
    legacy = np.random.random(700).tolist(), [np.random.standard_normal() for _ in range(3)]
    return (*numbers, *legacy)


@pytest.mark.usefixtures("own_generators")
def test_a_seeded_sample_draws_what_nobody_drew_before_it_changes() -> None:
    expected = []
    for seed in range(3):
        seed_generators(seed, 0, 5)
        expected.append(draws())
    for seed in (2, 0, 1, 1):
        random.gauss(0, 1)  # draws two, of which it keeps one
        np.random.standard_normal()
        seed_generators(seed, 0, 5)
        assert draws() == expected[seed]
    assert len({repr(each) for each in expected}) == 3


@pytest.mark.usefixtures("own_generators")
def test_each_of_seed_epoch_and_key_seeds_otherwise() -> None:
    keys = [(seed, epoch, key) for seed in range(4) for epoch in range(4) for key in (0, 1, 1 << 32, "name")]
    firsts = []
    for each in keys:
        seed_generators(*each)
        firsts += [random.random(), float(np.random.random())]
    assert len(set(firsts)) == 2 * len(keys)


@pytest.mark.usefixtures("own_generators")
def test_seeding_does_not_depend_on_where_a_generator_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = global_generators.global_generators()
    fast.seed(2, 3)
    expected = draws()
    for name in ("_state_of_random", "_state_of_numpy"):
        assert getattr(global_generators, name)(generators()[name]) is not None, "or this test is void"
        monkeypatch.setattr(global_generators, name, lambda generator: None)
    slow = global_generators.global_generators.__wrapped__()
    random.gauss(0, 1)
    np.random.standard_normal()
    slow.seed(2, 3)
    assert draws() == expected


def generators() -> dict[str, Any]:
    return {"_state_of_random": random._inst, "_state_of_numpy": np.random.get_bit_generator()}


def test_a_state_that_lies_elsewhere_is_not_touched() -> None:
    generator = np.random.MT19937(1)
    address, state = generator.ctypes.state_address, generator.state["state"]
    key, position = state["key"].tolist(), state["pos"]
    assert global_generators._checked(address, address + 4 * 624, key, position) is not None
    assert global_generators._checked(address, address + 4 * 624, [*key[:-1], key[-1] ^ 1], position) is None
    assert global_generators._checked(address, address + 4 * 624, key, position + 1) is None


@pytest.mark.usefixtures("own_generators")
def test_a_program_may_choose_another_generator_for_numpy() -> None:
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        numbers = []
        for _ in range(2):
            seed_generators(1, 2, 3)
            numbers.append(np.random.random(5).tolist())
        assert numbers[0] == numbers[1]
    finally:
        np.random.set_bit_generator(before)


def test_seeded_numbers_look_random() -> None:
    states = [np.unpackbits(_core.mersenne_twister_words(seed).view(np.uint8)) for seed in range(400)]
    bits = np.array(states, np.float64)
    # Each bit is set half of the time, whatever its place, and neighbouring seeds share half of their bits.
    assert abs(bits.mean(axis=0) - 0.5).max() < 6 * 0.5 / 20
    assert abs((bits[1:] == bits[:-1]).mean(axis=1) - 0.5).max() < 6 * 0.5 / np.sqrt(bits.shape[1])
    # No seed continues with the words of another: 7 pairs of so many random words are expected to be equal.
    words = np.concatenate([_core.mersenne_twister_words(seed) for seed in range(400)])
    assert len(words) - len(np.unique(words)) < 25


def test_the_memory_of_a_state_has_the_size_of_one() -> None:
    def seeds(words: Any, position: Any, seed: Any = None) -> None:
        unknown = None, None, print, print
        _core.GlobalGenerators((None, (words, position, bytes(4), seed), print, print), unknown, lambda: unknown)

    words, position = np.zeros(624, np.uint32), np.zeros((), np.uint32)
    seeds(words, position)
    seeds(words, position, np.zeros((), np.uint64))
    for wrong in ((words[1:], position), (words, words), (words, position.astype(np.uint64)), (words, position, words)):
        with pytest.raises(ValueError, match="of a Mersenne Twister has"):
            seeds(*wrong)
    with pytest.raises((BufferError, ValueError)):
        seeds(bytes(4 * 624), position)
