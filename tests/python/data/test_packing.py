"""headrace.data._datasets.packing: every record comes once, whole, in the first row where it fits."""

from __future__ import annotations

import importlib
import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, Samples, same

from headrace.data import DataLoader
from headrace.data._datasets.fetcher import Fetcher
from headrace.data._datasets.packing import PackedDataset, PackedIterableDataset


class Texts(Ints):
    """Sample i is an array full of i, whose length depends on i."""

    def __init__(self, length: int, longest: int = 10) -> None:
        super().__init__(length)
        self.sizes = np.random.default_rng(1).integers(0, longest + 1, length)
        self.read = 0

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        return np.full(self.sizes[index], index, np.int32)


class BulkTexts(Texts):
    def __getitem__(self, index: int) -> Any:
        raise AssertionError("not one by one")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [np.full(self.sizes[index], index, np.int32) for index in indices]


class Pairs(Ints):
    """Records with two features to pack, and two that are not packed."""

    def __getitem__(self, index: int) -> Any:
        return {
            "inputs": np.full((index * 7 % 9, 2), index, np.float32),
            "targets": [index] * (index * 5 % 6),
            "weight": 0.5,
            "label": index,
        }


class Stream:
    """Streams a dataset's samples."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[i] for i in range(len(self.dataset)))


class StatefulStream(Stream):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.next = 0
        self.loaded = 0

    def __iter__(self) -> Iterator[Any]:
        self.next, self.loaded = self.loaded, 0
        while self.next < len(self.dataset):
            self.next += 1
            yield self.dataset[self.next - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["next"]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


FEATURES = {"inputs": 12, "targets": 8}


def first_fit(sizes: list[Any], capacity: Any) -> list[list[int]]:
    """The rows of first-fit, by the simplest algorithm."""
    rows: list[list[int]] = []
    room: list[Any] = []
    for record, size in enumerate(sizes):
        row = next((i for i, free in enumerate(room) if np.all(free >= np.asarray(size))), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(np.asarray(capacity))
        rows[row].append(record)
        room[row] = room[row] - np.asarray(size)
    return rows


@pytest.mark.parametrize("count", [0, 1, 2, 30, 500])
@pytest.mark.parametrize("row_length", [10, 13, 40])
def test_each_record_goes_into_the_first_row_where_it_fits(count: int, row_length: int) -> None:
    texts = Texts(count)
    packed = PackedDataset(texts, row_length, texts.sizes)
    expected = first_fit(texts.sizes.tolist(), row_length)
    assert len(packed) == len(expected)
    assert [packed.records(row).tolist() for row in range(len(packed))] == expected
    assert texts.read == 0


def test_several_features_have_to_fit_together() -> None:
    pairs = Pairs(300)
    sizes = [(len(pairs[i]["inputs"]), len(pairs[i]["targets"])) for i in range(300)]
    packed = PackedDataset(pairs, FEATURES)
    assert [packed.records(row).tolist() for row in range(len(packed))] == first_fit(sizes, (12, 8))
    given = PackedDataset(pairs, FEATURES, {"inputs": [a for a, _ in sizes], "targets": [b for _, b in sizes]})
    assert same(given[3], packed[3])


def test_a_row_says_what_lies_where() -> None:
    packed = PackedDataset(Samples([np.array([7, 8]), np.array([9]), np.array([1, 2, 3])]), 4)
    assert same(
        packed[0],
        {
            "values": np.array([7, 8, 9, 0]),
            "values_segment_ids": np.array([1, 1, 2, 0], np.int32),
            "values_positions": np.array([0, 1, 0, 0], np.int32),
        },
    )
    assert packed[1]["values"].tolist() == [1, 2, 3, 0]
    assert packed[-1]["values"].tolist() == [1, 2, 3, 0]
    with pytest.raises(IndexError, match="the dataset has 2 samples"):
        packed[2]


def test_features_keep_their_dtypes_and_other_dimensions() -> None:
    row = PackedDataset(Pairs(20), {**FEATURES, "weight": 9})[0]
    assert list(row) == [name + end for name in (*FEATURES, "weight") for end in ("", "_segment_ids", "_positions")]
    assert (row["inputs"].dtype, row["inputs"].shape) == (np.float32, (12, 2))
    assert (row["targets"].dtype, row["targets"].shape) == (np.int64, (8,))
    assert (row["weight"].dtype, row["weight"].shape) == (np.float64, (9,))


def test_rows_hold_every_record_whole() -> None:
    texts = Texts(200)
    packed = PackedDataset(texts, 17)
    found: dict[int, int] = {}
    for row in map(packed.__getitem__, range(len(packed))):
        for segment in range(1, row["values_segment_ids"].max() + 1):
            place = row["values_segment_ids"] == segment
            if place.any():
                (record,) = set(row["values"][place].tolist())
                found[record] = int(place.sum())
                assert row["values_positions"][place].tolist() == list(range(found[record]))
        assert not row["values"][row["values_segment_ids"] == 0].any()
    assert found == {i: size for i, size in enumerate(texts.sizes.tolist()) if size}


def test_records_are_read_in_bulk_where_that_is_possible() -> None:
    plain, bulk = Texts(60), BulkTexts(60)
    expected = PackedDataset(plain, 20)
    packed = PackedDataset(bulk, 20, bulk.sizes)
    rows = list(range(len(packed)))
    assert same(packed.__getitems__(rows), [expected[row] for row in rows])
    assert same(packed[2], expected[2])
    assert expected.__getitems__ is None


def test_generators_reach_the_records() -> None:
    class Noise(Ints):
        def __getitem__(self, index: int, rng: np.random.Generator) -> Any:  # type: ignore[override]
            return rng.random(3)

    packed = PackedDataset(Noise(4), 7, [3] * 4)
    fetcher = Fetcher(packed, 5)
    assert same(fetcher.getitem(1), fetcher.getitem(1))
    assert len(set(fetcher.getitem(0)["values"].tolist())) == 7
    with pytest.raises(TypeError, match="pass their lengths"):
        PackedDataset(Noise(4), 7)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_make_batches(num_workers: int) -> None:
    packed = PackedDataset(Texts(100), 20)
    loader = DataLoader(packed, batch_size=4, shuffle=True, seed=1, num_workers=num_workers)
    batches = list(loader)
    assert batches[0]["values"].shape == (4, 20)
    records = {
        (value, position)
        for batch in batches
        for value, position in zip(
            batch["values"][batch["values_segment_ids"] > 0], batch["values_positions"][batch["values_segment_ids"] > 0]
        )
    }
    assert len(records) == packed.dataset.sizes.sum()


def test_a_packed_dataset_travels() -> None:
    packed = PackedDataset(Texts(50), 20)
    assert same(pickle.loads(pickle.dumps(packed))[3], packed[3])


@pytest.mark.parametrize(
    "make", [lambda d, n: PackedDataset(d, n)[0], lambda d, n: next(iter(PackedIterableDataset(Stream(d), n)))]
)
@pytest.mark.parametrize(
    ("error", "message", "samples", "row_length"),
    [
        (ValueError, "sample 1 has a length of 5, but a row holds 4", [[1], [1] * 5], 4),
        (ValueError, "sample 0 has a length of 5 in feature 'x', but a row holds 4", [{"x": [1] * 5}], {"x": 4}),
        (TypeError, "sample 0 is of type dict: row_length has to be a dict", [{"x": [1]}], 4),
        (TypeError, "row_length names features, and sample 0 is of type list", [[1]], {"x": 4}),
        (KeyError, "sample 0 has no feature 'y'", [{"x": [1]}], {"x": 4, "y": 4}),
        (ValueError, "one dtype and shape: feature 'values' has int64 of shape .. and float64", [[1], [1.0]], 4),
        (ValueError, "row_length must be a positive integer", [[1]], 0),
        (ValueError, "row_length must be a positive integer", [[1]], {"x": 2.5}),
        (ValueError, "row_length must name at least one feature", [[1]], {}),
    ],
)
def test_records_that_cannot_be_packed(
    make: Any, error: type[Exception], message: str, samples: Any, row_length: Any
) -> None:
    with pytest.raises(error, match=message):
        make(Samples(samples), row_length)


@pytest.mark.parametrize(
    ("message", "lengths"),
    [
        ("an integer for each of the 3 records, got int64 of shape .2,.", [1, 2]),
        ("an integer for each of the 3 records, got float64", [1, 2, 0.5]),
        ("lengths must be at least 0, got -1", [1, -1, 2]),
        ("sample 1 has a length of 5, but a row holds 4", [1, 5, 2]),
    ],
)
def test_lengths_of_no_use(message: str, lengths: Any) -> None:
    with pytest.raises(ValueError, match=message):
        PackedDataset(Ints(3), 4, lengths)


def test_a_record_that_is_longer_than_was_said() -> None:
    with pytest.raises(ValueError, match="sample 0 has a length of 9, but a row holds 8"):
        PackedDataset(Samples([[0] * 9]), 8, [3])[0]
    with pytest.raises(ValueError, match="sample 1 does not fit into its row: it is longer than its given length"):
        PackedDataset(Samples([[0] * 5, [0] * 5]), 8, [3, 3])[0]


def test_the_wrong_kind_of_dataset() -> None:
    with pytest.raises(TypeError, match="Stream is iterable; use PackedIterableDataset"):
        PackedDataset(Stream([]), 4)
    with pytest.raises(TypeError, match="Ints is not iterable; use PackedDataset"):
        PackedIterableDataset(Ints(3), 4)
    for bins in (0, 1.5, True):
        with pytest.raises(ValueError, match="bins must be a positive integer"):
            PackedIterableDataset(Stream([]), 4, bins)


@pytest.mark.parametrize("bins", [1, 3, 1000])
def test_a_stream_is_packed_some_rows_at_a_time(bins: int) -> None:
    texts = Texts(150)
    expected: list[list[int]] = []
    first = 0
    while first < 150:  # the largest number of records that first-fit has room for
        count = next(
            (n for n in range(1, 151 - first) if len(first_fit(texts.sizes[first : first + n], 16)) > bins), None
        )
        stop = 150 if count is None else first + count - 1
        expected += [[first + i for i in row] for row in first_fit(texts.sizes[first:stop], 16)]
        first = stop
    rows = list(PackedIterableDataset(Stream(texts), 16, bins))
    for row, records in itertools.zip_longest(rows, expected):
        values = [record for record in records for _ in range(texts.sizes[record])]
        assert row["values"].tolist() == values + [0] * (16 - len(values))


def test_with_rows_enough_a_stream_is_packed_as_a_whole() -> None:
    packed = PackedDataset(Pairs(80), FEATURES)
    assert same(list(PackedIterableDataset(Stream(Pairs(80)), FEATURES, 1000)), [packed[i] for i in range(len(packed))])


@pytest.mark.parametrize("kind", [Stream, StatefulStream])
@pytest.mark.parametrize("bins", [1, 4])
def test_a_packed_stream_goes_on_from_any_row(kind: Any, bins: int) -> None:
    def make() -> PackedIterableDataset:
        return PackedIterableDataset(kind(Texts(60)), 16, bins)

    whole = list(make())
    for taken in range(len(whole) + 1):
        packed = make()
        list(itertools.islice(packed, taken))
        for more in (0, 1, 2):
            state = json.loads(json.dumps(packed.state_dict()))
            packed = make()
            packed.load_state_dict(state)
            assert packed.state_dict() == state
            rows = iter(packed)
            assert same(list(itertools.islice(rows, more)), whole[taken : taken + more])
            taken = min(taken + more, len(whole))
        assert same(list(rows), whole[taken:])
        assert same(list(packed), whole)
    packed = make()
    list(packed)
    other = make()
    other.load_state_dict(packed.state_dict())
    assert list(other) == []


@pytest.mark.parametrize("bins", [1, 4])
def test_a_stream_is_asked_for_its_state_once_for_each_set_of_rows(bins: int) -> None:
    class Asked(StatefulStream):
        asked = 0

        def state_dict(self) -> dict[str, Any]:
            self.asked += 1
            return super().state_dict()

    dataset = Asked(Texts(800))
    rows = list(PackedIterableDataset(dataset, 16, bins=bins))
    assert dataset.asked <= -(-len(rows) // bins)


def test_a_stream_with_a_state_replays_only_the_rows_under_way() -> None:
    packed = PackedIterableDataset(StatefulStream(Texts(1000)), 16, 4)
    list(itertools.islice(packed, 200))
    texts = Texts(1000)
    other = PackedIterableDataset(StatefulStream(texts), 16, 4)
    other.load_state_dict(packed.state_dict())
    other.set_epoch(1)
    assert other.dataset.epoch == 1
    next(iter(other))
    assert texts.read < 30


def test_packing_beside_grain() -> None:
    pytest.importorskip("grain", reason="grain is not installed; make test-peers does")
    grain = importlib.import_module("grain.python")
    experimental = importlib.import_module("grain.experimental")
    pairs = [{**Pairs(200)[i], "targets": np.array(Pairs(200)[i]["targets"], np.int64)} for i in range(200)]
    parent = grain.MapDataset.source(pairs).map(lambda x: {name: x[name] for name in FEATURES}).to_iter_dataset()
    for bins in (1, 5):
        theirs = experimental.FirstFitPackIterDataset(
            parent, length_struct=FEATURES, num_packing_bins=bins, shuffle_bins=False
        )
        ours = list(PackedIterableDataset(Stream(pairs), FEATURES, bins))
        for left, right in itertools.zip_longest(ours, theirs):
            assert left.keys() == right.keys()
            assert all(same(left[key], right[key]) for key in left)


@pytest.mark.parametrize("pair", [(np.arange(3), np.arange(3)), [np.arange(3), np.arange(2)]])
def test_several_features_without_names_are_refused(pair: Any) -> None:
    with pytest.raises(TypeError, match=r"sample 0, of type (tuple|list), holds arrays: .* return a dict"):
        PackedDataset([pair], row_length=8)[0]
    assert PackedDataset([[1, 2, 3]], row_length=4)[0]["values"].tolist() == [1, 2, 3, 0]
