"""Training steps of the framework beside those of others, without any loader."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from framework_benchmark import BATCHES, STEPS, THREAD_VARIABLES, Step
from harness.contest import OURS, PEER, Aim, Contestant, Effort, Family, LeftOut, Row

#: By contestant: its package, and how it is set up.
SETTINGS = {
    "headrace": ("headrace", "a program of `headrace.fluid`, batches fed as NumPy arrays."),
    "torch": ("torch", "eager mode, batches that are tensors already, Adam with `fused=True`, its fastest."),
    "paddle": ("paddlepaddle", "a static program, which is faster than its eager mode; batches fed as NumPy arrays."),
}


def rate(step: Step, seconds: float) -> float:
    """Steps per second, in whole rounds of the batches."""
    begin, count, took = time.perf_counter(), 0, 0.0
    while took < seconds:
        for _ in range(BATCHES):
            step()
        count += BATCHES
        took = time.perf_counter() - begin
    return count / took


def steps_per_second(name: str, case: str) -> Callable[[Effort], float]:
    def measure(effort: Effort) -> float:
        threads = len(os.sched_getaffinity(0))
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
        steps = STEPS[name](threads)
        if case not in steps:
            raise LeftOut("this network is not written for it")
        step = steps[case]()
        rate(step, effort.warm_up)
        return rate(step, effort.seconds)

    return measure


def row(case: str, title: str, about: str) -> Row:
    contestants = tuple(
        Contestant(name, OURS if name == "headrace" else PEER, steps_per_second(name, case), None, setting, (package,))
        for name, (package, setting) in SETTINGS.items()
    )
    return Row(case, title, about, "steps/s", contestants, aims=(Aim("torch", 1), Aim("best peer", 1)))


FAMILY = Family(
    "framework",
    "Training steps",
    "The same network, batches and optimizer (Adam) in float32, on all processors. Results are not compared, since "
    "each draws its own initial weights; the framework's tests compare its values and gradients with others'.",
    (
        row("lenet", "LeNet", "Two convolutions and two connected layers, 64 images of 28 × 28."),
        row("mlp", "MLP", "784-512-512-10, batches of 128."),
        row(
            "lstm",
            "LSTM",
            "32 sentences of very different lengths: embedding, LSTM of 128, the greatest output of each. Ours are "
            "ragged (LoD), the others' padded to the longest of the batch.",
        ),
        row("resnet", "ResNet-50", "Batches of 4 images of 224 × 224."),
        row(
            "transformer",
            "Transformer",
            "The base size (6 layers of 512 in encoder and decoder, 8 heads, 2,048 between), 8 pairs of sentences of "
            "32 words, without dropout.",
        ),
    ),
)
