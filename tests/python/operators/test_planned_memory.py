"""Operators and their gradients give the same bits whether each variable keeps memory of its own or temporaries share.

So every output that is declared to be written in place of an input really may be, and slots of which only the shape is
read have lost their elements by then.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import other_cases
import pytest
import row_cases
from row_cases import Rows

import headrace.fluid as fluid
from headrace.fluid import core

RUNS = 3  # The first finds out what is needed, the others use it.
CASES = [*row_cases.CASES, *other_cases.CASES]


class Use:
    """A program in which outputs, gradients and inputs are temporaries.

    Args:
        by: input slots to differentiate the first output by; the gradient is the last to use what it reads.
        temporaries: the slots whose variables are temporaries; others are fed, and keep their memory. None: all.
    """

    def __init__(
        self,
        op_type: str,
        case: Rows,
        by: Collection[str] = (),
        temporaries: Collection[str] | None = None,
    ) -> None:
        self._program = fluid.Program()
        self._feed: dict[str, Any] = {}
        self._results: list[str] = []
        self._block = self._program.global_block()
        self._executor = fluid.Executor()
        with fluid.program_guard(self._program, fluid.Program()):
            inputs = self._inputs(case, temporaries)
            outputs = {slot: [self._block.create_var(f"{slot}_out")] for slot in (*case.outputs, *case.others)}
            self._block.append_op(op_type, inputs, outputs, case.attrs)
            target = outputs[case.outputs[0]][0]
            for slot in case.outputs:
                self._keep(outputs[slot][0])
            if by:
                weights = np.random.default_rng(7).uniform(-1, 1, self._run([target.name])[0].shape())
                variables = [variable for slot in by for variable in inputs[slot]]
                for gradient in fluid.gradients([target], variables, [self._temporary("weights", weights)]):
                    assert gradient is not None
                    self._keep(gradient)

    def _inputs(self, case: Rows, temporaries: Collection[str] | None) -> dict[str, list[Any]]:
        inputs = {}
        for slot, value in case.inputs(case.many, max(case.widths)).items():
            make = self._temporary if temporaries is None or slot in temporaries else self._fed
            values = value if isinstance(value, list) else [value]
            inputs[slot] = [make(f"{slot}_{i}", item) for i, item in enumerate(values)]
        return inputs

    def _fed(self, name: str, value: Any) -> Any:
        array, lengths = value if isinstance(value, tuple) else (value, [])
        self._feed[name] = fluid.create_lod_tensor(array, lengths) if lengths else array
        return self._block.create_var(name, array.shape, array.dtype, len(lengths), stop_gradient=True)

    def _temporary(self, name: str, value: Any) -> Any:
        fed = self._fed(f"{name}.fed", value)
        made = self._block.create_var(name, fed.shape, fed.dtype, fed.lod_level, stop_gradient=False)
        self._block.append_op("assign", {"X": [fed]}, {"Out": [made]}, {})
        return made

    def _keep(self, variable: Any) -> None:
        kept = self._block.create_var(f"{variable.name}.kept")
        self._block.append_op("assign", {"X": [variable]}, {"Out": [kept]}, {})
        self._results.append(kept.name)

    def _run(self, fetches: list[str], scope: fluid.Scope | None = None) -> list[Any]:
        run_in = fluid.Scope() if scope is None else scope
        return self._executor.run(self._program, self._feed, fetches, scope=run_in, return_numpy=False)

    def with_own_memory(self) -> list[bytes]:
        """What is fetched shares no memory."""
        written = [name for op in self._block.ops for slot in op.output_names for name in op.output(slot)]
        others = [name for name in dict.fromkeys(written) if name not in self._results and name != "@EMPTY@"]
        return _bytes(self._run([*self._results, *others])[: len(self._results)])

    def with_planned_memory(self) -> list[list[bytes]]:
        scope = fluid.Scope()
        return [_bytes(self._run(self._results, scope)) for _ in range(RUNS)]

    def check(self) -> None:
        assert self.with_planned_memory() == [self.with_own_memory()] * RUNS


def _bytes(tensors: list[Any]) -> list[bytes]:
    return [np.asarray(tensor).tobytes() for tensor in tensors]


def cases_of(op_type: str) -> list[Rows]:
    return [case for name, case in CASES if name == op_type]


each_operator = pytest.mark.parametrize("op_type", dict.fromkeys(op_type for op_type, _ in CASES))


@each_operator
def test_the_same_bits(op_type: str) -> None:
    for case in cases_of(op_type):
        Use(op_type, case, case.by).check()


@each_operator
def test_the_same_bits_without_a_gradient(op_type: str) -> None:
    """The operator itself is the last to use its inputs: of each pair of an output and an input that are declared, the
    latter is the only temporary once, so that the output takes over its memory.
    """
    declared = {slot for _, slot in core.op_info(op_type)["in_place"]}
    for case in cases_of(op_type):
        Use(op_type, case).check()
        for slot in declared & set(case.inputs(1, max(case.widths))):
            Use(op_type, case, temporaries=[slot]).check()


@each_operator
def test_the_same_bits_of_special_numbers(op_type: str) -> None:
    for case in cases_of(op_type):
        Use(op_type, case.special(), case.by).check()
        Use(op_type, case.special()).check()


def test_no_operator_has_been_left_out() -> None:
    assert not other_cases.covered() - {op_type for op_type, _ in CASES}


def test_every_pair_that_is_declared_is_among_them() -> None:
    def pairs(op_type: str) -> set[tuple[str, str, str]]:
        return {(op_type, *pair) for pair in core.op_info(op_type)["in_place"]}

    used = {
        (op_type, output, slot)
        for op_type, case in CASES
        for _, output, slot in pairs(op_type)
        if output in (*case.outputs, *case.others) and slot in case.inputs(1, max(case.widths))
    }
    assert not {pair for op_type, _ in CASES for pair in pairs(op_type)} - used
