"""Random programs in all the forms in which they are evaluated: cloned for a test, stored, pruned, and as a model for
inference. All compute what the same program computes that was built for tests, and change nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import core
from headrace.fluid import layers as L
from headrace.fluid.framework import Variable

WIDTH = 4


class Builder:
    """Builds the same program for the same seed. All its variables are [rows, WIDTH].

    Args:
        is_test: what layers that compute otherwise in training are given.
    """

    def __init__(self, seed: int, is_test: bool) -> None:
        self.chance, self.is_test = random.Random(seed), is_test

    def build(self) -> list[Variable]:
        variables = [fluid.data(name, [None, WIDTH]) for name in ("x", "y")]
        for _ in range(self.chance.randrange(3, 9)):
            variables.append(self.step(variables, variables))
        sequences = fluid.data("s", [None, WIDTH], lod_level=1)
        variables.append(L.sequence_pool(sequences, self.chance.choice(["sum", "max", "last"])))
        return [*variables, self.layer(variables)]

    def layer(self, variables: list[Variable]) -> Variable:
        x, y = (self.chance.choice(variables) for _ in range(2))
        shared = self.chance.choice([None, "shared"])
        kinds: list[Callable[[], Variable]] = [
            lambda: L.fc(x, WIDTH, act="tanh", param_attr=shared),
            lambda: L.batch_norm(x, is_test=self.is_test, momentum=0.5),
            lambda: L.dropout(x, 0.3, is_test=self.is_test),
            lambda: L.dropout(x, 0.3, is_test=self.is_test, dropout_implementation="upscale_in_train"),
            lambda: L.layer_norm(x),
            lambda: L.relu(x - y),
            lambda: L.concat(L.split(x * 0.5, 2, 1)[::-1], 1),
            lambda: L.matmul(L.softmax(L.matmul(x, y, transpose_y=True)), y),
        ]
        return self.chance.choice(kinds)()

    def step(self, variables: list[Variable], own: list[Variable], depth: int = 0) -> Variable:
        """Adds to the block; ``own``: the variables of it, which may be changed."""
        kinds = [self.layer, self.layer, self.change] + ([] if depth > 1 else [self.cond, self.loop, self.switch])
        kind = self.chance.choice(kinds)
        if kind == self.layer:
            return self.layer(variables)
        return kind(variables, own, depth)  # type: ignore[call-arg]

    def change(self, variables: list[Variable], own: list[Variable], depth: int) -> Variable:
        target = self.chance.choice(own or [L.scale(variables[0], 1.0)])
        return L.assign(self.layer(variables), target)

    def block(self, variables: list[Variable], depth: int) -> Variable:
        own: list[Variable] = []
        for _ in range(self.chance.choice([1, 2])):
            own.append(self.step([*variables, *own], own, depth + 1))
        return L.scale(own[-1], 0.5)

    def less(self, variables: list[Variable]) -> Variable:
        return L.less_than(*(L.reduce_mean(self.chance.choice(variables)) for _ in range(2)))

    def cond(self, variables: list[Variable], own: list[Variable], depth: int) -> Variable:
        return L.cond(self.less(variables), *[lambda: self.block(variables, depth)] * 2)

    def loop(self, variables: list[Variable], own: list[Variable], depth: int) -> Variable:
        step, count = (L.fill_constant([1], "int64", value) for value in (0, self.chance.choice([0, 1, 3])))
        start = L.scale(self.chance.choice(variables), 1.0)

        def body(step: Variable, value: Variable) -> list[Variable]:
            return [L.increment(step), self.block([*variables, value], depth)]

        return L.while_loop(lambda step, value: L.less_than(step, count), body, [step, start])[1]

    def switch(self, variables: list[Variable], own: list[Variable], depth: int) -> Variable:
        target = self.chance.choice(own or [L.scale(variables[0], 1.0)])
        with L.Switch() as switch, switch.case(self.less(variables)):
            L.assign(self.layer(variables), target)
        return target


def built(seed: int, is_test: bool) -> tuple[fluid.Program, fluid.Program, list[Variable]]:
    """A program, its startup program and its targets."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 7
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        variables = Builder(seed, is_test).build()
        chance = random.Random(-seed)
        targets = {v.name: v for v in chance.sample(variables[2:], chance.randrange(1, 4))}
        if not is_test and chance.random() < 0.5 and main.all_parameters():
            fluid.optimizer.Adam(0.05).minimize(L.sums([L.reduce_mean(v) for v in variables]))
    return main, startup, list(targets.values())


def feed(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x, y, s = (rng.standard_normal((rows, WIDTH)).astype(np.float32) for rows in (3, 3, 6))
    return {"x": x, "y": y, "s": fluid.create_lod_tensor(s, [[1, 3, 2]])}


def state(main: fluid.Program) -> dict[str, np.ndarray]:
    scope = fluid.global_scope()
    kept = [v.name for v in main.list_vars() if v.persistable and v.type == core.VarType.LOD_TENSOR]
    return {name: np.array(scope.find_var(name).get_tensor()) for name in kept}


def parsed(program: fluid.Program) -> fluid.Program:
    binary = program.serialize_to_string()
    again = fluid.Program.parse_from_string(binary)
    assert again.serialize_to_string() == binary
    return again


@pytest.mark.filterwarnings("ignore:the loss .* depends on no trainable parameter")
@pytest.mark.parametrize("seed", range(30))
def test_all_forms_of_a_program_compute_the_same(seed: int, exe: fluid.Executor, tmp_path: Path) -> None:
    main, startup, targets = built(seed, False)
    names = [target.name for target in targets]
    exe.run(startup)
    for step in range(2):
        exe.run(main, feed=feed(step))
    before, given = state(main), feed(9)

    def run(program: fluid.Program, fetches: list[Any], fed: Any = ("x", "y", "s")) -> list[np.ndarray]:
        there = {name: given[name] for name in fed if program.global_block().has_var(name)}
        return exe.run(program, feed=there, fetch_list=fetches)

    expected = run(built(seed, True)[0], names)
    test = main.clone(for_test=True)
    forms = [test, parsed(test), parsed(main).clone(for_test=True), test._prune(names), test._inference_optimize()]
    for form in forms:
        for found in (run(form, names), run(form, names)):
            np.testing.assert_equal(found, expected)
    np.testing.assert_equal(state(main), before)

    fluid.io.save_inference_model(str(tmp_path), ["x", "y", "s"], targets, exe, main)
    with fluid.scope_guard(fluid.Scope()):
        model, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe)
        for found in (run(model, fetches, feeds), run(model, fetches, feeds)):
            np.testing.assert_equal(found, expected)
    used = {name for b in model.blocks for op in b.ops for name in (*op.input_arg_names, *op.output_arg_names)}
    files = {path.name for path in tmp_path.iterdir()} - {"__model__"}
    assert files == {name for name in before if name in used}
