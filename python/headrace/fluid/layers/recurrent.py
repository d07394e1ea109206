"""LSTM and GRU layers over whole sequences, and single steps of them: each is one operator.

Networks of steps of one's own are in ``static_rnn``, ``dynamic_rnn`` and ``rnn_cells``.
"""

from __future__ import annotations

from typing import Any

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_number, check_variable
from headrace.fluid.layers.nn import fc
from headrace.fluid.layers.tensor import concat
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike

__all__ = ["dynamic_gru", "dynamic_lstm", "dynamic_lstmp", "gru_unit", "lstm_unit"]

#: Names of activations → their numbers in gru_unit's attributes.
_ACTIVATIONS = {"identity": 0, "sigmoid": 1, "tanh": 2, "relu": 3}


def _parts(layer: str, size: int, parts: int) -> int:
    if check_number(size, "size", layer) <= 0 or size % parts != 0:
        raise errors.InvalidArgument(f"layers.{layer}: size must be {parts} times the width of the state, got {size}")
    return size // parts


def _append_lstm(
    helper: LayerHelper,
    layer: str,
    inputs: dict[str, Variable],
    attrs: dict[str, Any],
    width: int,
    bias_attr: ParamAttrLike,
    h_0: Variable | None,
    c_0: Variable | None,
    result: str,
    intermediates: tuple[str, ...],
) -> tuple[Variable, Variable]:
    """Appends the operator of ``helper`` with bias and initial states; returns its slot ``result`` and its states."""
    dtype = inputs["Input"].dtype
    bias = helper.create_parameter(bias_attr, [1, (7 if attrs["use_peepholes"] else 4) * width], dtype, is_bias=True)
    if bias is None:
        raise errors.InvalidArgument(f"layers.{layer}: bias_attr=False is not supported; the layer needs a bias")
    inputs["Bias"] = bias
    if (h_0 is None) != (c_0 is None):
        raise errors.InvalidArgument(f"layers.{layer}: h_0 and c_0 must be given together")
    if h_0 is not None and c_0 is not None:
        inputs |= {"H0": check_variable(h_0, "h_0", layer), "C0": check_variable(c_0, "c_0", layer)}
    outputs = {slot: helper.create_variable(dtype) for slot in (result, "Cell", *intermediates)}
    helper.append_op(inputs, outputs, attrs)
    return outputs[result], outputs["Cell"]


def dynamic_lstm(
    input: Variable,
    size: int,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: str = "float32",
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Long short-term memory over sequences (Hochreiter and Schmidhuber, 1997).

    Args:
        input: [rows, size] with LoD: the input's contribution to candidate, input, forget and output gate, from an
            ``fc``.
        size: four times the width D of the state.
        h_0: the first output of each sequence, [number of sequences, D]; None: zeros.
        c_0: the first state, to be given with ``h_0``.
        use_peepholes: let the gates see the state.
        is_reverse: read sequences from their end.
        gate_activation, cell_activation, candidate_activation: "sigmoid", "tanh", "relu" or "identity".
        dtype: Fluid's; the result has that of ``input``.

    Returns:
        (outputs, states), [rows, D] each, with the LoD of ``input``.
    """
    helper = LayerHelper("lstm", name)
    width = _parts("dynamic_lstm", size, 4)
    input = check_variable(input, "input", "dynamic_lstm")
    inputs = {"Input": input, "Weight": helper.create_weight(param_attr, [width, 4 * width], input.dtype)}
    attrs = {
        "use_peepholes": use_peepholes,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
    }
    slots = ("BatchGate", "BatchCellPreAct")
    return _append_lstm(helper, "dynamic_lstm", inputs, attrs, width, bias_attr, h_0, c_0, "Hidden", slots)


def dynamic_lstmp(
    input: Variable,
    size: int,
    proj_size: int,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: str = "float32",
    name: str | None = None,
    h_0: Variable | None = None,
    c_0: Variable | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Variable, Variable]:
    """Long short-term memory over sequences whose output is projected to ``proj_size`` dimensions (Sak et al., 2014).

    Args:
        input: [rows, size] with LoD: the input's contribution to candidate, input, forget and output gate, from an
            ``fc``.
        size: four times the width D of the state.
        param_attr: of both weights: that of the step, [proj_size, size], and that of the projection, [D, proj_size]. If
            it has a name, theirs are that name with ".w" and ".proj".
        use_peepholes: let the gates see the state.
        is_reverse: read sequences from their end.
        gate_activation, cell_activation, candidate_activation, proj_activation: "sigmoid", "tanh", "relu" or
            "identity".
        dtype: Fluid's; the result has that of ``input``.
        h_0: the first projection of each sequence, [number of sequences, proj_size]; None: zeros.
        c_0: the first state, [number of sequences, D], to be given with ``h_0``.
        cell_clip, proj_clip: the largest absolute values of state and projection; None: no bound.

    Returns:
        (projections, [rows, proj_size]; states, [rows, D]), with the LoD of ``input``.
    """
    helper = LayerHelper("lstmp", name)
    width = _parts("dynamic_lstmp", size, 4)
    input = check_variable(input, "input", "dynamic_lstmp")
    attr = ParamAttr._to_attr(param_attr)
    attrs_of = [attr, attr]
    if attr and attr.name is not None:
        attrs_of = [attr._named(attr.name + suffix) for suffix in (".w", ".proj")]
    inputs = {
        "Input": input,
        "Weight": helper.create_weight(attrs_of[0], [proj_size, 4 * width], input.dtype),
        "ProjWeight": helper.create_weight(attrs_of[1], [width, proj_size], input.dtype),
    }
    attrs = {
        "use_peepholes": use_peepholes,
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "cell_activation": cell_activation,
        "candidate_activation": candidate_activation,
        "proj_activation": proj_activation,
        "cell_clip": 0.0 if cell_clip is None else check_number(cell_clip, "cell_clip", "dynamic_lstmp"),
        "proj_clip": 0.0 if proj_clip is None else check_number(proj_clip, "proj_clip", "dynamic_lstmp"),
    }
    slots = ("BatchGate", "BatchCellPreAct", "BatchHidden")
    return _append_lstm(helper, "dynamic_lstmp", inputs, attrs, width, bias_attr, h_0, c_0, "Projection", slots)


def dynamic_gru(
    input: Variable,
    size: int,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Variable | None = None,
    origin_mode: bool = False,
) -> Variable:
    """Gated recurrent units over sequences (Cho et al., 2014).

    Args:
        input: [rows, 3 · size] with LoD: the input's contribution to update gate, reset gate and candidate, from an
            ``fc``.
        size: the width of the state.
        bias_attr: False: no bias.
        is_reverse: read sequences from their end.
        gate_activation, candidate_activation: "sigmoid", "tanh", "relu" or "identity".
        h_0: the first state of each sequence, [number of sequences, size]; None: zeros.
        origin_mode: let the update gate say how much of the state stays, as in the paper, instead of how much goes.

    Returns:
        The states, [rows, size], with the LoD of ``input``.
    """
    helper = LayerHelper("gru")
    _parts("dynamic_gru", size, 1)
    input = check_variable(input, "input", "dynamic_gru")
    inputs = {
        "Input": input,
        "H0": h_0 if h_0 is None else check_variable(h_0, "h_0", "dynamic_gru"),
        "Weight": helper.create_weight(param_attr, [size, 3 * size], input.dtype),
        "Bias": helper.create_parameter(bias_attr, [1, 3 * size], input.dtype, is_bias=True),
    }
    slots = ("Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden")
    outputs = {slot: helper.create_variable(input.dtype) for slot in slots}
    attrs = {
        "is_reverse": is_reverse,
        "gate_activation": gate_activation,
        "activation": candidate_activation,
        "origin_mode": origin_mode,
    }
    helper.append_op(inputs, outputs, attrs)
    return outputs["Hidden"]


def gru_unit(
    input: Variable,
    hidden: Variable,
    size: int,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Variable, Variable, Variable]:
    """One step of dynamic_gru, from the state ``hidden``, [rows, D].

    Args:
        input: [rows, size].
        size: three times the width D of the state.

    Returns:
        (state, the part of ``hidden`` that the reset gate lets through, gates and candidate).
    """
    for what, value in (("activation", activation), ("gate_activation", gate_activation)):
        if value not in _ACTIVATIONS:
            raise errors.InvalidArgument(f"layers.gru_unit: {what} must be one of {list(_ACTIVATIONS)}, got {value!r}")
    helper = LayerHelper("gru_unit")
    width = _parts("gru_unit", size, 3)
    inputs = {
        "Input": check_variable(input, "input", "gru_unit"),
        "HiddenPrev": check_variable(hidden, "hidden", "gru_unit"),
        "Weight": helper.create_weight(param_attr, [width, 3 * width], input.dtype),
        "Bias": helper.create_parameter(bias_attr, [1, 3 * width], input.dtype, is_bias=True),
    }
    gate, reset = (helper.create_variable(input.dtype, stop_gradient=True) for _ in range(2))
    state = helper.create_variable(input.dtype)
    attrs = {
        "activation": _ACTIVATIONS[activation],
        "gate_activation": _ACTIVATIONS[gate_activation],
        "origin_mode": origin_mode,
    }
    helper.append_op(inputs, {"Hidden": state, "ResetHiddenPrev": reset, "Gate": gate}, attrs)
    return state, reset, gate


def lstm_unit(
    x_t: Variable,
    hidden_t_prev: Variable,
    cell_t_prev: Variable,
    forget_bias: float = 0.0,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """One step of an LSTM: an ``fc`` of input [rows, ...] and output before [rows, D], then the gates.

    Returns:
        (output, state), [rows, D] each.
    """
    cell_t_prev = check_variable(cell_t_prev, "cell_t_prev", "lstm_unit")
    width = cell_t_prev.shape[-1] if cell_t_prev.shape else -1
    if width <= 0:
        raise errors.InvalidArgument(
            f"layers.lstm_unit: '{cell_t_prev.name}' must be [rows, D] with a known D, got {list(cell_t_prev.shape)}"
        )
    both = concat(
        [check_variable(x_t, "x_t", "lstm_unit"), check_variable(hidden_t_prev, "hidden_t_prev", "lstm_unit")], axis=1
    )
    sums = fc(both, 4 * width, param_attr=param_attr, bias_attr=bias_attr)
    helper = LayerHelper("lstm_unit", name)
    cell, hidden = helper.create_variable(x_t.dtype), helper.create_variable(x_t.dtype)
    helper.append_op(
        {"X": sums, "C_prev": cell_t_prev},
        {"C": cell, "H": hidden},
        {"forget_bias": check_number(forget_bias, "forget_bias", "lstm_unit")},
    )
    return hidden, cell
