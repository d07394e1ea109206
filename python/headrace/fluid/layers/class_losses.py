"""Losses over classes that have parameters: of many classes, of which they look at a few, or centres."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from headrace import errors
from headrace.fluid import initializer
from headrace.fluid.core import VarType
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_integer, check_number, check_variable
from headrace.fluid.layers import reductions
from headrace.fluid.layers.loss import softmax_with_cross_entropy
from headrace.fluid.layers.rearrange import one_hot
from headrace.fluid.layers.tensor import assign, cast, fill_constant, reshape
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike

__all__ = ["center_loss", "hsigmoid", "nce", "sampled_softmax_with_cross_entropy"]


def _width(input: Variable, layer: str) -> int:
    input = check_variable(input, "input", layer)
    width = input.shape[1] if len(input.shape) == 2 else -1
    if width <= 0:
        raise errors.InvalidArgument(
            f"layers.{layer}: '{input.name}' must be [N, D] with a known D, got {list(input.shape)}"
        )
    return width


def _alias_table(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each column of Walker's alias method its other class, and how probable its own one is (Vose, 1991)."""
    n = len(probabilities)
    own = probabilities * n
    alias = np.arange(n, dtype=np.int32)
    small, large = [i for i in range(n) if own[i] < 1], [i for i in range(n) if own[i] > 1]
    while small and large:
        less, more = small.pop(), large.pop()
        alias[less] = more
        own[more] -= 1 - own[less]
        if own[more] != 1:
            (small if own[more] < 1 else large).append(more)
    return alias, np.minimum(own, 1).astype(np.float32)


def nce(
    input: Variable,
    label: Variable,
    num_total_classes: int,
    sample_weight: Variable | None = None,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> Variable:
    """Noise-contrastive estimation: a loss over many classes from the true ones and a few of noise (Gutmann and
    Hyvärinen, 2010).

    Args:
        input: [N, D].
        label: int64 [N, number of true classes].
        sample_weight: [N, 1], a factor on each loss.
        bias_attr: False: no bias.
        num_neg_samples: how many classes of noise are drawn for a row; None: 10.
        sampler: the distribution of the noise: "uniform", "log_uniform" (lower classes are more frequent) or
            "custom_dist".
        custom_dist: the probability of each class, for "custom_dist".
        seed: if given, the same noise in each run; see ``layers.dropout``.
        is_sparse: the gradients of weight and bias are SelectedRows: a step costs as much as its classes.

    Returns:
        [N, 1]: what the operator gives, divided by ``num_neg_samples`` + 1.
    """
    samplers = {"uniform": 0, "log_uniform": 1, "custom_dist": 2}
    if sampler not in samplers:
        raise errors.InvalidArgument(f"layers.nce: sampler must be one of {', '.join(samplers)}, got {sampler!r}")
    helper = LayerHelper("nce", name)
    weight = helper.create_weight(param_attr, [num_total_classes, _width(input, "nce")], input.dtype)
    inputs: dict[str, Variable | None] = {
        "Input": input,
        "Label": check_variable(label, "label", "nce"),
        "Weight": weight,
        "Bias": helper.create_parameter(bias_attr, [num_total_classes, 1], input.dtype, is_bias=True),
        "SampleWeight": sample_weight,
    }
    if sampler == "custom_dist":
        inputs |= _noise_of(custom_dist, num_total_classes)
    noise = 10 if num_neg_samples is None else check_integer(num_neg_samples, "num_neg_samples", "nce")
    cost = helper.create_variable(input.dtype)
    outputs = {
        "Cost": cost,
        "SampleLogits": helper.create_variable(input.dtype, stop_gradient=True),
        "SampleLabels": helper.create_variable("int64", stop_gradient=True),
    }
    attrs = {
        "num_total_classes": num_total_classes,
        "num_neg_samples": noise,
        "sampler": samplers[sampler],
        "is_sparse": is_sparse,
    }
    helper.append_random_op(inputs, outputs, attrs, seed)
    return cost / (noise + 1)


def _noise_of(custom_dist: Sequence[float] | None, classes: int) -> dict[str, Variable]:
    """The inputs from which nce draws noise with these probabilities."""
    probabilities = np.asarray([] if custom_dist is None else custom_dist, np.float64)
    if probabilities.shape != (classes,) or (probabilities < 0).any() or not probabilities.sum() > 0:
        raise errors.InvalidArgument(
            f"layers.nce: custom_dist must be {classes} probabilities for sampler 'custom_dist'"
        )
    probabilities = probabilities / probabilities.sum()
    alias, own = _alias_table(probabilities)
    return {
        "CustomDistProbs": assign(probabilities.astype(np.float32)),
        "CustomDistAlias": assign(alias),
        "CustomDistAliasProbs": assign(own),
    }


def sampled_softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Variable | None = None,
    customized_probabilities: Variable | None = None,
    seed: int = 0,
) -> Variable:
    """The cross entropy of softmax over the true classes and a few that are drawn, instead of all (Jean et al., 2015):
    the mean over the true classes of a row. To evaluate a model, use ``softmax_with_cross_entropy``.

    Args:
        logits: [N, classes].
        label: int64 [N, num_true].
        num_samples: how many classes are drawn for a run, none of them twice; lower ones are more frequent.
        remove_accidental_hits: a class that is drawn and is a true one of the row counts as such alone.
        use_customized_samples: the classes are ``customized_samples``, int64 [N, num_true + num_samples], the true ones
            first, expected as often as ``customized_probabilities``, of the same shape, say.
        seed: if given, the same classes in each run; see ``layers.dropout``.

    Returns:
        [N, 1].
    """
    name = "sampled_softmax_with_cross_entropy"
    width = check_variable(label, "label", name).shape[-1]
    if check_integer(num_true, "num_true", name) < 1 or width not in (num_true, -1):
        raise errors.InvalidArgument(
            f"layers.{name}: '{label.name}' has to be [N, num_true], with a num_true of 1 or more; "
            f"got {list(label.shape)} and {num_true}"
        )
    helper = LayerHelper("sample_logits")
    inputs = {"Logits": check_variable(logits, "logits", name), "Labels": label}
    if use_customized_samples:
        if customized_samples is None or customized_probabilities is None:
            raise errors.InvalidArgument(
                f"layers.{name}: use_customized_samples needs customized_samples and customized_probabilities"
            )
        inputs |= {"CustomizedSamples": customized_samples, "CustomizedProbabilities": customized_probabilities}
    sampled_logits = helper.create_variable(logits.dtype)
    sampled_label = helper.create_variable("int64", stop_gradient=True)
    outputs = {
        "Samples": helper.create_variable("int64", stop_gradient=True),
        "Probabilities": helper.create_variable(logits.dtype, stop_gradient=True),
        "LogitsDim": helper.create_variable(logits.dtype, stop_gradient=True),
        "LabelsDim": helper.create_variable("int64", stop_gradient=True),
        "SampledLogits": sampled_logits,
        "SampledLabels": sampled_label,
    }
    attrs = {
        "num_samples": num_samples,
        "uniq": True,
        "remove_accidental_hits": remove_accidental_hits,
        "use_customized_samples": use_customized_samples,
    }
    helper.append_random_op(inputs, outputs, attrs, seed, draws=not use_customized_samples)
    if num_true > 1:
        each = one_hot(reshape(sampled_label, [-1, num_true, 1]), depth=num_true + num_samples)
        sampled_label = cast(reductions.reduce_mean(each, dim=1), logits.dtype)
    loss: Variable = softmax_with_cross_entropy(sampled_logits, sampled_label, soft_label=num_true > 1)
    return loss


def hsigmoid(
    input: Variable,
    label: Variable,
    num_classes: int,
    param_attr: ParamAttrLike = None,
    bias_attr: ParamAttrLike = None,
    name: str | None = None,
    path_table: Variable | None = None,
    path_code: Variable | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> Variable:
    """-log of the probability of each label: the product of a sigmoid at each node on the way to it, down a binary tree
    of the classes (Morin and Bengio, 2005).

    As in Fluid, log 2 is added for each node by which the path is shorter than the longest (the width of
    ``path_table``), which changes no gradient. With such paths, exp(-result) adds up to less than 1 over all classes.

    Args:
        input: [N, D].
        label: int64 [N, 1].
        num_classes: number of classes, or with ``is_custom`` of inner nodes.
        bias_attr: False: no bias.
        path_table: with ``is_custom`` the nodes on the way of each row, int64 [N, longest]; negative behind its end.
        path_code: for each node whether the path continues to the right (1) or to the left (0).
        is_sparse: the gradients of weight and bias are SelectedRows: a step costs as much as its nodes.

    Returns:
        [N, 1].
    """
    if is_custom and (path_table is None or path_code is None):
        raise errors.InvalidArgument("layers.hsigmoid: a tree of one's own (is_custom) needs path_table and path_code")
    if not is_custom and check_number(num_classes, "num_classes", "hsigmoid") < 2:
        raise errors.InvalidArgument(f"layers.hsigmoid: num_classes must be 2 or more, got {num_classes}")
    helper = LayerHelper("hierarchical_sigmoid", name)
    nodes = num_classes if is_custom else num_classes - 1
    weight = helper.create_weight(param_attr, [nodes, _width(input, "hsigmoid")], input.dtype)
    inputs = {
        "X": input,
        "W": weight,
        "Label": check_variable(label, "label", "hsigmoid"),
        "Bias": helper.create_parameter(bias_attr, [nodes, 1], input.dtype, is_bias=True),
        "PathTable": path_table if is_custom else None,
        "PathCode": path_code if is_custom else None,
    }
    out = helper.create_variable(input.dtype)
    steps = helper.create_variable(input.dtype, stop_gradient=True)
    helper.append_op(inputs, {"Out": out, "PreOut": steps}, {"num_classes": num_classes, "is_sparse": is_sparse})
    return out


def center_loss(
    input: Variable,
    label: Variable,
    num_classes: int,
    alpha: float | Variable,
    param_attr: ParamAttrLike,
    update_center: bool = True,
) -> Variable:
    """½ ‖x - c‖², where c is the centre of the class of each row x (Wen et al., 2016); [N, 1].

    Args:
        input: [N, D].
        label: int64 [N, 1], a class each.
        alpha: how far the centres move in each run towards the rows of their classes: of the sum of the differences,
            divided by 1 and their number.
        param_attr: of the centres, [num_classes, D], which no optimizer changes.
        update_center: whether they move; in a program for testing they never do.
    """
    width = _width(input, "center_loss")
    helper = LayerHelper("center_loss")
    attr = copy.copy(ParamAttr._to_attr(param_attr))
    if not attr:
        raise errors.InvalidArgument("layers.center_loss: param_attr=False is not supported; the loss needs centres")
    attr.trainable = False
    centers = helper.create_parameter(attr, [num_classes, width], input.dtype, stop_gradient=True)
    assert centers is not None  # the attribute is not False
    if not isinstance(alpha, Variable):
        alpha = _persistent_number("centerloss_alpha", check_number(alpha, "alpha", "center_loss"), input.dtype)
    difference, loss = helper.create_variable(input.dtype), helper.create_variable(input.dtype)
    helper.append_op(
        {
            "X": input,
            "Label": check_variable(label, "label", "center_loss"),
            "Centers": centers,
            "CenterUpdateRate": alpha,
        },
        {"SampleCenterDiff": difference, "Loss": loss, "CentersOut": centers},
        {"cluster_num": num_classes, "need_update": update_center},
    )
    return loss


def _persistent_number(name: str, value: float, dtype: VarType) -> Variable:
    """A number that files of parameters have, as in Fluid, whose value is nevertheless set in each run."""
    helper = LayerHelper("fill_constant")
    variable, _ = helper.create_or_get_global_variable(name, shape=[1], dtype=dtype, init=initializer.Constant(value))
    return fill_constant([1], dtype, value, out=variable)
