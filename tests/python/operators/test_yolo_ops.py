"""Operators of YOLO and other dense detectors: yolo_box, yolov3_loss, sigmoid_focal_loss, polygon_box_transform."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(73)
ANCHORS = [10, 13, 16, 30, 33, 23]
CLASSES = 3
#: 2 x 3 cells of 16 x 16 pixels.
YOLO = {"anchors": ANCHORS, "class_num": CLASSES, "downsample_ratio": 16}
HEIGHT, WIDTH = 2, 3


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def predicted(x: np.ndarray, anchors: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """(centres and extents in parts of the image, [N, anchors, H, W, 4]; confidence and classes before sigmoid)."""
    maps = x.reshape(len(x), len(anchors), 5 + CLASSES, HEIGHT, WIDTH).transpose(0, 1, 3, 4, 2)
    boxes = maps[..., :4].copy()
    boxes[..., :2] = (sigmoid(maps[..., :2]) + np.mgrid[:HEIGHT, :WIDTH][::-1].transpose(1, 2, 0)) / [WIDTH, HEIGHT]
    sizes = np.array(ANCHORS).reshape(-1, 2)[anchors] / [16 * WIDTH, 16 * HEIGHT]
    boxes[..., 2:] = np.exp(maps[..., 2:4]) * sizes[:, None, None]
    return boxes, maps[..., 4:]


def corners(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Of two boxes, each its centre and extents."""
    a, b = corners(a), corners(b)
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    shared = sides.prod()
    return float(shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared))


@pytest.mark.parametrize("threshold", [0.0, 0.5])
@pytest.mark.parametrize("clip", [None, True, False])
def test_yolo_box(threshold: float, clip: bool | None) -> None:
    x = RNG.uniform(-2, 2, (2, 3 * (5 + CLASSES), HEIGHT, WIDTH))
    sizes = np.array([[40, 50], [70, 30]], np.int32)
    boxes, logits = predicted(x, [0, 1, 2])
    boxes = corners(boxes).reshape(2, -1, 4)
    logits = logits.reshape(2, -1, 1 + CLASSES)
    confidence = sigmoid(logits[..., :1])
    extents = np.concatenate([sizes[:, ::-1]] * 2, 1)[:, None]
    boxes = boxes * extents
    if clip is not False:
        boxes[..., :2] = np.maximum(boxes[..., :2], 0)
        boxes[..., 2:] = np.minimum(boxes[..., 2:], extents[..., 2:] - 1)
    scores = confidence * sigmoid(logits[..., 1:])
    if threshold:
        assert 0 < (confidence < threshold).sum() < confidence.size
    outputs = {"Boxes": boxes * (confidence >= threshold), "Scores": scores * (confidence >= threshold)}
    attrs = {**YOLO, "conf_thresh": threshold, **({} if clip is None else {"clip_bbox": clip})}
    OpTest("yolo_box", {"X": x, "ImgSize": sizes}, attrs, outputs).check_outputs()
    OpTest("yolo_box", {"X": x, "ImgSize": sizes.astype(np.int64)}, attrs, outputs).check_outputs()


def test_yolo_box_refuses_what_does_not_fit() -> None:
    good: dict[str, Any] = {"X": np.ones((2, 24, 2, 3)), "ImgSize": np.ones((2, 2), np.int32)}
    outputs = {"Boxes": None, "Scores": None}
    for changed, attrs, error, parts, when in (
        ({"X": np.ones((2, 23, 2, 3))}, {}, ValueError, ("input X", "[-1, 24, -1, -1]", "23"), "build"),
        ({"X": np.ones((2, 24, 6))}, {}, ValueError, ("input X", "rank 4"), "build"),
        ({"ImgSize": np.ones((3, 2), np.int32)}, {}, ValueError, ("input ImgSize", "[2, 2]", "[3, 2]"), "build"),
        ({"ImgSize": np.zeros((2, 2), np.int32)}, {}, IndexError, ("input ImgSize", "image 0", "extent 0"), "run"),
        ({}, {"anchors": []}, ValueError, ("attribute anchors", "got none"), "build"),
        ({}, {"anchors": [1, 2, 3]}, ValueError, ("attribute anchors", "3 numbers"), "build"),
        ({}, {"anchors": [1, 0]}, ValueError, ("attribute anchors", "got 0"), "build"),
        ({}, {"class_num": 0}, ValueError, ("attribute class_num", "got 0"), "build"),
        ({}, {"downsample_ratio": 0}, ValueError, ("attribute downsample_ratio", "got 0"), "build"),
    ):
        test = OpTest("yolo_box", {**good, **changed}, {**YOLO, **attrs}, outputs)  # type: ignore[dict-item]
        test.check_refused(error, *parts, when=when)


def cross_entropy(x: Any, label: float) -> Any:
    return -label * np.log(sigmoid(x)) - (1 - label) * np.log(sigmoid(-x))


def yolo_loss(
    x: np.ndarray, gt: np.ndarray, label: np.ndarray, score: np.ndarray, mask: list[int], ignored: float, smooth: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    boxes, logits = predicted(x, mask)
    raw = x.reshape(len(x), len(mask), 5 + CLASSES, HEIGHT, WIDTH)
    sizes = np.array(ANCHORS).reshape(-1, 2) / [16 * WIDTH, 16 * HEIGHT]
    loss, objects = np.zeros(len(x)), np.zeros((len(x), len(mask), HEIGHT, WIDTH))
    matched = np.full(gt.shape[:2], -1, np.int32)
    for n in range(len(x)):
        present = [t for t in range(gt.shape[1]) if (gt[n, t, 2:] >= 1e-6).all()]
        for at in np.ndindex(objects.shape[1:]):
            if any(overlap(boxes[(n, *at)], gt[n, t]) > ignored for t in present):
                objects[(n, *at)] = -1
        for t in present:
            shapes = [overlap(np.array([0, 0, *gt[n, t, 2:]]), np.array([0, 0, *size])) for size in sizes]
            best = int(np.argmax(shapes))
            if best not in mask:
                continue
            a = mask.index(best)
            place = gt[n, t, :2] * [WIDTH, HEIGHT]
            w, h = place.astype(int)
            matched[n, t], objects[n, a, h, w] = a, score[n, t]
            weight = (2 - gt[n, t, 2] * gt[n, t, 3]) * score[n, t]
            values = raw[n, a, :, h, w]
            loss[n] += weight * sum(cross_entropy(values[i], place[i] - (w, h)[i]) for i in range(2))
            loss[n] += weight * np.abs(values[2:4] - np.log(gt[n, t, 2:] / sizes[best])).sum()
            for c in range(CLASSES):
                loss[n] += score[n, t] * cross_entropy(values[5 + c], 1 - smooth if c == label[n, t] else smooth)
        confidence = logits[n, ..., 0]
        found, empty = objects[n] > 0, objects[n] == 0
        loss[n] += (cross_entropy(confidence, 1) * objects[n])[found].sum() + cross_entropy(confidence, 0)[empty].sum()
    return loss, objects, matched


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("smooth", [None, True, False])
@pytest.mark.parametrize("mask", [[0, 1, 2], [2, 0]], ids=str)
def test_yolov3_loss(scored: bool, smooth: bool | None, mask: list[int]) -> None:
    x = RNG.uniform(-1, 1, (3, len(mask) * (5 + CLASSES), HEIGHT, WIDTH))
    gt = RNG.uniform(0.1, 0.9, (3, 4, 4))
    gt[0, 2:, 2:] = 0  # no boxes
    gt[1, 1] = gt[1, 0]  # two at the same place
    gt[2, :, 2:] = 0
    label = RNG.integers(0, CLASSES, (3, 4)).astype(np.int32)
    score = RNG.uniform(0.2, 1, (3, 4)) if scored else np.ones((3, 4))
    if scored:
        score[1, 1] = score[1, 0]
    by = 0.0 if smooth is False else 1 / 40
    loss, objects, matched = yolo_loss(x, gt, label, score, mask, 0.3, by)
    assert (matched >= 0).any()
    assert (objects == -1).any()
    inputs = {"X": x, "GTBox": gt, "GTLabel": label, **({"GTScore": score} if scored else {})}
    attrs = {
        **YOLO,
        "anchor_mask": mask,
        "ignore_thresh": 0.3,
        **({} if smooth is None else {"use_label_smooth": smooth}),
    }
    outputs = {"Loss": loss, "ObjectnessMask": objects, "GTMatchMask": matched}
    test = OpTest("yolov3_loss", inputs, attrs, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Loss"], tolerance=1e-5)
    inputs["GTLabel"] = label.astype(np.int64)
    OpTest("yolov3_loss", inputs, attrs, outputs).check_outputs()


def test_many_classes_are_smoothed_less() -> None:
    x = np.zeros((1, 5 + 80, 1, 1))
    gt = np.array([[[0.5, 0.5, 10 / 16, 13 / 16]]])
    attrs = {"anchors": [10, 13], "anchor_mask": [0], "class_num": 80, "downsample_ratio": 16}
    test = OpTest(
        "yolov3_loss",
        {"X": x, "GTBox": gt, "GTLabel": np.zeros((1, 1), np.int32)},
        attrs,
        {"Loss": None, "ObjectnessMask": None, "GTMatchMask": None},
    )
    gradient = test.gradients(["X"], ["Loss"])["X_0"].reshape(-1)
    weight = gradient[6] / (0.5 - 1 / 80)  # that of the loss in the test's objective
    np.testing.assert_allclose(gradient[5], weight * (0.5 - (1 - 1 / 80)), rtol=1e-6)


def test_yolov3_loss_refuses_what_does_not_fit() -> None:
    good: dict[str, Any] = {
        "X": np.ones((2, 16, 2, 3)),
        "GTBox": np.full((2, 3, 4), 0.5),
        "GTLabel": np.ones((2, 3), np.int32),
    }
    mask = {"anchor_mask": [0, 1]}
    outside, label = np.full((2, 3, 4), 0.5), np.ones((2, 3), np.int32)
    outside[1, 2, 0] = 1.0
    label[0, 1] = CLASSES
    for changed, attrs, error, parts, when in (
        ({"X": np.ones((2, 15, 2, 3))}, mask, ValueError, ("input X", "[-1, 16, -1, -1]"), "build"),
        ({"X": np.ones((2, 16, 0, 3))}, mask, ValueError, ("input X", "not empty"), "build"),
        ({"GTBox": np.ones((2, 3, 5))}, mask, ValueError, ("input GTBox", "[2, -1, 4]"), "build"),
        ({"GTLabel": np.ones((2, 2), np.int32)}, mask, ValueError, ("input GTLabel", "[2, 3]"), "build"),
        ({"GTScore": np.ones((3, 3))}, mask, ValueError, ("input GTScore", "[2, 3]"), "build"),
        ({}, {}, ValueError, ("attribute anchor_mask", "at least one"), "build"),
        ({}, {"anchor_mask": [0, 3]}, ValueError, ("attribute anchor_mask", "[0, 3)", "got 3"), "build"),
        ({}, {"anchor_mask": [1, 1]}, ValueError, ("attribute anchor_mask", "once", "got 1"), "build"),
        ({"GTBox": outside}, mask, IndexError, ("input GTBox", "box 2 of image 1", "(1, 0.5)"), "run"),
        ({"GTLabel": label}, mask, IndexError, ("input GTLabel", "box 1 of image 0", "class 3", "[0, 3)"), "run"),
    ):
        outputs = {"Loss": None, "ObjectnessMask": None, "GTMatchMask": None}
        test = OpTest("yolov3_loss", {**good, **changed}, {**YOLO, **attrs}, outputs)  # type: ignore[dict-item]
        test.check_refused(error, *parts, when=when)


@pytest.mark.parametrize("attrs", [{}, {"gamma": 0.0, "alpha": 0.5}, {"gamma": 1.5}], ids=str)
@pytest.mark.parametrize("objects", [0, 4])
def test_sigmoid_focal_loss(attrs: dict[str, float], objects: int) -> None:
    x = RNG.uniform(-3, 3, (6, 3))
    label = np.array([[0], [1], [3], [-1], [2], [1]], np.int32)
    gamma, alpha = attrs.get("gamma", 2.0), attrs.get("alpha", 0.25)
    is_class = label == np.arange(1, 4)
    p = np.where(is_class, sigmoid(x), sigmoid(-x))
    weight = np.where(is_class, alpha, 1 - alpha) * (label != -1) / max(objects, 1)
    inputs = {"X": (x, [[2, 4]]), "Label": label, "FgNum": np.array([objects], np.int32)}
    test = OpTest("sigmoid_focal_loss", inputs, attrs, {"Out": (-weight * (1 - p) ** gamma * np.log(p), [[2, 4]])})
    test.check_outputs()
    test.check_gradients(["X"])


def test_sigmoid_focal_loss_of_large_logits_is_finite() -> None:
    x = np.array([[300.0, -300.0]])
    inputs = {"X": x, "Label": np.array([[2]], np.int64), "FgNum": np.array([1], np.int64)}
    test = OpTest("sigmoid_focal_loss", inputs, {}, {"Out": np.array([[0.75 * 300, 0.25 * 300]])})
    test.check_outputs()
    test.check_gradients(["X"])


def test_sigmoid_focal_loss_refuses_other_classes() -> None:
    good: dict[str, Any] = {"X": np.ones((2, 3)), "Label": np.ones((2, 1), np.int32), "FgNum": np.ones(1, np.int32)}
    for changed, error, parts, when in (
        ({"X": np.ones((2, 3, 1))}, ValueError, ("input X", "rank 2"), "build"),
        ({"Label": np.ones((3, 1), np.int32)}, ValueError, ("input Label", "[2, 1]"), "build"),
        ({"FgNum": np.ones(2, np.int32)}, ValueError, ("input FgNum", "[1]"), "build"),
        ({"Label": np.full((2, 1), 4, np.int32)}, IndexError, ("input Label", "row 0", "class 4", "[1, 3]"), "run"),
        ({"Label": np.full((2, 1), -2, np.int32)}, IndexError, ("input Label", "row 0", "class -2"), "run"),
    ):
        OpTest("sigmoid_focal_loss", {**good, **changed}).check_refused(error, *parts, when=when)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_polygon_box_transform(dtype: Any) -> None:
    x = RNG.uniform(-9, 9, (2, 4, 3, 2)).astype(dtype)
    expected = np.empty_like(x)
    for n, c, h, w in itertools.product(range(2), range(4), range(3), range(2)):
        expected[n, c, h, w] = 4 * (w if c % 2 == 0 else h) - x[n, c, h, w]
    OpTest("polygon_box_transform", {"Input": x}, {}, {"Output": expected}).check_outputs()


def test_polygon_box_transform_refuses_half_a_corner() -> None:
    test = OpTest("polygon_box_transform", {"Input": np.ones((2, 3, 2, 2))}, {}, {"Output": None})
    test.check_refused(ValueError, "input Input", "even", "[2, 3, 2, 2]")
