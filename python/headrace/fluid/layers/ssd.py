"""The parts of a single shot detector (W. Liu et al., 2016): its head, its loss, its results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_number, check_variable, declare_known
from headrace.fluid.layers import elementwise, nn, reductions
from headrace.fluid.layers.convolution import conv2d
from headrace.fluid.layers.detection import (
    Numbers,
    bipartite_match,
    box_coder,
    iou_similarity,
    nms,
    prior_box,
    target_assign,
)
from headrace.fluid.layers.loss import smooth_l1, softmax_with_cross_entropy
from headrace.fluid.layers.rearrange import shape, slice
from headrace.fluid.layers.tensor import cast, concat, fill_constant, flatten, reshape, transpose
from headrace.fluid.layers.windows import Padding, Size

__all__ = ["detection_output", "multi_box_head", "ssd_loss"]


def multi_box_head(
    inputs: Sequence[Variable],
    image: Variable,
    base_size: int,
    num_classes: int,
    aspect_ratios: Sequence[Numbers] | None,
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Sequence[Numbers] | None = None,
    max_sizes: Sequence[Numbers] | None = None,
    steps: Sequence[float] | None = None,
    step_w: Sequence[float] | None = None,
    step_h: Sequence[float] | None = None,
    offset: float = 0.5,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = True,
    clip: bool = False,
    kernel_size: Size = 1,
    pad: Padding = 0,
    stride: Size = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, Variable, Variable, Variable]:
    """Prior boxes around the points of several feature maps, and convolutions that predict their contents.

    Args:
        inputs: the maps, [N, C, H, W] each.
        image: the image that they were computed from, [N, C, height, width].
        base_size: that of the image, of which ``min_ratio`` and ``max_ratio`` are percentages: the sizes of the boxes
            of the second and the last map, with those between in equal steps; those of the first are 10 and 20 %.
        aspect_ratios: one number or several for each map.
        min_sizes, max_sizes: instead, in pixels, one number or several for each map; needed for one or two maps.
        steps: for each map, how many columns and rows of the image a point stands for; ``step_w`` and ``step_h``: for
            each dimension.
        kernel_size, pad, stride: of the convolutions.
        name: Fluid's; makes no difference.

    Returns:
        (codes of the boxes [N, boxes, 4]; scores [N, boxes, num_classes]; prior boxes [boxes, 4]; their variances
        [boxes, 4]). Of a single map, as in Fluid, [N, boxes · 4], [N, boxes · num_classes], and twice [H, W, boxes of a
        point, 4].
    """
    if not isinstance(inputs, (list, tuple)) or not inputs:
        raise errors.InvalidArgument(f"layers.multi_box_head: inputs has to be a list of Variables, got {inputs!r}")
    if min_sizes is None and max_sizes is None:
        min_sizes, max_sizes = _sizes(len(inputs), base_size, min_ratio, max_ratio)
    if steps is not None:
        step_w = step_h = steps
    _check_one_for_each_map(
        len(inputs),
        min_sizes=min_sizes,
        max_sizes=max_sizes,
        aspect_ratios=aspect_ratios,
        step_w=step_w,
        step_h=step_h,
    )
    if not min_sizes:
        raise errors.InvalidArgument("layers.multi_box_head: min_sizes is needed where max_sizes is given")
    heads: list[list[Variable]] = [[], [], [], []]
    for i, input in enumerate(inputs):
        boxes, variances = prior_box(
            check_variable(input, "inputs", "multi_box_head"),
            image,
            min_sizes[i],
            max_sizes[i] if max_sizes else None,
            aspect_ratios[i] if aspect_ratios else (),
            variance,
            flip,
            clip,
            (step_w[i] if step_w else 0.0, step_h[i] if step_h else 0.0),
            offset,
            None,
            min_max_aspect_ratios_order,
        )
        for found, width in zip(heads, (4, num_classes)):
            maps = transpose(conv2d(input, boxes.shape[2] * width, kernel_size, stride, pad), [0, 2, 3, 1])
            found.append(flatten(maps, axis=1) if len(inputs) == 1 else _row_of_each_box(maps, boxes.shape[2], width))
        for found, value in zip(heads[2:], (boxes, variances)):
            found.append(value if len(inputs) == 1 else flatten(value, axis=3))
    codes, scores = (found[0] if len(found) == 1 else concat(found, axis=1) for found in heads[:2])
    priors, prior_variances = (found[0] if len(found) == 1 else concat(found) for found in heads[2:])
    priors.stop_gradient = prior_variances.stop_gradient = True
    return codes, scores, priors, prior_variances


def _check_one_for_each_map(maps: int, **arguments: Any) -> None:
    for what, given in arguments.items():
        if given and (not isinstance(given, (list, tuple)) or len(given) != maps):
            raise errors.InvalidArgument(
                f"layers.multi_box_head: {what} needs one item for each of the {maps} inputs, got {given!r}"
            )


def _row_of_each_box(maps: Variable, boxes: int, width: int) -> Variable:
    """[N, H, W, boxes · width] → [N, H · W · boxes, width]."""
    rows = reshape(maps, [0, -1, width])
    points = maps.shape[1] * maps.shape[2] if min(maps.shape[1:3]) > 0 else -1
    declare_known(rows, [-1, points * boxes if points > 0 else -1, width])
    return rows


def _sizes(maps: int, base: float, low: int | None, high: int | None) -> tuple[list[float], list[float]]:
    """The sizes that percentages of ``base`` make for each map."""
    if maps <= 2 or low is None or high is None:
        raise errors.InvalidArgument(
            "layers.multi_box_head: min_sizes and max_sizes are needed, or, for three or more inputs, min_ratio and "
            "max_ratio"
        )
    step = math.floor((high - low) / (maps - 2))
    if step <= 0:
        raise errors.InvalidArgument(
            f"layers.multi_box_head: max_ratio has to be greater than min_ratio by {maps - 2} or more, got {low} and "
            f"{high}"
        )
    ratios = range(low, high + 1, step)
    smallest = [base * 0.1, *(base * ratio / 100 for ratio in ratios)]
    largest = [base * 0.2, *(base * (ratio + step) / 100 for ratio in ratios)]
    return smallest[:maps], largest[:maps]


def ssd_loss(
    location: Variable,
    confidence: Variable,
    gt_box: Variable,
    gt_label: Variable,
    prior_box: Variable,
    prior_box_var: Variable | None = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
) -> Variable:
    """The loss of each image, [N, 1]: of the prior boxes that match a true one, how wrong their codes and scores are;
    of as many others as ``neg_pos_ratio`` says, those with the worst scores, how wrong these are.

    Args:
        location: codes of the predicted boxes, [N, M, 4].
        confidence: scores before softmax, [N, M, classes].
        gt_box: the true boxes, [boxes, 4] with LoD, a sequence for each image, in parts of the image.
        gt_label: their classes, [boxes, 1], with the same LoD.
        prior_box, prior_box_var: [M, 4]; without variances they are 1.
        background_label: the class of boxes with nothing in them.
        overlap_threshold: "per_prediction": how much boxes that match overlap at least.
        neg_overlap: how much prior boxes with nothing in them overlap a true one at most.
        loc_loss_weight, conf_loss_weight: of the codes and the scores.
        match_type: see bipartite_match.
        mining_type: "max_negative", as in Fluid.
        normalize: divide by the number of matches in the batch (by 1 if there are none).
        sample_size: Fluid's; makes no difference.
    """
    if mining_type != "max_negative":
        raise errors.InvalidArgument(f"layers.ssd_loss: mining_type has to be 'max_negative', got {mining_type!r}")
    if len(check_variable(confidence, "confidence", "ssd_loss").shape) != 3:
        raise errors.InvalidArgument(
            f"layers.ssd_loss: confidence has to be [N, M, classes], got {list(confidence.shape)}"
        )
    images_and_boxes = slice(shape(confidence), axes=[0], starts=[0], ends=[2])
    matched, overlap = bipartite_match(iou_similarity(gt_box, prior_box), match_type, overlap_threshold)
    labels = reshape(gt_label, [0] * (len(gt_label.shape) - 1) + [-1, 1])
    labels.stop_gradient = True

    def of_rows(value: Variable) -> Variable:
        return flatten(value, axis=2)

    def by_image(value: Variable) -> Variable:
        return reshape(value, confidence.shape[:2], actual_shape=images_and_boxes)

    def score_loss(targets: Variable) -> Variable:
        targets = cast(of_rows(targets), "int64")
        targets.stop_gradient = True
        loss: Variable = softmax_with_cross_entropy(of_rows(confidence), targets)
        return loss

    # Which boxes without a match count: those that the scores are most wrong about.
    targets, _ = target_assign(labels, matched, mismatch_value=background_label)
    losses = by_image(score_loss(targets))
    losses.stop_gradient = True
    negatives, updated = _hard_examples(losses, matched, overlap, neg_pos_ratio, neg_overlap, mining_type)

    codes, code_weights = target_assign(box_coder(prior_box, prior_box_var, gt_box), updated)
    targets, weights = target_assign(labels, updated, negatives, background_label)
    dtype = confidence.dtype
    codes, code_weights, weights = of_rows(codes), cast(of_rows(code_weights), dtype), cast(of_rows(weights), dtype)
    for value in (codes, code_weights, weights):
        value.stop_gradient = True
    loss = score_loss(targets) * weights * check_number(conf_loss_weight, "conf_loss_weight", "ssd_loss")
    loss = loss + smooth_l1(of_rows(location), codes) * code_weights * check_number(
        loc_loss_weight, "loc_loss_weight", "ssd_loss"
    )
    loss = reductions.reduce_sum(by_image(loss), dim=1, keep_dim=True)
    if not normalize:
        return loss
    count = elementwise.elementwise_max(reductions.reduce_sum(code_weights), fill_constant([1], dtype, 1.0))
    count.stop_gradient = True
    return loss / count


def _hard_examples(
    losses: Variable, matched: Variable, overlap: Variable, neg_pos_ratio: float, neg_overlap: float, mining_type: str
) -> tuple[Variable, Variable]:
    """Which boxes without a match count, and the matches that do."""
    helper = LayerHelper("mine_hard_examples")
    negatives, updated = (helper.create_variable("int32", stop_gradient=True) for _ in range(2))
    attrs: dict[str, Any] = {
        "neg_pos_ratio": float(neg_pos_ratio),
        "neg_dist_threshold": float(neg_overlap),
        "mining_type": mining_type,
    }
    helper.append_op(
        {"ClsLoss": losses, "MatchIndices": matched, "MatchDist": overlap},
        {"NegIndices": negatives, "UpdatedMatchIndices": updated},
        attrs,
    )
    return negatives, updated


def detection_output(
    loc: Variable,
    scores: Variable,
    prior_box: Variable,
    prior_box_var: Variable | Sequence[float] | None,
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
) -> Any:
    """The objects in each image: the predicted boxes, decoded, after ``multiclass_nms``.

    Args:
        loc: codes of the boxes, [N, M, 4].
        scores: before softmax, [N, M, classes].
        prior_box: [M, 4].
        prior_box_var: [M, 4], or 4 numbers.
        background_label, nms_eta: see multiclass_nms; Fluid ignores them here, as if they were 0 and 1.
        return_index: also give the places among the N · M boxes, int32 [found, 1].

    Returns:
        [found, 6] with LoD, a sequence for each image: label, score, xmin, ymin, xmax, ymax. If nothing is found at
        all, [[-1]] as one sequence; with ``return_index``, no rows.
    """
    boxes = box_coder(prior_box, prior_box_var, loc, "decode_center_size")
    attrs = {
        "background_label": background_label,
        "score_threshold": score_threshold,
        "nms_top_k": nms_top_k,
        "nms_threshold": nms_threshold,
        "nms_eta": nms_eta,
        "keep_top_k": keep_top_k,
    }
    op_type = "multiclass_nms2" if return_index else "multiclass_nms"
    found = nms(op_type, boxes, transpose(nn.softmax(scores), [0, 2, 1]), attrs)
    return found if return_index else found[0]
