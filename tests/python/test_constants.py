"""Numbers and names that Python and C++ both state are the same in both."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import pytest

from headrace.data import _config
from headrace.data._iteration import setup
from headrace.data._samples import batch_tree, tree_walk
from headrace.data._samples.describe import NodeKind
from headrace.fluid import core, executor, framework

ROOT = Path(__file__).parents[2]
ARENA = "reader/shared_memory/arena"
PLAN = "reader/shared_memory/batches/batch_plan.cc"


def enumerators(source: str, name: str) -> dict[str, int]:
    """Those of an enumeration that have a number: name without ``k``, in small letters → number."""
    body = re.search(rf"enum (?:class )?{name} [^{{]*{{(.*?)}};", (ROOT / source).read_text("utf-8"), re.DOTALL)
    assert body is not None
    return {name.lower(): int(number) for name, number in re.findall(r"\bk(\w+) = (\d+)", body[1])}


def constant(source: str, name: str) -> int | str:
    """A constant that is a string, a number, or a product or a shift of two."""
    found = re.search(rf"constexpr [\w:]+ {name} = (.+);", (ROOT / source).read_text("utf-8"))
    assert found is not None
    if found[1].startswith('"'):
        return found[1].strip('"')
    match = re.fullmatch(r"(?:\w+{)?(\d+)}?(?: (<<|\*) (\d+))?", found[1])
    assert match is not None
    number, operation, other = int(match[1]), match[2], int(match[3] or 0)
    return number << other if operation == "<<" else number * other if operation else number


def number(source: str, name: str) -> int:
    value = constant(source, name)
    assert isinstance(value, int)
    return value


def plain(kinds: type[IntEnum]) -> dict[str, int]:
    return {name.replace("_", "").lower(): int(member) for name, member in kinds.__members__.items()}


def test_element_types_and_kinds_of_variables() -> None:
    types, kinds = enumerators("framework/data_type.h", "DataType"), enumerators("framework/var_desc.h", "VarKind")
    named = {core.dtype_name(kind): int(kind) for kind in core.VarType if int(kind) in types.values()}
    assert named == types
    kinds["placelist"] = 14  # of get_places, which no variable has
    assert {name: value for name, value in plain(core.VarType).items() if value not in types.values()} == kinds


def test_roles_of_operators() -> None:
    roles = enumerators("framework/op_role.h", "OpRole")
    members = {name.replace("_", "").lower(): int(role) for name, role in core.OpRole.__members__.items()}
    assert {f"role{name}": role for name, role in members.items()} == roles


def test_kinds_of_nodes_in_the_description_of_a_sample() -> None:
    assert plain(NodeKind) == enumerators("python/bindings/shared_memory/sample_template.h", "NodeKind")


@pytest.mark.parametrize(
    ("source", "name", "ours"),
    [
        ("framework/op_role.h", "kOpRoleAttr", core.op_proto_and_checker_maker.kOpRoleAttrName()),
        ("framework/op_role.h", "kOpRoleVarAttr", core.op_proto_and_checker_maker.kOpRoleVarAttrName()),
        ("framework/op_role.h", "kOpNameScopeAttr", core.op_proto_and_checker_maker.kOpNameScopeAttrName()),
        ("framework/operator.h", "kEmptyVarName", framework.EMPTY_VAR_NAME),
        ("framework/hashed_name.h", "kGradSuffix", framework.GRAD_VAR_SUFFIX),
        ("framework/program_check.h", "kMaxBlockDepth", framework._MAX_BLOCK_DEPTH),
        ("framework/thread_pool.h", "kMaxThreads", executor._MAX_THREADS),
        (f"{ARENA}/control_block.h", "kMaxProducers", _config.MAX_WORKERS),
        (f"{ARENA}/batch_layout.h", "kMaxDims", batch_tree.LAYOUT_DIMS),
        (PLAN, "kMaxLength", _config._MAX_LENGTH),
        ("python/bindings/shared_memory/plain_tree.cc", "kMostItems", tree_walk.MOST_SEPARATE),
    ],
)
def test_a_constant_is_the_same(source: str, name: str, ours: int | str) -> None:
    assert constant(source, name) == ours


def test_what_a_loader_may_ask_for_the_transport_gives() -> None:
    assert number(f"{ARENA}/control_block.h", "kMaxSlots") >= _config.MAX_PREFETCH + setup._HELD_SLOTS
    assert number(PLAN, "kMaxRows") >= _config._MAX_BATCH_SIZE
    assert number(f"{ARENA}/trace.h", "kMaxTraceEvents") >= setup._TRACE_EVENTS
    room = number(f"{ARENA}/slot.h", "kDataOffset") - number(f"{ARENA}/slot.h", "kLayoutOffset")
    leaf = 24 + 8 * batch_tree.LAYOUT_DIMS  # a LeafRecord
    assert batch_tree.LAYOUT_LEAVES * leaf + batch_tree.LAYOUT_TREE_BYTES < room
