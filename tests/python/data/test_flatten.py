"""A Flattener that has seen other batches takes each one apart as a new Flattener does."""

from __future__ import annotations

import collections
import random
from typing import Any

import numpy as np
import pytest

from headrace import _core
from headrace.data._samples.batch_tree import LAYOUT_DIMS
from headrace.data._samples.flatten import Flattener
from headrace.data._samples.planned_arrays import Planned
from headrace.data._samples.ragged import Ragged

DTYPES = [np.dtype(code) for code in ("<i8", "<f4", ">f4", "?", "<U3", "M8[s]")]


class Odd(dict):  # type: ignore[type-arg]
    pass


class Key(str):
    pass


def array(rng: random.Random) -> Any:
    dtype = rng.choice(DTYPES)
    shape = tuple(rng.choice([0, 1, 2, 3]) for _ in range(rng.choice([0, 1, 1, 2])))
    return np.zeros(shape, dtype)


def plain(rng: random.Random) -> Any:
    return rng.choice([1, True, 1.0, 1j, "one", b"one", None])


def batch(rng: random.Random, depth: int = 0) -> Any:
    """Mostly plain."""
    kind = rng.choice(["array", "array", "plain", "plains"] + ["dict", "list", "tuple"] * (depth < 3))
    if kind == "array":
        return array(rng)
    if kind == "plain":
        return plain(rng)
    if kind == "plains":
        return rng.choice([list, tuple])(plain(rng) for _ in range(rng.choice([0, 1, 3, 40])))
    children = [batch(rng, depth + 1) for _ in range(rng.choice([0, 1, 2, 3]))]
    if kind == "dict":
        return {rng.choice("abcdef") + str(i): child for i, child in enumerate(children)}
    return children if kind == "list" else tuple(children)


def renewed(value: Any, rng: random.Random) -> Any:
    """Another batch that hangs together as ``value`` does."""
    if isinstance(value, np.ndarray):
        return np.ones([rng.choice([0, 1, 2, 5]) for _ in value.shape], value.dtype)
    if type(value) is dict:
        return {key: renewed(child, rng) for key, child in value.items()}
    if type(value) in (list, tuple):
        return type(value)(renewed(child, rng) for child in value)
    return value


def changed(value: Any, rng: random.Random) -> Any:
    """As ``value``, but for one part somewhere in it."""
    if type(value) is dict and value and rng.random() < 0.7:
        key = rng.choice(list(value))
        return {**value, key: changed(value[key], rng)}
    if type(value) in (list, tuple) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return type(value)(changed(child, rng) if i == at else child for i, child in enumerate(value))
    twice = np.arange(6)
    ways = [
        lambda: batch(rng),
        lambda: np.ones((4, 4), "<f4")[:, ::2],
        lambda: np.array([1, "one"], object),
        lambda: np.zeros((1,) * (LAYOUT_DIMS + 1)),
        lambda: [twice, twice],
        lambda: {"a": twice[:4], "b": twice[3:]},
        lambda: {"a": twice[:3], "b": twice[3:], "c": twice[3:3]},
        lambda: {"a": value, "b": value},
        lambda: [[1], [1]],
        lambda: [[], np.ones(1)],
        lambda: [np.ones(i % 3) for i in range(20)],
        lambda: [np.ones(1), *range(20)],
        lambda: Ragged(np.arange(3), np.array([0, 1, 3])),
        lambda: Odd(a=1),
        lambda: collections.OrderedDict(a=np.ones(1)),
        lambda: {1: np.ones(1)},
        lambda: {True: np.ones(1)},
        lambda: {Key("a0"): np.ones(1)},
        lambda: np.float32(1),
        lambda: np.ma.masked_array([1, 2], [True, False]),
        lambda: (
            dict(reversed(value.items())) if type(value) is dict else tuple(value) if type(value) is list else [value]
        ),
    ]
    return rng.choice(ways)()


def filled(planned: Planned) -> bytes:
    place = np.zeros(planned.shape, planned.dtype)
    planned.fill(place)
    return place.tobytes()


def same(got: list[Any], wanted: list[Any]) -> bool:
    """Whether the leaves of two Flatteners are the same."""
    if len(got) != len(wanted):
        return False
    for a, b in zip(got, wanted):
        if type(a) is not type(b):
            return False
        if isinstance(a, Planned):
            if (a.shape, a.dtype, a.form, a.meaning) != (b.shape, b.dtype, b.form, b.meaning) or filled(a) != filled(b):
                return False
        elif isinstance(a, np.ndarray):
            if a.dtype != b.dtype or a.tobytes() != b.tobytes() or a.shape != b.shape:
                return False
        elif repr(a) != repr(b):
            return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_batches_before_do_not_matter(seed: int) -> None:
    rng = random.Random(seed)
    recognised = 0
    for _ in range(60):
        used, value = Flattener(), batch(rng)
        for _ in range(rng.choice([2, 5, 12])):
            value = changed(value, rng) if rng.random() < 0.3 else renewed(value, rng)
            tree, leaves = used.result(value)
            expected_tree, expected = Flattener().result(value)
            assert tree == expected_tree, repr(value)
            assert same(leaves, expected), repr(value)
            recognised += used._plain is not None and used._plain.leaves(value) is not None
    assert recognised > 100  # otherwise this has tested nothing


def test_arrays_of_a_recognised_batch_are_its_own() -> None:
    flattener = Flattener()
    for _ in range(3):
        value = {"ids": np.arange(4), "labels": [1, 2]}
        leaves = flattener.result(value)[1]
        assert leaves[0] is value["ids"]
        assert leaves[1][0] is value["labels"]


def test_equal_keys_of_another_type_make_another_tree() -> None:
    flattener = Flattener()
    for keys in (["a"], [Key("a")], ["a"], [1], [True], [1.0]):
        value = {key: np.ones(1) for key in keys}
        assert flattener.result(value)[0] == Flattener().result(value)[0]


def test_trees_of_other_parts_are_not_recognised() -> None:
    dtype = np.dtype("<i8")
    for structure in [
        ("ragged", ("leaf", 0, None), ("leaf", 1, None)),
        ("dict", dict, None, (1,), [("leaf", 0, None)]),
        ("dict", Odd, None, ("a",), [("leaf", 0, None)]),
        ("list", [("leaf", 0, None)] * 2),  # not in order
        ("list", [("leaf", 0, None), ("leaf", 1, None), ("leaf", 2, None)]),  # more than there are
        ("leaf", 0, None),  # fewer
    ]:
        assert _core.PlainTree.of(structure, [dtype, dtype], lambda value: None) is None, structure


def test_tensors_are_recognised_by_what_they_become() -> None:
    tree = _core.PlainTree.of(
        ("list", [("leaf", 0, "torch"), ("object", 1)]),
        [np.dtype("<i8"), None],
        lambda value: (np.full(2, value), "torch") if isinstance(value, int) else None,
    )
    assert tree is not None
    values: list[Any] = [[7, "one"], ["one", "one"], [np.arange(2), 1]]
    found = [tree.leaves(value) for value in values]
    assert found == [None, None, None]  # plain ones only, or nothing that becomes an array
    leaves = tree.leaves([7, ("one",)])
    assert leaves is not None
    assert leaves[0].tolist() == [7, 7]


def test_what_a_tensor_raises_is_raised() -> None:
    def fails(value: Any) -> Any:
        raise MemoryError

    tree = _core.PlainTree.of(("leaf", 0, "torch"), [np.dtype("<i8")], fails)
    assert tree is not None
    with pytest.raises(MemoryError):
        tree.leaves(1)
