"""Listings and graphs of programs; names of a transpiler."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import debugger, layers


def build() -> fluid.Program:
    loss = layers.mean(layers.fc(fluid.data("x", [None, 3]), 2, param_attr='w "quoted"'))
    fluid.backward.append_backward(loss)
    return fluid.default_main_program()


def test_listings_leave_the_backward_pass_out_unless_it_is_asked_for() -> None:
    program = build()
    text = debugger.pprint_program_codes(program)
    assert "// block 0, parent -1" in text
    assert "Variable(x, shape=(-1, 3), dtype=float32)" in text
    assert "mean" in text
    assert "@GRAD" not in text
    assert "mean_grad" in debugger.pprint_block_codes(program.global_block(), show_backward=True)


def test_a_graph_has_a_node_for_each_operator_and_variable(tmp_path: Path) -> None:
    program = build()
    path = tmp_path / "block.dot"
    debugger.draw_block_graphviz(program.global_block(), ["x"], str(path))
    lines = path.read_text().splitlines()
    assert lines[0] == "digraph block {"
    assert lines[-1] == "}"
    ops = program.global_block().ops
    assert sum('shape="box"' in line for line in lines) == len(ops)
    names = {name for op in ops for name in (*op.input_arg_names, *op.output_arg_names)}
    assert sum('shape="ellipse"' in line for line in lines) == len(names)
    assert sum("->" in line for line in lines) == sum(len(op.input_arg_names + op.output_arg_names) for op in ops)
    assert next(line for line in lines if "orange" in line).startswith('  var0 [shape="ellipse" label="x')
    assert any(r'label="w \"quoted\"' in line for line in lines)


def test_a_transpiler_is_refused_by_name_but_for_what_needs_none() -> None:
    program = build()
    before = program.serialize_to_string()
    fluid.transpiler.memory_optimize(program)
    fluid.transpiler.release_memory(program)
    fluid.transpiler.InferenceTranspiler().transpile(program, fluid.CPUPlace(), fluid.Scope())
    assert program.serialize_to_string() == before
    with pytest.raises(AttributeError, match="DistributeTranspiler: programs run on one machine"):
        _ = fluid.transpiler.DistributeTranspiler
    with pytest.raises(errors.TypeMismatch, match="takes a CPUPlace, got int"):
        fluid.transpiler.InferenceTranspiler().transpile(program, 0)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = fluid.transpiler.other
