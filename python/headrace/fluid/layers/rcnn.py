"""Layers of detectors that propose regions first and look at these then: Faster R-CNN, Mask R-CNN, their pyramids and
cascades; and RetinaNet's.

Boxes are rows (left, upper, right, lower) in pixels, the last of which belong to them. ``im_info`` is [N, 3]: height
and width of each image as the network sees it, and by how much the original was scaled to that; true boxes are in
pixels of the original. Items whose number differs from image to image have a LoD of one level: a sequence for each
image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_integer, check_number, check_variable, check_variables
from headrace.fluid.layers.detection import append_without_gradient, as_floats
from headrace.fluid.layers.rearrange import gather
from headrace.fluid.layers.tensor import reshape

__all__ = [
    "anchor_generator",
    "box_decoder_and_assign",
    "collect_fpn_proposals",
    "distribute_fpn_proposals",
    "generate_mask_labels",
    "generate_proposal_labels",
    "generate_proposals",
    "retinanet_detection_output",
    "retinanet_target_assign",
    "rpn_target_assign",
]

Numbers = Union[float, Sequence[float]]


def anchor_generator(
    input: Variable,
    anchor_sizes: Numbers | None = None,
    aspect_ratios: Numbers | None = None,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    stride: Sequence[float] | None = None,
    offset: float = 0.5,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Boxes of several sizes and shapes around each place of a feature map [N, C, H, W] (Ren et al., 2015).

    Args:
        anchor_sizes: the square roots of their areas.
        aspect_ratios: heights over widths.
        stride: width and height of a place of the feature map in pixels of the image.
        offset: where the center lies within such a place.

    Returns:
        Anchors and their variances, both [H, W, ratios · sizes, 4].
    """
    if anchor_sizes is None or aspect_ratios is None or stride is None:
        raise errors.InvalidArgument("layers.anchor_generator: anchor_sizes, aspect_ratios and stride have to be given")
    if not isinstance(stride, (list, tuple)) or len(stride) != 2:
        raise errors.InvalidArgument(f"layers.anchor_generator: stride has to be a width and a height, got {stride!r}")
    attrs = {
        "anchor_sizes": as_floats(anchor_sizes, "anchor_sizes", "anchor_generator"),
        "aspect_ratios": as_floats(aspect_ratios, "aspect_ratios", "anchor_generator"),
        "variances": as_floats(variance, "variance", "anchor_generator"),
        "stride": as_floats(stride, "stride", "anchor_generator"),
        "offset": check_number(offset, "offset", "anchor_generator"),
    }
    dtype = check_variable(input, "input", "anchor_generator").dtype
    anchors, variances = append_without_gradient(
        "anchor_generator", {"Input": input}, {"Anchors": dtype, "Variances": dtype}, attrs, name
    )
    return anchors, variances


def generate_proposals(
    scores: Variable,
    bbox_deltas: Variable,
    im_info: Variable,
    anchors: Variable,
    variances: Variable,
    pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000,
    nms_thresh: float = 0.5,
    min_size: float = 0.1,
    eta: float = 1.0,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """The regions that a region proposal network finds best (Ren et al., 2015).

    Args:
        scores: [N, A, H, W]: how much each anchor looks like an object.
        bbox_deltas: [N, 4 · A, H, W]: where the object lies as seen from the anchor.
        anchors, variances: [H, W, A, 4], as ``anchor_generator`` gives them.
        pre_nms_top_n: how many anchors of an image are looked at; 0: all.
        post_nms_top_n: how many regions an image has at most; 0: any number.
        nms_thresh: regions that overlap a better one by more are left out.
        min_size: the least width and height in the original image.
        eta: if below 1, multiplies a ``nms_thresh`` above 1/2 with each region that is kept.

    Returns:
        Regions [R, 4] and their scores [R, 1], best first, with a LoD. An image in which none is found has a box of
        zeros.
    """
    attrs = {
        "pre_nms_topN": check_integer(pre_nms_top_n, "pre_nms_top_n", "generate_proposals"),
        "post_nms_topN": check_integer(post_nms_top_n, "post_nms_top_n", "generate_proposals"),
        "nms_thresh": check_number(nms_thresh, "nms_thresh", "generate_proposals"),
        "min_size": check_number(min_size, "min_size", "generate_proposals"),
        "eta": check_number(eta, "eta", "generate_proposals"),
    }
    inputs = {
        "Scores": scores,
        "BboxDeltas": bbox_deltas,
        "ImInfo": im_info,
        "Anchors": anchors,
        "Variances": variances,
    }
    dtype = check_variable(scores, "scores", "generate_proposals").dtype
    outputs = {"RpnRois": dtype, "RpnRoiProbs": dtype}
    rois, probabilities = append_without_gradient("generate_proposals", inputs, outputs, attrs, name)
    return rois, probabilities


def _targets(
    layer: str, inputs: dict[str, Any], attrs: dict[str, Any], more: dict[str, Any], draws: bool = False
) -> tuple[Variable, Variable, list[Variable]]:
    dtype = check_variable(inputs["Anchor"], "anchor_box", layer).dtype
    outputs = {
        "LocationIndex": "int32",
        "ScoreIndex": "int32",
        "TargetLabel": "int32",
        "TargetBBox": dtype,
        "BBoxInsideWeight": dtype,
        **more,
    }
    located, scored, *others = append_without_gradient(layer, inputs, outputs, attrs, None, draws=draws)
    return located, scored, others


def rpn_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    is_crowd: Variable,
    im_info: Variable,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
) -> tuple[Variable, Variable, Variable, Variable, Variable]:
    """The predictions of a region proposal network for the anchors that it learns from, and their targets (Ren et al.,
    2015).

    Args:
        bbox_pred: [N, M, 4]: where the object lies as seen from each of the M anchors.
        cls_logits: [N, M, 1]: the logits of there being one.
        anchor_box: [M, 4].
        anchor_var: not used.
        gt_boxes: [K, 4], with a LoD.
        is_crowd: int32 [K] or [K, 1], with the LoD of ``gt_boxes``: 1 for boxes around many objects, which are left
            out.
        rpn_batch_size_per_im: how many anchors of an image are chosen.
        rpn_straddle_thresh: anchors beyond the image by more pixels are left out; negative: none.
        rpn_fg_fraction: the greatest part of those chosen that sees objects.
        rpn_positive_overlap: anchors that overlap an object so much see it, and the one that overlaps it most.
        rpn_negative_overlap: anchors that overlap all objects less see none.
        use_random: whether they are chosen at random, others in each run, and the same ones when training is repeated
            if the program has a ``random_seed``; else the first ones are.

    Returns:
        Logits [S, 1] and places [F, 4] of those chosen; labels, int32 [S, 1], and places [F, 4] that they should have;
        weights [F, 4]: 0 for places that do not count.
    """
    attrs = {
        "rpn_batch_size_per_im": check_integer(rpn_batch_size_per_im, "rpn_batch_size_per_im", "rpn_target_assign"),
        "rpn_straddle_thresh": check_number(rpn_straddle_thresh, "rpn_straddle_thresh", "rpn_target_assign"),
        "rpn_positive_overlap": check_number(rpn_positive_overlap, "rpn_positive_overlap", "rpn_target_assign"),
        "rpn_negative_overlap": check_number(rpn_negative_overlap, "rpn_negative_overlap", "rpn_target_assign"),
        "rpn_fg_fraction": check_number(rpn_fg_fraction, "rpn_fg_fraction", "rpn_target_assign"),
        "use_random": use_random,
    }
    inputs = {"Anchor": anchor_box, "GtBoxes": gt_boxes, "IsCrowd": is_crowd, "ImInfo": im_info}
    located, scored, (labels, targets, weights) = _targets("rpn_target_assign", inputs, attrs, {}, use_random)
    logits = gather(reshape(cls_logits, [-1, 1]), scored)
    places = gather(reshape(bbox_pred, [-1, 4]), located)
    return logits, places, labels, targets, weights


def retinanet_target_assign(
    bbox_pred: Variable,
    cls_logits: Variable,
    anchor_box: Variable,
    anchor_var: Variable,
    gt_boxes: Variable,
    gt_labels: Variable,
    is_crowd: Variable,
    im_info: Variable,
    num_classes: int = 1,
    positive_overlap: float = 0.5,
    negative_overlap: float = 0.4,
) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]:
    """The predictions of a network for anchors with objects or background, and their targets (Lin et al., 2017).

    Args:
        cls_logits: [N, M, num_classes]: the logits of the classes from 1 on.
        gt_labels: int32 [K] or [K, 1], with the LoD of ``gt_boxes``: the classes of the objects.
        Others: as of ``rpn_target_assign``.

    Returns:
        Logits [S, num_classes] and places [F, 4]; labels, int32 [S, 1], and places [F, 4] that they should have;
        weights [F, 4]: 0 for places that do not count; and how many anchors of each image see objects and one more,
        int32 [N, 1].
    """
    attrs = {
        "positive_overlap": check_number(positive_overlap, "positive_overlap", "retinanet_target_assign"),
        "negative_overlap": check_number(negative_overlap, "negative_overlap", "retinanet_target_assign"),
    }
    inputs = {
        "Anchor": anchor_box,
        "GtBoxes": gt_boxes,
        "GtLabels": gt_labels,
        "IsCrowd": is_crowd,
        "ImInfo": im_info,
    }
    more = {"ForegroundNumber": "int32"}
    located, scored, (labels, targets, weights, count) = _targets("retinanet_target_assign", inputs, attrs, more)
    logits = gather(reshape(cls_logits, [-1, num_classes]), scored)
    places = gather(reshape(bbox_pred, [-1, 4]), located)
    return logits, places, labels, targets, weights, count


def generate_proposal_labels(
    rpn_rois: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_boxes: Variable,
    im_info: Variable,
    batch_size_per_im: int = 256,
    fg_fraction: float = 0.25,
    fg_thresh: float = 0.25,
    bg_thresh_hi: float = 0.5,
    bg_thresh_lo: float = 0.0,
    bbox_reg_weights: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    class_nums: int | None = None,
    use_random: bool = True,
    is_cls_agnostic: bool = False,
    is_cascade_rcnn: bool = False,
) -> tuple[Variable, Variable, Variable, Variable, Variable]:
    """The regions that a detector learns from, including the objects themselves, and their targets (Ren et
    al., 2015).

    Args:
        rpn_rois: [R, 4], with a LoD.
        gt_classes, is_crowd: int32 [K] or [K, 1], with the LoD of ``gt_boxes``, [K, 4].
        batch_size_per_im: how many regions of an image are chosen.
        fg_fraction: the greatest part of them that has objects.
        fg_thresh: regions that overlap an object so much have it.
        bg_thresh_hi, bg_thresh_lo: those whose greatest overlap lies between have none.
        bbox_reg_weights: the variances of places.
        class_nums: how many classes there are, with class 0, which is no object.
        use_random: as of ``rpn_target_assign``.
        is_cls_agnostic: whether places do not depend on the class.
        is_cascade_rcnn: whether the regions are those of a detector before: all that fit are chosen, without the first
            ones, which are the objects.

    Returns:
        Regions [P, 4]; their classes, int32 [P, 1]; where the object lies as seen from the region, [P, 4 · class_nums];
        and two variables that are 1 there in the columns that count, else 0. All have a LoD.
    """
    if class_nums is None:
        raise errors.InvalidArgument("layers.generate_proposal_labels: class_nums has to be given")
    attrs = {
        "batch_size_per_im": check_integer(batch_size_per_im, "batch_size_per_im", "generate_proposal_labels"),
        "fg_fraction": check_number(fg_fraction, "fg_fraction", "generate_proposal_labels"),
        "fg_thresh": check_number(fg_thresh, "fg_thresh", "generate_proposal_labels"),
        "bg_thresh_hi": check_number(bg_thresh_hi, "bg_thresh_hi", "generate_proposal_labels"),
        "bg_thresh_lo": check_number(bg_thresh_lo, "bg_thresh_lo", "generate_proposal_labels"),
        "bbox_reg_weights": as_floats(bbox_reg_weights, "bbox_reg_weights", "generate_proposal_labels"),
        "class_nums": check_integer(class_nums, "class_nums", "generate_proposal_labels"),
        "use_random": use_random,
        "is_cls_agnostic": is_cls_agnostic,
        "is_cascade_rcnn": is_cascade_rcnn,
    }
    inputs = {
        "RpnRois": rpn_rois,
        "GtClasses": gt_classes,
        "IsCrowd": is_crowd,
        "GtBoxes": gt_boxes,
        "ImInfo": im_info,
    }
    dtype = check_variable(rpn_rois, "rpn_rois", "generate_proposal_labels").dtype
    outputs = {
        "Rois": dtype,
        "LabelsInt32": "int32",
        "BboxTargets": dtype,
        "BboxInsideWeights": dtype,
        "BboxOutsideWeights": dtype,
    }
    rois, labels, targets, inside, outside = append_without_gradient(
        "generate_proposal_labels", inputs, outputs, attrs, None, draws=use_random
    )
    return rois, labels, targets, inside, outside


def generate_mask_labels(
    im_info: Variable,
    gt_classes: Variable,
    is_crowd: Variable,
    gt_segms: Variable,
    rois: Variable,
    labels_int32: Variable,
    num_classes: int,
    resolution: int,
) -> tuple[Variable, Variable, Variable]:
    """Which pixels of regions belong to their objects (He et al., 2017).

    Args:
        gt_classes, is_crowd: int32 [K] or [K, 1], with a LoD: the objects of each image.
        gt_segms: [points, 2] (x, y), in pixels of the original, with a LoD of three levels: the objects of images, the
            polygons of objects, the corners of polygons.
        rois, labels_int32: [R, 4] and int32 [R, 1], with a LoD, as ``generate_proposal_labels`` gives them.
        resolution: how many rows and columns of pixels a mask has.

    Returns:
        The regions that have objects, [P, 4], of an image without any the first one; their numbers among the regions
        of their image, int32 [P, 1]; and masks, int32 [P, num_classes · resolution²]: in the columns of its class, 1
        where the object is and 0 elsewhere; -1 in all others. All have a LoD.
    """
    inputs = {
        "Rois": rois,
        "LabelsInt32": labels_int32,
        "GtClasses": gt_classes,
        "IsCrowd": is_crowd,
        "GtSegms": gt_segms,
        "ImInfo": im_info,
    }
    outputs = {
        "MaskRois": check_variable(rois, "rois", "generate_mask_labels").dtype,
        "RoiHasMaskInt32": "int32",
        "MaskInt32": "int32",
    }
    attrs = {
        "num_classes": check_integer(num_classes, "num_classes", "generate_mask_labels"),
        "resolution": check_integer(resolution, "resolution", "generate_mask_labels"),
    }
    of_masks, numbers, masks = append_without_gradient("generate_mask_labels", inputs, outputs, attrs, None)
    return of_masks, numbers, masks


def retinanet_detection_output(
    bboxes: Sequence[Variable],
    scores: Sequence[Variable],
    anchors: Sequence[Variable],
    im_info: Variable,
    score_threshold: float = 0.05,
    nms_top_k: int = 1000,
    keep_top_k: int = 100,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
) -> Variable:
    """The objects that the levels of a feature pyramid see (Lin et al., 2017).

    Args:
        bboxes: [N, M, 4] for each level: where the object lies as seen from the anchor.
        scores: [N, M, C] for each level: how likely each class is, from class 1 on.
        anchors: [M, 4] for each level.
        score_threshold: the score that those of all levels but the last one exceed.
        nms_top_k: how many of a level are looked at; negative: all.
        keep_top_k: how many an image has at most; negative: any number.
        nms_threshold: those that overlap a better one of their class by more are left out.
        nms_eta: if below 1, multiplies a ``nms_threshold`` above 1/2 with each one that is kept; Fluid ignores it here.

    Returns:
        [objects, 6], with a LoD: class, score and box in pixels of the original, best first.
    """
    layer = "retinanet_detection_output"
    inputs = {
        "Scores": check_variables(scores, "scores", layer),
        "BBoxes": check_variables(bboxes, "bboxes", layer),
        "Anchors": check_variables(anchors, "anchors", layer),
        "ImInfo": im_info,
    }
    attrs = {
        "score_threshold": check_number(score_threshold, "score_threshold", "retinanet_detection_output"),
        "nms_top_k": check_integer(nms_top_k, "nms_top_k", "retinanet_detection_output"),
        "keep_top_k": check_integer(keep_top_k, "keep_top_k", "retinanet_detection_output"),
        "nms_threshold": check_number(nms_threshold, "nms_threshold", "retinanet_detection_output"),
        "nms_eta": check_number(nms_eta, "nms_eta", "retinanet_detection_output"),
    }
    if not scores:
        raise errors.InvalidArgument("layers.retinanet_detection_output: there has to be a level at least")
    dtype = check_variable(scores[0], "scores", "retinanet_detection_output").dtype
    return append_without_gradient("retinanet_detection_output", inputs, {"Out": dtype}, attrs, None)[0]


def distribute_fpn_proposals(
    fpn_rois: Variable, min_level: int, max_level: int, refer_level: int, refer_scale: int, name: str | None = None
) -> tuple[list[Variable], Variable]:
    """Regions by their sizes on the levels of a feature pyramid (Lin et al., 2017): floor(refer_level +
    log2(√area / refer_scale)), but from ``min_level`` to ``max_level``.

    Args:
        fpn_rois: [R, 4], with a LoD.

    Returns:
        The regions of each level, [rows, 4] with a LoD; and where each region lies among those of all levels, one
        behind the other, int32 [R, 1], for ``gather``.
    """
    fpn_rois = check_variable(fpn_rois, "fpn_rois", "distribute_fpn_proposals")
    helper = LayerHelper("distribute_fpn_proposals", name)
    levels = [
        helper.create_variable(fpn_rois.dtype, stop_gradient=True) for _ in range(max(max_level - min_level + 1, 0))
    ]
    restore = helper.create_variable("int32", stop_gradient=True)
    attrs = {
        "min_level": check_integer(min_level, "min_level", "distribute_fpn_proposals"),
        "max_level": check_integer(max_level, "max_level", "distribute_fpn_proposals"),
        "refer_level": check_integer(refer_level, "refer_level", "distribute_fpn_proposals"),
        "refer_scale": check_integer(refer_scale, "refer_scale", "distribute_fpn_proposals"),
    }
    helper.append_op({"FpnRois": fpn_rois}, {"MultiFpnRois": levels, "RestoreIndex": restore}, attrs)
    return levels, restore


def collect_fpn_proposals(
    multi_rois: Sequence[Variable],
    multi_scores: Sequence[Variable],
    min_level: int,
    max_level: int,
    post_nms_top_n: int,
    name: str | None = None,
) -> Variable:
    """The best regions of all levels of a feature pyramid (Lin et al., 2017).

    Args:
        multi_rois, multi_scores: [rows, 4] and [rows, 1] for each level, with LoDs.
        post_nms_top_n: how many there are at most, of all images together.

    Returns:
        [R, 4], with a LoD: those of each image, best first.
    """
    layer = "collect_fpn_proposals"
    rois = check_variables(multi_rois, "multi_rois", layer)
    scores = check_variables(multi_scores, "multi_scores", layer)
    count = check_integer(max_level, "max_level", layer) - check_integer(min_level, "min_level", layer) + 1
    inputs = {"MultiLevelRois": rois[:count], "MultiLevelScores": scores[:count]}
    dtype = check_variable(rois[:1], "multi_rois", layer).dtype
    attrs = {"post_nms_topN": check_integer(post_nms_top_n, "post_nms_top_n", "collect_fpn_proposals")}
    return append_without_gradient("collect_fpn_proposals", inputs, {"FpnRois": dtype}, attrs, name)[0]


def box_decoder_and_assign(
    prior_box: Variable,
    prior_box_var: Variable,
    target_box: Variable,
    box_score: Variable,
    box_clip: float,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """Where the objects of regions lie, for each class and for the most likely one.

    Args:
        prior_box: [R, 4]: the regions.
        prior_box_var: [4]: the variances.
        target_box: [R, 4 · C]: where the object of each class lies as seen from the region.
        box_score: [R, C]: how likely each class is; class 0 is no object.
        box_clip: the greatest logarithm of the ratio of the extents of object and region.

    Returns:
        [R, 4 · C]; and [R, 4], those of the most likely class but class 0.
    """
    inputs = {
        "PriorBox": prior_box,
        "PriorBoxVar": prior_box_var,
        "TargetBox": target_box,
        "BoxScore": box_score,
    }
    dtype = check_variable(prior_box, "prior_box", "box_decoder_and_assign").dtype
    outputs = {"DecodeBox": dtype, "OutputAssignBox": dtype}
    decoded, assigned = append_without_gradient(
        "box_decoder_and_assign",
        inputs,
        outputs,
        {"box_clip": check_number(box_clip, "box_clip", "box_decoder_and_assign")},
        name,
    )
    return decoded, assigned
