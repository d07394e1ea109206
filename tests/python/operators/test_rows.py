"""Every use in row_cases: few rows, none, narrow ones, and what becomes of a LoD."""

from __future__ import annotations

import re

import numpy as np
import pytest
from row_cases import CASES, Rows

from headrace.fluid import core
from headrace.testing import OpTest

each_case = pytest.mark.parametrize(("op_type", "case"), CASES, ids=[op_type for op_type, _ in CASES])

#: Operators with a kernel that have no rows, or rows of no kind that the others have; tests of their own take care.
ELSEWHERE = re.compile(
    r".*_grad2?|test_.*|plugin_.*|fill|fill_constant.*|assign_value|.*_random.*|sampling_id|random_crop|nce|sample_logits|where|range|linspace|diag|eye|unique(_with_counts)?"
    r"|auc|mean_iou|precision_recall|chunk_eval|edit_distance|ctc_align|average_accumulates|beam_search|gather_tree"
    r"|positive_negative_pair|split_ids|merge_ids"
    r"|merge_selected_rows|get_tensor_from_selected_rows"
    r"|(density_)?prior_box|bipartite_match|mine_hard_examples|target_assign|multiclass_nms2?|locality_aware_nms|detection_map"
    r"|anchor_generator|(rpn|retinanet)_target_assign|generate_proposals|generate_(proposal|mask)_labels|.*_fpn_proposals"
    r"|retinanet_detection_output"
)

#: Operators that refuse rows without elements, which have no mean and no maximum, and which nothing fits into.
FULL_ROWS = re.compile(
    r"arg_(max|min)|top_k|mean|reduce_(mean|max|min)|unstack|split|reshape2?|crop(_tensor)?|conv_shift|gru|gru_unit|lstmp?|fusion_gru|fusion_lstm|fused_embedding_fc_lstm"
    r"|bpr_loss|cross_entropy2?|softmax_with_cross_entropy|layer_norm|group_norm|instance_norm|.*pool[23]d.*|spp|unpool|.*_interp"
    r"|(depthwise_)?conv[23]d(_transpose)?|deformable_conv(_v1)?|im2sequence|unfold|crf_decoding|linear_chain_crf|warpctc|kldiv_loss|box_decoder_and_assign"
    r"|yolov3_loss|fsp|spectral_norm"
)


def needs_elements(op_type: str, case: Rows) -> bool:
    keeps_columns = case.attrs.get("dim") == [0] or case.attrs.get("reduction") == "none"
    return FULL_ROWS.fullmatch(op_type) is not None and not keeps_columns


def results(test: OpTest, case: Rows) -> dict[str, np.ndarray]:
    tensors = test.run()
    return {slot: np.asarray(tensors[slot][0]) for slot in case.outputs}


def test_every_operator_with_rows_is_among_them() -> None:
    cases = {op_type for op_type, _ in CASES}
    missing = [
        t for t in core.op_types() if core.op_info(t)["kernels"] and t not in cases and not ELSEWHERE.fullmatch(t)
    ]
    assert not missing


def test_every_gradient_is_among_them() -> None:
    differentiated = {op_type for op_type, case in CASES if case.by}
    missing = {op_type for op_type, _ in CASES if core.op_info(op_type)["differentiable"]} - differentiated
    # Which test_rearrange_ops differentiates, and test_feature_ops, as its gradient is not the true one; and constants.
    assert missing == {"cast", "cvm", "fill_any_like", "fill_zeros_like", "fill_zeros_like2"}


@each_case
def test_few_rows_give_the_beginning_of_what_many_give(op_type: str, case: Rows) -> None:
    # The first of several sequences has no rows.
    few, more = (1, 2) if case.lod is None else (0, 1)
    for width in case.widths:
        whole = case.test(op_type, 4, width)
        whole.check_outputs()
        if case.by:
            whole.check_gradients(case.by, case.outputs[:1], tolerance=1e-5)
        if not case.by_row:
            continue
        expected = results(whole, case)
        for rows in (few, more):
            test = case.test(op_type, rows, width)
            test.check_outputs()
            for slot, part in results(test, case).items():
                assert (len(part) > 0) == (rows > 0) or (case.lod is None and rows == few), slot
                np.testing.assert_array_equal(part, expected[slot][: len(part)], err_msg=slot)
            if case.by:
                test.check_gradients(case.by, case.outputs[:1], tolerance=1e-5)


@each_case
def test_rows_without_elements_are_taken_or_refused(op_type: str, case: Rows) -> None:
    test = case.test(op_type, 3, 0)
    if needs_elements(op_type, case):
        # Images of any size are declared as of none.
        test.check_refused(ValueError, when="run" if op_type.endswith("_interp") else "build")
        return
    test.check_outputs()
    if case.by:
        test.check_gradients(case.by, case.outputs[:1])


@each_case
def test_a_lod_is_passed_on(op_type: str, case: Rows) -> None:
    if case.lod is None:
        return
    inputs = case.inputs(3, case.widths[0])
    slot, value = next(iter(inputs.items()))
    lengths = [[1, 0, len(value) - 1]] if isinstance(value, np.ndarray) else [[1, 0, 2]]
    inputs[slot] = [(value[0], lengths), *value[1:]] if isinstance(value, list) else (value, lengths)
    test = OpTest(op_type, inputs, case.attrs, dict.fromkeys((*case.outputs, *case.others)), case.known)
    test.check_outputs()
    passed = [slot for slot, (tensor, *_) in test.run().items() if tensor.recursive_sequence_lengths() == lengths]
    assert set(passed) == set(case.lod)
