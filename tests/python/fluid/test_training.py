"""Programs that learn."""

from __future__ import annotations

import numpy as np
from nets import FEATURES, WEIGHTS, linear_loss, regression_batch

import headrace.fluid as fluid


def test_linear_regression_learns_from_a_reader(exe: fluid.Executor) -> None:
    reader = fluid.layers.py_reader(4, [[-1, FEATURES], [-1, 1]], ["float32", "float32"])
    x, y = fluid.layers.read_file(reader)
    loss = linear_loss(x, y)
    fluid.optimizer.SGD(0.1).minimize(loss)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: (regression_batch(i, 32) for i in range(50)))
    losses = []
    for _ in range(3):
        reader.start()
        try:
            while True:
                losses.append(float(exe.run(fetch_list=[loss])[0][0]))
        except fluid.core.EOFException:
            reader.reset()
    assert len(losses) == 150
    assert losses[0] > 1
    assert losses[-1] < 1e-6
    learned = np.asarray(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    np.testing.assert_allclose(learned, WEIGHTS, atol=1e-3)


def squares_and_crosses(seed: int, rows: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Images of 12 x 12 pixels with noise and, somewhere, a square (0) or a cross (1)."""
    rng = np.random.default_rng(seed)
    square = np.ones((5, 5), np.float32)
    square[1:-1, 1:-1] = 0
    cross = np.eye(5, dtype=np.float32)
    cross = np.maximum(cross, cross[::-1])
    images = 0.2 * rng.standard_normal((rows, 1, 12, 12)).astype(np.float32)
    labels = rng.integers(2, size=(rows, 1))
    for image, label in zip(images, labels):
        top, left = rng.integers(8, size=2)
        image[0, top : top + 5, left : left + 5] += cross if label[0] else square
    return images, labels


def conv_net() -> tuple[fluid.Program, fluid.Program, fluid.framework.Variable, fluid.framework.Variable]:
    """(training program, test program, loss, accuracy); the startup program and the reader are in the default ones."""
    image = fluid.layers.data("image", [1, 12, 12])
    label = fluid.layers.data("label", [1], dtype="int64")
    net = fluid.nets.simple_img_conv_pool(image, 8, 5, 2, 2, act="relu")
    net = fluid.layers.dropout(fluid.layers.fc(net, 16, act="relu"), 0.2)
    logits = fluid.layers.fc(net, 2)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, label))
    accuracy = fluid.layers.accuracy(fluid.layers.softmax(logits), label)
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(0.005).minimize(loss)
    return fluid.default_main_program(), test, loss, accuracy


def train(exe: fluid.Executor) -> tuple[list[float], float]:
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 5
    main, test, loss, accuracy = conv_net()
    exe.run(fluid.default_startup_program())
    losses = []
    for step in range(120):
        image, label = squares_and_crosses(step)
        losses.append(float(exe.run(main, feed={"image": image, "label": label}, fetch_list=[loss])[0][0]))
    image, label = squares_and_crosses(10_000, 256)
    (share,) = exe.run(test, feed={"image": image, "label": label}, fetch_list=[accuracy])
    return losses, float(share[0])


def test_a_convolutional_net_learns_shapes(exe: fluid.Executor) -> None:
    losses, accuracy = train(exe)
    assert accuracy > 0.97
    assert np.mean(losses[-10:]) < 0.2 < losses[0]


def test_a_seeded_training_repeats_bit_by_bit(exe: fluid.Executor) -> None:
    runs = []
    for _ in range(2):
        with (
            fluid.scope_guard(fluid.Scope()),
            fluid.program_guard(fluid.Program(), fluid.Program()),
            fluid.unique_name.guard(),
        ):
            runs.append(train(exe))
    assert runs[0] == runs[1]
