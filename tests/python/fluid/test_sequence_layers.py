"""Layers of sequences: convolution, conditional random fields, other sequences of the same rows."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

RNG = np.random.default_rng(59)
LENGTHS = [3, 1, 4]
OFFSETS = [0, 3, 4, 8]


def ragged(rows: np.ndarray) -> fluid.LoDTensor:
    return fluid.create_lod_tensor(rows, [LENGTHS], fluid.CPUPlace())


def test_sequence_conv(exe: fluid.Executor) -> None:
    x = layers.data("x", [2], lod_level=1)
    one = fluid.initializer.Constant(1.0)
    out = layers.sequence_conv(x, 3, param_attr=fluid.ParamAttr(initializer=one), act="relu")
    assert out.shape == (-1, 3)
    exe.run(fluid.default_startup_program())
    rows = RNG.uniform(0, 1, (8, 2)).astype(np.float32)
    (got,) = exe.run(feed={"x": ragged(rows)}, fetch_list=[out], return_numpy=False)
    assert got.lod() == [OFFSETS]
    sums = rows.sum(1)
    parts = [np.convolve(sums[begin:end], np.ones(3), "same") for begin, end in zip(OFFSETS, OFFSETS[1:])]
    parts[1] = sums[3:4]  # numpy's "same" is that of the longer one
    np.testing.assert_allclose(np.array(got), np.concatenate(parts)[:, None].repeat(3, 1), rtol=1e-5)


def test_a_conditional_random_field_learns_what_follows_what(exe: fluid.Executor) -> None:
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 5
    x = layers.data("x", [3], lod_level=1)
    label = layers.data("label", [1], dtype="int64", lod_level=1)
    emission = layers.fc(x, 2, bias_attr=False)
    cost = layers.linear_chain_crf(emission, label, param_attr="transition")
    path = layers.crf_decoding(emission, param_attr="transition")
    right = layers.crf_decoding(emission, fluid.ParamAttr("transition"), label)
    fluid.optimizer.SGD(0.5).minimize(layers.mean(cost))
    exe.run(fluid.default_startup_program())
    labels = np.array([[0], [1], [0], [0], [0], [1], [0], [1]])  # each begins with 0, then they alternate
    feed = {"x": ragged(np.zeros((8, 3), np.float32)), "label": ragged(labels)}
    for _ in range(60):
        got = exe.run(feed=feed, fetch_list=[cost, path, right], return_numpy=False)
    assert np.array(got[0]).shape == (3, 1)
    np.testing.assert_array_equal(np.array(got[1]), labels)
    assert np.array(got[2]).all()


def test_a_conditional_random_field_of_padded_sequences(exe: fluid.Executor) -> None:
    x = layers.data("x", [4, 3])
    label = layers.data("label", [4, 1], dtype="int64")
    length = layers.data("length", [1], dtype="int64")
    emission = layers.fc(x, 2, num_flatten_dims=2, bias_attr=False)
    cost = layers.linear_chain_crf(emission, label, "transition", length)
    path = layers.crf_decoding(emission, "transition", length=length)
    right = layers.crf_decoding(emission, "transition", label, length)
    assert (cost.shape, path.shape, right.shape) == ((-1, 1), (-1, 4), (-1, 4))
    counts = layers.chunk_eval(path, layers.squeeze(label, [2]), "plain", 1, seq_length=length)[3:]
    fluid.optimizer.SGD(0.5).minimize(layers.mean(cost))
    exe.run(fluid.default_startup_program())
    labels = np.array([[0, 1, 0, -7], [0, -7, -7, -7], [0, 1, 0, 1]])[:, :, None]
    feed = {"x": np.zeros((3, 4, 3), np.float32), "label": labels, "length": np.array([[3], [1], [4]])}
    for _ in range(60):
        got = exe.run(feed=feed, fetch_list=[cost, path, right, *counts])
    assert got[0].shape == (3, 1)
    assert got[1].tolist() == [[0, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 1]]
    assert got[2].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert [value.tolist() for value in got[3:]] == [[5], [5], [5]]


def test_layers_of_padded_tokens(exe: fluid.Executor) -> None:
    x, y = layers.data("x", [3], dtype="int64"), layers.data("y", [2], dtype="int64")
    x_length, y_length = (layers.data(name, [1], dtype="int64") for name in ("x_length", "y_length"))
    distance, count = layers.edit_distance(x, y, False, None, x_length, y_length)
    scores = layers.data("scores", [3, 2])
    labels, length = layers.ctc_greedy_decoder(scores, 0, x_length, padding_value=5)
    assert (distance.shape, labels.shape, length.shape) == ((-1, 1), (-1, 3), (-1, 1))
    feed = {
        "x": np.array([[1, 2, 3], [4, 9, 9]]),
        "y": np.array([[1, 3], [4, 4]]),
        "x_length": np.array([[3], [1]]),
        "y_length": np.array([[2], [2]]),
        "scores": np.array([[[0, 1], [0, 1], [1, 0]], [[1, 0], [0, 1], [0, 1]]], np.float32),
    }
    got = [value.tolist() for value in exe.run(feed=feed, fetch_list=[distance, count, labels, length])]
    assert got == [[[1], [1]], [2], [[1, 5, 5], [5, 5, 5]], [[1], [0]]]
    with pytest.raises(errors.InvalidArgument, match="both or not at all"):
        layers.edit_distance(x, y, input_length=x_length)
    with pytest.raises(errors.InvalidArgument, match="ignored_tokens"):
        layers.edit_distance(x, y, True, [1], x_length, y_length)


def test_crf_decoding_needs_the_weights_of_a_field() -> None:
    x = layers.data("x", [3], lod_level=1)
    for attr in ("nothing", None, False):
        with pytest.raises(errors.InvalidArgument, match="must name the weights"):
            layers.crf_decoding(x, attr)


def test_other_sequences(exe: fluid.Executor) -> None:
    rows = RNG.uniform(-1, 1, (8, 2)).astype(np.float32)
    x = layers.data("x", [2], lod_level=1)
    halves = layers.lod_reset(x, target_lod=[0, 4, 8])
    outs = [halves, layers.lod_reset(halves, y=x), layers.sequence_concat([x, x])]
    got = exe.run(feed={"x": ragged(rows)}, fetch_list=outs, return_numpy=False)
    assert [value.lod() for value in got] == [[[0, 4, 8]], [OFFSETS], [[0, 6, 8, 16]]]
    np.testing.assert_array_equal(np.array(got[2])[:6], np.concatenate([rows[:3], rows[:3]]))
    with pytest.raises(errors.InvalidArgument, match="target_lod"):
        layers.lod_reset(x)
    with pytest.raises(errors.InvalidArgument, match="nothing"):
        layers.sequence_concat([])


def test_losses_of_rows(exe: fluid.Executor) -> None:
    x, y = layers.data("x", [2]), layers.data("y", [2])
    outs = [layers.smooth_l1(x, y), layers.smooth_l1(x, y, sigma=2.0), layers.cos_sim(x, y)]
    feed = {"x": np.array([[1.0, 0.0]], np.float32), "y": np.array([[0.5, 2.0]], np.float32)}
    got = exe.run(feed=feed, fetch_list=outs)
    np.testing.assert_allclose(got[0], [[0.125 + 1.5]], rtol=1e-6)
    np.testing.assert_allclose(got[1], [[0.375 + 1.875]], rtol=1e-6)
    np.testing.assert_allclose(got[2], [[0.5 / np.sqrt(4.25)]], rtol=1e-6)


def test_a_scalar_has_no_sequences(exe: fluid.Executor) -> None:
    block = fluid.default_main_program().global_block()
    y = block.create_var(name="y", shape=[], dtype="float32", persistable=True, lod_level=1)
    out = layers.sequence_expand_as(layers.data("x", [2]), y)
    scalar = fluid.global_scope().var("y").get_tensor()
    scalar.set(np.array(1.0, np.float32), fluid.CPUPlace())
    scalar.set_lod([[0, 1]])
    with pytest.raises(ValueError, match="a scalar with a LoD"):
        exe.run(feed={"x": np.ones((1, 2), np.float32)}, fetch_list=[out])


def tokens(*values: int) -> fluid.LoDTensor:
    return ragged(np.array(values, np.int64).reshape(-1, 1))


def test_layers_of_tokens(exe: fluid.Executor) -> None:
    x = layers.data("x", [1], dtype="int64", lod_level=1)
    y = layers.data("y", [1], dtype="int64", lod_level=1)
    lengths = layers.data("lengths", [1], dtype="int64")
    distance, count = layers.edit_distance(x, y, normalized=False)
    relative, _ = layers.edit_distance(x, y, ignored_tokens=[9])
    mask = layers.sequence_mask(lengths, maxlen=3, dtype="float32")
    outs = [distance, count, relative, layers.sequence_enumerate(x, 2), mask, layers.sequence_mask(lengths)]
    feed = {"x": tokens(1, 9, 2, 3, 1, 2, 3, 4), "y": tokens(1, 2, 2, 3, 1, 2, 9, 4), "lengths": np.array([[1], [4]])}
    got = [np.array(value) for value in exe.run(feed=feed, fetch_list=outs, return_numpy=False)]
    assert got[0].tolist() == [[1], [0], [1]]
    assert got[1].tolist() == [3]
    np.testing.assert_allclose(got[2], [[1 / 3], [0], [1 / 3]], rtol=1e-6)
    assert got[3].tolist() == [[1, 9], [9, 2], [2, 0], [3, 0], [1, 2], [2, 3], [3, 4], [4, 0]]
    assert got[4].tolist() == [[[1, 0, 0]], [[1, 1, 1]]]
    assert got[4].dtype == np.float32
    assert got[5].tolist() == [[[1, 0, 0, 0]], [[1, 1, 1, 1]]]
    assert got[5].dtype == np.int64


def test_layers_of_rows(exe: fluid.Executor) -> None:
    x = layers.data("x", [2], lod_level=1)
    dense = layers.data("dense", [3])
    index = layers.data("index", [1], dtype="int64", lod_level=1)
    updates = layers.data("updates", [1], lod_level=1)
    one = fluid.ParamAttr("ahead", fluid.initializer.Constant(1.0))
    outs = [
        layers.sequence_reshape(x, 1),
        layers.sequence_scatter(dense, index, updates),
        layers.row_conv(x, 1, param_attr=one, act="relu"),
    ]
    assert outs[2].shape == (-1, 2)
    exe.run(fluid.default_startup_program())
    rows = np.arange(16, dtype=np.float32).reshape(8, 2)
    feed = {
        "x": ragged(rows),
        "dense": np.zeros((3, 3), np.float32),
        "index": tokens(0, 2, 2, 1, 0, 0, 0, 0),
        "updates": ragged(np.ones((8, 1), np.float32)),
    }
    got = exe.run(feed=feed, fetch_list=outs, return_numpy=False)
    assert got[0].lod() == [[2 * offset for offset in OFFSETS]]
    assert np.array(got[1]).tolist() == [[1, 0, 2], [0, 1, 0], [4, 0, 0]]
    behind = np.concatenate([rows[1:], np.zeros((1, 2), np.float32)])
    behind[[2, 3, 7]] = 0  # the last rows
    np.testing.assert_allclose(np.array(got[2]), rows + behind)
    with pytest.raises(errors.InvalidArgument, match=r"\[rows, D\]"):
        layers.row_conv(layers.data("cube", [2, 2], lod_level=1), 1)
    with pytest.raises(errors.InvalidArgument, match=r"\[rows, D\]"):
        layers.row_conv(layers.data("block", [2, 2, 2]), 1)
    assert layers.row_conv(layers.data("batch", [3, 2]), 1).shape == (-1, 3, 2)


def test_temporal_classification_learns_its_labels(exe: fluid.Executor) -> None:
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 7
    x = layers.data("x", [8], lod_level=1)
    label = layers.data("label", [1], dtype="int32", lod_level=1)
    logits = layers.fc(x, 3)
    loss = layers.warpctc(logits, label, blank=2)
    read = layers.ctc_greedy_decoder(logits, blank=2)
    fluid.optimizer.SGD(1.0).minimize(layers.mean(loss))
    exe.run(fluid.default_startup_program())
    labels = fluid.create_lod_tensor(np.array([[0], [0], [1], [1], [0]], np.int32), [[2, 1, 2]], fluid.CPUPlace())
    feed = {"x": ragged(np.eye(8, dtype=np.float32)), "label": labels}
    for _ in range(100):
        got = exe.run(feed=feed, fetch_list=[loss, read], return_numpy=False)
    assert np.array(got[0]).shape == (3, 1)
    assert np.array(got[0]).max() < 0.3
    assert got[1].recursive_sequence_lengths() == [[2, 1, 2]]
    assert np.array(got[1])[:, 0].tolist() == [0, 0, 1, 1, 0]


def test_a_beam_search_finds_the_best_sequences(exe: fluid.Executor) -> None:
    """Two steps over a fixed table of probabilities: of all sequences of two ids, the best two."""
    table = np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3], [0.15, 0.05, 0.8]], np.float32)  # next id by the last one
    ids = layers.data("ids", [1], dtype="int64", lod_level=2)
    scores = layers.data("scores", [1], lod_level=2)
    arrays = [layers.create_array("int64"), layers.create_array("float32")]
    for step in range(2):
        p = layers.embedding(ids, [3, 3], param_attr="table")
        ids, scores = layers.beam_search(ids, scores, None, p, beam_size=2, end_id=9, is_accumulated=False)
        place = layers.fill_constant([1], "int64", step)
        layers.array_write(ids, place, arrays[0])
        layers.array_write(scores, place, arrays[1])
    sentences, sentence_scores = layers.beam_search_decode(*arrays, beam_size=2, end_id=9)
    exe.run(fluid.default_startup_program())
    fluid.global_scope().find_var("table").get_tensor().set(table, fluid.CPUPlace())
    lod = [[1, 1], [1, 1]]
    feed = {
        "ids": fluid.create_lod_tensor(np.array([[0], [2]]), lod, fluid.CPUPlace()),
        "scores": fluid.create_lod_tensor(np.zeros((2, 1), np.float32), lod, fluid.CPUPlace()),
    }
    got = exe.run(feed=feed, fetch_list=[sentences, sentence_scores], return_numpy=False)
    assert got[0].recursive_sequence_lengths() == [[2, 2], [2, 2, 2, 2]]
    assert np.array(got[0]).reshape(4, 2).tolist() == [[1, 0], [2, 2], [2, 2], [2, 0]]
    np.testing.assert_allclose(np.exp(np.array(got[1])[1::2]), [0.3, 0.24, 0.64, 0.12], rtol=1e-5)


def test_tokens_are_left_out(exe: fluid.Executor) -> None:
    out = layers.sequence_erase(layers.data("tokens", [1], dtype="int64", lod_level=1), [0, 7])
    tokens = fluid.create_lod_tensor(np.array([[0], [3], [7], [7], [5], [0]]), [[3, 1, 2]], fluid.CPUPlace())
    (got,) = exe.run(feed={"tokens": tokens}, fetch_list=[out], return_numpy=False)
    np.testing.assert_array_equal(np.array(got), [[3], [5]])
    assert got.recursive_sequence_lengths() == [[1, 0, 1]]


def test_rows_are_shifted(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, 5]), fluid.data("y", [None, 3])
    rows = np.arange(10, dtype=np.float32).reshape(2, 5)
    shifts = np.array([[0, 0, 1], [0.5, 0.5, 0]], np.float32)  # one to the left; half of one to the right
    (got,) = exe.run(feed={"x": rows, "y": shifts}, fetch_list=[layers.conv_shift(x, y)])
    np.testing.assert_allclose(got, [np.roll(rows[0], -1), (np.roll(rows[1], 1) + rows[1]) / 2])


def test_sequences_without_a_tag_are_left_out(exe: fluid.Executor) -> None:
    x, tags = fluid.data("x", [None, 2], lod_level=1), fluid.data("tags", [None, 1], "int64", lod_level=1)
    x.stop_gradient = False
    out, weight = layers.filter_by_instag(x, tags, fluid.data("wanted", [None], "int64"), True)
    loss = layers.reduce_sum(layers.sequence_pool(out, "sum") * weight)
    fluid.backward.append_backward(loss)
    rows = RNG.normal(size=(8, 2)).astype(np.float32)
    given = fluid.create_lod_tensor(np.array([[1], [2], [3], [1]]), [[1, 2, 1]], fluid.CPUPlace())
    for wanted, kept in ((1, [0, 1, 2, 4, 5, 6, 7]), (3, [3]), (9, [])):
        feed = {"x": ragged(rows), "tags": given, "wanted": np.array([wanted])}
        total, slopes = exe.run(feed=feed, fetch_list=[loss, "x@GRAD"], return_numpy=False)
        np.testing.assert_allclose(np.array(total), [rows[kept].sum()], rtol=1e-5)
        np.testing.assert_array_equal(np.array(slopes)[:, 0], np.isin(np.arange(8), kept))


def test_what_fluid_gives_no_sequences_is_an_array(exe: fluid.Executor) -> None:
    x = layers.data("x", [2, 4, 4], lod_level=1)
    rows, first = layers.reshape(x, [-1, 32]), layers.fill_constant([1], "int64", 0)
    outs = [
        layers.argmax(rows, 1),
        layers.argmin(rows, 1),
        layers.transpose(x, [0, 3, 1, 2]),
        layers.scatter(rows, first, layers.slice(rows, [0], [0], [1])),
        layers.scatter_nd_add(rows, layers.reshape(first, [1, 1]), layers.slice(rows, [0], [0], [1])),
        layers.smooth_l1(rows, rows),
        layers.l2_normalize(rows, 1),
        layers.maxout(x, 2),
    ]
    values = exe.run(feed={"x": ragged(RNG.uniform(0, 1, (8, 2, 4, 4)).astype(np.float32))}, fetch_list=outs)
    assert [value.shape[0] for value in values] == [8] * len(outs)
