"""Recurrent networks over sequences of variable length, without padding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Block, Variable
from headrace.fluid.layer_helper import LayerHelper, check_shape, check_variable
from headrace.fluid.layers.control_flow import (
    While,
    array_read,
    array_to_lod_tensor,
    array_write,
    create_array,
    less_than,
    lod_rank_table,
    lod_tensor_to_array,
    max_sequence_len,
    reorder_lod_tensor_by_rank,
    shrink_memory,
)
from headrace.fluid.layers.tensor import fill_constant, fill_constant_batch_size_like, increment

__all__ = ["DynamicRNN"]


class DynamicRNN:
    """A network that is applied to each step of sequences of variable length, with a memory from step to step.

    ::

        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(words)  # a LoD of one level: a step sees one row of each sequence that is so long
            before = rnn.memory(shape=[32])
            hidden = layers.fc([word, before], 32, act="tanh")
            rnn.update_memory(before, hidden)
            rnn.output(hidden)
        hiddens = rnn()  # as long as the words
        last = layers.sequence_last_step(hiddens)

    Within the block, sequences are in the order of their lengths, longest first, and those that have ended are gone:
    nothing is padded. The results are in the order of the input. ``step_idx`` is the number of the step, int64 [1],
    from 0; None before the block.
    """

    def __init__(self, name: str | None = None) -> None:
        self._helper = LayerHelper("dynamic_rnn", name)
        self._inner: Block | None = None  # while the block is described
        self.step_idx: Any = None  # a Variable from the block on
        self._table: Variable | None = None
        self._first_input: Variable | None = None  # the steps of the first input
        self._memories: dict[str, Variable] = {}  # name of a memory → its values, step by step
        self._updates: dict[str, Variable] = {}  # name of a memory → its next value
        self._output_arrays: list[Variable] = []
        self._outputs: list[Variable] | None = None

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Within it, layers describe a step.

        Raises:
            FailedPrecondition: there has been a block already; the block has no input or no output, or a memory is
                never updated.
        """
        if self._inner is not None or self._outputs is not None:
            raise errors.FailedPrecondition("DynamicRNN: the block has already been defined")
        self._outputs = []
        program = self._helper.main_program
        self._zero = fill_constant([1], "int64", 0)
        self.step_idx = fill_constant([1], "int64", 0)
        self._cond = self._helper.create_variable("bool", stop_gradient=True)
        with While(self._cond).block():
            self._inner = program.current_block()
            try:
                yield
                self._check_complete()
            finally:
                self._inner = None
            increment(self.step_idx)
            for memory, value in self._updates.items():
                array_write(value, self.step_idx, self._memories[memory])
            less_than(self.step_idx, self._length, cond=self._cond)
        assert self._table is not None
        self._outputs = [array_to_lod_tensor(array, self._table) for array in self._output_arrays]

    def step_input(self, x: Variable, level: int = 0) -> Variable:
        """The part of the sequences ``x`` for a step. All inputs have sequences of the same lengths.

        Args:
            level: the level of the LoD whose parts are the steps; the first input decides. What counts is the LoD of
                the value, not the declared ``lod_level``.
        """
        self._current("step_input")
        x = check_variable(x, "x", "DynamicRNN.step_input")
        with self._outside():
            if self._table is None:
                self._table = lod_rank_table(x, level)
                self._length = max_sequence_len(self._table)
                less_than(self.step_idx, self._length, cond=self._cond)
            steps = lod_tensor_to_array(x, self._table)
        if self._first_input is None:
            self._first_input = steps
        return array_read(steps, self.step_idx)

    def static_input(self, x: Variable) -> Variable:
        """The part of ``x`` for a step; ``x`` has a row or, with a LoD, a sequence for each sequence of the inputs: the
        same at each step, but for those that have ended.
        """
        self._current("static_input")
        table = self._known_table("static_input")
        with self._outside():
            ordered = reorder_lod_tensor_by_rank(check_variable(x, "x", "DynamicRNN.static_input"), table)
        return shrink_memory(ordered, self.step_idx, table)

    def memory(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> Variable:
        """The value from the previous step, see ``update_memory``.

        Args:
            init: the value for the first step, a row for each sequence. Default: a tensor of ``value``:
            shape: its shape, without that of the batch.
            need_reorder: the rows of ``init`` are in the order of the input, and have to be brought into that of the
                lengths.
        """
        self._current("memory")
        table = self._known_table("memory")
        with self._outside():
            if init is not None:
                init = check_variable(init, "init", "DynamicRNN.memory")
                init = reorder_lod_tensor_by_rank(init, table) if need_reorder else init
            elif shape is None or self._first_input is None:
                raise errors.InvalidArgument("DynamicRNN.memory: either init or shape is needed")
            else:
                first = array_read(self._first_input, self._zero)
                init = fill_constant_batch_size_like(
                    first, [-1, *check_shape(shape, "shape", "DynamicRNN.memory")], core.convert_dtype(dtype), value
                )
                init.stop_gradient = True
            values = array_write(init, self._zero)
        before = shrink_memory(array_read(values, self.step_idx), self.step_idx, table)
        self._memories[before.name] = values
        return before

    def update_memory(self, ex_mem: Variable, new_mem: Variable) -> None:
        """Passes ``new_mem`` of this step to the next one, as ``ex_mem``."""
        self._current("update_memory")
        if check_variable(ex_mem, "ex_mem", "DynamicRNN.update_memory").name not in self._memories:
            raise errors.InvalidArgument(f"DynamicRNN.update_memory: '{ex_mem.name}' is not a memory of this network")
        if ex_mem.name in self._updates:
            raise errors.InvalidArgument(f"DynamicRNN.update_memory: '{ex_mem.name}' has been updated already")
        self._updates[ex_mem.name] = check_variable(new_mem, "new_mem", "DynamicRNN.update_memory")

    def output(self, *outputs: Variable) -> None:
        """Makes the values of these variables at all steps outputs of the network."""
        self._current("output")
        for item in outputs:
            item = check_variable(item, "output", "DynamicRNN.output")
            with self._outside():
                array = create_array(item.dtype)
            array_write(item, self.step_idx, array)
            self._output_arrays.append(array)

    def __call__(self) -> Variable | list[Variable]:
        """The outputs, with the LoD of the input: a variable, or a list if there are several."""
        if not self._outputs:
            raise errors.FailedPrecondition("DynamicRNN: no block has been defined")
        return self._outputs[0] if len(self._outputs) == 1 else list(self._outputs)

    def _current(self, method: str) -> Block:
        if self._inner is None:
            raise errors.FailedPrecondition(f"DynamicRNN.{method} must be called in the block")
        return self._inner

    def _known_table(self, method: str) -> Variable:
        if self._table is None:
            raise errors.FailedPrecondition(f"DynamicRNN.{method} must be called after the first step_input")
        return self._table

    def _outside(self) -> contextlib.AbstractContextManager[None]:
        """Within it, layers are added to the block around the loop."""
        return self._helper.main_program._block_guard(self._current("block").parent_idx)

    def _check_complete(self) -> None:
        if self._table is None or not self._output_arrays:
            raise errors.FailedPrecondition("DynamicRNN: a block needs a step_input and an output")
        for memory in self._memories:
            if memory not in self._updates:
                raise errors.FailedPrecondition(f"DynamicRNN: memory '{memory}' is never updated")
