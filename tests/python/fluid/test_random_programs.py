"""Random programs compute what NumPy computes, whatever has run before on their executor.

Tests of single operators cannot see what happens between them: a result that is written where another one is still
needed, a gradient that loses a term, a plan that was made for another batch.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import Variable, layers

Array = np.ndarray

# A layer: the kind of its result, those of its inputs, and the same by NumPy. "batch" is [N, 4], "image" [N, 3, 4],
# "words" [rows, 4] with N sequences, "row" [4], "matrix" [4, 4]. Layers know the "lengths" of sequences from the LoD.
Layer = tuple[str, list[str], Callable[..., Variable], Callable[..., Array]]


def overwritten(x: Variable, y: Variable) -> Variable:
    total = layers.elementwise_mul(x, y)
    used = layers.sin(total)
    layers.sums([total, x, y], out=total)
    layers.assign(layers.elementwise_add(total, used), total)
    return total


def looped(x: Variable, y: Variable) -> Variable:
    state = layers.scale(x, 1.0)
    i, end = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    goes_on = layers.less_than(i, end)
    loop = layers.While(goes_on)
    with loop.block():
        layers.assign(layers.elementwise_add(layers.scale(state, 0.5), y), state)
        layers.increment(i)
        layers.less_than(i, end, cond=goes_on)
    return state


def chosen(p: Variable, x: Variable, y: Variable) -> Any:
    is_positive = layers.greater_than(layers.reduce_sum(p), layers.fill_constant([1], "float64", 0))
    return layers.cond(is_positive, lambda: layers.tanh(x), lambda: layers.elementwise_mul(x, y))


def stepped(x: Variable, h: Variable) -> Variable:
    by_time = layers.transpose(x, [1, 0, 2])
    rnn = layers.StaticRNN()
    with rnn.step():
        step = rnn.step_input(by_time)
        memory = rnn.memory(init=h)
        new = layers.tanh(layers.elementwise_add(step, memory))
        rnn.update_memory(memory, new)
        rnn.step_output(new)
    states: Any = rnn()
    return layers.transpose(states, [1, 0, 2])


def stepped_by_numpy(x: Array, h: Array) -> Array:
    states = itertools.accumulate(x.swapaxes(0, 1), lambda state, step: np.tanh(step + state), initial=h)
    return np.stack(list(states)[1:], 1)


def each(x: Array, lengths: list[int]) -> list[Array]:
    return np.split(x, np.cumsum(lengths)[:-1])


LAYERS: list[Layer] = [
    *[
        (kind, [kind], layer, by_numpy)
        for kind in ("batch", "image", "words", "row")
        for layer, by_numpy in (
            (layers.tanh, np.tanh),
            (layers.relu, lambda x: np.maximum(x, 0)),
            (layers.sin, np.sin),
            (lambda x: layers.scale(x, -0.5, bias=0.25), lambda x: 0.25 - 0.5 * x),
            (layers.softmax, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
        )
    ],
    *[
        (kind, [kind, other], layer, by_numpy)
        for kind in ("batch", "image", "words")
        for other in (kind, "row")
        for layer, by_numpy in (
            (layers.elementwise_add, np.add),
            (layers.elementwise_mul, np.multiply),
            (layers.elementwise_max, np.maximum),
        )
    ],
    ("batch", ["batch", "matrix"], layers.mul, np.matmul),
    ("words", ["words", "matrix"], layers.matmul, np.matmul),
    ("image", ["image", "matrix"], layers.matmul, np.matmul),
    ("batch", ["image"], lambda x: layers.reduce_max(x, dim=1), lambda x: x.max(1)),
    ("batch", ["image"], lambda x: layers.slice(x, [1], [-1], [9])[:, 0], lambda x: x[:, -1]),
    ("row", ["batch"], lambda x: layers.reduce_mean(x, dim=[0]), lambda x: x.mean(0)),
    ("row", ["image"], lambda x: layers.reduce_sum(layers.reshape(x, [-1, 4]), dim=0), lambda x: x.sum((0, 1))),
    ("image", ["batch"], lambda x: layers.stack([x, layers.relu(x), x], 1), lambda x: np.stack([x, x * (x > 0), x], 1)),
    ("batch", ["batch", "batch"], overwritten, lambda x, y: x * y + x + y + np.sin(x * y)),
    ("batch", ["batch", "batch"], looped, lambda x, y: x / 8 + 1.75 * y),
    ("row", ["row", "row"], looped, lambda x, y: x / 8 + 1.75 * y),
    ("batch", ["image", "batch", "batch"], chosen, lambda p, x, y: np.tanh(x) if p.sum() > 0 else x * y),
    ("image", ["image", "batch"], stepped, stepped_by_numpy),
    (
        "batch",
        ["words", "lengths"],
        lambda x, _: layers.sequence_pool(x, "sum"),
        lambda x, lengths: np.stack([s.sum(0) for s in each(x, lengths)]),
    ),
    (
        "words",
        ["batch", "words", "lengths"],
        lambda x, y, _: layers.sequence_expand_as(x, y),
        lambda x, _, lengths: np.repeat(x, lengths, 0),
    ),
]


class RandomProgram:
    """A program of random layers with a loss and its gradients, and what NumPy makes of the same values."""

    def __init__(self, seed: int) -> None:
        self.choose, self.draw = random.Random(seed), np.random.default_rng(seed)
        self.steps: list[tuple[Callable[..., Array], list[str]]] = []
        self.made: dict[str, Any] = {
            "batch": layers.data("batch", [4], dtype="float64"),
            "image": layers.data("image", [3, 4], dtype="float64"),
            "words": layers.data("words", [4], dtype="float64", lod_level=1),
            "row": layers.create_parameter([4], "float64", name="row"),
            "matrix": layers.create_parameter([4, 4], "float64", name="matrix"),
        }
        self.leaves = list(self.made)
        for variable in self.made.values():
            variable.stop_gradient = False
        kinds = {kind: [kind] for kind in [*self.leaves, "lengths"]}
        for i in range(self.choose.randint(5, 20)):
            kind, takes, layer, by_numpy = self.choose.choice(LAYERS)
            names = [self.choose.choice(kinds[each][-3:]) for each in takes]
            self.steps.append((by_numpy, names))
            self.made[str(i)] = layer(*[self.made.get(name) for name in names])
            kinds[kind].append(str(i))
        self.results = [str(i) for i in range(len(self.steps))]
        self.made["loss"] = layers.sums([layers.mean(self.made[name]) for name in self.results[-4:]])
        gradients = fluid.gradients([self.made["loss"]], [self.made[name] for name in self.leaves])
        self.gradients = {name: g.name for name, g in zip(self.leaves, gradients) if g is not None}

    def values(self, n: int) -> dict[str, Any]:
        lengths = self.draw.integers(1, 4, n).tolist()
        shapes = {"batch": [n, 4], "image": [n, 3, 4], "words": [sum(lengths), 4], "row": [4], "matrix": [4, 4]}
        return {**{name: self.draw.normal(size=shape) for name, shape in shapes.items()}, "lengths": lengths}

    def by_numpy(self, values: dict[str, Any]) -> dict[str, Any]:
        values = dict(values)
        for i, (function, names) in enumerate(self.steps):
            values[str(i)] = function(*[values[name] for name in names])
        return {**values, "loss": np.array([sum(values[name].mean() for name in self.results[-4:])])}


def run(exe: fluid.Executor, program: fluid.Program, scope: fluid.Scope, values: Any, names: list[str]) -> list[Any]:
    for name in ("row", "matrix"):
        scope.var(name).get_tensor().set(values[name], fluid.CPUPlace())
    words = fluid.create_lod_tensor(values["words"], [values["lengths"]], fluid.CPUPlace())
    feed = {"batch": values["batch"], "image": values["image"], "words": words}
    return exe.run(program, feed, names, scope=scope, return_numpy=False)


@pytest.mark.parametrize("seed", range(40))
def test_values_and_gradients_are_numpys_and_always_the_same_bits(exe: fluid.Executor, seed: int) -> None:
    case = RandomProgram(seed)
    program, scope, held = fluid.default_main_program(), fluid.Scope(), []
    parsed = fluid.Program.parse_from_string(program.serialize_to_string())
    for n in (3, 1, 6, 3):
        values = case.values(n)
        expected = case.by_numpy(values)
        some = ["loss", *case.choose.sample(case.results, case.choose.randint(0, 3))]
        names = [*case.gradients.values(), *[case.made[name].name for name in some]]
        tensors = run(exe, program, scope, values, names)
        arrays = [np.array(tensor) for tensor in tensors]
        for name, value in zip(some, arrays[len(case.gradients) :]):
            np.testing.assert_allclose(value, expected[name], rtol=1e-9, atol=1e-9)
        way = {name: case.draw.normal(size=values[name].shape) for name in case.leaves}
        near, far = (case.by_numpy(values | {k: values[k] + x * way[k] for k in way})["loss"] for x in (-1e-6, 1e-6))
        slope = sum(float((way[name] * gradient).sum()) for name, gradient in zip(case.gradients, arrays))
        assert slope == pytest.approx((far[0] - near[0]) / 2e-6, rel=1e-5, abs=1e-7)
        again = run(fluid.Executor(cpu_num=2), parsed, fluid.Scope(), values, names)
        assert [np.array(tensor).tobytes() for tensor in again] == [array.tobytes() for array in arrays]
        held.append((tensors, arrays))
    more = layers.scale(case.made["loss"], 3.0)
    (value,) = run(exe, program, scope, values, [more.name])
    np.testing.assert_allclose(np.array(value), 3 * expected["loss"], rtol=1e-9, atol=1e-9)
    for tensors, arrays in held:
        assert [np.array(tensor).tobytes() for tensor in tensors] == [array.tobytes() for array in arrays]
