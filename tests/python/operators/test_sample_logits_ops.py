"""sample_logits: the logits of a few classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(41)
CLASSES = 9
OUTPUTS: dict[str, Any] = dict.fromkeys(
    ("Samples", "Probabilities", "SampledLogits", "SampledLabels", "LogitsDim", "LabelsDim")
)


def inputs(rows: int = 4, true_classes: int = 1, dtype: Any = np.float64) -> dict[str, Any]:
    labels = np.stack([RNG.permutation(CLASSES)[:true_classes] for _ in range(rows)])
    return {"Logits": RNG.uniform(-1, 1, (rows, CLASSES)).astype(dtype), "Labels": labels}


def customized(true_classes: int = 1, dtype: Any = np.float64) -> dict[str, Any]:
    """With classes of one's own: 5 is drawn twice, and 0 may be a true one."""
    given = inputs(true_classes=true_classes, dtype=dtype)
    samples = np.concatenate([given["Labels"], np.tile([0, 5, 5], (4, 1))], 1)
    return {
        **given,
        "CustomizedSamples": samples,
        "CustomizedProbabilities": RNG.uniform(0.1, 1, samples.shape).astype(dtype),
    }


def expected(given: dict[str, Any], remove: bool) -> dict[str, Any]:
    samples, probabilities = given["CustomizedSamples"], given["CustomizedProbabilities"]
    true_classes = given["Labels"].shape[1]
    logits = np.take_along_axis(given["Logits"], samples, 1)
    hits = (samples[:, :, None] == given["Labels"][:, None, :]).any(2)
    hits[:, :true_classes] = False
    logits = logits - (1e20 * hits if remove else 0) - np.log(probabilities)
    return {
        **OUTPUTS,
        "Samples": samples,
        "Probabilities": probabilities,
        "SampledLogits": np.clip(logits, -1e20, 1e20).astype(probabilities.dtype),
        "SampledLabels": np.tile(np.arange(true_classes), (4, 1)),
    }


ATTRS = {"num_samples": 3, "use_customized_samples": True}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("true_classes", [1, 2])
@pytest.mark.parametrize("remove", [False, True])
def test_classes_of_ones_own(remove: bool, true_classes: int, dtype: Any) -> None:
    given = customized(true_classes, dtype)
    given["Labels"][0, 0] = given["CustomizedSamples"][0, 0] = 5  # a hit
    attrs = {**ATTRS, "remove_accidental_hits": remove}
    OpTest("sample_logits", given, attrs, expected(given, remove)).check_outputs()


@pytest.mark.parametrize("remove", [False, True])
def test_the_gradient_of_a_class_that_is_there_twice_is_a_sum(remove: bool) -> None:
    given = customized(2)
    given["Labels"] = given["CustomizedSamples"][:, :2] = np.array([[1, 2]] * 4)
    attrs = {**ATTRS, "remove_accidental_hits": remove}
    OpTest("sample_logits", given, attrs, OUTPUTS).check_gradients(["Logits"], ["SampledLogits"])


def test_a_probability_of_0_makes_no_infinite_logit() -> None:
    given = customized()
    given["CustomizedProbabilities"][:, 1] = 0
    logits = np.asarray(OpTest("sample_logits", given, ATTRS, OUTPUTS).run()["SampledLogits"][0])
    assert logits[:, 1].tolist() in ([1e20] * 4, np.where(given["Labels"][:, 0] == 0, 0.0, 1e20).tolist())


def drawn(rows: int = 3, true_classes: int = 1, **attrs: Any) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    given = inputs(rows, true_classes)
    results = OpTest("sample_logits", given, {"num_samples": 4, **attrs}, OUTPUTS).run()
    samples, probabilities = (np.asarray(results[slot][0]) for slot in ("Samples", "Probabilities"))
    return samples, probabilities, given


@pytest.mark.parametrize("count", [1, 4, CLASSES])
def test_classes_are_drawn_once_and_for_all_rows(count: int) -> None:
    samples, probabilities, given = drawn(5, 2, num_samples=count, seed=3)
    np.testing.assert_array_equal(samples[:, :2], given["Labels"])
    assert (samples[:, 2:] == samples[0, 2:]).all()
    assert len(set(samples[0, 2:])) == count
    assert (probabilities[:, 2:] == probabilities[0, 2:]).all()
    assert ((probabilities > 0) & (probabilities <= 1)).all()
    for row in range(5):  # a class has the same probability wherever it stands
        by_class = {}
        for label, probability in zip(samples[row], probabilities[row]):
            assert by_class.setdefault(label, probability) == probability


def log_uniform() -> np.ndarray:
    k = np.arange(CLASSES)
    return np.log((k + 2) / (k + 1)) / np.log(CLASSES + 1)


def test_classes_are_drawn_from_the_log_uniform_distribution() -> None:
    found = np.zeros(CLASSES)
    for seed in range(1, 5):
        samples, probabilities, _ = drawn(1, num_samples=4000, uniq=False, seed=seed)
        found += np.bincount(samples[0, 1:], minlength=CLASSES) / 16000
        np.testing.assert_allclose(probabilities[0], 4000 * log_uniform()[samples[0]])
    np.testing.assert_allclose(found, log_uniform(), atol=0.02)


def test_the_probability_without_repetition_is_how_often_a_class_is_drawn() -> None:
    """On average over the numbers of draws that were needed."""
    found, said = np.zeros(CLASSES), np.zeros(CLASSES)
    for seed in range(1, 201):
        samples, probabilities, _ = drawn(1, num_samples=4, seed=seed)
        found[samples[0, 1:]] += 1 / 200
        said[samples[0, 1:]] = np.maximum(said[samples[0, 1:]], probabilities[0, 1:])
    assert found[0] > 2 * found[-1] > 0
    assert found.sum() == pytest.approx(4)
    assert ((found - said) < 0.12).all()


def test_a_seed_repeats_the_classes() -> None:
    a, b, c = (drawn(seed=seed)[0][0, 1:].tolist() for seed in (7, 7, 8))
    assert a == b
    assert a != c or drawn(seed=9)[0][0, 1:].tolist() != a
    assert len({tuple(drawn()[0][0, 1:]) for _ in range(8)}) > 1


@pytest.mark.parametrize(
    ("change", "attrs", "error", "parts"),
    [
        ({"Labels": np.zeros((3, 1), np.int64)}, {}, ValueError, ("Labels", "[4, -1]", "[3, 1]")),
        ({"Labels": np.zeros((4, 1), np.float64)}, {}, TypeError, ("Labels", "int64")),
        ({"Labels": np.zeros((4, 0), np.int64)}, {}, ValueError, ("Labels", "true class")),
        ({"Labels": np.zeros(4, np.int64)}, {}, ValueError, ("Labels", "rank 2")),
        ({"Logits": np.zeros((4, 2, 3))}, {}, ValueError, ("Logits", "rank 2")),
        ({}, {"num_samples": 0}, ValueError, ("num_samples", "0")),
        ({}, {"num_samples": CLASSES + 1}, ValueError, ("num_samples", "10", "9")),
        ({}, {"use_customized_samples": True}, ValueError, ("CustomizedSamples",)),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(
    change: dict[str, Any], attrs: dict[str, Any], error: type[Exception], parts: tuple[str, ...]
) -> None:
    test = OpTest("sample_logits", {**inputs(), **change}, {"num_samples": 3, **attrs}, OUTPUTS)
    test.check_refused(error, *parts)


def test_classes_that_are_none_are_refused() -> None:
    given = inputs()
    given["Labels"][2] = CLASSES
    OpTest("sample_logits", given, {"num_samples": 3}, OUTPUTS).check_refused(
        IndexError, "Labels", "row 2", "9", "[0, 9)", when="run"
    )
    given = customized()
    given["CustomizedSamples"][1, 3] = -1
    OpTest("sample_logits", given, ATTRS, OUTPUTS).check_refused(
        IndexError, "CustomizedSamples", "row 1", "-1", when="run"
    )
    given = customized()
    given["CustomizedProbabilities"] = given["CustomizedProbabilities"].astype(np.float32)
    OpTest("sample_logits", given, ATTRS, OUTPUTS).check_refused(TypeError, "CustomizedProbabilities", "float64")
