"""Programs as text, and blocks as graphs for Graphviz."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.fluid._checks import check_instance, check_list, check_path
from headrace.fluid.framework import GRAD_VAR_SUFFIX as _SUFFIX
from headrace.fluid.framework import Block, Program

__all__ = ["draw_block_graphviz", "pprint_block_codes", "pprint_program_codes"]


def pprint_program_codes(program_desc: Program) -> str:
    """A listing of all blocks: of each the variables and the operators, without the backward pass."""
    return "\n".join(pprint_block_codes(program_desc.block(i)) for i in range(program_desc.num_blocks))


def pprint_block_codes(block_desc: Block, show_backward: bool = False) -> str:
    """A listing of a block.

    Args:
        show_backward: with gradients and the operators that use them.
    """
    variables = [var for name, var in sorted(block_desc.vars.items()) if show_backward or _SUFFIX not in name]
    operators = [
        op
        for op in block_desc.ops
        if show_backward or not any(_SUFFIX in name for name in (*op.input_arg_names, *op.output_arg_names))
    ]
    lines = [f"// block {block_desc.idx}, parent {block_desc.parent_idx}", "// variables", *map(str, variables)]
    return "\n".join([*lines, "", "// operators", *map(str, operators), ""])


def draw_block_graphviz(block: Block, highlights: Iterable[str] | None = None, path: str = "./temp.dot") -> None:
    """Writes a graph of a block in Graphviz's language: boxes are operators, ellipses are variables.

    Args:
        highlights: names of variables that are filled with a colour.
        path: the file.
    """
    check_instance(block, Block, "draw_block_graphviz: block")
    path = check_path(path, "draw_block_graphviz: path")
    marked = set() if highlights is None else set(check_list(highlights, "draw_block_graphviz: highlights"))
    numbers: dict[str, int] = {}
    lines = []

    def node(name: str) -> str:
        if name not in numbers:
            numbers[name] = len(numbers)
            var = block._find_var_recursive(name)
            style = ' style="filled" fillcolor="orange"' if name in marked else ""
            shape = f"\\n{list(var.shape)}" if var is not None and var.shape else ""
            lines.append(f'  var{numbers[name]} [shape="ellipse" label="{_quoted(name)}{shape}"{style}];')
        return f"var{numbers[name]}"

    for i, op in enumerate(block.ops):
        lines.append(f'  op{i} [shape="box" label="{_quoted(op.type)}"];')
        lines += [f"  {node(name)} -> op{i};" for name in op.input_arg_names]
        lines += [f"  op{i} -> {node(name)};" for name in op.output_arg_names]
    Path(path).write_text("\n".join(["digraph block {", *lines, "}", ""]))


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')
