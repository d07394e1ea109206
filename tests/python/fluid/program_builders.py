"""Programs of all kinds, each small enough to be trained for a few steps.

A builder adds a network to the default programs and returns its loss; what it feeds is named there, with the batch for
step n given by ``batch(n)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import headrace.fluid as fluid
from headrace.fluid import layers
from headrace.fluid.framework import Variable

ROWS = 6


class Network(NamedTuple):
    """A loss, and how to feed it."""

    loss: Variable
    batch: Callable[[int], dict[str, Any]]


def _rng(step: int) -> np.random.Generator:
    return np.random.default_rng([7, step])


def _features(step: int, width: int = 4) -> dict[str, Any]:
    rng = _rng(step)
    return {
        "x": rng.standard_normal((ROWS, width)).astype(np.float32),
        "label": rng.integers(0, 3, (ROWS, 1)),
    }


def _images(step: int) -> dict[str, Any]:
    rng = _rng(step)
    return {
        "image": rng.standard_normal((ROWS, 1, 12, 12)).astype(np.float32),
        "label": rng.integers(0, 3, (ROWS, 1)),
    }


def _sentences(step: int) -> dict[str, Any]:
    rng = _rng(step)
    lengths = [2, 1 + step % 3, 3]
    words = fluid.create_lod_tensor(rng.integers(0, 20, (sum(lengths), 1)), [lengths])
    return {"words": words, "label": rng.integers(0, 3, (3, 1))}


def _cross_entropy(logits: Variable) -> Variable:
    label = layers.data("label", [1], dtype="int64")
    return layers.mean(layers.softmax_with_cross_entropy(logits, label))


def mlp() -> Network:
    x = layers.data("x", [4])
    return Network(_cross_entropy(layers.fc(layers.fc(x, 8, act="relu"), 3)), _features)


def lenet() -> Network:
    image = layers.data("image", [1, 12, 12])
    net = fluid.nets.simple_img_conv_pool(image, 4, 3, 2, 2, act="relu")
    net = fluid.nets.simple_img_conv_pool(net, 4, 3, 2, 2, act="relu")
    return Network(_cross_entropy(layers.fc(net, 3)), _images)


def batch_norm_and_dropout() -> Network:
    image = layers.data("image", [1, 12, 12])
    net = layers.batch_norm(layers.conv2d(image, 4, 3, bias_attr=False), act="relu")
    net = layers.dropout(layers.pool2d(net, 2, pool_stride=2), 0.4)
    return Network(_cross_entropy(layers.fc(net, 3)), _images)


def lstm() -> Network:
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    gates = layers.fc(layers.embedding(words, (20, 6), is_sparse=True), 4 * 5)
    hidden, _ = layers.dynamic_lstm(gates, 4 * 5)
    return Network(_cross_entropy(layers.fc(layers.sequence_pool(hidden, "max"), 3)), _sentences)


def dynamic_rnn() -> Network:
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    embedded = layers.embedding(words, (20, 6))
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(embedded)
        before = rnn.memory(shape=[5])
        hidden = layers.fc([word, before], 5, act="tanh")
        rnn.update_memory(before, hidden)
        rnn.output(hidden)
    return Network(_cross_entropy(layers.fc(layers.sequence_last_step(rnn()), 3)), _sentences)


def static_rnn() -> Network:
    x = layers.data("x", [4])
    steps = layers.reshape(x, [2, -1, 2])
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(steps)
        before = rnn.memory(shape=[-1, 5], batch_ref=word)
        hidden = layers.fc([word, before], 5, act="tanh")
        rnn.update_memory(before, hidden)
        rnn.step_output(hidden)
    return Network(layers.mean(layers.square(rnn())), lambda step: {"x": _features(step)["x"]})


def loop() -> Network:
    state = layers.fc(layers.data("x", [4]), 3)
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    more = layers.less_than(i, n)
    body = layers.While(more)
    with body.block():
        layers.assign(layers.fc(state, 3, act="tanh", param_attr="inner_w", bias_attr="inner_b"), state)
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    return Network(_cross_entropy(state), _features)


def branches() -> Network:
    x = layers.data("x", [4])
    label = layers.data("label", [1], dtype="int64")
    is_low = layers.less_than(label, layers.fill_constant([1], "int64", 2))
    choice = layers.IfElse(is_low)
    with choice.true_block():
        choice.output(layers.fc(choice.input(x), 3))
    with choice.false_block():
        choice.output(layers.fc(choice.input(x), 3))
    (out,) = choice()
    return Network(_cross_entropy(out), _features)


#: What a network is like.
NETWORKS: list[Callable[[], Network]] = [
    mlp,
    lenet,
    batch_norm_and_dropout,
    lstm,
    dynamic_rnn,
    static_rnn,
    loop,
    branches,
]


def with_everything_on_parameters() -> Network:
    """Parameters with all that can belong to them."""
    clip = fluid.clip
    attr = fluid.ParamAttr
    x = layers.data("x", [4])
    x = layers.fc(x, 4, param_attr=attr("frozen", trainable=False), bias_attr=attr("still", learning_rate=0.0))
    x = layers.fc(
        x,
        5,
        act="tanh",
        param_attr=attr("l1", regularizer=fluid.regularizer.L1Decay(0.25), learning_rate=0.3),
        bias_attr=attr("by_value", gradient_clip=clip.GradientClipByValue(0.01, -0.02)),
    )
    x.error_clip = clip.ErrorClipByValue(0.03, -0.001)
    x = layers.fc(
        x,
        3,
        param_attr=attr(
            "l2", regularizer=fluid.regularizer.L2Decay(0.7), gradient_clip=clip.GradientClipByGlobalNorm(0.1, "some")
        ),
        bias_attr=attr("by_norm", gradient_clip=clip.GradientClipByNorm(0.05)),
    )
    return Network(_cross_entropy(x), _features)


#: Optimizers, with schedules, clips and regularizers.
OPTIMIZERS: dict[str, Callable[[], fluid.optimizer.Optimizer]] = {
    "SGD": lambda: fluid.optimizer.SGD(0.1),
    "Momentum": lambda: fluid.optimizer.Momentum(0.1, 0.9, use_nesterov=True),
    "Adagrad": lambda: fluid.optimizer.Adagrad(0.1),
    "RMSProp": lambda: fluid.optimizer.RMSProp(0.1, momentum=0.9, centered=True),
    "Adam": lambda: fluid.optimizer.Adam(0.01),
    "AdamW": lambda: fluid.optimizer.AdamW(0.01, weight_decay=0.1),
    "Lamb": lambda: fluid.optimizer.Lamb(0.01),
    "Adamax": lambda: fluid.optimizer.Adamax(0.01),
    "DecayedAdagrad": lambda: fluid.optimizer.DecayedAdagrad(0.1),
    "Adadelta": lambda: fluid.optimizer.Adadelta(0.1),
    "Ftrl": lambda: fluid.optimizer.Ftrl(0.1),
    "LarsMomentum": lambda: fluid.optimizer.LarsMomentum(0.1, 0.9),
    "ProximalGD": lambda: fluid.optimizer.ProximalGD(0.1, l1=0.01),
    "ProximalAdagrad": lambda: fluid.optimizer.ProximalAdagrad(0.1),
    "L2Decay": lambda: fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.1)),
    "global norm": lambda: fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.1)),
    "noam_decay": lambda: fluid.optimizer.Adam(layers.noam_decay(8, 2)),
    "exponential_decay": lambda: fluid.optimizer.SGD(layers.exponential_decay(0.5, 2, 0.5)),
    "natural_exp_decay": lambda: fluid.optimizer.SGD(layers.natural_exp_decay(0.5, 2, 0.5)),
    "inverse_time_decay": lambda: fluid.optimizer.SGD(layers.inverse_time_decay(0.5, 2, 0.5)),
    "polynomial_decay": lambda: fluid.optimizer.SGD(layers.polynomial_decay(0.5, 2, cycle=True)),
    "piecewise_decay": lambda: fluid.optimizer.SGD(layers.piecewise_decay([1, 2], [0.5, 0.1, 0.01])),
    "cosine_decay": lambda: fluid.optimizer.SGD(layers.cosine_decay(0.5, 2, 4)),
    "linear_lr_warmup": lambda: fluid.optimizer.SGD(layers.linear_lr_warmup(0.5, 2, 0.0, 0.5)),
}
