"""Linear regression: how much a diabetes has progressed after a year, from ten measurements of the patient.

    python docs/examples/diabetes.py

The data are the 442 patients that scikit-learn ships; every fifth is held out. The loader shuffles the others, and the
program is fed its batches by hand. Gradient descent ends where least squares, solved directly, does: with seed 1, the
coefficient of determination (R²) of the held-out patients is 0.448 by gradient descent and 0.448 by least squares.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from sklearn.datasets import load_diabetes

import headrace.fluid as fluid
from headrace import DataLoader


def load() -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
    """(samples to train on, x held out, y held out); each column of x has a mean square of 1, y is in units of 100."""
    bunch = load_diabetes()
    x = (bunch.data * np.sqrt(len(bunch.data))).astype(np.float32)
    y = (bunch.target[:, None] / 100).astype(np.float32)
    held_out = np.arange(len(x)) % 5 == 4
    return list(zip(x[~held_out], y[~held_out])), x[held_out], y[held_out]


def r_squared(prediction: np.ndarray, y: np.ndarray) -> float:
    """The share of y's variance that the prediction explains."""
    return float(1 - ((prediction - y) ** 2).sum() / ((y - y.mean()) ** 2).sum())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=200, help="passes over the patients (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the order (default: 1)")
    parser.add_argument("--target", type=float, default=0.44, help="R² to reach on held-out patients (default: 0.44)")
    arguments = parser.parse_args()
    samples, test_x, test_y = load()

    x = fluid.data("x", [None, test_x.shape[1]])
    y = fluid.data("y", [None, 1])
    prediction = fluid.layers.fc(x, size=1, param_attr=fluid.ParamAttr("w", fluid.initializer.Constant(0.0)))
    loss = fluid.layers.mean(fluid.layers.square_error_cost(prediction, y))
    evaluation = fluid.default_main_program().clone(for_test=True)
    rate = fluid.layers.exponential_decay(0.05, decay_steps=100, decay_rate=0.9)
    fluid.optimizer.Momentum(rate, momentum=0.9).minimize(loss)

    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    loader = DataLoader(samples, batch_size=32, shuffle=True, seed=arguments.seed)
    for epoch in range(arguments.epochs):
        losses = [
            executor.run(feed={"x": batch_x, "y": batch_y}, fetch_list=[loss])[0].item() for batch_x, batch_y in loader
        ]
        if (epoch + 1) % 20 == 0:
            print(f"epoch {epoch + 1}: mean squared error {np.mean(losses):.4f}")

    (predicted,) = executor.run(evaluation, feed={"x": test_x, "y": test_y}, fetch_list=[prediction])
    reached = r_squared(predicted, test_y)

    train_x, train_y = (np.stack(column) for column in zip(*samples))
    solution, *_ = np.linalg.lstsq(np.c_[train_x, np.ones(len(train_x))], train_y, rcond=None)
    direct = r_squared(np.c_[test_x, np.ones(len(test_x))] @ solution, test_y)
    print(f"held-out R²: {reached:.4f} by gradient descent, {direct:.4f} by least squares")
    return 0 if reached >= arguments.target else 1


if __name__ == "__main__":
    sys.exit(main())
