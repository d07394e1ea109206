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
