"""Losses of a prediction, element by element unless said otherwise."""

from __future__ import annotations

from typing import Any

from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, append_layer, check_number, check_variable
from headrace.fluid.layers import nn, ops, reductions
from headrace.fluid.layers.control_flow import equal
from headrace.fluid.layers.rearrange import expand, one_hot
from headrace.fluid.layers.tensor import cast, reshape, transpose

__all__ = [
    "bpr_loss",
    "cross_entropy",
    "dice_loss",
    "hinge_loss",
    "huber_loss",
    "kldiv_loss",
    "label_smooth",
    "log_loss",
    "margin_rank_loss",
    "modified_huber_loss",
    "mse_loss",
    "npair_loss",
    "rank_loss",
    "sigmoid_cross_entropy_with_logits",
    "sigmoid_focal_loss",
    "smooth_l1",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "teacher_student_sigmoid_loss",
    "warpctc",
]


def cross_entropy(input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100) -> Variable:
    """-log(probability of the label) for each row.

    Args:
        input: [..., classes], probabilities.
        label: int64 [..., 1] or [...]; with ``soft_label`` a probability for each class.
        ignore_index: rows of this class have loss 0.

    Returns:
        [..., 1], or [...] if ``label`` is.
    """
    attrs = {"soft_label": soft_label, "ignore_index": ignore_index}
    helper = LayerHelper("cross_entropy" if soft_label else "cross_entropy2")  # as Fluid names the output
    loss = helper.create_variable(check_variable(input, "input", "cross_entropy").dtype)
    inputs = {"X": input, "Label": check_variable(label, "label", "cross_entropy")}
    helper.append_op(inputs, {"Y": loss}, attrs, type="cross_entropy")
    return loss


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """cross_entropy of softmax along ``axis``, without overflow. ``numeric_stable_mode`` has no effect.

    Args:
        logits: the classes lie along ``axis``.
        label: int64, with a 1 for the classes; with ``soft_label`` a probability for each class.
        ignore_index: vectors of this class have loss 0.

    Returns:
        The loss, with a 1 for the classes; with ``return_softmax`` (loss, softmax).
    """
    helper = LayerHelper("softmax_with_cross_entropy")
    softmax_out = helper.create_variable(check_variable(logits, "logits", "softmax_with_cross_entropy").dtype)
    loss = helper.create_variable(logits.dtype)
    helper.append_op(
        {"Logits": logits, "Label": label},
        {"Softmax": softmax_out, "Loss": loss},
        {"soft_label": soft_label, "ignore_index": ignore_index, "axis": axis},
    )
    return (loss, softmax_out) if return_softmax else loss


def sigmoid_cross_entropy_with_logits(
    x: Variable, label: Variable, ignore_index: int = -100, name: str | None = None, normalize: bool = False
) -> Variable:
    """The cross entropy of sigmoid(x) with ``label``, element by element."""
    attrs = {"ignore_index": ignore_index, "normalize": normalize}
    inputs = {"X": x, "Label": label}
    return append_layer("sigmoid_cross_entropy_with_logits", inputs, attrs, name, exact_name=True)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """(input - label)², element by element; ``label`` may be smaller, as in ``elementwise_sub``."""
    helper = LayerHelper("square_error_cost")
    dtype = check_variable(input, "input", "square_error_cost").dtype
    check_variable(label, "label", "square_error_cost")
    difference = helper.create_variable(dtype)
    helper.append_op({"X": input, "Y": label}, {"Out": difference}, type="elementwise_sub")
    out = helper.create_variable(dtype)
    helper.append_op({"X": difference}, {"Out": out}, type="square")
    return out


def mse_loss(input: Variable, label: Variable) -> Variable:
    """The mean of (input - label)² over all elements, [1]."""
    return reductions.reduce_mean(square_error_cost(input, label))


def dice_loss(input: Variable, label: Variable, epsilon: float = 1e-5, name: str | None = None) -> Variable:
    """1 - 2 · overlap / (input + label + epsilon), each summed over a sample, and their mean, [1]. ``name`` is Fluid's.

    Args:
        input: [N, ..., classes], probabilities.
        label: int64 [N, ..., 1].
    """
    chosen = one_hot(label, depth=check_variable(input, "input", "dice_loss").shape[-1])
    dims = list(range(1, len(input.shape)))
    overlap = reductions.reduce_sum(input * chosen, dim=dims)
    total = reductions.reduce_sum(input, dim=dims) + reductions.reduce_sum(chosen, dim=dims)
    return reductions.reduce_mean(1 - overlap * 2 / (total + epsilon))


def npair_loss(anchor: Variable, positive: Variable, labels: Variable, l2_reg: float = 0.002) -> Variable:
    """The cross entropy of the true pairs with the similarities of the embeddings, and a penalty for their length
    (Sohn, 2016), [1].

    Args:
        anchor, positive: [N, D], with a known N.
        labels: [N] or [N, 1].
    """
    n = check_variable(labels, "labels", "npair_loss").shape[0]
    column = expand(reshape(labels, [n, 1]), [1, n])
    alike = cast(equal(column, transpose(column, [1, 0])), "float32")
    alike = alike / reductions.reduce_sum(alike, dim=1, keep_dim=True)
    penalty = reductions.reduce_mean(reductions.reduce_sum(ops.square(anchor), 1)) + reductions.reduce_mean(
        reductions.reduce_sum(ops.square(positive), 1)
    )
    similarity = nn.matmul(anchor, positive, transpose_y=True)
    entropy = softmax_with_cross_entropy(similarity, alike, soft_label=True)
    return penalty * (0.25 * l2_reg) + reductions.reduce_mean(reductions.reduce_sum(alike * entropy, 0))


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """-label · log(input + epsilon) - (1 - label) · log(1 - input + epsilon), for probabilities ``input``."""
    inputs = {"Predicted": input, "Labels": label}
    attrs = {"epsilon": check_number(epsilon, "epsilon", "log_loss")}
    return append_layer("log_loss", inputs, attrs, name, out_slot="Loss", exact_name=True)


def hinge_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """max(0, 1 - (2 · label - 1) · input), for labels of 0 and 1."""
    return append_layer("hinge_loss", {"Logits": input, "Labels": label}, out_slot="Loss", name=name)


def modified_huber_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """With m = (2 · label - 1) · input, for labels of 0 and 1: -4 m where m < -1, else max(0, 1 - m)²."""
    return append_layer("modified_huber_loss", {"X": input, "Y": label}, name=name, intermediate="IntermediateVal")


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """With r = label - input: r² / 2 where |r| ≤ delta, else delta · (|r| - delta / 2)."""
    inputs, attrs = {"X": input, "Y": label}, {"delta": check_number(delta, "delta", "huber_loss")}
    return append_layer("huber_loss", inputs, attrs, intermediate="Residual", intermediate_first=True)


def kldiv_loss(x: Variable, target: Variable, reduction: str = "mean", name: str | None = None) -> Variable:
    """target · (log(target) - x), 0 where target is not positive: the divergence of a distribution from another, whose
    logarithm is ``x``.

    Args:
        reduction: "none", "sum", "mean" of the elements, or "batchmean" over the first dimension.
    """
    inputs = {"X": x, "Target": target}
    return append_layer("kldiv_loss", inputs, {"reduction": reduction}, out_slot="Loss", name=name)


def rank_loss(label: Variable, left: Variable, right: Variable, name: str | None = None) -> Variable:
    """log(1 + exp(o)) - label · o, with o = left - right; ``label`` is how probable it is that left ranks first."""
    return append_layer("rank_loss", {"Label": label, "Left": left, "Right": right}, name=name)


def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """max(0, margin - label · (left - right)); ``label`` is 1 where left should rank first, else -1."""
    inputs = {"X1": left, "X2": right, "Label": label}
    return append_layer(
        "margin_rank_loss",
        inputs,
        {"margin": check_number(margin, "margin", "margin_rank_loss")},
        intermediate="Activated",
        name=name,
    )


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """(1 - epsilon) · label + epsilon · prior, for soft labels [..., classes].

    Args:
        prior_dist: [1, classes]; None: uniform.
        dtype: Fluid's; the result has that of ``label``.
    """
    inputs = {"X": label} if prior_dist is None else {"X": label, "PriorDist": prior_dist}
    return append_layer(
        "label_smooth", inputs, {"epsilon": check_number(epsilon, "epsilon", "label_smooth")}, name=name
    )


def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """The sum over each row of outside_weight · f(inside_weight · (x - y)); [rows, 1]. f(d) is sigma² d² / 2 where
    |d| < 1 / sigma², else |d| - 1 / (2 sigma²). Weights are 1 by default, as is ``sigma``.
    """
    inputs = {"X": x, "Y": y}
    if inside_weight is not None:
        inputs["InsideWeight"] = inside_weight
    if outside_weight is not None:
        inputs["OutsideWeight"] = outside_weight
    attrs = {"sigma": 1.0 if sigma is None else check_number(sigma, "sigma", "smooth_l1")}
    return append_layer("smooth_l1_loss", inputs, attrs, intermediate="Diff", intermediate_first=True)


def sigmoid_focal_loss(
    x: Variable, label: Variable, fg_num: Variable, gamma: float = 2.0, alpha: float = 0.25
) -> Variable:
    """Cross entropy in which easy examples count little (Lin et al., 2017). With p the probability of the true label,
    -alpha (1 - p)^gamma log(p) / fg_num, and 1 - alpha in place of alpha for absent classes; [N, C].

    Args:
        x: logits, [N, C].
        label: int32 or int64 [N, 1]: 1 to C; 0 if it is none of the classes, -1 if the row does not count.
        fg_num: int32 or int64 [1]: how many rows have a class.
    """
    inputs = {"X": x, "Label": label, "FgNum": fg_num}
    return append_layer(
        "sigmoid_focal_loss",
        inputs,
        {
            "gamma": check_number(gamma, "gamma", "sigmoid_focal_loss"),
            "alpha": check_number(alpha, "alpha", "sigmoid_focal_loss"),
        },
    )


def bpr_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """The mean of log(1 + exp(input[c] - input[label])) over all classes c but the label, [N, 1] (Hidasi et al., 2016).

    Args:
        input: [N, classes].
        label: int64 [N, 1].
    """
    return append_layer("bpr_loss", {"X": input, "Label": label}, name=name, out_slot="Y")


def warpctc(
    input: Variable,
    label: Variable,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
    use_cudnn: bool = False,
) -> Variable:
    """The loss of connectionist temporal classification (Graves et al., 2006): -log of the probability that the rows of
    each sequence read as its labels, without repetitions and blanks.

    Args:
        input: [rows, classes] with LoD, or [rows, N, classes], padded; softmax is part of the loss.
        label: int32 or int64 [labels, 1] with LoD, or with ``label_length``; or [N, labels], padded.
        blank: the class of nothing.
        norm_by_times: divide the gradient, not the loss, by the number of rows.
        use_cudnn: Fluid's; has no effect.
        input_length, label_length: int64 [N]: how many rows and labels each sequence has, if ``input`` is padded.

    Returns:
        [number of sequences, 1]; 0 for a sequence with too few rows for its labels.
    """
    inputs = {"Logits": input, "Label": label}
    if input_length is not None:
        inputs["LogitsLength"] = input_length
    if label_length is not None:
        inputs["LabelLength"] = label_length
    attrs = {"blank": blank, "norm_by_times": norm_by_times}
    return append_layer("warpctc", inputs, attrs, out_slot="Loss", intermediate="WarpCTCGrad")


def teacher_student_sigmoid_loss(
    input: Variable, label: Variable, soft_max_up_bound: float = 15.0, soft_max_lower_bound: float = -15.0
) -> Variable:
    """The logistic loss of clicks, plus that of a teacher's prediction where it is known; [N, 1].

    Args:
        input: [N, 1], a score.
        label: [N, 1]: -2: no click; -1: a click; from 0 to below 1: the teacher's prediction, without a click; from 1
            to 2: that plus 1, with a click.
        soft_max_up_bound, soft_max_lower_bound: there is no gradient for scores beyond them.
    """
    attrs = {
        "soft_max_up_bound": check_number(soft_max_up_bound, "soft_max_up_bound", "teacher_student_sigmoid_loss"),
        "soft_max_lower_bound": check_number(
            soft_max_lower_bound, "soft_max_lower_bound", "teacher_student_sigmoid_loss"
        ),
    }
    return append_layer("teacher_student_sigmoid_loss", {"X": input, "Label": label}, attrs, out_slot="Y")
