"""warpctc, against the sum over all ways to read the labels."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(101)
CLASSES = 3
FRAMES = [4, 1, 3, 5]
LABELS = [[1, 1], [], [2], [1, 2, 1]]  # repeated, none, fewer than frames
OUTPUTS: dict[str, Any] = {"Loss": None, "WarpCTCGrad": None}


def read(path: tuple[int, ...], blank: int) -> list[int]:
    merged = [label for label, _ in itertools.groupby(path)]
    return [label for label in merged if label != blank]


def loss(logits: np.ndarray, label: list[int], blank: int) -> float:
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    ways = [path for path in itertools.product(range(CLASSES), repeat=len(p)) if read(path, blank) == label]
    return -float(np.log(sum(np.prod([row[k] for row, k in zip(p, path)]) for path in ways)))


def inputs(labels: list[list[int]], frames: list[int], dtype: Any = np.int64) -> dict[str, Any]:
    flat = np.array([k for label in labels for k in label], dtype).reshape(-1, 1)
    logits = RNG.uniform(-1, 1, (sum(frames), CLASSES))
    return {"Logits": (logits, [frames]), "Label": (flat, [[len(label) for label in labels]])}


@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=str)
@pytest.mark.parametrize("blank", [0, 2])
def test_warpctc(blank: int, dtype: Any) -> None:
    labels = [[k if blank == 0 else k - 1 for k in label] for label in LABELS]
    given = inputs(labels, FRAMES, dtype)
    parts = np.split(given["Logits"][0], np.cumsum(FRAMES)[:-1])
    expected = np.array([[loss(part, label, blank)] for part, label in zip(parts, labels)])
    test = OpTest("warpctc", given, {"blank": blank}, {"Loss": expected, "WarpCTCGrad": None})
    test.check_outputs()
    test.check_gradients(["Logits"], ["Loss"])


def padded(labels: list[list[int]], frames: list[int]) -> dict[str, Any]:
    """The same kind of batch, [frames, N, classes] and [N, labels], with numbers that nobody must look at between."""
    logits = RNG.uniform(-1, 1, (max(frames) + 1, len(frames), CLASSES))
    for s, n in enumerate(frames):
        logits[n:, s] = np.nan
    label = np.full((len(labels), max(map(len, labels)) + 1), -7)
    for s, row in enumerate(labels):
        label[s, : len(row)] = row
    lengths = {"LogitsLength": np.array(frames), "LabelLength": np.array([len(row) for row in labels])}
    return {"Logits": logits, "Label": label, **lengths}


def test_padded_sequences_give_what_those_with_lod_give() -> None:
    given = padded(LABELS, FRAMES)
    logits = given["Logits"]
    rows = [logits[:n, s] for s, n in enumerate(FRAMES)]
    expected = np.array([[loss(row, label, 0)] for row, label in zip(rows, LABELS)])
    test = OpTest("warpctc", given, {"norm_by_times": True}, {"Loss": expected, "WarpCTCGrad": None})
    test.check_outputs()
    column = np.array([[k] for label in LABELS for k in label])
    OpTest("warpctc", {**given, "Label": column}, {}, {"Loss": expected, "WarpCTCGrad": None}).check_outputs()
    packed = {
        "Logits": (np.concatenate(rows), [FRAMES]),
        "Label": (np.array([[k] for label in LABELS for k in label]), [[len(label) for label in LABELS]]),
    }
    finite = np.nan_to_num(logits)
    gradient = OpTest("warpctc", {**given, "Logits": finite}, {"norm_by_times": True}, OUTPUTS).gradients(
        ["Logits"], ["Loss"]
    )["Logits_0"]
    wanted = OpTest("warpctc", packed, {"norm_by_times": True}, OUTPUTS).gradients(["Logits"], ["Loss"])["Logits_0"]
    for s, part in enumerate(np.split(wanted, np.cumsum(FRAMES)[:-1])):
        np.testing.assert_allclose(gradient[: FRAMES[s], s], part, rtol=1e-12)
        assert not gradient[FRAMES[s] :, s].any()
    OpTest("warpctc", {**given, "Logits": finite}, {}, OUTPUTS).check_gradients(["Logits"], ["Loss"])


def test_warpctc_refuses_lengths_that_do_not_fit() -> None:
    good = padded([[1], [2, 1]], [2, 4])
    run_cases = [
        ({"LogitsLength": np.array([2, 6])}, ("LogitsLength", "sequence 1", "6", "[0, 5]")),
        ({"LogitsLength": np.array([-1, 4])}, ("LogitsLength", "sequence 0", "-1")),
        ({"LabelLength": np.array([1, 4])}, ("LabelLength", "sequence 1", "4", "[0, 3]")),
        ({"LabelLength": np.array([2, 2])}, ("Label", "sequence 0, label 1", "-7")),
        ({"Label": np.array([[1], [7], [1]])}, ("Label", "row 1", "7")),
    ]
    for change, parts in run_cases:
        OpTest("warpctc", {**good, **change}, {}, OUTPUTS).check_refused(IndexError, *parts, when="run")
    lengths = {"Label": np.array([[1], [2]])}  # of three
    OpTest("warpctc", {**good, **lengths}, {}, OUTPUTS).check_refused(IndexError, "LabelLength", when="run")
    lengths = {"Label": np.array([[1]])}
    OpTest("warpctc", {**good, **lengths}, {}, OUTPUTS).check_refused(ValueError, "Label", "[1, 1]", when="run")
    build_cases: list[tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = [
        ({"LogitsLength": np.array([2])}, ValueError, ("LogitsLength", "[2]")),
        ({"LabelLength": np.array([1, 2], np.int32)}, TypeError, ("LabelLength", "int64")),
        ({"Label": np.array([[1, 2]])}, ValueError, ("Label",)),
        ({"Logits": good["Logits"][0]}, ValueError, ("Logits", "3")),
    ]
    for change, error, parts in build_cases:
        OpTest("warpctc", {**good, **change}, {}, OUTPUTS).check_refused(error, *parts)
    without = {slot: value for slot, value in good.items() if slot != "LabelLength"}
    OpTest("warpctc", without, {}, OUTPUTS).check_refused(ValueError, "both or none")


def test_too_few_frames_are_no_loss() -> None:
    given = inputs([[1, 1], [1, 2], [2]], [2, 0, 1])  # equal labels need a blank between them
    outputs = OpTest("warpctc", given, {}, OUTPUTS).run()
    loss_of = np.asarray(outputs["Loss"][0])[:, 0]
    assert loss_of[:2].tolist() == [0.0, 0.0]
    assert loss_of[2] > 0
    assert not np.asarray(outputs["WarpCTCGrad"][0])[:2].any()


def test_large_logits_do_not_overflow() -> None:
    given = inputs([[1, 2]], [4])
    given["Logits"] = (1000 * given["Logits"][0], [[4]])
    outputs = OpTest("warpctc", given, {}, OUTPUTS).run()
    assert all(np.isfinite(np.asarray(output[0])).all() for output in outputs.values())


def test_norm_by_times_divides_the_gradient_alone() -> None:
    given = inputs([[1], [2]], [2, 4])
    losses, gradients = [], []
    for norm in (False, True):
        test = OpTest("warpctc", given, {"norm_by_times": norm}, OUTPUTS)
        losses.append(np.asarray(test.run()["Loss"][0]))
        gradients.append(test.gradients(["Logits"], ["Loss"])["Logits_0"])
    np.testing.assert_array_equal(losses[0], losses[1])
    np.testing.assert_allclose(gradients[0], gradients[1] * np.repeat([2.0, 4.0], [2, 4])[:, None])


def test_warpctc_refuses_what_does_not_fit() -> None:
    good = inputs([[1], [2]], [2, 4])
    OpTest("warpctc", good, {"blank": 3}, OUTPUTS).check_refused(ValueError, "blank")
    cases: list[tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = [
        ({"Label": (np.array([[1], [0]]), [[1, 1]])}, IndexError, ("Label", "row 1", "blank")),
        ({"Label": (np.array([[1], [3]]), [[1, 1]])}, IndexError, ("Label", "[0, 3)")),
        ({"Label": (np.array([[1], [2]]), [[2]])}, ValueError, ("Label", "2 sequences")),
        ({"Label": np.array([[1], [2]])}, ValueError, ("Label", "LoD")),
        ({"Logits": good["Logits"][0]}, ValueError, ("Logits", "LoD")),
    ]
    for change, error, parts in cases:
        OpTest("warpctc", {**good, **change}, {}, OUTPUTS).check_refused(error, *parts, when="run")
    floats = {**good, "Label": (np.array([[1.0], [2.0]]), [[1, 1]])}
    OpTest("warpctc", floats, {}, OUTPUTS).check_refused(TypeError, "Label", "int64")
