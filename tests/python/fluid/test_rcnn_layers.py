"""Layers of detectors that propose regions, in programs, and a small Faster R-CNN that learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    shared = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + 1, 0, None).prod()
    return float(shared / ((a[2:] - a[:2] + 1).prod() + (b[2:] - b[:2] + 1).prod() - shared))


def ground_truth() -> tuple[fluid.Variable, fluid.Variable, fluid.Variable, fluid.Variable]:
    boxes = fluid.data("boxes", [None, 4], lod_level=1)
    classes = fluid.data("classes", [None, 1], "int32", lod_level=1)
    crowd = fluid.data("crowd", [None, 1], "int32", lod_level=1)
    return boxes, classes, crowd, fluid.data("info", [None, 3])


def test_shapes_at_build() -> None:
    boxes, classes, crowd, info = ground_truth()
    x = fluid.data("x", [None, 8, None, None])
    anchors, variances = layers.anchor_generator(x, [16.0, 32.0], (0.5, 1.0, 2.0), stride=[8.0, 8.0])
    assert [anchors.shape, variances.shape] == [(-1, -1, 6, 4)] * 2
    rois, scores = layers.generate_proposals(
        fluid.data("scores", [None, 6, None, None]),
        fluid.data("codes", [None, 24, None, None]),
        info,
        anchors,
        variances,
    )
    assert (rois.shape, scores.shape, rois.lod_level, scores.lod_level) == ((-1, 4), (-1, 1), 1, 1)
    flat, spread = layers.reshape(anchors, [-1, 4]), layers.reshape(variances, [-1, 4])
    places, logits = fluid.data("places", [None, None, 4]), fluid.data("logits", [None, None, 3])
    chosen = layers.rpn_target_assign(places, logits, flat, spread, boxes, crowd, info)
    assert [v.shape for v in chosen] == [(-1, 1), (-1, 4), (-1, 1), (-1, 4), (-1, 4)]
    chosen = layers.retinanet_target_assign(places, logits, flat, spread, boxes, classes, crowd, info, 3)
    assert [v.shape for v in chosen] == [(-1, 3), (-1, 4), (-1, 1), (-1, 4), (-1, 4), (-1, 1)]
    learned = layers.generate_proposal_labels(rois, classes, crowd, boxes, info, class_nums=3)
    assert [v.shape for v in learned] == [(-1, 4), (-1, 1)] + [(-1, 12)] * 3
    assert all(v.lod_level == 1 and v.stop_gradient for v in learned)
    segments = fluid.data("segments", [None, 2], lod_level=3)
    masks = layers.generate_mask_labels(info, classes, crowd, segments, learned[0], learned[1], 3, 14)
    assert [(v.shape, v.lod_level) for v in masks] == [((-1, 4), 1), ((-1, 1), 1), ((-1, 3 * 14 * 14), 1)]
    seen = layers.retinanet_detection_output([places] * 2, [logits] * 2, [flat] * 2, info)
    assert (seen.shape, seen.lod_level) == ((-1, 6), 1)
    levels, restore = layers.distribute_fpn_proposals(rois, 2, 5, 4, 224)
    assert [v.shape for v in (*levels, restore)] == [(-1, 4)] * 4 + [(-1, 1)]
    assert layers.collect_fpn_proposals([rois] * 2, [scores] * 2, 2, 3, 10).shape == (-1, 4)
    decoded = layers.box_decoder_and_assign(
        rois, fluid.data("variance", [4]), fluid.data("deltas", [None, 12]), fluid.data("classified", [None, 3]), 4.135
    )
    assert [(v.shape, v.lod_level) for v in decoded] == [((-1, 12), 0), ((-1, 4), 1)]


def test_proposals_take_maps_that_are_declared_with_one_dimension_too_many() -> None:
    """Programs put the batch into a shape to which layers.data adds it once more; what they feed is right."""
    x = fluid.data("x", [1, 8, 4, 4])
    anchors, variances = layers.anchor_generator(x, [16.0], (1.0,), stride=[8.0, 8.0])
    scores = layers.data("scores", [1, 1, 4, 4])
    codes, info = layers.data("codes", [1, 4, 4, 4]), layers.data("info", [1, 3])
    assert len(scores.shape) == 5
    rois, _ = layers.generate_proposals(scores, codes, info, anchors, variances, 5, 5)
    feed = {
        "x": np.zeros((1, 8, 4, 4), np.float32),
        "scores": np.random.default_rng(1).random((1, 1, 4, 4), np.float32),
        "codes": np.zeros((1, 4, 4, 4), np.float32),
        "info": np.array([[32, 32, 1]], np.float32),
    }
    exe = fluid.Executor()
    (got,) = exe.run(feed=feed, fetch_list=[rois], return_numpy=False)
    assert 1 <= got.shape()[0] <= 5
    with pytest.raises(ValueError, match=r"input Scores: expected a tensor of rank 4"):
        exe.run(feed={**feed, "scores": feed["scores"][None]}, fetch_list=[rois], return_numpy=False)


def test_levels_of_a_pyramid_and_back(exe: fluid.Executor) -> None:
    rois = fluid.data("rois", [None, 4], lod_level=1)
    levels, restore = layers.distribute_fpn_proposals(rois, 2, 5, 4, 224)
    again = layers.gather(layers.concat(levels), restore)
    extent = np.random.default_rng(5).uniform(10, 900, (9, 2))
    boxes = np.concatenate([np.zeros((9, 2)), extent], 1).astype(np.float32)
    fed = fluid.create_lod_tensor(boxes, [[4, 5]], fluid.CPUPlace())
    (value,) = exe.run(feed={"rois": fed}, fetch_list=[again])
    np.testing.assert_array_equal(value, boxes)


def test_what_has_to_be_given() -> None:
    x = fluid.data("x", [None, 8, 4, 4])
    for arguments in ({}, {"anchor_sizes": 16.0, "aspect_ratios": 1.0}):
        with pytest.raises(errors.InvalidArgument, match=r"layers\.anchor_generator: anchor_sizes, aspect_ratios and"):
            layers.anchor_generator(x, **arguments)
    with pytest.raises(errors.InvalidArgument, match=r"layers\.anchor_generator: stride has to be"):
        layers.anchor_generator(x, 16.0, 1.0, stride=8.0)  # type: ignore[arg-type]
    boxes, classes, crowd, info = ground_truth()
    with pytest.raises(errors.InvalidArgument, match=r"layers\.generate_proposal_labels: class_nums"):
        layers.generate_proposal_labels(boxes, classes, crowd, boxes, info)
    with pytest.raises(errors.InvalidArgument, match="a level at least"):
        layers.retinanet_detection_output([], [], [], info)
    with pytest.raises(errors.TypeMismatch, match="prior_box"):
        layers.box_decoder_and_assign(np.ones((2, 4)), boxes, boxes, boxes, 4.0)  # type: ignore[arg-type]


SIZE, STRIDE, CLASSES = 48, 8, 3


def images(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """One bright rectangle each; class 1 is red, class 2 is green."""
    image = rng.uniform(0, 0.2, (n, 3, SIZE, SIZE)).astype(np.float32)
    boxes = np.empty((n, 4), np.float32)
    classes = rng.integers(1, CLASSES, (n, 1)).astype(np.int32)
    for i in range(n):
        left, upper = rng.integers(2, SIZE - 26, 2)
        width, height = rng.integers(14, 24, 2)
        boxes[i] = left, upper, left + width - 1, upper + height - 1
        image[i, classes[i, 0] - 1, upper : upper + height, left : left + width] += 1
    return {"image": image, "boxes": boxes, "classes": classes}


def feed(batch: dict[str, Any]) -> dict[str, Any]:
    n = len(batch["image"])

    def rows(value: np.ndarray) -> Any:
        return fluid.create_lod_tensor(value, [[1] * n], fluid.CPUPlace())

    return {
        "image": batch["image"],
        "info": np.tile(np.array([SIZE, SIZE, 1], np.float32), (n, 1)),
        "boxes": rows(batch["boxes"]),
        "classes": rows(batch["classes"]),
        "crowd": rows(np.zeros((n, 1), np.int32)),
    }


def network(train: bool) -> tuple[fluid.Variable, ...]:
    """Losses of a Faster R-CNN, or the boxes that it finds, with the probabilities of their classes."""
    image = fluid.data("image", [None, 3, SIZE, SIZE])
    boxes, classes, crowd, info = ground_truth()
    x = image
    for filters in (8, 16, 32):
        x = layers.conv2d(x, filters, 3, stride=2, padding=1, act="relu")
    anchors, variances = layers.anchor_generator(x, [12.0, 20.0], [1.0], stride=[STRIDE, STRIDE])
    shapes = 2
    rpn = layers.conv2d(x, 32, 3, padding=1, act="relu")
    score = layers.conv2d(rpn, shapes, 1)
    code = layers.conv2d(rpn, 4 * shapes, 1)
    rois, _ = layers.generate_proposals(
        layers.sigmoid(score), code, info, anchors, variances, 60, 12, nms_thresh=0.7, min_size=4.0
    )
    losses = []
    if train:
        places = layers.reshape(layers.transpose(code, [0, 2, 3, 1]), [0, -1, 4])
        logits = layers.reshape(layers.transpose(score, [0, 2, 3, 1]), [0, -1, 1])
        logit, place, label, target, weight = layers.rpn_target_assign(
            places,
            logits,
            layers.reshape(anchors, [-1, 4]),
            layers.reshape(variances, [-1, 4]),
            boxes,
            crowd,
            info,
            rpn_batch_size_per_im=24,
            rpn_straddle_thresh=-1.0,
            rpn_positive_overlap=0.6,
        )
        # What the network says is divided by variances.
        of_anchor = layers.scale(target, 10.0)
        losses = [
            layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, layers.cast(label, "float32"))),
            layers.scale(layers.mean(layers.smooth_l1(place, of_anchor, weight, weight)), 0.2),
        ]
        rois, label, target, inside, outside = layers.generate_proposal_labels(
            rois, classes, crowd, boxes, info, 16, 0.5, 0.5, class_nums=CLASSES
        )
    pooled = layers.roi_align(x, rois, 3, 3, 1 / STRIDE, 2)
    hidden = layers.fc(pooled, 32, act="relu")
    named = layers.fc(hidden, CLASSES)
    deltas = layers.fc(hidden, 4 * CLASSES)
    if train:
        losses.append(layers.mean(layers.softmax_with_cross_entropy(named, layers.cast(label, "int64"))))
        losses.append(layers.scale(layers.mean(layers.smooth_l1(deltas, target, inside, outside)), 0.2))
        return (layers.sum(losses), *losses)
    spread = layers.assign(np.array([0.1, 0.1, 0.2, 0.2], np.float32))
    probabilities = layers.softmax(named)
    _, found = layers.box_decoder_and_assign(rois, spread, deltas, probabilities, 4.135)
    return found, probabilities


def test_a_small_faster_rcnn_learns_to_find_and_to_name(exe: fluid.Executor) -> None:
    main, startup, test = fluid.Program(), fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        losses = network(train=True)
        fluid.optimizer.Adam(3e-3).minimize(losses[0])
    with fluid.program_guard(test, fluid.Program()), fluid.unique_name.guard():
        found, probabilities = network(train=False)
    rng = np.random.default_rng(11)
    exe.run(startup)
    history = [exe.run(main, feed(images(rng, 4)), list(losses)) for _ in range(150)]
    totals = np.array([values[0].item() for values in history])
    assert np.isfinite(history).all()
    assert totals[-10:].mean() < 0.5 * totals[:5].mean()
    batch = images(rng, 8)
    boxes, named = exe.run(test, feed(batch), [found, probabilities], return_numpy=False)
    (lengths,) = boxes.recursive_sequence_lengths()
    ends = np.cumsum(lengths)
    boxes, named = np.array(boxes), np.array(named)
    right = 0
    for i, (begin, end) in enumerate(zip(ends - lengths, ends)):
        best = begin + named[begin:end, 1:].max(1).argmax()
        is_named = named[best].argmax() == batch["classes"][i, 0]
        right += is_named and overlap(boxes[best], batch["boxes"][i]) > 0.5
    assert right >= 6
