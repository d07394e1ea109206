"""Operators and their gradients give the same bits whether each variable keeps memory of its own or temporaries share.

So every output that is declared to be written in place of an input really may be, and slots of which only the shape is
read have lost their elements by then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from row_cases import CASES, Rows

import headrace.fluid as fluid

RUNS = 3  # The first finds out what is needed, the others use it.


class Use:
    """A program in which inputs, outputs and gradients are temporaries."""

    def __init__(self, op_type: str, case: Rows) -> None:
        self._program = fluid.Program()
        self._feed: dict[str, Any] = {}
        self._results: list[str] = []
        self._block = self._program.global_block()
        self._executor = fluid.Executor()
        with fluid.program_guard(self._program, fluid.Program()):
            inputs = self._inputs(case)
            outputs = {slot: [self._block.create_var(f"{slot}_out")] for slot in (*case.outputs, *case.others)}
            self._block.append_op(op_type, inputs, outputs, case.attrs)
            target = outputs[case.outputs[0]][0]
            for slot in case.outputs:
                self._keep(outputs[slot][0])
            if case.by:
                weights = np.random.default_rng(7).uniform(-1, 1, self._run([target.name])[0].shape())
                by = [variable for slot in case.by for variable in inputs[slot]]
                for gradient in fluid.gradients([target], by, [self._temporary("weights", weights)]):
                    assert gradient is not None
                    self._keep(gradient)

    def _inputs(self, case: Rows) -> dict[str, list[Any]]:
        inputs = {}
        for slot, value in case.inputs(case.many, max(case.widths)).items():
            values = value if isinstance(value, list) else [value]
            inputs[slot] = [self._temporary(f"{slot}_{i}", item) for i, item in enumerate(values)]
        return inputs

    def _temporary(self, name: str, value: Any) -> Any:
        array, lengths = value if isinstance(value, tuple) else (value, [])
        self._block.create_var(f"{name}.fed", array.shape, array.dtype, len(lengths), stop_gradient=True)
        self._feed[f"{name}.fed"] = fluid.create_lod_tensor(array, lengths) if lengths else array
        made = self._block.create_var(name, array.shape, array.dtype, len(lengths), stop_gradient=False)
        self._block.append_op("assign", {"X": [f"{name}.fed"]}, {"Out": [made]}, {})
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


def _bytes(tensors: list[Any]) -> list[bytes]:
    return [np.asarray(tensor).tobytes() for tensor in tensors]


@pytest.mark.parametrize("op_type", dict.fromkeys(op_type for op_type, _ in CASES))
def test_the_same_bits(op_type: str) -> None:
    for case in (case for name, case in CASES if name == op_type):
        use = Use(op_type, case)
        assert use.with_planned_memory() == [use.with_own_memory()] * RUNS
