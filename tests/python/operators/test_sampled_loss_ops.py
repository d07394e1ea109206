"""nce and hierarchical_sigmoid: losses over many classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(97)
CLASSES = 6
NCE_OUTPUTS: dict[str, Any] = {"Cost": None, "SampleLogits": None, "SampleLabels": None}


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


def nce_inputs(true_classes: int = 1, **others: np.ndarray) -> dict[str, Any]:
    label = RNG.integers(0, CLASSES, (4, true_classes))
    return {"Input": numbers(4, 3), "Label": label, "Weight": numbers(CLASSES, 3), **others}


def nce(inputs: dict[str, Any], samples: np.ndarray, probability: np.ndarray, noise: int) -> dict[str, np.ndarray]:
    scores = np.einsum("nd,nkd->nk", inputs["Input"], inputs["Weight"][samples])
    if "Bias" in inputs:
        scores = scores + inputs["Bias"][:, 0][samples]
    log_o, log_b = -np.logaddexp(0, -scores), np.log(probability[samples] * noise)
    true = np.arange(samples.shape[1]) < samples.shape[1] - noise
    cost = (np.logaddexp(log_o, log_b) - np.where(true, log_o, log_b)).sum(1, keepdims=True)
    return {"Cost": cost * inputs.get("SampleWeight", 1.0), "SampleLogits": np.exp(log_o), "SampleLabels": samples}


def log_uniform() -> np.ndarray:
    k = np.arange(CLASSES)
    return np.log((k + 2) / (k + 1)) / np.log(CLASSES + 1)


@pytest.mark.parametrize("sampler", [0, 1])
@pytest.mark.parametrize("true_classes", [1, 2])
@pytest.mark.parametrize("optional", [False, True])
def test_nce(optional: bool, true_classes: int, sampler: int) -> None:
    others = {"Bias": numbers(CLASSES, 1), "SampleWeight": RNG.uniform(0.5, 2, (4, 1))} if optional else {}
    inputs = nce_inputs(true_classes, **others)
    noise = [0, 5, 5]
    samples = np.concatenate([inputs["Label"], np.tile(noise, (4, 1))], 1)
    probability = log_uniform() if sampler == 1 else np.full(CLASSES, 1 / CLASSES)
    attrs = {"num_total_classes": CLASSES, "num_neg_samples": 3, "custom_neg_classes": noise, "sampler": sampler}
    outputs = nce(inputs, samples, probability, 3)
    test = OpTest("nce", inputs, attrs, outputs, known=["Weight", "Label"])
    test.check_outputs()
    by = ["Input", "Weight", "Bias"] if optional else ["Input", "Weight"]
    test.check_gradients(by, ["Cost"], tolerance=1e-5)


def test_nce_of_improbable_classes_is_finite() -> None:
    x, label = np.array([[50.0], [100.0], [110.0], [200.0]]), np.zeros((4, 1), np.int64)
    inputs = {"Input": x, "Label": label, "Weight": np.full((CLASSES, 1), -1.0)}
    samples = np.tile([0, 2, 5], (4, 1))
    expected = nce(inputs, samples, np.full(CLASSES, 1 / CLASSES), 2)
    attrs = {"num_total_classes": CLASSES, "num_neg_samples": 2, "custom_neg_classes": [2, 5]}
    (cost,) = OpTest("nce", inputs, attrs, NCE_OUTPUTS).run("float32")["Cost"]
    assert cost.dtype() == "float32"
    np.testing.assert_allclose(cost, expected["Cost"], rtol=1e-6)


def test_nce_of_classes_that_are_never_noise_has_finite_gradients() -> None:
    x = np.array([[1.0], [-2000.0]])  # the second one's scores have a probability that is too small for float32
    inputs = {"Input": x, "Label": np.zeros((2, 1), np.int64), "Weight": np.ones((CLASSES, 1))}
    inputs["CustomDistProbs"] = np.array([0, 0, 0.25, 0.25, 0.25, 0.25], np.float32)
    inputs["CustomDistAlias"] = np.zeros(CLASSES, np.int32)
    inputs["CustomDistAliasProbs"] = np.ones(CLASSES, np.float32)
    attrs = {"num_total_classes": CLASSES, "num_neg_samples": 1, "custom_neg_classes": [2], "sampler": 2}
    test = OpTest("nce", inputs, attrs, NCE_OUTPUTS)
    gradients = test.gradients(["Weight"], ["Cost"], np.float32)["Weight_0"]
    assert np.isfinite(gradients).all()
    assert gradients[0] == 0  # no other class can be taken for it
    assert gradients[2] != 0


def frequencies(attrs: dict[str, Any], **others: np.ndarray) -> np.ndarray:
    """How often each class was drawn, of 20,000 draws."""
    inputs = {"Input": numbers(200, 2), "Label": np.zeros((200, 1), np.int64), "Weight": numbers(CLASSES, 2), **others}
    attrs = {"num_total_classes": CLASSES, "num_neg_samples": 100, "seed": 7, **attrs}
    (labels,) = OpTest("nce", inputs, attrs, NCE_OUTPUTS).run()["SampleLabels"]
    return np.bincount(np.asarray(labels)[:, 1:].ravel(), minlength=CLASSES) / 20000


def test_nce_draws_noise_from_its_distribution() -> None:
    np.testing.assert_allclose(frequencies({}), 1 / CLASSES, atol=0.015)
    np.testing.assert_allclose(frequencies({"sampler": 1}), log_uniform(), atol=0.015)
    # Columns of the alias method: a half of class 1 goes to class 0, the others stay.
    alias_probability = np.array([1, 0.5, 1, 1, 1, 1], np.float32)
    alias = {
        "CustomDistProbs": np.array([1.5, 0.5, 1, 1, 1, 1], np.float32) / CLASSES,
        "CustomDistAlias": np.zeros(CLASSES, np.int32),
        "CustomDistAliasProbs": alias_probability,
    }
    np.testing.assert_allclose(frequencies({"sampler": 2}, **alias), alias["CustomDistProbs"], atol=0.015)


def test_nce_repeats_its_noise_with_a_seed_only() -> None:
    inputs = nce_inputs()
    attrs = {"num_total_classes": CLASSES, "num_neg_samples": 20}

    def drawn(seed: int) -> list[list[int]]:
        test = OpTest("nce", inputs, {**attrs, "seed": seed}, NCE_OUTPUTS)
        return np.asarray(test.run()["SampleLabels"][0]).tolist()

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    assert drawn(0) != drawn(0)


def test_nce_refuses_what_does_not_fit() -> None:
    good, attrs = nce_inputs(), {"num_total_classes": CLASSES, "num_neg_samples": 2}
    cases: list[tuple[dict[str, Any], dict[str, Any], type[Exception], tuple[str, ...]]] = [
        ({"Weight": numbers(CLASSES, 2)}, {}, ValueError, ("Weight", "[6, 3]")),
        ({"Label": np.zeros((3, 1), np.int64)}, {}, ValueError, ("Label", "[3, 1]")),
        ({"Label": np.zeros((4, 1), np.float64)}, {}, TypeError, ("Label", "int64")),
        ({"Bias": numbers(CLASSES - 1, 1)}, {}, ValueError, ("Bias",)),
        ({}, {"num_neg_samples": 0}, ValueError, ("num_neg_samples",)),
        ({}, {"sampler": 3}, ValueError, ("sampler",)),
        ({}, {"sampler": 2}, ValueError, ("CustomDistProbs",)),
        ({}, {"custom_neg_classes": [1]}, ValueError, ("custom_neg_classes",)),
        ({}, {"custom_neg_classes": [1, 6]}, ValueError, ("custom_neg_classes", "[0, 6)")),
    ]
    for change, more, error, parts in cases:
        test = OpTest("nce", {**good, **change}, {**attrs, **more}, NCE_OUTPUTS, known=["Weight", "Bias", "Label"])
        test.check_refused(error, *parts)
    test = OpTest("nce", {**good, "Label": np.full((4, 1), 6)}, attrs, NCE_OUTPUTS)
    test.check_refused(IndexError, "Label", "row 0", "[0, 6)", when="run")


def paths(classes: int, labels: np.ndarray) -> list[list[tuple[int, int]]]:
    """The way of each label up a complete binary tree: its nodes, and whether it comes from the right of each."""
    found = []
    for label in labels[:, 0]:
        leaf, path = int(label) + classes, []
        while leaf > 1:
            path.append((leaf // 2 - 1, leaf % 2))
            leaf //= 2
        found.append(path)
    return found


def hierarchical(x: np.ndarray, w: np.ndarray, bias: Any, ways: list[list[tuple[int, int]]], length: int) -> Any:
    out, steps = np.zeros((len(x), 1)), np.full((len(x), length), np.log(2))
    for row, way in enumerate(ways):
        for step, (node, right) in enumerate(way):
            score = x[row] @ w[node] + (0 if bias is None else bias.ravel()[node])
            steps[row, step] = np.log1p(np.exp(score))
            out[row] -= right * score
    return out + steps.sum(1, keepdims=True), steps


@pytest.mark.parametrize("bias", [None, "column", "row", "vector"])
@pytest.mark.parametrize("classes", [2, 6, 200])
def test_hierarchical_sigmoid(classes: int, bias: str | None) -> None:
    nodes = classes - 1
    x, w = numbers(5, 3), numbers(nodes, 3)
    label = RNG.integers(0, classes, (5, 1))
    inputs = {"X": x, "W": w, "Label": label}
    if bias is not None:
        inputs["Bias"] = numbers(*{"column": (nodes, 1), "row": (1, nodes), "vector": (nodes,)}[bias])
    length = (classes - 1).bit_length()
    out, steps = hierarchical(x, w, inputs.get("Bias"), paths(classes, label), length)
    outputs = {"Out": out, "PreOut": steps}
    test = OpTest("hierarchical_sigmoid", inputs, {"num_classes": classes}, outputs, known=["W", "Bias"])
    test.check_outputs()
    test.check_gradients([slot for slot in inputs if slot != "Label"], ["Out"])


def test_hierarchical_sigmoid_of_sure_classes_is_exact_in_float32() -> None:
    """Of a step that the score confirms, log(1 + exp(score)) − score is left: far less than either."""
    scores = np.array([3.0, 7.0, 11.0, 15.0], np.float32)
    x, w, label = scores[:, None], np.ones((1, 1), np.float32), np.ones((4, 1), np.int64)
    exact = hierarchical(x.astype(float), w.astype(float), None, paths(2, label), 1)
    out, steps = (array.astype(np.float32) for array in exact)
    test = OpTest(
        "hierarchical_sigmoid", {"X": x, "W": w, "Label": label}, {"num_classes": 2}, {"Out": out, "PreOut": steps}
    )
    test.check_outputs(rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    ("shape", "attrs"), [((1, 5, 1), {}), ((5, 1, 1), {}), ((4, 1), {}), ((1, 5), {"is_sparse": True})]
)
def test_hierarchical_sigmoid_refuses_a_bias_that_has_no_number_for_each_node(
    shape: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    inputs = {"X": numbers(2, 3), "W": numbers(5, 3), "Label": np.array([[0], [5]]), "Bias": numbers(*shape)}
    outputs = {"Out": None, "PreOut": None}
    test = OpTest("hierarchical_sigmoid", inputs, {"num_classes": 6, **attrs}, outputs, known=["W", "Bias"])
    test.check_refused(ValueError, "Bias", "[5, 1]")


@pytest.mark.parametrize("custom", [False, True])
def test_hierarchical_sigmoid_of_a_vector_of_labels(custom: bool) -> None:
    x, w, label = numbers(3, 2), numbers(5, 2), np.array([0, 5, 3])
    ways = paths(6, label[:, None])
    inputs = {"X": x, "W": w, "Label": label}
    if custom:
        table = np.array([[n for n, _ in way] + [-1] * (3 - len(way)) for way in ways])
        inputs |= {
            "PathTable": table,
            "PathCode": np.array([[c for _, c in way] + [0] * (3 - len(way)) for way in ways]),
        }
    out, steps = hierarchical(x, w, None, ways, 3)
    attrs = {} if custom else {"num_classes": 6}
    test = OpTest("hierarchical_sigmoid", inputs, attrs, {"Out": out, "PreOut": steps}, known=["W"])
    test.check_outputs()
    test.check_gradients(["X", "W"], ["Out"])
    OpTest(
        "hierarchical_sigmoid", {**inputs, "Label": label[:2]}, attrs, {"Out": None, "PreOut": None}, known=["W"]
    ).check_refused(ValueError, "Label", "[3]")


def test_hierarchical_sigmoid_over_a_tree_of_ones_own() -> None:
    x, w = numbers(3, 2), numbers(4, 2)
    table = np.array([[0, 2, -1], [3, -1, -1], [0, 1, 3]])
    code = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 1]])
    ways = [[(n, c) for n, c in zip(*row) if n >= 0] for row in zip(table.tolist(), code.tolist())]
    out, steps = hierarchical(x, w, None, ways, 3)
    inputs = {"X": x, "W": w, "Label": np.zeros((3, 1), np.int64), "PathTable": table, "PathCode": code}
    test = OpTest("hierarchical_sigmoid", inputs, {}, {"Out": out, "PreOut": steps}, known=["W"])
    test.check_outputs()
    test.check_gradients(["X", "W"], ["Out"])
    wrong = {**inputs, "PathTable": table + 2}
    test = OpTest("hierarchical_sigmoid", wrong, {}, {"Out": None, "PreOut": None}, known=["W"])
    test.check_refused(IndexError, "PathTable", "below 4", when="run")


def test_hierarchical_sigmoid_refuses_what_does_not_fit() -> None:
    good = {"X": numbers(2, 3), "W": numbers(5, 3), "Label": np.zeros((2, 1), np.int64)}
    outputs = {"Out": None, "PreOut": None}
    for change, attrs, error, parts in (
        ({"W": numbers(4, 3)}, {"num_classes": 6}, ValueError, ("input W", "[5, ")),
        ({}, {"num_classes": 1}, ValueError, ("num_classes",)),
        ({"Label": np.zeros((2, 1), np.float64)}, {"num_classes": 6}, TypeError, ("Label", "int64")),
        ({"Bias": numbers(6, 1)}, {"num_classes": 6}, ValueError, ("Bias",)),
        ({"PathTable": np.zeros((2, 2), np.int64)}, {}, ValueError, ("PathCode",)),
    ):
        test = OpTest("hierarchical_sigmoid", {**good, **change}, attrs, outputs, known=["W", "Bias"])
        test.check_refused(error, *parts)
    far = {**good, "Label": np.full((2, 1), 6)}
    test = OpTest("hierarchical_sigmoid", far, {"num_classes": 6}, outputs, known=["W"])
    test.check_refused(IndexError, "Label", "[0, 6)", when="run")
