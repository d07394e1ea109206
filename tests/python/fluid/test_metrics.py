"""Measures over many batches: against scikit-learn-like definitions computed here, and against what programs count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers, metrics

RNG = np.random.default_rng(5)


def test_precision_and_recall_count_both_classes_over_batches() -> None:
    preds, labels = RNG.random((40, 1)), RNG.integers(0, 2, (40, 1))
    composite = metrics.CompositeMetric()
    composite.add_metric(metrics.Precision("p"))
    composite.add_metric(metrics.Recall())
    for part in (slice(0, 7), slice(7, 40)):
        composite.update(preds[part], labels[part])
    predicted, positive = preds > 0.5, labels == 1
    both = (predicted & positive).sum()
    assert composite.eval() == [both / predicted.sum(), both / positive.sum()]
    composite.reset()
    assert composite.eval() == [0, 0]


def test_accuracy_is_weighted() -> None:
    accuracy = metrics.Accuracy()
    accuracy.update(np.array([0.5], np.float32), 4)
    accuracy.update(1.0, np.array([12]))
    assert accuracy.eval() == pytest.approx(14 / 16)
    assert accuracy.get_config() == {"name": "Accuracy", "states": {"value": 14.0, "weight": 16.0}}
    accuracy.reset()
    with pytest.raises(errors.FailedPrecondition, match="Accuracy has no data"):
        accuracy.eval()


def test_chunks() -> None:
    chunks = metrics.ChunkEvaluator("tags")
    chunks.update(10, 9, 8)
    chunks.update(np.array([3]), np.array([3]), np.array([3]))
    precision, recall, f1 = chunks.eval()
    assert (precision, recall) == (11 / 13, 11 / 12)
    assert f1 == pytest.approx(2 * 11 / (13 + 12))
    chunks.reset()
    assert chunks.eval() == (0, 0, 0)


def test_edit_distance() -> None:
    distance = metrics.EditDistance()
    distance.update(np.array([[0.0], [2.0], [1.0]], np.float32), np.array([3]))
    distance.update([[0.0]], 1)
    assert distance.eval() == (0.75, 0.5)
    with pytest.raises(errors.InvalidArgument, match="as many distances as seq_num says, 2, got 1"):
        distance.update([[1.0]], 2)
    distance.reset()
    with pytest.raises(errors.FailedPrecondition, match="no data"):
        distance.eval()


def exact_auc(scores: Any, labels: Any) -> float:
    """The share of pairs of both classes that are in order; half of those that tie."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    above = (positive[:, None] > negative[None, :]).sum() + 0.5 * (positive[:, None] == negative[None, :]).sum()
    return float(above / (len(positive) * len(negative)))


@pytest.mark.parametrize("columns", [1, 2])
def test_the_area_under_the_roc_curve(columns: int) -> None:
    labels = RNG.integers(0, 2, 300)
    scores = np.floor(np.clip(RNG.normal(0.4 + 0.2 * labels, 0.2), 0, 1) * 64) / 64  # whole buckets, with ties
    auc = metrics.Auc(num_thresholds=64)
    preds = scores[:, None] if columns == 1 else np.stack([1 - scores, scores], 1)
    for part in (slice(0, 100), slice(100, 300)):
        auc.update(preds[part], labels[part, None])
    assert auc.eval() == pytest.approx(exact_auc(scores, labels))
    for counts, label in ((auc._stat_pos, 1), (auc._stat_neg, 0)):  # under Fluid's names, by which programs read them
        np.testing.assert_array_equal(counts, np.bincount((scores[labels == label] * 64).astype(int), minlength=65))
    auc.reset()
    assert auc.eval() == 0
    auc.update(preds[:1], labels[:1])
    assert auc.eval() == 0  # one class only


def test_the_area_under_the_precision_recall_curve() -> None:
    auc = metrics.Auc(curve="PR", num_thresholds=10)
    auc.update([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    # By threshold: (recall, precision) = (0, 1), (1/2, 1), (1/2, 1/2), (1, 2/3), (1, 1/2).
    assert auc.eval() == pytest.approx(0.5 * 1 + 0.5 * (1 / 2 + 2 / 3) / 2)


def test_a_measure_of_ones_own() -> None:
    class Mean(metrics.MetricBase):
        def __init__(self) -> None:
            super().__init__()
            self.total, self.count, self.histogram, self._kept = 0.0, 0, np.zeros(2), "kept"

        def update(self, preds: Any, labels: Any) -> None:
            self.total += preds
            self.count += 1
            self.histogram = self.histogram + 1

        def eval(self) -> float:
            return self.total / self.count

    mean = Mean()
    mean.update(3, None)
    assert mean.eval() == 3
    mean.reset()
    assert (mean.total, mean.count, mean.histogram.tolist(), mean._kept) == (0, 0, [0, 0], "kept")
    with pytest.raises(NotImplementedError, match="MetricBase has no update"):
        metrics.MetricBase().update(1, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: metrics.Auc(curve="X"), "curve has to be"),
        (lambda: metrics.Auc(num_thresholds=0), "num_thresholds has to be a positive number"),
        (lambda: metrics.Auc().update([1.5], [1]), "probabilities from 0 to 1"),
        (lambda: metrics.Auc().update([float("nan")], [1]), "probabilities from 0 to 1"),
        (lambda: metrics.Auc().update([0.5, 0.5], [1]), "as many labels as predictions, 2, got 1"),
        (lambda: metrics.Precision().update([0.5], [1, 0]), "as many labels as predictions"),
        (lambda: metrics.Accuracy().update("x", 1), "value has to be a number"),
        (lambda: metrics.Accuracy().update(0.5, -1), "weight has to be at least 0"),
        (lambda: metrics.CompositeMetric().add_metric(3), "metric has to be a MetricBase, got int"),  # type: ignore[arg-type]
        (lambda: fluid.average.WeightedAverage().add("x", 1), "value has to be a number"),
        (lambda: fluid.average.WeightedAverage().add(1, [1, 2]), "weight has to be a number"),
    ],
)
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        make()


def test_accuracies_may_be_arrays() -> None:
    accuracy = metrics.Accuracy()
    with pytest.raises(ValueError, match="Accuracy has no data"):
        accuracy.eval()
    accuracy.update(np.array([0.5]), 10)
    accuracy.update(np.array([0.8]), 20)
    np.testing.assert_allclose(accuracy.eval(), [0.7])
    accuracy.reset()
    accuracy.update(np.array([0.5, 1.0]), 1)
    np.testing.assert_array_equal(accuracy.eval(), [0.5, 1.0])


def test_averages_of_nothing_are_also_value_errors() -> None:
    for nothing in (fluid.average.WeightedAverage(), metrics.EditDistance()):
        with pytest.raises(ValueError, match="call"):
            nothing.eval()


def test_weighted_averages() -> None:
    average = fluid.average.WeightedAverage()
    with pytest.raises(errors.FailedPrecondition, match="nothing to average"):
        average.eval()
    average.add(np.array([1.0, 3.0]), 1)
    average.add(np.array([5.0, 7.0]), np.array([3.0]))
    np.testing.assert_array_equal(average.eval(), [4, 6])
    with pytest.raises(errors.InvalidArgument, match=r"shape of the earlier values, \[2\], got \[3\]"):
        average.add(np.zeros(3), 1)
    average.reset()
    average.add(2, 2)
    assert average.eval() == 2
    average.add(np.array([5.0]), 1)
    assert average.eval() == 3


def lod(rows: list[int], lengths: list[int]) -> Any:
    return fluid.create_lod_tensor(np.array(rows, np.int64).reshape(-1, 1), [lengths], fluid.CPUPlace())


def test_a_program_adds_up_edit_distances(exe: fluid.Executor) -> None:
    hyps, refs = (layers.data(name, [1], dtype="int64", lod_level=1) for name in ("hyps", "refs"))
    evaluator = fluid.evaluator.EditDistance(hyps, refs)
    states = [evaluator.total_distance, evaluator.seq_num, evaluator.instance_error]
    ends = ("0_total_distance", "1_seq_num", "2_instance_error")
    assert [state.name for state in states] == [f"edit_distance_0_{end}" for end in ends]
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.FailedPrecondition, match="no data"):
        evaluator.eval(exe)
    for _ in range(2):  # an evaluation and, after reset, another
        evaluator.reset(exe)
        feed = {"hyps": lod([1, 2, 3], [2, 1]), "refs": lod([1, 2, 4], [2, 1])}
        total, count = exe.run(feed=feed, fetch_list=evaluator.metrics)
        assert (total.tolist(), count.tolist(), count.dtype) == ([1.0], [1], np.int64)
        exe.run(feed={"hyps": lod([1, 1], [1, 1]), "refs": lod([2, 2, 2, 2], [2, 2])})
        distance, wrong = evaluator.eval(exe)
        assert distance.tolist() == pytest.approx([(0 + 1 + 1 + 1) / 4])  # shares of the lengths of the references
        assert wrong.tolist() == pytest.approx([3 / 4])


def test_a_program_adds_up_chunks(exe: fluid.Executor) -> None:
    tags, labels = (layers.data(name, [1], dtype="int64", lod_level=1) for name in ("tags", "labels"))
    evaluator = fluid.evaluator.ChunkEvaluator(tags, labels, "IOB", 2)
    states = [evaluator.num_infer_chunks, evaluator.num_label_chunks, evaluator.num_correct_chunks]
    kinds = ("infer", "label", "correct")
    assert [s.name for s in states] == [f"chunk_eval_0_{i}_num_{kind}_chunks" for i, kind in enumerate(kinds)]
    exe.run(fluid.default_startup_program())
    evaluator.reset(exe)
    for got in ([0, 1, 4, 2], [0, 4, 4, 2]):
        exe.run(feed={"tags": lod(got, [4]), "labels": lod([0, 1, 4, 2], [4])})
    precision, recall, f1 = evaluator.eval(exe)
    assert [float(x[0]) for x in (precision, recall, f1)] == pytest.approx([3 / 4, 3 / 4, 3 / 4])
