"""Operators of RetinaNet and Mask R-CNN: what is found, and the masks to learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_rcnn_ops import decoded, overlaps, random_boxes, with_lod

from headrace.testing import OpTest

RNG = np.random.default_rng(83)
INFO = np.array([[60.0, 50.0, 2.0], [38.0, 46.0, 0.5]])
RETINA: dict[str, Any] = {
    "score_threshold": 0.5,
    "nms_top_k": 12,
    "nms_threshold": 0.3,
    "nms_eta": 1.0,
    "keep_top_k": 6,
}


def levels(*sizes: int) -> dict[str, Any]:
    return {
        "Scores": [RNG.uniform(0, 1, (2, size, 3)) for size in sizes],
        "BBoxes": [RNG.uniform(-0.5, 0.5, (2, size, 4)) for size in sizes],
        "Anchors": [random_boxes(size, 50) for size in sizes],
        "ImInfo": INFO,
    }


def found(inputs: dict[str, Any], attrs: dict[str, Any], n: int) -> np.ndarray:
    height, width, scale = INFO[n]
    rows = []
    for level, scores in enumerate(inputs["Scores"]):
        flat = scores[n].ravel()
        threshold = attrs["score_threshold"] if level + 1 < len(inputs["Scores"]) else 0
        most = attrs["nms_top_k"] if attrs["nms_top_k"] >= 0 else None
        order = [i for i in np.argsort(-flat, kind="stable") if flat[i] > threshold][:most]
        anchors = inputs["Anchors"][level][[i // 3 for i in order]]
        boxes = decoded(inputs["BBoxes"][level][n][[i // 3 for i in order]], anchors, np.ones(4), np.inf) / scale
        last = np.array([np.round(width / scale), np.round(height / scale)] * 2) - 1
        boxes = np.clip(boxes, 0, last)
        rows += [[i % 3 + 1, flat[i], *box] for i, box in zip(order, boxes)]
    rows.sort(key=lambda row: -row[1])
    kept: list[list[float]] = []
    for kind in (1, 2, 3):
        threshold, mine = attrs["nms_threshold"], []
        for row in (row for row in rows if row[0] == kind):
            box = np.array([row[2:]])
            if not mine or overlaps(box, np.array(mine)[:, 2:]).max() <= threshold:
                mine.append(row)
                if attrs["nms_eta"] < 1 and threshold > 0.5:
                    threshold *= attrs["nms_eta"]
        kept += mine
    kept.sort(key=lambda row: -row[1])
    return np.array(kept[: attrs["keep_top_k"] if attrs["keep_top_k"] >= 0 else None]).reshape(-1, 6)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"nms_top_k": -1, "keep_top_k": -1},
        {"nms_threshold": 0.8, "nms_eta": 0.7, "keep_top_k": 40},
        {"keep_top_k": 0},
    ],
    ids=str,
)
def test_retinanet_detection_output(changed: dict[str, Any]) -> None:
    inputs, attrs = levels(14, 9, 4), {**RETINA, **changed}
    expected = [found(inputs, attrs, n) for n in range(2)]
    outputs = {"Out": with_lod(np.concatenate(expected), *map(len, expected))}
    OpTest("retinanet_detection_output", inputs, attrs, outputs).check_outputs()


def test_retinanet_detection_output_refuses_levels_that_differ() -> None:
    good = levels(5, 3)
    for changed, error, parts in (
        ({"Anchors": good["Anchors"][:1]}, ValueError, ("expected a variable for each", "2, 2 and 1")),
        ({"Scores": [good["Scores"][0], good["Scores"][1][:, :, :2]]}, ValueError, ("input Scores", "[2, -1, 3]")),
        ({"BBoxes": [good["BBoxes"][0][:, :4], good["BBoxes"][1]]}, ValueError, ("input BBoxes", "[2, 5, 4]")),
        ({"Anchors": [good["Anchors"][0], good["Anchors"][0]]}, ValueError, ("input Anchors", "[3, 4]")),
        ({"ImInfo": INFO[:1]}, ValueError, ("input ImInfo", "[2, 3]")),
        ({"ImInfo": INFO.astype(np.float32)}, TypeError, ("input ImInfo", "float32")),
    ):
        known = ["Scores", "BBoxes", "Anchors", "ImInfo"]
        test = OpTest("retinanet_detection_output", {**good, **changed}, RETINA, {"Out": None}, known)
        test.check_refused(error, *parts)


def inside(polygon: np.ndarray, x: float, y: float) -> bool:
    """Whether a polygon goes around a place: whether a ray from there crosses its border an odd number of times."""
    ends = np.roll(polygon, -1, 0)
    crossed = (polygon[:, 1] > y) != (ends[:, 1] > y)
    with np.errstate(all="ignore"):
        at = polygon[:, 0] + (y - polygon[:, 1]) * (ends[:, 0] - polygon[:, 0]) / (ends[:, 1] - polygon[:, 1])
    return bool((crossed & (at > x)).sum() % 2)


SLOTS = ("MaskRois", "RoiHasMaskInt32", "MaskInt32")
MASKS = {"num_classes": 3, "resolution": 8}
#: The first image has two objects, of which one consists of two parts, and one that stands for many; the second none.
OUTLINES = [
    [[(2, 3), (18, 5), (12, 19)]],
    [[(30, 30), (44, 30), (44, 39), (30, 39)], [(31, 41), (40, 44), (33, 48)]],
    [[(1, 1), (49, 1), (49, 49), (1, 49)]],
]


def mask_inputs() -> dict[str, Any]:
    points = np.array([corner for outline in OUTLINES for polygon in outline for corner in polygon], float)
    lod = [[3, 0], [len(o) for o in OUTLINES], [len(p) for o in OUTLINES for p in o]]
    rois = np.array([[0, 0, 40, 40], [58, 57, 99, 99], [5, 4, 41, 39], [4, 4, 24, 24], [10, 10, 30, 30]], float)
    return {
        "Rois": with_lod(rois, 3, 2),
        "LabelsInt32": with_lod(np.array([[2], [1], [0], [0], [0]], np.int32), 3, 2),
        "GtClasses": with_lod(np.array([2, 1, 1], np.int32), 3, 0),
        "IsCrowd": with_lod(np.array([0, 0, 1], np.int32), 3, 0),
        "GtSegms": (points, lod),
        "ImInfo": np.array([[100.0, 100.0, 2.0], [50.0, 50.0, 1.0]]),
    }


def test_generate_mask_labels() -> None:
    inputs = mask_inputs()
    rois = inputs["Rois"][0]
    masks = np.full((3, 3 * 64), -1)
    sure = np.ones(masks.shape, bool)
    for row, outline in enumerate(OUTLINES[:2]):
        roi = rois[row] / 2
        step = (roi[2:] - roi[:2]) / 8
        for y in range(8):
            for x in range(8):
                at = (2 - row) * 64 + 8 * y + x
                places = [
                    roi[:2] + (np.array([x, y]) + 0.5 + d) * step
                    for d in ((0, 0), (0, 0.25), (0, -0.25), (0.25, 0), (-0.25, 0))
                ]
                values = {any(inside(np.array(polygon, float), *place) for polygon in outline) for place in places}
                masks[row, at] = max(values)
                sure[row, at] = len(values) == 1
    assert sure.sum() > 500
    outputs: dict[str, Any] = {
        "MaskRois": with_lod(rois[[0, 1, 3]], 2, 1),
        "RoiHasMaskInt32": with_lod(np.array([[0], [1], [0]], np.int32), 2, 1),
        "MaskInt32": None,
    }
    test = OpTest("generate_mask_labels", inputs, MASKS, outputs)
    test.check_outputs()
    tensor = test.run()["MaskInt32"][0]
    assert tensor.recursive_sequence_lengths() == [[2, 1]]
    value = np.asarray(tensor)
    np.testing.assert_array_equal(value[sure], masks[sure])
    for row, at in ((0, 2), (1, 1)):  # there is something of each
        assert set(np.unique(value[row, 64 * at : 64 * at + 64])) == {0, 1}
    # The rest of the border is not far off.
    assert ((value == 0) | (value == 1) | ~sure).sum() >= (~sure).sum()


def coco(mask_size: int, polygon: list[tuple[float, float]]) -> np.ndarray:
    """The mask of a polygon in a region that is as large as the mask."""
    rois = np.array([[0.0, 0, mask_size, mask_size]])
    inputs = {
        "Rois": with_lod(rois, 1),
        "LabelsInt32": with_lod(np.array([[1]], np.int32), 1),
        "GtClasses": with_lod(np.array([1], np.int32), 1),
        "IsCrowd": with_lod(np.array([0], np.int32), 1),
        "GtSegms": (np.array(polygon, float), [[1], [1], [len(polygon)]]),
        "ImInfo": np.array([[mask_size, mask_size, 1.0]]),
    }
    test = OpTest("generate_mask_labels", inputs, {"num_classes": 2, "resolution": mask_size}, dict.fromkeys(SLOTS))
    return np.asarray(test.run()["MaskInt32"][0])[0, mask_size**2 :].reshape(mask_size, mask_size)


def test_masks_are_those_of_cocos_tools() -> None:
    # What mask.frPyObjects and mask.decode of pycocotools 2.0 give.
    square = np.zeros((6, 6), int)
    square[1:4, 2:5] = 1
    np.testing.assert_array_equal(coco(6, [(2, 1), (5, 1), (5, 4), (2, 4)]), square)
    np.testing.assert_array_equal(coco(6, [(2, 4), (5, 4), (5, 1), (2, 1)]), square)  # the other way round
    np.testing.assert_array_equal(coco(6, [(1.5, 0.5), (4.5, 0.5), (4.5, 3.5), (1.5, 3.5)]), square)
    for polygon, rows in (
        ([(0.3, 0.9), (4.6, 1.2), (2.2, 4.4)], ["00000", "01110", "01110", "00100", "00000"]),
        ([(0, 0), (4, 0), (0, 4)], ["11100", "11000", "10000", "00000", "00000"]),
        ([(1, 1), (4, 4), (4, 1), (1, 4)], ["00000", "01010", "01010", "00000", "00000"]),
        ([(-3, 2), (2, -3), (8, 2), (2, 8)], ["11111"] * 5),
    ):
        np.testing.assert_array_equal(coco(5, polygon), [[int(pixel) for pixel in row] for row in rows])
    # Larger than the region, from far beyond it.
    assert coco(5, [(-1e9, -1e9), (1e9, -1e9), (1e9, 1e9), (-1e9, 1e9)]).all()
    assert not coco(5, [(7, 7), (9, 7), (9, 9)]).any()


def test_generate_mask_labels_refuses_what_does_not_go_together() -> None:
    good, outputs = mask_inputs(), dict.fromkeys(SLOTS)
    points, lod = good["GtSegms"]

    def refused(changed: dict[str, Any], error: type[Exception], *parts: str, when: str = "run", **attrs: Any) -> None:
        test = OpTest("generate_mask_labels", {**good, **changed}, {**MASKS, **attrs}, outputs)
        test.check_refused(error, *parts, when=when)

    refused({"Rois": with_lod(good["Rois"][0][:, :3], 3, 2)}, ValueError, "input Rois", "[-1, 4]", when="build")
    labels = good["LabelsInt32"][0]
    refused({"LabelsInt32": with_lod(labels[:4], 3, 1)}, ValueError, "input LabelsInt32", "[5", when="build")
    refused({"GtSegms": (points[:, :1], lod)}, ValueError, "input GtSegms", "[-1, 2]", when="build")
    refused({"GtSegms": (points.astype(np.float32), lod)}, TypeError, "input GtSegms", "float32", when="build")
    refused({}, ValueError, "num_classes", "got 0", when="build", num_classes=0)
    refused({}, ValueError, "resolution", "got 0", when="build", resolution=0)
    refused({"GtSegms": (points, lod[2:])}, ValueError, "input GtSegms", "three levels", "got 1 levels")
    refused({"GtSegms": (points, [[2, 1], *lod[1:]])}, ValueError, "input GtSegms", "that of input GtClasses")
    empty = [lod[0], lod[1], [*lod[2][:3], 0, sum(lod[2][3:])]]
    refused({"GtSegms": (points, [lod[0], [1, 3, 1], empty[2]])}, ValueError, "polygon 3 has no corners")
    broken = points.copy()
    broken[4, 1] = np.nan
    refused({"GtSegms": (broken, lod)}, ValueError, "input GtSegms", "row 4")
    refused({"LabelsInt32": with_lod(labels, 2, 3)}, ValueError, "input LabelsInt32", "LoD of input Rois")
    refused({"IsCrowd": with_lod(good["IsCrowd"][0], 2, 1)}, ValueError, "input IsCrowd", "LoD of input GtClasses")
    refused({"ImInfo": good["ImInfo"][:1]}, ValueError, "each of the 1 images")
    refused({"LabelsInt32": with_lod(labels + 1, 3, 2)}, IndexError, "region 0 has class 3", "[0, 3)")
    without = with_lod(np.array([[2], [1], [0], [1], [0]], np.int32), 3, 2)
    refused({"LabelsInt32": without}, ValueError, "region 3 has class 1", "no object with an outline")
