"""Samples to tensors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors


def feeder(shape: list[int], dtype: str = "float32", lod_level: int = 0) -> fluid.DataFeeder:
    return fluid.DataFeeder([fluid.layers.data("x", shape, dtype=dtype, lod_level=lod_level)], fluid.CPUPlace())


def test_samples_without_lod_are_stacked() -> None:
    image = fluid.layers.data("image", [1, 2, 2])
    label = fluid.layers.data("label", [1], dtype="int64")
    batch = fluid.DataFeeder([image, label], fluid.CPUPlace()).feed([([1, 2, 3, 4], 7), (np.ones((1, 2, 2)), [8])])
    assert batch["image"].shape() == [2, 1, 2, 2]
    assert batch["image"].dtype() == "float32"
    np.testing.assert_array_equal(np.asarray(batch["image"])[0], [[[1, 2], [3, 4]]])
    np.testing.assert_array_equal(np.asarray(batch["label"]), [[7], [8]])
    assert batch["label"].dtype() == "int64"


def test_a_sample_may_be_several_rows() -> None:
    tensor = feeder([3]).feed([(np.ones((2, 3)),), ([7, 8, 9],), (np.zeros((0, 3)),), ([[4, 5, 6]],)])["x"]
    np.testing.assert_array_equal(np.asarray(tensor), [[1, 1, 1], [1, 1, 1], [7, 8, 9], [4, 5, 6]])
    x = fluid.layers.data("open", [-1, -1, 2], append_batch_size=False)
    assert fluid.DataFeeder([x]).feed([(np.zeros((4, 5, 2)),)])["open"].shape() == [4, 5, 2]
    with pytest.raises(errors.InvalidArgument, match=r"shape \[3\].*sample 0 has \[2, 2, 3\]"):
        feeder([3]).feed([(np.ones((2, 2, 3)),)])


@pytest.mark.parametrize(
    ("declared", "shape"),
    [([2, 3], (6,)), ([2, 3], (1, 6)), ([2, 3], (2, 3)), ([2, 3], (2, 3, 1)), ([6], (2, 3)), ([1, 6], (2, 3))],
)
def test_a_sample_may_come_with_dimensions_merged_or_of_1(declared: list[int], shape: tuple[int, ...]) -> None:
    tensor = feeder(declared).feed([(np.arange(6).reshape(shape),)])["x"]
    np.testing.assert_array_equal(np.asarray(tensor), np.arange(6).reshape(1, *declared))


def test_images_may_have_other_extents() -> None:
    """Those of one batch have the same."""
    image = np.zeros((3, 6, 5))
    assert feeder([3, 8, 8]).feed([(image,), (image,)])["x"].shape() == [2, 3, 6, 5]
    with pytest.raises(errors.InvalidArgument, match=r"need the same shape, .* \[3, 6, 5\] and sample 1 \[3, 6, 6\]"):
        feeder([3, 8, 8]).feed([(image,), (np.zeros((3, 6, 6)),)])


@pytest.mark.parametrize("shape", [(3, 2), (1, 3, 2)])
def test_a_sample_that_is_transposed_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.InvalidArgument, match=rf"'x'.*shape \[2, 3\].*sample 1 has {re.escape(str([*shape]))}"):
        feeder([2, 3]).feed([(np.zeros((2, 3)),), (np.zeros(shape),)])


def test_one_level_of_lod() -> None:
    tensor = feeder([1], "int64", 1).feed([([1, 2, 3],), ([4],), ([],)])["x"]
    assert tensor.recursive_sequence_lengths() == [[3, 1, 0]]
    np.testing.assert_array_equal(np.asarray(tensor), [[1], [2], [3], [4]])


def test_two_levels_of_lod() -> None:
    tensor = feeder([1], "int64", 2).feed([([[1, 2, 3], [4, 5]],), ([[6, 7, 8, 9]],)])["x"]
    assert tensor.recursive_sequence_lengths() == [[2, 1], [3, 2, 4]]
    np.testing.assert_array_equal(np.asarray(tensor).ravel(), range(1, 10))


def test_sequences_of_vectors() -> None:
    tensor = feeder([2], "float32", 1).feed([([[1, 2], [3, 4]],), (np.ones((1, 2)),)])["x"]
    assert tensor.shape() == [3, 2]
    assert tensor.recursive_sequence_lengths() == [[2, 1]]


def test_only_empty_sequences() -> None:
    tensor = feeder([3], "float32", 1).feed([([],), ([],)])["x"]
    assert tensor.shape() == [0, 3]
    assert tensor.recursive_sequence_lengths() == [[0, 0]]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", 1.7),
        ("int64", [1.0, 2.5]),
        ("int64", np.nan),
        ("int64", 1e300),
        ("int32", 2**31),
        ("int8", np.array([300])),
        ("uint8", -1),
        ("uint8", np.array([-1])),
        ("int64", 2**63),
        ("int64", np.array([2**63], np.uint64)),
    ],
)
@pytest.mark.parametrize("lod_level", [0, 1])
def test_integers_are_not_rounded_or_wrapped(dtype: str, value: Any, lod_level: int) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"'x'.*sample 1"):
        good, bad = ([0] * np.size(value), value) if np.ndim(value) else (0, value)
        feeder([np.size(value)], dtype, lod_level).feed([([good],), ([bad],)] if lod_level else [(good,), (bad,)])


def test_what_integers_hold_is_taken_whatever_holds_it() -> None:
    values = [3, 3.0, np.float32(3), np.uint64(3), "3", True, [3], np.array([3.0])]
    tensor = feeder([1], "int64").feed([(value,) for value in values])["x"]
    np.testing.assert_array_equal(np.asarray(tensor).ravel(), [3, 3, 3, 3, 3, 1, 3, 3])
    big = feeder([1], "int64").feed([(2**63 - 1,)])["x"]
    assert np.asarray(big)[0, 0] == 2**63 - 1


def test_names_stand_for_variables() -> None:
    fluid.layers.data("x", [1])
    assert fluid.DataFeeder(["x"]).feed([(1,)])["x"].shape() == [1, 1]
    with pytest.raises(KeyError, match="nothing"):
        fluid.DataFeeder(["nothing"])
    with pytest.raises(TypeError, match="int"):
        fluid.DataFeeder([3])


def test_any_extent_where_the_shape_leaves_it_open() -> None:
    x = fluid.layers.data("x", [-1, -1, 2], append_batch_size=False)
    assert fluid.DataFeeder([x]).feed([(np.zeros((5, 2)),)])["x"].shape() == [1, 5, 2]


@pytest.mark.parametrize(
    ("samples", "error", "match"),
    [
        ([], ValueError, "at least one"),
        ([(1, 2)], ValueError, r"value for each variable .*, got 2"),
        ([3], TypeError, "int"),
        (["text"], TypeError, "str"),
        ([([1, 2, 3],)], ValueError, r"\[3\]"),
        ([([1, 2],), ([1],)], ValueError, "sample 1"),
        ([("text",)], ValueError, "sample 0"),
        ([([[1], [1, 2]],)], ValueError, "sample 0"),
    ],
)
def test_samples_that_do_not_fit_are_refused(samples: list[object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        feeder([2]).feed(samples)


def test_a_sample_without_the_sequences_that_the_lod_wants_is_refused() -> None:
    with pytest.raises(TypeError, match="level 1"):
        feeder([1], "int64", 2).feed([([1, 2],)])


def test_a_value_in_the_place_of_a_sequence_is_refused() -> None:
    with pytest.raises(TypeError, match="'x' has 1 level of sequences, but sample 0 has a value of type int"):
        feeder([1], "int64", 1).feed([(3,)])


def test_an_item_of_a_sequence_is_one_row() -> None:
    with pytest.raises(ValueError, match=r"shape \[2\].*sample 0 has \[3, 2\]"):
        feeder([2], "float32", 1).feed([([np.ones((3, 2))],)])


def test_a_decorated_reader_yields_batches(exe: fluid.Executor) -> None:
    x = fluid.layers.data("x", [1])
    out = fluid.layers.scale(x, 2.0)
    reader = fluid.DataFeeder([x]).decorate_reader(fluid.io.batch(lambda: ((i,) for i in range(5)), 2))
    values = [exe.run(feed=batch, fetch_list=[out])[0].ravel().tolist() for batch in reader()]
    assert values == [[0, 2], [4, 6], [8]]


def test_batches_for_several_places_are_fed_together(exe: fluid.Executor) -> None:
    x = fluid.layers.data("x", [1])
    out = fluid.layers.scale(x, 2.0)
    feeder = fluid.DataFeeder([x])
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=fluid.cpu_places(2))
    (joined,) = exe.run(program, feed=list(feeder.feed_parallel([[(1,), (2,)], [(3,)]], 2)), fetch_list=[out])
    assert joined.ravel().tolist() == [2, 4, 6]
    with pytest.raises(ValueError, match="each of 2 places, got 1"):
        feeder.feed_parallel([[(1,)]], 2)
    batches = fluid.io.batch(lambda: ((i,) for i in range(5)), 1)
    for drop_last, sizes in ((True, [2, 2]), (False, [2, 2, 1])):
        groups = list(feeder.decorate_reader(batches, True, num_places=2, drop_last=drop_last)())
        assert [len(group) for group in groups] == sizes
        values = [np.asarray(feed["x"]).item() for group in groups for feed in group]
        assert values == list(range(sum(sizes)))


def test_there_are_as_many_places_as_cpu_num_says(monkeypatch: pytest.MonkeyPatch) -> None:
    feeder = fluid.DataFeeder([fluid.layers.data("x", [1])])
    assert len(list(feeder.feed_parallel([[(1,)]]))) == 1
    monkeypatch.setenv("CPU_NUM", "3")
    (group,) = feeder.decorate_reader(lambda: iter([[(1,)]] * 4), multi_devices=True)()
    assert len(group) == 3


def test_levels_without_a_sequence_are_told_with_their_variable() -> None:
    feeder = fluid.DataFeeder([fluid.layers.data("words", [1], dtype="int64", lod_level=2)])
    assert feeder.feed([([],), ([[7]],)])["words"].recursive_sequence_lengths() == [[0, 1], [1]]
    with pytest.raises(errors.InvalidArgument, match="variable 'words': LoD level 1 has 1 offsets"):
        feeder.feed([([],), ([],)])
