"""No rows, no sequences of any length, no images: of the operators that test_rows leaves out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest


def none(*shape: int, dtype: Any = np.float64) -> np.ndarray:
    return np.zeros(shape, dtype)


def ids(*shape: int) -> np.ndarray:
    return none(*shape, dtype=np.int64)


NO_CHUNKS = {name: none(1, dtype=np.float32) for name in ("Precision", "Recall", "F1-Score")} | {
    name: ids(1) for name in ("NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
}
COUNTS = {"num_updates": 3, "num_accumulates": 1, "old_num_accumulates": 7}
CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("chunk_eval", {"Inference": (ids(0, 1), [[0]]), "Label": (ids(0, 1), [[0]])}, {"num_chunk_types": 2}, NO_CHUNKS),
    (
        "chunk_eval",
        {"Inference": ids(0, 3), "Label": ids(0, 3), "SeqLength": ids(0)},
        {"num_chunk_types": 2},
        NO_CHUNKS,
    ),
    ("ctc_align", {"Input": ids(0, 3), "InputLength": ids(0, 1)}, {}, {"Output": ids(0, 3), "OutputLength": ids(0, 1)}),
    (
        "edit_distance",
        {"Hyps": (ids(0, 1), [[0, 0]]), "Refs": (ids(0, 1), [[0, 0]])},
        {},
        {"Out": none(2, 1, dtype=np.float32), "SequenceNum": np.array([2])},
    ),
    (
        "edit_distance",
        {"Hyps": ids(0, 3), "Refs": ids(0, 2), "HypsLength": ids(0, 1), "RefsLength": ids(0, 1)},
        {},
        {"Out": none(0, 1, dtype=np.float32), "SequenceNum": ids(1)},
    ),
    (
        "nce",
        {"Input": none(0, 3), "Label": ids(0, 1), "Weight": np.ones((6, 3))},
        {"num_total_classes": 6, "num_neg_samples": 4},
        {"Cost": none(0, 1), "SampleLogits": none(0, 5), "SampleLabels": ids(0, 5)},
    ),
    (
        "sample_logits",
        {"Logits": none(0, 6), "Labels": ids(0, 1)},
        {"num_samples": 4},
        {
            "Samples": ids(0, 5),
            "Probabilities": none(0, 5),
            "SampledLogits": none(0, 5),
            "SampledLabels": ids(0, 1),
            "LogitsDim": None,
            "LabelsDim": None,
        },
    ),
    ("random_crop", {"X": none(0, 4), "Seed": ids(1)}, {"shape": [2]}, {"Out": none(0, 2), "SeedOut": None}),
    ("sampling_id", {"X": none(0, 4)}, {}, {"Out": ids(0)}),
    ("where", {"Condition": none(0, 2, dtype=bool)}, {}, {"Out": ids(0, 2)}),
    (
        "prior_box",
        {"Input": none(1, 1, 0, 2), "Image": none(1, 3, 4, 4)},
        {"min_sizes": [2.0], "aspect_ratios": [1.0]},
        {"Boxes": none(0, 2, 1, 4), "Variances": none(0, 2, 1, 4)},
    ),
    (
        "density_prior_box",
        {"Input": none(1, 1, 2, 0), "Image": none(1, 3, 4, 4)},
        {"fixed_sizes": [2.0], "fixed_ratios": [1.0], "densities": [1], "flatten_to_2d": True},
        {"Boxes": none(0, 4), "Variances": none(0, 4)},
    ),
    (
        "bipartite_match",
        {"DistMat": (none(0, 3), [[0]])},
        {"match_type": "per_prediction"},
        {"ColToRowMatchIndices": np.full((1, 3), -1, np.int32), "ColToRowMatchDist": none(1, 3)},
    ),
    (
        "mine_hard_examples",
        {"ClsLoss": none(2, 0), "MatchIndices": none(2, 0, dtype=np.int32), "MatchDist": none(2, 0)},
        {},
        {"NegIndices": (none(0, 1, dtype=np.int32), [[0, 0]]), "UpdatedMatchIndices": none(2, 0, dtype=np.int32)},
    ),
    (
        "target_assign",
        {"X": (none(0, 1, 2), [[0]]), "MatchIndices": np.full((1, 3), -1, np.int32)},
        {},
        {"Out": none(1, 3, 2), "OutWeight": none(1, 3, 1, dtype=np.float32)},
    ),
    (
        "multiclass_nms2",
        {"BBoxes": none(2, 0, 4), "Scores": none(2, 3, 0)},
        {"score_threshold": 0.0, "nms_top_k": -1, "keep_top_k": -1},
        {"Out": (none(0, 6), [[0, 0]]), "Index": (none(0, 1, dtype=np.int32), [[0, 0]])},
    ),
    (
        "detection_map",
        {"DetectRes": (none(0, 6), [[0]]), "Label": (none(0, 5), [[0]])},
        {"class_num": 2},
        {"MAP": none(1), "AccumPosCount": none(2, 1, dtype=np.int32)}
        | {f"Accum{name}": (none(0, 2), [[0, 0]]) for name in ("TruePos", "FalsePos")},
    ),
    ("fill", {}, {"shape": [0, 2], "value": []}, {"Out": none(0, 2, dtype=np.float32)}),
    ("fill_constant", {}, {"shape": [2, 0]}, {"Out": none(2, 0, dtype=np.float32)}),
    ("assign_value", {}, {"shape": [0], "fp32_values": []}, {"Out": none(0, dtype=np.float32)}),
    ("gaussian_random", {}, {"shape": [0, 2]}, {"Out": none(0, 2, dtype=np.float32)}),
    ("truncated_gaussian_random", {}, {"shape": [0, 2]}, {"Out": none(0, 2, dtype=np.float32)}),
    ("uniform_random", {}, {"shape": [2, 0]}, {"Out": none(2, 0, dtype=np.float32)}),
    (
        "average_accumulates",
        {"param": none(0, 2), **{f"in_sum_{i}": none(0, 2) for i in (1, 2, 3)}}
        | {f"in_{name}": np.array([n]) for name, n in COUNTS.items()},
        {"min_average_window": 9, "max_average_window": 9},
        {f"out_sum_{i}": none(0, 2) for i in (1, 2, 3)}
        | {"out_num_updates": np.array([4]), "out_num_accumulates": np.array([2])}
        | {"out_old_num_accumulates": np.array([7])},
    ),
]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attrs", "outputs"), CASES, ids=[f"{case[0]}-{'-'.join(case[1])}" for case in CASES]
)
def test_what_nothing_gives(
    op_type: str, inputs: dict[str, Any], attrs: dict[str, Any], outputs: dict[str, Any]
) -> None:
    known = [slot for slot in inputs if slot.startswith("in_") and "num" in slot]
    OpTest(op_type, inputs, attrs, outputs, known).check_outputs()


@pytest.mark.parametrize(
    ("op_type", "inputs", "part"),
    [
        ("accuracy", {"Out": none(0, 2), "Indices": ids(0, 2), "Label": ids(0, 1)}, "Indices"),
        ("increment", {"X": none(0)}, "X"),
        ("mean", {"X": none(0)}, "X"),
    ],
    ids=["accuracy", "increment", "mean"],
)
def test_what_needs_something_refuses_nothing(op_type: str, inputs: dict[str, Any], part: str) -> None:
    outputs = dict.fromkeys(("Accuracy", "Correct", "Total") if op_type == "accuracy" else ("Out",))
    OpTest(op_type, inputs, {}, outputs).check_refused(ValueError, part)
