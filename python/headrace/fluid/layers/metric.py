"""Layers that measure how good predictions are. No gradient passes through them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import errors
from headrace.fluid import initializer
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import (
    LayerHelper,
    check_integer,
    check_list,
    check_number,
    check_shape,
    check_variable,
    create_initialized_var,
)
from headrace.fluid.layers.nn import topk
from headrace.fluid.layers.sequence import sequence_erase

__all__ = ["accuracy", "auc", "chunk_eval", "detection_map", "edit_distance", "mean_iou", "precision_recall"]


def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
) -> Variable:
    """The share of rows of ``input`` [N, classes] whose label (int64 [N, 1]) is among the ``k`` greatest; float32 [1].

    ``correct`` and ``total`` receive the numbers of which it is the quotient, int32 [1].
    """
    values, indices = topk(input, k)
    helper = LayerHelper("accuracy")
    share = helper.create_variable("float32", stop_gradient=True)
    correct = helper.create_variable("int32", stop_gradient=True) if correct is None else correct
    total = helper.create_variable("int32", stop_gradient=True) if total is None else total
    helper.append_op(
        {"Out": values, "Indices": indices, "Label": label}, {"Accuracy": share, "Correct": correct, "Total": total}
    )
    return share


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
) -> tuple[Variable, Variable, list[Variable]]:
    """The area under the ROC curve of all batches since the startup program, and of the last ones.

    As in Fluid, programs that are built alike under ``unique_name.guard()``, with one startup program, share the
    histograms: the batches of a test program count, too.

    Args:
        input: [N, 1] or [N, 2]; the last column is the probability of the positive class.
        label: int64 [N, 1], 0 or 1.
        curve: "ROC".
        num_thresholds: the probabilities fall into this many buckets, and one more.
        topk: Fluid's; has no effect.
        slide_steps: how many batches the second area counts.

    Returns:
        (area of all batches, area of the last ones, [positive and negative histograms of the last ones, a row for each
        batch, then of all]). Areas are float64 [1].
    """
    slide_steps = check_integer(slide_steps, "slide_steps", "auc")
    num_thresholds = check_integer(num_thresholds, "num_thresholds", "auc")
    helper = LayerHelper("auc")
    inputs = {"Predict": check_variable(input, "input", "auc"), "Label": check_variable(label, "label", "auc")}
    zero = initializer.Constant(0.0)
    of_all, of_last = (helper.create_variable("float64", stop_gradient=True) for _ in range(2))
    histograms = []
    for area, steps in ((of_last, slide_steps), (of_all, 0)):
        shape = [max(steps, 1), num_thresholds + 1]
        positive, negative = (helper.create_global_variable(None, shape, "int64", zero) for _ in range(2))
        helper.append_op(
            {**inputs, "StatPos": positive, "StatNeg": negative},
            {"AUC": area, "StatPosOut": positive, "StatNegOut": negative},
            {"curve": curve, "num_thresholds": num_thresholds, "slide_steps": steps},
        )
        histograms += [positive, negative]
    return of_all, of_last, histograms


def chunk_eval(
    input: Variable,
    label: Variable,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Variable | None = None,
) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]:
    """How well the chunks (names, phrases) of tagged sequences agree with the true ones.

    Args:
        input: int64 [rows, 1] or [rows], with LoD, or [N, rows, 1] or [N, rows] with ``seq_length``: chunk type times
            the tags of the scheme, plus tag; ``num_chunk_types`` times the tags stands for no chunk.
        label: the true ones, of the same shape and with the same LoD.
        chunk_scheme: the tags, in the order of their numbers: "IOB" (begin, inside), "IOE" (inside, end), "IOBES"
            (begin, inside, end, single) or "plain" (none).
        excluded_chunk_types: types whose chunks do not count.
        seq_length: int64 [N] or [N, 1]: how many rows each sequence has; the others are padding.

    Returns:
        (precision, recall, F1, float32 [1] each; chunks of ``input``, of ``label``, of both, int64 [1] each).
    """
    helper = LayerHelper("chunk_eval")
    inputs = {
        "Inference": check_variable(input, "input", "chunk_eval"),
        "Label": check_variable(label, "label", "chunk_eval"),
    }
    if seq_length is not None:
        inputs["SeqLength"] = check_variable(seq_length, "seq_length", "chunk_eval")
    shares = {
        slot: helper.create_variable("float32", stop_gradient=True) for slot in ("Precision", "Recall", "F1-Score")
    }
    slots = ("NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
    counts = {slot: helper.create_variable("int64", stop_gradient=True) for slot in slots}
    attrs = {
        "num_chunk_types": check_integer(num_chunk_types, "num_chunk_types", "chunk_eval"),
        "chunk_scheme": chunk_scheme,
        "excluded_chunk_types": check_shape(excluded_chunk_types or [], "excluded_chunk_types", "chunk_eval"),
    }
    helper.append_op(inputs, {**shares, **counts}, attrs)
    return (
        shares["Precision"],
        shares["Recall"],
        shares["F1-Score"],
        counts["NumInferChunks"],
        counts["NumLabelChunks"],
        counts["NumCorrectChunks"],
    )


def detection_map(
    detect_res: Variable,
    label: Variable,
    class_num: int,
    background_label: int = 0,
    overlap_threshold: float = 0.3,
    evaluate_difficult: bool = True,
    has_state: Variable | None = None,
    input_states: Sequence[Variable] | None = None,
    out_states: Sequence[Variable] | None = None,
    ap_version: str = "integral",
) -> Variable:
    """Mean average precision of detections, [1]: a detection counts as true if it overlaps an object of its
    class, if nothing with a greater score has found it.

    Args:
        detect_res: the detections, [found, 6] with LoD, a sequence for each image: class, score, box in parts of the
            image; as ``detection_output`` and ``multiclass_nms`` give it.
        label: the objects, [objects, 6] with LoD, a sequence for each image: class, whether it is difficult, box; or
            [objects, 5]: class, box.
        background_label: the class to leave out; -1: none.
        overlap_threshold: a detection is true only if it overlaps its object by more than this.
        evaluate_difficult: whether difficult objects count.
        has_state: int32 [1]: 0 if ``input_states`` do not count yet.
        input_states: of the batches before: how many objects each class has, int32 [class_num, 1]; scores of what was
            found and whether it was true, and whether it was false, [found, 2] with LoD, a sequence for each class.
        out_states: variables for the same with this batch; may be ``input_states``.
        ap_version: "integral", the area below precision over recall, or "11point", its mean at 11 recalls.
    """
    helper = LayerHelper("detection_map")
    dtype = check_variable(detect_res, "detect_res", "detection_map").dtype
    inputs = {"DetectRes": detect_res, "Label": check_variable(label, "label", "detection_map")}
    if has_state is not None:
        inputs["HasState"] = check_variable(has_state, "has_state", "detection_map")
    for what, states in (("input_states", input_states), ("out_states", out_states)):
        if states and len(check_list(states, what, "detection_map")) != 3:
            raise errors.InvalidArgument(f"layers.detection_map: {what} has to be three variables, got {len(states)}")
    inputs.update(zip(("PosCount", "TruePos", "FalsePos"), input_states or ()))
    accumulated = list(out_states or (helper.create_variable(t, stop_gradient=True) for t in ("int32", dtype, dtype)))
    outputs = {"MAP": helper.create_variable(dtype, stop_gradient=True)}
    outputs.update(zip(("AccumPosCount", "AccumTruePos", "AccumFalsePos"), accumulated))
    attrs = {
        "class_num": class_num,
        "background_label": background_label,
        "overlap_threshold": check_number(overlap_threshold, "overlap_threshold", "detection_map"),
        "evaluate_difficult": evaluate_difficult,
        "ap_type": ap_version,
    }
    helper.append_op(inputs, outputs, attrs)
    return outputs["MAP"]


def mean_iou(input: Variable, label: Variable, num_classes: int) -> tuple[Variable, Variable, Variable]:
    """The mean, over the classes that occur, of the intersection of predicted and true pixels over their union.

    Args:
        input: int32 or int64, any shape: predicted classes.
        label: the true ones, of the same shape and dtype.

    Returns:
        (mean, float32 [1]; how often each class was predicted or true but not both, and how often both, int32
        [num_classes] each).
    """
    helper = LayerHelper("mean_iou")
    inputs = {
        "Predictions": check_variable(input, "input", "mean_iou"),
        "Labels": check_variable(label, "label", "mean_iou"),
    }
    mean = helper.create_variable("float32", stop_gradient=True)
    wrong, correct = (helper.create_variable("int32", stop_gradient=True) for _ in range(2))
    outputs = {"OutMeanIou": mean, "OutWrong": wrong, "OutCorrect": correct}
    helper.append_op(inputs, outputs, {"num_classes": num_classes})
    return mean, wrong, correct


def precision_recall(
    input: Variable, label: Variable, num_classes: int, weights: Variable | None = None
) -> tuple[Variable, Variable, Variable]:
    """Precision, recall and F1 of a classifier, of the batch and of all batches since the startup program.

    As in Fluid, programs that are built alike under ``unique_name.guard()``, with one startup program, share the
    counts: the batches of a test program count, too.

    Args:
        input: [N, num_classes]: the greatest of a row is the predicted class.
        label: int64 [N, 1]: the true ones.
        weights: [N, 1], dtype of ``input``: how much each row counts; None: 1.

    Returns:
        (metrics of the batch, metrics of all batches, counts of all batches). Metrics are float64 [6]: precision,
        recall and F1 as means over the classes, then over the rows; counts [num_classes, 4]: true positives, false
        positives, true negatives, false negatives.
    """
    probabilities, predicted = topk(check_variable(input, "input", "precision_recall"), 1)
    helper = LayerHelper("precision_recall")
    inputs = {
        "MaxProbs": probabilities,
        "Indices": predicted.astype("int32"),
        "Labels": check_variable(label, "label", "precision_recall").astype("int32"),
    }
    if weights is not None:
        inputs["Weights"] = check_variable(weights, "weights", "precision_recall")
    zero = initializer.Constant(0.0)
    programs, key = (helper.main_program, helper.startup_program), f"{helper.name}.counts"
    num_classes = check_integer(num_classes, "num_classes", "precision_recall")
    counts = create_initialized_var(*programs, key, [num_classes, 4], input.dtype, zero, bare=True)
    of_batch, of_all = (helper.create_variable("float64", stop_gradient=True) for _ in range(2))
    helper.append_op(
        {**inputs, "StatesInfo": counts},
        {"BatchMetrics": of_batch, "AccumMetrics": of_all, "AccumStatesInfo": counts},
        {"class_number": num_classes},
    )
    return of_batch, of_all, counts


def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """How many insertions, deletions and substitutions turn each sequence of ``input`` into that of ``label``.

    Args:
        input: int64 [rows, 1] with LoD, or [N, rows] with ``input_length``.
        label: the same, with as many sequences.
        normalized: divide each distance by the length of the label, which must not be empty.
        ignored_tokens: take these out of both first; they must have a LoD.
        input_length: int64 [N]: how many rows each sequence of ``input`` has; the others are padding.
        label_length: the same of ``label``; both or none are given.

    Returns:
        (distances, float32 [number of sequences, 1]; number of sequences, int64 [1]).
    """
    helper = LayerHelper("edit_distance")
    inputs = {
        "Hyps": check_variable(input, "input", "edit_distance"),
        "Refs": check_variable(label, "label", "edit_distance"),
    }
    if (input_length is None) != (label_length is None):
        raise errors.InvalidArgument("layers.edit_distance: input_length and label_length are given both or not at all")
    if ignored_tokens and input_length is not None:
        raise errors.InvalidArgument("layers.edit_distance: ignored_tokens cannot be taken out of padded sequences")
    if ignored_tokens:
        inputs = {slot: sequence_erase(tokens, ignored_tokens) for slot, tokens in inputs.items()}
    if input_length is not None and label_length is not None:
        inputs["HypsLength"] = check_variable(input_length, "input_length", "edit_distance")
        inputs["RefsLength"] = check_variable(label_length, "label_length", "edit_distance")
    distance = helper.create_variable("float32", stop_gradient=True)
    count = helper.create_variable("int64", stop_gradient=True)
    helper.append_op(inputs, {"Out": distance, "SequenceNum": count}, {"normalized": normalized})
    return distance, count
