"""Measures over many batches whose sums a program keeps, in persistable variables.

:mod:`headrace.fluid.metrics` has the same in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid import layers
from headrace.fluid._detection_map import DetectionMAP
from headrace.fluid.core import array_of, dtype_name
from headrace.fluid.executor import Executor, global_scope
from headrace.fluid.framework import Program, Variable
from headrace.fluid.initializer import Constant
from headrace.fluid.layer_helper import LayerHelper, create_initialized_var
from headrace.fluid.metrics import ChunkEvaluator as _Chunks

__all__ = ["ChunkEvaluator", "DetectionMAP", "EditDistance", "Evaluator"]


class Evaluator:
    """Base class of evaluators: their variables accumulate the results of each run of the main program.

    As in Fluid, programs that are built alike under ``unique_name.guard()``, with one startup program, share these
    variables: :meth:`reset` them before another program runs.

    Attributes:
        states: these variables, which the startup program sets to 0.
        metrics: variables that can be fetched for each batch.

    Args:
        name: with which the names of the variables begin.
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        self.states: list[Variable] = []
        self.metrics: list[Variable] = []
        self.helper = LayerHelper(name)

    def reset(self, executor: Executor, reset_program: Program | None = None) -> None:
        """Sets the sums in the global scope to 0."""
        for state in self.states:
            shape = [1 if extent < 0 else extent for extent in state.shape]
            tensor = global_scope().var(state.name).get_tensor()
            tensor.set(np.zeros(shape, dtype_name(state.dtype)), executor.place)

    def eval(self, executor: Executor, eval_program: Program | None = None) -> Any:
        """The measure over all batches since the last :meth:`reset`, from the variables in the global scope."""
        raise NotImplementedError(f"{type(self).__name__} has no eval: a subclass of Evaluator defines it")

    def _create_state(self, suffix: str, dtype: str, shape: Sequence[int]) -> Variable:
        """A sum, which is 0 in the beginning."""
        programs, key = (self.helper.main_program, self.helper.startup_program), self.helper.name
        state = create_initialized_var(*programs, key, shape, dtype, Constant(0), suffix=f"_{suffix}")
        self.states.append(state)
        return state

    def _add(self, state: Variable, value: Variable) -> None:
        """Has each run of the program add ``value`` to a sum."""
        layers.sums([state, layers.reshape(layers.cast(value, state.dtype), state.shape)], out=state)

    @staticmethod
    def _value(state: Variable) -> Any:
        found = global_scope().find_var(state.name)
        if found is None:
            raise errors.FailedPrecondition(f"'{state.name}' has no value: run the startup program first")
        return array_of(found.get_tensor())


class ChunkEvaluator(Evaluator):
    """Precision, recall and F1 of chunks, see ``layers.chunk_eval`` for the arguments.

    Attributes:
        num_infer_chunks, num_label_chunks, num_correct_chunks: the variables of the sums.
    """

    def __init__(
        self,
        input: Variable,
        label: Variable,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: Sequence[int] | None = None,
    ) -> None:
        super().__init__("chunk_eval")
        self.num_infer_chunks = self._create_state("num_infer_chunks", "int64", [1])
        self.num_label_chunks = self._create_state("num_label_chunks", "int64", [1])
        self.num_correct_chunks = self._create_state("num_correct_chunks", "int64", [1])
        found = layers.chunk_eval(input, label, chunk_scheme, num_chunk_types, excluded_chunk_types)
        for state, value in zip(self.states, found[3:]):
            self._add(state, value)
        self.metrics = list(found[:3])

    def eval(self, executor: Executor, eval_program: Program | None = None) -> tuple[Any, Any, Any]:
        """Precision, recall and F1, each an array of one."""
        chunks = _Chunks()
        chunks.update(*map(self._value, self.states))
        precision, recall, f1 = (np.array([value], np.float32) for value in chunks.eval())
        return precision, recall, f1


class EditDistance(Evaluator):
    """Mean edit distance, and share of sequences that have any; see ``layers.edit_distance`` for the arguments.

    Attributes:
        total_distance, seq_num, instance_error: the variables of the sums.
        metrics: of each batch, the sum of its distances, and how many of its sequences have any.
    """

    def __init__(self, input: Variable, label: Variable, ignored_tokens: Sequence[int] | None = None) -> None:
        super().__init__("edit_distance")
        self.total_distance = self._create_state("total_distance", "float32", [1])
        self.seq_num = self._create_state("seq_num", "int64", [1])
        self.instance_error = self._create_state("instance_error", "int64", [1])
        distances, count = layers.edit_distance(input, label, ignored_tokens=ignored_tokens)
        wrong = layers.reduce_sum(layers.cast(layers.cast(distances, "bool"), "int64"))
        total = layers.reduce_sum(distances)
        for state, value in zip(self.states, (total, count, wrong)):
            self._add(state, value)
        self.metrics = [total, wrong]

    def eval(self, executor: Executor, eval_program: Program | None = None) -> tuple[Any, Any]:
        """Mean distance and share of sequences with any, each an array of one."""
        total, count, wrong = (float(self._value(state).reshape(-1)[0]) for state in self.states)
        if count == 0:
            raise errors.FailedPrecondition("edit_distance has no data: run the main program first")
        return np.array([total / count], np.float32), np.array([wrong / count], np.float32)
