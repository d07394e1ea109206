"""headrace.data._samples.collation: how samples become a batch, and how a batch is taken apart and rebuilt."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
from loader_datasets import Everything, KeyOrder, Point, Samples, same

from headrace.data import DataLoader, default_collate
from headrace.data._samples.describe import describe
from headrace.data._samples.flatten import Flattener
from headrace.data._samples.rebuild import decode_tree


def load(samples: list[Any], **arguments: Any) -> Any:
    """Makes a batch of the samples without workers and with two, and checks that both agree."""
    (here,) = DataLoader(Samples(samples), batch_size=len(samples), **arguments)
    (there,) = DataLoader(Samples(samples), batch_size=len(samples), num_workers=2, **arguments)
    assert same(here, there)
    return here


class Described:
    """A collate function that has a method of a common name."""

    def describe(self) -> str:
        return "sums"

    def __call__(self, samples: list[Any]) -> Any:
        return sum(samples)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_methods_of_a_collate_function_are_its_own(num_workers: int) -> None:
    loader = DataLoader(Samples([1, 2, 3]), batch_size=2, collate_fn=Described(), num_workers=num_workers)
    assert list(loader) == [3, 3]


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}, {"num_workers": 1, "workers": "thread"}], ids=str)
def test_without_batches_the_default_collation_gets_one_sample_as_any_function_would(workers: dict[str, Any]) -> None:
    lists = [[(np.ones(2), 1), (np.zeros(2), 2)], [(np.zeros(2), 3)]]
    batches = list(DataLoader(Samples(lists), batch_size=None, collate_fn=default_collate, seed=0, **workers))
    assert same(batches, [[np.array([[1.0, 1], [0, 0]]), np.array([1, 2])], [np.zeros((1, 2)), np.array([3])]])


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([1, 2], np.array([1, 2])),
        ([1, 2.5], np.array([1, 2.5])),
        ([2.5, 1], np.array([2.5, 1])),
        ([True, False], np.array([True, False])),
        ([True, 2], np.array([1, 2])),
        ([True, 2, 0.5], np.array([1, 2, 0.5])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)),
        ([np.float32(1), 2.0], np.array([1.0, 2.0])),
        ([1.0, np.float32(2)], np.array([1.0, 2.0])),
        ([np.int8(1), np.int16(2)], np.array([1, 2], np.int16)),
        ([np.array(1), 2], np.array([1, 2])),
        ([np.zeros(2, np.float32), np.ones(2)], np.array([[0.0, 0], [1, 1]])),
        (["a", "b"], ["a", "b"]),
        ([np.str_("a"), np.str_("bcd")], ["a", "bcd"]),
        ([None, None], [None, None]),
        ([None, "x", 3], [None, "x", 3]),
        ([(1, 2), [3, 4]], [np.array([1, 3]), np.array([2, 4])]),
        ([{"a": 1}, {"a": 2.0}], {"a": np.array([1.0, 2.0])}),
        ([(), ()], []),
        ([{}, {}], {}),
        (
            [np.datetime64("2020-01-01"), np.datetime64("2021-01-01T00:00:01")],
            np.array(["2020-01-01", "2021-01-01T00:00:01"], "M8[s]"),
        ),
    ],
    ids=str,
)
def test_samples_are_brought_together(samples: list[Any], expected: Any) -> None:
    got = load(samples)
    assert same(got, expected) or (isinstance(expected, list) and list(got) == expected)


class StandardArray:
    """What another library's arrays have in common."""

    def __init__(self, array: Any) -> None:
        self._array = np.array(array)
        self.dtype, self.shape = self._array.dtype, self._array.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        view = self._array.view()
        view.flags.writeable = False
        return view

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return np


@pytest.mark.parametrize("num_workers", [0, 2])
def test_arrays_of_other_libraries_become_arrays(num_workers: int) -> None:
    samples = [(StandardArray(np.full(3, i, np.int16)), {"x": StandardArray(np.float32(i))}) for i in range(4)]
    for batch in DataLoader(Samples(samples), batch_size=4, num_workers=num_workers):
        assert same(batch[0], np.repeat(np.arange(4, dtype=np.int16), 3).reshape(4, 3))
        assert same(batch[1]["x"], np.arange(4, dtype=np.float32))
    mixed = [np.zeros(2, np.float32), StandardArray(np.ones(2))]
    assert same(default_collate(mixed), np.array([[0.0, 0], [1, 1]]))
    ragged = default_collate([StandardArray([1]), StandardArray([2, 3])], ragged="pad")
    assert same(ragged, np.array([[1, 0], [2, 3]]))
    with pytest.raises(ValueError, match=r"sample 1 cannot be batched with sample 0: got shape \(2,\), expected"):
        default_collate([StandardArray([1]), StandardArray([2, 3])])


def test_batches_of_two_kinds_of_record_scalars_are_told_apart() -> None:
    short, long = np.zeros((), "V3"), np.zeros((), "V9")
    first, second = DataLoader(Samples([short[()], short[()], long[()], long[()]]), batch_size=2, num_workers=1)
    assert (first.dtype.itemsize, second.dtype.itemsize) == (3, 9)


@pytest.mark.parametrize(
    ("samples", "error", "words"),
    [
        ([np.zeros(3), np.zeros(4)], ValueError, r"sample 1 .*shape \(4,\), expected shape \(3,\)"),
        ([np.zeros(3), np.zeros((3, 1))], ValueError, r"sample 1 .*shape \(3, 1\)"),
        ([np.zeros(3), 1.0], ValueError, "sample 1 .*float"),
        ([np.zeros(3)] * 3 + ["x"], TypeError, "sample 3 .*str"),
        ([1, "x"], TypeError, "sample 1 .*str, expected a value of type int"),
        ([(1, 2), (1, 2, 3)], ValueError, "sample 1 .*3 elements, expected 2"),
        ([(1, 2), 3], ValueError, "sample 1 .*int, expected 2 elements"),
        ([[[1]], [[1, 2]]], ValueError, r"at \[0\]: got 2 elements, expected 1 element\."),
        ([np.zeros(2), np.array(["a", "b"])], TypeError, "sample 1 .*got dtype <U1, expected dtype float64"),
        ([np.array([b"x"]), np.array([1])], TypeError, r"sample 1 .*got dtype int64, expected dtype \|S1"),
        ([{"a": np.array("a")}, {"a": 3}], TypeError, r"sample 1 .*at \['a'\]: got dtype int64"),
        ([np.zeros(1), np.array(["2020-01-01"], "M8[D]")], TypeError, "sample 1 .*datetime64"),
        ([{"a": 1}, {"b": 1}], ValueError, r"sample 1 .*keys \['b'\], expected keys \['a'\]"),
        ([{"a": 1}, {"a": 1, "b": 1}], ValueError, "sample 1"),
        ([{"a": 1}, [1]], ValueError, "sample 1 .*list"),
        ([{"a": (np.zeros(1), 1)}, {"a": (np.zeros(2), 1)}], ValueError, r"at \['a'\]\[0\]: got shape \(2,\)"),
        ([0, 1 << 64], OverflowError, "too large|too big|does not fit"),
        ([0.5, 1 << 64, 1], OverflowError, "sample 1: .*does not fit"),
    ],
    ids=lambda value: None if isinstance(value, type) else str(value)[:40],
)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_that_do_not_fit_together_are_a_clear_error(
    samples: list[Any], error: type[Exception], words: str, num_workers: int
) -> None:
    loader = DataLoader(Samples([*samples, 7, 7]), batch_sampler=[range(len(samples)), [-1]], num_workers=num_workers)
    iterator = iter(loader)
    with pytest.raises(error, match=words):
        next(iterator)
    assert next(iterator).tolist() == [7]


def test_the_message_names_the_index_in_the_dataset() -> None:
    samples = [np.zeros(3)] * 10 + [np.zeros(4)]
    with pytest.raises(ValueError, match="sample 10 cannot be batched with sample 3"):
        list(DataLoader(Samples(samples), batch_size=4, sampler=[3, 5, 10, 1], num_workers=2))


def test_types_that_hold_each_other_are_stacked() -> None:
    assert default_collate([np.array(["a"]), np.array(["abc"])]).tolist() == [["a"], ["abc"]]
    assert default_collate([np.array([True]), np.array([0.5])]).tolist() == [[1.0], [0.5]]
    apart = default_collate([np.zeros(2), np.array(["a", "b"])], ragged="list")
    assert [array.tolist() for array in apart] == [[0, 0], ["a", "b"]]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_the_first_sample_decides_the_order_of_keys(num_workers: int) -> None:
    loader = DataLoader(KeyOrder(12), batch_size=2, num_workers=num_workers)
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert list(batch) == (["a", "b"] if 2 * number % 3 else ["b", "a"])
            assert batch["a"].tolist() == [[2 * number] * 2, [2 * number + 1] * 2]


def test_collating_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        default_collate([])


def test_equal_samples_are_described_by_equal_bytes() -> None:
    word = "".join(["key", "s"])
    dtype = np.dtype([("a", "i4")])
    shared = {word: {word: 1}, "x": np.zeros(1, dtype), "y": np.zeros(1, dtype)}
    apart = {
        "".join(["key", "s"]): {"".join(["ke", "ys"]): 1},
        "x": np.zeros(1, np.dtype([("a", "i4")])),
        "y": np.zeros(1, np.dtype([("a", "i4")])),
    }
    assert describe(shared)[0] == describe(apart)[0]


@pytest.mark.parametrize(
    "batch",
    [
        np.arange(3),
        [np.arange(3), "x", None],
        (np.arange(3), [1, 2.5, "x"]),
        Point(np.arange(2), {"a": [np.zeros(1)]}),
        collections.OrderedDict(b=np.arange(2), a=3),
        collections.defaultdict(int, a=np.arange(2)),
        {"objects": np.array([None, "x"], object), "empty": [], "text": "t", "number": 3.5},
        "only a string",
        None,
        [],
    ],
    ids=str,
)
def test_a_collated_batch_survives_being_taken_apart(batch: Any) -> None:
    tree, leaves = Flattener().result(batch)
    build, dtypes = decode_tree(tree)
    assert len(dtypes) == len(leaves)
    got = build([leaf.make() if hasattr(leaf, "make") else leaf for leaf in leaves])
    if isinstance(batch, collections.defaultdict):
        assert got["a"].tolist() == [0, 1]
        assert got.default_factory is int
    elif isinstance(batch, dict) and "objects" in batch:
        assert got["objects"].tolist() == [None, "x"]
        assert {key: got[key] for key in ("empty", "text", "number")} == {"empty": [], "text": "t", "number": 3.5}
    else:
        assert same(got, batch)


def test_large_strings_and_bytes_travel_beside_the_arrays() -> None:
    samples = [("x" * (100_000 + i), b"\0" * i, np.full(3, i)) for i in range(5)]
    texts, raw, arrays = load(samples)
    assert texts == [sample[0] for sample in samples]
    assert raw == [sample[1] for sample in samples]
    assert arrays[:, 0].tolist() == list(range(5))


MANY: dict[str, Any] = {
    "a list of floats": lambda i: [float(i)] * 3000,
    "a tuple of integers": lambda i: tuple(range(i, i + 3000)),
    "a dict of numbers": lambda i: {key: np.float32(i + key) for key in range(3000)},
    "long names": lambda i: {f"a_feature_with_a_long_name_{key}_{'x' * 100}": float(i) for key in range(1000)},
    "a nested list": lambda i: [[float(i), [k, True]] for k in range(600)],
    "of every kind": lambda i: [(np.full(k % 3, i, np.int8), float(k), f"text {i}", None) for k in range(400)],
    "arrays": lambda i: [np.full((2, 3), i + k, np.float32) for k in range(3000)],
    "12 dimensions": lambda i: np.full((1, 2) * 6, i),
    "13 dimensions": lambda i: {"x": np.full((1, 2) + (1,) * 11, i, np.uint8), "y": i},
    "ten thousand": lambda i: {k: i + k for k in range(10000)},
}


@pytest.mark.parametrize("make", MANY.values(), ids=list(MANY))
def test_no_sample_has_too_many_parts_or_dimensions(make: Any) -> None:
    samples = [make(i) for i in range(4)]
    without = list(DataLoader(Samples(samples), 2))
    for batch, rows in zip(without, (samples[:2], samples[2:])):
        assert same(batch, default_collate(rows))
    for arguments in ({}, {"collate_fn": default_collate}):
        with_workers = list(DataLoader(Samples(samples), 2, num_workers=1, **arguments))
        assert same(with_workers, without)
        with_workers[0] = None  # the memory of the other batch stays its own
        assert same(with_workers[1], without[1])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_results_of_many_arrays_arrive_as_they_were(num_workers: int) -> None:
    def collate(samples: list[Any]) -> Any:
        memory = np.arange(6000.0).reshape(3000, 2)
        return {"rows": dict(enumerate(memory)), "whole": memory, "columns": {k: np.arange(k % 5) for k in range(1500)}}

    (batch,) = DataLoader(Samples([0]), 1, collate_fn=collate, num_workers=num_workers)
    assert same(batch, collate([]))
    batch["rows"][7][1] = -1
    assert batch["whole"][7, 1] == -1


def test_many_arrays_in_a_sample() -> None:
    (batch,) = DataLoader(Samples([[np.full(1, i) for i in range(500)]] * 2), batch_size=2, num_workers=1)
    assert [array[0, 0] for array in batch] == list(range(500))


def test_deeply_nested_samples() -> None:
    got = load([Everything(1)[0], Everything(2)[1]])
    assert got["point"].y["deep"][1] == [b"", b"bytes"]
    assert got["nothing"] == []
