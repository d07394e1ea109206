"""Layers over sequences of variable length: variables with a LoD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import (
    LayerHelper,
    append_layer,
    as_integers,
    check_integer,
    check_number,
    check_shape,
    check_variable,
    check_variables,
)
from headrace.fluid.layers.nn import topk
from headrace.fluid.layers.tensor import squeeze
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike

__all__ = [
    "beam_search",
    "beam_search_decode",
    "conv_shift",
    "crf_decoding",
    "ctc_greedy_decoder",
    "filter_by_instag",
    "linear_chain_crf",
    "lod_append",
    "lod_reset",
    "row_conv",
    "sequence_concat",
    "sequence_conv",
    "sequence_enumerate",
    "sequence_erase",
    "sequence_expand",
    "sequence_expand_as",
    "sequence_first_step",
    "sequence_last_step",
    "sequence_mask",
    "sequence_pad",
    "sequence_pool",
    "sequence_reshape",
    "sequence_reverse",
    "sequence_scatter",
    "sequence_slice",
    "sequence_softmax",
    "sequence_unpad",
]


def sequence_pool(input: Variable, pool_type: str, is_test: bool = False, pad_value: float = 0.0) -> Variable:
    """One row for each sequence of the deepest level, which goes.

    Args:
        input: [rows, ...] with a LoD.
        pool_type: "sum", "average", "sqrt" (the sum over the root of the length), "max", "first" or "last".
        is_test: Fluid's; it makes no difference.
        pad_value: the result for a sequence without rows.
    """
    if not isinstance(pool_type, str):
        raise errors.TypeMismatch(f"layers.sequence_pool: pool_type has to be a string, got {pool_type!r}")
    helper = LayerHelper("sequence_pool")
    out = helper.create_variable(check_variable(input, "input", "sequence_pool").dtype)
    outputs = {"Out": out}
    if pool_type.upper() == "MAX":  # the others write no index, so that their gradients must not ask for one
        outputs["MaxIndex"] = helper.create_variable("int32", stop_gradient=True)
    helper.append_op(
        {"X": input},
        outputs,
        {"pooltype": pool_type.upper(), "pad_value": check_number(pad_value, "pad_value", "sequence_pool")},
    )
    return out


def sequence_first_step(input: Variable) -> Variable:
    """The first row of each sequence."""
    return sequence_pool(input, "first")


def sequence_last_step(input: Variable) -> Variable:
    """The last row of each sequence."""
    return sequence_pool(input, "last")


def sequence_softmax(input: Variable, use_cudnn: bool = False, name: str | None = None) -> Variable:
    """softmax within each sequence of [rows, 1]. ``use_cudnn`` makes no difference."""
    helper = LayerHelper("sequence_softmax", name)
    out = helper.create_variable(check_variable(input, "input", "sequence_softmax").dtype)
    helper.append_op({"X": input}, {"Out": out})
    return out


def sequence_expand(x: Variable, y: Variable, ref_level: int = -1, name: str | None = None) -> Variable:
    """Each sequence of ``x`` as often as the sequence at its place in level ``ref_level`` of ``y`` is long; -1: the
    deepest level. Without a LoD, each row of ``x`` is a sequence.
    """
    return append_layer("sequence_expand", {"X": x, "Y": y}, {"ref_level": ref_level}, name)


def sequence_expand_as(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Each row of ``x`` as often as the sequence of ``y`` at its place is long."""
    return append_layer("sequence_expand_as", {"X": x, "Y": y}, name=name)


def sequence_reverse(x: Variable, name: str | None = None) -> Variable:
    """The rows of each sequence in the reverse order."""
    return append_layer("sequence_reverse", {"X": x}, name=name, out_slot="Y", exact_name=True)


def sequence_slice(input: Variable, offset: Variable, length: Variable, name: str | None = None) -> Variable:
    """A part of each sequence: ``length`` rows from ``offset`` on; both int64 [number of sequences, 1]."""
    return append_layer("sequence_slice", {"X": input, "Offset": offset, "Length": length}, name=name)


def sequence_pad(
    x: Variable, pad_value: Variable, maxlen: int | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """Sequences of one length, [N, length, ...], and their former lengths, int64 [N]. (Before 1.6, Fluid gave the
    lengths the shape [N, 1].)

    Args:
        pad_value: the padding, of the dtype of ``x``: a single element, or a row of the shape of those of ``x``.
        maxlen: the length; None: that of the longest sequence.
    """
    helper = LayerHelper("sequence_pad", name)
    out = helper.create_variable(check_variable(x, "x", "sequence_pad").dtype)
    length = helper.create_variable("int64", stop_gradient=True)
    inputs = {"X": x, "PadValue": check_variable(pad_value, "pad_value", "sequence_pad")}
    helper.append_op(inputs, {"Out": out, "Length": length}, {"padded_length": -1 if maxlen is None else maxlen})
    return out, length


def sequence_unpad(x: Variable, length: Variable, name: str | None = None) -> Variable:
    """The rows of padded sequences, [number of sequences, longest, ...], without the padding; with a LoD."""
    length = as_integers(check_variable(length, "length", "sequence_unpad"))
    return append_layer("sequence_unpad", {"X": x, "Length": length}, name=name)


def sequence_concat(input: Sequence[Variable], name: str | None = None) -> Variable:
    """Sequence s of the result is sequence s of each variable, one behind the other."""
    items = check_variables(input, "input", "sequence_concat")
    if not items:
        raise errors.InvalidArgument("layers.sequence_concat: there is nothing to put together")
    helper = LayerHelper("sequence_concat", name)
    out = helper.create_variable(items[0].dtype)
    helper.append_op({"X": items}, {"Out": out})
    return out


def sequence_mask(
    x: Variable, maxlen: int | Variable | None = None, dtype: Any = "int64", name: str | None = None
) -> Variable:
    """A row of ones and zeros for each length in ``x`` (int32 or int64): that many ones first.

    Args:
        maxlen: how long the rows are, a number or an int32 or int64 variable of one element; None: the greatest length.

    Returns:
        [..., maxlen], of ``dtype``.
    """
    helper = LayerHelper("sequence_mask", name)
    out = helper.create_variable(dtype, stop_gradient=True)
    inputs = {"X": as_integers(check_variable(x, "x", "sequence_mask"))}
    attrs = {"out_dtype": int(core.convert_dtype(dtype))}
    if isinstance(maxlen, Variable):
        inputs["MaxLenTensor"] = as_integers(maxlen)
    elif maxlen is not None:
        attrs["maxlen"] = maxlen
    helper.append_op(inputs, {"Y": out}, attrs)
    return out


def sequence_enumerate(input: Variable, win_size: int, pad_value: int = 0, name: str | None = None) -> Variable:
    """Each element of a sequence, int32 or int64 [rows, 1], with those behind it, [rows, win_size]; ``pad_value`` is
    put where there are none.
    """
    helper = LayerHelper("sequence_enumerate", name)
    out = helper.create_variable(check_variable(input, "input", "sequence_enumerate").dtype, stop_gradient=True)
    helper.append_op({"X": input}, {"Out": out}, {"win_size": win_size, "pad_value": pad_value})
    return out


def sequence_erase(input: Variable, tokens: Sequence[int], name: str | None = None) -> Variable:
    """The elements of each sequence, int32 or int64 [rows, 1], that are none of ``tokens``."""
    helper = LayerHelper("sequence_erase", name)
    out = helper.create_variable(check_variable(input, "input", "sequence_erase").dtype, stop_gradient=True)
    helper.append_op({"X": input}, {"Out": out}, {"tokens": check_shape(tokens, "tokens", "sequence_erase")})
    return out


def sequence_reshape(input: Variable, new_dim: int) -> Variable:
    """The elements of each sequence of [rows, D] in rows of ``new_dim`` elements, which they must fill."""
    return append_layer("sequence_reshape", {"X": input}, {"new_dim": new_dim})


def sequence_scatter(input: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """``input``, [number of sequences, D], with the elements of sequence i of ``updates`` added to row i, in the
    columns ``index``; both [rows, 1] with the same LoD.
    """
    return append_layer("sequence_scatter", {"X": input, "Ids": index, "Updates": updates}, name=name)


def row_conv(
    input: Variable, future_context_size: int, param_attr: ParamAttrLike = None, act: str | None = None
) -> Variable:
    """Each row of a sequence with ``future_context_size`` rows behind it, weighted column by column (Amodei et al.,
    2015).

    Args:
        input: [rows, D] with LoD, or [sequences, rows of each, D] without.
    """
    input = check_variable(input, "input", "row_conv")
    width = input.shape[-1] if len(input.shape) in (2, 3) else -1
    if width <= 0:
        raise errors.InvalidArgument(
            f"layers.row_conv: '{input.name}' must be [rows, D] or [sequences, rows, D] with a known D, "
            f"got {list(input.shape)}"
        )
    helper = LayerHelper("row_conv")
    filters = helper.create_weight(
        param_attr, [check_integer(future_context_size, "future_context_size", "row_conv") + 1, width], input.dtype
    )
    out = helper.create_variable(input.dtype)
    helper.append_op({"X": input, "Filter": filters}, {"Out": out})
    return helper.append_activation(out, act)


def conv_shift(x: Variable, y: Variable, name: str | None = None) -> Variable:
    """Each row of ``x``, [N, D], weighted by the row of ``y``, [N, odd number up to D], around each element, as if its
    ends met: how a neural Turing machine shifts its attention (Graves et al., 2014).
    """
    return append_layer("conv_shift", {"X": x, "Y": y}, name=name)


def ctc_greedy_decoder(
    input: Variable,
    blank: int,
    input_length: Variable | None = None,
    padding_value: int = 0,
    name: str | None = None,
) -> Any:
    """The labels that connectionist temporal classification reads from sequences: of each row the most probable one,
    without repetitions, then without blanks.

    Args:
        input: [rows, classes + 1] with LoD, or [N, rows, classes + 1] with ``input_length``: a probability for each
            label and for ``blank``.
        blank: the label that stands for no output.
        input_length: int64 [N, 1]: how many rows each sequence has; the others are padding.
        padding_value: with ``input_length``, the value after the labels of a sequence.

    Returns:
        int64 [rows that stay, 1] with LoD; if none stays in the whole batch, [[-1]], as in Fluid: a row that belongs to
        no sequence, because by the LoD all of them are empty. With ``input_length``: (labels, int64 [N, rows]; how many
        of them each sequence has, int64 [N, 1]).
    """
    _, labels = topk(input, k=1)
    helper = LayerHelper("ctc_align", name)
    inputs = {"Input": labels}
    outputs = {"Output": helper.create_variable("int64", stop_gradient=True)}
    attrs = {"merge_repeated": True, "blank": blank}
    if input_length is None:
        helper.append_op(inputs, outputs, attrs)
        return outputs["Output"]
    inputs["Input"] = squeeze(labels, [2])
    inputs["InputLength"] = check_variable(input_length, "input_length", "ctc_greedy_decoder")
    outputs["OutputLength"] = helper.create_variable("int64", stop_gradient=True)
    helper.append_op(inputs, outputs, {**attrs, "padding_value": padding_value})
    return outputs["Output"], outputs["OutputLength"]


def filter_by_instag(ins: Variable, ins_tag: Variable, filter_tag: Variable, is_lod: bool) -> list[Variable]:
    """The sequences that have one of some tags; if none has, a row of zeros.

    Args:
        ins: [rows, D], with a LoD if ``is_lod``.
        ins_tag: int64 [tags, 1] with a LoD: the tags of each sequence of ``ins``.
        filter_tag: int64: the tags to look for.
        is_lod: whether the LoD of ``ins`` says what a sequence is; if not, each row is one.

    Returns:
        The rows of these sequences, with their LoD; and a weight for each, float32 [sequences, 1]: 1, or 0 for the row
        of zeros, whose loss it takes out.
    """
    helper = LayerHelper("filter_by_instag")
    out = helper.create_variable(check_variable(ins, "ins", "filter_by_instag").dtype)
    weight, places = helper.create_variable("float32"), helper.create_variable("int64", stop_gradient=True)
    inputs = {
        "Ins": ins,
        "Ins_tag": check_variable(ins_tag, "ins_tag", "filter_by_instag"),
        "Filter_tag": check_variable(filter_tag, "filter_tag", "filter_by_instag"),
    }
    helper.append_op(inputs, {"Out": out, "LossWeight": weight, "IndexMap": places}, {"is_lod": bool(is_lod)})
    return [out, weight]


def lod_reset(x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None) -> Variable:
    """The rows of ``x`` in other sequences: those of ``y``, or, if it has no LoD, those whose offsets it holds (int32);
    without it, those of the offsets ``target_lod``.
    """
    inputs = {"X": check_variable(x, "x", "lod_reset")}
    if y is not None:
        inputs["Y"] = check_variable(y, "y", "lod_reset")
    elif target_lod is None:
        raise errors.InvalidArgument("layers.lod_reset: y or target_lod is needed")
    helper = LayerHelper("lod_reset")
    out = helper.create_variable(x.dtype)
    helper.append_op(
        inputs,
        {"Out": out},
        {"target_lod": [] if target_lod is None else check_shape(target_lod, "target_lod", "lod_reset")},
    )
    return out


def lod_append(x: Variable, level: Variable | Sequence[int]) -> Variable:
    """The rows of ``x`` in sequences of one more level, below those that it has: their offsets are ``level``, a list or
    an int32 variable. A variable that has a LoD takes the place of all levels.
    """
    helper = LayerHelper("lod_append")
    inputs = {"X": check_variable(x, "x", "lod_append")}
    attrs: dict[str, Any] = {"append": True}
    if isinstance(level, Variable):
        inputs["Y"] = level
    else:
        attrs["target_lod"] = check_shape(level, "level", "lod_append")
    out = helper.create_variable(x.dtype)
    helper.append_op(inputs, {"Out": out}, attrs, type="lod_reset")
    return out


def sequence_conv(
    input: Variable,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: ParamAttrLike = None,
    param_attr: ParamAttrLike = None,
    act: str | None = None,
    name: str | None = None,
) -> Variable:
    """A convolution along sequences [rows, D]: ``filter_size`` rows around each row, times filters, plus a bias. Zeros
    stand for rows outside of a sequence.

    Args:
        filter_stride: 1.
        padding: Fluid's; has no effect.
        padding_start: where the rows begin, from the row that they are around; None: half of ``filter_size`` before it.
    """
    input = check_variable(input, "input", "sequence_conv")
    width = input.shape[1] if len(input.shape) == 2 else -1
    if width <= 0:
        raise errors.InvalidArgument(
            f"layers.sequence_conv: '{input.name}' must be [rows, D] with a known D, got {list(input.shape)}"
        )
    filter_size = check_integer(filter_size, "filter_size", "sequence_conv")
    helper = LayerHelper("sequence_conv", name)
    filters = helper.create_weight(param_attr, [filter_size * width, num_filters], input.dtype)
    out = helper.create_variable(input.dtype)
    start = -(filter_size // 2) if padding_start is None else padding_start
    attrs = {"contextLength": filter_size, "contextStart": start, "contextStride": filter_stride}
    helper.append_op({"X": input, "Filter": filters}, {"Out": out}, attrs)
    return helper.append_activation(helper.append_bias(out, bias_attr), act)


def linear_chain_crf(
    input: Variable, label: Variable, param_attr: ParamAttrLike = None, length: Variable | None = None
) -> Variable:
    """The cost of a conditional random field over sequences: -log of the probability of their labels.

    Args:
        input: [rows, K] with LoD, or [N, rows, K] with ``length``: the weight of each of K labels, from an ``fc``.
        label: int64 [rows, 1], or [N, rows] or [N, rows, 1] with ``length``.
        param_attr: of the weights of neighbours, [K + 2, K]; crf_decoding takes the same.
        length: int64 [N] or [N, 1]: how many rows each sequence has; the others are padding.

    Returns:
        [number of sequences, 1].
    """
    input = check_variable(input, "input", "linear_chain_crf")
    count = input.shape[-1] if input.shape else -1
    if count <= 0:
        raise errors.InvalidArgument(
            f"layers.linear_chain_crf: '{input.name}' must be [rows, K] with a known K, or [N, rows, K] with length, "
            f"got {list(input.shape)}"
        )
    helper = LayerHelper("linear_chain_crf")
    transition = helper.create_weight(param_attr, [count + 2, count], input.dtype)
    slots = ("Alpha", "EmissionExps", "TransitionExps")
    outputs = {slot: helper.create_variable(input.dtype, stop_gradient=True) for slot in slots}
    cost = helper.create_variable(input.dtype)
    inputs = {"Emission": input, "Transition": transition, "Label": check_variable(label, "label", "linear_chain_crf")}
    if length is not None:
        inputs["Length"] = check_variable(length, "length", "linear_chain_crf")
    helper.append_op(inputs, {"LogLikelihood": cost, **outputs})
    return cost


def crf_decoding(
    input: Variable, param_attr: ParamAttrLike, label: Variable | None = None, length: Variable | None = None
) -> Variable:
    """The most probable labels of sequences, int64 [rows, 1]; with ``label``, whether they are right (1) or not (0).

    Args:
        input: as for linear_chain_crf.
        param_attr: names the weights that linear_chain_crf has trained.
        length: as for linear_chain_crf; the labels are [N, rows] then, 0 in the padding.
    """
    helper = LayerHelper("crf_decoding")
    attr = ParamAttr._to_attr(param_attr)
    root = helper.main_program.global_block()
    if not attr or attr.name is None or not root.has_var(attr.name):
        name = attr.name if attr else None
        raise errors.InvalidArgument(
            f"layers.crf_decoding: param_attr must name the weights of a linear_chain_crf of the program, got {name!r}"
        )
    inputs = {"Emission": check_variable(input, "input", "crf_decoding"), "Transition": root.var(attr.name)}
    if label is not None:
        inputs["Label"] = check_variable(label, "label", "crf_decoding")
    if length is not None:
        inputs["Length"] = check_variable(length, "length", "crf_decoding")
    path = helper.create_variable("int64", stop_gradient=True)
    helper.append_op(inputs, {"ViterbiPath": path})
    return path


def beam_search(
    pre_ids: Variable,
    pre_scores: Variable,
    ids: Variable | None,
    scores: Variable,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> Any:
    """One step of a beam search: the best continuations of the prefixes of each source.

    Args:
        pre_ids: int64 [prefixes, 1]: the last id of each prefix; at the first step one prefix for each source.
        pre_scores: [prefixes, 1]: the score of each prefix.
        ids: int64 [prefixes, candidates]; None: the columns of ``scores``.
        scores: [prefixes, candidates] with LoD: scores of the whole sequences, or, without ``is_accumulated``,
            probabilities of the next id, whose logarithms are added to those of the prefixes.
        beam_size: how many are kept for a source.
        end_id: the id that ends a sequence.
        level: the level of the LoD of ``scores`` whose sequences are the prefixes of a source.
        return_parent_idx: also return the prefix that each selected one continues, int32 [selected].

    Returns:
        (ids, scores) of the selected ones, [selected, 1], with a LoD of two levels: the prefixes of each source, and
        the selected ones of each prefix; with ``return_parent_idx`` (ids, scores, prefixes).
    """
    helper = LayerHelper("beam_search", name)
    inputs = {
        "pre_ids": check_variable(pre_ids, "pre_ids", "beam_search"),
        "pre_scores": check_variable(pre_scores, "pre_scores", "beam_search"),
        "ids": None if ids is None else check_variable(ids, "ids", "beam_search"),
        "scores": check_variable(scores, "scores", "beam_search"),
    }
    selected = helper.create_variable("int64", stop_gradient=True)
    selected_scores = helper.create_variable(scores.dtype, stop_gradient=True)
    parents = helper.create_variable("int32", stop_gradient=True)
    outputs = {"selected_ids": selected, "selected_scores": selected_scores, "parent_idx": parents}
    attrs = {"level": level, "beam_size": beam_size, "end_id": end_id, "is_accumulated": is_accumulated}
    helper.append_op(inputs, outputs, attrs)
    return (selected, selected_scores, parents) if return_parent_idx else (selected, selected_scores)


def beam_search_decode(
    ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None
) -> tuple[Variable, Variable]:
    """The sequences that a beam search has found.

    Args:
        ids, scores: arrays of the selections of ``beam_search``, step by step.
        beam_size, end_id: as for ``beam_search``.

    Returns:
        (ids, scores) with a LoD of two levels: the sequences of each source, the best first, and the ids of each.
    """
    helper = LayerHelper("beam_search_decode", name)
    inputs = {
        "Ids": check_variable(ids, "ids", "beam_search_decode"),
        "Scores": check_variable(scores, "scores", "beam_search_decode"),
    }
    sentences = helper.create_variable("int64", stop_gradient=True)
    sentence_scores = helper.create_variable(scores.dtype, stop_gradient=True)
    outputs = {"SentenceIds": sentences, "SentenceScores": sentence_scores}
    helper.append_op(inputs, outputs, {"beam_size": beam_size, "end_id": end_id})
    return sentences, sentence_scores
