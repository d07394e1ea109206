"""A model goes to PaddlePaddle and comes back: trained here, used and trained further there, evaluated here.

    python docs/examples/paddle_exchange.py

Needs paddlepaddle, whose static graphs have the API of Fluid. An inference model, a program with its parameters, goes
to Paddle as it is. To train further on either side, both build the same network: then parameters and the optimizer's
state have the same names, and ``save`` and ``load_program_state`` carry them across. (The programs of Paddle 2 and 3
cannot be run here; they have other operators.)

The digits are the 1,797 that scikit-learn ships; every fifth is held out. With seed 1, 95.3 % of the held-out digits
are right after the epochs here and 96.4 % after those in Paddle, and the probabilities that both sides compute agree
within 1e-5.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

os.environ["FLAGS_enable_pir_api"] = "0"  # noqa: SIM112 - Paddle is to use programs as Fluid had them

import paddle
from paddle import static

import headrace.fluid as fluid


def build_here(seed: int) -> tuple[Any, Any, Any]:
    """(program, startup program, probabilities), with Headrace."""
    program, startup = fluid.Program(), fluid.Program()
    startup.random_seed = seed
    with fluid.program_guard(program, startup):
        pixels, digit = fluid.data("pixels", [None, 64]), fluid.data("digit", [None, 1], "int64")
        hidden = fluid.layers.fc(pixels, 64, act="relu")
        probabilities = fluid.layers.fc(hidden, 10, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(probabilities, digit))
        fluid.optimizer.Adam(0.002).minimize(loss)
    return program, startup, probabilities


def build_there() -> tuple[Any, Any, Any]:
    """The same with Paddle."""
    program, startup = static.Program(), static.Program()
    with static.program_guard(program, startup):
        pixels, digit = static.data("pixels", [None, 64]), static.data("digit", [None, 1], "int64")
        hidden = static.nn.fc(pixels, 64, activation="relu")
        probabilities = static.nn.fc(hidden, 10, activation="softmax")
        loss = paddle.mean(paddle.nn.functional.cross_entropy(probabilities, digit, use_softmax=False))
        paddle.optimizer.Adam(0.002).minimize(loss)
    return program, startup, probabilities


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="passes over the digits on each side (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the order (default: 1)")
    parser.add_argument("--target", type=float, default=0.95, help="accuracy to reach in the end (default: 0.95)")
    arguments = parser.parse_args()
    bunch = load_digits()
    pixels, digits = (bunch.data / 16).astype(np.float32), bunch.target[:, None]
    held_out = np.arange(len(digits)) % 5 == 4
    test = {"pixels": pixels[held_out], "digit": digits[held_out]}
    rng = np.random.default_rng(arguments.seed)

    def train(executor: Any, program: Any) -> None:
        for _ in range(arguments.epochs):
            for rows in np.array_split(rng.permutation(np.nonzero(~held_out)[0]), 50):
                executor.run(program, feed={"pixels": pixels[rows], "digit": digits[rows]})

    def accuracy(probabilities: np.ndarray) -> float:
        return float(np.mean(probabilities.argmax(axis=1) == test["digit"][:, 0]))

    paddle.enable_static()
    ours, our_startup, our_output = build_here(arguments.seed)
    theirs, their_startup, their_output = build_there()
    our_executor, their_executor = fluid.Executor(fluid.CPUPlace()), static.Executor(paddle.CPUPlace())
    our_executor.run(our_startup)
    their_executor.run(their_startup)
    evaluation = ours.clone(for_test=True)
    their_evaluation = theirs.clone(for_test=True)

    with tempfile.TemporaryDirectory() as folder:
        print("trained here:", end=" ")
        train(our_executor, ours)
        (here,) = our_executor.run(evaluation, feed=test, fetch_list=[our_output])
        print(f"{100 * accuracy(here):.1f} % right")

        # From here to there: the inference model ...
        files = {"model_filename": "digits.pdmodel", "params_filename": "digits.pdiparams"}
        fluid.io.save_inference_model(folder, ["pixels"], [our_output], our_executor, ours, **files)
        program, feeds, fetches = static.load_inference_model(f"{folder}/digits", their_executor)
        (there,) = their_executor.run(program, feed={feeds[0]: test["pixels"]}, fetch_list=fetches)
        apart = np.abs(here - there).max()
        print(f"used in Paddle: {100 * accuracy(there):.1f} % right, probabilities within {apart:.0e}")

        # ... and all that training goes on from.
        fluid.save(ours, f"{folder}/from_here")
        state = static.load_program_state(f"{folder}/from_here")
        del state["learning_rate_0"]  # [1] as in Fluid; the one of Paddle 3 has no dimensions
        static.set_program_state(theirs, state)
        train(their_executor, theirs)
        (there,) = their_executor.run(their_evaluation, feed=test, fetch_list=[their_output])
        print(f"trained further in Paddle: {100 * accuracy(there):.1f} % right")

        # From there to here.
        static.save(theirs, f"{folder}/from_paddle")
        fluid.io.set_program_state(ours, fluid.io.load_program_state(f"{folder}/from_paddle"))
        (here,) = our_executor.run(evaluation, feed=test, fetch_list=[our_output])
        apart = max(apart, np.abs(here - there).max())
        print(f"used here: {100 * accuracy(here):.1f} % right, probabilities within {apart:.0e}")
    return 0 if accuracy(here) >= arguments.target and apart < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
