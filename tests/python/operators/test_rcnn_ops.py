"""Operators of detectors that propose regions: anchors, proposals, what to learn from, feature pyramids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(73)


def overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of each box of ``a`` with each of ``b``, in pixels."""
    low, high = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = np.clip(high - low + 1, 0, None).prod(2)
    area_a, area_b = ((boxes[:, 2:] - boxes[:, :2] + 1).prod(1) for boxes in (a, b))
    return shared / (area_a[:, None] + area_b[None] - shared)


def encoded(boxes: np.ndarray, priors: np.ndarray, variances: Any = (1, 1, 1, 1)) -> np.ndarray:
    extent, prior_extent = boxes[:, 2:] - boxes[:, :2] + 1, priors[:, 2:] - priors[:, :2] + 1
    offset = (boxes[:, :2] + extent / 2 - priors[:, :2] - prior_extent / 2) / prior_extent
    return np.concatenate([offset, np.log(extent / prior_extent)], 1) / np.array(variances)


def decoded(codes: np.ndarray, priors: np.ndarray, variances: np.ndarray, most: float) -> np.ndarray:
    extent = priors[:, 2:] - priors[:, :2] + 1
    codes = codes * variances
    center = priors[:, :2] + extent / 2 + codes[:, :2] * extent
    half = np.exp(np.minimum(codes[:, 2:], most)) * extent / 2
    return np.concatenate([center - half, center + half - 1], 1)


def random_boxes(n: int, size: float = 60, least: float = 5, most: float = 25) -> np.ndarray:
    corner = RNG.uniform(0, size - most, (n, 2))
    return np.concatenate([corner, corner + RNG.uniform(least, most, (n, 2))], 1)


def with_lod(value: np.ndarray, *lengths: int) -> tuple[np.ndarray, list[list[int]]]:
    return value, [list(lengths)]


ANCHORS = {
    "anchor_sizes": [32.0, 64.0],
    "aspect_ratios": [0.5, 1.0],
    "variances": [0.1, 0.1, 0.2, 0.25],
    "stride": [16.0, 8.0],
    "offset": 0.25,
}


def test_anchor_generator() -> None:
    expected = np.empty((2, 3, 4, 4))
    for row in range(2):
        for col in range(3):
            x, y = 16 * col + 0.25 * 15, 8 * row + 0.25 * 7
            # √(128 / 0.5) = 16 and √128 ≈ 11 wide
            for i, (width, height) in enumerate([(32, 32), (64, 64), (22, 44), (44, 88)]):
                w, h = (width - 1) / 2, (height - 1) / 2
                expected[row, col, i] = x - w, y - h, x + w, y + h
    variances = np.broadcast_to(np.array(ANCHORS["variances"], np.float32).astype(float), expected.shape)
    outputs = {"Anchors": expected, "Variances": variances}
    OpTest("anchor_generator", {"Input": RNG.uniform(size=(2, 5, 2, 3))}, ANCHORS, outputs).check_outputs()


def test_half_pixels_of_anchors_are_rounded_up() -> None:
    attrs = {"anchor_sizes": [32.0], "aspect_ratios": [0.5], "stride": [16.0, 16.0]}
    # 16² / 0.5 is 22.6² and so 23 wide, of which the half is 12.
    outputs = {"Anchors": np.array([-15.0, -4, 30, 19]).reshape(1, 1, 1, 4), "Variances": None}
    OpTest("anchor_generator", {"Input": np.ones((1, 1, 1, 1))}, attrs, outputs).check_outputs()


def test_anchor_generator_refuses_what_makes_no_boxes() -> None:
    outputs: dict[str, Any] = {"Anchors": None, "Variances": None}
    image = np.ones((1, 1, 2, 2))
    for changed, parts in (
        ({"anchor_sizes": []}, ("anchor_sizes", "one positive number or more")),
        ({"aspect_ratios": [1.0, -1.0]}, ("aspect_ratios", "not all positive")),
        ({"stride": [16.0]}, ("stride", "2 positive numbers, got 1")),
        ({"variances": [0.1, 0.1, 0.2]}, ("variances", "4 positive numbers, got 3")),
    ):
        OpTest("anchor_generator", {"Input": image}, {**ANCHORS, **changed}, outputs).check_refused(ValueError, *parts)
    OpTest("anchor_generator", {"Input": image[0]}, ANCHORS, outputs).check_refused(ValueError, "input Input", "rank 4")


PROPOSALS: dict[str, Any] = {
    "pre_nms_topN": 40,
    "post_nms_topN": 6,
    "nms_thresh": 0.3,
    "min_size": 4.0,
    "eta": 1.0,
}


def proposal_inputs(images: int = 2, rows: int = 4, cols: int = 5, shapes: int = 3) -> dict[str, Any]:
    corner = np.stack(np.meshgrid(np.arange(cols) * 10.0, np.arange(rows) * 10.0), -1)[:, :, None, :]
    corner = np.repeat(corner, shapes, 2) - 4
    anchors = np.concatenate([corner, corner + RNG.uniform(6, 20, corner.shape)], -1)
    return {
        "Scores": RNG.uniform(0, 1, (images, shapes, rows, cols)),
        "BboxDeltas": RNG.uniform(-2, 2, (images, 4 * shapes, rows, cols)),
        "ImInfo": np.array([[40.0, 50.0, 2.0], [38.0, 46.0, 0.5]])[:images],
        "Anchors": anchors,
        "Variances": RNG.uniform(0.1, 0.5, anchors.shape),
    }


def proposals(inputs: dict[str, Any], attrs: dict[str, Any], image: int) -> tuple[np.ndarray, np.ndarray]:
    scores = inputs["Scores"][image].transpose(1, 2, 0).ravel()
    codes = inputs["BboxDeltas"][image].transpose(1, 2, 0).reshape(-1, 4)
    height, width, scale = inputs["ImInfo"][image]
    order = np.argsort(-scores, kind="stable")[: attrs["pre_nms_topN"] or None]
    anchors, variances = (inputs[slot].reshape(-1, 4)[order] for slot in ("Anchors", "Variances"))
    boxes = decoded(codes[order], anchors, variances, np.log(1000 / 16))
    boxes = np.clip(boxes, 0, np.array([width - 1, height - 1] * 2))
    extent = boxes[:, 2:] - boxes[:, :2]
    large = (extent / scale + 1 >= max(attrs["min_size"], 1)).all(1)
    inside = (boxes[:, :2] + (extent + 1) / 2 <= [width, height]).all(1)
    boxes, scores = boxes[large & inside], scores[order][large & inside]
    if len(boxes) == 0:
        return np.zeros((1, 4)), np.zeros(1)
    if attrs["nms_thresh"] <= 0:
        return boxes, scores
    kept: list[int] = []
    threshold = attrs["nms_thresh"]
    for i in range(len(boxes)):
        if not kept or overlaps(boxes[i : i + 1], boxes[kept]).max() <= threshold:
            kept.append(i)
            if attrs["eta"] < 1 and threshold > 0.5:
                threshold *= attrs["eta"]
    kept = kept[: attrs["post_nms_topN"] or None]
    return boxes[kept], scores[kept]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"pre_nms_topN": 0, "post_nms_topN": 0},
        {"nms_thresh": 0.7, "eta": 0.8, "post_nms_topN": 20},
        {"nms_thresh": 0.0},
        {"min_size": 30.0},
    ],
    ids=str,
)
def test_generate_proposals(changed: dict[str, Any]) -> None:
    inputs, attrs = proposal_inputs(), {**PROPOSALS, **changed}
    found = [proposals(inputs, attrs, image) for image in range(2)]
    counts = [len(scores) for _, scores in found]
    # What is to be seen is seen: images differ in number unless that is cut off, and the last case has one without any.
    assert counts[0] != counts[1] or counts[0] == attrs["post_nms_topN"]
    assert (counts[0] == 1) == ("min_size" in changed)
    boxes, scores = np.concatenate([b for b, _ in found]), np.concatenate([s for _, s in found])
    outputs = {"RpnRois": with_lod(boxes, *counts), "RpnRoiProbs": with_lod(scores[:, None], *counts)}
    OpTest("generate_proposals", inputs, attrs, outputs).check_outputs()


def test_generate_proposals_is_refused_what_does_not_go_together() -> None:
    good = proposal_inputs()
    outputs: dict[str, Any] = {"RpnRois": None, "RpnRoiProbs": None}
    for changed, error, parts in (
        ({"Scores": good["Scores"][0]}, ValueError, ("input Scores", "rank 4")),
        ({"BboxDeltas": good["BboxDeltas"][:, :11]}, ValueError, ("input BboxDeltas", "[2, 12, 4, 5]")),
        ({"ImInfo": good["ImInfo"][:1]}, ValueError, ("input ImInfo", "[2, 3]", "[1, 3]")),
        ({"Anchors": good["Anchors"][:3]}, ValueError, ("input Anchors", "[4, 5, 3, 4]")),
        ({"Variances": good["Variances"].astype(np.float32)}, TypeError, ("input Variances", "float32")),
    ):
        OpTest("generate_proposals", {**good, **changed}, PROPOSALS, outputs).check_refused(error, *parts, when="run")
    for number in (0.0, np.nan):
        broken = {**good, "ImInfo": np.array([[40.0, 50.0, 2.0], [38.0, 46.0, number]])}
        test = OpTest("generate_proposals", broken, PROPOSALS, outputs)
        test.check_refused(ValueError, "input ImInfo", "of image 1", when="run")


#: The objects of three images, some of which stand for many; the second one has none.
OBJECTS = random_boxes(5)
CROWD = np.array([0, 1, 0, 0, 1], np.int32)
CLASSES = np.array([2, 3, 1, 3, 2], np.int32)
OBJECT_COUNTS = (3, 0, 2)
IMAGE_INFO = np.array([[60.0, 50.0, 1.0], [64.0, 64.0, 2.0], [90.0, 80.0, 1.5]])


def truth(labels: str | None = None) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "GtBoxes": with_lod(OBJECTS, *OBJECT_COUNTS),
        "IsCrowd": with_lod(CROWD, *OBJECT_COUNTS),
        "ImInfo": IMAGE_INFO,
    }
    return inputs if labels is None else {**inputs, labels: with_lod(CLASSES[:, None], *OBJECT_COUNTS)}


def anchor_targets(anchors: np.ndarray, attrs: dict[str, Any], labels: bool) -> dict[str, Any]:
    """What should be chosen, the first ones being taken."""
    located, scored, targets, codes, weights, counts = [], [], [], [], [], []
    first = 0
    for n, count in enumerate(OBJECT_COUNTS):
        height, width, scale = IMAGE_INFO[n]
        real = [i for i in range(first, first + count) if not CROWD[i]]
        first += count
        margin = attrs.get("rpn_straddle_thresh", -1)
        inside = np.arange(len(anchors))
        if margin >= 0:
            fits = (anchors[:, :2] >= -margin).all(1) & (anchors[:, 2:] < np.array([width, height]) + margin).all(1)
            inside = inside[fits]
        objects = OBJECTS[real] * scale
        shared = overlaps(anchors[inside], objects) if real else np.zeros((len(inside), 1))
        best = shared.max(1)
        low, high = (attrs[f"{'' if labels else 'rpn_'}{kind}_overlap"] for kind in ("negative", "positive"))
        positive = np.flatnonzero((best >= high) | (shared == shared.max(0)).any(1)) if real else np.array([], int)
        negative = np.flatnonzero(best < low)
        if not labels:
            most = attrs["rpn_batch_size_per_im"]
            positive = positive[: int(most * attrs["rpn_fg_fraction"])]
            negative = negative[: most - len(positive)]
        both = [i for i in positive if i in negative]
        alone = [i for i in positive if i not in negative]
        places = [*(positive[0] for _ in both), *alone]
        object_of = shared.argmax(1)
        located.append(inside[places] + n * len(anchors) if places else np.array([], int))
        scored.append(inside[[*alone, *negative]] + n * len(anchors))
        targets.append([CLASSES[real[object_of[i]]] if labels else 1 for i in alone] + [0] * len(negative))
        if places:
            codes.append(encoded(objects[object_of[places]], anchors[inside][places]))
            weights.append(np.repeat([[0.0]] * len(both) + [[1.0]] * len(alone), 4, 1))
        counts.append(len(places) + 1)
    of_places, of_scores = [len(x) for x in located], [len(x) for x in scored]
    expected: dict[str, Any] = {
        "LocationIndex": with_lod(np.concatenate(located).astype(np.int32), *of_places),
        "ScoreIndex": with_lod(np.concatenate(scored).astype(np.int32), *of_scores),
        "TargetLabel": with_lod(np.concatenate(targets).astype(np.int32)[:, None], *of_scores),
        "TargetBBox": with_lod(np.concatenate([np.zeros((0, 4)), *codes]), *of_places),
        "BBoxInsideWeight": with_lod(np.concatenate([np.zeros((0, 4)), *weights]), *of_places),
    }
    if labels:
        expected["ForegroundNumber"] = with_lod(np.array(counts, np.int32)[:, None], 1, 1, 1)
    return expected


RPN: dict[str, Any] = {
    "rpn_batch_size_per_im": 24,
    "rpn_straddle_thresh": 0.0,
    "rpn_positive_overlap": 0.5,
    "rpn_negative_overlap": 0.3,
    "rpn_fg_fraction": 0.25,
    "use_random": False,
}


def anchors_around(objects: np.ndarray, n: int) -> np.ndarray:
    near = objects[RNG.integers(0, len(objects), n // 2)] + RNG.uniform(-4, 4, (n // 2, 4))
    return RNG.permutation(np.concatenate([near, random_boxes(n - n // 2, 90)]))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"rpn_batch_size_per_im": 500},
        {"rpn_straddle_thresh": -1.0, "rpn_fg_fraction": 0.01},
        {"rpn_straddle_thresh": 3.5, "rpn_negative_overlap": 0.9, "rpn_batch_size_per_im": 300},
    ],
    ids=str,
)
def test_rpn_target_assign(changed: dict[str, Any]) -> None:
    anchors, attrs = anchors_around(OBJECTS, 120), {**RPN, **changed}
    expected = anchor_targets(anchors, attrs, labels=False)
    assert ("rpn_negative_overlap" in changed) == (expected["BBoxInsideWeight"][0] == 0).any()
    OpTest("rpn_target_assign", {"Anchor": anchors, **truth()}, attrs, expected).check_outputs()


def test_retinanet_target_assign() -> None:
    anchors, attrs = anchors_around(OBJECTS, 80), {"positive_overlap": 0.5, "negative_overlap": 0.4}
    expected = anchor_targets(anchors, attrs, labels=True)
    assert len(np.unique(expected["TargetLabel"][0])) > 2
    OpTest("retinanet_target_assign", {"Anchor": anchors, **truth("GtLabels")}, attrs, expected).check_outputs()


def test_objects_without_an_anchor_close_to_them_have_the_closest_one() -> None:
    anchors = np.array([[0.0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9]])
    # It overlaps the second one by a little, and the others not at all.
    inputs = {
        "Anchor": anchors,
        "GtBoxes": with_lod(np.array([[28.0, 0, 37, 9]]), 1),
        "IsCrowd": with_lod(np.zeros(1, np.int32), 1),
        "ImInfo": np.array([[60.0, 60.0, 1.0]]),
    }
    attrs = {**RPN, "rpn_batch_size_per_im": 2, "rpn_fg_fraction": 0.5}
    # The first negative fills up the batch.
    expected = {
        "LocationIndex": with_lod(np.array([1], np.int32), 1),
        "ScoreIndex": with_lod(np.array([1, 0], np.int32), 2),
        "TargetLabel": with_lod(np.array([[1], [0]], np.int32), 2),
        "TargetBBox": with_lod(np.array([[0.8, 0, 0, 0]]), 1),
        "BBoxInsideWeight": with_lod(np.ones((1, 4)), 1),
    }
    OpTest("rpn_target_assign", inputs, attrs, expected).check_outputs()


TARGETS = ("LocationIndex", "ScoreIndex", "TargetLabel", "TargetBBox", "BBoxInsideWeight")


def chosen(seed: int) -> tuple[list[int], list[int]]:
    """Positives and negatives of one image whose anchors are half of each."""
    anchors = np.repeat([[10.0, 10, 29, 29], [60, 60, 79, 79]], 200, 0)
    inputs = {
        "Anchor": anchors,
        "GtBoxes": with_lod(anchors[:1], 1),
        "IsCrowd": with_lod(np.zeros(1, np.int32), 1),
        "ImInfo": np.array([[100.0, 100.0, 1.0]]),
    }
    attrs = {"rpn_batch_size_per_im": 100, "rpn_fg_fraction": 0.5, "use_random": True, "seed": seed}
    tensors = OpTest("rpn_target_assign", inputs, attrs, dict.fromkeys(TARGETS)).run()
    positives = np.asarray(tensors["LocationIndex"][0]).tolist()
    scored = np.asarray(tensors["ScoreIndex"][0]).tolist()
    assert scored[: len(positives)] == positives
    return positives, scored[len(positives) :]


def test_anchors_are_chosen_at_random_each_once_and_all_alike() -> None:
    counts = np.zeros(400)
    for seed in range(1, 101):
        positives, negatives = chosen(seed)
        assert (len(positives), len(negatives)) == (50, 50)
        assert positives == sorted({*range(200)} & {*positives})
        assert negatives == sorted({*range(200, 400)} & {*negatives})
        counts[positives + negatives] += 1
    # Each is chosen with probability 1/4: 25 times of 100, give or take 4.3.
    assert counts.min() > 5
    assert counts.max() < 48
    assert abs(counts[:100].sum() - 2500) < 300
    assert chosen(7) == chosen(7)
    assert chosen(7) != chosen(8)
    assert chosen(0) != chosen(0)  # another one at each run


def proposal_labels(rois: np.ndarray, counts: tuple[int, ...], attrs: dict[str, Any], classes: int) -> dict[str, Any]:
    """What should be chosen, the first ones being taken."""
    columns = 4 * classes
    parts: dict[str, list[np.ndarray]] = {"Rois": [], "LabelsInt32": [], "BboxTargets": [], "BboxInsideWeights": []}
    first = start = 0
    for n, (count, found) in enumerate(zip(OBJECT_COUNTS, counts)):
        scale = IMAGE_INFO[n, 2]
        objects, kinds = OBJECTS[first : first + count], CLASSES[first : first + count]
        crowd = np.flatnonzero(CROWD[first : first + count])
        mine = rois[start : start + found] / scale
        first, start = first + count, start + found
        if attrs.get("is_cascade_rcnn"):
            mine = mine[count:]
            mine = mine[(mine[:, 2:] - mine[:, :2] + 1 > 0).all(1)]
        boxes = np.concatenate([objects, mine])
        shared = overlaps(boxes, objects) if count else np.zeros((len(boxes), 1))
        best, object_of = shared.max(1), shared.argmax(1)
        best[crowd] = -1
        positive = np.flatnonzero(best >= attrs["fg_thresh"])
        negative = np.flatnonzero(
            (best < attrs["fg_thresh"]) & (best >= attrs["bg_thresh_lo"]) & (best < attrs["bg_thresh_hi"])
        )
        if not attrs.get("is_cascade_rcnn"):
            positive = positive[: int(attrs["batch_size_per_im"] * attrs["fg_fraction"])]
            negative = negative[: attrs["batch_size_per_im"] - len(positive)]
        both = np.concatenate([positive, negative])
        labels = np.concatenate([kinds[object_of[positive]], np.zeros(len(negative), np.int32)]).astype(np.int32)
        targets, weights = np.zeros((2, len(both), columns))
        codes = encoded(objects[object_of[positive]], boxes[positive], attrs["bbox_reg_weights"])
        for i, code in enumerate(codes):
            at = 4 * (1 if attrs.get("is_cls_agnostic") else labels[i])
            targets[i, at : at + 4], weights[i, at : at + 4] = code, 1
        for slot, value in zip(parts, (boxes[both] * scale, labels[:, None], targets, weights)):
            parts[slot].append(value)
    lengths = [len(labels) for labels in parts["LabelsInt32"]]
    expected = {slot: with_lod(np.concatenate(values), *lengths) for slot, values in parts.items()}
    return {**expected, "BboxOutsideWeights": expected["BboxInsideWeights"]}


LABELS: dict[str, Any] = {
    "batch_size_per_im": 30,
    "fg_fraction": 0.25,
    "fg_thresh": 0.5,
    "bg_thresh_hi": 0.4,
    "bg_thresh_lo": 0.0,
    "bbox_reg_weights": [0.5, 0.5, 0.25, 0.25],
    "class_nums": 4,
    "use_random": False,
}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"batch_size_per_im": 200, "fg_fraction": 0.5, "bg_thresh_hi": 0.5, "bg_thresh_lo": 0.1},
        {"is_cls_agnostic": True, "batch_size_per_im": 80},
        {"is_cls_agnostic": True, "class_nums": 2},  # of codes: objects may have other classes
        {"is_cascade_rcnn": True},
    ],
    ids=str,
)
def test_generate_proposal_labels(changed: dict[str, Any]) -> None:
    counts, attrs = (40, 12, 30), {**LABELS, **changed}
    found = [anchors_around(OBJECTS, n) * IMAGE_INFO[i, 2] for i, n in enumerate(counts)]
    found[2][7, 2] = found[2][7, 0] - 20  # inside out
    rois = np.concatenate(found)
    expected = proposal_labels(rois, counts, attrs, attrs["class_nums"])
    assert len(np.unique(expected["LabelsInt32"][0])) > 2
    inputs = {"RpnRois": with_lod(rois, *counts), **truth("GtClasses")}
    OpTest("generate_proposal_labels", inputs, attrs, expected).check_outputs()


PROPOSAL_LABELS = ("Rois", "LabelsInt32", "BboxTargets", "BboxInsideWeights", "BboxOutsideWeights")


def test_proposals_are_chosen_at_random() -> None:
    rois = with_lod(np.repeat(OBJECTS[:1], 200, 0), 200, 0, 0)

    def run(seed: int) -> np.ndarray:
        attrs = {**LABELS, "use_random": True, "seed": seed, "fg_fraction": 0.5, "bg_thresh_lo": -1.0}
        inputs = {"RpnRois": (rois[0] * np.linspace(1, 1.05, 200)[:, None], rois[1]), **truth("GtClasses")}
        tensors = OpTest("generate_proposal_labels", inputs, attrs, dict.fromkeys(PROPOSAL_LABELS)).run()
        return np.asarray(tensors["Rois"][0])

    assert len(np.unique(run(3)[:15], axis=0)) == 15
    np.testing.assert_array_equal(run(3), run(3))
    assert not np.array_equal(run(3)[:15], run(4)[:15])


@pytest.mark.parametrize("op_type", ["rpn_target_assign", "retinanet_target_assign", "generate_proposal_labels"])
def test_a_ground_truth_is_refused_that_contradicts_itself(op_type: str) -> None:
    boxes = {"rpn_target_assign": "Anchor", "retinanet_target_assign": "Anchor"}.get(op_type, "RpnRois")
    labels = {"retinanet_target_assign": "GtLabels", "generate_proposal_labels": "GtClasses"}.get(op_type)
    attrs = {"class_nums": 4} if labels == "GtClasses" else {}
    slots = (*TARGETS, *(["ForegroundNumber"] if labels == "GtLabels" else []))
    outputs = dict.fromkeys(PROPOSAL_LABELS if labels == "GtClasses" else slots)
    rois = with_lod(OBJECTS, 2, 2, 1) if boxes == "RpnRois" else OBJECTS
    good = {boxes: rois, **truth(labels)}

    def refused(changed: dict[str, Any], error: type[Exception], *parts: str, when: str = "build") -> None:
        OpTest(op_type, {**good, **changed}, attrs, outputs).check_refused(error, *parts, when=when)

    narrow = (OBJECTS[:, :3], [[2, 2, 1]]) if boxes == "RpnRois" else OBJECTS[:, :3]
    refused({boxes: narrow}, ValueError, f"input {boxes}", "[-1, 4]")
    refused({"GtBoxes": with_lod(OBJECTS.astype(np.float32), *OBJECT_COUNTS)}, TypeError, "input GtBoxes", "float32")
    refused({"IsCrowd": with_lod(CROWD[:4], 4)}, ValueError, "input IsCrowd", "[5]", "[4]")
    refused({"IsCrowd": with_lod(CROWD.astype(np.int64), *OBJECT_COUNTS)}, TypeError, "input IsCrowd", "int32")
    refused({"ImInfo": IMAGE_INFO[:, :2]}, ValueError, "input ImInfo", "[-1, 3]")
    refused({"GtBoxes": OBJECTS}, ValueError, "input GtBoxes", "LoD", when="run")
    refused({"ImInfo": IMAGE_INFO[:2]}, ValueError, "input GtBoxes", "each of the 2 images", when="run")
    refused({"IsCrowd": with_lod(CROWD, 2, 1, 2)}, ValueError, "input IsCrowd", "LoD of input GtBoxes", when="run")
    info = IMAGE_INFO.copy()
    info[1, 2] = -1
    refused({"ImInfo": info}, ValueError, "input ImInfo", "scale -1 of image 1", when="run")


def test_generate_proposal_labels_refuses_other_classes_and_images() -> None:
    good = {"RpnRois": with_lod(OBJECTS, 2, 2, 1), **truth("GtClasses")}
    outputs = dict.fromkeys(PROPOSAL_LABELS)

    def refused(inputs: dict[str, Any], attrs: dict[str, Any], error: type[Exception], *parts: str, when: str) -> None:
        test = OpTest("generate_proposal_labels", {**good, **inputs}, {**LABELS, **attrs}, outputs)
        test.check_refused(error, *parts, when=when)

    refused({}, {"class_nums": 3}, IndexError, "input GtClasses", "class 3", "[0, 3)", when="run")
    negative = {"GtClasses": with_lod(-truth("GtClasses")["GtClasses"][0], *OBJECT_COUNTS)}
    refused(negative, {"is_cls_agnostic": True}, IndexError, "input GtClasses", "class -", when="run")
    refused({"RpnRois": with_lod(OBJECTS, 2, 3)}, {}, ValueError, "input RpnRois", "got 2", when="run")
    refused({}, {"class_nums": 0}, ValueError, "class_nums", "1 or more", when="build")
    refused({}, {"class_nums": 1, "is_cls_agnostic": True}, ValueError, "class_nums", "2 or more", when="build")
    refused({}, {"bbox_reg_weights": [1.0, 1.0]}, ValueError, "bbox_reg_weights", "4 positive", when="build")


PYRAMID = {"min_level": 2, "max_level": 5, "refer_level": 4, "refer_scale": 224}


def test_distribute_fpn_proposals() -> None:
    extent = np.array([300.0, 222.9999, 100, 20, 2000, 448, 111, 60, 223, 447])
    corner = RNG.uniform(0, 50, (10, 2))
    rois = np.concatenate([corner, corner + extent[:, None]], 1)
    rois[7, 2] = rois[7, 0] - 3  # without an area
    levels = np.clip(np.floor(4 + np.log2((extent + 1) / 224 + 1e-6)), 2, 5).astype(int)
    assert levels[1] == 4  # as if it were as large as the scale
    levels[7] = 2
    lengths, image = [4, 0, 6], np.repeat([0, 2], [4, 6])
    order = np.argsort(levels, kind="stable")
    restore = np.argsort(order).astype(np.int32)[:, None]
    multi = [
        with_lod(rois[levels == level], *[int(((levels == level) & (image == n)).sum()) for n in range(3)])
        for level in range(2, 6)
    ]
    assert all(len(value) > 0 for value, _ in multi)
    outputs: dict[str, Any] = {"MultiFpnRois": multi, "RestoreIndex": restore}
    OpTest("distribute_fpn_proposals", {"FpnRois": (rois, [lengths])}, PYRAMID, outputs).check_outputs()


def test_distribute_fpn_proposals_refuses_other_levels() -> None:
    rois = with_lod(OBJECTS, *OBJECT_COUNTS)
    outputs: dict[str, Any] = {"MultiFpnRois": [None] * 4, "RestoreIndex": None}
    for inputs, attrs, parts in (
        (rois, {"max_level": 1}, ("min_level <= max_level", "2 and 1")),
        (rois, {"max_level": 4}, ("output MultiFpnRois", "each of the 3 levels, got 4")),
        (rois, {"refer_scale": 0}, ("refer_scale", "got 0")),
        (with_lod(OBJECTS[:, :2], *OBJECT_COUNTS), {}, ("input FpnRois", "[-1, 4]")),
    ):
        test = OpTest("distribute_fpn_proposals", {"FpnRois": inputs}, {**PYRAMID, **attrs}, outputs)
        test.check_refused(ValueError, *parts)
    OpTest("distribute_fpn_proposals", {"FpnRois": OBJECTS}, PYRAMID, outputs).check_refused(
        ValueError, "input FpnRois", "LoD", when="run"
    )


@pytest.mark.parametrize("most", [0, 7, 100])
def test_collect_fpn_proposals(most: int) -> None:
    lengths = [[5, 0, 3], [0, 0, 4], [2, 0, 1]]
    rois = [random_boxes(sum(part)) for part in lengths]
    scores = [RNG.integers(0, 4, (sum(part), 1)) / 4 for part in lengths]  # many are equal
    scores[1][2] = np.nan
    flat_rois, flat_scores = np.concatenate(rois), np.concatenate(scores).ravel()
    images = np.concatenate([np.repeat(np.arange(3), part) for part in lengths])
    order = np.argsort(-flat_scores, kind="stable")[:most]
    order = order[np.argsort(images[order], kind="stable")]
    counts = [int((images[order] == n).sum()) for n in range(3)]
    inputs: dict[str, Any] = {
        "MultiLevelRois": [(value, [part]) for value, part in zip(rois, lengths)],
        "MultiLevelScores": [(value, [part]) for value, part in zip(scores, lengths)],
    }
    outputs = {"FpnRois": with_lod(flat_rois[order], *counts)}
    OpTest("collect_fpn_proposals", inputs, {"post_nms_topN": most}, outputs).check_outputs()


def test_collect_fpn_proposals_refuses_levels_that_differ() -> None:
    rois, scores = with_lod(OBJECTS, 2, 3), with_lod(np.ones((5, 1)), 2, 3)

    def refused(a: Any, b: Any, *parts: str, when: str = "build", most: int = 3) -> None:
        inputs = {"MultiLevelRois": a, "MultiLevelScores": b}
        test = OpTest("collect_fpn_proposals", inputs, {"post_nms_topN": most}, {"FpnRois": None})
        test.check_refused(ValueError, *parts, when=when)

    refused([rois, rois], [scores], "input MultiLevelScores", "2, got 1")
    refused([rois], [with_lod(np.ones((4, 1)), 2, 2)], "input MultiLevelScores", "[5, 1]")
    refused([rois], [scores], "post_nms_topN", "got -1", most=-1)
    refused([rois], [with_lod(np.ones((5, 1)), 3, 2)], "input MultiLevelScores", "LoD", when="run")
    third = with_lod(OBJECTS, 5)
    refused([rois, third], [scores, with_lod(scores[0], 5)], "input MultiLevelRois", "variable 1", when="run")


def test_box_decoder_and_assign() -> None:
    priors, variances = random_boxes(6), np.array([0.5, 0.25, 0.2, 0.1])
    codes, scores = RNG.uniform(-3, 3, (6, 12)), RNG.uniform(0, 1, (6, 3))
    codes[2, 2] = 100  # is clipped
    scores[0] = 0.9, 0.1, 0.2  # class 0 does not count
    scores[1] = 0.1, 0.3, 0.3  # the first of equals
    scores[3, 1:] = np.nan  # none
    boxes = np.concatenate([decoded(codes[:, i : i + 4], priors, variances, 4.0) for i in (0, 4, 8)], 1)
    likely = [8, 4, *(4 * (1 + scores[i, 1:].argmax()) for i in (2, 3, 4, 5))]
    assigned = np.stack([boxes[i, at : at + 4] for i, at in enumerate(likely)])
    assigned[3] = priors[3]
    inputs = {
        "PriorBox": with_lod(priors, 2, 4),
        "PriorBoxVar": variances,
        "TargetBox": with_lod(codes, 1, 5),
        "BoxScore": scores,
    }
    outputs = {"DecodeBox": with_lod(boxes, 1, 5), "OutputAssignBox": with_lod(assigned, 2, 4)}
    OpTest("box_decoder_and_assign", inputs, {"box_clip": 4.0}, outputs).check_outputs()


def test_box_decoder_and_assign_refuses_other_dims() -> None:
    good = {
        "PriorBox": OBJECTS,
        "PriorBoxVar": np.ones(4),
        "TargetBox": np.ones((5, 8)),
        "BoxScore": np.ones((5, 2)),
    }
    outputs: dict[str, Any] = {"DecodeBox": None, "OutputAssignBox": None}
    for changed, error, parts in (
        ({"PriorBox": OBJECTS[:, :3]}, ValueError, ("input PriorBox", "[-1, 4]")),
        ({"PriorBoxVar": np.ones((5, 4))}, ValueError, ("input PriorBoxVar", "[4]")),
        ({"BoxScore": np.ones((4, 2))}, ValueError, ("input BoxScore", "[5, -1]")),
        ({"BoxScore": np.ones((5, 0)), "TargetBox": np.ones((5, 0))}, ValueError, ("input BoxScore", "one class")),
        ({"TargetBox": np.ones((5, 9))}, ValueError, ("input TargetBox", "[5, 8]", "[5, 9]")),
        ({"BoxScore": np.ones((5, 2), np.float32)}, TypeError, ("input BoxScore", "float32")),
    ):
        test = OpTest("box_decoder_and_assign", {**good, **changed}, {"box_clip": 4.0}, outputs, known=list(good))
        test.check_refused(error, *parts)
