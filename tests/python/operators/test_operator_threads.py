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

#: Operators that leave all work to one thread: metrics and samplers, which make little of each element, and those that
#: give numbers of the program. Of the last line, the cases are too small for several threads.
ON_ONE_THREAD = re.compile(
    r"assign_value|fill|increment|is_empty|linspace|shape|size|attention_lstm|beam_search|(split|merge)_ids|unique(_with_counts)?"
    r"|auc|chunk_eval|mean_iou|positive_negative_pair|precision_recall|detection_map|mine_hard_examples|.*_target_assign"
    r"|generate_(proposal|mask)_labels|.*_fpn_proposals|retinanet_detection_output"
    r"|eye|fill_constant|(truncated_)?gaussian_random|uniform_random"
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The threads that programs have started since this was empty."""
    threads: set[str] = set()
    run = fluid.Executor.run

    def watched(*args: Any, **kwargs: Any) -> Any:
        before = set(os.listdir("/proc/self/task"))
        result = run(*args, **kwargs)
        threads.update(set(os.listdir("/proc/self/task")) - before)
        return result

    monkeypatch.setattr(fluid.Executor, "run", watched)
    return threads


@pytest.mark.parametrize("op_type", dict.fromkeys(op_type for op_type, _ in CASES))
def test_the_same_bits(op_type: str, monkeypatch: pytest.MonkeyPatch, started: set[str]) -> None:
    cases = [case for name, case in CASES if name == op_type]
    tests = [
        (case, numbers.test(op_type, case.many, max(case.widths), np.float32))
        for case in cases
        for numbers in (case, case.special())
    ]

    def results(threads: int) -> tuple[list[bytes], list[bool]]:
        """What each case gives, and whether it starts threads, forward and backward."""
        monkeypatch.setenv("CPU_NUM", str(threads))
        values: list[Any] = []
        shared: list[bool] = []
        for case, test in tests:
            started.clear()
            tensors = test.run()
            values += [np.asarray(tensors[slot][0]) for slot in case.outputs]
            shared.append(bool(started))
            if case.by:
                started.clear()
                values += test.gradients(case.by, case.outputs[:1], np.float32).values()
                shared.append(bool(started))
        return [value.tobytes() for value in values], shared

    expected, shared = results(4)
    if ON_ONE_THREAD.fullmatch(op_type):
        assert not any(shared)
        return
    assert all(shared)
    for threads in (1, 2, 3):
        assert results(threads)[0] == expected, threads


def test_none_has_been_left_out() -> None:
    assert not other_cases.covered() - {op_type for op_type, _ in CASES}
