"""Programs as Python sees them: Program, Block, Operator and Variable over the descriptions that C++ keeps.

The C++ side is the truth: shapes and dtypes are inferred and checked there when an operator is added. Building a
program is one thread's work; a finished one may be run by any thread.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid import unique_name as unique_name
from headrace.fluid._block import Block, names_of
from headrace.fluid._checks import check_integer, check_optional
from headrace.fluid._ir_graph import IrGraph as IrGraph
from headrace.fluid._operator import Operator
from headrace.fluid._parameter import Parameter
from headrace.fluid._variable import Variable, grad_var_name
from headrace.fluid.core import EMPTY_VAR_NAME, GRAD_VAR_SUFFIX, CPUPlace, OpRole, VarType, load_op_library
from headrace.fluid.core import convert_dtype as convert_np_dtype_to_dtype_
from headrace.fluid.device import (
    cpu_places,
    cuda_pinned_places,
    cuda_places,
    in_dygraph_mode,
    is_compiled_with_cuda,
)
from headrace.fluid.device import device_guard as device_guard
from headrace.fluid.version import require_version

__all__ = [
    "EMPTY_VAR_NAME",
    "GRAD_VAR_SUFFIX",
    "TEMP_VAR_NAME",
    "ZERO_VAR_SUFFIX",
    "Block",
    "OpRole",
    "Operator",
    "Parameter",
    "Program",
    "Variable",
    "convert_np_dtype_to_dtype_",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "default_main_program",
    "default_startup_program",
    "grad_var_name",
    "in_dygraph_mode",
    "is_compiled_with_cuda",
    "load_op_library",
    "name_scope",
    "program_guard",
    "require_version",
    "switch_main_program",
    "switch_startup_program",
]

#: Fluid's names, which programs of their own tell apart from theirs; there are no such variables here.
TEMP_VAR_NAME = "@TEMP@"
ZERO_VAR_SUFFIX = "@ZERO"

#: An executor refuses blocks that lie deeper.
_MAX_BLOCK_DEPTH = 64


class Program:
    """A program, which an Executor runs: blocks of operators and variables.

    Attributes:
        random_seed: 0, the default: random operators draw afresh in each process. Otherwise initial values, layers and
            optimizers that draw, shuffled and random readers that are added afterwards get seeds that follow from this
            one, so that training repeats. Layers draw other numbers in each run, which they count in persistable
            variables, so that training that is resumed from a checkpoint goes on with the same numbers.
    """

    def __init__(self) -> None:
        self._start(core.ProgramDesc())

    def _start(self, desc: core.ProgramDesc) -> None:
        self.desc = desc
        self.random_seed = 0
        self._seeds_given = 0
        #: What operators that are added now are in the program for.
        self._role = OpRole.FORWARD
        self._role_var: tuple[str, ...] = ()
        self.current_block_idx = 0
        self.blocks = [Block(self, i) for i in range(desc.num_blocks())]
        #: Names that were fed and are not declared, of which an Executor has warned.
        self._ignored_feeds: set[str] = set()
        #: How often each name scope has been entered.
        self._name_scope_uses: dict[str, int] = {}
        #: Variables of steps that were unrolled → those that have taken their places; of memories, none.
        self._unrolled: dict[str, list[str]] = {}
        self._sync_with_desc()

    def _sync_with_desc(self) -> None:
        """Takes in what C++ has added."""
        self.blocks += [Block(self, i) for i in range(len(self.blocks), self.desc.num_blocks())]
        for block in self.blocks:
            block._sync_with_desc()

    def _adopt(self, variable: Variable) -> None:
        """Declares a persistable variable of another program, which shares the scope with this one."""
        if not self.global_block().has_var(variable.name):
            self.global_block()._clone_variable(variable)

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    def _declares(self, name: str) -> bool:
        return any(name in block.vars for block in self.blocks)

    def _has_name(self, name: str) -> bool:
        """Whether it stands for a variable, or for those of an unrolled step."""
        return name in self._unrolled or self._declares(name)

    def global_block(self) -> Block:
        """The root block, in which parameters live."""
        return self.blocks[0]

    def block(self, index: int) -> Block:
        if not 0 <= check_integer(index, "Program.block: index") < len(self.blocks):
            raise errors.OutOfRange(f"the program has {len(self.blocks)} blocks, there is no block {index}")
        return self.blocks[index]

    def current_block(self) -> Block:
        """The block to which layers add their operators."""
        return self.blocks[self.current_block_idx]

    def _create_block(self, parent_idx: int | None = None) -> Block:
        parent_idx = self.current_block_idx if parent_idx is None else parent_idx
        depth, around = 1, self.blocks[parent_idx]
        while around.parent_idx >= 0:
            depth, around = depth + 1, self.blocks[around.parent_idx]
        if depth > _MAX_BLOCK_DEPTH:
            raise errors.InvalidArgument(
                f"a block within block {parent_idx} would lie more than {_MAX_BLOCK_DEPTH} blocks deep"
            )
        self.desc.append_block(parent_idx)
        block = Block(self, len(self.blocks))
        self.blocks.append(block)
        self.current_block_idx = block.idx
        return block

    def _rollback(self) -> None:
        self.current_block_idx = self.current_block().parent_idx

    @contextlib.contextmanager
    def _new_block(self) -> Iterator[Block]:
        """Within it, layers are added to a new block within the current one. If that fails, the block stays empty, so
        that it changes nothing.
        """
        block = self._create_block()
        try:
            yield block
        except BaseException:
            self._empty_blocks(block.idx)
            raise
        finally:
            self._rollback()

    @contextlib.contextmanager
    def _block_guard(self, index: int | None = None) -> Iterator[None]:
        """Within it, layers are added to that block; by default, to the one around the current block."""
        inside = self.current_block_idx
        self.current_block_idx = self.current_block().parent_idx if index is None else index
        try:
            yield
        finally:
            self.current_block_idx = inside

    def _empty_blocks(self, first: int) -> None:
        """Takes everything out of that block and all later ones, which nothing runs: describing the first has failed,
        and the later ones lie in it.
        """
        for block in self.blocks[first:]:
            for index in reversed(range(len(block.ops))):
                block._remove_op(index)
            for name in list(block.vars):
                block._remove_var(name)

    def _next_seed(self) -> int:
        """A seed for a random operator; 0 stands for a fresh one."""
        if self.random_seed == 0:
            return 0
        self._seeds_given += 1
        # splitmix64: neighbouring seeds and neighbouring operators get unrelated streams.
        z = (int(self.random_seed) * 0x9E3779B97F4A7C15 + self._seeds_given * 0xD1B54A32D192ED03) & (2**64 - 1)
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return (z ^ (z >> 31)) % (2**31 - 1) + 1

    @contextlib.contextmanager
    def _role_guard(self, role: OpRole, role_var: Iterable[Variable | str] = ()) -> Iterator[None]:
        """Operators added within it are in the program for ``role``.

        Args:
            role_var: a parameter and its gradient, if they are about these.
        """
        before = self._role, self._role_var
        self._role, self._role_var = role, tuple(names_of(role_var))
        try:
            yield
        finally:
            self._role, self._role_var = before

    def _optimized_guard(self, param_and_grads: Iterable[Variable | str]) -> contextlib.AbstractContextManager[None]:
        """Fluid's name for ``_role_guard`` of operators that update a parameter."""
        return self._role_guard(OpRole.OPTIMIZE, param_and_grads)

    def _lr_schedule_guard(self, is_with_opt: bool = False) -> contextlib.AbstractContextManager[None]:
        """Fluid's name for ``_role_guard`` of operators that compute a learning rate."""
        return self._role_guard(OpRole.LR_SCHED)

    def _role_attributes(self) -> dict[str, Any]:
        """The attributes of an operator that is added now, whatever it is."""
        attributes: dict[str, Any] = {core.OP_ROLE: int(self._role)}
        if self._role_var:
            attributes[core.OP_ROLE_VAR] = list(self._role_var)
        if _name_scopes:
            attributes[core.OP_NAME_SCOPE] = _current_name_scope()
        return attributes

    def list_vars(self) -> Iterator[Variable]:
        for block in self.blocks:
            yield from block.vars.values()

    def all_parameters(self) -> list[Parameter]:
        return [parameter for block in self.blocks for parameter in block.all_parameters()]

    def clone(self, for_test: bool = False) -> Program:
        """A copy that shares parameters and readers by name; ``for_test``: one that evaluates, and trains nothing.

        With ``for_test`` the copy computes as in inference (dropout and batch_norm know of it) and has neither the
        backward pass nor the optimizer's operators, nor what computes learning rates, nor the variables of these: the
        attribute "op_role" of an operator, which is stored with a program, says which they are. Random operators whose
        runs the program counts draw afresh in each run of the copy, which counts none.
        """
        program = self._of_desc(self.desc.copy())
        if for_test:
            program._drop_backward()
            program._set_is_test()
        return program

    def _of_desc(self, desc: core.ProgramDesc) -> Program:
        """A program of ``desc``, a copy or a part of this one's, that shares parameters and readers by name."""
        program = Program.__new__(Program)
        program._start(desc)
        program.random_seed = self.random_seed
        program._seeds_given = self._seeds_given
        program._name_scope_uses = dict(self._name_scope_uses)
        program._unrolled = dict(self._unrolled)
        for mine, copy in zip(self.blocks, program.blocks):
            for name, var in mine.vars.items():
                if name in copy.vars:
                    copy.vars[name] = var._copy_to(copy) if hasattr(var, "_copy_to") else _copy_variable(var, copy)
        return program

    def _inference_optimize(self, prune_read_op: bool = True) -> Program:
        """A copy that computes as in inference and keeps all operators, but those that read if ``prune_read_op``: what
        they read is to be fed.
        """
        program = self.clone()
        root = program.global_block()
        readers = {var.name for var in root.vars.values() if var.type == VarType.READER} if prune_read_op else set()
        for index in range(len(root.ops) - 1, -1, -1):
            op = root.ops[index]
            if not readers.isdisjoint(_names_in(op)):
                root._remove_op(index)
        for name in readers:
            root._remove_var(name)
        program._set_is_test()
        return program

    def _set_is_test(self) -> None:
        """Has operators that differ in training compute as in inference."""
        for block in self.blocks:
            for op in block.ops:
                if op.has_attr("is_test"):
                    op._set_attr("is_test", True)

    def _drop_backward(self) -> None:
        """Removes the operators that only training needs, and the variables that only they use, but no parameters."""
        dropped: set[str] = set()
        written: set[str] = set()
        for_updates: set[str] = set()
        counted = self._counted()
        counters = self._counters()
        for block in self.blocks:
            for index in range(len(block.ops) - 1, -1, -1):
                op = block.ops[index]
                if op.is_backward:
                    dropped.update(_names_in(op))
                    written.update(op.output_arg_names)
                    if op._role & (OpRole.OPTIMIZE | OpRole.LR_SCHED):
                        for_updates.update(op.input_arg_names)
                    block._remove_op(index)
        # What a block draws is no part of what it does for updates.
        dropped.update(self._drop_sources(for_updates - counters), self._drop_readers(written))
        self._draw_afresh(counted - self._counted())
        dropped -= {name for block in self.blocks for op in block.ops for name in _names_in(op)}
        for block in self.blocks:
            for name in dropped & block.vars.keys():
                if not isinstance(block.vars[name], Parameter) and not block.vars[name].is_data:
                    block._remove_var(name)

    def _counted(self) -> set[str]:
        """The names of what its operators count up."""
        ops = (op for block in self.blocks for op in block.ops)
        return {name for op in ops if op.type == "increment" for name in op.output_arg_names}

    def _counters(self) -> set[str]:
        """The names of the variables that count the runs of random operators."""
        return {name for block in self.blocks for op in block.ops for name in op.input("Seed")}

    def _draw_afresh(self, counters: set[str]) -> None:
        """Has random operators draw afresh whose runs ``counters`` counted, and nothing counts any more: they would
        draw the same numbers in every run. ``Prune`` of C++ does so, too.
        """
        for op in (op for block in self.blocks for op in block.ops):
            if not counters.isdisjoint(op.input("Seed")):
                op._remove_input("Seed")
                op._set_attr("seed", 0)

    def _drop_sources(self, names: set[str]) -> set[str]:
        """Removes the operators of the root block that compute ``names`` and nothing else, if no other operator reads
        these: a program's own schedule of learning rates, or what it does with gradients. Returns the names that the
        operators mention.
        """
        root, mentioned, wanted = self.global_block(), set[str](), set(names)
        readers = _readers(op for block in self.blocks for op in block.ops)
        read_later: set[str] = set()
        for index in range(len(root.ops) - 1, -1, -1):
            op = root.ops[index]
            outputs = set(op.output_arg_names)
            own = _readers([op, *(each for block in self._blocks_in(op) for each in block.ops)])
            kept = {name for name in outputs & root.vars.keys() if root.vars[name].persistable}
            is_read = outputs & read_later or any(readers[name] > own[name] for name in kept)
            if is_read or not outputs or not outputs <= wanted or op._role & OpRole.LOSS:
                read_later |= own.keys()
            else:
                wanted |= own.keys()
                readers.subtract(own)
                mentioned.update(self._drop(index))
        return mentioned

    def _drop_readers(self, names: set[str]) -> set[str]:
        """Removes the operators of the root block that read ``names``, which nothing writes any more, or what such
        operators have written: the norm of a gradient, say. Returns the names that the operators mention.
        """
        root, mentioned, lost = self.global_block(), set[str](), set(names)
        if not any(op._role & OpRole.LOSS for op in root.ops):  # gradients may be a part of what will be a loss
            return mentioned
        lasting = {name for name, var in root.vars.items() if var.persistable or var.is_data}
        lost -= lasting
        index = 0
        while index < len(root.ops):
            op = root.ops[index]
            outputs = set(op.output_arg_names)
            if lost.isdisjoint(op.input_arg_names) or op._role & OpRole.LOSS:
                lost -= outputs
                index += 1
            else:
                lost |= outputs - lasting
                mentioned.update(self._drop(index))
        return mentioned

    def _drop(self, index: int) -> set[str]:
        """Removes an operator of the root block, with those that it runs. Returns the names that they mention."""
        root = self.global_block()
        blocks = list(self._blocks_in(root.ops[index]))
        inside = [root.ops[index], *(op for block in blocks for op in block.ops)]
        for block in blocks:
            for position in range(len(block.ops) - 1, -1, -1):
                block._remove_op(position)
        root._remove_op(index)
        return {name for op in inside for name in _names_in(op)}

    def _blocks_in(self, op: Operator) -> Iterator[Block]:
        """The block that an operator runs, and those that its operators run."""
        if op.has_attr("sub_block"):
            block = self.blocks[op.attr("sub_block")]
            yield block
            for inner in block.ops:
                yield from self._blocks_in(inner)

    def _prune(self, targets: Sequence[Variable | str], feeds: Sequence[str] = ()) -> Program:
        """A copy with only the operators of the root block that ``targets`` need when ``feeds`` are given."""
        desc = self.desc.copy()
        desc.prune(list(feeds), names_of(targets))
        return self._of_desc(desc)

    def _readers_read(self) -> set[str]:
        """The names of the readers from which its operators read."""
        return {op.input("Reader")[0] for block in self.blocks for op in block.ops if op.type == "read"}

    def _reader_names(self) -> frozenset[str]:
        """The names of its variables that are readers."""
        return frozenset(var.name for var in self.list_vars() if var.type == VarType.READER)

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """The program in the text format of Protocol Buffers; ``repr`` gives a listing. The arguments are Fluid's and
        make no difference."""
        return self.desc.to_text_format()

    def serialize_to_string(self) -> bytes:
        """The program as bytes, in the format of framework.proto; equal programs give equal bytes."""
        return self.desc.serialize_to_string()

    @staticmethod
    def parse_from_string(binary_str: bytes) -> Program:
        """The program that ``serialize_to_string`` (of the program or of its ``desc``) wrote.

        Raises:
            TypeMismatch: it is given something else than bytes.
            DataLoss: the bytes are no program.
            NotFound: the program uses an operator or a variable that does not exist.
        """
        if not isinstance(binary_str, bytes):
            raise errors.TypeMismatch(
                f"Program.parse_from_string: expected bytes, from serialize_to_string or a file that is opened with "
                f"'rb', got {type(binary_str).__name__}"
            )
        program = Program.__new__(Program)
        program._start(core.ProgramDesc.parse_from_string(binary_str))
        return program

    def __repr__(self) -> str:
        return "\n".join(block.to_string() for block in self.blocks)


def _current_expected_place() -> CPUPlace:
    """Fluid's name for where operators run."""
    return CPUPlace()


def _copy_variable(var: Variable, block: Block) -> Variable:
    copy = type(var)(block, var.name)
    copy._objects = dict(var._objects)
    return copy


_main_program = Program()
_startup_program = Program()
_name_scopes: list[str] = []


def default_main_program() -> Program:
    """The program to which layers add their operators."""
    return _main_program


def default_startup_program() -> Program:
    """The program to which layers add operators that run once: initial values of parameters, creation of readers."""
    return _startup_program


def _get_var(name: str, program: Program | None = None) -> Variable:
    """The variable of that name of the root block, of the main program unless another is given. Fluid's programs use
    it. NotFound if there is none.
    """
    return (default_main_program() if program is None else program).global_block().var(name)


def switch_main_program(program: Program) -> Program:
    """Makes ``program`` the default main program; returns the one before."""
    global _main_program
    before, _main_program = _main_program, program
    return before


def switch_startup_program(program: Program) -> Program:
    """Makes ``program`` the default startup program; returns the one before."""
    global _startup_program
    before, _startup_program = _startup_program, program
    return before


@contextlib.contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Within it, the given programs are the default ones."""
    for program in (main_program, startup_program):
        if program is not None and not isinstance(program, Program):
            raise errors.TypeMismatch(f"program_guard takes Programs, got {type(program).__name__}")
    main = switch_main_program(main_program)
    startup = None if startup_program is None else switch_startup_program(startup_program)
    try:
        yield
    finally:
        switch_main_program(main)
        if startup is not None:
            switch_startup_program(startup)


@contextlib.contextmanager
def name_scope(prefix: str) -> Iterator[None]:
    """Groups the operators added within it under ``prefix`` (``Operator.namescope``), which is numbered if the program
    has used it there before: "block", "block_1". Names of variables do not change.
    """
    if not check_optional(prefix, str, "name_scope: prefix"):
        raise errors.InvalidArgument("a name scope needs a prefix")
    uses, path = default_main_program()._name_scope_uses, _current_name_scope() + prefix
    used = uses[path] = uses.get(path, 0) + 1
    _name_scopes.append(prefix if used == 1 else f"{prefix}_{used - 1}")
    try:
        yield
    finally:
        _name_scopes.pop()


def _current_name_scope() -> str:
    return "/" + "".join(f"{prefix}/" for prefix in _name_scopes)


def _readers(ops: Iterable[Operator]) -> Counter[str]:
    """How many operators read each variable."""
    return Counter(name for op in ops for name in set(op.input_arg_names))


def _names_in(op: Operator) -> list[str]:
    return [*op.input_arg_names, *op.output_arg_names]
