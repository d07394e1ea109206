"""Small programs that several tests use."""

from __future__ import annotations

import numpy as np

import headrace.fluid as fluid
from headrace.fluid.framework import Variable
from headrace.fluid.reader_variable import ReaderVariable

FEATURES = 4
WEIGHTS = np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32)


def linear_loss(x: Variable, y: Variable) -> Variable:
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))


def fed_regression() -> tuple[Variable, Variable, Variable]:
    """Linear regression on fed data: x, y, loss."""
    x = fluid.layers.data("x", [FEATURES])
    y = fluid.layers.data("y", [1])
    return x, y, linear_loss(x, y)


def regression_batch(seed: int, rows: int = 8) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((rows, FEATURES)).astype(np.float32)
    return x, x @ WEIGHTS


def number_reader(capacity: int = 4, double_buffer: bool = True, **kwargs: object) -> tuple[ReaderVariable, Variable]:
    """A py_reader of [rows, 1] float32 tensors, and what is read."""
    reader = fluid.layers.py_reader(capacity, [[-1, 1]], ["float32"], use_double_buffer=double_buffer, **kwargs)
    return reader, fluid.layers.read_file(reader)


def number(value: float, rows: int = 1) -> list[np.ndarray]:
    return [np.full((rows, 1), value, np.float32)]


def read_all(exe: fluid.Executor, out: Variable, program: fluid.Program | None = None) -> list[float]:
    """The first number of each batch until the end of the pass."""
    values = []
    try:
        while True:
            (value,) = exe.run(program, fetch_list=[out])
            values.append(float(value.flat[0]))
    except fluid.core.EOFException:
        return values
