"""Programs that find things in images, and the layers that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(83)
SIZE = 32
VARIANCES = [0.1, 0.1, 0.2, 0.2]


class Scenes:
    """Images of one or two things: full squares (class 1) and frames (class 2)."""

    def __init__(self, seed: int, count: int) -> None:
        rng = np.random.default_rng(seed)
        self.images = (0.1 * rng.standard_normal((count, 1, SIZE, SIZE))).astype(np.float32)
        self.boxes: list[np.ndarray] = []
        self.labels: list[np.ndarray] = []
        for image in self.images:
            number = int(rng.integers(1, 3))
            extent = rng.integers(8, 14, number)
            top = rng.integers(0, SIZE - extent)
            # the first one in the left half, the second one in the right half
            left = np.array([rng.integers(0, 16 - min(e, 15)) + 16 * i for i, e in enumerate(extent)])
            label = rng.integers(1, 3, (number, 1))
            for y, x, e, kind in zip(top, left, extent, label[:, 0]):
                image[0, y : y + e, x : x + e] += 1
                if kind == 2:
                    image[0, y + 2 : y + e - 2, x + 2 : x + e - 2] -= 1
            self.boxes.append((np.stack([left, top, left + extent, top + extent], 1) / SIZE).astype(np.float32))
            self.labels.append(label)

    def lists(self) -> dict[str, Any]:
        lengths = [[len(box) for box in self.boxes]]
        return {
            "image": self.images,
            "box": fluid.create_lod_tensor(np.concatenate(self.boxes), lengths),
            "label": fluid.create_lod_tensor(np.concatenate(self.labels), lengths),
        }

    def padded(self) -> dict[str, Any]:
        """Centres and extents, as YOLO wants them; classes from 0 on."""
        box, label = np.zeros((len(self.boxes), 2, 4), np.float32), np.zeros((len(self.boxes), 2), np.int32)
        for n, (corners, kinds) in enumerate(zip(self.boxes, self.labels)):
            box[n, : len(corners), :2] = (corners[:, :2] + corners[:, 2:]) / 2
            box[n, : len(corners), 2:] = corners[:, 2:] - corners[:, :2]
            label[n, : len(kinds)] = kinds[:, 0] - 1
        sizes = np.full((len(box), 2), SIZE, np.int32)
        return {"image": self.images, "box": box, "label": label, "size": sizes}

    def found_by(self, found: Any, scale: float = 1.0, first_class: int = 1) -> float:
        """The share of the things that are found, with the right class and by the best of their image's findings."""
        rows, offsets = np.asarray(found), np.cumsum([0, *found.recursive_sequence_lengths()[0]])
        hits = 0
        for n, (boxes, labels) in enumerate(zip(self.boxes, self.labels)):
            of_image = rows[offsets[n] : offsets[n + 1]]
            best = of_image[np.argsort(-of_image[:, 1])][: len(boxes)]
            for box, label in zip(boxes, labels[:, 0]):
                near = [overlap(row[2:] / scale, box) > 0.5 and row[0] + 1 - first_class == label for row in best]
                hits += any(near)
        return hits / sum(map(len, self.boxes))


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    return float(sides.prod() / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - sides.prod()))


def features(image: Variable) -> tuple[Variable, Variable]:
    """Maps of 8 x 8 and 4 x 4."""
    net = image
    for filters in (8, 16):
        net = layers.conv2d(net, filters, 3, stride=2, padding=1, act="relu")
    wide = layers.conv2d(net, 24, 3, padding=1, act="relu")
    return wide, layers.conv2d(wide, 24, 3, stride=2, padding=1, act="relu")


def train(exe: fluid.Executor, loss: Variable, feed: Callable[[Scenes], dict[str, Any]], steps: int) -> list[float]:
    exe.run(fluid.default_startup_program())
    return [float(exe.run(feed=feed(Scenes(seed, 16)), fetch_list=[loss])[0].mean()) for seed in range(steps)]


def test_a_single_shot_detector_learns(exe: fluid.Executor) -> None:
    image = layers.data("image", [1, SIZE, SIZE])
    box, label = layers.data("box", [4], lod_level=1), layers.data("label", [1], dtype="int64", lod_level=1)
    codes, scores, priors, variances = layers.multi_box_head(
        features(image),
        image,
        SIZE,
        3,
        [[1.0], [1.0]],
        min_sizes=[8.0, 11.0],
        max_sizes=[11.0, 14.0],
        kernel_size=3,
        pad=1,
    )
    found = layers.detection_output(codes, scores, priors, variances, nms_threshold=0.45, score_threshold=0.1)
    test = fluid.default_main_program().clone(for_test=True)
    loss = layers.reduce_sum(layers.ssd_loss(codes, scores, box, label, priors, variances))
    with fluid.program_guard(test):
        measure = fluid.metrics.DetectionMAP(
            test.global_block().var(found.name),
            fluid.data("label", [None, 1], "int64", 1),
            fluid.data("box", [None, 4], "float32", 1),
            class_num=3,
        )
    fluid.optimizer.Adam(0.01).minimize(loss)
    losses = train(exe, loss, Scenes.lists, 100)
    assert losses[0] > 3 * np.mean(losses[-5:])

    measure.reset(exe)
    fetch = [found.name, *(variable.name for variable in measure.get_map_var())]
    shares = []
    for seed in (1000, 1001):
        scenes = Scenes(seed, 32)
        result, _, of_all = exe.run(test, scenes.lists(), fetch, return_numpy=False)
        shares.append(scenes.found_by(result))
    assert min(shares) > 0.9
    assert np.asarray(of_all)[0] > 0.9


def test_a_yolo_detector_learns(exe: fluid.Executor) -> None:
    image = layers.data("image", [1, SIZE, SIZE])
    box, label, size = (
        layers.data("box", [2, 4]),
        layers.data("label", [2], dtype="int32"),
        layers.data("size", [2], dtype="int32"),
    )
    anchors = [8, 8, 12, 12, 16, 16]
    losses, boxes, scores = [], [], []
    for net, mask, ratio in zip(features(image), ([0, 1], [2]), (4, 8)):
        maps = layers.conv2d(net, len(mask) * (5 + 2), 1)
        of_mask = [extent for anchor in mask for extent in anchors[2 * anchor : 2 * anchor + 2]]
        losses.append(layers.yolov3_loss(maps, box, label, anchors, mask, 2, 0.6, ratio))
        found_boxes, found_scores = layers.yolo_box(maps, size, of_mask, 2, 0.1, ratio)
        boxes.append(found_boxes)
        scores.append(layers.transpose(found_scores, [0, 2, 1]))
    found = layers.multiclass_nms(
        layers.concat(boxes, axis=1), layers.concat(scores, axis=2), 0.1, 50, 10, 0.45, background_label=-1
    )
    test = fluid.default_main_program().clone(for_test=True)
    loss = layers.reduce_mean(layers.sum(losses))
    fluid.optimizer.Adam(0.01).minimize(loss)
    values = train(exe, loss, Scenes.padded, 200)
    assert values[0] > 3 * np.mean(values[-5:])
    scenes = Scenes(1000, 32)
    (result,) = exe.run(test, scenes.padded(), [found.name], return_numpy=False)
    assert scenes.found_by(result, SIZE, first_class=0) > 0.9


def softmax_loss(scores: np.ndarray, label: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(-1, keepdims=True)
    chosen = np.take_along_axis(scores, label[..., None], -1)[..., 0]
    return np.log(np.exp(scores).sum(-1)) - chosen


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("with_variance", [True, False])
def test_ssd_loss(exe: fluid.Executor, normalize: bool, with_variance: bool) -> None:
    """Boxes 0 and 1 match a true box each, 2 the first one, too; of the others, two are near nothing."""
    prior = np.array([[0, 0, 4, 4], [4, 4, 8, 8], [0, 0, 4, 5], [0, 4, 4, 8], [4, 0, 8, 4]], np.float32) / 8
    truth = np.array([[0.5, 0, 4, 4], [4, 4.5, 8, 8], [4, 4, 8, 8]], np.float32) / 8
    kinds = np.array([[1], [2], [2]])
    lengths = [[2, 1]]
    location, confidence = RNG.normal(size=(2, 5, 4)), RNG.normal(size=(2, 5, 3))
    names = {"location": location, "confidence": confidence, "prior": prior, "var": np.tile(VARIANCES, (5, 1))}
    feed: dict[str, Any] = {name: value.astype(np.float32) for name, value in names.items()}
    loc, conf = fluid.data("location", [None, 5, 4]), fluid.data("confidence", [None, 5, 3])
    loc.stop_gradient = conf.stop_gradient = False
    box, label = fluid.data("box", [None, 4], "float32", 1), fluid.data("label", [None, 1], "int64", 1)
    priors, variances = fluid.data("prior", [5, 4]), fluid.data("var", [5, 4])
    loss = layers.ssd_loss(
        loc,
        conf,
        box,
        label,
        priors,
        variances if with_variance else None,
        neg_pos_ratio=0.7,
        loc_loss_weight=0.5,
        conf_loss_weight=2.0,
        normalize=normalize,
    )
    assert loss.shape == (-1, 1)
    gradients = fluid.gradients([loss], [loc, conf])
    feed["box"], feed["label"] = (fluid.create_lod_tensor(value, lengths) for value in (truth, kinds))
    value, by_loc, by_conf = exe.run(feed=feed, fetch_list=[loss, *gradients])

    matched = [[0, 1, 0, -1, -1], [-1, 0, -1, -1, -1]]
    expected, count = np.zeros(2), 0
    for n, rows in enumerate(matched):
        first = (0, 2)[n]
        target = np.array([kinds[first + m, 0] if m >= 0 else 0 for m in rows])
        losses = softmax_loss(confidence[n], target)
        free = sorted((j for j in range(5) if rows[j] < 0), key=lambda j, losses=losses: -losses[j])  # type: ignore[misc]
        positives = [j for j in range(5) if rows[j] >= 0]
        counted = positives + free[: int(len(positives) * 0.7)]
        expected[n] = 2.0 * losses[counted].sum()
        for j in positives:
            true, seen = truth[first + rows[j]], prior[j]
            centre = ((true[:2] + true[2:]) - (seen[:2] + seen[2:])) / 2 / (seen[2:] - seen[:2])
            code = np.concatenate([centre, np.log((true[2:] - true[:2]) / (seen[2:] - seen[:2]))])
            difference = np.abs(location[n, j] - (code / VARIANCES if with_variance else code))
            expected[n] += 0.5 * np.where(difference < 1, difference**2 / 2, difference - 0.5).sum()
        count += len(positives)
    np.testing.assert_allclose(value[:, 0], expected / (count if normalize else 1), rtol=1e-4)
    assert (np.abs(by_loc).sum(-1) > 0).tolist() == [[m >= 0 for m in rows] for rows in matched]
    assert ((np.abs(by_conf).sum(-1) > 0).sum(1)).tolist() == [5, 1]


def test_ssd_loss_where_nothing_matches(exe: fluid.Executor) -> None:
    loc, conf = layers.data("location", [2, 4]), layers.data("confidence", [2, 3])
    box, label = layers.data("box", [4], lod_level=1), layers.data("label", [1], dtype="int32", lod_level=1)
    loss = layers.ssd_loss(loc, conf, box, label, fluid.data("prior", [2, 4]))
    feed: dict[str, Any] = {
        "location": np.ones((2, 2, 4), np.float32),
        "confidence": np.ones((2, 2, 3), np.float32),
        "prior": np.array([[0, 0, 1, 1], [0, 0, 2, 2]], np.float32),
        "box": fluid.create_lod_tensor(np.zeros((0, 4), np.float32), [[0, 0]]),
        "label": fluid.create_lod_tensor(np.zeros((0, 1), np.int32), [[0, 0]]),
    }
    np.testing.assert_array_equal(exe.run(feed=feed, fetch_list=[loss])[0], [[0], [0]])


def test_ssd_loss_refuses_what_it_cannot_take() -> None:
    loc, box, label = layers.data("location", [2, 4]), layers.data("box", [4], lod_level=1), layers.data("l", [1])
    prior = fluid.data("prior", [2, 4])
    with pytest.raises(errors.InvalidArgument, match="'max_negative', got 'hard_example'"):
        layers.ssd_loss(loc, layers.data("a", [2, 3]), box, label, prior, mining_type="hard_example")
    with pytest.raises(errors.InvalidArgument, match=r"\[N, M, classes\], got \[-1, 3\]"):
        layers.ssd_loss(loc, layers.data("b", [3]), box, label, prior)


def test_the_head_of_many_maps(exe: fluid.Executor) -> None:
    image = layers.data("image", [3, 60, 60])
    maps = [layers.data(f"map{size}", [2, size, size]) for size in (6, 4, 2)]
    arguments = {"num_classes": 4, "min_ratio": 20, "max_ratio": 90, "base_size": 60, "clip": True}
    head = layers.multi_box_head(maps, image, aspect_ratios=[[2.0], [2.0, 3.0], 2.0], **arguments)
    # Squares of the two sizes, and two for each ratio.
    count = 36 * 4 + 16 * 6 + 4 * 4
    assert [out.shape for out in head] == [(-1, count, 4), (-1, count, 4), (count, 4), (count, 4)]
    exe.run(fluid.default_startup_program())
    feed = {"image": np.ones((2, 3, 60, 60), np.float32)}
    feed |= {x.name: RNG.normal(size=(2, *x.shape[1:])).astype(np.float32) for x in maps}
    codes, scores, priors, variances = exe.run(feed=feed, fetch_list=list(head))
    assert codes.shape == scores.shape == (2, count, 4)
    np.testing.assert_allclose(variances, np.tile(VARIANCES, (count, 1)), rtol=1e-6)
    # The first boxes of each map, in its corner: 10 %, 20 % and 90 % of the image, of which a quarter may be cut off.
    for first, share, size in ((0, 0.1, 6), (36 * 4, 0.2, 4), (36 * 4 + 16 * 6, 0.9, 2)):
        edge = 0.5 / size
        expected = [max(edge - share / 2, 0)] * 2 + [edge + share / 2] * 2
        np.testing.assert_allclose(priors[first], expected, rtol=1e-5)


def test_the_head_takes_one_map_and_steps() -> None:
    image, maps = layers.data("image", [3, 60, 60]), layers.data("map", [2, 6, 6])
    head = layers.multi_box_head([maps], image, 60, 3, None, min_sizes=[[6.0, 9.0]], max_sizes=None, steps=[10.0])
    assert [out.shape for out in head] == [(-1, 36 * 8), (-1, 36 * 6), (6, 6, 2, 4), (6, 6, 2, 4)]  # as in Fluid
    with pytest.raises(errors.InvalidArgument, match="min_sizes and max_sizes are needed"):
        layers.multi_box_head([maps], image, 60, 3, None)
    with pytest.raises(errors.InvalidArgument, match="min_ratio by 1 or more, got 20 and 20"):
        layers.multi_box_head([maps] * 3, image, 60, 3, None, 20, 20)
    with pytest.raises(errors.InvalidArgument, match="aspect_ratios needs one item for each of the 1 inputs"):
        layers.multi_box_head([maps], image, 60, 3, [2.0, 3.0], min_sizes=[6.0])
    with pytest.raises(errors.InvalidArgument, match="inputs has to be a list of Variables"):
        layers.multi_box_head(maps, image, 60, 3, None, min_sizes=[6.0])
    with pytest.raises(errors.InvalidArgument, match="min_sizes is needed where max_sizes is given"):
        layers.multi_box_head([maps], image, 60, 3, None, max_sizes=[6.0])


def test_what_is_found_has_its_place(exe: fluid.Executor) -> None:
    prior = np.array([[0, 0, 0.5, 0.5], [0.5, 0.5, 1, 1], [0, 0, 0.5, 0.52]], np.float32)
    loc, scores, priors = fluid.data("loc", [None, 3, 4]), fluid.data("scores", [None, 3, 2]), fluid.data("p", [3, 4])
    arguments = {"nms_threshold": 0.5, "score_threshold": 0.6}
    found, index = layers.detection_output(loc, scores, priors, VARIANCES, return_index=True, **arguments)
    alone = layers.detection_output(loc, scores, priors, VARIANCES, **arguments)
    assert [out.shape for out in (found, index, alone)] == [(-1, 6), (-1, 1), (-1, 6)]
    assert found.stop_gradient
    logits = np.log(np.array([[[0.3, 0.7], [0.1, 0.9], [0.2, 0.8]], [[0.9, 0.1]] * 3], np.float32))
    feed = {"loc": np.zeros((2, 3, 4), np.float32), "scores": logits, "p": prior}
    got, places, same = exe.run(feed=feed, fetch_list=[found, index, alone], return_numpy=False)
    assert got.recursive_sequence_lengths() == places.recursive_sequence_lengths() == [[2, 0]]
    np.testing.assert_allclose(np.asarray(got), [[1, 0.9, *prior[1]], [1, 0.8, *prior[2]]], rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(places), [[1], [2]])
    np.testing.assert_array_equal(np.asarray(same), np.asarray(got))
    feed["scores"] = np.tile(np.array([5, 0], np.float32), (2, 3, 1))
    got, places, same = exe.run(feed=feed, fetch_list=[found, index, alone], return_numpy=False)
    assert (np.asarray(got).shape, np.asarray(places).shape) == ((0, 6), (0, 1))
    assert np.asarray(same).tolist() == [[-1]]


def test_priors_and_codes(exe: fluid.Executor) -> None:
    image, maps = fluid.data("image", [None, 3, 20, 40]), fluid.data("map", [None, 2, 2, 4])
    boxes, variances = layers.prior_box(maps, image, 4.0, max_sizes=9.0, aspect_ratios=[2.0], steps=[8, 9], offset=0)
    none, _ = layers.prior_box(maps, image, [4.0], max_sizes=[0.0])
    dense, _ = layers.density_prior_box(maps, image, [2, 1], [4.0, 8.0], [1.0], flatten_to_2d=True)
    assert (boxes.shape, none.shape, dense.shape) == ((2, 4, 3, 4), (2, 4, 1, 4), (40, 4))
    assert boxes.stop_gradient
    rows, spread = layers.flatten(boxes, 3), layers.flatten(variances, 3)
    codes = layers.box_coder(rows, spread, rows)
    back = layers.box_coder(rows, spread, codes, "decode_center_size")
    clipped = layers.box_clip(layers.data("b", [4], lod_level=1), fluid.data("info", [None, 3]))
    corners = layers.polygon_box_transform(fluid.data("offsets", [None, 2, 1, 3]))
    feed: dict[str, Any] = {
        "image": np.zeros((1, 3, 20, 40), np.float32),
        "map": np.zeros((1, 2, 2, 4), np.float32),
        "b": fluid.create_lod_tensor(np.array([[-1, -2, 30, 40]], np.float32), [[1]]),
        "info": np.array([[12, 24, 2]], np.float32),
        "offsets": np.ones((1, 2, 1, 3), np.float32),
    }
    got = exe.run(feed=feed, fetch_list=[boxes, codes, back, clipped, corners], return_numpy=False)
    priors, numbers, decoded, inside, points = map(np.asarray, got)
    np.testing.assert_allclose(priors[1, 1, 0], [(8 - 2) / 40, (9 - 2) / 20, (8 + 2) / 40, (9 + 2) / 20], rtol=1e-6)
    np.testing.assert_allclose(np.diagonal(numbers).T, np.zeros((24, 4)), atol=1e-5)
    np.testing.assert_allclose(decoded, np.tile(priors.reshape(-1, 1, 4), (1, 24, 1)), atol=1e-5)
    np.testing.assert_array_equal(inside, [[0, 0, 11, 5]])
    np.testing.assert_array_equal(points[0], [[[-1, 3, 7]], [[-1, -1, -1]]])


def test_priors_refuse_what_they_cannot_take() -> None:
    image, maps = layers.data("image", [3, 20, 40]), layers.data("map", [2, 2, 4])
    with pytest.raises(errors.InvalidArgument, match=r"layers\.prior_box: steps has to be a width and a height"):
        layers.prior_box(maps, image, 4.0, steps=[1.0])
    with pytest.raises(errors.TypeMismatch, match=r"layers\.prior_box: min_sizes has to consist of numbers"):
        layers.prior_box(maps, image, ["small"])
    with pytest.raises(errors.TypeMismatch, match="densities has to be a list or a tuple, got None"):
        layers.density_prior_box(maps, image)
    with pytest.raises(errors.TypeMismatch, match="prior_box has to be a Variable"):
        layers.box_coder(np.ones((1, 4)), None, maps)


def test_matches_and_targets(exe: fluid.Executor) -> None:
    dist = layers.data("dist", [3], lod_level=1)
    index, value = layers.bipartite_match(dist)
    more, _ = layers.bipartite_match(dist, "per_prediction", 0.3)
    kinds = layers.data("kinds", [1, 1], dtype="int64", lod_level=1)
    targets, weights = layers.target_assign(kinds, more, mismatch_value=9.0)
    assert [out.shape for out in (index, value, targets, weights)] == [(-1, 3), (-1, 3), (-1, 3, 1), (-1, 3, 1)]
    matrix = np.array([[0.9, 0.4, 0.1], [0.8, 0.2, 0.0]], np.float32)
    feed = {
        "dist": fluid.create_lod_tensor(matrix, [[2]]),
        "kinds": fluid.create_lod_tensor(np.array([[[5]], [[6]]]), [[2]]),
    }
    got = exe.run(feed=feed, fetch_list=[index, value, more, targets, weights])
    np.testing.assert_array_equal(got[0], [[0, 1, -1]])
    np.testing.assert_allclose(got[1], [[0.9, 0.2, 0]])
    np.testing.assert_array_equal(got[2], [[0, 1, -1]])
    np.testing.assert_array_equal(got[3][0, :, 0], [5, 6, 9])
    np.testing.assert_array_equal(got[4][0, :, 0], [1, 1, 0])


def test_focal_loss(exe: fluid.Executor) -> None:
    x, label, count = fluid.data("x", [None, 2]), fluid.data("label", [None, 1], "int32"), fluid.data("n", [1], "int32")
    x.stop_gradient = False
    loss = layers.sigmoid_focal_loss(x, label, count)
    (gradient,) = fluid.gradients([loss], [x])
    feed = {"x": np.zeros((2, 2), np.float32), "label": np.array([[2], [0]], np.int32), "n": np.array([2], np.int32)}
    value, by_x = exe.run(feed=feed, fetch_list=[loss, gradient])
    there, missing = 0.25 * 0.25 * np.log(2) / 2, 0.75 * 0.25 * np.log(2) / 2
    np.testing.assert_allclose(value, [[missing, there], [missing, missing]], rtol=1e-5)
    assert (by_x > 0).tolist() == [[True, False], [True, True]]


def test_detection_map_over_batches(exe: fluid.Executor) -> None:
    """By hand: one of two objects is found in the first batch, none of one in the second."""
    found = layers.data("found", [6], lod_level=1)
    label, box = layers.data("label", [1], dtype="int64", lod_level=1), layers.data("box", [4], lod_level=1)
    hard = layers.data("hard", [1], dtype="int32", lod_level=1)
    measures = [
        fluid.metrics.DetectionMAP(found, label, box, class_num=2),
        fluid.evaluator.DetectionMAP(found, label, box, hard, class_num=2, evaluate_difficult=False),
    ]
    assert measures[0].has_state.name == "map_eval_0_3_has_state"
    fetch = [variable for measure in measures for variable in measure.get_map_var()]
    exe.run(fluid.default_startup_program())
    square, other = [0.1, 0.1, 0.4, 0.4], [0.5, 0.5, 0.9, 0.9]

    def batch(rows: list[list[float]], boxes: list[list[float]], flags: list[int]) -> dict[str, Any]:
        lengths = [[len(boxes)]]
        return {
            "found": fluid.create_lod_tensor(np.array(rows, np.float32), [[len(rows)]]),
            "label": fluid.create_lod_tensor(np.ones((len(boxes), 1), np.int64), lengths),
            "box": fluid.create_lod_tensor(np.array(boxes, np.float32), lengths),
            "hard": fluid.create_lod_tensor(np.array(flags, np.int32).reshape(-1, 1), lengths),
        }

    first = batch([[1, 0.9, *square], [1, 0.5, 0, 0, 0.1, 0.1]], [square, other], [0, 1])
    second = batch([[1, 0.8, 0, 0, 0.1, 0.1]], [other], [0])
    for _ in range(2):
        for measure in measures:
            measure.reset(exe)
        np.testing.assert_allclose(np.ravel(exe.run(feed=first, fetch_list=fetch)), [1 / 2, 1 / 2, 1, 1])
        np.testing.assert_allclose(np.ravel(exe.run(feed=second, fetch_list=fetch)), [0, 1 / 3, 0, 1 / 2], rtol=1e-6)
    with pytest.raises(errors.InvalidArgument, match="class_num, the number of classes, has to be given"):
        fluid.metrics.DetectionMAP(found, label, box)
    with pytest.raises(errors.InvalidArgument, match="input_states has to be three variables, got 1"):
        layers.detection_map(found, layers.concat([layers.cast(label, "float32"), box], 1), 2, input_states=[found])


@pytest.mark.parametrize("best", [0.9, 0.1])
def test_multiclass_nms2_finds_no_rows_where_there_is_nothing(exe: fluid.Executor, best: float) -> None:
    boxes, scores = fluid.data("boxes", [None, 2, 4]), fluid.data("scores", [None, 2, 2])
    found = layers.multiclass_nms2(boxes, scores, 0.5, 10, 10)
    again, places = layers.multiclass_nms2(boxes, scores, 0.5, 10, 10, return_index=True)
    feed = {
        "boxes": np.array([[[0, 0, 1, 1], [2, 2, 3, 3]]], np.float32),
        "scores": np.array([[[0, 0], [0.2, best]]], np.float32),
    }
    rows, same, where = (
        np.array(out) for out in exe.run(feed=feed, fetch_list=[found, again, places], return_numpy=False)
    )
    assert rows.tolist() == same.tolist()
    assert rows[:, 2:].tolist() == ([[2, 2, 3, 3]] if best > 0.5 else [])
    assert where.tolist() == ([[1]] if best > 0.5 else [])
