"""headrace.data._samplers.samplers: orders that are functions of seed, epoch and position."""

from __future__ import annotations

import collections
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest

from headrace import _core
from headrace.data._samplers.permuted_range import PermutedRange
from headrace.data._samplers.protocols import Sampler, SeekableSampler
from headrace.data._samplers.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)
from headrace.data._samplers.weighted import WeightedRandomSampler


def seekable_samplers() -> list[SeekableSampler]:
    return [
        SequentialSampler(range(23)),
        RandomSampler(range(23), generator=5),
        RandomSampler(range(7), num_samples=23, generator=5),
        RandomSampler(range(23), num_samples=9, generator=5),
        RandomSampler(range(7), replacement=True, num_samples=23, generator=5),
        SubsetRandomSampler([2, 3, 5, 7, 11, 13], generator=5),
        WeightedRandomSampler([0.5, 0, 3, 1], 23, generator=5),
        WeightedRandomSampler([0.5, 0, 3, 1, 2, 4], 4, replacement=False, generator=5),
        DistributedSampler(range(23), 3, 1, seed=5),
        DistributedSampler(range(23), 3, 2, shuffle=False),
    ]


each_seekable = pytest.mark.parametrize("sampler", seekable_samplers(), ids=lambda sampler: type(sampler).__name__)


@each_seekable
def test_any_part_of_an_epoch_is_what_iterating_gives(sampler: SeekableSampler) -> None:
    assert sampler.seekable
    sampler.set_epoch(3)
    whole = list(sampler)
    assert len(whole) == len(sampler)
    assert all(type(index) is int for index in whole)
    sampler.set_epoch(3)
    for start, stop in itertools.combinations_with_replacement(range(len(whole) + 1), 2):
        part = sampler.take(start, stop)
        assert part.dtype == np.int64
        assert part.tolist() == whole[start:stop]


@each_seekable
def test_positions_outside_the_epoch_are_an_error(sampler: SeekableSampler) -> None:
    for start, stop in [(-1, 2), (2, 1), (0, len(sampler) + 1)]:
        with pytest.raises(IndexError, match="are not within 0 to"):
            sampler.take(start, stop)


@each_seekable
def test_a_copy_in_another_process_gives_the_same(sampler: SeekableSampler) -> None:
    copy = pickle.loads(pickle.dumps(sampler))
    sampler.set_epoch(1)
    copy.set_epoch(1)
    assert list(copy) == list(sampler)


def test_iterating_again_is_the_next_epoch() -> None:
    sampler = RandomSampler(range(50), generator=1)
    epochs = [list(sampler) for _ in range(3)]
    assert len(set(map(tuple, epochs))) == 3
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert list(sampler) == epochs[2]


def test_an_iteration_under_way_keeps_its_epoch() -> None:
    sampler = RandomSampler(range(5000), generator=1)
    expected = list(sampler)
    sampler.set_epoch(0)
    under_way = iter(sampler)
    sampler.set_epoch(9)
    assert list(under_way) == expected


def test_an_epoch_before_the_first_is_an_error() -> None:
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        SequentialSampler(range(3)).set_epoch(-1)


def test_random_order_is_that_of_the_loader() -> None:
    sampler = RandomSampler(range(100), generator=8)
    sampler.set_epoch(2)
    permutation = _core.IndexPermutation(100, 8, 2)
    assert list(sampler) == [permutation[i] for i in range(100)]


@pytest.mark.parametrize("length", [1, 2, 17, 64, 65, 1025])
def test_random_order_is_a_permutation(length: int) -> None:
    assert sorted(RandomSampler(range(length), generator=1)) == list(range(length))


def test_more_samples_than_there_are_come_in_whole_passes_that_differ() -> None:
    order = list(RandomSampler(range(10), num_samples=25, generator=1))
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert order[:10] != order[10:20]
    assert len(set(order[20:])) == 5


def test_the_middle_of_a_huge_epoch_comes_at_once() -> None:
    length = 1 << 40
    part = RandomSampler(range(length), generator=1).take(length - 3, length)
    assert len(set(part.tolist())) == 3
    drawn = RandomSampler(range(length), True, length, generator=1).take(length // 2, length // 2 + 1000)
    assert 0 <= drawn.min() < length // 10
    assert length > drawn.max() > length // 10 * 9


def test_replacement_draws_evenly_and_independently() -> None:
    draws = RandomSampler(range(6), True, 60_000, generator=1).take(0, 60_000)
    counts = np.bincount(draws, minlength=6)
    assert abs(counts - 10_000).max() < 500  # 5 standard deviations
    pairs = np.bincount(draws[:-1] * 6 + draws[1:], minlength=36)
    assert abs(pairs - 60_000 / 36).max() < 5 * (60_000 / 36) ** 0.5


def test_seeds_and_epochs_do_not_add_up() -> None:
    orders = set()
    for seed, epoch in itertools.product(range(4), range(4)):
        sampler = RandomSampler(range(30), True, generator=seed)
        sampler.set_epoch(epoch)
        orders.add(tuple(sampler))
    assert len(orders) == 16


def test_without_a_generator_each_sampler_has_a_seed_of_its_own() -> None:
    first, second = RandomSampler(range(100)), RandomSampler(range(100))
    assert first.seed != second.seed
    assert list(first) == list(RandomSampler(range(100), generator=first.seed))


def test_the_epoch_that_was_chosen_is_told_once() -> None:
    for sampler in (RandomSampler(range(9), generator=1), BatchSampler(RandomSampler(range(9), generator=1), 2, False)):
        assert sampler.chosen_epoch() is None
        sampler.set_epoch(4)
        chosen = list(sampler)
        assert sampler.chosen_epoch() == 4
        assert sampler.chosen_epoch() is None
        sampler.begin_epoch(4)
        assert sampler.chosen_epoch() is None
        assert list(sampler) == chosen
    batches = BatchSampler([1, 2], 2, False)
    batches.begin_epoch(3)
    assert batches.chosen_epoch() is None


def test_a_numpy_generator_gives_the_seed() -> None:
    orders = [list(RandomSampler(range(100), generator=np.random.default_rng(3))) for _ in range(2)]
    assert orders[0] == orders[1]


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "replacement must be True or False, got 1", {"replacement": 1}),
        (ValueError, "num_samples must be a positive integer, got 0", {"num_samples": 0}),
        (ValueError, "num_samples must be a positive integer, got 2.5", {"num_samples": 2.5}),
        (ValueError, "num_samples must be a positive integer, got True", {"num_samples": True}),
        (ValueError, "the data source is empty", {"data_source": []}),
        (TypeError, "generator must be a seed.*got str", {"generator": "7"}),
        (ValueError, "a seed must be from 0 to", {"generator": -1}),
    ],
)
def test_bad_arguments_of_random_sampler(error: type[Exception], message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        RandomSampler(**{"data_source": range(3), **arguments})


def test_the_length_follows_the_data_source() -> None:
    source = [1, 2]
    sampler = RandomSampler(source, generator=0)
    source.append(3)
    assert len(sampler) == 3
    assert sorted(sampler) == [0, 1, 2]


def test_subset_keeps_what_its_indices_are() -> None:
    assert sorted(SubsetRandomSampler(["a", "b", "c"], generator=0)) == ["a", "b", "c"]
    with pytest.raises(TypeError, match=r"take\(\) returns integers"):
        SubsetRandomSampler(["a", "b"], generator=0).take(0, 2)
    assert sorted(SubsetRandomSampler(np.array([4, 6, 9]), generator=0).take(0, 3).tolist()) == [4, 6, 9]
    assert SubsetRandomSampler([], generator=0).take(0, 0).tolist() == []


WEIGHTS = [[1, 2, 3], [0, 1, 0, 3], [5], [1, 1, 1, 1], [0.1] * 7, [1e-9, 1] * 5, [1e300, 1e300, 0, 3e299]]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_weights_are_the_proportions(weights: list[float]) -> None:
    count = 40_000
    draws = WeightedRandomSampler(weights, count, generator=1).take(0, count)
    share = np.array(weights) / max(weights)
    share /= share.sum()
    counts = np.bincount(draws, minlength=len(weights))
    assert (abs(counts - share * count) <= 5 * np.sqrt(share * (1 - share) * count) + 1e-9).all()
    assert not counts[share == 0].any()


def test_a_great_many_weights() -> None:
    weights = np.random.default_rng(0).random(200_000) ** 8
    draws = WeightedRandomSampler(weights, 400_000, generator=1).take(0, 400_000)
    top = weights > 0.5
    share = weights[top].sum() / weights.sum()
    assert abs(top[draws].mean() - share) < 5 * (share * (1 - share) / 400_000) ** 0.5


def test_without_replacement_no_index_comes_twice() -> None:
    for _ in range(20):
        order = list(WeightedRandomSampler([3, 0, 1, 2, 1e-30], 4, replacement=False))
        assert sorted(order) == [0, 2, 3, 4]
        assert order[-1] == 4


def test_without_replacement_the_first_is_drawn_by_weight_and_the_second_from_the_rest() -> None:
    sampler = WeightedRandomSampler([1, 2, 5], 2, replacement=False, generator=1)
    pairs = collections.Counter(tuple(sampler) for _ in range(8000))
    for (first, second), weight in {(0, 1): 2 / 7, (1, 2): 5 / 6, (2, 0): 1 / 3}.items():
        share = [1, 2, 5][first] / 8 * weight
        assert abs(pairs[first, second] - 8000 * share) < 5 * (8000 * share) ** 0.5


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("num_samples must be a positive integer", {"num_samples": 0}),
        ("replacement must be True or False", {"replacement": 0}),
        ("a sequence of numbers, got an array of shape", {"weights": [[1, 2]]}),
        ("finite and not negative", {"weights": [1, -1]}),
        ("finite and not negative", {"weights": [1, float("nan")]}),
        ("at least one weight must be positive", {"weights": [0, 0]}),
        ("at least one weight must be positive", {"weights": []}),
        ("cannot draw 3 indices without replacement from 2 positive", {"weights": [1, 0, 1], "replacement": False}),
    ],
)
def test_bad_arguments_of_weighted_sampler(message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        WeightedRandomSampler(**{"weights": [1, 2, 3], "num_samples": 3, **arguments})


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("length", "size"), [(0, 3), (1, 3), (9, 3), (10, 3), (11, 3)])
def test_batches_of_indices(length: int, size: int, drop_last: bool) -> None:
    sampler = BatchSampler(SequentialSampler(range(length)), size, drop_last)
    expected = [list(range(start, min(start + size, length))) for start in range(0, length, size)]
    if drop_last and length % size:
        expected.pop()
    assert list(sampler) == expected
    assert len(sampler) == len(expected)
    for start, stop in itertools.combinations_with_replacement(range(len(expected) + 1), 2):
        assert [batch.tolist() for batch in sampler.take(start, stop)] == expected[start:stop]


def test_batches_of_any_iterable() -> None:
    sampler = BatchSampler(iter("abcde"), 2, False)
    assert list(sampler) == [["a", "b"], ["c", "d"], ["e"]]
    assert not sampler.seekable
    with pytest.raises(TypeError, match="one after another"):
        BatchSampler([1, 2, 3], 2, False).take(0, 1)


def test_batches_hand_the_epoch_on() -> None:
    inner = RandomSampler(range(20), generator=1)
    sampler = BatchSampler(inner, 7, False)
    assert sampler.seekable
    sampler.set_epoch(4)
    expected = inner.take(0, 20).tolist()
    assert list(itertools.chain.from_iterable(sampler)) == expected
    BatchSampler([1, 2], 2, False).set_epoch(1)  # does not count epochs: nothing to do


@pytest.mark.parametrize("arguments", [(0, False), (1.5, False), (True, False), (2, 1)])
def test_bad_arguments_of_batch_sampler(arguments: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        BatchSampler(range(3), *arguments)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("length", "world"), [(12, 3), (13, 3), (14, 3), (2, 5), (1, 1)])
def test_processes_share_an_epoch(length: int, world: int, drop_last: bool, shuffle: bool) -> None:
    samplers = [DistributedSampler(range(length), world, rank, shuffle, 7, drop_last) for rank in range(world)]
    for sampler in samplers:
        sampler.set_epoch(2)
    shares = [list(sampler) for sampler in samplers]
    assert {len(share) for share in shares} == {length // world if drop_last else -(-length // world)}
    order = list(range(length))
    if shuffle:
        permutation = _core.IndexPermutation(length, 7, 2)
        order = [permutation[i] for i in order]
    whole = (order * world)[: samplers[0].total_size]
    assert shares == [whole[rank::world] for rank in range(world)]


def test_a_distributed_sampler_keeps_its_epoch() -> None:
    sampler = DistributedSampler(range(40), 2, 0)
    assert list(sampler) == list(sampler)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sampler.epoch == 1
    assert list(sampler) != first


def test_the_environment_says_who_a_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert list(DistributedSampler(range(8), shuffle=False)) == [3, 7]
    monkeypatch.delenv("RANK")
    with pytest.raises(RuntimeError, match=r"rank is not given.*RANK is not set"):
        DistributedSampler(range(8))
    with pytest.raises(ValueError, match="rank must be from 0 to 3, got 4"):
        DistributedSampler(range(8), rank=4)
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(ValueError, match="rank is not given, and the variable RANK is no number: 'first'"):
        DistributedSampler(range(8))


@each_seekable
def test_a_state_carries_the_order_over(sampler: SeekableSampler) -> None:
    state = json.loads(json.dumps(sampler.state_dict()))
    sampler.set_epoch(2)
    expected = list(sampler)
    other = pickle.loads(pickle.dumps(sampler))
    other.seed = 12345
    other.load_state_dict(state)
    other.set_epoch(2)
    assert list(other) == expected


def test_a_state_of_another_length_is_an_error() -> None:
    state = RandomSampler(range(5)).state_dict()
    with pytest.raises(ValueError, match="the state was saved with a sampler of 5 indices, but this one has 6"):
        RandomSampler(range(6)).load_state_dict(state)


class Backwards(SeekableSampler):
    def __len__(self) -> int:
        return 3000

    def order(self, epoch: int, start: int, stop: int) -> Any:
        return np.arange(2999 - start, 2999 - stop, -1) + epoch


def test_an_order_of_ones_own() -> None:
    sampler = Backwards()
    assert list(sampler) == list(range(2999, -1, -1))
    assert list(sampler) == list(range(3000, 0, -1))


def test_a_sampler_that_defines_nothing_says_what_is_missing() -> None:
    with pytest.raises(NotImplementedError, match="Sampler must define __iter__"):
        iter(Sampler())
    with pytest.raises(NotImplementedError, match="SeekableSampler must define __len__"):
        len(SeekableSampler())
    with pytest.raises(NotImplementedError, match="SeekableSampler must define order"):
        SeekableSampler().order(0, 0, 1)


def test_a_permuted_range_is_a_sequence_without_a_list() -> None:
    permuted = PermutedRange(1000, 3)
    values = list(permuted)
    assert sorted(values) == list(range(1000))
    assert [permuted[i] for i in range(1000)] == values
    assert permuted[-1] == values[-1]
    assert list(permuted[10:20][::2]) == values[10:20:2]
    assert pickle.loads(pickle.dumps(permuted[5:])) == permuted[5:]
    assert permuted != PermutedRange(1000, 4)
    assert len({permuted, PermutedRange(1000, 3)}) == 1
    with pytest.raises(IndexError):
        permuted[1000]
    assert list(PermutedRange(0, 3)) == []
    assert len(PermutedRange(1 << 50, 3)) == 1 << 50
