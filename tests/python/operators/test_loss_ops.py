"""Losses, soft labels, prelu."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(13)
A, B = RNG.uniform(-2, 2, (4, 3)), RNG.uniform(-2, 2, (4, 3))
P = RNG.uniform(0.1, 0.9, (4, 3))
ZERO_ONE = RNG.integers(0, 2, (4, 3)).astype(float)
SIGN = 2 * ZERO_ONE - 1


def huber(r: np.ndarray, delta: float) -> np.ndarray:
    return np.where(np.abs(r) <= delta, r * r / 2, delta * (np.abs(r) - delta / 2))


def modified_huber(m: np.ndarray) -> np.ndarray:
    return np.where(m < -1, -4 * m, np.where(m < 1, (1 - m) ** 2, 0))


#: type, inputs, attributes, outputs, slots to differentiate by, slot of the loss.
LOSSES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], list[str], str]] = [
    ("minus", {"X": A, "Y": B}, {}, {"Out": A - B}, ["X", "Y"], "Out"),
    (
        "log_loss",
        {"Predicted": P, "Labels": ZERO_ONE},
        {"epsilon": 1e-3},
        {"Loss": -ZERO_ONE * np.log(P + 1e-3) - (1 - ZERO_ONE) * np.log(1 - P + 1e-3)},
        ["Predicted"],
        "Loss",
    ),
    (
        "hinge_loss",
        {"Logits": A, "Labels": ZERO_ONE},
        {},
        {"Loss": np.maximum(0, 1 - SIGN * A)},
        ["Logits"],
        "Loss",
    ),
    (
        "huber_loss",
        {"X": A, "Y": B},
        {"delta": 0.7},
        {"Out": huber(B - A, 0.7), "Residual": B - A},
        ["X", "Y"],
        "Out",
    ),
    (
        "modified_huber_loss",
        {"X": A, "Y": ZERO_ONE},
        {},
        {"Out": modified_huber(SIGN * A), "IntermediateVal": SIGN * A},
        ["X"],
        "Out",
    ),
    (
        "rank_loss",
        {"Label": ZERO_ONE, "Left": A, "Right": B},
        {},
        {"Out": np.log1p(np.exp(A - B)) - ZERO_ONE * (A - B)},
        ["Left", "Right"],
        "Out",
    ),
    (
        "margin_rank_loss",
        {"X1": A, "X2": B, "Label": SIGN},
        {"margin": 0.3},
        {
            "Out": np.maximum(0, 0.3 - SIGN * (A - B)),
            "Activated": (0.3 - SIGN * (A - B) > 0).astype(float),
        },
        ["X1", "X2"],
        "Out",
    ),
]


@pytest.mark.parametrize("case", LOSSES, ids=lambda case: case[0])
def test_values_and_derivatives(case: tuple[Any, ...]) -> None:
    op_type, inputs, attrs, outputs, by, loss = case
    test = OpTest(op_type, inputs, attrs, outputs)
    test.check_outputs()
    test.check_gradients(by, [loss])


@pytest.mark.parametrize("case", LOSSES, ids=lambda case: case[0])
def test_what_does_not_fit_is_refused(case: tuple[Any, ...]) -> None:
    op_type, inputs, attrs, outputs, _, _ = case
    nothing_expected = dict.fromkeys(outputs)
    last = list(inputs)[-1]
    OpTest(op_type, {**inputs, last: A[:2]}, attrs, nothing_expected).check_refused(ValueError, last, "[4, 3]")
    narrow = {**inputs, last: inputs[last].astype(np.float32)}
    OpTest(op_type, narrow, attrs, nothing_expected).check_refused(TypeError, last, "float64")


def test_rank_loss_of_columns_and_vectors() -> None:
    label, left, right = np.array([0.0, 1.0, 1.0]), RNG.uniform(-1, 1, 3), RNG.uniform(-1, 1, 3)
    loss = np.log1p(np.exp(left - right)) - label * (left - right)
    for inputs in (
        {"Label": label, "Left": left, "Right": right[:, None]},
        {"Label": label[:, None], "Left": left[:, None], "Right": right},
    ):
        test = OpTest("rank_loss", inputs, outputs={"Out": loss.reshape(inputs["Label"].shape)})
        test.check_outputs()
        test.check_gradients(["Left", "Right"])
    OpTest("rank_loss", {"Label": label, "Left": left, "Right": right[:2, None]}).check_refused(ValueError, "Right")


def test_rank_loss_does_not_overflow() -> None:
    left = np.array([[1000.0], [-1000.0]])
    inputs = {"Label": np.array([[1.0], [0.0]]), "Left": left, "Right": np.zeros((2, 1))}
    OpTest("rank_loss", inputs, outputs={"Out": np.zeros((2, 1))}).check_outputs()


def test_label_smooth() -> None:
    labels = np.eye(3)[[0, 2]]
    test = OpTest("label_smooth", {"X": labels}, {"epsilon": 0.1}, {"Out": 0.9 * labels + 0.1 / 3})
    test.check_outputs()
    test.check_gradients(["X"])
    prior = np.array([[0.5, 0.25, 0.25]])
    inputs = {"X": labels, "PriorDist": prior}
    OpTest("label_smooth", inputs, {"epsilon": 0.2}, {"Out": 0.8 * labels + 0.2 * prior}).check_outputs()
    OpTest("label_smooth", {"X": labels}, {"epsilon": 1.5}).check_refused(ValueError, "epsilon")
    bad = OpTest("label_smooth", {"X": labels, "PriorDist": prior[:, :2]}, {"epsilon": 0.2})
    bad.check_refused(ValueError, "PriorDist", "[1, 3]")


@pytest.mark.parametrize(
    ("mode", "alpha"),
    [("all", [[0.3]]), ("channel", [[0.1, 0.2, 0.3]]), ("element", RNG.uniform(0.1, 0.5, (1, 3, 2)))],
    ids=["all", "channel", "element"],
)
def test_prelu(mode: str, alpha: Any) -> None:
    x = RNG.uniform(-1, 1, (2, 3, 2))
    slopes = np.asarray(alpha)
    shaped = slopes.reshape(1, 3, 1) if mode == "channel" else slopes
    test = OpTest("prelu", {"X": x, "Alpha": slopes}, {"mode": mode}, {"Out": np.where(x > 0, x, shaped * x)})
    test.check_outputs()
    test.check_gradients(["X", "Alpha"])
    wrong = np.ones((1, 7))
    OpTest("prelu", {"X": x, "Alpha": wrong}, {"mode": mode}).check_refused(ValueError, "Alpha", mode)


@pytest.mark.parametrize("sigma", [1.0, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_smooth_l1_loss(weighted: bool, sigma: float) -> None:
    x, y = RNG.uniform(-2, 2, (3, 2, 2)), RNG.uniform(-2, 2, (3, 2, 2))
    inside, outside = RNG.uniform(0.5, 1.5, x.shape), RNG.uniform(0.5, 1.5, x.shape)
    inputs = {"X": x, "Y": y}
    if weighted:
        inputs |= {"InsideWeight": inside, "OutsideWeight": outside}
    else:
        inside = outside = np.ones(x.shape)
    d = inside * (x - y)
    loss = np.where(np.abs(d) < 1 / sigma**2, (sigma * d) ** 2 / 2, np.abs(d) - 0.5 / sigma**2)
    expected = (outside * loss).reshape(3, -1).sum(1, keepdims=True)
    test = OpTest("smooth_l1_loss", inputs, {"sigma": sigma}, {"Diff": d, "Out": expected})
    test.check_outputs()
    test.check_gradients(["X", "Y"], ["Out"], tolerance=1e-5)
    OpTest("smooth_l1_loss", {**inputs, "Y": y[:2]}, {}, {"Diff": None, "Out": None}).check_refused(ValueError, "Y")


TARGET = np.array([[0.5, 0.5, 0.0], [0.2, 0.0, 0.8], [0.1, -1.0, 0.9], [1.0, 0.25, 0.25]])
KLDIV = np.where(TARGET > 0, TARGET * (np.log(np.where(TARGET > 0, TARGET, 1)) - A), 0)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("none", KLDIV), ("sum", [KLDIV.sum()]), ("mean", [KLDIV.mean()]), ("batchmean", [KLDIV.sum() / 4])],
)
def test_kldiv_loss(reduction: str, expected: Any) -> None:
    attrs = {} if reduction == "mean" else {"reduction": reduction}
    test = OpTest("kldiv_loss", {"X": A, "Target": TARGET}, attrs, {"Loss": np.asarray(expected)})
    test.check_outputs()
    test.check_gradients(["X"])


def test_kldiv_loss_refuses_what_does_not_fit() -> None:
    OpTest("kldiv_loss", {"X": A, "Target": A[:2]}, {}, {"Loss": None}).check_refused(ValueError, "Target", "[2, 3]")
    mixed = {"X": A, "Target": A.astype(np.float32)}
    OpTest("kldiv_loss", mixed, {}, {"Loss": None}).check_refused(TypeError, "Target", "float32")
    OpTest("kldiv_loss", {"X": A, "Target": A}, {"reduction": "max"}, {"Loss": None}).check_refused(
        ValueError, "reduction", "'max'"
    )


@pytest.mark.parametrize("rows", [1, 4])
def test_squared_l2_distance(rows: int) -> None:
    x, y = RNG.uniform(-2, 2, (4, 3, 2)), RNG.uniform(-2, 2, (rows, 3, 2))
    difference = (x - y).reshape(4, 6)
    outputs = {"Out": ((difference**2).sum(1, keepdims=True), [[1, 3]]), "sub_result": difference}
    test = OpTest("squared_l2_distance", {"X": (x, [[1, 3]]), "Y": y}, {}, outputs, known=["Y"])
    test.check_outputs()
    test.check_gradients(["X", "Y"], ["Out"])
    nothing = {"Out": np.zeros((4, 1)), "sub_result": np.zeros((4, 0))}
    OpTest("squared_l2_distance", {"X": x[:, :0], "Y": y[:, :0]}, {}, nothing).check_outputs()
    other = {"X": x, "Y": RNG.uniform(-2, 2, (2, 3, 2))}
    OpTest("squared_l2_distance", other, {}, dict.fromkeys(outputs)).check_refused(ValueError, "input Y", "1 or 4 rows")
