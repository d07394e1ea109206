"""One recurrent cell in two decoders: along given targets, to train it, and along the best words of a beam search."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace import errors
from headrace.fluid._checks import check_instance, check_optional
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_variable
from headrace.fluid.layers.control_flow import Switch, While, array_read, array_write, is_empty, less_than
from headrace.fluid.layers.dynamic_rnn import DynamicRNN
from headrace.fluid.layers.nn import embedding, fc, topk
from headrace.fluid.layers.ops import log
from headrace.fluid.layers.sequence import beam_search, beam_search_decode, lod_reset, sequence_expand
from headrace.fluid.layers.tensor import fill_constant, fill_constant_batch_size_like, increment

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder"]


class InitState:
    """The value of a state before the first step.

    Args:
        init: its value, a row for each sequence. Otherwise it is filled with ``value``:
        shape: with -1 for the number of rows, which are as many as ``init_boot`` has.
        need_reorder: the rows are in the order of the input, as they are unless the batch is one sequence.
    """

    def __init__(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        init_boot: Variable | None = None,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> None:
        if init is None:
            if init_boot is None or shape is None:
                raise errors.InvalidArgument("InitState: either init, or shape and init_boot are needed")
            init = fill_constant_batch_size_like(init_boot, shape, dtype, value)
        self.value = check_variable(init, "init", "InitState")
        self.need_reorder = bool(need_reorder)


class _Decoder(Protocol):
    """The interface of the decoder that a cell is in."""

    def _remember(self, init: InitState) -> Variable:
        """The value of a state from the previous step."""

    def _update(self, before: Variable, value: Variable) -> None:
        """What this step leaves of the state that ``_remember`` gave as ``before``."""


class StateCell:
    """The states of a recurrent cell, its inputs, and the function that computes a step.

    ::

        cell = StateCell(inputs={"x": None}, states={"h": InitState(init=context, need_reorder=True)}, out_state="h")

        @cell.state_updater
        def step(cell):
            h = layers.fc([cell.get_state("h"), cell.get_input("x")], 32, act="tanh")
            cell.set_state("h", h)

    Args:
        inputs: by their names; None where each step gives another (``compute_state``).
        states: by their names.
        out_state: the state from which words are predicted.
    """

    def __init__(
        self,
        inputs: Mapping[str, Variable | None],
        states: Mapping[str, InitState],
        out_state: str,
        name: str | None = None,
    ) -> None:
        check_instance(inputs, Mapping, "StateCell: inputs")
        check_instance(states, Mapping, "StateCell: states")
        check_instance(out_state, str, "StateCell: out_state")
        for state, init in states.items():
            if not isinstance(init, InitState):
                raise errors.TypeMismatch(f"StateCell: state '{state}' must be an InitState, got {type(init).__name__}")
        if out_state not in states:
            raise errors.InvalidArgument(
                f"StateCell: out_state '{out_state}' is not one of the states {sorted(states)}"
            )
        self._inputs = dict(inputs)
        self._states = dict(states)
        self._out_state = out_state
        self._updater: Callable[[StateCell], Any] | None = None
        self._decoder: _Decoder | None = None
        self._before: dict[str, Variable] = {}  # in a decoder's block: the states that the step found
        self._now: dict[str, Variable] = {}  # their new values

    def _enter(self, decoder: _Decoder) -> None:
        if self._decoder is not None:
            raise errors.FailedPrecondition("StateCell: the block of the cell's decoder has not been defined")
        self._decoder = decoder

    def _leave(self) -> None:
        self._decoder = None
        self._before, self._now = {}, {}

    def _known(self, name: str) -> None:
        if name not in self._states:
            raise errors.NotFound(f"StateCell: there is no state '{name}', only {sorted(self._states)}")
        if self._decoder is None:
            raise errors.FailedPrecondition(f"StateCell: state '{name}' has a value within a decoder's block only")
        if not self._before:
            self._before = {state: self._decoder._remember(init) for state, init in self._states.items()}
            self._now = dict(self._before)

    def get_state(self, state_name: str) -> Variable:
        """The state as it is at this point of the step."""
        self._known(state_name)
        return self._now[state_name]

    def set_state(self, state_name: str, state_value: Variable) -> None:
        self._known(state_name)
        self._now[state_name] = check_variable(state_value, "state_value", "StateCell.set_state")

    def get_input(self, input_name: str) -> Variable:
        """NotFound if nothing has been given."""
        value = self._inputs.get(input_name)
        if value is None:
            raise errors.NotFound(f"StateCell: nothing has been given for the input '{input_name}'")
        return value

    def state_updater(self, updater: Callable[[StateCell], Any]) -> Callable[[StateCell], Any]:
        """Decorates the function that computes a step: it gets the cell, and sets its states."""
        self._updater = updater
        return updater

    def compute_state(self, inputs: Mapping[str, Variable]) -> None:
        """Computes a step with these inputs."""
        for name, value in inputs.items():
            if name not in self._inputs:
                raise errors.NotFound(f"StateCell: there is no input '{name}', only {sorted(self._inputs)}")
            self._inputs[name] = value
        if self._updater is None:
            raise errors.FailedPrecondition("StateCell: no function has been given to state_updater")
        self._updater(self)

    def update_states(self) -> None:
        """Passes the current states to the next step."""
        self._known(self._out_state)
        assert self._decoder is not None
        for name, before in self._before.items():
            self._decoder._update(before, self._now[name])

    def out_state(self) -> Variable:
        return self.get_state(self._out_state)


class TrainingDecoder:
    """Runs a cell along sequences that are given; a ``DynamicRNN`` whose memories are the cell's states.

    ::

        decoder = TrainingDecoder(cell)
        with decoder.block():
            word = decoder.step_input(words)
            decoder.state_cell.compute_state(inputs={"x": word})
            scores = layers.fc(decoder.state_cell.get_state("h"), 1000, act="softmax")
            decoder.state_cell.update_states()
            decoder.output(scores)
        scores = decoder()
    """

    def __init__(self, state_cell: StateCell, name: str | None = None) -> None:
        self._cell: StateCell = check_instance(state_cell, StateCell, "TrainingDecoder: state_cell")
        self._cell._enter(self)
        self.dynamic_rnn = DynamicRNN(name)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Within it, layers describe a step."""
        with self.dynamic_rnn.block():
            yield
        self._cell._leave()

    @property
    def state_cell(self) -> StateCell:
        return self._cell

    def step_input(self, x: Variable) -> Variable:
        """The part of the sequences ``x`` that belongs to a step."""
        return self.dynamic_rnn.step_input(x)

    def static_input(self, x: Variable) -> Variable:
        """The part of ``x`` that each step gets: all rows that belong to its sequences."""
        return self.dynamic_rnn.static_input(x)

    def output(self, *outputs: Variable) -> None:
        """Makes the values of these variables at all steps outputs of the decoder."""
        self.dynamic_rnn.output(*outputs)

    def __call__(self) -> Variable | list[Variable]:
        """The outputs, with the LoD of the input: a variable, or a list if there are several."""
        return self.dynamic_rnn()

    def _remember(self, init: InitState) -> Variable:
        return self.dynamic_rnn.memory(init.value, need_reorder=init.need_reorder)

    def _update(self, before: Variable, value: Variable) -> None:
        self.dynamic_rnn.update_memory(before, value)


class BeamSearchDecoder:
    """Runs a cell along the words that it finds most probable, ``beam_size`` sequences at a time for each source.

    ``decode`` describes the usual step: the words of the step before are embedded and given to the cell, whose state
    predicts the next ones. One of another form is described by ``block``, ``read_array`` and ``update_array``.

    Args:
        init_ids: int64 [N, 1], the first words; init_scores: float32 [N, 1], their scores. Both with a LoD of two
            levels: a sequence of one word for each source.
        target_dict_dim: how many words there are.
        word_dim: width of an embedded word.
        input_var_dict: inputs of the cell that stay the same for a source. The other ones get the embedded words.
        topk_size: how many words that may follow a sequence are looked at.
        sparse_emb: the embedding is declared with sparse updates.
        max_len: the most words of a result.
        end_id: the word that ends a sequence.
    """

    def __init__(
        self,
        state_cell: StateCell,
        init_ids: Variable,
        init_scores: Variable,
        target_dict_dim: int,
        word_dim: int,
        input_var_dict: Mapping[str, Variable] | None = None,
        topk_size: int = 50,
        sparse_emb: bool = True,
        max_len: int = 100,
        beam_size: int = 1,
        end_id: int = 1,
        name: str | None = None,
    ) -> None:
        check_instance(state_cell, StateCell, "BeamSearchDecoder: state_cell")
        check_optional(input_var_dict, Mapping, "BeamSearchDecoder: input_var_dict")
        self._helper = LayerHelper("beam_search_decoder", name)
        self._step = fill_constant([1], "int64", 0)
        self._first = fill_constant([1], "int64", 0)
        self._max_len = fill_constant([1], "int64", max_len)
        self._cond = less_than(self._step, self._max_len)
        self._loop = While(self._cond)
        self._cell = state_cell
        self._cell._enter(self)
        self._init_ids, self._init_scores = init_ids, init_scores
        self._words, self._word_dim, self._sparse = target_dict_dim, word_dim, sparse_emb
        self._fixed_inputs = dict(input_var_dict or {})
        self._topk_size, self._beam_size, self._end_id = topk_size, beam_size, end_id
        self._arrays: dict[str, Variable] = {}  # name of the variable that a step reads → the values, step by step
        self._updates: list[tuple[Variable, Variable]] = []  # the results of a step, and where they go
        self._results: dict[str, Variable] = {}
        self._inside = self._described = False

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Within it, layers describe a step."""
        if self._inside or self._described:
            raise errors.FailedPrecondition("BeamSearchDecoder: the block has already been defined")
        self._outside = self._helper.main_program.current_block_idx
        with self._loop.block():
            self._inside = True
            try:
                yield
            finally:
                self._inside = False
            with Switch() as switch, switch.case(self._cond):  # unless the step has ended the search
                increment(self._step)
                for value, array in self._updates:
                    array_write(value, self._step, array)
                less_than(self._step, self._max_len, cond=self._cond)
        self._described = True
        self._cell._leave()

    @property
    def state_cell(self) -> StateCell:
        return self._cell

    def early_stop(self) -> None:
        """Ends the search with this step, of which nothing is kept."""
        self._current("early_stop")
        fill_constant([1], "bool", 0, out=self._cond)

    def decode(self) -> None:
        """Describes the usual step."""
        with self.block():
            ids = self.read_array(self._init_ids, is_ids=True)
            scores = self.read_array(self._init_scores, is_scores=True)
            words = embedding(ids, [self._words, self._word_dim], self._sparse, dtype="float32")
            given, kept = {}, []
            for name, init in self._fixed_inputs.items():
                before = self.read_array(init)
                given[name] = sequence_expand(before, scores)
                kept.append((before, given[name]))
            for name in self._cell._states:
                self._cell.set_state(name, sequence_expand(self._cell.get_state(name), scores))
            self._cell.compute_state({**dict.fromkeys(self._cell._inputs, words), **given})
            state = lod_reset(self._cell.out_state(), scores)
            best, which = topk(fc(state, self._words, act="softmax"), self._topk_size)
            total = log(best) + scores  # a score for each row
            next_ids, next_scores = beam_search(ids, scores, which, total, self._beam_size, self._end_id)
            with Switch() as switch:
                with switch.case(is_empty(next_ids)):
                    self.early_stop()
                with switch.default():
                    self._cell.update_states()
                    for before, value in [(ids, next_ids), (scores, next_scores), *kept]:
                        self.update_array(before, value)

    def read_array(self, init: Variable, is_ids: bool = False, is_scores: bool = False) -> Variable:
        """The value from the previous step, ``init`` for the first one; see ``update_array``.

        Args:
            is_ids, is_scores: these are the words, or their scores, of which the results are made.
        """
        self._current("read_array")
        if is_ids and is_scores:
            raise errors.InvalidArgument("BeamSearchDecoder.read_array: either words or scores, not both")
        check_variable(init, "init", "BeamSearchDecoder.read_array")
        with self._helper.main_program._block_guard(self._outside):
            array = array_write(init, self._first)
        if is_ids or is_scores:
            self._results["ids" if is_ids else "scores"] = array
        before = array_read(array, self._step)
        self._arrays[before.name] = array
        return before

    def update_array(self, array: Variable, value: Variable) -> None:
        """Passes ``value`` to the next step, as the value of ``array`` from ``read_array``."""
        self._current("update_array")
        if check_variable(array, "array", "BeamSearchDecoder.update_array").name not in self._arrays:
            raise errors.NotFound(f"BeamSearchDecoder.update_array: read_array has not given '{array.name}'")
        check_variable(value, "value", "BeamSearchDecoder.update_array")
        self._updates.append((value, self._arrays[array.name]))

    def __call__(self) -> tuple[Variable, Variable]:
        """The sequences found, int64, and the scores of their words, float32, with a LoD of two levels: the sequences
        of a source, and the words of a sequence.
        """
        if not self._described or len(self._results) < 2:
            raise errors.FailedPrecondition("BeamSearchDecoder: no block has been defined that reads words and scores")
        return beam_search_decode(self._results["ids"], self._results["scores"], self._beam_size, self._end_id)

    def _remember(self, init: InitState) -> Variable:
        return self.read_array(init.value)

    def _update(self, before: Variable, value: Variable) -> None:
        self.update_array(before, value)

    def _current(self, method: str) -> None:
        if not self._inside:
            raise errors.FailedPrecondition(f"BeamSearchDecoder.{method} must be called in the block")
