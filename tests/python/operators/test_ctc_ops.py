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
