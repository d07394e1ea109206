"""Decoders: networks that make their own inputs, step by step, until they are finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headrace import errors
from headrace.fluid._checks import check_function
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, append_layer, check_variable
from headrace.fluid.layers import control_flow
from headrace.fluid.layers.conditional import replace_all
from headrace.fluid.layers.control_flow import While, array_write, less_than, logical_not, logical_or
from headrace.fluid.layers.elementwise import elementwise_add, elementwise_floordiv, elementwise_mul
from headrace.fluid.layers.nn import log_softmax, topk
from headrace.fluid.layers.rearrange import expand, gather_nd, shape, stack
from headrace.fluid.layers.reductions import reduce_all
from headrace.fluid.layers.rnn_cells import RNNCell, select_rows, swap_first
from headrace.fluid.layers.static_rnn import has_declared_shape
from headrace.fluid.layers.structure import flatten, map_structure
from headrace.fluid.layers.tensor import assign, cast, fill_constant, increment, reshape, unsqueeze, zeros_like
from headrace.fluid.layers.tensor import range as range_of

__all__ = ["BeamSearchDecoder", "Decoder", "dynamic_decode", "gather_tree", "tensor_array_to_tensor"]

#: What stands for the logarithm of 0.
_NEVER = -1e9


def gather_tree(ids: Variable, parents: Variable) -> Variable:
    """The sequences that end in the beams of the last step of a beam search.

    Args:
        ids: int32 or int64 [steps, N, beams]: the choice of each step for each beam.
        parents: the same: the beam of the previous step that each continues.

    Returns:
        [steps, N, beams].
    """
    out: Variable = append_layer("gather_tree", {"Ids": ids, "Parents": parents})
    out.stop_gradient = True
    return out


def tensor_array_to_tensor(
    input: Variable, axis: int = 1, name: str | None = None, use_stack: bool = False
) -> tuple[Variable, Variable]:
    """The elements of an array as one tensor: side by side along ``axis``, or with ``use_stack`` as slices along it.

    Returns:
        The tensor, and the extents of the elements along ``axis``, int32 [number of elements].
    """
    helper = LayerHelper("tensor_array_to_tensor", name)
    input = check_variable(input, "input", "tensor_array_to_tensor")
    out, index = helper.create_variable(input.dtype), helper.create_variable("int32", stop_gradient=True)
    attrs = {"axis": axis, "use_stack": use_stack}
    helper.append_op({"X": input}, {"Out": out, "OutIndex": index}, attrs)
    return out, index


class Decoder:
    """A decoder, which ``dynamic_decode`` runs: a subclass defines ``initialize`` and ``step``, and perhaps
    ``finalize``.
    """

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """The values for the first step: (inputs, states, finished); finished is a bool for each sequence.

        Args:
            inits: the argument of ``dynamic_decode``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no initialize: a subclass of Decoder defines it")

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        """One step: (outputs, states, inputs of the next step, finished).

        Args:
            time: the number of the step, int64 [1], from 0 on.
            inputs, states: variables, or structures of them (lists, tuples, dicts).
        """
        raise NotImplementedError(f"{type(self).__name__} has no step: a subclass of Decoder defines it")

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> tuple[Any, Any]:
        """Outputs and states after the last step, from the outputs of all steps, [steps, N, ...] each. Without it,
        they are as they are.
        """
        raise NotImplementedError

    @property
    def tracks_own_finished(self) -> bool:
        """Whether ``step`` says of each sequence that has been finished that it is: as it must if sequences change
        places. Otherwise a finished sequence stays finished.
        """
        return False


class BeamSearchDecoder(Decoder):
    """Beam search: at each step, the ``beam_size`` best continuations of all beams of a sequence.

    ::

        cell = layers.GRUCell(hidden_size=128)
        decoder = layers.BeamSearchDecoder(
            cell, start_token=0, end_token=1, beam_size=4,
            embedding_fn=lambda ids: layers.embedding(ids, [1000, 64]),
            output_fn=lambda x: layers.fc(x, 1000, num_flatten_dims=2))
        outputs, states = layers.dynamic_decode(decoder, inits=encoder_state, max_step_num=50)

    ``dynamic_decode`` gives the tokens of the beams, best first, int64 [N, steps, beam_size].

    Args:
        cell: an RNNCell, called for [N · beam_size, ...]; other values that it uses must have this form as well:
            ``tile_beam_merge_with_batch``.
        start_token, end_token: the first input; the token that ends a sequence.
        embedding_fn: int64 [N, beam_size] → the cell's inputs, [N, beam_size, ...]; None: the tokens are the inputs.
        output_fn: the cell's outputs, [N, beam_size, ...] → logits of all tokens, [N, beam_size, tokens]; None: they
            are the logits.
    """

    class OutputWrapper(NamedTuple):
        """The output of a step, [N, beam_size] each: the logarithms of the beams' probabilities, tokens, and the beams
        of the previous step that they continue.
        """

        scores: Any
        predicted_ids: Any
        parent_ids: Any

    class StateWrapper(NamedTuple):
        """The state passed to the next step: the cell's states, and for each beam, [N, beam_size], the logarithm of its
        probability, whether it has ended, and how many tokens it has.
        """

        cell_states: Any
        log_probs: Any
        finished: Any
        lengths: Any

    def __init__(
        self,
        cell: RNNCell,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Callable[[Variable], Any] | None = None,
        output_fn: Callable[[Any], Variable] | None = None,
    ) -> None:
        if not isinstance(beam_size, int) or beam_size < 1:
            raise errors.InvalidArgument(f"BeamSearchDecoder: beam_size has to be a positive number, got {beam_size!r}")
        for what, function in (("embedding_fn", embedding_fn), ("output_fn", output_fn)):
            if function is not None:
                check_function(function, f"BeamSearchDecoder: {what}")
        self.cell = cell
        self.start_token, self.end_token, self.beam_size = start_token, end_token, beam_size
        self.embedding_fn = embedding_fn
        self.output_fn = output_fn

    @staticmethod
    def tile_beam_merge_with_batch(x: Variable, beam_size: int) -> Variable:
        """[N, ...] → [N · beam_size, ...], each row ``beam_size`` times, one after the other."""
        x = check_variable(x, "x", "BeamSearchDecoder.tile_beam_merge_with_batch")
        tiled = expand(unsqueeze(x, [1]), [1, beam_size, *[1] * (len(x.shape) - 1)])
        return _merged(tiled)

    def _split(self, x: Variable) -> Variable:
        """[N · beam_size, ...] → [N, beam_size, ...]."""
        return _reshaped(x, [-1, self.beam_size], 1)

    def _input(self, ids: Variable) -> Any:
        return ids if self.embedding_fn is None else self.embedding_fn(ids)

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        """``inits``: the cell's states, [N, ...] each. At first, only one beam of each sequence counts."""
        first = check_variable(next(iter(flatten(inits)), None), "inits", "BeamSearchDecoder")
        count = shape(first)[0]
        beams: list[int | Variable] = [count, self.beam_size]
        row = np.full((1, self.beam_size), _NEVER, np.float32)
        row[0, 0] = 0.0
        log_probs = expand(assign(row), [cast(count, "int32"), 1])
        finished = cast(fill_constant(beams, "int64", 0), "bool")
        ids = fill_constant(beams, "int64", self.start_token)
        for variable in (log_probs, finished, ids):
            variable.desc.shape = [-1, self.beam_size]
        lengths = zeros_like(ids)
        states = map_structure(lambda x: self.tile_beam_merge_with_batch(x, self.beam_size), inits)
        return self._input(ids), self.StateWrapper(states, log_probs, finished, lengths), finished

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        merged = map_structure(_merged, inputs)
        outputs, cell_states = self.cell(merged, states.cell_states, **kwargs)
        logits = map_structure(self._split, outputs)
        if self.output_fn is not None:
            logits = self.output_fn(logits)
        tokens = logits.shape[-1]
        if tokens < 2:
            raise errors.InvalidArgument(
                f"BeamSearchDecoder: the number of tokens has to be known, the logits have shape {list(logits.shape)}"
            )
        # A finished beam continues with the end token, which costs nothing.
        ended = cast(states.finished, "float32")
        end_only = np.full(tokens, _NEVER, np.float32)
        end_only[self.end_token] = 0.0
        step_log_probs = log_softmax(logits)
        step_log_probs = elementwise_mul(step_log_probs, 1.0 - ended, axis=0) + elementwise_mul(
            expand(reshape(ended, [-1, self.beam_size, 1]), [1, 1, tokens]), assign(end_only), axis=2
        )
        totals = elementwise_add(step_log_probs, states.log_probs, axis=0)
        scores, places = topk(reshape(totals, [-1, self.beam_size * tokens]), self.beam_size)
        width = fill_constant([1], "int64", tokens)
        parents = elementwise_floordiv(places, width)
        ids = places - parents * width
        rows = range_of(fill_constant([1], "int64", 0), shape(places)[0], 1, "int64")
        rows = expand(reshape(rows, [-1, 1]), [1, self.beam_size])
        where = stack([rows, parents], axis=2)

        def moved(x: Variable) -> Variable:
            """[N, beam_size, ...] in the order of the new beams."""
            return gather_nd(x, where)

        was_finished = moved(cast(states.finished, "int64"))
        lengths = moved(states.lengths) + (1 - was_finished)
        ends = control_flow.equal(ids, fill_constant([1], "int64", self.end_token))
        finished = logical_or(cast(was_finished, "bool"), ends)
        after = map_structure(lambda x: _merged(moved(self._split(x))), cell_states)
        outputs = self.OutputWrapper(scores, ids, parents)
        return outputs, self.StateWrapper(after, scores, finished, lengths), self._input(ids), finished

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Variable) -> tuple[Any, Any]:
        """The tokens of the beams, from the steps'."""
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states

    @property
    def tracks_own_finished(self) -> bool:
        return True


def _reshaped(x: Variable, front: list[int], dims: int) -> Variable:
    """``x`` with dimensions ``front`` in place of the first ``dims``. The others may be known at run time; all but the
    last one if they depend on what is fed.
    """
    rest = x.shape[dims:]
    unknown = [d for d, extent in enumerate(rest) if extent < 0]
    if len(rest) > 1 and not has_declared_shape(x):
        unknown = sorted({*unknown, *range(len(rest) - 1)})
    if not unknown:
        return reshape(x, [*front, *rest])
    extents = shape(x)
    return reshape(x, [*front, *(extents[dims + d] if d in unknown else extent for d, extent in enumerate(rest))])


def _merged(x: Variable) -> Variable:
    """[N, beam_size, ...] → [N · beam_size, ...]."""
    return _reshaped(x, [-1], 2)


def dynamic_decode(
    decoder: Decoder,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> tuple[Any, ...]:
    """Calls ``decoder.step`` until all sequences are finished.

    Args:
        inits: for ``decoder.initialize``.
        max_step_num: the number of the last step, which are counted from 0, as in Fluid; None: there is no bound.
        output_time_major: outputs are [steps, N, ...] rather than [N, steps, ...].
        impute_finished: keep the states of finished sequences as they are.
        is_test: no gradient is wanted.
        return_length: give the lengths of the sequences, too.
        kwargs: for ``decoder.step``.

    Returns:
        The outputs of all steps, structured as those of ``decoder.step``, and the states after the last; with
        ``return_length``, the lengths, int64, structured as ``finished``.
    """
    if not isinstance(decoder, Decoder):
        raise errors.TypeMismatch(f"layers.dynamic_decode: decoder has to be a Decoder, got {type(decoder).__name__}")
    first_inputs, first_states, first_finished = decoder.initialize(inits)
    inputs = map_structure(assign, first_inputs)
    states = map_structure(assign, first_states)
    finished = assign(first_finished)
    time = fill_constant([1], "int64", 0)
    lengths = zeros_like(cast(finished, "int64"))
    last = None if max_step_num is None else fill_constant([1], "int64", max_step_num)
    going = _unfinished(finished)
    arrays: list[Variable] = []
    structure: Any = None
    loop = While(going, is_test)
    with loop.block():
        outputs, next_states, next_inputs, now_finished = decoder.step(time, inputs, states, **kwargs)
        structure = outputs
        if not decoder.tracks_own_finished:
            now_finished = logical_or(now_finished, finished)
            counted = lengths + cast(logical_not(finished), "int64")
            if impute_finished:
                kept = cast(finished, "float32")
                next_states = map_structure(lambda new, old: select_rows(kept, old, new), next_states, states)
        else:
            counted = getattr(next_states, "lengths", lengths)
        for output in flatten(outputs):
            arrays.append(_outer_array(output))
            array_write(output, time, arrays[-1])
        replace_all([states, inputs, lengths, finished], [next_states, next_inputs, counted, now_finished])
        increment(time)
        goes_on = _unfinished(finished)
        if last is not None:
            goes_on = control_flow.logical_and(goes_on, logical_not(less_than(last, time)))
        assign(goes_on, output=going)
    collected = [tensor_array_to_tensor(array, 0, use_stack=True)[0] for array in arrays]
    left = iter(collected)
    whole = map_structure(lambda _: next(left), structure)
    after: Any = states
    if type(decoder).finalize is not Decoder.finalize:
        whole, after = decoder.finalize(whole, after, lengths)
    if not output_time_major:
        whole = map_structure(swap_first, whole)
    return (whole, after, lengths) if return_length else (whole, after)


def _unfinished(finished: Variable) -> Variable:
    return reshape(logical_not(reduce_all(finished)), [1])


def _outer_array(like: Variable) -> Variable:
    """An array in the block around the one that is being described."""
    with LayerHelper("dynamic_decode").main_program._block_guard():
        return control_flow.create_array(like.dtype)
