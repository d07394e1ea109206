"""softmax and the losses over classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(23)


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    exp = np.exp(x - x.max(axis, keepdims=True))
    return exp / exp.sum(axis, keepdims=True)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((4,), -1),
        ((2, 3), -1),
        ((2, 1), -1),
        ((0, 3), -1),
        ((2, 2, 3), 2),
        ((3, 4), 0),
        ((2, 3, 2, 2), 1),
        ((2, 3, 4), -2),
        ((2, 0, 3), 0),
        ((3, 1), 0),
    ],
    ids=str,
)
def test_softmax_and_its_logarithm(shape: tuple[int, ...], axis: int) -> None:
    x = RNG.uniform(-2, 2, shape)
    for op_type, expected in (
        ("softmax", softmax(x, axis) if x.size else x),
        ("log_softmax", np.log(softmax(x, axis)) if x.size else x),
    ):
        test = OpTest(op_type, {"X": x}, {"axis": axis}, {"Out": expected})
        test.check_outputs()
        test.check_gradients(["X"])


@pytest.mark.parametrize("axis", [1, 0])
@pytest.mark.parametrize("cols", [15, 16, 17, 511, 513, 1100])
def test_softmax_of_many_columns(cols: int, axis: int) -> None:
    """The largest is in another place in each row, far above the others."""

    def check(op_type: str, inputs: dict[str, np.ndarray], slot: str, out: np.ndarray) -> None:
        given = {name: rows if axis else np.ascontiguousarray(rows.T) for name, rows in inputs.items()}
        OpTest(op_type, given, {"axis": axis}, {slot: out if axis else out.T}).check_outputs()

    x = RNG.uniform(-2, 2, (cols, cols)) + 300 * np.eye(cols)
    x[:, 0] -= 1000
    p = softmax(x)
    check("softmax", {"X": x}, "Out", p)
    log_p = x - x.max(1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(1, keepdims=True))
    check("log_softmax", {"X": x}, "Out", log_p)
    d = RNG.uniform(-1, 1, x.shape)
    grad = d - p * d.sum(1, keepdims=True)
    check("log_softmax_grad", {"Out": log_p, "Out@GRAD": d}, "X@GRAD", grad)
    check("softmax_grad", {"Out": p, "Out@GRAD": d}, "X@GRAD", p * (d - (p * d).sum(1, keepdims=True)))


def test_softmax_does_not_overflow() -> None:
    x = np.array([[1000.0, 0.0], [-1000.0, -1000.0]])
    p = np.array([[1.0, 0.0], [0.5, 0.5]])
    log_p = np.array([[0.0, -1000.0], [np.log(0.5)] * 2])
    OpTest("softmax", {"X": x}, outputs={"Out": p}).check_outputs()
    OpTest("softmax", {"X": x.T}, {"axis": 0}, {"Out": p.T}).check_outputs()
    OpTest("log_softmax", {"X": x}, outputs={"Out": log_p}).check_outputs()
    OpTest("log_softmax", {"X": x.T}, {"axis": 0}, {"Out": log_p.T}).check_outputs()


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_probability_of_softmax_is_zero_but_that_of_a_mask(dtype: Any, axis: int) -> None:
    """As in Fluid: the gradient of cross_entropy, which divides by them, survives logits that are far apart."""
    x = np.array([[0, 90], [0, 1e30], [0, -np.inf], [0, 50]], dtype)
    apart = np.array([[-64, 0], [-64, 0], [0, -np.inf], [-50, 0]], dtype)
    expected = np.exp(apart) / np.exp(apart).sum(1, keepdims=True)
    given, expected = (x, expected) if axis == 1 else (np.ascontiguousarray(x.T), np.ascontiguousarray(expected.T))
    OpTest("softmax", {"X": given}, {"axis": axis}, {"Out": expected}).check_outputs(rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(4, 3), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropies(shape: tuple[int, ...], soft: bool) -> None:
    logits = RNG.uniform(-2, 2, shape)
    p = softmax(logits)
    attrs: dict[str, Any] = {"soft_label": soft}
    if soft:
        label = softmax(RNG.uniform(-1, 1, shape))
        loss = -(label * np.log(p)).sum(-1, keepdims=True)
    else:
        label = RNG.integers(0, 3, (*shape[:-1], 1))
        label.flat[0] = 1
        attrs["ignore_index"] = 1
        loss = np.where(label == 1, 0.0, -np.log(np.take_along_axis(p, label, -1)))
    plain = OpTest("cross_entropy", {"X": p, "Label": label}, attrs, {"Y": loss})
    plain.check_outputs()
    plain.check_gradients(["X"], tolerance=1e-5)
    inputs = {"Logits": logits, "Label": label}
    combined = OpTest("softmax_with_cross_entropy", inputs, attrs, {"Softmax": p, "Loss": loss})
    combined.check_outputs()
    combined.check_gradients(["Logits"], ["Loss"])
    combined.check_gradients(["Logits"], ["Softmax", "Loss"])


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 4), 1), ((3, 2), 0), ((2, 3, 2, 2), -3), ((0, 3, 2), 1)], ids=str)
@pytest.mark.parametrize("soft", [False, True])
def test_softmax_with_cross_entropy_along_an_axis(shape: tuple[int, ...], axis: int, soft: bool) -> None:
    logits = RNG.uniform(-2, 2, shape)
    p = softmax(logits, axis) if logits.size else logits
    classes = shape[axis]
    attrs: dict[str, Any] = {"soft_label": soft, "axis": axis}
    if soft:
        label = RNG.uniform(0, 1, shape)
        loss = -(label * np.log(p)).sum(axis, keepdims=True)
    else:
        per_vector = list(shape)
        per_vector[axis] = 1
        label = RNG.integers(0, classes, per_vector)
        attrs["ignore_index"] = 1
        loss = np.where(label == 1, 0.0, -np.log(np.take_along_axis(p, label, axis)))
    inputs = {"Logits": logits, "Label": label}
    test = OpTest("softmax_with_cross_entropy", inputs, attrs, {"Softmax": p, "Loss": loss})
    test.check_outputs()
    test.check_gradients(["Logits"], ["Loss"])
    test.check_gradients(["Logits"], ["Softmax", "Loss"])
    wrong = OpTest("softmax_with_cross_entropy", inputs, {**attrs, "axis": 4}, {"Softmax": None, "Loss": None})
    wrong.check_refused(ValueError, "axis", "4")


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("of", [-np.inf, np.inf, np.nan])
def test_ignored_rows_have_no_loss_whatever_their_logits(of: float, axis: int) -> None:
    logits = np.array([[1.0, 2.0, 3.0], [of] * 3, [0.5, 0.25, of], [-1.0, 2.0, 0.0]])
    label = np.array([[0], [-1], [-1], [2]])
    loss = np.array([[-np.log(softmax(logits[:1])[0, 0])], [0.0], [0.0], [-np.log(softmax(logits[3:])[0, 2])]])
    one_hot = np.zeros((4, 3))
    one_hot[0, 0] = one_hot[3, 2] = 1
    gradient = np.zeros((4, 3))
    gradient[[0, 3]] = softmax(logits[[0, 3]]) - one_hot[[0, 3]]
    if axis == 0:
        logits, label, loss, gradient = logits.T, label.T, loss.T, gradient.T
    attrs = {"ignore_index": -1, "axis": axis}
    test = OpTest(
        "softmax_with_cross_entropy", {"Logits": logits, "Label": label}, attrs, {"Softmax": None, "Loss": loss}
    )
    test.check_outputs()
    (probabilities,) = test.run()["Softmax"]
    given = {"Softmax": np.asarray(probabilities), "Label": label, "Loss@GRAD": np.ones_like(loss)}
    OpTest("softmax_with_cross_entropy_grad", given, attrs, {"Logits@GRAD": gradient}).check_outputs()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cols", [2, 10, 31, 32, 40, 1000])
def test_the_softmax_of_the_loss_has_the_bits_of_softmax(cols: int, dtype: Any) -> None:
    logits = RNG.normal(0, 3, (64, cols)).astype(dtype)
    label = np.zeros((64, 1), np.int64)
    both = OpTest(
        "softmax_with_cross_entropy", {"Logits": logits, "Label": label}, outputs={"Softmax": None, "Loss": None}
    )
    alone = OpTest("softmax", {"X": logits}, outputs={"Out": None})
    (of_loss,), (expected,) = both.run(dtype)["Softmax"], alone.run(dtype)["Out"]
    np.testing.assert_array_equal(np.asarray(of_loss), np.asarray(expected))


def test_a_softmax_along_the_rows_leaves_no_sequences() -> None:
    logits = (RNG.uniform(-1, 1, (3, 2)), [[1, 2]])
    outputs = {"Softmax": (softmax(logits[0], 0), [[1, 2]]), "Loss": -np.log(softmax(logits[0], 0)[:1])}
    inputs = {"Logits": logits, "Label": np.zeros((1, 2), np.int64)}
    OpTest("softmax_with_cross_entropy", inputs, {"axis": 0}, outputs).check_outputs()


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4)], ids=str)
def test_cross_entropy_of_labels_without_the_last_dimension(shape: tuple[int, ...]) -> None:
    p = softmax(RNG.uniform(-2, 2, shape), -1)
    label = RNG.integers(0, shape[-1], shape[:-1])
    loss = -np.log(np.take_along_axis(p, label[..., None], -1))[..., 0]
    test = OpTest("cross_entropy", {"X": p, "Label": label}, {}, {"Y": loss})
    test.check_outputs()
    test.check_gradients(["X"], tolerance=1e-5)
    wrong = OpTest("cross_entropy", {"X": p, "Label": label[:1]}, {}, {"Y": None})
    wrong.check_refused(ValueError, "Label", str(list(shape[:-1])))


@pytest.mark.parametrize("shape", [(4, 3), (1, 2), (0, 3)], ids=str)
def test_bpr_loss(shape: tuple[int, int]) -> None:
    x = RNG.uniform(-2, 2, shape)
    label = RNG.integers(0, shape[1], (shape[0], 1))
    behind = np.log1p(np.exp(x - np.take_along_axis(x, label, 1)))
    np.put_along_axis(behind, label, 0, 1)
    test = OpTest("bpr_loss", {"X": x, "Label": label}, {}, {"Y": behind.sum(1, keepdims=True) / (shape[1] - 1)})
    test.check_outputs()
    test.check_gradients(["X"])


def test_bpr_loss_of_large_scores_and_what_it_refuses() -> None:
    far = {"X": np.array([[1000.0, 0.0]]), "Label": np.array([[1]])}
    OpTest("bpr_loss", far, {}, {"Y": np.array([[1000.0]])}).check_outputs()
    OpTest("bpr_loss", {**far, "Label": np.array([[2]])}, {}, {"Y": None}).check_refused(
        IndexError, "Label", "row 0", "[0, 2)", when="run"
    )
    OpTest("bpr_loss", {**far, "X": np.ones((1, 1))}, {}, {"Y": None}).check_refused(ValueError, "X", "two classes")
    OpTest("bpr_loss", {**far, "Label": np.array([1])}, {}, {"Y": None}).check_refused(ValueError, "Label", ", 1]")


def test_labels_that_are_no_class_are_refused() -> None:
    p = softmax(RNG.uniform(-2, 2, (2, 3)))
    for op_type, slot, out in (("cross_entropy", "X", "Y"), ("softmax_with_cross_entropy", "Logits", "Loss")):
        outputs = {out: None} if out == "Y" else {"Softmax": None, "Loss": None}
        for bad in (-1, 3):
            test = OpTest(op_type, {slot: p, "Label": np.array([[0], [bad]])}, {}, outputs)
            test.check_refused(IndexError, "Label", "row 1", "[0, 3)", when="run")
        OpTest(op_type, {slot: p, "Label": np.array([[0]])}, {}, outputs).check_refused(ValueError, "Label", "[2, 1]")
        soft = OpTest(op_type, {slot: p, "Label": p[:, :2]}, {"soft_label": True}, outputs)
        soft.check_refused(ValueError, "Label", "[2, 3]")


@pytest.mark.parametrize("normalize", [False, True])
def test_sigmoid_cross_entropy(normalize: bool) -> None:
    x, label = RNG.uniform(-3, 3, (3, 2)), RNG.uniform(0, 1, (3, 2))
    label[1, 0] = -100
    counted = label != -100
    loss = np.where(counted, np.maximum(x, 0) - x * label + np.log1p(np.exp(-np.abs(x))), 0)
    loss = loss / counted.sum() if normalize else loss
    attrs = {"normalize": normalize}
    test = OpTest("sigmoid_cross_entropy_with_logits", {"X": x, "Label": label}, attrs, {"Out": loss})
    test.check_outputs()
    test.check_gradients(["X"])


def test_square_error_cost() -> None:
    x, y = RNG.uniform(-1, 1, (3, 2)), RNG.uniform(-1, 1, (3, 2))
    test = OpTest("square_error_cost", {"X": x, "Y": y}, outputs={"Out": (x - y) ** 2})
    test.check_outputs()
    test.check_gradients(["X", "Y"])
    OpTest("square_error_cost", {"X": x, "Y": y[:1]}).check_refused(ValueError, "Y", "[3, 2]")


def test_top_k_and_accuracy() -> None:
    x = RNG.permutation(12).reshape(3, 4) / 12.0
    order = np.argsort(-x, 1)[:, :2]
    values = np.take_along_axis(x, order, 1)
    test = OpTest("top_k", {"X": x}, {"k": 2}, {"Out": values, "Indices": order})
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])
    OpTest("top_k", {"X": x}, {"k": 5}, {"Out": None, "Indices": None}).check_refused(ValueError, "k", "[3, 4]")
    label = np.array([[order[0, 1]], [order[1, 0]], [np.argmin(x[2])]])
    expected = {
        "Accuracy": np.array([2 / 3], np.float32),
        "Correct": np.array([2], np.int32),
        "Total": np.array([3], np.int32),
    }
    inputs = {"Out": values.astype(np.float32), "Indices": order, "Label": label}
    OpTest("accuracy", inputs, outputs=expected).check_outputs()


@pytest.mark.parametrize("column", [True, False])
def test_cross_entropy2(column: bool) -> None:
    x = softmax(RNG.uniform(-2, 2, (2, 3, 4)))
    label = np.array([[0, 3, 2], [1, 2, 2]])
    match = np.take_along_axis(x, label[..., None], -1)
    match[label == 2] = 0
    loss = np.where(label[..., None] == 2, 0, -np.log(np.where(match == 0, 1, match)))
    given = {"X": x, "Label": label[..., None] if column else label}
    outputs = {"Y": loss if column else loss[..., 0], "MatchX": match, "XShape": np.zeros((2, 3, 4, 0))}
    test = OpTest("cross_entropy2", given, {"ignore_index": 2}, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Y"])


def test_cross_entropy2_refuses_other_labels() -> None:
    x, label = softmax(RNG.uniform(-2, 2, (3, 4))), np.array([[0], [4], [1]])
    outputs = {"Y": None, "MatchX": None, "XShape": None}

    def refused(given: dict[str, Any], error: type[Exception], *parts: str, when: str = "build") -> None:
        OpTest("cross_entropy2", given, {}, outputs).check_refused(error, *parts, when=when)

    refused({"X": x, "Label": label}, IndexError, "input Label: row 1 has class 4", "[0, 4)", when="run")
    refused({"X": x, "Label": label[:2]}, ValueError, "input Label", "[3, 1]", "[2, 1]")
    refused({"X": x, "Label": label.astype(np.float64)}, TypeError, "input Label", "int64", "float64")
    refused({"X": x[0], "Label": label}, ValueError, "input X", "rank")


@pytest.mark.parametrize("bounds", [{}, {"soft_max_up_bound": 2.0, "soft_max_lower_bound": -0.5}], ids=str)
def test_teacher_student_sigmoid_loss(bounds: dict[str, float]) -> None:
    x = np.array([0.3, -0.7, 1.2, 0.4, -0.2, 3.0, 20.0, -1000.0])[:, None]
    label = np.array([-2.0, -1.0, 0.3, 1.6, 0.0, 2.0, 0.5, -1.0])[:, None]
    click = (label >= 1) | (label == -1)
    taught = np.where(label >= 0, label - (label >= 1), 0)
    loss = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    expected = loss - x * click + (label >= 0) * (loss - x * taught)
    inputs = {"X": (x, [[3, 5]]), "Label": label}
    test = OpTest("teacher_student_sigmoid_loss", inputs, bounds, {"Y": (expected, [[3, 5]])})
    test.check_outputs()
    most, least = bounds.get("soft_max_up_bound", 15.0), bounds.get("soft_max_lower_bound", -15.0)
    with np.errstate(over="ignore"):
        p = 1 / (1 + np.exp(-x))
    slope = np.where((least < x) & (x < most), p - click + (label >= 0) * (p - taught), 0)
    gradient = {"X": x, "Label": label, "Y@GRAD": np.full_like(x, 2.0)}
    OpTest("teacher_student_sigmoid_loss_grad", gradient, bounds, {"X@GRAD": 2 * slope}).check_outputs()


def test_teacher_student_sigmoid_loss_refuses_what_does_not_fit() -> None:
    x = np.ones((3, 1))
    for inputs, error, part in (
        ({"X": np.ones((3, 2)), "Label": x}, ValueError, "input X"),
        ({"X": np.ones(3), "Label": x}, ValueError, "input X"),
        ({"X": x, "Label": x[:2]}, ValueError, "input Label"),
        ({"X": x, "Label": x.astype(np.float32)}, TypeError, "input Label"),
    ):
        OpTest("teacher_student_sigmoid_loss", inputs, {}, {"Y": None}).check_refused(error, part)


@pytest.mark.parametrize(
    "attrs", [{"need_update": True}, {"need_update": False}, {"need_update": True, "is_test": True}]
)
@pytest.mark.parametrize("column", [True, False])
def test_center_loss(column: bool, attrs: dict[str, bool]) -> None:
    x, centers, classes = RNG.normal(size=(5, 3)), RNG.normal(size=(4, 3)), np.array([0, 2, 0, 0, 3])
    differences = x - centers[classes]
    moved = centers.copy()
    for c in range(4) if attrs == {"need_update": True} else ():
        rows = differences[classes == c]
        moved[c] += 0.25 * rows.sum(0) / (1 + len(rows))
    outputs = {
        "Loss": ((differences**2).sum(1, keepdims=True) / 2, [[2, 3]]),
        "SampleCenterDiff": differences,
        "CentersOut": moved,
    }
    inputs = {"X": (x, [[2, 3]]), "Label": classes[:, None] if column else classes, "Centers": centers}
    for rate in (np.array([0.25]), np.array([0.25], np.float32)):
        given = {**inputs, "CenterUpdateRate": rate}
        test = OpTest("center_loss", given, {"cluster_num": 4, **attrs}, outputs, known=["Centers"])
        test.check_outputs()
    if "is_test" not in attrs:
        test.check_gradients(["X"], ["Loss"])


def test_center_loss_refuses_what_does_not_fit() -> None:
    good = {
        "X": np.ones((2, 3)),
        "Label": np.array([[0], [1]]),
        "Centers": np.ones((2, 3)),
        "CenterUpdateRate": np.array([0.5]),
    }
    outputs: dict[str, Any] = dict.fromkeys(["Loss", "SampleCenterDiff", "CentersOut"])
    attrs = {"cluster_num": 2, "need_update": True}
    for slot, value, error, parts in (
        ("Centers", np.ones((3, 3)), ValueError, ["[2, 3]", "[3, 3]"]),
        ("Centers", np.ones((2, 3), np.float32), TypeError, ["float64"]),
        ("Label", np.zeros((2, 1), np.int32), TypeError, ["int64"]),
        ("Label", np.zeros((3, 1), np.int64), ValueError, ["[2, 1]"]),
        ("CenterUpdateRate", np.ones(2), ValueError, ["single element"]),
        ("X", np.ones(3), ValueError, ["rank 2"]),
    ):
        OpTest("center_loss", {**good, slot: value}, attrs, outputs).check_refused(error, f"input {slot}", *parts)
    for bad in (-1, 2):
        test = OpTest("center_loss", {**good, "Label": np.array([[0], [bad]])}, attrs, outputs)
        test.check_refused(IndexError, "Label", "row 1", "[0, 2)", when="run")
