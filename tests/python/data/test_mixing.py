"""headrace.data._datasets.mixtures: exact proportions at every point, and the same samples however one reaches it."""

from __future__ import annotations

import fractions
import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Bulk, Ints, Random, same
from test_dataset import Count, Filling, StatefulCount

from headrace.data._datasets.datasets import ConcatDataset, StackDataset
from headrace.data._datasets.fetcher import Fetcher
from headrace.data._datasets.mixtures import IterableMixture, MixtureDataset, MixtureSampler
from headrace.data._datasets.schedule import Schedule
from headrace.data._randomness.sample_seeds import record_generator

WEIGHTS = [
    [1],
    [1, 1],
    [3, 1],
    [0.7, 0.2, 0.1],
    [1, 1, 1],
    [50, 1, 1, 1, 1, 1, 1, 1],
    [1 / 3, 1 / 6, 1 / 2],
    [fractions.Fraction(2, 7), fractions.Fraction(5, 7)],
    list(range(1, 40)),
    [997, 991, 2, 3],
    [np.float32(0.5), np.int8(2), np.float64(0.25)],
    [3.14159265, 2.71828182, 1e-3],
]


class Labelled(Ints):
    """Sample i consists of the dataset's name and i."""

    def __init__(self, name: str, length: int) -> None:
        super().__init__(length)
        self.name = name

    def __getitem__(self, index: int) -> Any:
        return self.name, index


def labelled(*lengths: int) -> list[Labelled]:
    return [Labelled("abcdefgh"[i], length) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_no_dataset_is_ever_a_whole_sample_off(weights: list[Any]) -> None:
    schedule = Schedule(weights)
    n = np.arange(1, 2 * schedule.period + 2)
    which, before = schedule.at(n - 1)
    for number, count in enumerate(schedule.counts):
        drawn = np.cumsum(which == number)
        assert (abs(drawn * schedule.period - n * count) < schedule.period).all()
        assert (before[which == number] == np.arange(drawn[-1])).all()


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_the_weights_are_what_was_asked_for(weights: list[Any]) -> None:
    total = sum(map(float, weights))
    for share, weight in zip(Schedule(weights).weights, weights):
        assert abs(float(share) - float(weight) / total) <= 2**-18
    assert sum(Schedule(weights).weights) == 1


def test_simple_weights_are_exact() -> None:
    assert Schedule([0.7, 0.2, 0.1]).counts == [7, 2, 1]
    assert Schedule([1 / 3, 2 / 3]).counts == [1, 2]
    assert Schedule([10, 20, 40]).counts == [1, 2, 4]
    assert Schedule([0.5, 1]).weights == (fractions.Fraction(1, 3), fractions.Fraction(2, 3))


def test_weights_that_are_rounded_keep_every_dataset() -> None:
    schedule = Schedule([1, 1e9, 1e9, 1])
    assert min(schedule.counts) == 1
    assert schedule.period == 1 << 18
    many = Schedule([1e-9] * 2000 + [1] * 2000)
    assert min(many.counts) == 1
    assert sum(many.counts) == 1 << 18


@pytest.mark.parametrize("weights", [[3, 1], [0.7, 0.2, 0.1], list(range(1, 9))], ids=str)
def test_a_schedule_can_be_entered_anywhere(weights: list[Any]) -> None:
    schedule = Schedule(weights)
    seen = [0] * len(weights)
    for position in range(3 * schedule.period):
        number, before = schedule[position]
        assert before == seen[number]
        assert schedule.position_of(number, before) == position
        seen[number] += 1
    far = 10**15
    assert schedule[far * schedule.period + 1] == (
        schedule[1][0],
        far * schedule.counts[schedule[1][0]] + schedule[1][1],
    )


@pytest.mark.parametrize(
    ("error", "message", "weights"),
    [
        (ValueError, "1 to 4096 weights, got 0", []),
        (ValueError, "weights must be positive, got 0", [1, 0]),
        (ValueError, "weights must be positive, got -0.5", [1, -0.5]),
        (TypeError, "weights must be positive numbers, got nan", [float("nan")]),
        (TypeError, "weights must be positive numbers, got inf", [float("inf")]),
        (TypeError, "weights must be positive numbers, got '1'", ["1"]),
        (TypeError, "weights must be positive numbers, got True", [True]),
        (TypeError, "weights must be positive numbers, got None", [None]),
    ],
)
def test_weights_of_no_use(error: type[Exception], message: str, weights: list[Any]) -> None:
    with pytest.raises(error, match=message):
        Schedule(weights)


def test_a_mixture_reads_each_dataset_in_its_order() -> None:
    mixture = MixtureDataset(labelled(6, 3, 100), [2, 1, 1], length=12)
    samples = [mixture[i] for i in range(12)]
    assert [index for name, index in samples if name == "a"] == list(range(6))
    assert [index for name, index in samples if name == "b"] == [0, 1, 2]
    assert [index for name, index in samples if name == "c"] == [0, 1, 2]
    assert mixture[-1] == samples[-1]
    with pytest.raises(IndexError, match="the dataset has 12 samples"):
        mixture[12]


def test_a_dataset_that_ends_begins_again() -> None:
    mixture = MixtureDataset(labelled(2, 100), length=12)
    assert [mixture[i][1] for i in range(12) if mixture[i][0] == "a"] == [0, 1, 0, 1, 0, 1]


def test_a_seed_shuffles_each_time_around_differently() -> None:
    mixture = MixtureDataset(labelled(50, 50), length=300, seed=4)
    for name in "ab":
        order = [index for key, index in map(mixture.__getitem__, range(300)) if key == name]
        times = [order[:50], order[50:100], order[100:]]
        assert all(sorted(time) == list(range(50)) for time in times)
        assert len(set(map(tuple, times))) == 3
    again = MixtureDataset(labelled(50, 50), length=300, seed=4)
    assert [again[i] for i in range(300)] == [mixture[i] for i in range(300)]
    assert [again[i] for i in range(300)] != [MixtureDataset(labelled(50, 50), seed=5)[i % 99] for i in range(300)]


@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [1, 5]])
@pytest.mark.parametrize("lengths", [(1, 1), (7, 2), (2, 9)])
def test_a_mixture_ends_when_the_first_or_all_are_exhausted(lengths: tuple[int, int], weights: list[int]) -> None:
    endless = MixtureDataset(labelled(1000, 1000), weights, length=200)
    order = [endless[i] for i in range(200)]
    first = next(i for i, (name, j) in enumerate(order) if j == lengths["ab".index(name)])
    last = max(order.index((name, length - 1)) for name, length in zip("ab", lengths)) + 1
    assert len(MixtureDataset(labelled(*lengths), weights)) == first
    assert len(MixtureDataset(labelled(*lengths), weights, length="all_exhausted")) == last


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "1 to 4096 weights, got 0", {"datasets": []}),
        (ValueError, "got 2 and 3 weights", {"weights": [1, 2, 3]}),
        (ValueError, "dataset 1 of the mixture is empty", {"datasets": [Ints(3), Ints(0)]}),
        (TypeError, "Count is iterable; use IterableMixture", {"datasets": [Ints(3), Count(0, 3)]}),
        (ValueError, "length must be a number", {"length": "forever"}),
        (ValueError, "length must be at least 0", {"length": -1}),
    ],
)
def test_arguments_of_no_use(error: type[Exception], message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        MixtureDataset(**{"datasets": labelled(3, 4), **arguments})


def test_a_mixture_offers_what_its_datasets_do() -> None:
    bulk = MixtureDataset([Bulk(10), Ints(10)], [1, 1]).__getitems__
    assert [sample if isinstance(sample, int) else sample[1] for sample in bulk([4, 1, 0])] == [2, 0, 0]
    fetcher = Fetcher(MixtureDataset([Random(10), Ints(10)], [1, 1]), 3)
    assert same(fetcher.getitem(4), Random(10).__getitem__(2, record_generator(3, 0, 4)))
    place = np.zeros(3)
    assert Fetcher(MixtureDataset([Filling(5)]), 0).getitem(4, place) is None
    assert place.tolist() == [4, 4, 4]


def test_a_mixture_travels() -> None:
    mixture = MixtureDataset(labelled(9, 9), [2, 1], seed=1)
    copy = pickle.loads(pickle.dumps(mixture))
    assert [copy[i] for i in range(len(copy))] == [mixture[i] for i in range(len(mixture))]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_sampler_mixes_the_parts_of_a_concatenation(shuffle: bool) -> None:
    dataset = ConcatDataset(labelled(30, 10, 20))
    sampler = MixtureSampler(dataset, [4, 2, 1], shuffle=shuffle, generator=3)
    schedule = Schedule([4, 2, 1])
    samples = [dataset[i] for i in sampler]
    assert len(samples) == len(sampler) == len(MixtureDataset(dataset.datasets, [4, 2, 1]))
    assert ["abc".index(name) for name, _ in samples] == [schedule[i][0] for i in range(len(samples))]
    assert len(set(samples)) == len(samples)
    of_a = [index for name, index in samples if name == "a"]
    assert (of_a == sorted(of_a)) != shuffle
    for start, stop in itertools.combinations(range(0, len(samples), 7), 2):
        assert [dataset[i] for i in sampler.take(start, stop)] == samples[start:stop]


def test_a_sampler_mixes_anew_in_each_epoch() -> None:
    sampler = MixtureSampler([20, 20], length=120, generator=3)
    epochs = [list(sampler) for _ in range(3)]
    assert len(set(map(tuple, epochs))) == 3
    for epoch in epochs:
        for indices in ([i for i in epoch if i < 20], [i - 20 for i in epoch if i >= 20]):
            assert sorted(indices[:20]) == sorted(indices[20:40]) == list(range(20))
            assert indices[:20] != indices[20:40]


class Letters:
    """An iterable dataset of labelled samples."""

    def __init__(self, name: str, length: int) -> None:
        self.name, self.length = name, length

    def __iter__(self) -> Iterator[Any]:
        return ((self.name, i) for i in range(self.length))


def streams(*lengths: int) -> list[Any]:
    return [Letters("abcdefgh"[i], length) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [1, 5]])
@pytest.mark.parametrize("lengths", [(1, 1), (7, 2), (2, 9)])
def test_iterables_mix_as_other_datasets_do(lengths: tuple[int, int], weights: list[int]) -> None:
    expected = MixtureDataset(labelled(*lengths), weights)
    mixture = IterableMixture(streams(*lengths), weights)
    assert list(mixture) == [expected[i] for i in range(len(expected))]
    assert list(mixture) == list(mixture)
    longer = list(IterableMixture(streams(*lengths), weights, stop="all_exhausted"))
    expected = MixtureDataset(labelled(*lengths), weights, length=len(longer))
    assert longer == [expected[i] for i in range(len(longer))]
    assert set(longer) == {(name, i) for name, length in zip("ab", lengths) for i in range(length)}
    endless = IterableMixture(streams(*lengths), weights, stop="never")
    assert list(itertools.islice(endless, len(longer))) == longer


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", "never"])
@pytest.mark.parametrize("kinds", [(Count, Count), (StatefulCount, Count), (StatefulCount, StatefulCount)])
def test_an_iterable_mixture_goes_on_from_any_sample(kinds: tuple[Any, Any], stop: str) -> None:
    def make() -> IterableMixture:
        return IterableMixture([kinds[0](0, 4), kinds[1](10, 13), Count(20, 30)], [2, 1, 1], stop)

    whole = list(itertools.islice(make(), 60))
    for taken in range(min(len(whole), 40) + 1):
        mixture = make()
        list(itertools.islice(mixture, taken))
        for more in (0, 1, 3):  # and once more, before all of its datasets were read again
            state = json.loads(json.dumps(mixture.state_dict()))
            mixture = make()
            mixture.load_state_dict(state)
            assert mixture.state_dict() == state
            samples = iter(mixture)
            assert list(itertools.islice(samples, more)) == whole[taken : taken + more]
            taken = min(taken + more, len(whole))
        assert list(itertools.islice(samples, 60 - taken)) == whole[taken:]
    if stop != "never":
        mixture = make()
        assert list(mixture) == whole
        other = make()
        other.load_state_dict(mixture.state_dict())
        assert list(other) == []
        assert list(other) == whole


def test_iterations_of_one_mixture_do_not_disturb_each_other() -> None:
    mixture = IterableMixture([Count(0, 9), Count(20, 29)], [2, 1])
    assert [left for left, right in zip(mixture, mixture) if left == right] == list(mixture)


def test_a_mixture_of_datasets_with_states_replays_nothing() -> None:
    mixture = IterableMixture([StatefulCount(0, 100), StatefulCount(0, 100)])
    list(itertools.islice(mixture, 60))
    parts = [StatefulCount(0, 100), StatefulCount(0, 100)]
    other = IterableMixture(parts)
    other.load_state_dict(mixture.state_dict())
    other.set_epoch(2)
    assert list(itertools.islice(other, 4)) == [30, 30, 31, 31]
    assert [(part.made, part.epoch) for part in parts] == [(2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "Ints is not iterable; use MixtureDataset", {"datasets": [Ints(3)]}),
        (ValueError, "got 2 and 1 weights", {"weights": [1]}),
        (ValueError, 'stop must be "first_exhausted", "all_exhausted" or "never"', {"stop": "now"}),
    ],
)
def test_arguments_of_no_use_to_iterables(error: type[Exception], message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        IterableMixture(**{"datasets": streams(3, 4), **arguments})


def test_an_empty_dataset_cannot_begin_anew() -> None:
    with pytest.raises(ValueError, match="dataset 1 of the mixture is empty"):
        list(IterableMixture(streams(3, 0), stop="all_exhausted"))
    assert list(IterableMixture(streams(3, 0))) == [("a", 0)]


def test_a_state_of_another_mixture_is_an_error() -> None:
    state = IterableMixture(streams(3, 4)).state_dict()
    with pytest.raises(ValueError, match="a mixture of 2 datasets, but this one has 1"):
        IterableMixture(streams(3)).load_state_dict(state)


def test_a_sampler_takes_no_other_dataset_with_parts() -> None:
    """Its indices are those of a concatenation: anything else would be read in part, or in other proportions."""
    parts = [Ints(3), Ints(4)]
    for other in (MixtureDataset(parts), StackDataset(image=parts[1], label=parts[1])):
        with pytest.raises(TypeError, match=f"ConcatDataset, or the lengths of its parts, got {type(other).__name__}"):
            MixtureSampler(other)
