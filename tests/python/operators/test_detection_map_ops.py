"""detection_map against a definition in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(79)
OUTPUTS = ("MAP", "AccumPosCount", "AccumTruePos", "AccumFalsePos")
#: class → (score, whether it is there, whether it is a mistake) of each finding.
Found = dict[int, list[tuple[float, int, int]]]


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    return float(sides.prod() / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - sides.prod()))


def judged(
    label: np.ndarray, found: np.ndarray, threshold: float, count_difficult: bool
) -> tuple[dict[int, int], Found]:
    """(objects of each class, findings of each class) of an image."""
    counts = [count_difficult or len(row) == 5 or row[1] == 0 for row in label]
    objects: dict[int, int] = {}
    for row, count in zip(label, counts):
        objects[int(row[0])] = objects.get(int(row[0]), 0) + count
    findings: Found = {}
    seen = set()
    for row in found[np.argsort(-found[:, 1], kind="stable")]:
        box = row[2:].clip(0, 1)
        overlaps = [overlap(box, other[-4:]) if other[0] == row[0] else -1.0 for other in label]
        best = int(np.argmax(overlaps)) if overlaps else -1
        finds = best >= 0 and overlaps[best] > threshold
        if finds and not counts[best]:
            continue
        is_true = finds and best not in seen
        seen |= {best} if is_true else set()
        findings.setdefault(int(row[0]), []).append((float(row[1]), int(is_true), int(not is_true)))
    return objects, findings


def average(findings: list[tuple[float, int, int]], objects: int, kind: str) -> float:
    findings = sorted(findings, key=lambda item: -item[0])
    right, wrong = np.cumsum([f[1] for f in findings]), np.cumsum([f[2] for f in findings])
    precision, recall = right / (right + wrong), right / objects
    if kind == "11point":
        return sum(max(precision[recall >= i / 10 - 1e-9], default=0.0) for i in range(11)) / 11
    return float((precision * np.diff(recall, prepend=0)).sum())


def mean_of(objects: dict[int, int], findings: Found, kind: str, background: int) -> float:
    present = [c for c, count in objects.items() if count and c != background and findings.get(c)]
    parts = [average(findings[c], objects[c], kind) for c in present]
    return sum(parts) / len(parts) if parts else 0.0


def batch(images: int, difficult: bool, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Objects in each image, and findings near them, elsewhere, twice, and of the wrong class."""
    labels, founds = [], []
    for n in range(images):
        count = int(rng.integers(0, 5)) if n else 0
        low = rng.uniform(0, 0.6, (count, 2))
        box = np.concatenate([low, low + rng.uniform(0.1, 0.4, (count, 2))], 1)
        kind = rng.integers(0, 3, (count, 1)).astype(float)
        flags = rng.integers(0, 2, (count, 1)).astype(float)
        labels.append(np.concatenate([kind, flags, box] if difficult else [kind, box], 1))
        again = np.repeat(np.concatenate([kind, box], 1), 3, 0)
        again[:, 1:] += rng.uniform(-0.12, 0.12, again[:, 1:].shape)
        again[::5, 0] = rng.integers(0, 3, again[::5, 0].shape)
        stray = np.concatenate([rng.integers(0, 3, (2, 1)), np.tile([0.0, 0.0, 0.3, 0.2], (2, 1))], 1)
        rows = np.concatenate([again, stray])
        founds.append(np.concatenate([rows[:, :1], rng.permutation(len(rows))[:, None] / len(rows), rows[:, 1:]], 1))
    return labels, founds


def with_lod(parts: list[np.ndarray]) -> tuple[np.ndarray, list[list[int]]]:
    return np.concatenate(parts), [[len(part) for part in parts]]


def add(objects: dict[int, int], findings: Found, more: tuple[dict[int, int], Found]) -> None:
    for c, count in more[0].items():
        objects[c] = objects.get(c, 0) + count
    for c, found in more[1].items():
        findings.setdefault(c, []).extend(found)


def states(objects: dict[int, int], findings: Found, dtype: Any) -> dict[str, Any]:
    count = np.array([[objects.get(c, 0)] for c in range(3)], np.int32)
    rows = [findings.get(c, []) for c in range(3)]
    lengths = [[len(row) for row in rows]]
    flat = np.array([item for row in rows for item in row], dtype).reshape(-1, 3)
    return {"PosCount": count, "TruePos": (flat[:, :2], lengths), "FalsePos": (flat[:, [0, 2]], lengths)}


@pytest.mark.parametrize("kind", ["integral", "11point"])
@pytest.mark.parametrize("difficult", [None, True, False])
@pytest.mark.parametrize("background", [0, -1])
def test_detection_map(kind: str, difficult: bool | None, background: int) -> None:
    attrs: dict[str, Any] = {"class_num": 3, "overlap_threshold": 0.4, "ap_type": kind, "background_label": background}
    if difficult is not None:
        attrs["evaluate_difficult"] = difficult
    objects: dict[int, int] = {}
    findings: Found = {}
    before: dict[str, Any] = {}
    for images in (12, 9):  # the second batch on top of the first
        labels, founds = batch(images, difficult is not None, RNG)
        for label, found in zip(labels, founds):
            add(objects, findings, judged(label, found, 0.4, difficult is not False))
        after = states(objects, findings, np.float64)
        outputs = {f"Accum{name}": value for name, value in after.items()}
        outputs["MAP"] = np.array([mean_of(objects, findings, kind, background)])
        assert 0.1 < outputs["MAP"][0] < 0.95
        inputs = {"DetectRes": with_lod(founds), "Label": with_lod(labels), **before}
        OpTest("detection_map", inputs, attrs, outputs, known=["PosCount"]).check_outputs()
        if before:
            given = {**inputs, "HasState": np.array([1], np.int32)}
            OpTest("detection_map", given, attrs, outputs, known=["PosCount"]).check_outputs()
        before = after


def test_a_state_does_not_count_before_there_is_one() -> None:
    labels, founds = batch(4, False, RNG)
    inputs = {"DetectRes": with_lod(founds), "Label": with_lod(labels)}
    attrs = {"class_num": 3}
    alone = OpTest("detection_map", inputs, attrs, dict.fromkeys(OUTPUTS)).run()
    other = {"PosCount": np.zeros((1, 1), np.int32), "TruePos": np.zeros((1, 2)), "FalsePos": np.zeros((1, 2))}
    inputs |= {**other, "HasState": np.zeros(1, np.int32)}
    result = OpTest("detection_map", inputs, attrs, dict.fromkeys(OUTPUTS)).run()
    for slot in OUTPUTS:
        np.testing.assert_array_equal(np.asarray(result[slot][0]), np.asarray(alone[slot][0]))


def test_nothing_was_found() -> None:
    """As multiclass_nms says it."""
    labels, _ = batch(4, False, RNG)
    inputs = {"DetectRes": (np.array([[-1.0]]), [[1]]), "Label": with_lod(labels)}
    empty = np.zeros((0, 2)), [[0, 0, 0]]
    outputs = {"MAP": np.zeros(1), "AccumPosCount": None, "AccumTruePos": empty, "AccumFalsePos": empty}
    OpTest("detection_map", inputs, {"class_num": 3}, outputs, known=["DetectRes"]).check_outputs()


def test_a_class_of_which_nothing_was_found_does_not_count() -> None:
    box, other = [0.1, 0.1, 0.3, 0.3], [0.5, 0.5, 0.8, 0.8]
    inputs = {
        "DetectRes": (np.array([[1, 0.9, *box]]), [[1]]),
        "Label": (np.array([[1, *box], [2, *other]]), [[2]]),
    }
    (mean,) = OpTest("detection_map", inputs, {"class_num": 3}, dict.fromkeys(OUTPUTS)).run()["MAP"]
    assert np.array(mean).tolist() == [1.0]


def test_what_has_no_score_comes_first() -> None:
    box, other = [0.1, 0.1, 0.4, 0.4], [0.6, 0.6, 0.9, 0.9]
    found = np.array([[1, 0.5, *box], [1, np.nan, *other], [1, 0.9, *box]])
    inputs = {"DetectRes": (found, [[3]]), "Label": (np.array([[1, *box]]), [[1]])}
    outputs = {"MAP": np.array([0.5]), "AccumPosCount": None, "AccumFalsePos": None}
    outputs["AccumTruePos"] = np.array([[np.nan, 0], [0.9, 1], [0.5, 0]]), [[0, 3]]
    OpTest("detection_map", inputs, {"class_num": 2}, outputs).check_outputs()


def test_what_is_no_list_of_findings_is_refused() -> None:
    labels, founds = batch(3, False, RNG)
    good: dict[str, Any] = {"DetectRes": with_lod(founds), "Label": with_lod(labels)}
    state = states({0: 1}, {0: [(0.5, 1, 0)]}, np.float64)
    width = good["DetectRes"][0][:, :5], good["DetectRes"][1]
    kind = good["DetectRes"][0].copy()
    kind[0, 0] = 3
    half = np.array([[0.5, 0.1, 0.1, 0.2, 0.2]]), [[0, 1, 0]]
    fewer = {"FalsePos": (np.zeros((1, 2)), [[0, 0, 1]])}
    for changed, attrs, error, parts, when in (
        ({"DetectRes": width}, {}, ValueError, ("input DetectRes", "[-1, 6]"), "build"),
        ({"Label": (np.ones((2, 7)), [[1, 1]])}, {}, ValueError, ("input Label", "5 or 6"), "build"),
        ({"PosCount": state["PosCount"]}, {}, ValueError, ("PosCount, TruePos and FalsePos",), "build"),
        ({}, {"class_num": 0}, ValueError, ("attribute class_num", "got 0"), "build"),
        ({}, {"ap_type": "mean"}, ValueError, ("attribute ap_type", "'mean'"), "build"),
        ({"DetectRes": (kind, good["DetectRes"][1])}, {}, IndexError, ("input DetectRes", "class 3", "[0, 3)"), "run"),
        ({"Label": half}, {}, IndexError, ("input Label", "row 0", ".5"), "run"),
        ({"DetectRes": (kind[:2], [[2]])}, {}, ValueError, ("input DetectRes", "expected 3 sequences"), "run"),
        ({"DetectRes": kind}, {}, ValueError, ("input DetectRes", "LoD"), "run"),
        ({**state, **fewer}, {}, ValueError, ("input FalsePos", "LoD of TruePos"), "run"),
        ({**state, "PosCount": np.zeros((2, 1), np.int32)}, {}, ValueError, ("input PosCount", "3 elements"), "run"),
    ):
        test = OpTest(
            "detection_map",
            {**good, **changed},
            {"class_num": 3, **attrs},  # type: ignore[dict-item]
            dict.fromkeys(OUTPUTS),
            known=[*good, *state],
        )
        test.check_refused(error, *parts, when=when)
