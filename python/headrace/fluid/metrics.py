"""Measures of a model over many batches, computed in NumPy from fetched values."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import errors
from headrace.fluid._detection_map import DetectionMAP
from headrace.fluid._refused import refusal
from headrace.fluid.average import NoData

__all__ = [
    "Accuracy",
    "Auc",
    "ChunkEvaluator",
    "CompositeMetric",
    "DetectionMAP",
    "EditDistance",
    "MetricBase",
    "Precision",
    "Recall",
]


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "metrics", name)


class MetricBase:
    """Base class of measures: :meth:`update` with each batch, :meth:`eval` at any time, :meth:`reset` in between.

    The state of a measure consists of the attributes whose names do not begin with an underscore: numbers and
    arrays, which :meth:`reset` sets to zero. Not thread-safe.

    Args:
        name: of the measure, for messages; default: the name of its class.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = type(self).__name__ if name is None else str(name)

    def __str__(self) -> str:
        return self._name

    def reset(self) -> None:
        """Forgets all batches."""
        for attribute, value in self._state().items():
            if isinstance(value, bool) or not isinstance(value, (int, float, np.ndarray, np.generic)):
                setattr(self, attribute, None)
            elif isinstance(value, np.ndarray):
                setattr(self, attribute, np.zeros_like(value))
            else:
                setattr(self, attribute, type(value)(0))

    def get_config(self) -> dict[str, Any]:
        """The name and a copy of the state."""
        return {"name": self._name, "states": copy.deepcopy(self._state())}

    def update(self, preds: Any, labels: Any) -> None:
        """Takes a batch into account."""
        raise NotImplementedError(f"{type(self).__name__} has no update: a subclass of MetricBase defines it")

    def eval(self) -> Any:
        """The measure over all batches since the last :meth:`reset`."""
        raise NotImplementedError(f"{type(self).__name__} has no eval: a subclass of MetricBase defines it")

    def _state(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


class CompositeMetric(MetricBase):
    """Several measures that take the same batches.

    Args:
        name: see :class:`MetricBase`.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._metrics: list[MetricBase] = []

    def add_metric(self, metric: MetricBase) -> None:
        """Adds a measure.

        Raises:
            InvalidArgument: it is no :class:`MetricBase`.
        """
        if not isinstance(metric, MetricBase):
            raise errors.InvalidArgument(f"metric has to be a MetricBase, got {type(metric).__name__}")
        self._metrics.append(metric)

    def update(self, preds: Any, labels: Any) -> None:
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> list[Any]:
        """The value of each, in the order in which they were added."""
        return [metric.eval() for metric in self._metrics]

    def reset(self) -> None:
        for metric in self._metrics:
            metric.reset()


class Precision(MetricBase):
    """Of the samples that are predicted to be positive, the share that is. Two classes.

    Attributes:
        tp: predicted to be positive, and positive.
        fp: predicted to be positive, and negative.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = self.fp = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Takes a batch into account.

        Args:
            preds: probabilities of the positive class, [N] or [N, 1]; from 0.5 on (rounded to even) it is predicted.
            labels: 0 or 1, as many.

        Raises:
            InvalidArgument: the shapes differ.
        """
        predicted, positive = _two_classes(preds, labels)
        self.tp += int(np.count_nonzero(predicted & positive))
        self.fp += int(np.count_nonzero(predicted & ~positive))

    def eval(self) -> float:
        return _share(self.tp, self.tp + self.fp)


class Recall(MetricBase):
    """Of the samples that are positive, the share that is predicted to be. Two classes.

    Attributes:
        tp: predicted to be positive, and positive.
        fn: predicted to be negative, and positive.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp = self.fn = 0

    def update(self, preds: Any, labels: Any) -> None:
        """See :meth:`Precision.update`."""
        predicted, positive = _two_classes(preds, labels)
        self.tp += int(np.count_nonzero(predicted & positive))
        self.fn += int(np.count_nonzero(~predicted & positive))

    def eval(self) -> float:
        return _share(self.tp, self.tp + self.fn)


class Accuracy(MetricBase):
    """The mean of ``layers.accuracy`` over all batches, weighted by the number of samples.

    Attributes:
        value: the sum of the weighted values.
        weight: the sum of the weights.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.value: Any = 0.0
        self.weight = 0.0

    def update(self, value: Any, weight: Any) -> None:
        """Takes a batch into account.

        Args:
            value: its accuracy, a number, or an array of numbers, each of which is averaged by itself.
            weight: how many samples it has.

        Raises:
            InvalidArgument: one of both is no number, or ``weight`` is negative.
        """
        weight = _number("weight", weight)
        if np.asarray(value).dtype.kind not in "biuf":
            raise errors.InvalidArgument(f"value has to be a number or an array of numbers, got {value!r}")
        value = float(value) if np.ndim(value) == 0 else np.asarray(value, np.float64)
        if weight < 0:
            raise errors.InvalidArgument(f"weight has to be at least 0, got {weight:g}")
        self.value = self.value + value * weight
        self.weight += weight

    def eval(self) -> Any:
        """The mean, a float, or an array if the values were arrays."""
        if self.weight == 0:
            raise NoData(f"{self} has no data: call update with the accuracy of each batch first")
        return self.value / self.weight


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunks, of the numbers that ``layers.chunk_eval`` gives for each batch.

    Attributes:
        num_infer_chunks, num_label_chunks, num_correct_chunks: predicted, labelled, and both.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.num_infer_chunks = self.num_label_chunks = self.num_correct_chunks = 0

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:  # type: ignore[override]
        """Takes a batch into account: numbers, or arrays of one."""
        self.num_infer_chunks += int(_number("num_infer_chunks", num_infer_chunks))
        self.num_label_chunks += int(_number("num_label_chunks", num_label_chunks))
        self.num_correct_chunks += int(_number("num_correct_chunks", num_correct_chunks))

    def eval(self) -> tuple[float, float, float]:
        """Precision, recall and F1."""
        precision = _share(self.num_correct_chunks, self.num_infer_chunks)
        recall = _share(self.num_correct_chunks, self.num_label_chunks)
        return precision, recall, _share(2 * precision * recall, precision + recall)


class EditDistance(MetricBase):
    """The mean edit distance, and the share of sequences that have any, from the results of ``layers.edit_distance``.

    Attributes:
        total_distance: of all sequences together.
        seq_num: how many sequences there were.
        instance_error: how many of them had a distance above 0.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.total_distance = 0.0
        self.seq_num = self.instance_error = 0

    def update(self, distances: Any, seq_num: Any) -> None:
        """Takes a batch into account.

        Args:
            distances: of its sequences, of any shape.
            seq_num: how many there are, a number or an array of one.

        Raises:
            InvalidArgument: these numbers differ.
        """
        distances, count = np.asarray(distances), int(_number("seq_num", seq_num))
        if distances.size != count:
            raise errors.InvalidArgument(f"expected as many distances as seq_num says, {count}, got {distances.size}")
        self.total_distance += float(distances.sum())
        self.seq_num += count
        self.instance_error += int(np.count_nonzero(distances))

    def eval(self) -> tuple[float, float]:
        """Mean distance, and share of sequences with any."""
        if self.seq_num == 0:
            raise NoData(f"{self} has no data: call update with the distances of each batch first")
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num


class Auc(MetricBase):
    """The area under the receiver operating characteristic, or the precision-recall curve, of two classes.

    Predictions are counted in ``num_thresholds + 1`` buckets of equal width; the area is the sum of trapezoids.

    Args:
        name: see :class:`MetricBase`.
        curve: "ROC" or "PR".
        num_thresholds: how finely to count.
    """

    def __init__(self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095) -> None:
        super().__init__(name)
        if curve not in ("ROC", "PR"):
            raise errors.InvalidArgument(f'curve has to be "ROC" or "PR", got {curve!r}')
        if isinstance(num_thresholds, bool) or not isinstance(num_thresholds, int) or num_thresholds < 1:
            raise errors.InvalidArgument(f"num_thresholds has to be a positive number, got {num_thresholds!r}")
        self._curve, self._num_thresholds = curve, num_thresholds
        self._stat_pos = np.zeros(num_thresholds + 1, np.int64)
        self._stat_neg = np.zeros(num_thresholds + 1, np.int64)

    def reset(self) -> None:
        self._stat_pos[:] = self._stat_neg[:] = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Takes a batch into account.

        Args:
            preds: probabilities of both classes, [N, 2], of which the second column counts; or of the positive one, [N]
                or [N, 1]. From 0 to 1.
            labels: 0 or 1, [N] or [N, 1].

        Raises:
            InvalidArgument: a prediction is not within 0 and 1, or the shapes do not fit.
        """
        preds = np.asarray(preds)
        if preds.ndim == 2 and preds.shape[1] == 2:
            preds = preds[:, 1]
        preds, labels = preds.reshape(-1), np.asarray(labels).reshape(-1)
        if preds.size != labels.size:
            raise errors.InvalidArgument(f"expected as many labels as predictions, {preds.size}, got {labels.size}")
        if not ((preds >= 0) & (preds <= 1)).all():
            raise errors.InvalidArgument("preds has to hold probabilities from 0 to 1")
        buckets = (preds * self._num_thresholds).astype(np.int64)
        positive = labels != 0
        np.add.at(self._stat_pos, buckets[positive], 1)
        np.add.at(self._stat_neg, buckets[~positive], 1)

    def eval(self) -> float:
        """The area; 0 if there is a class without samples."""
        # Of the positive predictions, from the highest threshold to the lowest.
        positives = np.concatenate(([0], np.cumsum(self._stat_pos[::-1]))).astype(np.float64)
        negatives = np.concatenate(([0], np.cumsum(self._stat_neg[::-1]))).astype(np.float64)
        if positives[-1] == 0 or (negatives[-1] == 0 and self._curve == "ROC"):
            return 0.0
        if self._curve == "ROC":
            return _area(negatives / negatives[-1], positives / positives[-1])
        predicted = positives + negatives
        # Of nothing predicted, the precision is that of the first threshold that predicts anything.
        precision = np.divide(positives, predicted, out=np.full_like(predicted, np.nan), where=predicted > 0)
        precision[np.isnan(precision)] = precision[~np.isnan(precision)][0]
        return _area(positives / positives[-1], precision)


def _area(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _number(name: str, value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise errors.InvalidArgument(f"{name} has to be a number, or an array of one, got {value!r}")
    return float(array.reshape(-1)[0])


def _two_classes(preds: Any, labels: Any) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which samples are predicted to be positive, and which are."""
    preds, labels = np.asarray(preds), np.asarray(labels)
    if preds.size != labels.size:
        raise errors.InvalidArgument(
            f"expected as many labels as predictions, got labels {list(labels.shape)}, predictions {list(preds.shape)}"
        )
    return np.rint(preds).reshape(-1) == 1, labels.reshape(-1) == 1
