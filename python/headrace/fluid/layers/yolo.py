"""The parts of a YOLO detector (J. Redmon and A. Farhadi, 2018): its loss and its boxes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_number, check_shape, check_variable

__all__ = ["yolo_box", "yolov3_loss"]


def _as_in_fluid_1_4(layer: Callable[..., Variable]) -> Callable[..., Variable]:
    """Lets the true boxes, their labels and scores have the names that they had until Fluid 1.4."""

    @functools.wraps(layer)
    def renamed(*args: Any, **kwargs: Any) -> Variable:
        for old, new in (("gtbox", "gt_box"), ("gtlabel", "gt_label"), ("gtscore", "gt_score")):
            if old in kwargs and new not in kwargs:
                kwargs[new] = kwargs.pop(old)
        return layer(*args, **kwargs)

    return renamed


@_as_in_fluid_1_4
def yolov3_loss(
    x: Variable,
    gt_box: Variable,
    gt_label: Variable,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Variable | None = None,
    use_label_smooth: bool = True,
    name: str | None = None,
) -> Variable:
    """The loss of each image, [N]. Each true box is to be predicted by the anchor whose shape is most like its own, if
    that is among the predicted ones, at the cell of its centre; everything else is to say that there is nothing.

    Args:
        x: [N, predicted anchors · (5 + class_num), H, W]: of each x, y, logarithms of width and height, confidence,
            classes.
        gt_box: [N, B, 4]: the true boxes, centre, width and height in parts of the image; those without extent, which
            fill up the list of an image, are none.
        gt_label: int32 or int64 [N, B]: their classes.
        anchors: width and height of each anchor, in pixels of the network's input.
        anchor_mask: which of them are predicted.
        ignore_thresh: predicted boxes that overlap a true one by more are not trained to predict background.
        downsample_ratio: the number of pixels of the network's input that a cell stands for.
        gt_score: [N, B]: how much each true box counts; None: 1.
        use_label_smooth: a class should have probability 1 - s, others s: the less of 1 / class_num and 1 / 40.
    """
    helper = LayerHelper("yolov3_loss", name)
    inputs = {
        "X": check_variable(x, "x", "yolov3_loss"),
        "GTBox": check_variable(gt_box, "gt_box", "yolov3_loss"),
        "GTLabel": check_variable(gt_label, "gt_label", "yolov3_loss"),
    }
    if gt_score is not None:
        inputs["GTScore"] = check_variable(gt_score, "gt_score", "yolov3_loss")
    loss = helper.create_variable(x.dtype, name=name)
    outputs = {
        "Loss": loss,
        "ObjectnessMask": helper.create_variable(x.dtype, stop_gradient=True),
        "GTMatchMask": helper.create_variable("int32", stop_gradient=True),
    }
    attrs = {
        "anchors": check_shape(anchors, "anchors", "yolov3_loss"),
        "anchor_mask": check_shape(anchor_mask, "anchor_mask", "yolov3_loss"),
        "class_num": class_num,
        "ignore_thresh": check_number(ignore_thresh, "ignore_thresh", "yolov3_loss"),
        "downsample_ratio": downsample_ratio,
        "use_label_smooth": use_label_smooth,
    }
    helper.append_op(inputs, outputs, attrs)
    return loss


def yolo_box(
    x: Variable,
    img_size: Variable,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    name: str | None = None,
    clip_bbox: bool = True,
) -> tuple[Variable, Variable]:
    """The box that each anchor predicts at each cell. No gradient passes through it.

    Args:
        x: [N, anchors · (5 + class_num), H, W]: of each x, y, logarithms of width and height, confidence, classes.
        img_size: int32 or int64 [N, 2]: height and width of each image.
        anchors: width and height of each anchor, in pixels of the network's input.
        conf_thresh: boxes and scores of less confidence are zeros.
        downsample_ratio: the number of pixels of the network's input that a cell stands for.
        clip_bbox: whether boxes end at the edges of the image.

    Returns:
        (boxes in pixels of the image, xmin, ymin, xmax, ymax, [N, anchors · H · W, 4]; scores [N, anchors · H · W,
        class_num]): see multiclass_nms, which takes scores as [N, class_num, anchors · H · W].
    """
    helper = LayerHelper("yolo_box", name)
    inputs = {"X": check_variable(x, "x", "yolo_box"), "ImgSize": check_variable(img_size, "img_size", "yolo_box")}
    boxes, scores = (helper.create_variable(x.dtype, stop_gradient=True) for _ in range(2))
    attrs = {
        "anchors": check_shape(anchors, "anchors", "yolo_box"),
        "class_num": class_num,
        "conf_thresh": check_number(conf_thresh, "conf_thresh", "yolo_box"),
        "downsample_ratio": downsample_ratio,
        "clip_bbox": clip_bbox,
    }
    helper.append_op(inputs, {"Boxes": boxes, "Scores": scores}, attrs)
    return boxes, scores
