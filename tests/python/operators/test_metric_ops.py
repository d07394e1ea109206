"""auc, precision_recall, mean_iou, chunk_eval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(103)
BUCKETS = 8  # num_thresholds is one less
AUC_OUTPUTS: dict[str, Any] = {"AUC": None, "StatPosOut": None, "StatNegOut": None}


def area(positive: np.ndarray, negative: np.ndarray) -> float:
    """How probable it is that a positive row lies above a negative one; the same bucket counts one half."""
    if not positive.sum() * negative.sum():
        return 0.0
    above = sum(positive[i] * (negative[:i].sum() + negative[i] / 2) for i in range(len(positive)))
    return float(above / positive.sum() / negative.sum())


def histograms(predict: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bucket = (predict[:, -1].astype(np.float64) * (BUCKETS - 1)).astype(np.int64)
    positive, negative = (np.bincount(bucket[label[:, 0] == k], minlength=BUCKETS) for k in (1, 0))
    return positive, negative


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("label_dims", [(20, 1), (20,)], ids=str)
def test_auc_of_all_batches(label_dims: tuple[int, ...], columns: int, dtype: Any) -> None:
    predict, label = RNG.uniform(0, 1, (20, columns)).astype(dtype), RNG.integers(0, 2, (20, 1))
    before = RNG.integers(0, 4, (2, 1, BUCKETS))
    positive, negative = (a + b for a, b in zip(before, histograms(predict, label)))
    inputs = {"Predict": predict, "Label": label.reshape(label_dims), "StatPos": before[0], "StatNeg": before[1]}
    attrs = {"num_thresholds": BUCKETS - 1, "slide_steps": 0}
    outputs = {"AUC": np.array([area(positive[0], negative[0])]), "StatPosOut": positive, "StatNegOut": negative}
    OpTest("auc", inputs, attrs, outputs, known=["StatPos", "StatNeg"]).check_outputs()


def test_auc_of_the_last_batches() -> None:
    steps, batches = 2, []
    attrs = {"num_thresholds": BUCKETS - 1, "slide_steps": steps}
    state = [np.zeros((1, (1 + steps) * BUCKETS + 1), np.int64) for _ in range(2)]
    for _ in range(5):
        predict, label = RNG.uniform(0, 1, (6, 2)), RNG.integers(0, 2, (6, 1))
        batches.append(histograms(predict, label))
        inputs = {"Predict": predict, "Label": label, "StatPos": state[0], "StatNeg": state[1]}
        got = OpTest("auc", inputs, attrs, AUC_OUTPUTS).run()
        positive, negative = (sum(batch[k] for batch in batches[-steps:]) for k in (0, 1))
        np.testing.assert_allclose(np.asarray(got["AUC"][0]), [area(positive, negative)])
        state = [np.array(got[slot][0]) for slot in ("StatPosOut", "StatNegOut")]
        assert state[0][0, -1] == len(batches)


@pytest.mark.parametrize("steps", [1, 3])
def test_auc_of_the_last_batches_in_their_order(steps: int) -> None:
    """The statistics of Fluid up to 1.6: a row for each batch, the oldest one first."""
    batches = [(np.zeros(BUCKETS, np.int64),) * 2] * steps
    attrs = {"num_thresholds": BUCKETS - 1, "slide_steps": steps}
    for _ in range(5):
        state = [np.stack([batch[k] for batch in batches[-steps:]]) for k in (0, 1)]
        predict, label = RNG.uniform(0, 1, (6, 2)), RNG.integers(0, 2, (6, 1))
        batches.append(histograms(predict, label))
        after = [np.stack([batch[k] for batch in batches[-steps:]]) for k in (0, 1)]
        inputs = {"Predict": predict, "Label": label, "StatPos": state[0], "StatNeg": state[1]}
        outputs = {"AUC": np.array([area(*(rows.sum(0) for rows in after))])}
        outputs |= {"StatPosOut": after[0], "StatNegOut": after[1]}
        OpTest("auc", inputs, attrs, outputs, known=["StatPos", "StatNeg"]).check_outputs()


def test_auc_refuses_what_does_not_fit() -> None:
    statistics = np.zeros((1, BUCKETS), np.int64)
    good = {"Predict": np.full((2, 1), 0.5), "Label": np.ones((2, 1), np.int64)}
    good |= {"StatPos": statistics, "StatNeg": statistics}
    attrs = {"num_thresholds": BUCKETS - 1, "slide_steps": 0}
    OpTest("auc", good, attrs, {**AUC_OUTPUTS, "AUC": np.zeros(1)}).check_outputs()  # all are positive
    cases: list[tuple[dict[str, Any], dict[str, Any], type[Exception], tuple[str, ...], str]] = [
        ({"Predict": np.full((2, 3), 0.5)}, {}, ValueError, ("Predict", "[N, 2]"), "build"),
        ({"Label": np.ones((1, 1), np.int64)}, {}, ValueError, ("Label",), "build"),
        ({"Label": np.ones(1, np.int64)}, {}, ValueError, ("Label",), "build"),
        ({"StatPos": statistics[:, 1:]}, {}, ValueError, ("StatPos", "8 elements"), "build"),
        ({"StatNeg": statistics.astype(np.float64)}, {}, TypeError, ("StatNeg", "int64"), "build"),
        ({}, {"slide_steps": 2}, ValueError, ("StatPos", "25 elements", "or 16", "Fluid"), "build"),
        ({"StatPos": np.zeros((1, 17), np.int64)}, {"slide_steps": 1}, ValueError, ("StatNeg", "17"), "build"),
        ({}, {"curve": "PR"}, ValueError, ("curve", "'PR'"), "build"),
        ({}, {"num_thresholds": 0}, ValueError, ("num_thresholds",), "build"),
        ({"Predict": np.array([[0.5], [1.5]])}, {}, ValueError, ("Predict", "row 1", "[0, 1]"), "run"),
        ({"Predict": np.array([[0.5], [np.nan]])}, {}, ValueError, ("Predict", "row 1"), "run"),
    ]
    for change, more, error, parts, when in cases:
        test = OpTest("auc", {**good, **change}, {**attrs, **more}, AUC_OUTPUTS, known=["StatPos", "StatNeg"])
        test.check_refused(error, *parts, when=when)


CLASSES = 3


def states_of(predicted: np.ndarray, label: np.ndarray, weights: np.ndarray) -> np.ndarray:
    rows = [
        [weights[select].sum() for select in ((p & t), (p & ~t), (~p & ~t), (~p & t))]
        for p, t in ((predicted == c, label == c) for c in range(CLASSES))
    ]
    return np.array(rows)


def metrics(states: np.ndarray) -> np.ndarray:
    def share(part: float, rest: float) -> float:
        return part / (part + rest) if part + rest > 0 else 1.0

    def with_f1(precision: float, recall: float) -> list[float]:
        return [precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0]

    states = states.astype(np.float64)
    hits, wrong, _, missed = states.sum(0)
    macro = [np.mean([share(row[0], row[k]) for row in states]) for k in (1, 3)]
    return np.array([*with_f1(*macro), *with_f1(share(hits, wrong), share(hits, missed))])


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_precision_recall(dtype: Any, optional: bool) -> None:
    predicted, label = (RNG.integers(0, CLASSES, (7, 1)).astype(np.int32) for _ in range(2))
    inputs = {"MaxProbs": RNG.uniform(0, 1, (7, 1)).astype(dtype), "Indices": predicted, "Labels": label}
    weights, before = np.ones((7, 1), dtype), np.zeros((CLASSES, 4), dtype)
    if optional:
        weights, before = RNG.integers(1, 4, (7, 1)).astype(dtype), RNG.integers(0, 9, (CLASSES, 4)).astype(dtype)
        inputs |= {"Weights": weights, "StatesInfo": before}
    batch = states_of(predicted, label, weights).astype(dtype)
    outputs = {
        "BatchMetrics": metrics(batch),
        "AccumMetrics": metrics(batch + before),
        "AccumStatesInfo": batch + before,
    }
    OpTest("precision_recall", inputs, {"class_number": CLASSES}, outputs, known=["StatesInfo"]).check_outputs()


def test_precision_recall_of_nothing_and_what_it_refuses() -> None:
    nothing = {
        "MaxProbs": np.zeros((0, 1)),
        "Indices": np.zeros((0, 1), np.int32),
        "Labels": np.zeros((0, 1), np.int32),
    }
    outputs = {"BatchMetrics": np.ones(6), "AccumMetrics": None, "AccumStatesInfo": np.zeros((2, 4))}
    OpTest("precision_recall", nothing, {"class_number": 2}, outputs).check_outputs()
    one = {"MaxProbs": np.ones((1, 1)), "Indices": np.array([[2]], np.int32), "Labels": np.array([[0]], np.int32)}
    none = dict.fromkeys(outputs)
    test = OpTest("precision_recall", one, {"class_number": 2}, none)
    test.check_refused(IndexError, "Indices", "row 0", "[0, 2)", when="run")
    OpTest("precision_recall", one, {"class_number": 0}, none).check_refused(ValueError, "class_number")
    wrong = {**one, "Labels": np.array([[0]])}
    OpTest("precision_recall", wrong, {"class_number": 3}, none).check_refused(TypeError, "Labels", "int32")
    wrong = {**one, "StatesInfo": np.zeros((2, 4))}
    OpTest("precision_recall", wrong, {"class_number": 3}, none).check_refused(ValueError, "StatesInfo")


@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64], ids=str)
def test_mean_iou(dtype: Any, accumulated: bool) -> None:
    predicted, label = (RNG.integers(0, 3, (2, 3, 4)).astype(dtype) for _ in range(2))
    classes = 4  # one does not occur
    wrong = np.array([((predicted == c) != (label == c)).sum() for c in range(classes)])
    correct = np.array([((predicted == c) & (label == c)).sum() for c in range(classes)])
    inputs: dict[str, Any] = {"Predictions": predicted, "Labels": label}
    more = 0.0
    if accumulated:
        added = [RNG.integers(0, 5, classes).astype(np.int32) for _ in range(3)]
        means = [np.array([0.25], np.float32), np.array([0.5], np.float32)]
        inputs |= {"InWrongs": added[:2], "InCorrects": added[2:], "InMeanIou": means}
        wrong, correct, more = wrong + added[0] + added[1], correct + added[2], 0.75
    occurs = wrong + correct > 0
    mean = (correct[occurs] / (wrong + correct)[occurs]).mean() + more
    outputs = {
        "OutMeanIou": np.array([mean], np.float32),
        "OutWrong": wrong.astype(np.int32),
        "OutCorrect": correct.astype(np.int32),
    }
    known = ["InWrongs", "InCorrects", "InMeanIou"]
    OpTest("mean_iou", inputs, {"num_classes": classes}, outputs, known).check_outputs()


def test_mean_iou_refuses_what_does_not_fit() -> None:
    x = np.array([0, 1, 2])
    outputs = {"OutMeanIou": None, "OutWrong": None, "OutCorrect": None}
    good = {"Predictions": x, "Labels": x}
    test = OpTest("mean_iou", good, {"num_classes": 2}, outputs)
    test.check_refused(IndexError, "Predictions", "element 2", "[0, 2)", when="run")
    OpTest("mean_iou", good, {"num_classes": 0}, outputs).check_refused(ValueError, "num_classes")
    OpTest("mean_iou", {**good, "Labels": x[:2]}, {"num_classes": 3}, outputs).check_refused(ValueError, "Labels")
    wrong = {**good, "InWrongs": np.zeros(2, np.int32)}
    OpTest("mean_iou", wrong, {"num_classes": 3}, outputs).check_refused(ValueError, "InWrongs", "[3]")


SCHEMES = {
    # tags of the scheme; a sequence; its chunks as (type, first row, last row)
    "IOB": (2, "B0 I0 B0 O I1 I1 B1 I0 O", [(0, 0, 1), (0, 2, 2), (1, 4, 5), (1, 6, 6), (0, 7, 7)]),
    "IOE": (2, "I0 E0 E0 O I1 I1 E1 I1 I0", [(0, 0, 1), (0, 2, 2), (1, 4, 6), (1, 7, 7), (0, 8, 8)]),
    "IOBES": (4, "B0 I0 E0 S1 O B1 E1 S1 S1", [(0, 0, 2), (1, 3, 3), (1, 5, 6), (1, 7, 7), (1, 8, 8)]),
    "plain": (1, "X0 X0 X1 O X1 X1 X0 O O", [(0, 0, 1), (1, 2, 2), (1, 4, 5), (0, 6, 6)]),
}
NUMBERS = {"IOB": "BI", "IOE": "IE", "IOBES": "BIES", "plain": "X"}
TYPES = 2
CHUNK_OUTPUTS = ("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks")


def labels_of(scheme: str, tokens: str) -> np.ndarray:
    count = SCHEMES[scheme][0]
    numbers = [TYPES * count if t == "O" else int(t[1]) * count + NUMBERS[scheme].index(t[0]) for t in tokens.split()]
    return np.array(numbers, np.int64).reshape(-1, 1)


@pytest.mark.parametrize("excluded", [[], [1]], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_chunk_eval(scheme: str, excluded: list[int]) -> None:
    _, tokens, chunks = SCHEMES[scheme]
    label = labels_of(scheme, tokens)
    counted = [chunk for chunk in chunks if chunk[0] not in excluded]
    lod = [[9, 0]]
    attrs = {"num_chunk_types": TYPES, "chunk_scheme": scheme, "excluded_chunk_types": excluded}
    outputs: dict[str, Any] = dict.fromkeys(CHUNK_OUTPUTS)
    outputs |= {
        "Precision": np.array([1.0], np.float32),
        "Recall": np.array([1.0], np.float32),
        "F1-Score": np.array([1.0], np.float32),
    }
    outputs |= {slot: np.array([len(counted)]) for slot in CHUNK_OUTPUTS[3:]}
    inputs = {"Inference": (label, lod), "Label": (label, lod)}
    OpTest("chunk_eval", inputs, attrs, outputs).check_outputs()


def test_chunks_that_differ_do_not_count() -> None:
    label = labels_of("IOB", "B0 I0 O B1 I1 B0")
    inferred = labels_of("IOB", "B0 I0 O B1 B1 B1")  # one right, one cut in two, one of another type
    inputs = {"Inference": (inferred, [[6]]), "Label": (label, [[6]])}
    outputs = {
        "Precision": np.array([1 / 4], np.float32),
        "Recall": np.array([1 / 3], np.float32),
        "F1-Score": np.array([2 / 7], np.float32),
        "NumInferChunks": np.array([4]),
        "NumLabelChunks": np.array([3]),
        "NumCorrectChunks": np.array([1]),
    }
    OpTest("chunk_eval", inputs, {"num_chunk_types": 2}, outputs).check_outputs()


def test_chunk_eval_of_vectors() -> None:
    label = (labels_of("IOB", "B0 I0 O B1 I1 B0")[:, 0], [[4, 2]])
    outputs: dict[str, Any] = dict.fromkeys(CHUNK_OUTPUTS) | {slot: np.array([4]) for slot in CHUNK_OUTPUTS[3:]}
    OpTest("chunk_eval", {"Inference": label, "Label": label}, {"num_chunk_types": 2}, outputs).check_outputs()
    column = (label[0][:, None], label[1])
    test = OpTest("chunk_eval", {"Inference": label, "Label": column}, {"num_chunk_types": 2}, outputs)
    test.check_refused(ValueError, "Label", "expected dims")


def test_chunk_eval_of_nothing_and_what_it_refuses() -> None:
    empty = (labels_of("IOB", "O O"), [[2, 0]])
    zeros: dict[str, Any] = {slot: np.zeros(1, np.float32) for slot in CHUNK_OUTPUTS[:3]}
    zeros |= {slot: np.zeros(1, np.int64) for slot in CHUNK_OUTPUTS[3:]}
    OpTest("chunk_eval", {"Inference": empty, "Label": empty}, {"num_chunk_types": 2}, zeros).check_outputs()
    none = dict.fromkeys(CHUNK_OUTPUTS)
    good = {"Inference": empty, "Label": empty}
    for change, attrs, error, parts, when in (
        ({}, {"chunk_scheme": "BIO"}, ValueError, ("chunk_scheme", "'BIO'"), "build"),
        ({}, {"num_chunk_types": 0}, ValueError, ("num_chunk_types",), "build"),
        ({}, {"excluded_chunk_types": [2]}, ValueError, ("excluded_chunk_types", "[0, 2)"), "build"),
        ({"Label": (empty[0], [[1, 1]])}, {}, ValueError, ("Label", "LoD"), "run"),
        ({"Label": (empty[0] + 1, empty[1])}, {}, IndexError, ("Label", "row 0", "[0, 4]"), "run"),
        ({"Inference": (empty[0].astype(np.int32), empty[1])}, {}, TypeError, ("Inference", "int64"), "build"),
    ):
        test = OpTest("chunk_eval", {**good, **change}, {"num_chunk_types": 2, **attrs}, none)
        test.check_refused(error, *parts, when=when)


@pytest.mark.parametrize("column", [False, True])
def test_chunk_eval_of_padded_sequences(column: bool) -> None:
    label = labels_of("IOB", "B0 I0 O B1 I1 B0")
    inferred = labels_of("IOB", "B0 I0 O B1 B1 B1")
    lengths = np.array([2, 0, 4])
    rows = [(0, 2), (2, 2), (2, 6)]

    def pad(values: np.ndarray) -> np.ndarray:
        result = np.full((3, 5), -7)
        for s, (begin, end) in enumerate(rows):
            result[s, : end - begin] = values[begin:end, 0]
        return result[:, :, None] if column else result

    outputs: dict[str, Any] = dict.fromkeys(CHUNK_OUTPUTS)
    packed = {"Inference": (inferred, [lengths.tolist()]), "Label": (label, [lengths.tolist()])}
    expected = OpTest("chunk_eval", packed, {"num_chunk_types": 2}, outputs).run()
    given = {"Inference": pad(inferred), "Label": pad(label), "SeqLength": lengths[:, None] if column else lengths}
    test = OpTest("chunk_eval", given, {"num_chunk_types": 2}, {k: np.asarray(v[0]) for k, v in expected.items()})
    test.check_outputs()
    assert np.asarray(expected["NumCorrectChunks"][0]) == 1
    for change, error, parts, when in (
        ({"SeqLength": np.array([2, 0, 6])}, IndexError, ("SeqLength", "sequence 2", "6", "[0, 5]"), "run"),
        ({"SeqLength": np.array([-1, 0, 4])}, IndexError, ("SeqLength", "sequence 0", "-1"), "run"),
        ({"SeqLength": np.array([2, 1, 4])}, IndexError, ("Inference", "sequence 1, row 0", "-7"), "run"),
        ({"SeqLength": np.array([2, 4])}, ValueError, ("SeqLength", "[3]", "[2]"), "build"),
        ({"SeqLength": lengths.astype(np.int32)}, TypeError, ("SeqLength", "int64"), "build"),
        ({"Label": pad(label)[:, :4]}, ValueError, ("Label", "[3, 5"), "build"),
    ):
        wrong: dict[str, Any] = {**given, **change}
        OpTest("chunk_eval", wrong, {"num_chunk_types": 2}, outputs).check_refused(error, *parts, when=when)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("column", [0, -1])
def test_positive_negative_pair(column: int, weighted: bool) -> None:
    rng = np.random.default_rng(6)
    score = rng.integers(0, 4, (20, 2)).astype(float)  # some are equal
    label, query = rng.integers(0, 3, (20, 1)).astype(float), rng.integers(0, 3, (20, 1))
    weight = rng.uniform(0.5, 2, (20, 1))
    counts = {"Positive": 1.5, "Negative": 2.5, "Neutral": 3.5}
    inputs = {"Score": score, "Label": label, "QueryID": query}
    inputs |= {f"Accumulate{name}Pair": np.array([count]) for name, count in counts.items()}
    if weighted:
        inputs["Weight"] = weight
    for i in range(20):
        for j in range(i):
            if query[i] == query[j] and label[i] != label[j]:
                order = (score[i, column] - score[j, column]) * (label[i, 0] - label[j, 0])
                name = "Positive" if order > 0 else "Negative" if order < 0 else "Neutral"
                counts[name] += (weight[i, 0] + weight[j, 0]) / 2 if weighted else 1
    outputs = {f"{name}Pair": np.array([count]) for name, count in counts.items()}
    OpTest("positive_negative_pair", inputs, {"column": column}, outputs).check_outputs()


def test_what_positive_negative_pair_refuses() -> None:
    inputs = {"Score": np.ones((3, 2)), "Label": np.ones((3, 1)), "QueryID": np.zeros((3, 1), np.int64)}
    outputs = {"PositivePair": np.zeros(1), "NegativePair": np.zeros(1)}
    OpTest("positive_negative_pair", inputs, {}, outputs).check_outputs()
    for column in (2, -3):
        OpTest("positive_negative_pair", inputs, {"column": column}, outputs).check_refused(ValueError, "column")
    some = {**inputs, "AccumulatePositivePair": np.zeros(1)}
    OpTest("positive_negative_pair", some, {}, outputs).check_refused(ValueError, "AccumulateNegativePair", "none")
