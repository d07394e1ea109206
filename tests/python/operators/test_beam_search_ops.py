"""beam_search and beam_search_decode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.testing import OpTest

END = 0
OUTPUTS: dict[str, Any] = {"selected_ids": None, "selected_scores": None, "parent_idx": None}


def column(*values: float, dtype: Any = np.float64) -> np.ndarray:
    return np.array(values, dtype).reshape(-1, 1)


def step(dtype: Any = np.float64) -> dict[str, Any]:
    """Two sources with two prefixes each."""
    lod = [[2, 2], [1, 1, 1, 1]]
    return {
        "pre_ids": column(1, 2, 3, 4, dtype=np.int64),
        "pre_scores": column(0.1, 0.2, 0.3, 0.4, dtype=dtype),
        "ids": (np.array([[4, 2, 5], [2, 1, 3], [3, 5, 2], [8, 2, 1]]), lod),
        "scores": (np.array([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.9, 0.5, 0.1], [0.7, 0.5, 0.1]], dtype), lod),
    }


@pytest.mark.parametrize("shape", [(4, 1), (4, 1, 1), (1, 4), (4,)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_the_best_candidates_of_each_source_are_selected(dtype: Any, shape: tuple[int, ...]) -> None:
    lod = [[2, 2], [1, 1, 1, 1]]
    outputs = {
        "selected_ids": (column(4, 2, 3, 8, dtype=np.int64), lod),
        "selected_scores": (column(0.5, 0.6, 0.9, 0.7, dtype=dtype), lod),
        "parent_idx": np.array([0, 1, 2, 3], np.int32),
    }
    attrs = {"level": 0, "beam_size": 2, "end_id": END}
    inputs = step(dtype)
    inputs["pre_ids"] = inputs["pre_ids"].reshape(shape)
    if len(shape) < 3:
        inputs["pre_scores"] = inputs["pre_scores"].reshape(shape)
    OpTest("beam_search", inputs, attrs, outputs).check_outputs()


def test_the_lod_may_be_that_of_the_ids_alone() -> None:
    """As programs have it that were written for Fluid 1.2: they reset the LoD of the ids, and add up scores."""
    inputs = step()
    inputs["scores"] = inputs["scores"][0]
    lod = [[2, 2], [1, 1, 1, 1]]
    outputs = {
        "selected_ids": (column(4, 2, 3, 8, dtype=np.int64), lod),
        "selected_scores": (column(0.5, 0.6, 0.9, 0.7), lod),
        "parent_idx": np.array([0, 1, 2, 3], np.int32),
    }
    OpTest("beam_search", inputs, {"beam_size": 2, "end_id": END}, outputs).check_outputs()


def test_one_prefix_may_give_all_candidates() -> None:
    inputs = step()
    inputs["scores"][0][1] = [0.9, 0.8, 0.7]
    lod = [[2, 2], [0, 3, 1, 2]]  # of two candidates with the score 0.5, that of the last prefix is taken
    outputs = {
        "selected_ids": (column(2, 1, 3, 3, 8, 2, dtype=np.int64), lod),
        "selected_scores": (column(0.9, 0.8, 0.7, 0.9, 0.7, 0.5), lod),
        "parent_idx": np.array([1, 1, 1, 2, 3, 3], np.int32),
    }
    OpTest("beam_search", inputs, {"beam_size": 3, "end_id": END}, outputs).check_outputs()


def test_probabilities_are_added_up_in_logarithms() -> None:
    inputs = step()
    del inputs["ids"]  # columns are ids
    scores = inputs["pre_scores"] + np.log(inputs["scores"][0])
    lod = [[2, 2], [1, 1, 1, 1]]
    outputs = {
        "selected_ids": (np.zeros((4, 1), np.int64), lod),
        "selected_scores": (scores[:, :1], lod),
        "parent_idx": np.arange(4, dtype=np.int32),
    }
    attrs = {"beam_size": 2, "end_id": 7, "is_accumulated": False}
    OpTest("beam_search", inputs, attrs, outputs).check_outputs()


def test_what_has_ended_stays_until_all_have() -> None:
    inputs = step()
    inputs["pre_ids"] = column(END, 2, END, END, dtype=np.int64)
    lod = [[2, 2], [1, 1, 0, 0]]  # the second source is done
    outputs = {
        "selected_ids": (column(END, 2, dtype=np.int64), lod),
        "selected_scores": (column(0.4, 0.6), lod),
        "parent_idx": np.array([0, 1], np.int32),
    }
    inputs["pre_scores"][0] = 0.4
    OpTest("beam_search", inputs, {"beam_size": 2, "end_id": END}, outputs).check_outputs()


def test_beam_search_refuses_what_does_not_fit() -> None:
    good, attrs = step(), {"beam_size": 2, "end_id": END}
    cases: list[tuple[dict[str, Any], dict[str, Any], type[Exception], tuple[str, ...], str]] = [
        ({"pre_ids": good["pre_ids"][:3]}, {}, ValueError, ("pre_ids", "1]"), "build"),
        ({"pre_ids": good["pre_ids"].reshape(2, 2, 1)}, {}, ValueError, ("pre_ids", "[4, 1]"), "build"),
        ({"pre_scores": good["pre_scores"].astype(np.float32)}, {}, TypeError, ("pre_scores", "float64"), "build"),
        ({"ids": (good["ids"][0][:, :2], good["ids"][1])}, {}, ValueError, ("ids",), "build"),
        ({}, {"beam_size": 0}, ValueError, ("beam_size",), "build"),
        ({}, {"level": -1}, ValueError, ("level",), "build"),
        ({}, {"level": 2}, ValueError, ("scores", "level"), "build"),
        ({"ids": good["ids"][0], "scores": good["scores"][0]}, {}, ValueError, ("scores", "LoD"), "run"),
    ]
    for change, more, error, parts, when in cases:
        test = OpTest("beam_search", {**good, **change}, {**attrs, **more}, OUTPUTS)
        test.check_refused(error, *parts, when=when)


STEPS: list[tuple[list[int], list[float], list[list[int]]]] = [
    # ids, scores, lengths of the LoD: two sources, of which the first ends a step before the second
    ([1, 2, 5], [0.1, 0.2, 0.5], [[1, 1], [2, 1]]),
    ([3, END, 6, 7], [0.3, 0.9, 0.6, 0.7], [[2, 1], [1, 1, 2]]),
    ([END, END, 8, END], [0.4, 0.9, 0.8, 0.65], [[2, 2], [1, 1, 1, 1]]),
    ([END, END], [1.0, 0.65], [[2, 2], [0, 0, 1, 1]]),
]
SENTENCES = [[[2, END], [1, 3, END]], [[5, 6, 8, END], [5, 7, END]]]
SCORES = [[[0.2, 0.9], [0.1, 0.3, 0.4]], [[0.5, 0.6, 0.8, 1.0], [0.5, 0.7, 0.65]]]


def decode(steps: Any, beam_size: int = 2, dtype: str = "float32") -> list[fluid.LoDTensor]:
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        arrays = [layers.create_array("int64"), layers.create_array(dtype)]
        feed = {}
        for t, (ids, scores, lengths) in enumerate(steps):
            place = layers.fill_constant([1], "int64", t)
            for name, values, kind, array in (("ids", ids, "int64", arrays[0]), ("scores", scores, dtype, arrays[1])):
                value = layers.data(f"{name}{t}", [1], dtype=kind, lod_level=2)
                feed[value.name] = fluid.create_lod_tensor(column(*values, dtype=kind), lengths, fluid.CPUPlace())
                layers.array_write(value, place, array)
        out = layers.beam_search_decode(*arrays, beam_size=beam_size, end_id=END)
        assert fluid.default_main_program().global_block().ops[-1].type == "beam_search_decode"
        return fluid.Executor().run(feed=feed, fetch_list=list(out), return_numpy=False)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_beam_search_decode(dtype: str) -> None:
    ids, scores = decode(STEPS, dtype=dtype)
    lengths = [[len(source) for source in SENTENCES], [len(s) for source in SENTENCES for s in source]]
    for got, expected in ((ids, SENTENCES), (scores, SCORES)):
        assert got.recursive_sequence_lengths() == lengths
        np.testing.assert_allclose(np.array(got), [x for source in expected for s in source for x in s], rtol=1e-6)
    assert ids.dtype() == "int64"
    assert scores.dtype() == dtype


def test_beam_search_decode_refuses_what_does_not_fit() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"beam_size.*source 1|source 1.*step"):
        decode([*STEPS[:3], ([END] * 3, [1.0] * 3, [[2, 2], [0, 0, 1, 2]])])
    with pytest.raises(errors.InvalidArgument, match="expected 2 sources"):
        decode([*STEPS[:3], ([END], [1.0], [[4], [0, 0, 1, 0]])])
    with pytest.raises(errors.InvalidArgument, match="continues row"):
        decode([STEPS[0], STEPS[2]])
    with pytest.raises(errors.TypeMismatch, match="LoDTensorArray"):
        layers.beam_search_decode(layers.data("a", [1], dtype="int64"), layers.data("b", [1]), 2, END)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_sequences_are_followed_back_from_their_ends(dtype: str) -> None:
    ids = np.array([[[2, 2], [6, 1]], [[3, 9], [6, 1]], [[0, 1], [9, 0]]], dtype)
    parents = np.array([[[0, 0], [1, 1]], [[1, 0], [1, 0]], [[0, 0], [0, 1]]], dtype)
    out = np.array([[[2, 2], [1, 6]], [[3, 3], [6, 1]], [[0, 1], [9, 0]]], dtype)
    OpTest("gather_tree", {"Ids": ids, "Parents": parents}, {}, {"Out": out}).check_outputs()


def test_a_beam_that_is_not_there_is_refused() -> None:
    ids = np.zeros((2, 1, 2), np.int64)
    for parent in (2, -1):
        inputs = {"Ids": ids, "Parents": np.full_like(ids, parent)}
        OpTest("gather_tree", inputs, {}).check_refused(IndexError, "input Parents", str(parent), when="run")
    OpTest("gather_tree", {"Ids": ids, "Parents": ids[:1]}, {}).check_refused(ValueError, "input Parents")
    OpTest("gather_tree", {"Ids": ids[0], "Parents": ids[0]}, {}).check_refused(ValueError, "input Ids")
