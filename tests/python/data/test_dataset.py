"""headrace.data._datasets: optional methods of datasets, and datasets made of others."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Bulk, Ints, Random, ShortBulk, same

from headrace.data import DataLoader
from headrace.data._datasets.datasets import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset
from headrace.data._datasets.fetcher import Fetcher
from headrace.data._datasets.iterable_datasets import ChainDataset, IterableDataset, is_iterable_dataset
from headrace.data._datasets.random_split import random_split
from headrace.data._randomness.sample_seeds import record_generator


class Filling(Ints):
    """Fills its place in the batch if it gets one."""

    def __getitem__(self, index: int, out: Any = None) -> Any:
        if out is None:
            return np.full(3, index)
        out[:] = index
        return None


class FillingRandom(Ints):
    def __getitem__(self, index: int, rng: np.random.Generator, out: Any) -> Any:  # type: ignore[override]
        return rng.random(), out


class Letters(Ints):
    def __getitem__(self, index: int) -> Any:
        return "abcdefghij"[index]


class Stateful(Ints):
    """A map-style dataset with a state."""

    sample_spec = np.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"length": self.length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.length = state["length"] + 100

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Count(IterableDataset[int]):
    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.stop))


class StatefulCount(Count):
    """Tracks its position, so that a resume replays nothing."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__(start, stop)
        self.next = start
        self.loaded: int | None = None
        self.made = 0

    def __iter__(self) -> Iterator[int]:
        self.next = self.start if self.loaded is None else self.loaded
        self.loaded = None
        while self.next < self.stop:
            self.next += 1
            self.made += 1
            yield self.next - 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["next"]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def bulk_of(dataset: Any) -> Any:
    return getattr(dataset, "__getitems__", None)


def test_a_fetcher_gives_what_a_dataset_asks_for() -> None:
    plain, rng, out, both = (Fetcher(kind(5), 7) for kind in (Ints, Random, Filling, FillingRandom))
    assert [fetcher.wants_rng for fetcher in (plain, rng, out, both)] == [False, True, False, True]
    assert [fetcher.wants_out for fetcher in (plain, rng, out, both)] == [False, False, True, True]
    assert plain.getitem(3) == 3
    rng.set_epoch(2)
    assert rng.getitem(3)[0].tolist() == record_generator(7, 2, 3).integers(0, 1 << 30, 3).tolist()
    place = np.zeros(3)
    assert out.getitem(4, place) is None
    assert place.tolist() == [4, 4, 4]
    assert out.getitem(4).tolist() == [4, 4, 4]
    both.set_epoch(1)
    assert both.getitem(2, place) == (record_generator(7, 1, 2).random(), place)


def test_a_fetcher_reads_in_bulk_unless_records_get_something_of_their_own() -> None:
    class RandomBulk(Bulk):
        def __getitem__(self, index: int, rng: Any) -> Any:  # type: ignore[override]
            return rng

    class FillingBulk(Bulk):
        def __getitem__(self, index: int, out: Any) -> Any:  # type: ignore[override]
            return out

    class NoBulk(Ints):
        __getitems__ = None

    assert Fetcher(Bulk(5), 0).bulk is not None
    assert Fetcher(Ints(5), 0).bulk is None
    assert Fetcher(RandomBulk(5), 0).bulk is None
    assert Fetcher(FillingBulk(5), 0).bulk is None
    assert Fetcher(NoBulk(5), 0).bulk is None


def test_a_list_is_a_dataset() -> None:
    assert Fetcher([5, 6, 7], 0).getitem(1) == 6
    assert list(map(Subset([5, 6, 7], [2, 0]).__getitem__, range(2))) == [7, 5]


class Unindexed:
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("dataset", "iterable"),
    [(Count(0, 1), True), (Unindexed(), True), (Ints(3), False), ([1], False), (ChainDataset([]), True)],
)
def test_what_is_iterable(dataset: Any, iterable: bool) -> None:
    assert is_iterable_dataset(dataset) == iterable


def test_a_subset_has_the_samples_at_its_indices() -> None:
    subset = Subset(Letters(10), [7, 1, -1])
    assert len(subset) == 3
    assert [subset[i] for i in range(3)] == ["h", "b", "j"]
    with pytest.raises(IndexError):
        subset[3]


def test_a_subset_asks_with_python_integers() -> None:
    class Picky(Ints):
        def __getitem__(self, index: Any) -> Any:
            return type(index), index

    assert Subset(Picky(10), np.array([7, 1]))[1] == (int, 1)
    assert Subset({"one": 1, "two": 2}, ["two"])[0] == 2


def test_concatenated_datasets_are_one() -> None:
    dataset = ConcatDataset([Ints(3), Letters(0), Letters(2), Ints(1)])
    assert len(dataset) == 6
    expected = [0, 1, 2, "a", "b", 0]
    assert [dataset[i] for i in range(6)] == expected
    assert [dataset[i] for i in range(-6, 0)] == expected
    assert dataset.cumulative_sizes == [3, 3, 5, 6]
    for index in (6, -7):
        with pytest.raises(IndexError, match=f"index {index} is out of range: the dataset has 6 samples"):
            dataset[index]


def test_concatenation_of_nothing_or_of_iterables_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one dataset"):
        ConcatDataset([])
    with pytest.raises(TypeError, match="Count is iterable; use ChainDataset for iterable datasets"):
        ConcatDataset([Ints(3), Count(0, 3)])


def test_stacked_datasets_are_side_by_side() -> None:
    assert StackDataset(Ints(3), Letters(3))[1] == (1, "b")
    assert StackDataset(number=Ints(3), letter=Letters(3))[2] == {"number": 2, "letter": "c"}
    assert len(StackDataset(Ints(3), Letters(3))) == 3
    with pytest.raises(ValueError, match=r"of one length, got \[3, 4\]"):
        StackDataset(Ints(3), Ints(4))
    for bad in (lambda: StackDataset(), lambda: StackDataset(Ints(3), x=Ints(3))):
        with pytest.raises(ValueError, match="either as arguments"):
            bad()


def test_arrays_are_a_dataset_of_their_rows() -> None:
    dataset = TensorDataset(np.arange(6).reshape(3, 2), np.arange(3) * 10)
    assert len(dataset) == 3
    assert dataset[1][0].tolist() == [2, 3]
    assert dataset[1][1] == 10
    for arrays in ((), (np.zeros(2), np.zeros(3))):
        with pytest.raises(ValueError, match="arrays of one length"):
            TensorDataset(*arrays)


def test_bulk_reading_goes_through() -> None:
    bulk = Bulk(10)
    rows = bulk_of(Subset(bulk, [7, 1, 3]))([2, 0])
    assert [row[1] for row in rows] == [3, 7]
    rows = bulk_of(ConcatDataset([bulk, Ints(3), bulk]))([12, 14, 1, 13, 0])
    assert [row if isinstance(row, int) else row[1] for row in rows] == [2, 1, 1, 0, 0]
    rows = bulk_of(StackDataset(bulk, Letters(10)))([5, 2])
    assert [(row[0][1], row[1]) for row in rows] == [(5, "f"), (2, "c")]
    assert bulk_of(Subset(Subset(bulk, [7, 1, 3]), [1]))([0])[0][1] == 1


def test_bulk_reading_is_offered_only_where_a_part_has_it() -> None:
    for dataset in (Subset(Ints(3), [0]), ConcatDataset([Ints(3)]), StackDataset(Ints(3)), Subset(Random(3), [0])):
        assert bulk_of(dataset) is None


def test_bulk_reading_that_gives_too_few_is_an_error() -> None:
    with pytest.raises(ValueError, match="ShortBulk was asked for 2 samples and gave 1"):
        bulk_of(Subset(ShortBulk(5), [0, 1, 2]))([0, 1])


def test_a_getitem_put_in_place_of_ours_is_not_gone_round() -> None:
    class Doubled(Subset):
        def __getitem__(self, index: Any) -> Any:  # type: ignore[override]
            return super().__getitem__(index) * 2

    assert bulk_of(Doubled(Bulk(4), [1])) is None
    fetcher = Fetcher(Doubled(Filling(4), [3]), 0)
    assert (fetcher.wants_rng, fetcher.wants_out) == (False, False)
    assert fetcher.getitem(0).tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    "dataset",
    [
        Subset(Random(5), [0, 1, 2]),
        ConcatDataset([Random(2), Ints(3)]),
        Subset(ConcatDataset([Random(2), Ints(3)]), range(5)),
    ],
)
def test_generators_go_through(dataset: Any) -> None:
    fetcher = Fetcher(dataset, 7)
    assert fetcher.wants_rng
    assert same(fetcher.getitem(1), Random(5).__getitem__(1, record_generator(7, 0, 1)))


def test_a_part_without_its_generator_says_so() -> None:
    with pytest.raises(TypeError, match="Random takes rng, which only a loader of headrace passes"):
        Subset(Random(5), [0])[0]


def test_places_go_through() -> None:
    for dataset in (Subset(Filling(5), [3, 4, 1]), ConcatDataset([Ints(1), Filling(5)])):
        fetcher = Fetcher(dataset, 0)
        assert fetcher.wants_out
        place = np.zeros(3)
        assert fetcher.getitem(2, place) is None
        assert place.tolist() == [1, 1, 1]


def test_stacked_parts_fill_their_own_places() -> None:
    fetcher = Fetcher(StackDataset(Filling(5), Ints(5)), 0)
    place = [np.zeros(3), np.zeros(())]
    sample = fetcher.getitem(2, place)
    assert sample[0] is place[0]
    assert sample[0].tolist() == [2, 2, 2]
    assert sample[1] == 2
    assert fetcher.getitem(2, None)[0].tolist() == [2, 2, 2]
    named = Fetcher(StackDataset(x=Filling(5), y=Ints(5)), 0).getitem(1, {"x": place[0], "y": place[1]})
    assert named == {"x": place[0], "y": 1}


def test_states_epochs_and_specs_go_through() -> None:
    parts = [Stateful(3), Ints(4)]
    dataset = ConcatDataset(parts)
    state = json.loads(json.dumps(dataset.state_dict()))
    dataset.load_state_dict(state)
    assert parts[0].length == 103
    dataset.set_epoch(4)
    assert parts[0].epoch == 4  # type: ignore[attr-defined]
    assert Subset(parts[0], [0]).sample_spec.shape == (2,)
    assert StackDataset(x=parts[0], y=parts[0]).sample_spec.keys() == {"x", "y"}
    without = Subset(Ints(3), [0])
    assert without.sample_spec is None
    without.set_epoch(1)
    assert without.state_dict() == {"parts": [None]}
    without.load_state_dict({"parts": [None]})
    with pytest.raises(ValueError, match="the state was saved with 2 datasets, but this one has 1"):
        Subset(parts[0], [0]).load_state_dict(state)


@pytest.mark.parametrize("dataset", [Subset(Ints(3), [1]), ConcatDataset([Ints(3)]), StackDataset(Ints(3), Ints(3))])
def test_composed_datasets_travel(dataset: Any) -> None:
    assert pickle.loads(pickle.dumps(dataset))[0] == dataset[0]


def test_chained_datasets_are_one_stream() -> None:
    chain = Count(0, 3) + Count(7, 9)
    assert isinstance(chain, ChainDataset)
    assert list(chain) == list(chain) == [0, 1, 2, 7, 8]
    assert len(chain) == 5
    assert list(ChainDataset(iter([Count(0, 2), Unindexed()]))) == [0, 1]
    with pytest.raises(TypeError, match="ChainDataset needs iterable datasets, and Ints is not one"):
        list(ChainDataset([Ints(3)]))


@pytest.mark.parametrize("taken", range(9))
@pytest.mark.parametrize("kinds", [(Count, Count), (StatefulCount, Count), (StatefulCount, StatefulCount)])
def test_a_chain_goes_on_from_any_sample(kinds: tuple[Any, Any], taken: int) -> None:
    def make() -> ChainDataset:
        return ChainDataset([kinds[0](0, 3), Count(0, 0), kinds[1](10, 15)])

    chain = make()
    samples = iter(chain)
    for _ in range(min(taken, 8)):
        next(samples)
    if taken == 8:
        assert list(samples) == []
    other = make()
    other.load_state_dict(json.loads(json.dumps(chain.state_dict())))
    assert other.state_dict() == chain.state_dict()
    assert list(other) == [0, 1, 2, 10, 11, 12, 13, 14][taken:]
    assert list(other) == [0, 1, 2, 10, 11, 12, 13, 14]


def test_a_chain_of_datasets_with_states_replays_nothing() -> None:
    chain = ChainDataset([StatefulCount(0, 100)])
    samples = iter(chain)
    for _ in range(60):
        next(samples)
    part = StatefulCount(0, 100)
    other = ChainDataset([part])
    other.load_state_dict(chain.state_dict())
    other.set_epoch(3)
    assert part.epoch == 3
    assert next(iter(other)) == 60
    assert part.made == 1


def test_an_iterable_dataset_has_to_define_iter() -> None:
    with pytest.raises(NotImplementedError, match="IterableDataset must define __iter__"):
        iter(IterableDataset())


def test_a_split_has_every_sample_once() -> None:
    parts = random_split(Ints(10), [3, 0, 7])
    assert [len(part) for part in parts] == [3, 0, 7]
    assert sorted(part[i] for part in parts for i in range(len(part))) == list(range(10))


def test_a_split_is_the_same_in_every_run_unless_asked() -> None:
    def split(generator: Any) -> list[int]:
        return [index for part in random_split(Ints(40), [20, 20], generator) for index in part.indices]

    assert split(0) == [i for part in random_split(Ints(40), [20, 20]) for i in part.indices]
    assert split(0) != split(1)
    assert split(None) != split(None)
    assert split(np.random.default_rng(1)) == split(np.random.default_rng(1))


@pytest.mark.parametrize(
    ("fractions", "length", "sizes"),
    [([0.5, 0.5], 10, [5, 5]), ([0.3, 0.3, 0.4], 10, [3, 3, 4]), ([1 / 3] * 3, 11, [4, 4, 3]), ([1], 1, [1])],
)
def test_fractions_are_rounded_down_and_the_rest_shared_out(fractions: Any, length: int, sizes: list[int]) -> None:
    assert [len(part) for part in random_split(Ints(length), fractions)] == sizes


def test_a_split_that_does_not_add_up_is_an_error() -> None:
    with pytest.raises(ValueError, match="the lengths add up to 9, and the dataset has 10 samples"):
        random_split(Ints(10), [4, 5])
    with pytest.raises(ValueError, match="fraction 0 must be from 0 to 1"):
        random_split(Ints(10), [1.5, -0.5])
    with pytest.warns(UserWarning, match="part 1 of the split is empty"):
        random_split(Ints(3), [0.99, 0.01])


def test_a_split_of_a_huge_dataset_takes_no_memory() -> None:
    part = random_split(range(1 << 40), [1 << 39, 1 << 39])[1]
    assert 0 <= part[123456789] < 1 << 40


def test_a_dataset_that_lacks_a_method_cannot_be_made() -> None:
    class Unread(Dataset[int]):
        def __len__(self) -> int:
            return 3

    with pytest.raises(TypeError, match="__getitem__"):
        Unread()  # type: ignore[abstract]


def test_datasets_are_added_as_torchs() -> None:
    class Own(Dataset[int]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> int:
            return index

    class Joined(Own):
        def __add__(self, other: Any) -> str:
            return "joined"

    own: Any = Own()
    for other in (own, Ints(2), TensorDataset(np.arange(2)), Subset(Ints(9), [0, 1]), Joined()):
        both = own + other
        assert isinstance(both, ConcatDataset)
        assert len(both) == 4
    for first in (TensorDataset(np.arange(2)), Subset(Ints(9), [0, 1]), own + own):
        assert isinstance(first + own, ConcatDataset)
    assert Joined() + own == "joined"
    assert isinstance(Ints(2), Dataset)
    assert not isinstance(object(), Dataset)
    with pytest.raises(TypeError, match="Count is iterable"):
        own + Count(0, 3)


class Unmeasured(Ints):
    """Has a length only to say that it has none."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__(0)
        self.error = error

    def __len__(self) -> int:
        raise self.error("no length")


@pytest.mark.parametrize("error", [NotImplementedError, TypeError])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_where_a_sampler_decides_a_dataset_needs_no_length(num_workers: int, error: type[Exception]) -> None:
    for arguments in ({"sampler": [3, 1, 2], "batch_size": 2}, {"batch_sampler": [[3, 1], [2]]}):
        loader = DataLoader(Unmeasured(error), num_workers=num_workers, seed=0, **arguments)
        batches = iter(loader)
        assert next(batches).tolist() == [3, 1]
        loader.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in loader] == [[2]]
    with pytest.raises(error, match="no length"):
        list(DataLoader(Unmeasured(error), num_workers=num_workers))


class Named(Ints):
    def __getitem__(self, index: int, out: str = "text", *, rng: int = 3) -> Any:
        return index, out, rng


@pytest.mark.parametrize("num_workers", [0, 2])
def test_parameters_with_defaults_of_their_own_keep_these(num_workers: int) -> None:
    for dataset in (Named(2), Subset(Named(2), range(2))):
        ((indices, texts, numbers),) = DataLoader(dataset, batch_size=2, num_workers=num_workers)
        assert (indices.tolist(), texts, numbers.tolist()) == ([0, 1], ["text", "text"], [3, 3])
