"""Arrays whose shapes differ within a batch: padded, as lists, or as tensors with a level of detail."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from loader_datasets import Point, Samples, same

import headrace.fluid as fluid
from headrace.data import DataLoader, default_collate
from headrace.data._samples.collation import collate_in_place
from headrace.data._samples.flatten import Flattener
from headrace.data._samples.ragged import Ragged
from headrace.data._samples.rebuild import decode_tree
from headrace.fluid import core


@dataclasses.dataclass
class Record:
    x: Any
    y: Any


def words(*lengths: int, dtype: Any = np.int64) -> list[Any]:
    """Arrays of the given lengths; the i-th is full of i + 1."""
    return [np.full(length, i + 1, dtype) for i, length in enumerate(lengths)]


def load(samples: list[Any], rule: Any, **arguments: Any) -> Any:
    """Makes a batch of the samples by default_collate and by a loader's worker, and checks that both agree."""
    expected = default_collate(samples, ragged=rule)
    collate = functools.partial(default_collate, ragged=rule)
    (batch,) = DataLoader(Samples(samples), batch_size=len(samples), num_workers=1, collate_fn=collate, **arguments)
    assert equal(batch, expected)
    tree, leaves = Flattener().collated(collate_in_place(samples, ragged=rule))
    build, _ = decode_tree(tree)
    assert equal(build([leaf.make() if hasattr(leaf, "make") else leaf for leaf in leaves]), expected)
    return batch


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, Ragged):
        return type(right) is Ragged and same(left.values, right.values) and same(left.offsets, right.offsets)
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(equal, left, right))
    return same(left, right)


def test_padding_fills_up_to_the_longest() -> None:
    assert load(words(2, 0, 3), "pad").tolist() == [[1, 1, 0], [0, 0, 0], [3, 3, 3]]
    assert load(words(2, 1), ("pad", -1)).tolist() == [[1, 1], [2, -1]]
    got = load([np.ones((1, 3), np.float32), np.ones((2, 1), np.float32)], ("pad", np.nan))
    assert got.dtype == np.float32
    assert np.isnan(got).tolist() == [[[False] * 3, [True] * 3], [[False, True, True]] * 2]


def test_padding_of_other_types() -> None:
    dtype = np.dtype([("a", "i4"), ("b", "S2")])
    got = load([np.array([(1, b"x")], dtype), np.array([(2, b"y")] * 2, dtype)], "pad")
    assert got.tolist() == [[(1, b"x"), (0, b"")], [(2, b"y")] * 2]
    assert load([np.array(["a"]), np.array(["bc", "d"])], "pad").tolist() == [["a", ""], ["bc", "d"]]


@pytest.mark.parametrize("value", [300, "x", 0.5], ids=str)
def test_a_padding_value_that_the_type_does_not_hold_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot pad with .*: uint8"):
        default_collate(words(1, 2, dtype=np.uint8), ragged=("pad", value))


def test_equal_shapes_are_padded_to_a_stack_and_listed_as_a_list() -> None:
    assert load(words(2, 2), "pad").tolist() == [[1, 1], [2, 2]]
    assert [each.tolist() for each in load(words(2, 2), "list")] == [[1, 1], [2, 2]]
    assert load(words(2, 2), "lod").offsets.tolist() == [0, 2, 4]


@pytest.mark.parametrize("count", [3, 300])
def test_a_list_keeps_every_shape(count: int) -> None:
    samples = [(np.full((i % 5, 2), i, np.int16), i) for i in range(count)]
    arrays, numbers = load(samples, "list")
    assert [each.shape for each in arrays] == [(i % 5, 2) for i in range(count)]
    assert all((each == i).all() for i, each in enumerate(arrays))
    assert numbers.tolist() == list(range(count))


def test_a_list_may_hold_any_number_of_dimensions_and_type() -> None:
    got = load([np.zeros(2), np.zeros((2, 2)), np.zeros(1, np.int8)], "list")
    assert [(each.shape, str(each.dtype)) for each in got] == [((2,), "float64"), ((2, 2), "float64"), ((1,), "int8")]


def test_a_list_of_many_dimensions_and_types() -> None:
    samples = [np.zeros((1,) * (1 + i % 3), ("f4", "i8")[i % 2]) for i in range(40)]
    assert [(each.ndim, each.dtype) for each in load(samples, "list")] == [(each.ndim, each.dtype) for each in samples]


def test_the_list_of_default_collate_is_a_copy() -> None:
    samples = words(1, 2)
    default_collate(samples, ragged="list")[0][:] = 9
    assert samples[0].tolist() == [1]


def test_a_ragged_is_a_sequence_of_its_rows() -> None:
    got = load([(array, i) for i, array in enumerate(words(2, 0, 3))], "lod")[0]
    assert isinstance(got, Ragged)
    assert got.values.tolist() == [1, 1, 3, 3, 3]
    assert got.offsets.tolist() == [0, 2, 2, 5]
    assert len(got) == 3
    assert [row.tolist() for row in got] == [row.tolist() for row in got.rows()] == [[1, 1], [], [3, 3, 3]]
    assert got[-1].tolist() == [3, 3, 3]
    assert got.lengths() == [2, 0, 3]
    with pytest.raises(IndexError, match="row 3 of 3"):
        got[3]
    with pytest.raises(IndexError, match="row -4 of 3"):
        got[-4]


def test_only_the_first_axis_of_a_ragged_may_differ() -> None:
    got = load([np.ones((1, 2), np.float32), np.zeros((3, 2), np.float32)], "lod")
    assert got.values.shape == (4, 2)
    with pytest.raises(ValueError, match=r"sample 1 .*got shape \(1, 3\), expected shape \(…, 2\)"):
        default_collate([np.zeros((1, 2)), np.zeros((1, 3))], ragged="lod")


@pytest.mark.parametrize("rule", ["pad", "lod"])
def test_a_differing_number_of_dimensions_is_an_error(rule: str) -> None:
    with pytest.raises(ValueError, match=r"sample 1 .*shape \(1, 1\), expected 1 dimension"):
        default_collate([np.zeros(1), np.zeros((1, 1))], ragged=rule)


def test_differing_types_become_one() -> None:
    for rule in ("pad", "lod"):
        got = default_collate([np.ones(1, np.float32), np.ones(2, np.float64)], ragged=rule)
        assert (got if rule == "pad" else got.values).dtype == np.float64


def test_numbers_and_texts_are_not_ragged() -> None:
    tokens, number, text = load([(np.ones(i + 1), i, "x" * i) for i in range(2)], "lod")
    assert len(tokens) == 2
    assert number.tolist() == [0, 1]
    assert text == ["", "x"]


@pytest.mark.parametrize("rule", ["pad", "list", "lod"])
@pytest.mark.parametrize("other", [np.str_("x"), np.timedelta64(5, "s")], ids=["text", "duration"])
def test_numbers_that_are_not_ragged_do_not_become_something_else(rule: str, other: Any) -> None:
    with pytest.raises(TypeError, match="cannot be batched with"):
        default_collate([(np.ones(1), 1), (np.ones(2), other)], ragged=rule)


@pytest.mark.parametrize("rule", ["pad", "list", "lod"])
@pytest.mark.parametrize("scalar", [1, 1.5, np.float64(1), np.array(1.0)], ids=repr)
def test_an_array_and_a_number_are_not_ragged_whichever_comes_first(rule: str, scalar: Any) -> None:
    for samples in ([np.ones(2), np.ones(1), scalar], [scalar, scalar, np.ones(2)]):
        for num_workers in (0, 1):
            with pytest.raises(ValueError, match="sample 2 cannot be batched with sample 0: got"):
                list(DataLoader(Samples(samples), batch_size=3, num_workers=num_workers, ragged=rule))


def test_rules_by_key() -> None:
    samples = [{"a": array, "b": (array, array), "c": Point(array, 1)} for array in words(1, 2)]
    got = load(samples, {"a": "pad", "b": {0: "list", 1: "lod"}, "c": {0: ("pad", 7)}})
    assert got["a"].tolist() == [[1, 0], [2, 2]]
    assert [each.tolist() for each in got["b"][0]] == [[1], [2, 2]]
    assert got["b"][1].offsets.tolist() == [0, 1, 3]
    assert got["c"].x.tolist() == [[1, 7], [2, 2]]
    with pytest.raises(ValueError, match=r"sample 1 .* at \['b'\]\[0\]"):
        default_collate(samples, ragged={"a": "pad", "c": "pad"})


def test_fields_of_a_named_tuple_have_rules_by_name_or_position() -> None:
    got = load([Point(*pair) for pair in zip(words(1, 2), words(2, 1))], {"x": "pad", 1: ("pad", 7)})
    assert got.x.tolist() == [[1, 0], [2, 2]]
    assert got.y.tolist() == [[1, 1], [2, 7]]


@pytest.mark.parametrize(
    ("sample", "rule", "message"),
    [
        (
            {"tokens": np.ones(2), "y": 1},
            {"token": "lod"},
            "'token', but samples have the keys 'tokens', 'y'",
        ),
        ({"tokens": np.ones(2)}, {"tokens": "lod", 0: None}, "a rule for 0, but samples have the keys 'tokens'"),
        ((np.ones(2), 1), {"tokens": "lod"}, "a rule for 'tokens', but samples have the positions 0, 1"),
        ([np.ones(2), 1], {-1: "lod"}, "a rule for -1, but samples have the positions 0, 1"),
        (Point(np.ones(2), 1), {"z": "lod"}, "a rule for 'z', but samples have the positions 0, 1"),
        (Record(np.ones(2), 1), {"z": "lod"}, "a rule for 'z', but samples have the fields 'x', 'y'"),
        ({"a": (np.ones(2),)}, {"a": {1: "lod"}}, r"a rule for 1, but samples at \['a'\] have the positions 0"),
        ({"a": np.ones(2)}, {"a": {"b": "lod"}}, r"'b', but samples at \['a'\] have no keys, positions or fields"),
        (np.ones(2), {0: "lod"}, "a rule for 0, but samples have no keys, positions or fields"),
    ],
    ids=str,
)
def test_a_rule_for_what_samples_lack_is_an_error(sample: Any, rule: Any, message: str) -> None:
    for num_workers in (0, 1):
        with pytest.raises(ValueError, match=message):
            list(DataLoader(Samples([sample] * 2), batch_size=2, num_workers=num_workers, ragged=rule))


def test_rules_may_be_none_and_leave_keys_out() -> None:
    sample = {"a": np.ones(2), "b": Record(np.ones(1), 1)}
    got = default_collate([sample, sample], ragged={"a": None, "b": {"x": "list"}})
    assert got["a"].shape == (2, 2)
    assert len(got["b"].x) == 2


@pytest.mark.parametrize("rule", ["padding", ("pad",), ("list", 0), 3, {"a": "x"}], ids=str)
def test_a_rule_that_is_none_is_an_error(rule: Any) -> None:
    with pytest.raises(ValueError, match="ragged must be None"):
        default_collate(words(1), ragged=rule)


def test_without_a_rule_the_error_says_what_to_do() -> None:
    for num_workers in (0, 2):
        with pytest.raises(ValueError, match=r"sample 1 .*shape \(2,\), expected shape \(1,\).*pass ragged="):
            list(DataLoader(Samples(words(1, 2)), batch_size=2, num_workers=num_workers))


def test_lists_of_numbers_are_columns_and_cannot_be_ragged() -> None:
    with pytest.raises(ValueError, match=r"3 elements, expected 2 elements.*Only arrays can be ragged"):
        default_collate([[1, 2], [1, 2, 3]], ragged="pad")


@pytest.mark.parametrize("offsets", [[1, 2], [0, 3], [0, 2, 1, 2], [], [[0, 2]], [0, -1, 2]], ids=str)
def test_offsets_that_do_not_fit_the_values_are_an_error(offsets: Any) -> None:
    with pytest.raises(ValueError, match="offsets of a Ragged"):
        Flattener().result(Ragged(np.zeros(2), np.array(offsets, np.int64)))


def test_tensors_stay_tensors() -> None:
    torch = pytest.importorskip("torch")
    samples = [torch.full((n,), n, dtype=torch.bfloat16) for n in (1, 3)]
    padded = default_collate(samples, ragged=("pad", -1))
    assert padded.dtype == torch.bfloat16
    assert padded.tolist() == [[1, -1, -1], [3, 3, 3]]
    packed = default_collate(samples, ragged="lod")
    assert packed.values.dtype == torch.bfloat16
    assert [row.tolist() for row in packed] == [[1], [3, 3, 3]]
    for count in (2, 30):
        listed = functools.partial(default_collate, ragged="list")
        loader = DataLoader(Samples(samples[1:] * count), batch_size=count, collate_fn=listed, to="torch")
        (got,) = loader
        assert [each.tolist() for each in got] == [[3, 3, 3]] * count
        assert {each.dtype for each in got} == {torch.bfloat16}


def test_a_ragged_becomes_a_tensor_with_a_level_of_detail() -> None:
    tensor = Ragged(np.arange(5, dtype=np.float32), np.array([0, 2, 5])).to_lod_tensor()
    assert tensor.lod() == [[0, 2, 5]]
    assert tensor.recursive_sequence_lengths() == [[2, 3]]
    assert np.asarray(tensor).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_a_queue_a_ragged_is_one_tensor(num_workers: int) -> None:
    samples = [(array.astype(np.float32), i) for i, array in enumerate(words(2, 0, 3, 1))]
    collate = functools.partial(default_collate, ragged="lod")
    loader = DataLoader(Samples(samples), batch_size=2, num_workers=num_workers, collate_fn=collate)
    queue = core.init_lod_tensor_blocking_queue(
        fluid.Scope().var("queue"),
        2,
        [[-1], [-1]],
        list(map(core.convert_dtype, ["float32", "int64"])),
        lod_levels=[1, 0],
    )
    feed = loader._feed(queue)
    batches = [queue.pop(timeout=100) for _ in range(2)]
    feed.stop()
    assert [len(batch) for batch in batches] == [2, 2]
    assert [batch[0].lod() for batch in batches] == [[[0, 2, 2]], [[0, 3, 4]]]
    assert [np.asarray(batch[0]).tolist() for batch in batches] == [[1, 1], [3, 3, 3, 4]]
    assert [np.asarray(batch[1]).tolist() for batch in batches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_has_a_rule(num_workers: int) -> None:
    samples = words(2, 0, 3, 1)
    loader = DataLoader(Samples(samples), batch_size=2, num_workers=num_workers, ragged="lod")
    assert [[row.tolist() for row in batch] for batch in loader] == [[[1, 1], []], [[3, 3, 3], [4]]]
    loader = DataLoader(Samples(samples), batch_size=2, num_workers=num_workers, ragged=("pad", -1))
    assert [batch.tolist() for batch in loader] == [[[1, 1], [-1, -1]], [[3, 3, 3], [4, -1, -1]]]


def test_what_cannot_be_ragged_is_named_by_its_index() -> None:
    samples = [np.zeros(2)] * 5 + [np.zeros((2, 1))]
    with pytest.raises(ValueError, match="sample 5 cannot be batched with sample 3"):
        list(DataLoader(Samples(samples), batch_size=3, ragged="pad"))


def test_in_a_queue_bfloat16_is_itself() -> None:
    torch = pytest.importorskip("torch")
    samples = [torch.full((n,), n, dtype=torch.bfloat16) for n in (1, 2)]
    for rule, shape in (("lod", [3]), ("pad", [2, 2])):
        queue = core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 2, [[-1] * len(shape)])
        feed = DataLoader(Samples(samples), batch_size=2, ragged=rule)._feed(queue)
        (tensor,) = queue.pop(timeout=100)
        feed.stop()
        assert (tensor.dtype(), tensor.shape()) == ("bfloat16", shape)
        bits = np.asarray(tensor).view(np.int16)
        expected = [1, 2, 2] if rule == "lod" else [1, 0, 2, 2]
        assert torch.from_numpy(bits.ravel()).view(torch.bfloat16).tolist() == expected
