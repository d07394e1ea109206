"""Every operator has an OpTest in this folder."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.fluid import core

#: Operators whose results are not a function of their inputs alone; other tests know what to expect of them.
ELSEWHERE = re.compile(
    r".*_grad2?|create_.*|read|print|(uniform|gaussian|truncated_gaussian)_random|plugin_.*|test_.*"
    r"|while|conditional_block|write_to_array|read_from_array|lod_array_length"  # fluid/test_control_flow.py
    r"|tensor_array_to_tensor"  # fluid/test_rnn_cells.py
    r"|merge_selected_rows|get_tensor_from_selected_rows"  # fluid/test_sparse_gradients.py
    # fluid/test_dynamic_rnn.py
    r"|lod_rank_table|max_sequence_len|lod_tensor_to_array|array_to_lod_tensor|shrink_rnn_memory"
    r"|reorder_lod_tensor_by_rank"
    r"|py_func|feed|fetch|open_files|recurrent"  # fluid/test_{py_func,feed_fetch,recordio,recurrent_op}.py
)


def test_every_operator_has_an_op_test() -> None:
    folder = Path(__file__).parent
    tested = {
        name
        for path in folder.glob("test_*_ops.py")
        for name in re.findall(r'"([a-z0-9_]+)"', path.read_text(encoding="utf-8"))
    }
    tested |= {f"{name}2" for name in ("reshape", "flatten", "squeeze", "unsqueeze")}  # the same tests take both
    missing = [name for name in core.op_types() if name not in tested and not ELSEWHERE.fullmatch(name)]
    assert not missing
