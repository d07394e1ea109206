"""Cells of recurrent networks, and networks of them over padded sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace import errors
from headrace.fluid._checks import check_function
from headrace.fluid.core import VarType
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_number, check_variable
from headrace.fluid.layers.elementwise import elementwise_add, elementwise_mul
from headrace.fluid.layers.nn import matmul, scale
from headrace.fluid.layers.ops import sigmoid, tanh
from headrace.fluid.layers.rearrange import reverse, shape
from headrace.fluid.layers.sequence import sequence_mask
from headrace.fluid.layers.static_rnn import StaticRNN, has_declared_shape
from headrace.fluid.layers.structure import flatten, map_structure, pack
from headrace.fluid.layers.tensor import cast, concat, fill_constant_batch_size_like, split, transpose
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike

__all__ = ["GRUCell", "LSTMCell", "RNNCell", "rnn"]

Activation = Callable[[Variable], Variable]


def _is_shape(value: Any) -> bool:
    """Whether it is a shape, or no structure at all: a list of integers is one item."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, int) for item in value)
    return not isinstance(value, dict)


class RNNCell:
    """A step of a recurrent network: a subclass defines ``call`` and, unless states are given, ``state_shape``."""

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The outputs of a step and the states after it, which are structured as those before.

        Args:
            inputs, states: variables, or structures of them (lists, tuples, dicts), [N, ...] each.
            kwargs: further arguments of ``rnn`` or ``dynamic_decode``.
        """
        raise NotImplementedError(f"{type(self).__name__} has no call: a subclass of RNNCell defines it")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        """The shape of a state without its first dimension, or a structure of such shapes."""
        raise NotImplementedError(f"{type(self).__name__} has no state_shape: define it, or give the states")

    @property
    def state_dtype(self) -> Any:
        """The dtype of the states, or a structure of dtypes."""
        raise NotImplementedError(f"{type(self).__name__} has no state_dtype: float32")

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: Any = None,
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """States of ``init_value``, structured as ``shape``.

        Args:
            batch_ref: a variable, or a structure of which the first counts, whose dimension ``batch_dim_idx`` is N.
            shape: shapes of states, with or without a first -1; None: ``state_shape``.
            dtype: one for all, or a structure of dtypes; None: ``state_dtype``, or float32.
        """
        like = check_variable(next(iter(flatten(batch_ref)), None), "batch_ref", "RNNCell.get_initial_states")
        shapes = self.state_shape if shape is None else shape
        if dtype is None:
            try:
                dtype = self.state_dtype
            except NotImplementedError:
                dtype = "float32"
        count = len(flatten(shapes, _is_shape))
        dtypes = flatten(dtype)
        dtypes = dtypes * count if len(dtypes) == 1 else dtypes
        if len(dtypes) != count:
            raise errors.InvalidArgument(f"RNNCell needs one dtype for each state: got {len(dtypes)} for {count}")
        states = [
            fill_constant_batch_size_like(
                like, list(item) if item and item[0] == -1 else [-1, *item], of, init_value, batch_dim_idx
            )
            for item, of in zip(flatten(shapes, _is_shape), dtypes)
        ]
        return pack(shapes, states, _is_shape)


class _Unit:
    """Parameters that are made at the first use, and shared by all."""

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamAttrLike = None,
        bias_attr: ParamAttrLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: Any = "float32",
    ) -> None:
        if not isinstance(hidden_size, int) or hidden_size < 1:
            raise errors.InvalidArgument(f"{name_scope}: hidden_size has to be a positive number, got {hidden_size!r}")
        for what, function in (("gate_activation", gate_activation), ("activation", activation)):
            if function is not None:
                check_function(function, f"{type(self).__name__}: {what}")
        self._helper = LayerHelper(f"{name_scope}/{type(self).__name__}")
        self.hidden_size = hidden_size
        self._param_attr, self._bias_attr = param_attr, bias_attr
        self._gate = sigmoid if gate_activation is None else gate_activation
        self._activation = tanh if activation is None else activation
        self._dtype = dtype
        self._parameters: dict[str, tuple[Variable, Variable | None]] = {}

    def _affine(self, inputs: Sequence[Variable], width: int, suffix: str = "") -> Variable:
        """The inputs side by side · weight + bias."""
        joined = concat(list(inputs), 1)
        if suffix not in self._parameters:
            size = joined.shape[1]
            if size < 1:
                raise errors.InvalidArgument(
                    f"{self._helper.layer_type}: the width of the input has to be known, it has shape "
                    f"{list(inputs[0].shape)}"
                )
            weight = self._helper.create_weight(suffixed(self._param_attr, suffix), [size, width], self._dtype)
            bias = self._helper.create_parameter(suffixed(self._bias_attr, suffix), [width], self._dtype, is_bias=True)
            self._parameters[suffix] = (weight, bias)
        weight, bias = self._parameters[suffix]
        product = matmul(joined, weight)
        return product if bias is None else elementwise_add(product, bias)


def suffixed(attr: ParamAttrLike, suffix: str) -> ParamAttrLike:
    """``attr``, whose name, if it has one, ends in ``suffix``."""
    known = ParamAttr._to_attr(attr)
    return attr if not known or known.name is None or not suffix else known._named(known.name + suffix)


class BasicGRUUnit(_Unit):
    """One step of gated recurrent units, (input [N, D], state [N, hidden_size]) → state: u · before + (1 - u) · c, with
    the gates r, u = gate_activation([input, before] · W + b), and c = activation([input, r · before] · V + d).
    Parameters: ``param_attr``'s and ``bias_attr``'s names with "_gate" and "_candidate".
    """

    def __call__(self, input: Variable, pre_hidden: Variable) -> Variable:
        input = check_variable(input, "input", "BasicGRUUnit")
        pre_hidden = check_variable(pre_hidden, "pre_hidden", "BasicGRUUnit")
        gates = self._gate(self._affine([input, pre_hidden], 2 * self.hidden_size, "_gate"))
        reset, update = split(gates, 2, dim=1)
        candidate = self._activation(self._affine([input, reset * pre_hidden], self.hidden_size, "_candidate"))
        return update * pre_hidden + (1.0 - update) * candidate


class BasicLSTMUnit(_Unit):
    """One step of long short-term memory, (input [N, D], hidden and cell [N, hidden_size]) → (hidden, cell): of i, j,
    f, o = [input, hidden] · W + b, the cell is before · gate(f + forget_bias) + gate(i) · activation(j), and hidden is
    activation(cell) · gate(o).
    """

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamAttrLike = None,
        bias_attr: ParamAttrLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(name_scope, hidden_size, param_attr, bias_attr, gate_activation, activation, dtype)
        self._forget_bias = check_number(forget_bias, "forget_bias", "BasicLSTMUnit")

    def __call__(self, input: Variable, pre_hidden: Variable, pre_cell: Variable) -> tuple[Variable, Variable]:
        input = check_variable(input, "input", "BasicLSTMUnit")
        i, j, f, o = split(self._affine([input, pre_hidden], 4 * self.hidden_size), 4, dim=1)
        kept = pre_cell * self._gate(scale(f, bias=self._forget_bias))
        cell = kept + self._gate(i) * self._activation(j)
        return self._activation(cell) * self._gate(o), cell


class GRUCell(RNNCell):
    """Gated recurrent units (Cho et al., 2014): see BasicGRUUnit for the formula. The state is the output.

    Args:
        gate_activation, activation: layers; None: sigmoid, tanh.
        name: of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: ParamAttrLike = None,
        bias_attr: ParamAttrLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        dtype: Any = "float32",
        name: str = "GRUCell",
    ) -> None:
        self.hidden_size = hidden_size
        self.gru_unit = BasicGRUUnit(name, hidden_size, param_attr, bias_attr, gate_activation, activation, dtype)
        self._dtype = dtype

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Variable, Variable]:
        state = self.gru_unit(inputs, states)
        return state, state

    @property
    def state_shape(self) -> list[int]:
        return [self.hidden_size]

    @property
    def state_dtype(self) -> Any:
        return self._dtype


class LSTMCell(RNNCell):
    """Long short-term memory (Zaremba et al., 2014): see BasicLSTMUnit for the formula. The states are
    [hidden, cell], the output is hidden. Arguments as of GRUCell and BasicLSTMUnit.
    """

    def __init__(
        self,
        hidden_size: int,
        param_attr: ParamAttrLike = None,
        bias_attr: ParamAttrLike = None,
        gate_activation: Activation | None = None,
        activation: Activation | None = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
        name: str = "LSTMCell",
    ) -> None:
        self.hidden_size = hidden_size
        self.lstm_unit = BasicLSTMUnit(
            name, hidden_size, param_attr, bias_attr, gate_activation, activation, forget_bias, dtype
        )
        self._dtype = dtype

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Variable, list[Variable]]:
        if not isinstance(states, (list, tuple)) or len(states) != 2:
            raise errors.InvalidArgument("LSTMCell: the states have to be [hidden, cell]")
        hidden, cell = states
        hidden, cell = self.lstm_unit(inputs, hidden, cell)
        return hidden, [hidden, cell]

    @property
    def state_shape(self) -> list[list[int]]:
        return [[self.hidden_size], [self.hidden_size]]

    @property
    def state_dtype(self) -> Any:
        return self._dtype


def swap_first(x: Variable) -> Variable:
    """Its first two dimensions exchanged."""
    return transpose(x, [1, 0, *range(2, len(x.shape))])


def rnn(
    cell: RNNCell,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Variable | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Applies a cell to each step of padded sequences.

    Args:
        cell: ``(inputs, states, **kwargs)`` → ``(outputs, states)``, such as GRUCell or LSTMCell.
        inputs: [N, steps, ...], or a structure of such variables.
        initial_states: None: zeros, of ``cell.get_initial_states``.
        sequence_length: int32 or int64 [N]: the states of a sequence no longer change after this many steps; its
            outputs are computed all the same. None: all sequences have all steps.
        time_major: inputs and outputs are [steps, N, ...].
        is_reverse: from the last step to the first.

    Returns:
        The outputs, structured as those of the cell, [N, steps, ...] each, and the states after the last step.
    """
    if not callable(cell):
        raise errors.TypeMismatch(f"layers.rnn: cell has to be an RNNCell, got {type(cell).__name__}")
    for item in flatten(inputs):
        item = check_variable(item, "inputs", "rnn")
    if initial_states is None:
        initial_states = cell.get_initial_states(batch_ref=inputs, batch_dim_idx=1 if time_major else 0)
    steps = inputs if time_major else map_structure(swap_first, inputs)
    mask = None
    if sequence_length is not None:
        sequence_length = check_variable(sequence_length, "sequence_length", "rnn")
        longest = number_of_steps(flatten(steps)[0])
        mask = transpose(sequence_mask(sequence_length, longest, flatten(initial_states)[0].dtype), [1, 0])
    if is_reverse:
        steps = map_structure(lambda x: reverse(x, [0]), steps)
        mask = mask if mask is None else reverse(mask, [0])
    network = StaticRNN()
    with network.step():
        now = map_structure(network.step_input, steps)
        states = map_structure(lambda init: network.memory(init=init), initial_states)
        outputs, after = cell(now, states, **kwargs)
        if mask is not None:
            step_mask = network.step_input(mask)
            after = map_structure(lambda new, old: select_rows(step_mask, new, old), after, states)
        map_structure(network.update_memory, states, after)
        for item in [*flatten(outputs), *flatten(after)]:
            network.step_output(item)
    results = network()
    collected = list(results) if isinstance(results, list) else [results]
    count = len(flatten(outputs))
    whole = pack(outputs, collected[:count])
    if is_reverse:
        whole = map_structure(lambda x: reverse(x, [0]), whole)
    if not time_major:
        whole = map_structure(swap_first, whole)
    return whole, pack(after, [item[-1] for item in collected[count:]])


def number_of_steps(x: Variable, axis: int = 0) -> int | Variable:
    """How many steps there are along ``axis``: a number if the program knows it, whatever is fed."""
    return x.shape[axis] if x.shape[axis] > 0 and has_declared_shape(x) else shape(x)[axis]


def select_rows(mask: Variable, ones: Variable, zeros: Variable) -> Variable:
    """``ones`` in the rows where the mask, of whatever dtype, is 1, ``zeros`` in those where it is 0."""
    if ones.dtype == VarType.BOOL:
        return cast(select_rows(mask, cast(ones, "int32"), cast(zeros, "int32")), "bool")
    mask = mask if mask.dtype == ones.dtype else cast(mask, ones.dtype)
    kept = elementwise_mul(zeros, 1.0 - mask, axis=0)
    return elementwise_mul(ones, mask, axis=0) + kept
