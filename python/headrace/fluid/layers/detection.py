"""Layers that find things in images: prior boxes, matches, codes and suppression of boxes.

A box is xmin, ymin, xmax, ymax. No gradient passes through any of these layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_integer, check_number, check_variable

__all__ = [
    "bipartite_match",
    "box_clip",
    "box_coder",
    "density_prior_box",
    "iou_similarity",
    "locality_aware_nms",
    "multiclass_nms",
    "multiclass_nms2",
    "polygon_box_transform",
    "prior_box",
    "target_assign",
]

#: Some numbers; one stands for itself.
Numbers = Union[float, Sequence[float]]


def append_without_gradient(
    op_type: str,
    inputs: Mapping[str, Any],
    dtypes: Mapping[str, Any],
    attrs: Mapping[str, Any],
    name: str | None,
    exact_name: bool = False,
    draws: bool = False,
) -> tuple[Variable, ...]:
    """Adds an operator through which no gradient passes; ``dtypes``: of its outputs, which it returns. With
    ``exact_name``, the name of its only output is ``name``. ``draws``: whether it draws random numbers.
    """
    for slot, value in inputs.items():
        for item in value if isinstance(value, list) else [value]:
            check_variable(item, slot, op_type)
    helper = LayerHelper(op_type, name)
    exact = name if exact_name else None
    outputs = {slot: helper.create_variable(dtype, stop_gradient=True, name=exact) for slot, dtype in dtypes.items()}
    if draws:
        helper.append_random_op(inputs, outputs, attrs)
    else:
        helper.append_op(inputs, outputs, attrs)
    return tuple(outputs.values())


def as_floats(value: Numbers, what: str, layer: str) -> list[float]:
    """``value``, a number or several, as a list."""
    items: list[Any] = list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]
    try:
        return [float(item) for item in items]
    except (TypeError, ValueError):
        raise errors.TypeMismatch(f"layers.{layer}: {what} has to consist of numbers, got {value!r}") from None


def _steps(steps: Sequence[float], layer: str) -> dict[str, float]:
    found = as_floats(steps, "steps", layer)
    if len(found) != 2:
        raise errors.InvalidArgument(f"layers.{layer}: steps has to be a width and a height, got {steps!r}")
    return {"step_w": found[0], "step_h": found[1]}


def iou_similarity(x: Variable, y: Variable, name: str | None = None, box_normalized: bool = True) -> Variable:
    """Intersection over union of each box of ``x`` [N, 4] with each of ``y`` [M, 4]; [N, M] with the LoD of ``x``.

    Args:
        box_normalized: False: boxes are made of pixels, of which the last one counts.
    """
    dtype = check_variable(x, "x", "iou_similarity").dtype
    attrs = {"box_normalized": box_normalized}
    return append_without_gradient("iou_similarity", {"X": x, "Y": y}, {"Out": dtype}, attrs, name, exact_name=True)[0]


def box_coder(
    prior_box: Variable,
    prior_box_var: Variable | Sequence[float] | None,
    target_box: Variable,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Variable:
    """Target boxes as seen from prior boxes: the distance of the centres in extents of the prior box, and the
    logarithms of the ratios of the extents, over variances. Or the boxes that were so encoded.

    Args:
        prior_box: [M, 4].
        prior_box_var: variances, [M, 4], or 4 numbers for all; None: 1.
        target_box: to encode [N, 4]; to decode [N, M, 4], or [M, N, 4] if ``axis`` is 1.
        code_type: "encode_center_size" or "decode_center_size".
        box_normalized: False: boxes are made of pixels, of which the last one counts.
        axis: to decode: the dimension of ``target_box`` that is not that of the prior boxes.

    Returns:
        [N, M, 4], or [M, N, 4] if ``axis`` is 1, with the LoD of ``target_box``.
    """
    inputs = {"PriorBox": check_variable(prior_box, "prior_box", "box_coder"), "TargetBox": target_box}
    attrs: dict[str, Any] = {"code_type": code_type, "box_normalized": box_normalized, "axis": axis}
    if isinstance(prior_box_var, Variable):
        inputs["PriorBoxVar"] = prior_box_var
    elif prior_box_var is not None:
        attrs["variance"] = as_floats(prior_box_var, "prior_box_var", "box_coder")
    dtypes = {"OutputBox": prior_box.dtype}
    return append_without_gradient("box_coder", inputs, dtypes, attrs, name, exact_name=True)[0]


def box_clip(input: Variable, im_info: Variable, name: str | None = None) -> Variable:
    """Boxes with their corners moved into their images.

    Args:
        input: [boxes, ..., 4] in pixels, with LoD: a sequence for each image.
        im_info: [images, 3]: height, width, and scale, by which these two are divided.
    """
    dtype = check_variable(input, "input", "box_clip").dtype
    return append_without_gradient("box_clip", {"Input": input, "ImInfo": im_info}, {"Output": dtype}, {}, name)[0]


def polygon_box_transform(input: Variable, name: str | None = None) -> Variable:
    """The corners of polygons, of how far each pixel lies from them (EAST: Zhou et al., 2017).

    Args:
        input: [N, C, H, W], C even: x and y of each corner, seen from the pixel.

    Returns:
        The same in pixels of the image, of which four make one of ``input``.
    """
    dtypes = {"Output": check_variable(input, "input", "polygon_box_transform").dtype}
    return append_without_gradient("polygon_box_transform", {"Input": input}, dtypes, {}, name, exact_name=True)[0]


def prior_box(
    input: Variable,
    image: Variable,
    min_sizes: Numbers,
    max_sizes: Numbers | None = None,
    aspect_ratios: Numbers = (1.0,),
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = False,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Variable, Variable]:
    """The boxes that SSD starts from, around each point of a feature map (Liu et al., 2016).

    Args:
        input: the map, [N, C, H, W].
        image: the image that it was computed from, [N, C, height, width].
        min_sizes: in pixels of the image. Each makes a box of each aspect ratio.
        max_sizes: one for each of ``min_sizes``: each makes a square, between it and its ``min_size``.
        aspect_ratios: width over height; 1 is always among them.
        variance: 4 numbers for :func:`box_coder`.
        flip: whether the inverses of the ratios are among them, too.
        clip: whether to move corners into the image.
        steps: how many columns and rows of the image a point of the map stands for; 0: as many as fit.
        offset: where in its step a point lies.
        min_max_aspect_ratios_order: whether the square between the sizes comes second, as in Caffe, not last.

    Returns:
        (boxes in parts of the image, their variances), both [H, W, boxes of a point, 4].
    """
    attrs = {
        "min_sizes": as_floats(min_sizes, "min_sizes", "prior_box"),
        "aspect_ratios": as_floats(aspect_ratios, "aspect_ratios", "prior_box"),
        "variances": as_floats(variance, "variance", "prior_box"),
        "flip": flip,
        "clip": clip,
        **_steps(steps, "prior_box"),
        "offset": check_number(offset, "offset", "prior_box"),
        "min_max_aspect_ratios_order": min_max_aspect_ratios_order,
    }
    largest = [] if max_sizes is None else as_floats(max_sizes, "max_sizes", "prior_box")
    if largest and largest[0] > 0:  # Fluid's: 0 stands for none
        attrs["max_sizes"] = largest
    return _priors("prior_box", input, image, attrs, name)


def density_prior_box(
    input: Variable,
    image: Variable,
    densities: Sequence[int] | None = None,
    fixed_sizes: Sequence[float] | None = None,
    fixed_ratios: Sequence[float] | None = None,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    flatten_to_2d: bool = False,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """As :func:`prior_box`, with density · density boxes of each size and ratio, shifted against each other (Zhang et
    al., FaceBoxes, 2017).

    Args:
        densities: one for each of ``fixed_sizes``.
        fixed_sizes: in pixels of the image.
        fixed_ratios: width over height.
        flatten_to_2d: the boxes become rows of a matrix, [H · W · boxes of a point, 4].
    """
    layer = "density_prior_box"
    for what, value in (("densities", densities), ("fixed_sizes", fixed_sizes), ("fixed_ratios", fixed_ratios)):
        if not isinstance(value, (list, tuple)):
            raise errors.TypeMismatch(f"layers.{layer}: {what} has to be a list or a tuple, got {value!r}")
    assert densities is not None
    assert fixed_sizes is not None
    assert fixed_ratios is not None
    attrs = {
        "densities": [int(density) for density in densities],
        "fixed_sizes": as_floats(fixed_sizes, "fixed_sizes", layer),
        "fixed_ratios": as_floats(fixed_ratios, "fixed_ratios", layer),
        "variances": as_floats(variance, "variance", layer),
        "clip": clip,
        **_steps(steps, layer),
        "offset": check_number(offset, "offset", "density_prior_box"),
        "flatten_to_2d": flatten_to_2d,
    }
    return _priors(layer, input, image, attrs, name)


def _priors(
    op_type: str, input: Variable, image: Variable, attrs: Mapping[str, Any], name: str | None
) -> tuple[Variable, Variable]:
    dtype = check_variable(input, "input", op_type).dtype
    dtypes = {"Boxes": dtype, "Variances": dtype}
    boxes, variances = append_without_gradient(op_type, {"Input": input, "Image": image}, dtypes, attrs, name)
    return boxes, variances


def bipartite_match(
    dist_matrix: Variable, match_type: str | None = None, dist_threshold: float | None = None, name: str | None = None
) -> tuple[Variable, Variable]:
    """Matches the columns of each sequence of rows with its rows, the greatest element first, each row with one column
    at most.

    Args:
        dist_matrix: [rows, M], with LoD or one sequence.
        match_type: None: "bipartite". "per_prediction": afterwards, each column that is left is matched with the row
            that has its greatest element, if that is ``dist_threshold`` or more; None: 0.5.

    Returns:
        (for each column the row within its sequence, int32 [sequences, M], -1 if there is none; that element, of the
        same shape, 0 if there is none).
    """
    dtypes = {
        "ColToRowMatchIndices": "int32",
        "ColToRowMatchDist": check_variable(dist_matrix, "dist_matrix", "bipartite_match").dtype,
    }
    attrs: dict[str, Any] = {} if match_type is None else {"match_type": match_type}
    if dist_threshold is not None:
        attrs["dist_threshold"] = check_number(dist_threshold, "dist_threshold", "bipartite_match")
    indices, dist = append_without_gradient("bipartite_match", {"DistMat": dist_matrix}, dtypes, attrs, name)
    return indices, dist


def target_assign(
    input: Variable,
    matched_indices: Variable,
    negative_indices: Variable | None = None,
    mismatch_value: float | None = None,
    name: str | None = None,
) -> tuple[Variable, Variable]:
    """The target of each prior box: the row of ``input`` that it matches.

    Args:
        input: [rows, P, K] with LoD, a sequence for each image; box j gets part j % P of a row.
        matched_indices: int32 [N, M]: which row of its sequence each box matches; -1: none.
        negative_indices: int32 [negatives, 1] with LoD: boxes that are to predict that there is nothing.
        mismatch_value: a whole number for boxes without a match; None: 0.

    Returns:
        (targets [N, M, K]; their weights, float32 [N, M, 1]: 1 for matches and ``negative_indices``, else 0).
    """
    inputs = {"X": check_variable(input, "input", "target_assign"), "MatchIndices": matched_indices}
    if negative_indices is not None:
        inputs["NegIndices"] = negative_indices
    attrs = (
        {}
        if mismatch_value is None
        else {"mismatch_value": check_integer(mismatch_value, "mismatch_value", "target_assign")}
    )
    dtypes = {"Out": input.dtype, "OutWeight": "float32"}
    targets, weights = append_without_gradient("target_assign", inputs, dtypes, attrs, name)
    return targets, weights


_NMS_ATTRS = (
    "score_threshold",
    "nms_top_k",
    "keep_top_k",
    "nms_threshold",
    "normalized",
    "nms_eta",
    "background_label",
)


def multiclass_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> Variable:
    """Of each image and class, the boxes with scores above a threshold, without those that overlap a better one.

    Args:
        bboxes: [N, M, 4], or [N, M, 8, 16, 24 or 32] for polygons, x and y of each corner; or [boxes, C, 4] with LoD, a
            sequence for each image.
        scores: [N, C, M] or [boxes, C].
        score_threshold: greater scores count.
        nms_top_k: how many boxes of a class to look at, the best ones; -1: all.
        keep_top_k: how many boxes of an image to keep, the best ones; -1: all.
        nms_threshold: how much boxes may overlap, as by :func:`iou_similarity`.
        normalized: False: boxes are made of pixels, of which the last one counts.
        nms_eta: by what each box that is kept multiplies a threshold above 0.5, if below 1.
        background_label: the class to leave out; -1: none.

    Returns:
        [found, 6 or more] with LoD, a sequence for each image: label, score, box. If nothing is found at all, [[-1]] as
        one sequence.
    """
    rules = (score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta, background_label)
    return nms("multiclass_nms", bboxes, scores, dict(zip(_NMS_ATTRS, rules)), name)[0]


def multiclass_nms2(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """As :func:`multiclass_nms`, but where nothing is found at all, there are no rows.

    Args:
        return_index: also give the places among the N · M boxes, int32 [found, 1].
    """
    rules = (score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta, background_label)
    found = nms("multiclass_nms2", bboxes, scores, dict(zip(_NMS_ATTRS, rules)), name)
    return found if return_index else found[0]


def locality_aware_nms(
    bboxes: Variable,
    scores: Variable,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = -1,
    name: str | None = None,
) -> Variable:
    """As :func:`multiclass_nms`, after each box has been merged with the one before where they overlap by more than
    ``nms_threshold``: their mean, weighted by the scores, with the sum of the scores (EAST: Zhou et al., 2017).

    Args:
        bboxes: [N, M, 4], or [N, M, 8, 16, 24 or 32] for polygons; those of neighbouring cells next to each other.
        scores: [N, C, M].
    """
    rules = (score_threshold, nms_top_k, keep_top_k, nms_threshold, normalized, nms_eta, background_label)
    return nms("locality_aware_nms", bboxes, scores, dict(zip(_NMS_ATTRS, rules)), name)[0]


def nms(
    op_type: str, bboxes: Variable, scores: Variable, attrs: Mapping[str, Any], name: str | None = None
) -> tuple[Variable, ...]:
    """See :func:`multiclass_nms`; ``multiclass_nms2`` also gives the positions of the results among all boxes."""
    dtypes = {"Out": check_variable(bboxes, "bboxes", op_type).dtype}
    if op_type == "multiclass_nms2":
        dtypes["Index"] = core.VarType.INT32
    return append_without_gradient(op_type, {"BBoxes": bboxes, "Scores": scores}, dtypes, attrs, name)
