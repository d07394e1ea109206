"""Recurrent networks of several layers and both directions over padded sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import check_variable
from headrace.fluid.layers import concat, dropout, reshape, sequence_mask, stack, transpose
from headrace.fluid.layers.rnn_cells import (
    BasicGRUUnit,
    BasicLSTMUnit,
    RNNCell,
    number_of_steps,
    rnn,
    select_rows,
    suffixed,
)
from headrace.fluid.param_attr import ParamAttrLike

__all__ = ["BasicGRUUnit", "BasicLSTMUnit", "basic_gru", "basic_lstm"]

Activation = Callable[[Variable], Variable]


class _Cell(RNNCell):
    """A unit as a cell whose states are a list of variables [N, hidden_size], of which the first is the output.

    If its inputs are a list of what the unit reads and a mask [N], the states change only where the mask is 1: unlike
    those of ``layers.rnn``, the outputs then repeat the last state, as in Fluid.
    """

    def __init__(self, unit: Any, states: int) -> None:
        self._unit, self._states = unit, states

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Variable, list[Variable]]:
        inputs, mask = inputs if isinstance(inputs, list) else (inputs, None)
        after = self._unit(inputs, *states)
        after = list(after) if isinstance(after, tuple) else [after]
        if mask is not None:
            after = [select_rows(mask, new, old) for new, old in zip(after, states)]
        return after[0], after

    @property
    def state_shape(self) -> list[list[int]]:
        return [[self._unit.hidden_size]] * self._states


def _network(
    input: Variable,
    initial: list[Variable | None],
    make: Callable[[str, ParamAttrLike, ParamAttrLike], Any],
    hidden_size: int,
    num_layers: int,
    sequence_length: Variable | None,
    dropout_prob: float | None,
    bidirectional: bool,
    batch_first: bool,
    param_attr: ParamAttrLike,
    bias_attr: ParamAttrLike,
    name: str,
    dropout_implementation: str,
) -> tuple[Variable, list[Variable]]:
    """The outputs, and for each state [layers · directions, N, hidden_size] after the last step."""
    check_variable(input, "input", name)
    if not isinstance(num_layers, int) or num_layers < 1:
        raise errors.InvalidArgument(f"{name}: num_layers has to be a positive number, got {num_layers!r}")
    directions = 2 if bidirectional else 1
    rows = num_layers * directions
    given = [
        None if state is None else reshape(check_variable(state, "initial state", name), [rows, -1, hidden_size])
        for state in initial
    ]
    mask = None
    if sequence_length is not None:
        sequence_length = check_variable(sequence_length, "sequence_length", name)
        mask = sequence_mask(sequence_length, number_of_steps(input, 1 if batch_first else 0), input.dtype)
        mask = mask if batch_first else transpose(mask, [1, 0])
    outputs = []
    finals: dict[tuple[int, int], list[Variable]] = {}
    for direction in range(directions):
        label, short = ("_reverse_layers_", "bw") if direction else ("_layers_", "fw")
        now = input
        for layer in range(num_layers):
            weights, biases = ("", "") if rows == 1 else (f"_{short}_w_{layer}", f"_{short}_b_{layer}")
            unit = make(f"{name}{label}{layer}", suffixed(param_attr, weights), suffixed(bias_attr, biases))
            cell = _Cell(unit, len(initial))
            place = layer * directions + direction
            states = [state[place] for state in given if state is not None]
            now, finals[layer, direction] = rnn(
                cell,
                now if mask is None else [now, mask],
                states if len(states) == len(initial) else None,
                time_major=not batch_first,
                is_reverse=direction == 1,
            )
            if dropout_prob:
                now = dropout(now, dropout_prob, dropout_implementation=dropout_implementation)
        outputs.append(now)
    order = [finals[layer, direction] for layer in range(num_layers) for direction in range(directions)]
    last = [stack([states[k] for states in order], 0) for k in range(len(initial))]
    return outputs[0] if len(outputs) == 1 else concat(outputs, 2), last


def basic_gru(
    input: Variable,
    init_hidden: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    dtype: Any = "float32",
    name: str = "basic_gru",
) -> tuple[Variable, Variable]:
    """Gated recurrent units (see BasicGRUUnit) in layers, each over the outputs of the one below; with
    ``bidirectional``, a second stack of layers reads from the end.

    Args:
        input: [N, steps, D], or without ``batch_first`` [steps, N, D].
        init_hidden: [layers · directions, N, hidden_size], the directions of a layer side by side; None: zeros.
        sequence_length: int32 or int64 [N], how many steps each sequence has; None: all. Neither states nor outputs
            change in the steps after.
        dropout_prob: of the outputs of a layer.
        param_attr, bias_attr: of all parameters. If they have a name, theirs are that name and what BasicGRUUnit adds;
            if there are several layers or directions, in between, "_fw_w_0", for example.

    Returns:
        The outputs of the last layer, [N, steps, hidden_size · directions] or [steps, N, …], and the states after the
        last step, [layers · directions, N, hidden_size].
    """

    def make(scope: str, weights: ParamAttrLike, bias: ParamAttrLike) -> BasicGRUUnit:
        return BasicGRUUnit(scope, hidden_size, weights, bias, gate_activation, activation, dtype)

    outputs, (hidden,) = _network(
        input,
        [init_hidden],
        make,
        hidden_size,
        num_layers,
        sequence_length,
        dropout_prob,
        bidirectional,
        batch_first,
        param_attr,
        bias_attr,
        name,
        "downgrade_in_infer",
    )
    return outputs, hidden


def basic_lstm(
    input: Variable,
    init_hidden: Variable | None,
    init_cell: Variable | None,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Variable | None = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    gate_activation: Activation | None = None,
    activation: Activation | None = None,
    forget_bias: float = 1.0,
    dtype: Any = "float32",
    name: str = "basic_lstm",
) -> tuple[Variable, Variable, Variable]:
    """Long short-term memory (see BasicLSTMUnit) in layers. Arguments as of basic_gru; ``init_hidden`` and
    ``init_cell`` are given together.

    Returns:
        The outputs of the last layer, and hidden and cell after the last step.
    """
    if (init_hidden is None) != (init_cell is None):
        raise errors.InvalidArgument("basic_lstm: init_hidden and init_cell must be given together")

    def make(scope: str, weights: ParamAttrLike, bias: ParamAttrLike) -> BasicLSTMUnit:
        return BasicLSTMUnit(scope, hidden_size, weights, bias, gate_activation, activation, forget_bias, dtype)

    outputs, (hidden, cell) = _network(
        input,
        [init_hidden, init_cell],
        make,
        hidden_size,
        num_layers,
        sequence_length,
        dropout_prob,
        bidirectional,
        batch_first,
        param_attr,
        bias_attr,
        name,
        "upscale_in_train",
    )
    return outputs, hidden, cell
