"""Operators and their gradients give the same bits on any number of threads."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import other_cases
import pytest
import row_cases

import headrace.fluid as fluid

CASES = [*row_cases.CASES, *other_cases.CASES]

#: Operators that leave all work to one thread.
ON_ONE_THREAD = re.compile(
    r"logical_.*|assign|clip_by_norm|fill_.*_like2?|rnn_memory_helper|target_gradient"
    r"|(reshape|flatten|squeeze|unsqueeze)2?"
    r"|multiplex|shard_index|hash|conv_shift|kldiv_loss|bpr_loss|center_loss|filter_by_instag|cross_entropy2|hierarchical_sigmoid"
    r"|spp|max_pool[23]d_with_index|unpool|im2sequence|row_conv|linear_chain_crf"
    r"|sequence_(concat|enumerate|erase|mask|reshape|scatter)|crf_decoding|warpctc|l1_norm|squared_l2_norm|is.*|shape|size|scatter|scatter_nd_add|increment|lod_reset|accuracy"
    r"|(split|merge)_lod_tensor|assign_value|fill|fill_constant(_batch_size_like)?|eye|diag|range|linspace|.*_random"
    r"|sampling_id|random_crop|nce|sample_logits|where|unique(_with_counts)?|ctc_align|edit_distance|chunk_eval|beam_search|auc|precision_recall|mean_iou"
    r"|average_accumulates|print|gather_tree|cvm|similarity_focus|positive_negative_pair|split_ids|merge_ids|attention_lstm"
    r"|bipartite_match|target_assign|mine_hard_examples|box_clip|detection_map"
    r"|anchor_generator|(rpn|retinanet)_target_assign|generate_proposals|generate_(proposal|mask)_labels|.*_fpn_proposals"
    r"|retinanet_detection_output"
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The threads that programs have started since the test began."""
    threads: set[str] = set()
    before = set(os.listdir("/proc/self/task"))
    run = fluid.Executor.run

    def counted(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        threads.update(set(os.listdir("/proc/self/task")) - before)
        return result

    monkeypatch.setattr(fluid.Executor, "run", counted)
    return threads


@pytest.mark.parametrize("op_type", dict.fromkeys(op_type for op_type, _ in CASES))
def test_the_same_bits(op_type: str, monkeypatch: pytest.MonkeyPatch, started: set[str]) -> None:
    cases = [case for name, case in CASES if name == op_type]
    tests = [
        (case, numbers.test(op_type, case.many, max(case.widths), np.float32))
        for case in cases
        for numbers in (case, case.special())
    ]

    def results(threads: int) -> list[bytes]:
        monkeypatch.setenv("CPU_NUM", str(threads))
        values: list[Any] = []
        for case, test in tests:
            tensors = test.run()
            values += [np.asarray(tensors[slot][0]) for slot in case.outputs]
            if case.by:
                values += test.gradients(case.by, case.outputs[:1], np.float32).values()
        return [value.tobytes() for value in values]

    expected = results(4)
    assert bool(started) == (ON_ONE_THREAD.fullmatch(op_type) is None)
    for threads in (1, 2, 3) if started else ():
        assert results(threads) == expected, threads


def test_none_has_been_left_out() -> None:
    assert not other_cases.covered() - {op_type for op_type, _ in CASES}
