"""Layers of losses over many classes, metrics, random numbers and recurrent projections, in programs that run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

RNG = np.random.default_rng(113)


def rows(name: str, width: int, dtype: str = "float32", lod_level: int = 0) -> fluid.framework.Variable:
    return layers.data(name, [width], dtype=dtype, lod_level=lod_level)


CLASSES = 8
CUSTOM = [0.3, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sampler": "log_uniform", "num_neg_samples": 4, "bias_attr": False},
        {"sampler": "custom_dist", "custom_dist": CUSTOM, "num_neg_samples": 5},
    ],
    ids=["uniform", "log_uniform", "custom_dist"],
)
def test_nce_learns_classes(exe: fluid.Executor, arguments: dict[str, Any]) -> None:
    x, label = rows("x", CLASSES), rows("label", 1, "int64")
    zero = fluid.initializer.Constant(0.0)
    cost = layers.nce(x, label, CLASSES, param_attr=zero, seed=5, **arguments)
    assert cost.shape == (-1, 1)
    fluid.optimizer.SGD(10.0).minimize(layers.mean(cost))
    exe.run(fluid.default_startup_program())
    feed = {"x": np.eye(CLASSES, dtype=np.float32), "label": np.arange(CLASSES).reshape(-1, 1)}
    costs = [exe.run(feed=feed, fetch_list=[cost])[0].mean() for _ in range(100)]
    assert costs[-1] < costs[0] / 2


def test_noise_of_a_distribution_of_ones_own(exe: fluid.Executor) -> None:
    x, label = rows("x", 2), rows("label", 1, "int64")
    out = layers.nce(x, label, CLASSES, num_neg_samples=200, sampler="custom_dist", custom_dist=CUSTOM, seed=5)
    (op,) = (op for op in fluid.default_main_program().global_block().ops if op.type == "nce")
    exe.run(fluid.default_startup_program())
    feed = {"x": np.zeros((100, 2), np.float32), "label": np.zeros((100, 1), np.int64)}
    drawn, sums, got = exe.run(feed=feed, fetch_list=[op.output("SampleLabels")[0], op.output("Cost")[0], out])
    np.testing.assert_allclose(got, sums / 201, rtol=1e-6)  # as in Fluid
    np.testing.assert_allclose(np.bincount(drawn[:, 1:].ravel(), minlength=CLASSES) / 20000, CUSTOM, atol=0.015)


def test_nce_leaves_the_distribution_that_it_is_given_as_it_is() -> None:
    x, label = rows("x", 2), rows("label", 1, "int64")
    given = np.array([1.0, 2.0, 5.0])
    given.flags.writeable = False
    layers.nce(x, label, 3, sampler="custom_dist", custom_dist=given)
    np.testing.assert_array_equal(given, [1.0, 2.0, 5.0])


def test_nce_refuses_what_does_not_fit() -> None:
    x, label = rows("x", 2), rows("label", 1, "int64")
    with pytest.raises(errors.InvalidArgument, match="'gamma'"):
        layers.nce(x, label, 3, sampler="gamma")
    for distribution in (None, [0.5, 0.5], [0.0, 0.0, 0.0], [-1.0, 1.0, 1.0]):
        with pytest.raises(errors.InvalidArgument, match="3 probabilities"):
            layers.nce(x, label, 3, sampler="custom_dist", custom_dist=distribution)
    with pytest.raises(errors.InvalidArgument, match="needs the parameter"):
        layers.nce(x, label, 3, param_attr=False)
    with pytest.raises(errors.InvalidArgument, match=r"\[N, D\]"):
        layers.nce(layers.data("cube", [2, 2]), label, 3)


@pytest.mark.parametrize("bias", [None, False])
def test_hsigmoid_learns_classes(exe: fluid.Executor, bias: bool | None) -> None:
    x, label = rows("x", CLASSES), rows("label", 1, "int64")
    cost = layers.hsigmoid(x, label, 6, bias_attr=bias)
    fluid.optimizer.SGD(2.0).minimize(layers.mean(cost))
    exe.run(fluid.default_startup_program())
    feed = {"x": np.eye(6, CLASSES, dtype=np.float32), "label": np.arange(6).reshape(-1, 1)}
    costs = [exe.run(feed=feed, fetch_list=[cost])[0] for _ in range(150)]
    # Classes 2 to 5 are three steps from the root, the others two: they count log(2) for the third.
    beyond = np.array([[np.log(2)]] * 2 + [[0.0]] * 4)
    assert (costs[-1] - beyond).max() < 0.2
    assert (costs[0] - beyond).min() > 0.5


def test_hsigmoid_over_a_tree_of_ones_own(exe: fluid.Executor) -> None:
    x, label = rows("x", 2), rows("label", 1, "int64")
    table, code = rows("table", 2, "int64"), rows("code", 2, "int64")
    zero = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.0))
    cost = layers.hsigmoid(x, label, 2, param_attr=zero, path_table=table, path_code=code, is_custom=True)
    exe.run(fluid.default_startup_program())
    feed = {"x": np.ones((1, 2), np.float32), "label": np.zeros((1, 1), np.int64)}
    feed |= {"table": np.array([[0, 1]]), "code": np.array([[1, 0]])}
    np.testing.assert_allclose(exe.run(feed=feed, fetch_list=[cost])[0], [[2 * np.log(2)]], rtol=1e-6)
    with pytest.raises(errors.InvalidArgument, match="path_table"):
        layers.hsigmoid(x, label, 2, is_custom=True)
    with pytest.raises(errors.InvalidArgument, match="num_classes"):
        layers.hsigmoid(x, label, 1)


def test_square_error_cost_of_a_smaller_label(exe: fluid.Executor) -> None:
    """As in Fluid, which subtracts and squares."""
    x, y = rows("x", 3), rows("y", 1)
    cost = layers.square_error_cost(x, y)
    a, b = RNG.random((4, 3), np.float32), RNG.random((4, 1), np.float32)
    (got,) = exe.run(feed={"x": a, "y": b}, fetch_list=[cost])
    np.testing.assert_allclose(got, (a - b) ** 2, rtol=1e-6)


def test_bpr_loss_and_softmax_along_an_axis(exe: fluid.Executor) -> None:
    x, label = rows("x", 3), rows("label", 1, "int64")
    images, pixels = layers.data("images", [3, 2, 2]), layers.data("pixels", [1, 2, 2], dtype="int64")
    loss, p = layers.softmax_with_cross_entropy(images, pixels, return_softmax=True, axis=1)
    feed = {
        "x": np.array([[1, 2, 3]], np.float32),
        "label": np.array([[2]]),
        "images": np.zeros((1, 3, 2, 2), np.float32),
        "pixels": np.zeros((1, 1, 2, 2), np.int64),
    }
    got = exe.run(feed=feed, fetch_list=[layers.bpr_loss(x, label), loss, p])
    np.testing.assert_allclose(got[0], [[np.log1p(np.exp([-2, -1])).mean()]], rtol=1e-5)
    np.testing.assert_allclose(got[1], np.full((1, 1, 2, 2), np.log(3)), rtol=1e-6)
    np.testing.assert_allclose(got[2], np.full((1, 3, 2, 2), 1 / 3), rtol=1e-6)


def test_data_norm(exe: fluid.Executor) -> None:
    x = rows("x", 2)
    out = layers.data_norm(x, param_attr={"batch_size": 4.0, "batch_sum": 8.0, "batch_square": 16.0}, act="relu")
    assert len(fluid.default_main_program().all_parameters()) == 3
    exe.run(fluid.default_startup_program())
    (got,) = exe.run(feed={"x": np.array([[1, 4]], np.float32)}, fetch_list=[out])
    np.testing.assert_allclose(got, [[0, 1]])
    with pytest.raises(errors.InvalidArgument, match="'batch_mean'"):
        layers.data_norm(x, param_attr={"batch_mean": 1.0})
    with pytest.raises(errors.InvalidArgument, match=r"\[N, C\]"):
        layers.data_norm(layers.data("cube", [2, 2]))


def test_auc(exe: fluid.Executor) -> None:
    p, label = rows("p", 2), rows("label", 1, "int64")
    everything, last, histograms = layers.auc(p, label, num_thresholds=99, slide_steps=2)
    assert [histogram.shape for histogram in histograms] == [(2, 100), (2, 100), (1, 100), (1, 100)]  # as in Fluid
    exe.run(fluid.default_startup_program())
    good = {"p": np.array([[0.9, 0.1], [0.2, 0.8]], np.float32), "label": np.array([[0], [1]])}
    bad = {**good, "label": np.array([[1], [0]])}
    got = [
        [float(a[0]) for a in exe.run(feed=feed, fetch_list=[everything, last])] for feed in (good, good, bad, bad, bad)
    ]
    np.testing.assert_allclose(got, [[1, 1], [1, 1], [2 / 3, 0.5], [0.5, 0], [0.4, 0]])
    # Programs of Fluid's begin anew by these names.
    assert [histogram.name for histogram in histograms] == [f"_generated_var_{i}" for i in range(4)]
    for name in ("_generated_var_2", "_generated_var_3"):
        histogram = fluid.global_scope().find_var(name).get_tensor()
        histogram.set(np.zeros(histogram.shape(), np.int64))
    assert exe.run(feed=good, fetch_list=[everything])[0] == 1


def test_metrics_of_tags_and_pixels(exe: fluid.Executor) -> None:
    tags, truth = rows("tags", 1, "int64", 1), rows("truth", 1, "int64", 1)
    pixels, labels = rows("pixels", 4, "int32"), rows("labels", 4, "int32")
    outs = [*layers.chunk_eval(tags, truth, "IOB", (3 - 1) / 2), *layers.mean_iou(pixels, labels, 2)]
    lod = [[2, 2]]
    feed = {
        "tags": fluid.create_lod_tensor(np.array([[0], [1], [2], [0]]), lod, fluid.CPUPlace()),
        "truth": fluid.create_lod_tensor(np.array([[0], [1], [0], [2]]), lod, fluid.CPUPlace()),
        "pixels": np.array([[0, 0, 1, 1]], np.int32),
        "labels": np.array([[0, 1, 1, 1]], np.int32),
    }
    got = [value.tolist() for value in exe.run(feed=feed, fetch_list=outs)]
    assert got[:6] == [[0.5], [0.5], [0.5], [2], [2], [1]]
    np.testing.assert_allclose(got[6], [(1 / 2 + 2 / 3) / 2], rtol=1e-6)
    assert got[7:] == [[1, 1], [1, 2]]


def test_random_layers(exe: fluid.Executor) -> None:
    x = layers.data("x", [6, 6])
    outs = [
        layers.uniform_random([2, 3], min=0.0, seed=1),
        layers.uniform_random_batch_size_like(x, [-1, 2], seed=1),
        layers.gaussian_random([4], seed=1, dtype="float64"),
        layers.gaussian_random_batch_size_like(x, [2, -1], input_dim_idx=1, output_dim_idx=1, seed=1),
        layers.sampling_id(layers.uniform_random([5, 3], min=0.1, seed=1), seed=1),
        layers.random_crop(x, [2, 3], seed=4),
    ]
    exe.run(fluid.default_startup_program())
    feed = {"x": np.arange(72, dtype=np.float32).reshape(2, 6, 6)}
    first, second = (exe.run(feed=feed, fetch_list=outs) for _ in range(2))
    assert [value.shape for value in first] == [(2, 3), (2, 2), (4,), (2, 6), (5,), (2, 2, 3)]
    assert [str(value.dtype) for value in first] == ["float32", "float32", "float64", "float32", "int64", "float32"]
    for before, after in zip(first[:5], second):
        np.testing.assert_array_equal(before, after)
    assert (first[5] != second[5]).any()  # its seed moves on
    with pytest.raises(errors.TypeMismatch, match="seed"):
        layers.random_crop(x, [2], seed="one")


@pytest.mark.parametrize("initial", [False, True])
def test_dynamic_lstmp(exe: fluid.Executor, initial: bool) -> None:
    x = rows("x", 3, lod_level=1)
    states = {}
    if initial:
        states = {"h_0": rows("h", 2), "c_0": rows("c", 4)}
    projections, cells = layers.dynamic_lstmp(
        layers.fc(x, 16), 16, 2, param_attr=fluid.ParamAttr("lstmp"), proj_clip=0.5, cell_clip=3.0, **states
    )
    assert (projections.shape, cells.shape) == ((-1, 2), (-1, 4))
    parameters = {p.name: p.shape for p in fluid.default_main_program().all_parameters()}
    assert parameters["lstmp.w"] == (2, 16)
    assert parameters["lstmp.proj"] == (4, 2)
    fluid.optimizer.SGD(0.1).minimize(layers.mean(projections))
    exe.run(fluid.default_startup_program())
    feed: dict[str, Any] = {
        "x": fluid.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 3]], fluid.CPUPlace()),
        "h": np.ones((2, 2), np.float32),
        "c": np.ones((2, 4), np.float32),
    }
    feed = {name: value for name, value in feed.items() if initial or name == "x"}
    got = exe.run(feed=feed, fetch_list=[projections, cells], return_numpy=False)
    assert [value.lod() for value in got] == [[[0, 2, 5]]] * 2
    with pytest.raises(errors.InvalidArgument, match="h_0 and c_0"):
        layers.dynamic_lstmp(layers.fc(x, 16), 16, 2, h_0=rows("h2", 2))
    with pytest.raises(errors.InvalidArgument, match="4 times"):
        layers.dynamic_lstmp(layers.fc(x, 6), 6, 2)


def test_precision_and_recall(exe: fluid.Executor) -> None:
    scores, label = fluid.data("scores", [None, 3]), fluid.data("label", [None, 1], "int64")
    of_batch, of_all, counts = layers.precision_recall(scores, label, 3)
    weighted, _, _ = layers.precision_recall(scores, label, 3, weights=fluid.data("weights", [None, 1]))
    exe.run(fluid.default_startup_program())

    def metrics(table: np.ndarray) -> list[float]:
        """Of a confusion matrix, true classes by predicted ones."""
        hits, chosen, true = np.diag(table), table.sum(0), table.sum(1)
        found = []
        for precision, recall in (
            (
                np.mean(np.where(chosen > 0, hits / np.maximum(chosen, 1e-9), 1)),
                np.mean(np.where(true > 0, hits / np.maximum(true, 1e-9), 1)),
            ),
            (hits.sum() / table.sum(), hits.sum() / table.sum()),
        ):
            found += [precision, recall, 2 * precision * recall / (precision + recall)]
        return found

    total = np.zeros((3, 3))
    for batch in range(3):
        rng = np.random.default_rng(batch)
        given, true = rng.random((8, 3), np.float32), rng.integers(0, 3, (8, 1))
        weights = rng.random((8, 1), np.float32) + 0.5
        table, of_weights = np.zeros((3, 3)), np.zeros((3, 3))
        for row in range(8):
            place = true[row, 0], given[row].argmax()
            table[place] += 1
            of_weights[place] += weights[row, 0]
        total += table
        feed = {"scores": given, "label": true, "weights": weights}
        got = exe.run(feed=feed, fetch_list=[of_batch, of_all, counts, weighted])
        for value, expected in zip(got, (metrics(table), metrics(total), None, metrics(of_weights))):
            if expected is not None:
                np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_array_equal(got[2][:, 0], np.diag(total))
        np.testing.assert_array_equal(got[2].sum(1), [total.sum()] * 3)


def test_norms_and_differences(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [2, 3]), fluid.data("y", [2, 3])
    outs = [layers.l1_norm(x), layers.squared_l2_norm(x), layers.minus(x, y), layers.modified_huber_loss(x, y)]
    a, b = np.array([[-3.0, 0.5, 2], [0, -0.5, 3]], np.float32), np.array([[1.0, 1, 0], [0, 1, 1]], np.float32)
    got = exe.run(feed={"x": a, "y": b}, fetch_list=outs)
    margin = (2 * b - 1) * a
    loss = np.where(margin < -1, -4 * margin, np.maximum(0, 1 - margin) ** 2)
    for value, expected in zip(got, ([np.abs(a).sum()], [np.square(a).sum()], a - b, loss)):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_numbers_that_do_not_lie_far_from_their_mean(exe: fluid.Executor) -> None:
    out = layers.truncated_gaussian_random([1000, 20], mean=1.0, std=0.5, seed=3)
    (got,) = exe.run(fetch_list=[out])
    assert got.shape == (1000, 20)
    assert np.abs(got - 1).max() <= 1
    np.testing.assert_allclose([got.mean(), got.std()], [1, 0.5 * 0.88], atol=0.01)


def softmax_loss(logits: np.ndarray) -> np.ndarray:
    """-log of the probability of the first column."""
    return np.log(np.exp(logits - logits[:, :1]).sum(1, keepdims=True))


def test_sampled_softmax_learns_classes(exe: fluid.Executor) -> None:
    x, label = rows("x", CLASSES), rows("label", 1, "int64")
    logits = layers.fc(x, CLASSES)
    loss = layers.mean(layers.sampled_softmax_with_cross_entropy(logits, label, 3, seed=5))
    whole = layers.mean(layers.softmax_with_cross_entropy(logits, label))
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.SGD(4.0).minimize(loss)
    exe.run(fluid.default_startup_program())
    feed = {"x": np.eye(CLASSES, dtype=np.float32), "label": np.arange(CLASSES).reshape(-1, 1)}
    before = exe.run(test, feed=feed, fetch_list=[whole])[0]
    for seed in range(1, 60):
        (op,) = (op for op in fluid.default_main_program().global_block().ops if op.type == "sample_logits")
        op._set_attr("seed", seed)
        exe.run(feed=feed, fetch_list=[loss])
    assert exe.run(test, feed=feed, fetch_list=[whole])[0] < before / 3


def test_sampled_softmax_of_all_classes_is_nearly_that_of_all(exe: fluid.Executor) -> None:
    """Every class is drawn, with a probability near 1."""
    x, label = rows("x", 5), rows("label", 1, "int64")
    sampled = layers.sampled_softmax_with_cross_entropy(x, label, 5, seed=2)
    whole = layers.softmax_with_cross_entropy(x, label)
    assert sampled.shape == (-1, 1)
    feed = {"x": RNG.uniform(-1, 1, (6, 5)).astype(np.float32), "label": RNG.integers(0, 5, (6, 1))}
    a, b = exe.run(feed=feed, fetch_list=[sampled, whole])
    np.testing.assert_allclose(a, b, atol=0.2)


@pytest.mark.parametrize("num_true", [1, 2])
def test_sampled_softmax_of_classes_of_ones_own(exe: fluid.Executor, num_true: int) -> None:
    x, label = rows("x", 6), rows("label", num_true, "int64")
    samples = rows("samples", num_true + 2, "int64")
    probabilities = rows("probabilities", num_true + 2)
    x.stop_gradient = False
    loss = layers.sampled_softmax_with_cross_entropy(
        x,
        label,
        2,
        num_true,
        use_customized_samples=True,
        customized_samples=samples,
        customized_probabilities=probabilities,
    )
    (gradient,) = fluid.gradients(loss, x)
    labels = np.array([[0, 1], [2, 3], [4, 0]])[:, :num_true]
    drawn = np.concatenate([labels, [[5, 4]] * 3], 1)
    feed = {
        "x": RNG.uniform(-1, 1, (3, 6)).astype(np.float32),
        "label": labels,
        "samples": drawn,
        "probabilities": RNG.uniform(0.2, 1, drawn.shape).astype(np.float32),
    }
    got, slope = exe.run(feed=feed, fetch_list=[loss, gradient])
    logits = np.take_along_axis(feed["x"], drawn, 1) - np.log(feed["probabilities"])
    hit = (drawn == 4) & (labels == 4).any(1, keepdims=True)
    hit[:, :num_true] = False
    logits[hit] = -1e20
    each = [softmax_loss(np.roll(logits, -k, 1)) for k in range(num_true)]
    np.testing.assert_allclose(got, np.mean(each, 0), rtol=1e-5)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p[:, :num_true] -= 1 / num_true
    expected = np.zeros((3, 6))
    for row in range(3):
        np.add.at(expected[row], drawn[row], p[row])
    np.testing.assert_allclose(slope, expected, atol=1e-6)


def test_sampled_softmax_refuses_what_does_not_fit() -> None:
    x, label = rows("x", 6), rows("label", 2, "int64")
    with pytest.raises(errors.InvalidArgument, match=r"'label' has to be .*num_true"):
        layers.sampled_softmax_with_cross_entropy(x, label, 3)
    with pytest.raises(errors.InvalidArgument, match="customized_samples and customized_probabilities"):
        layers.sampled_softmax_with_cross_entropy(x, label, 3, 2, use_customized_samples=True)
    with pytest.raises(errors.InvalidArgument, match="num_samples"):
        layers.sampled_softmax_with_cross_entropy(x, label, 7, 2)


def test_a_model_of_clicks_counts_in_its_embeddings(exe: fluid.Executor) -> None:
    ids, counts = layers.data("ids", [1], dtype="int64"), layers.data("counts", [2])
    table = fluid.ParamAttr("table", initializer=fluid.initializer.Constant(1.0))
    embedded = layers.embedding(ids, [3, 5], param_attr=table)
    out = layers.continuous_value_model(embedded, counts, use_cvm=False)
    assert out.shape == (-1, 3)
    fluid.optimizer.SGD(1.0).minimize(layers.reduce_sum(out))
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": np.array([[0], [2]]), "counts": np.array([[1, 0], [2, 1]], np.float32)})
    rows = np.asarray(fluid.global_scope().find_var("table").get_tensor())
    np.testing.assert_array_equal(rows, [[0, 1, 0, 0, 0], [1] * 5, [-1, 0, 0, 0, 0]])


def test_similarity_focus_is_a_mask(exe: fluid.Executor) -> None:
    x = layers.data("x", [2, 2, 2])
    mask = layers.similarity_focus(x, axis=1, indexes=(1,))
    assert mask.shape == (-1, 2, 2, 2)
    images = np.array([[[[0, 0], [0, 0]], [[1, 2], [3, 9]]]], np.float32)
    got = exe.run(feed={"x": images}, fetch_list=[mask])[0]
    np.testing.assert_array_equal(got, np.tile(np.eye(2), (1, 2, 1, 1)))


def test_softmax_and_cross_entropy_learn_however_far_the_logits_are_apart() -> None:
    logits = fluid.layers.data("logits", [2], stop_gradient=False)
    label = fluid.layers.data("label", [1], dtype="int64")
    loss = fluid.layers.cross_entropy(fluid.layers.softmax(logits), label)
    (gradient,) = fluid.gradients(loss, logits)
    feed = {"logits": np.array([[0, gap] for gap in (50, 90, 1000)], np.float32), "label": np.zeros((3, 1), np.int64)}
    got, losses = fluid.Executor().run(feed=feed, fetch_list=[gradient, loss])
    np.testing.assert_allclose(got, [[-1, 1]] * 3, rtol=1e-5)
    np.testing.assert_allclose(losses, [[50], [64], [64]], rtol=1e-5)
