"""Uses of operators whose results are not rows that follow from rows, in the form of :mod:`row_cases`.

They fill, draw, count or search. So the checks of rows do not apply, but those of memory and threads do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from row_cases import Inputs, Rows, bits, boxes, lengths_of, numbers, whole

from headrace.fluid import core

_INT64, _FLOAT64 = 3, 6  # VarType

#: Operators with a kernel, or with an output that may be written in place, whose variables are no tensors, or which
#: control what others do: tests of their own take care. Gradient operators run with those that they belong to.
ELSEWHERE = re.compile(
    r".*_grad2?|test_.*|plugin_.*|merge_selected_rows|get_tensor_from_selected_rows"
    r"|lod_tensor_to_array|write_to_array|tensor_array_to_tensor|while|conditional_block|recurrent"
)


def covered() -> set[str]:
    """The operators that have to be among the cases, here or in row_cases."""
    infos = ((t, core.op_info(t)) for t in core.op_types() if not ELSEWHERE.fullmatch(t))
    return {t for t, info in infos if info["kernels"] or info["in_place"]}


def nothing(n: int, w: int) -> Inputs:
    return {}


def like(n: int, w: int) -> Inputs:
    return {"Input": numbers(n, w)}


def numbers_to(n: int, w: int) -> Inputs:
    return {"Start": np.array([0.0]), "End": np.array([float(n)]), "Step": np.array([1.0])}


def linspace(n: int, w: int) -> Inputs:
    return {"Start": np.array([0.5]), "Stop": np.array([1.0]), "Num": np.array([n], np.int32)}


def tokens(n: int, seed: int) -> tuple[np.ndarray, list[list[int]]]:
    return whole(sum(lengths_of(n)[0]), 1, seed=seed), lengths_of(n)


def beams(n: int, w: int) -> Inputs:
    """``n`` sources with one prefix each."""
    lod = [[1] * n, [1] * n]
    return {
        "pre_ids": whole(n, 1, seed=4) + 1,
        "pre_scores": numbers(n, 1),
        "ids": (whole(n, w, below=50), lod),
        "scores": (numbers(n, w, seed=5), lod),
    }


def accumulated(n: int, w: int, updates: int, terms: int) -> Inputs:
    return {
        "param": numbers(n, w),
        **{f"in_sum_{i}": numbers(n, w, seed=3 + i) for i in (1, 2, 3)},
        "in_num_accumulates": np.array([terms]),
        "in_old_num_accumulates": np.array([7]),
        "in_num_updates": np.array([updates]),
    }


def pixel_boxes(n: int) -> np.ndarray:
    corner = numbers(n, 2, low=0, high=20, seed=6)
    return np.concatenate([corner, corner + numbers(n, 2, low=4, high=9, seed=7)], 1)


def objects(n: int, slot: str, label: str | None) -> Inputs:
    """An object in each of ``n`` images, and what may be seen of it, in ``slot``."""
    found = pixel_boxes(9 * n) if slot == "RpnRois" else pixel_boxes(9)
    return {
        slot: (found, [[9] * n]) if slot == "RpnRois" else found,
        "GtBoxes": (pixel_boxes(n), [[1] * n]),
        "IsCrowd": (np.zeros(n, np.int32), [[1] * n]),
        "ImInfo": np.tile([30.0, 30.0, 1.0], (n, 1)),
        **({} if label is None else {label: (whole(n, 1, dtype=np.int32), [[1] * n])}),
    }


def trees(n: int, w: int) -> Inputs:
    return {"Ids": whole(n, w, 2, below=9), "Parents": whole(n, w, 2, below=2)}


def maps(n: int, w: int) -> Inputs:
    return {"Input": numbers(1, 1, n, w), "Image": numbers(1, 3, 2 * n, 2 * w)}


def matches(n: int, w: int) -> Inputs:
    """Of ``w`` prior boxes in each of ``n`` images."""
    return {
        "ClsLoss": numbers(n, w),
        "MatchIndices": whole(n, w, below=3, dtype=np.int32) - 1,
        "MatchDist": numbers(n, w, low=0.1, seed=4),
    }


def findings(n: int, w: int) -> Inputs:
    """In ``n`` images, and ``n`` of each of two classes in those before."""
    lengths = [[2] * n]
    of_class = (np.concatenate([numbers(2 * n, 1), bits(2 * n, 1)], 1), [[n, n]])
    return {
        "DetectRes": (np.concatenate([whole(2 * n, 1, below=2), numbers(2 * n, 1), boxes(2 * n)], 1), lengths),
        "Label": (np.concatenate([whole(2 * n, 1, below=2, seed=4), boxes(2 * n, seed=5)], 1), lengths),
        "PosCount": np.full((2, 1), n, np.int32),
        "TruePos": of_class,
        "FalsePos": (np.concatenate([of_class[0][:, :1], 1 - of_class[0][:, 1:]], 1), [[n, n]]),
    }


def _use(inputs: Any, attrs: dict[str, Any], *outputs: str, others: tuple[str, ...] = (), **more: Any) -> Rows:
    return Rows(inputs, attrs, outputs, **{"by": (), "others": others, "lod": (), "by_row": False, **more})


def _cases() -> Iterator[tuple[str, Rows]]:
    # what fills and draws
    large = {"shape": [200, 3], "dtype": _FLOAT64}
    yield "assign_value", _use(nothing, {"shape": [400], "dtype": _INT64, "int64_values": list(range(400))}, "Out")
    yield "fill", _use(nothing, {**large, "value": [0.5] * 600}, "Out")
    yield "fill_constant", _use(nothing, {**large, "value": 0.5}, "Out")
    yield "fill_constant_batch_size_like", _use(like, {**large, "shape": [-1, 3], "value": 0.5}, "Out")
    yield "eye", _use(nothing, {"num_rows": 30, "num_columns": 40, "dtype": _FLOAT64}, "Out")
    yield "diag", _use(lambda n, w: {"Diagonal": numbers(n)}, {}, "Out", many=200)
    yield "range", _use(numbers_to, {}, "Out")
    yield "linspace", _use(linspace, {}, "Out")
    for op_type in ("gaussian_random", "truncated_gaussian_random", "uniform_random"):
        yield op_type, _use(nothing, {**large, "seed": 5}, "Out")
    for op_type in ("gaussian_random_batch_size_like", "uniform_random_batch_size_like"):
        yield op_type, _use(like, {**large, "shape": [-1, 3], "seed": 5}, "Out")
    yield "sampling_id", _use(lambda n, w: {"X": np.full((n, 4), 0.25)}, {"seed": 5}, "Out")
    yield (
        "random_crop",
        _use(lambda n, w: {"X": numbers(n, 5), "Seed": np.array([3])}, {"shape": [2]}, "Out", "SeedOut"),
    )
    yield (
        "nce",
        _use(
            lambda n, w: {"Input": numbers(n, w), "Label": whole(n, 1, below=6), "Weight": numbers(6, w, seed=4)},
            {"num_total_classes": 6, "num_neg_samples": 3, "seed": 5},
            "Cost",
            others=("SampleLogits", "SampleLabels"),
            by=("Input", "Weight"),
        ),
    )

    yield (
        "sample_logits",
        _use(
            lambda n, w: {"Logits": numbers(n, 6), "Labels": whole(n, 1, below=6)},
            {"num_samples": 3, "seed": 5},
            "SampledLogits",
            "Samples",
            "Probabilities",
            "SampledLabels",
            others=("LogitsDim", "LabelsDim"),
            by=("Logits",),
        ),
    )

    # what searches and counts
    yield "where", _use(lambda n, w: {"Condition": bits(n, w)}, {}, "Out")
    for op_type in ("unique", "unique_with_counts"):
        counts = ("Count",) if op_type == "unique_with_counts" else ()
        yield op_type, _use(lambda n, w: {"X": whole(n, below=300)}, {"dtype": _INT64}, "Out", "Index", *counts)
    yield "ctc_align", _use(lambda n, w: {"Input": tokens(n, 2)}, {}, "Output")
    yield (
        "edit_distance",
        _use(lambda n, w: {"Hyps": tokens(n, 2), "Refs": tokens(n, 3)}, {}, "Out", "SequenceNum"),
    )
    chunks = ("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
    yield (
        "chunk_eval",
        _use(lambda n, w: {"Inference": tokens(n, 2), "Label": tokens(n, 3)}, {"num_chunk_types": 2}, *chunks),
    )
    yield "gather_tree", _use(trees, {}, "Out", many=2000)
    yield "beam_search", _use(beams, {"beam_size": 2}, "selected_ids", "selected_scores", "parent_idx", many=3000)

    # boxes
    sizes = {"min_sizes": [2.0, 4.0], "max_sizes": [3.0, 5.0], "aspect_ratios": [2.0]}
    yield "prior_box", _use(maps, sizes, "Boxes", "Variances", many=2000)
    sizes = {"fixed_sizes": [2.0, 4.0], "fixed_ratios": [1.0, 2.0], "densities": [1, 2]}
    yield "density_prior_box", _use(maps, sizes, "Boxes", "Variances", many=2000)
    yield (
        "bipartite_match",
        _use(
            lambda n, w: {"DistMat": (numbers(sum(lengths_of(n)[0]), w), lengths_of(n))},
            {"match_type": "per_prediction"},
            *("ColToRowMatchIndices", "ColToRowMatchDist"),
            many=3000,
        ),
    )
    yield "mine_hard_examples", _use(matches, {}, "NegIndices", "UpdatedMatchIndices", many=3000)
    yield (
        "target_assign",
        _use(
            lambda n, w: {
                "X": (numbers(n, w, 3), [[1] * n]),
                "MatchIndices": whole(n, w, below=2, dtype=np.int32) - 1,
                "NegIndices": (whole(n, 1, below=w, dtype=np.int32), [[1] * n]),
            },
            {},
            *("Out", "OutWeight"),
        ),
    )
    for op_type in ("multiclass_nms", "multiclass_nms2", "locality_aware_nms"):
        index = ("Index",) if op_type == "multiclass_nms2" else ()
        nms = {"score_threshold": 0.6, "nms_top_k": 8, "keep_top_k": 9}
        yield (
            op_type,
            _use(
                lambda n, w: {"BBoxes": boxes(n, 9 * w), "Scores": numbers(n, 3, 9 * w, seed=4)},
                nms,
                *("Out", *index),
                many=600,
            ),
        )

    # what detectors propose, and what they learn from
    shapes = {"anchor_sizes": [32.0, 64.0], "aspect_ratios": [0.5, 1.0], "stride": [16.0, 16.0]}
    yield (
        "anchor_generator",
        _use(lambda n, w: {"Input": numbers(1, 2, 3, n)}, shapes, "Anchors", "Variances", many=300),
    )
    yield (
        "generate_proposals",
        _use(
            lambda n, w: {
                "Scores": numbers(n, 2, 3, w),
                "BboxDeltas": numbers(n, 8, 3, w, seed=4),
                "ImInfo": np.tile([30.0, 30.0, 1.0], (n, 1)),
                "Anchors": pixel_boxes(6 * w).reshape(3, w, 2, 4),
                "Variances": numbers(3, w, 2, 4, seed=5),
            },
            {"pre_nms_topN": 10, "post_nms_topN": 5, "nms_thresh": 0.5, "min_size": 1.0},
            *("RpnRois", "RpnRoiProbs"),
            many=50,
            ordinary=("ImInfo",),
        ),
    )
    targets = ("LocationIndex", "ScoreIndex", "TargetLabel", "TargetBBox", "BBoxInsideWeight")
    proposed = ("Rois", "LabelsInt32", "BboxTargets", "BboxInsideWeights", "BboxOutsideWeights")
    for op_type, slot, label, attrs, outputs in (
        ("rpn_target_assign", "Anchor", None, {"seed": 5}, targets),
        ("retinanet_target_assign", "Anchor", "GtLabels", {}, (*targets, "ForegroundNumber")),
        ("generate_proposal_labels", "RpnRois", "GtClasses", {"class_nums": 5, "seed": 5}, proposed),
    ):
        yield (
            op_type,
            _use(
                lambda n, w, slot=slot, label=label: objects(n, slot, label),
                attrs,
                *outputs,
                many=30,
                ordinary=("Anchor", "RpnRois", "GtBoxes", "ImInfo"),
            ),
        )
    yield (
        "retinanet_detection_output",
        _use(
            lambda n, w: {
                "Scores": [numbers(n, 9, 2)],
                "BBoxes": [numbers(n, 9, 4, seed=4)],
                "Anchors": [pixel_boxes(9)],
                "ImInfo": np.tile([30.0, 30.0, 1.0], (n, 1)),
            },
            {},
            "Out",
            many=50,
            ordinary=("ImInfo", "Anchors"),
        ),
    )
    yield (
        "generate_mask_labels",
        _use(
            lambda n, w: {
                "Rois": (pixel_boxes(2 * n), [[2] * n]),
                "LabelsInt32": (whole(2 * n, 1, below=3, dtype=np.int32), [[2] * n]),
                "GtClasses": (np.ones((n, 1), np.int32), [[1] * n]),
                "IsCrowd": (np.zeros((n, 1), np.int32), [[1] * n]),
                "GtSegms": (numbers(4 * n, 2, low=0, high=30), [[1] * n, [1] * n, [4] * n]),
                "ImInfo": np.tile([30.0, 30.0, 1.0], (n, 1)),
            },
            {"num_classes": 3, "resolution": 5},
            *("MaskRois", "RoiHasMaskInt32", "MaskInt32"),
            many=50,
            ordinary=("ImInfo", "Rois", "GtSegms"),
        ),
    )
    pyramid = {"min_level": 2, "max_level": 2, "refer_level": 4, "refer_scale": 224}
    yield (
        "distribute_fpn_proposals",
        _use(
            lambda n, w: {"FpnRois": (pixel_boxes(sum(lengths_of(n)[0])), lengths_of(n))},
            pyramid,
            *("MultiFpnRois", "RestoreIndex"),
            many=300,
            ordinary=("FpnRois",),
        ),
    )
    yield (
        "collect_fpn_proposals",
        _use(
            lambda n, w: {
                "MultiLevelRois": [(pixel_boxes(sum(lengths_of(n)[0])), lengths_of(n))],
                "MultiLevelScores": [(numbers(sum(lengths_of(n)[0]), 1), lengths_of(n))],
            },
            {"post_nms_topN": 20},
            "FpnRois",
            many=300,
        ),
    )

    # metrics and averages with a state
    states = tuple(f"Accum{name}" for name in ("PosCount", "TruePos", "FalsePos"))
    yield "detection_map", _use(findings, {"class_num": 2}, "MAP", *states, ordinary=("DetectRes", "Label"), many=2000)
    for steps in (0, 1):
        buckets = 4096 + steps * 4097
        yield (
            "auc",
            _use(
                lambda n, w, buckets=buckets: {
                    "Predict": numbers(n, 2),
                    "Label": whole(n, 1, below=2),
                    "StatPos": whole(1, buckets, seed=4),
                    "StatNeg": whole(1, buckets, seed=5),
                },
                {"slide_steps": steps},
                *("AUC", "StatPosOut", "StatNegOut"),
                ordinary=("Predict",),
            ),
        )
    yield (
        "positive_negative_pair",
        _use(
            lambda n, w: {
                "Score": numbers(n, w),
                "Label": whole(n, 1).astype(np.float64),
                "QueryID": whole(n, 1, below=max(n // 8, 1), seed=4),
                **{f"Accumulate{name}Pair": numbers(1, seed=5) for name in ("Positive", "Negative", "Neutral")},
            },
            {},
            *("PositivePair", "NegativePair", "NeutralPair"),
        ),
    )
    yield "split_ids", _use(lambda n, w: {"Ids": [whole(n, 1, below=n), whole(n, 1, seed=3)]}, {}, "Out")
    yield (
        "merge_ids",
        _use(
            lambda n, w: {
                "Ids": whole(n, 1, below=n),
                "Rows": np.arange(n).reshape(-1, 1),
                "X": numbers(n, w),
            },
            {},
            "Out",
        ),
    )
    yield (
        "precision_recall",
        _use(
            lambda n, w: {
                "MaxProbs": numbers(n, 1),
                "Indices": whole(n, 1, below=50, dtype=np.int32),
                "Labels": whole(n, 1, below=50, seed=4, dtype=np.int32),
                "Weights": numbers(n, 1, seed=5),
                "StatesInfo": numbers(50, 4, seed=6),
            },
            {"class_number": 50},
            *("BatchMetrics", "AccumMetrics", "AccumStatesInfo"),
        ),
    )
    yield (
        "mean_iou",
        _use(
            lambda n, w: {
                "Predictions": whole(n, below=300, dtype=np.int32),
                "Labels": whole(n, below=300, seed=4, dtype=np.int32),
                "InWrongs": [whole(300, seed=5, dtype=np.int32)],
                "InCorrects": [whole(300, seed=6, dtype=np.int32)],
            },
            {"num_classes": 300},
            *("OutMeanIou", "OutWrong", "OutCorrect"),
        ),
    )
    sums = tuple(f"out_sum_{i}" for i in (1, 2, 3))
    counts = tuple(f"out_{name}" for name in ("num_accumulates", "old_num_accumulates", "num_updates"))
    for updates, terms in ((4, 1), (9, 4), (16383, 2)):  # it adds, starts anew, or moves sums on
        yield (
            "average_accumulates",
            _use(
                lambda n, w, updates=updates, terms=terms: accumulated(n, w, updates, terms),
                {"average_window": 0.5, "max_average_window": 5, "min_average_window": 3},
                *sums,
                *counts,
            ),
        )
    yield "print", _use(lambda n, w: {"In": numbers(n, w)}, {"summarize": 1}, "Out")


CASES = list(_cases())
