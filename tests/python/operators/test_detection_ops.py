"""Operators on boxes: overlaps, codes, priors, matches, targets, hard examples, suppression."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(71)


def boxes(*shape: int, size: float = 1.0) -> np.ndarray:
    """Boxes of [0, size] × [0, size], none of them empty."""
    corners = RNG.uniform(0, size, (*shape, 2, 2))
    low, high = corners.min(-2), corners.max(-2) + 0.01 * size
    return np.concatenate([low, high], -1)


def overlap(a: np.ndarray, b: np.ndarray, pixel: float = 0.0) -> float:
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + pixel
    if (sides <= 0).any():
        return 0.0
    area_a, area_b = (0.0 if (box[2:] < box[:2]).any() else np.prod(box[2:] - box[:2] + pixel) for box in (a, b))
    return float(np.prod(sides) / (area_a + area_b - np.prod(sides)))


def touching(a: np.ndarray, b: np.ndarray, pixel: float) -> float:
    """What non-maximum suppression measures."""
    if (b[:2] > a[2:]).any() or (b[2:] < a[:2]).any():
        return 0.0
    if pixel == 0 and all((box[2:] <= box[:2]).any() for box in (a, b)):
        return 1.0
    return overlap(a, b, pixel)


def overlaps(x: np.ndarray, y: np.ndarray, pixel: float = 0.0) -> np.ndarray:
    return np.array([[overlap(a, b, pixel) for b in y] for a in x]).reshape(len(x), len(y))


@pytest.mark.parametrize("normalized", [True, False, None])
def test_iou_similarity(normalized: bool | None) -> None:
    x, y = boxes(5, size=9), boxes(3, size=9)
    y[0] = x[0]
    attrs = {} if normalized is None else {"box_normalized": normalized}
    expected = overlaps(x, y, 1.0 if normalized is False else 0.0)
    assert expected[0, 0] == 1
    OpTest("iou_similarity", {"X": (x, [[2, 3]]), "Y": y}, attrs, {"Out": (expected, [[2, 3]])}).check_outputs()


def test_boxes_that_meet_at_an_edge_or_are_no_boxes_overlap_nothing() -> None:
    x = np.array([[0, 0, 1, 1], [2, 0, 1, 1], [3, 3, 3, 3], [0, 0, 2, 2]], float)
    y = np.array([[1, 0, 2, 1], [3, 3, 3, 3], [0, 0, 4, 4]], float)
    expected = np.array([[0, 0, 1 / 16], [0, 0, 0], [0, 0, 0], [0.25, 0, 0.25]])
    OpTest("iou_similarity", {"X": x, "Y": y}, {}, {"Out": expected}).check_outputs()


def test_iou_similarity_refuses_what_is_no_list_of_boxes() -> None:
    good = {"X": boxes(2), "Y": boxes(3)}
    for changed, error, parts in (
        ({"X": np.ones((2, 5))}, ValueError, ("input X", "[-1, 4]", "[2, 5]")),
        ({"Y": np.ones((2, 1, 4))}, ValueError, ("input Y", "[-1, 4]")),
        ({"Y": np.ones((2, 4), np.float32)}, TypeError, ("input Y", "float32")),
    ):
        OpTest("iou_similarity", {**good, **changed}).check_refused(error, *parts)


def centred(box: np.ndarray, pixel: float) -> tuple[np.ndarray, np.ndarray]:
    extents = box[..., 2:] - box[..., :2] + pixel
    return box[..., :2] + extents / 2, extents


def encoded(target: np.ndarray, prior: np.ndarray, variance: np.ndarray, pixel: float) -> np.ndarray:
    centre, extents = centred(prior, pixel)
    offset = (target[..., :2] + target[..., 2:]) / 2 - centre
    ratio = np.log(np.abs((target[..., 2:] - target[..., :2] + pixel) / extents))
    return np.concatenate([offset / extents, ratio], -1) / variance


def decoded(code: np.ndarray, prior: np.ndarray, variance: np.ndarray, pixel: float) -> np.ndarray:
    centre, extents = centred(prior, pixel)
    code = code * variance
    middle, size = centre + code[..., :2] * extents, extents * np.exp(code[..., 2:])
    return np.concatenate([middle - size / 2, middle + size / 2 - pixel], -1)


@pytest.mark.parametrize("variance", ["rows", "row", "attribute", None])
@pytest.mark.parametrize("normalized", [True, False])
def test_box_coder(variance: str | None, normalized: bool) -> None:
    prior, target, code = boxes(3), boxes(4), RNG.uniform(-1, 1, (4, 3, 4))
    values = {"rows": RNG.uniform(0.1, 1, (3, 4)), None: np.ones(4)}.get(variance, np.array([0.1, 0.2, 0.3, 0.4]))
    inputs: dict[str, Any] = {"PriorBox": prior}
    attrs: dict[str, Any] = {"box_normalized": normalized}
    if variance == "attribute":
        attrs["variance"] = values.tolist()
    elif variance is not None:
        inputs["PriorBoxVar"] = values
    pixel = 0.0 if normalized else 1.0
    known = ["PriorBoxVar"] if variance == "row" else []
    for code_type, slot_value, expected in (
        ("encode_center_size", target, encoded(target[:, None], prior, values, pixel)),
        ("decode_center_size", code, decoded(code, prior, values, pixel)),
    ):
        given = {**inputs, "TargetBox": (slot_value, [[1, 3]])}
        outputs = {"OutputBox": (expected, [[1, 3]])}
        OpTest("box_coder", given, {**attrs, "code_type": code_type}, outputs, known).check_outputs()
    along = RNG.uniform(-1, 1, (3, 2, 4))
    expected = decoded(along, prior[:, None], values[:, None] if variance == "rows" else values, pixel)
    attrs |= {"code_type": "decode_center_size", "axis": 1}
    # Each row belongs to a prior box, which is one of those of an image: a region that was found there.
    given = {**inputs, "PriorBox": (prior, [[2, 1]]), "TargetBox": along}
    OpTest("box_coder", given, attrs, {"OutputBox": (expected, [[2, 1]])}, known).check_outputs()


def test_what_is_encoded_is_decoded() -> None:
    prior, target = boxes(3), boxes(2)
    (codes,) = OpTest("box_coder", {"PriorBox": prior, "TargetBox": target}, {}, {"OutputBox": None}).run()["OutputBox"]
    given = {"PriorBox": prior, "TargetBox": np.asarray(codes)}
    expected = np.repeat(target[:, None], 3, 1)
    OpTest("box_coder", given, {"code_type": "decode_center_size"}, {"OutputBox": expected}).check_outputs()


def test_box_coder_refuses_what_does_not_fit() -> None:
    good: dict[str, Any] = {"PriorBox": boxes(3), "TargetBox": boxes(2)}
    decode = {"code_type": "decode_center_size"}
    for changed, attrs, error, parts in (
        ({"PriorBox": np.ones((3, 2))}, {}, ValueError, ("input PriorBox", "[-1, 4]")),
        ({"PriorBoxVar": np.ones((2, 4))}, {}, ValueError, ("input PriorBoxVar", "[3, 4]", "[2, 4]")),
        ({"PriorBoxVar": np.ones((3, 4))}, {"variance": [1.0] * 4}, ValueError, ("PriorBoxVar", "variance", "one of")),
        ({}, {"variance": [1.0]}, ValueError, ("attribute variance", "4 numbers")),
        ({}, {"variance": [1.0, 1.0, 0.0, 1.0]}, ValueError, ("attribute variance", "positive", "got 0")),
        ({"TargetBox": np.ones((2, 3, 4))}, {}, ValueError, ("input TargetBox", "[2, 3, 4]")),
        ({"TargetBox": np.ones((2, 2, 4))}, decode, ValueError, ("input TargetBox", "[-1, 3, 4]")),
        ({"TargetBox": np.ones((2, 3, 4))}, {**decode, "axis": 1}, ValueError, ("input TargetBox", "[3, -1, 4]")),
        ({"TargetBox": np.ones((2, 4), np.float32)}, {}, TypeError, ("input TargetBox", "float32")),
        ({}, {"code_type": "encode"}, ValueError, ("attribute code_type", "'encode'")),
        ({}, {"axis": 2}, ValueError, ("attribute axis", "got 2")),
    ):
        known = list(good) + list(changed)
        OpTest("box_coder", {**good, **changed}, attrs, {"OutputBox": None}, known).check_refused(error, *parts)


@pytest.mark.parametrize("shape", [(4,), (3, 4)], ids=str)
def test_box_clip(shape: tuple[int, ...]) -> None:
    x = RNG.uniform(-10, 40, (5, *shape))
    info = np.array([[20.0, 30.0, 1.0], [33.0, 16.0, 2.0], [9.0, 9.0, 3.0]])  # 16.5 rows are 17
    limits = np.repeat([[29, 19], [7, 16], [2, 2]], [2, 0, 3], axis=0).reshape(5, *[1] * (len(shape) - 1), 2)
    expected = np.clip(x, 0, np.concatenate([limits, limits], -1))
    lengths = [[2, 0, 3]]
    OpTest("box_clip", {"Input": (x, lengths), "ImInfo": info}, {}, {"Output": (expected, lengths)}).check_outputs()


def test_box_clip_refuses_what_does_not_fit() -> None:
    x, info = (boxes(3), [[1, 2]]), np.ones((2, 3))
    for changed, parts, when in (
        ({"Input": boxes(3)}, ("input Input", "LoD"), "run"),
        ({"Input": (np.ones((3, 5)), [[1, 2]])}, ("input Input", "[3, 5]"), "build"),
        ({"ImInfo": np.ones((2, 2))}, ("input ImInfo", "[-1, 3]"), "build"),
        ({"ImInfo": np.ones((3, 3))}, ("input ImInfo", "2 rows"), "run"),
        ({"ImInfo": np.zeros((2, 3))}, ("input ImInfo", "row 0", "scale 0"), "run"),
    ):
        test = OpTest("box_clip", {"Input": x, "ImInfo": info, **changed}, {}, {"Output": None})
        test.check_refused((ValueError, IndexError), *parts, when=when)  # type: ignore[arg-type]


def prior_shapes(attrs: dict[str, Any]) -> list[tuple[float, float]]:
    ratios = [1.0]
    for ratio in attrs["aspect_ratios"]:
        if min(abs(ratio - other) for other in ratios) > 1e-6:
            ratios += [ratio, 1 / ratio] if attrs.get("flip", True) else [ratio]
    shapes = []
    for i, size in enumerate(attrs["min_sizes"]):
        of_ratios = [(size * ratio**0.5, size / ratio**0.5) for ratio in ratios]
        between = [((size * attrs["max_sizes"][i]) ** 0.5,) * 2] if attrs.get("max_sizes") else []
        at = 1 if attrs.get("min_max_aspect_ratios_order") else len(ratios)
        shapes += of_ratios[:at] + between + of_ratios[at:]
    return shapes


def check_priors(
    op_type: str, shapes: list[tuple[float, float, float, float]], attrs: dict[str, Any], inside: bool
) -> None:
    """``shapes``: x and y of the centre, width and height, seen from a point."""
    feature, image = np.zeros((2, 3, 2, 3)), np.zeros((2, 3, 20, 36))
    step = (attrs.get("step_w") or 12.0, attrs.get("step_h") or 10.0)
    if not attrs.get("step_w") or not attrs.get("step_h"):
        step = (12.0, 10.0)
    expected = np.empty((2, 3, len(shapes), 4))
    for (h, w), (k, (x, y, width, height)) in itertools.product(np.ndindex(2, 3), enumerate(shapes)):
        centre = np.array([(w + attrs.get("offset", 0.5)) * step[0] + x, (h + attrs.get("offset", 0.5)) * step[1] + y])
        half = np.array([width, height]) / 2
        expected[h, w, k] = np.concatenate([centre - half, centre + half]) / [36, 20, 36, 20]
    if attrs.get("clip", True):
        expected = expected.clip(0, 1)
    elif inside:
        expected[..., :2], expected[..., 2:] = expected[..., :2].clip(0), expected[..., 2:].clip(None, 1)
    variances = np.broadcast_to(np.float32(attrs.get("variances", [0.1, 0.1, 0.2, 0.2])), expected.shape).astype(float)
    if attrs.get("flatten_to_2d"):
        expected, variances = expected.reshape(-1, 4), variances.reshape(-1, 4)
    outputs = {"Boxes": expected, "Variances": variances}
    OpTest(op_type, {"Input": feature, "Image": image}, attrs, outputs).check_outputs()


@pytest.mark.parametrize(
    "attrs",
    [
        {"min_sizes": [4.0], "aspect_ratios": [1.0]},
        {"min_sizes": [4.0, 8.0], "max_sizes": [8.0, 16.0], "aspect_ratios": [2.0, 3.0]},
        {"min_sizes": [4.0], "max_sizes": [9.0], "aspect_ratios": [2.0], "min_max_aspect_ratios_order": True},
        {"min_sizes": [30.0], "aspect_ratios": [1.0, 2.0, 2.0], "flip": False, "clip": False},
        {"min_sizes": [4.0], "aspect_ratios": [], "step_w": 5.0, "step_h": 7.0, "offset": 0.25},
        {"min_sizes": [4.0], "aspect_ratios": [2.0], "step_w": 5.0, "variances": [1.0, 2.0, 3.0, 4.0]},
    ],
    ids=lambda attrs: "-".join(attrs),
)
def test_prior_box(attrs: dict[str, Any]) -> None:
    check_priors("prior_box", [(0, 0, *shape) for shape in prior_shapes(attrs)], attrs, False)


@pytest.mark.parametrize(
    "attrs",
    [
        {"fixed_sizes": [4.0], "fixed_ratios": [1.0], "densities": [1]},
        {"fixed_sizes": [4.0, 8.0], "fixed_ratios": [1.0, 2.0], "densities": [3, 2], "clip": False},
        {"fixed_sizes": [8.0], "fixed_ratios": [0.5], "densities": [2], "flatten_to_2d": True, "offset": 0.25},
        {"fixed_sizes": [8.0], "fixed_ratios": [1.0], "densities": [2], "step_w": 5.0, "step_h": 8.0},
    ],
    ids=lambda attrs: "-".join(attrs),
)
def test_density_prior_box(attrs: dict[str, Any]) -> None:
    step = int((attrs.get("step_w", 12.0) + attrs.get("step_h", 10.0)) / 2)
    shapes = []
    for size, density in zip(attrs["fixed_sizes"], attrs["densities"]):
        shift = step // density
        for ratio, i, j in itertools.product(attrs["fixed_ratios"], range(density), range(density)):
            x, y = (shift / 2 - step / 2 + at * shift for at in (j, i))
            shapes.append((x, y, size * ratio**0.5, size / ratio**0.5))
    check_priors("density_prior_box", shapes, attrs, True)


@pytest.mark.parametrize(
    ("op_type", "attrs", "parts"),
    [
        ("prior_box", {"min_sizes": []}, ("attribute min_sizes", "at least one")),
        ("prior_box", {"min_sizes": [0.0]}, ("attribute min_sizes", "positive", "got 0")),
        ("prior_box", {"max_sizes": [3.0, 4.0]}, ("attribute max_sizes", "1 min_sizes", "got 2")),
        ("prior_box", {"max_sizes": [2.0]}, ("attribute max_sizes", "more than 2")),
        ("prior_box", {"aspect_ratios": [-1.0]}, ("attribute aspect_ratios", "got -1")),
        ("prior_box", {"variances": [1.0]}, ("attribute variances", "4 numbers", "got 1")),
        ("prior_box", {"step_w": -1.0}, ("attribute step", "got -1")),
        ("density_prior_box", {"densities": [1, 2]}, ("attribute densities", "got 2")),
        ("density_prior_box", {"densities": [0]}, ("attribute densities", "got 0")),
        ("density_prior_box", {"fixed_ratios": [0.0]}, ("attribute fixed_ratios", "got 0")),
    ],
    ids=lambda value: "",
)
def test_priors_that_make_no_sense_are_refused(op_type: str, attrs: dict[str, Any], parts: tuple[str, ...]) -> None:
    good: dict[str, Any] = {"min_sizes": [2.0]}
    if op_type == "density_prior_box":
        good = {"fixed_sizes": [2.0], "fixed_ratios": [1.0], "densities": [1]}
    inputs = {"Input": np.zeros((1, 1, 2, 2)), "Image": np.zeros((1, 3, 4, 4))}
    outputs = {"Boxes": None, "Variances": None}
    OpTest(op_type, inputs, {**good, **attrs}, outputs).check_refused(ValueError, *parts)
    for image, part in ((np.zeros((3, 4, 4)), "rank 4"), (np.zeros((1, 3, 0, 4)), "not empty")):
        test = OpTest(op_type, {**inputs, "Image": image}, good, outputs)
        test.check_refused(ValueError, "input Image", part)


def matches(matrix: np.ndarray, threshold: float | None) -> tuple[np.ndarray, np.ndarray]:
    """By looking for the greatest element again and again."""
    left = np.where(matrix < 1e-6, 0, matrix)
    index, dist = np.full(matrix.shape[1], -1, np.int32), np.zeros(matrix.shape[1])
    while left.size and left.max() > 0:
        column, row = np.unravel_index(np.argmax(left.T), left.T.shape)
        index[column], dist[column] = row, matrix[row, column]
        left[row], left[:, column] = 0, 0
    for column in np.flatnonzero(index < 0) if threshold is not None and len(matrix) else []:
        row = int(matrix[:, column].argmax())
        if matrix[row, column] >= max(threshold, 1e-6):
            index[column], dist[column] = row, matrix[row, column]
    return index, dist


@pytest.mark.parametrize("threshold", [None, 0.5, 0.0])
@pytest.mark.parametrize("lengths", [None, [3, 0, 4], [2, 5]], ids=str)
def test_bipartite_match(threshold: float | None, lengths: list[int] | None) -> None:
    matrix = RNG.integers(0, 8, (7, 5)) / 8  # ties and zeros
    attrs: dict[str, Any] = {}
    if threshold is not None:
        attrs = {"match_type": "per_prediction", "dist_threshold": threshold}
    parts = np.split(matrix, np.cumsum(lengths)[:-1]) if lengths else [matrix]
    index, dist = (np.stack(values) for values in zip(*(matches(part, threshold) for part in parts)))
    given = (matrix, [lengths]) if lengths else matrix
    outputs = {"ColToRowMatchIndices": index, "ColToRowMatchDist": dist}
    OpTest("bipartite_match", {"DistMat": given}, attrs, outputs).check_outputs()


def test_bipartite_match_of_many_rows_is_that_of_few() -> None:
    matrix = RNG.integers(0, 50, (300, 40)) / 50
    index, dist = matches(matrix, None)
    outputs = {"ColToRowMatchIndices": index[None], "ColToRowMatchDist": dist[None]}
    OpTest("bipartite_match", {"DistMat": matrix}, {}, outputs).check_outputs()


def test_bipartite_match_of_nothing() -> None:
    outputs = {"ColToRowMatchIndices": np.full((2, 3), -1, np.int32), "ColToRowMatchDist": np.zeros((2, 3))}
    OpTest("bipartite_match", {"DistMat": (np.zeros((0, 3)), [[0, 0]])}, {}, outputs).check_outputs()


def test_bipartite_match_refuses_what_is_no_matrix() -> None:
    outputs = {"ColToRowMatchIndices": None, "ColToRowMatchDist": None}
    test = OpTest("bipartite_match", {"DistMat": np.ones((2, 2, 2))}, {}, outputs)
    test.check_refused(ValueError, "input DistMat", "rank 2")
    test = OpTest("bipartite_match", {"DistMat": (np.ones((2, 2)), [[1], [2]])}, {}, outputs)
    test.check_refused(ValueError, "input DistMat", "LoD")
    test = OpTest("bipartite_match", {"DistMat": np.ones((2, 2))}, {"match_type": "all"}, outputs)
    test.check_refused(ValueError, "attribute match_type", "'all'")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.int64])
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("negative", [False, True])
def test_target_assign(dtype: Any, parts: int, negative: bool) -> None:
    x = RNG.uniform(1, 100, (5, parts, 3)).astype(dtype)
    index = np.array([[-1, 1, 0, -1], [2, -1, 2, -1]], np.int32)
    inputs: dict[str, Any] = {"X": (x, [[2, 3]]), "MatchIndices": index}
    out, weight = np.full((2, 4, 3), 7, dtype), np.zeros((2, 4, 1), np.float32)
    for n, j in np.argwhere(index >= 0):
        out[n, j], weight[n, j] = x[(0, 2)[n] + index[n, j], j % parts], 1
    if negative:
        inputs["NegIndices"] = (np.array([[3], [0], [1]], np.int32), [[1, 2]])
        weight[0, 3] = weight[1, 1] = weight[1, 0] = 1
        out[1, 0] = 7
    outputs = {"Out": out, "OutWeight": weight}
    OpTest("target_assign", inputs, {"mismatch_value": 7}, outputs).check_outputs()


def test_target_assign_refuses_matches_that_are_not_there() -> None:
    good: dict[str, Any] = {"X": (np.ones((3, 1, 2)), [[1, 2]]), "MatchIndices": np.zeros((2, 4), np.int32)}
    outputs = {"Out": None, "OutWeight": None}
    none = (np.zeros((0, 1), np.int32), [[0, 0, 0]])
    for changed, parts, when in (
        ({"X": np.ones((3, 1, 2))}, ("input X", "LoD"), "run"),
        ({"X": (np.ones((3, 2)), [[1, 2]])}, ("input X", "3"), "build"),
        ({"MatchIndices": np.zeros((3, 4), np.int32)}, ("input X", "expected 3 sequences"), "run"),
        ({"MatchIndices": np.ones((2, 4), np.int32)}, ("input MatchIndices", "row 0 matches 1", "has 1"), "run"),
        ({"NegIndices": none}, ("input NegIndices", "expected 2 sequences"), "run"),
        ({"NegIndices": (np.full((1, 1), 4, np.int32), [[1, 0]])}, ("input NegIndices", "is 4", "[0, 4)"), "run"),
        ({"NegIndices": (np.full((1, 2), 4, np.int32), [[1, 0]])}, ("input NegIndices", "[-1, 1]"), "build"),
    ):
        test = OpTest("target_assign", {**good, **changed}, {}, outputs)
        test.check_refused((ValueError, IndexError), *parts, when=when)  # type: ignore[arg-type]
    test = OpTest("target_assign", {**good, "MatchIndices": np.zeros((2, 4), np.int64)}, {}, outputs)
    test.check_refused(TypeError, "input MatchIndices", "int32")


def mined(
    loss: np.ndarray, match: np.ndarray, dist: np.ndarray, attrs: dict[str, Any]
) -> tuple[list[list[int]], np.ndarray]:
    found, updated = [], match.copy()
    for n, row in enumerate(match):
        hard = attrs.get("mining_type") == "hard_example"
        eligible = np.arange(row.size) if hard else np.flatnonzero((row < 0) & (dist[n] < attrs["neg_dist_threshold"]))
        count = attrs["sample_size"] if hard else int((row >= 0).sum() * attrs["neg_pos_ratio"])
        chosen = set(sorted(eligible, key=lambda i, n=n: -loss[n, i])[:count])  # type: ignore[misc]
        found.append(sorted(int(i) for i in chosen if row[i] < 0))
        if hard:
            updated[n] = [match[n, i] if i in chosen else -1 for i in range(row.size)]
    return found, updated


@pytest.mark.parametrize(
    "attrs",
    [
        {"neg_pos_ratio": 1.5, "neg_dist_threshold": 0.5},
        {"neg_pos_ratio": 100.0, "neg_dist_threshold": 0.8, "mining_type": "max_negative"},
        {"sample_size": 3, "mining_type": "hard_example"},
        {"sample_size": 30, "mining_type": "hard_example"},
    ],
    ids=lambda attrs: "-".join(map(str, attrs.values())),
)
@pytest.mark.parametrize("located", [False, True])
def test_mine_hard_examples(attrs: dict[str, Any], located: bool) -> None:
    loss, more, dist = (RNG.integers(0, 6, (3, 8)) / 6 for _ in range(3))
    match = RNG.integers(-1, 2, (3, 8)).astype(np.int32)
    match[1] = -1  # nothing to learn from
    hard = attrs.get("mining_type") == "hard_example"
    found, updated = mined(loss + more if located and hard else loss, match, dist, attrs)
    inputs = {"ClsLoss": loss, "MatchIndices": match, "MatchDist": dist, **({"LocLoss": more} if located else {})}
    negatives = np.array([[i] for row in found for i in row], np.int32).reshape(-1, 1)
    outputs = {"NegIndices": (negatives, [[len(row) for row in found]]), "UpdatedMatchIndices": updated}
    OpTest("mine_hard_examples", inputs, attrs, outputs).check_outputs()


@pytest.mark.parametrize(
    ("attrs", "parts"),
    [
        ({"neg_pos_ratio": 0.0}, ("attribute neg_pos_ratio", "got 0")),
        ({"neg_dist_threshold": 1.0}, ("attribute neg_dist_threshold", "got 1")),
        ({"mining_type": "hard_example"}, ("attribute sample_size", "got 0")),
        ({"mining_type": "none"}, ("attribute mining_type", "'none'")),
    ],
    ids=lambda value: "",
)
def test_mining_that_makes_no_sense_is_refused(attrs: dict[str, Any], parts: tuple[str, ...]) -> None:
    inputs = {"ClsLoss": np.ones((2, 3)), "MatchIndices": np.ones((2, 3), np.int32), "MatchDist": np.ones((2, 3))}
    outputs = {"NegIndices": None, "UpdatedMatchIndices": None}
    OpTest("mine_hard_examples", inputs, attrs, outputs).check_refused(ValueError, *parts)
    inputs["MatchDist"] = np.ones((2, 2))
    OpTest("mine_hard_examples", inputs, {}, outputs).check_refused(ValueError, "input MatchDist", "[2, 3]", "[2, 2]")


def suppressed(
    box: np.ndarray, score: np.ndarray, attrs: dict[str, Any], overlap_of: Any = touching
) -> list[tuple[float, int]]:
    """(score, place) of the boxes of a class that are kept."""
    order = [i for i in np.argsort(-score, kind="stable") if score[i] > attrs["score_threshold"]]
    order = order if attrs["nms_top_k"] < 0 else order[: attrs["nms_top_k"]]
    kept: list[int] = []
    threshold, eta = attrs.get("nms_threshold", 0.3), attrs.get("nms_eta", 1.0)
    pixel = 0.0 if attrs.get("normalized", True) else 1.0
    for i in order:
        if all(overlap_of(box[i], box[j], pixel) <= threshold for j in kept):
            kept.append(int(i))
            threshold *= eta if eta < 1 and threshold > 0.5 else 1
    return [(float(score[i]), i) for i in kept]


def detections(
    box: np.ndarray, score: np.ndarray, attrs: dict[str, Any], overlap_of: Any = touching
) -> list[tuple[int, int]]:
    """(label, place) of what is found in an image. ``box``: [C, M, 4], ``score``: [C, M]."""
    found = [
        (value, label, i)
        for label in range(len(score))
        if label != attrs.get("background_label", 0)
        for value, i in suppressed(box[label], score[label], attrs, overlap_of)
    ]
    if 0 <= attrs["keep_top_k"] < len(found):
        found = sorted(found, key=lambda item: -item[0])[: attrs["keep_top_k"]]
    return [(label, i) for _, label, i in sorted(found, key=lambda item: item[1])]


NMS = {"score_threshold": 0.1, "nms_top_k": -1, "keep_top_k": -1}


@pytest.mark.parametrize(
    "attrs",
    [
        NMS,
        {**NMS, "nms_top_k": 6, "nms_threshold": 0.1},
        {**NMS, "keep_top_k": 5, "background_label": -1},
        {**NMS, "nms_threshold": 0.9, "nms_eta": 0.8, "normalized": False},
        {**NMS, "keep_top_k": 0, "background_label": 2},
        {**NMS, "score_threshold": 0.85},
    ],
    ids=lambda attrs: "-".join(map(str, attrs.values())),
)
@pytest.mark.parametrize("shared", [True, False])
def test_multiclass_nms(attrs: dict[str, Any], shared: bool) -> None:
    count = [20, 20, 20] if shared else [30, 0, 25]
    box = [boxes(3, n, size=3) for n in count]
    box = [np.repeat(b[:1], 3, 0) for b in box] if shared else box
    score = [RNG.permutation(3 * n).reshape(3, n) / (3 * n + 1) for n in count]
    rows, places, lengths = [], [], []
    for image, (b, s) in enumerate(zip(box, score)):
        found = detections(b, s, attrs)
        found = found if shared else sorted(found)
        lengths.append(len(found))
        rows += [[label, s[label, i], *b[label, i]] for label, i in found]
        first = sum(count[:image])
        places += [first + i if shared else (first + i) * 3 + label for label, i in found]
    if shared:
        inputs: dict[str, Any] = {"BBoxes": np.stack([b[0] for b in box]), "Scores": np.stack(score)}
    else:
        joined = np.concatenate([b.swapaxes(0, 1) for b in box])
        inputs = {"BBoxes": (joined, [count]), "Scores": (np.concatenate([s.T for s in score]), [count])}
    out = np.array(rows).reshape(-1, 6)
    index = np.array(places, np.int32).reshape(-1, 1)
    outputs: dict[str, Any] = {"Out": (out, [lengths]), "Index": (index, [lengths])}
    OpTest("multiclass_nms2", inputs, attrs, outputs, ["BBoxes"]).check_outputs()
    if rows:
        OpTest("multiclass_nms", inputs, attrs, {"Out": (out, [lengths])}, ["BBoxes"]).check_outputs()


@pytest.mark.parametrize("images", [0, 2])
def test_where_nothing_is_found_there_is_minus_one(images: int) -> None:
    inputs = {"BBoxes": boxes(images, 3), "Scores": np.zeros((images, 2, 3))}
    (out,) = OpTest("multiclass_nms", inputs, NMS).run()["Out"]
    np.testing.assert_array_equal(np.asarray(out), [[-1]])
    assert out.recursive_sequence_lengths() == [[1]]


def merged(
    box: np.ndarray, score: np.ndarray, threshold: float, overlap_of: Any, pixel: float
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes merged with the one before where they overlap."""
    groups: list[tuple[np.ndarray, float]] = []
    for b, s in zip(box, score):
        if groups and overlap_of(b, groups[-1][0], pixel) > threshold:
            before, weight = groups.pop()
            b, s = (b * s + before * weight) / (s + weight), s + weight
        groups.append((b, s))
    return np.array([b for b, _ in groups]), np.array([s for _, s in groups])


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("attrs", [NMS, {**NMS, "keep_top_k": 3, "nms_threshold": 0.5, "background_label": 0}], ids=str)
def test_locality_aware_nms(attrs: dict[str, Any], normalized: bool) -> None:
    attrs = {**attrs, "normalized": normalized, "score_threshold": 0.4}
    box = np.repeat(boxes(2, 8, size=40), 3, 1) + RNG.uniform(-1, 1, (2, 24, 4))
    score = RNG.permutation(2 * 2 * 24).reshape(2, 2, 24) / 100
    rows, lengths = [], []
    for b, s in zip(box, score):
        pixel, threshold = 0.0 if normalized else 1.0, attrs.get("nms_threshold", 0.3)
        parts = [merged(b, of_class, threshold, overlap, pixel) for of_class in s]
        assert all(4 < len(part[0]) < 20 for part in parts)
        width = max(len(part[0]) for part in parts)
        joined = np.zeros((2, width, 4)), np.zeros((2, width))
        for c, (found_boxes, found_scores) in enumerate(parts):
            joined[0][c, : len(found_boxes)], joined[1][c, : len(found_boxes)] = found_boxes, found_scores
        found = detections(*joined, {"background_label": -1, **attrs})
        lengths.append(len(found))
        rows += [[label, joined[1][label, i], *joined[0][label, i]] for label, i in found]
    outputs: dict[str, Any] = {"Out": (np.array(rows), [lengths])}
    inputs = {"BBoxes": box, "Scores": score}
    OpTest("locality_aware_nms", inputs, attrs, outputs, ["BBoxes"]).check_outputs()


@pytest.mark.parametrize(
    ("box", "normalized", "kept"),
    [
        ([[0, 0, 0, 10], [0.1, 0, 0.1, 10]], False, 2),  # less than a pixel apart
        ([[0, 0, 0, 10], [0, 0, 0.1, 10]], False, 1),
        ([[0, 0, 0, 1], [0, 0, 0, 1]], True, 1),  # the same line
        ([[0, 0, 0, 1], [0, 0, 1, 1]], True, 2),  # the edge of the other one
    ],
)
def test_suppression_of_boxes_that_barely_touch(box: Any, normalized: bool, kept: int) -> None:
    inputs = {"BBoxes": np.array([box], float), "Scores": np.array([[[0.9, 0.8]]])}
    attrs = {**NMS, "background_label": -1, "normalized": normalized, "nms_threshold": 0.5}
    (out,) = OpTest("multiclass_nms", inputs, attrs, {"Out": None}).run()["Out"]
    assert out.shape()[0] == kept


def test_locality_aware_nms_takes_images_of_boxes() -> None:
    test = OpTest("locality_aware_nms", {"BBoxes": (np.ones((2, 3, 4)), [[2]]), "Scores": np.ones((2, 3))}, NMS)
    test.check_refused(ValueError, "input Scores", "rank 3")


def polygon_overlap(a: np.ndarray, b: np.ndarray, pixel: float) -> float:
    """By counting the points of a grid."""
    x, y = np.meshgrid((np.arange(600) + 0.5) / 200, (np.arange(600) + 0.5) / 200)

    def inside(polygon: np.ndarray) -> np.ndarray:
        found = np.zeros(x.shape, bool)
        corners = polygon.reshape(-1, 2)
        for (px, py), (qx, qy) in zip(corners, np.roll(corners, -1, 0)):
            crosses = (py > y) != (qy > y)
            with np.errstate(all="ignore"):
                found ^= crosses & (x < (qx - px) * (y - py) / (qy - py) + px)
        return found

    one, other = inside(a), inside(b)
    united = (one | other).sum()
    return float((one & other).sum() / united) if united else 0.0


@pytest.mark.parametrize("corners", [4, 8])
@pytest.mark.parametrize("clockwise", [False, True])
def test_polygons(corners: int, clockwise: bool) -> None:
    """Stars, so that most of them are not convex."""
    angles = np.arange(corners) * 2 * np.pi / corners
    angles = -angles if clockwise else angles
    radii = RNG.uniform(0.2, 1.0, (2, corners))
    middle = RNG.uniform(1.2, 1.8, (2, 1, 2))
    stars = (middle + radii[..., None] * np.stack([np.cos(angles), np.sin(angles)], -1)).reshape(1, 2, -1)
    expected = polygon_overlap(*stars[0], 0)
    assert expected > 0.1
    # The second one goes once the threshold is below its overlap with the first.
    inputs = {"BBoxes": stars, "Scores": np.array([[[0.9, 0.8]]])}
    for threshold, kept in ((expected - 0.01, 1), (expected + 0.01, 2)):
        attrs = {**NMS, "background_label": -1, "nms_threshold": threshold}
        out = np.concatenate([[[0, 0.9], [0, 0.8]], stars[0]], 1)[:kept]
        OpTest("multiclass_nms", inputs, attrs, {"Out": (out, [[kept]])}, ["BBoxes"]).check_outputs()


def test_multiclass_nms_refuses_what_does_not_fit() -> None:
    good: dict[str, Any] = {"BBoxes": np.ones((2, 3, 4)), "Scores": np.ones((2, 5, 3))}
    for changed, error, parts in (
        ({"BBoxes": np.ones((2, 4))}, ValueError, ("input BBoxes", "rank 3")),
        ({"BBoxes": np.ones((2, 2, 4))}, ValueError, ("input BBoxes", "[2, 3, -1]", "[2, 2, 4]")),
        ({"BBoxes": np.ones((2, 3, 5))}, ValueError, ("input BBoxes", "polygons", "[2, 3, 5]")),
        ({"Scores": np.ones(3)}, ValueError, ("input Scores", "rank 2 or 3")),
        ({"Scores": np.ones((2, 4)), "BBoxes": (np.ones((2, 3, 4)), [[2]])}, ValueError, ("input BBoxes", "[2, 4, 4]")),
        ({"BBoxes": np.ones((2, 3, 4), np.float32)}, TypeError, ("input BBoxes", "float32")),
    ):
        OpTest("multiclass_nms", {**good, **changed}, NMS).check_refused(error, *parts)
    test = OpTest("multiclass_nms", {"BBoxes": np.ones((2, 3, 4)), "Scores": np.ones((2, 3))}, NMS)
    test.check_refused(ValueError, "input BBoxes", "LoD", when="run")
