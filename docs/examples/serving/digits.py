"""Trains a classifier of digits and has it served from C++.

    python docs/examples/serving/digits.py build/serving/serve --threads 4

The first argument is the program of serve.cc; CMakeLists.txt, beside this file, says how to build it. The digits are
the 1,797 that scikit-learn ships; every fifth is held out. With seed 1, the server is right on 96.4 % of the held-out
digits, and its answers are those of the executor in Python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import headrace.fluid as fluid
from headrace import DataLoader


def build() -> tuple[Any, Any]:
    """Adds the network to the current program: (probabilities, loss)."""
    pixels = fluid.data("pixels", [None, 64])
    digit = fluid.data("digit", [None, 1], "int64")
    hidden = fluid.layers.fc(pixels, size=64, act="relu")
    probabilities = fluid.layers.fc(hidden, size=10, act="softmax")
    return probabilities, fluid.layers.mean(fluid.layers.cross_entropy(probabilities, digit))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", help="the program of serve.cc")
    parser.add_argument("--threads", type=int, default=4, help="threads of the server (default: 4)")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training digits (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the order (default: 1)")
    parser.add_argument("--target", type=float, default=0.96, help="accuracy to reach (default: 0.96)")
    arguments = parser.parse_args()

    bunch = load_digits()
    pixels, digits = (bunch.data / 16).astype(np.float32), bunch.target[:, None]
    held_out = np.arange(len(digits)) % 5 == 4

    fluid.default_startup_program().random_seed = arguments.seed
    probabilities, loss = build()
    fluid.optimizer.Adam(0.003).minimize(loss)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    samples = list(zip(pixels[~held_out], digits[~held_out]))
    loader = DataLoader(samples, batch_size=32, shuffle=True, seed=arguments.seed)
    for _ in range(arguments.epochs):
        for batch in loader:
            executor.run(feed=dict(zip(("pixels", "digit"), batch)))

    with tempfile.TemporaryDirectory() as model:
        fluid.io.save_inference_model(model, ["pixels"], [probabilities], executor)
        program, _, fetches = fluid.io.load_inference_model(model, executor)
        (expected,) = executor.run(program, feed={"pixels": pixels[held_out]}, fetch_list=fetches)
        requests = "".join(" ".join(map(str, row)) + "\n" for row in pixels[held_out])
        command = [arguments.server, model, str(arguments.threads)]
        served = subprocess.run(command, input=requests, stdout=subprocess.PIPE, text=True, check=True).stdout
    answers = np.array(served.split(), np.int64)
    accuracy = np.mean(answers == digits[held_out, 0])
    same = np.array_equal(answers, expected.argmax(axis=1))
    print(f"{100 * accuracy:.1f} % right; the answers are {'' if same else 'NOT '}those of Python")
    return 0 if same and accuracy >= arguments.target else 1


if __name__ == "__main__":
    sys.exit(main())
