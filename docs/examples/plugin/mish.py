"""Loads the library of operators beside this file, checks its operator and trains a network with it.

python docs/examples/plugin/mish.py build/plugin/libmish.so
"""

from __future__ import annotations

import argparse

import numpy as np

import headrace.fluid as fluid
from headrace.testing import OpTest


def mish(x: fluid.Variable) -> fluid.Variable:
    """A layer: x * tanh(log(1 + exp(x))), of the shape and dtype of ``x``."""
    block = fluid.default_main_program().current_block()
    out = block.create_var(dtype=x.dtype)
    block.append_op("mish", {"X": x}, {"Out": out})
    return out


def check() -> None:
    """Compares the kernel with NumPy and its gradient with differences, for float32 and float64."""
    for dtype in (np.float32, np.float64):
        x = np.random.default_rng(0).normal(0, 3, (3, 4)).astype(dtype)
        test = OpTest("mish", {"X": x}, {}, {"Out": x * np.tanh(np.log1p(np.exp(x)))})
        test.check_outputs()
        test.check_gradients(["X"])


def train() -> tuple[float, float]:
    """Fits a sine; returns the first and the last loss."""
    x, y = fluid.data("x", [None, 1]), fluid.data("y", [None, 1])
    out = fluid.layers.fc(mish(fluid.layers.fc(x, 32)), 1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(out, y))
    fluid.optimizer.Adam(learning_rate=0.01).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    inputs = np.linspace(-3, 3, 128, dtype=np.float32)[:, None]
    losses = []
    for _ in range(300):
        (value,) = executor.run(feed={"x": inputs, "y": np.sin(inputs)}, fetch_list=[loss])
        losses.append(float(value[0]))
    return losses[0], losses[-1]


def main() -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("library", help="libmish.so, as CMake has built it")
    types = fluid.load_op_library(parser.parse_args().library)
    print("operators:", ", ".join(types))
    check()
    first, last = train()
    print(f"loss {first:.3f} -> {last:.3f}")


if __name__ == "__main__":
    main()
