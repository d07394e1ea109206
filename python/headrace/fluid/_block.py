"""Blocks of a program: lists of operators, and the variables that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace._warnings import warn
from headrace.fluid import core, unique_name
from headrace.fluid._checks import check_instance, check_integer, check_list, check_optional
from headrace.fluid._names import free_name
from headrace.fluid._operator import Operator
from headrace.fluid._parameter import Parameter
from headrace.fluid._protocols import DeclaringProgram, ErrorClip, GradientClip, Regularizer
from headrace.fluid._variable import SlotValue, Variable
from headrace.fluid.core import VarType

__all__ = ["Block", "names_of"]


def _attributes(op_type: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes as the operator's description takes them. Those that are None are left out. So are those that the
    operator lacks, with a warning; but one whose name is almost that of another is a mistake.
    """
    taken = {}
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(name, str) and not core.has_attr_like(op_type, name):
            warn(f"operator '{op_type}' has no attribute '{name}': it is left out, as Fluid does", UserWarning)
            continue
        taken[name] = value.desc if isinstance(value, Block) else value
    return taken


def names_of(items: Iterable[Variable | str]) -> list[str]:
    return [item.name if isinstance(item, Variable) else item for item in items]


def _slots(slots: Mapping[str, SlotValue] | None, op_type: str, block: Block) -> dict[str, list[str]]:
    """The names in the slots of an operator of ``block``, whose program declares what persists in another one."""
    out = {}
    for slot, value in (slots or {}).items():
        items: Sequence[Any] = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        given = []
        for item in items:
            if not isinstance(item, (Variable, str)):
                raise errors.TypeMismatch(
                    f"slot '{slot}' of operator '{op_type}' takes variables or their names, got {type(item).__name__}"
                )
            if isinstance(item, Variable) and item.block.program is not block.program:
                if item.persistable:
                    block.program._adopt(item)
                elif block._find_var_recursive(item.name) is None:
                    if _is_optional_gradient(op_type, slot):
                        continue
                    raise errors.NotFound(
                        f"block {block.idx} and its ancestors declare no variable '{item.name}', which is in slot "
                        f"'{slot}' of '{op_type}': it belongs to another program; build what belongs together within "
                        f"one program_guard"
                    )
            given.append(item)
        if given:
            out[slot] = names_of(given)
    return out


def _is_optional_gradient(op_type: str, slot: str) -> bool:
    """Whether it is a gradient that the gradient operator takes for zero if the program lacks it, as in Fluid."""
    if not (op_type.endswith("_grad") and slot.endswith("@GRAD")):
        return False
    return any(each["name"] == slot and each["dispensable"] for each in core.op_info(op_type)["inputs"])


class Block:
    """A list of operators and the variables that they use."""

    def __init__(self, program: DeclaringProgram, idx: int) -> None:
        self.program = program
        self.idx = idx
        self.desc = program.desc.block(idx)
        #: The variables of this very block, in order of creation.
        self.vars: dict[str, Variable] = {}
        #: The operators in the order in which they run.
        self.ops: list[Operator] = []
        #: Whether a reader runs it on each batch: it can write no variable of the blocks around it.
        self._runs_in_reader = False

    @property
    def parent_idx(self) -> int:
        """Index of the block around this one, -1 for the root."""
        return self.desc.parent

    def has_var(self, name: str) -> bool:
        """Whether this very block declares ``name``."""
        return name in self.vars

    def var(self, name: str) -> Variable:
        """The variable ``name`` of this very block. NotFound if there is none."""
        check_instance(name, str, "Block.var: name")
        if name not in self.vars:
            raise errors.NotFound(f"block {self.idx} declares no variable '{name}'")
        return self.vars[name]

    def _find_var_recursive(self, name: str) -> Variable | None:
        block: Block | None = self
        while block is not None:
            if name in block.vars:
                return block.vars[name]
            block = self.program.blocks[block.parent_idx] if block.parent_idx >= 0 else None
        return None

    def _within_reader(self) -> bool:
        """Whether it is the block of a reader, or lies in one."""
        block: Block | None = self
        while block is not None and not block._runs_in_reader:
            block = self.program.blocks[block.parent_idx] if block.parent_idx >= 0 else None
        return block is not None

    def _var_recursive(self, name: str) -> Variable:
        found = self._find_var_recursive(name)
        if found is None:
            raise errors.NotFound(f"block {self.idx} and its ancestors declare no variable '{name}'")
        return found

    def all_parameters(self) -> list[Parameter]:
        return [var for var in self.vars.values() if isinstance(var, Parameter)]

    def iter_parameters(self) -> Iterator[Parameter]:
        return iter(self.all_parameters())

    def create_var(
        self,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        lod_level: int | None = None,
        persistable: bool | None = None,
        stop_gradient: bool | None = None,
        type: VarType = VarType.LOD_TENSOR,
        is_data: bool = False,
        error_clip: ErrorClip | None = None,
    ) -> Variable:
        """Declares a variable. Properties that are not given are left to shape inference.

        Raises:
            AlreadyExists: ``name`` is declared already and differs.
        """
        name = free_name("_generated_var", self.program) if name is None else name
        if not isinstance(name, str):
            raise errors.TypeMismatch(f"the name of a variable has to be a string, got {name!r:.80}")
        exists = self.desc.has_var(name)
        desc = self.desc.var(name)
        dims = None if shape is None else check_list(shape, f"the shape of '{name}'")
        given = {
            "kind": check_integer(type, f"the type of '{name}'"),
            "shape": dims and [-1 if d is None else check_integer(d, f"an extent of '{name}'") for d in dims],
            "dtype": None if dtype is None else int(core.convert_dtype(dtype)),
            "lod_level": None if lod_level is None else check_integer(lod_level, f"the lod_level of '{name}'"),
            "persistable": persistable,
            "stop_gradient": stop_gradient,
        }
        for key, value in given.items():
            if value is None:
                continue
            if exists and key in ("kind", "shape", "dtype", "lod_level") and getattr(desc, key) != value:
                shown = {"kind": lambda kind: VarType(kind).name, "dtype": core.dtype_name}.get(key, str)
                raise errors.AlreadyExists(
                    f"variable '{name}' is already declared with {key} {shown(getattr(desc, key))}, not {shown(value)}"
                )
            setattr(desc, key, value)
        variable = Variable(self, name)
        if is_data:
            variable.is_data = True
        if error_clip is not None:
            variable.error_clip = error_clip
        self.vars[name] = variable
        return variable

    def _clone_variable(self, var: Variable, force_persistable: bool = True) -> Variable:
        """Declares a variable of this block like ``var``, of another program, say.

        Args:
            force_persistable: it persists; otherwise, if ``var`` does.
        """
        return self.create_var(
            var.name,
            var.shape,
            var.dtype,
            var.lod_level,
            persistable=force_persistable or var.persistable,
            stop_gradient=True,
            type=var.type,
            is_data=var.is_data,
        )

    def create_parameter(
        self,
        shape: Sequence[int],
        dtype: Any,
        name: str | None = None,
        lod_level: int = 0,
        initializer: Callable[[Variable, Block], Operator] | None = None,
        trainable: bool = True,
        regularizer: Regularizer | None = None,
        optimize_attr: Mapping[str, float] | None = None,
        stop_gradient: bool = False,
        gradient_clip_attr: GradientClip | None = None,
        do_model_average: bool | None = None,
        error_clip: ErrorClip | None = None,
        is_data: bool = False,
    ) -> Parameter:
        """Declares a parameter in the root block; ``initializer`` adds the operator that gives it a value to this
        block, unless there is one already. AlreadyExists if the name is taken by something that differs.

        Args:
            optimize_attr: under "learning_rate", a factor on the optimizer's.
        """
        block = self.program.global_block()
        name = unique_name.generate("_param") if name is None else name
        if not isinstance(name, str):
            raise errors.TypeMismatch(f"the name of a parameter has to be a string, got {name!r:.80}")
        exists = block.has_var(name)
        if not isinstance(shape, Iterable):
            raise errors.TypeMismatch(f"the shape of parameter '{name}' has to be a list or tuple, got {shape!r}")
        for d in shape:
            if d is not None and not isinstance(d, (int, np.integer)):
                raise errors.TypeMismatch(
                    f"the shape of parameter '{name}' has to consist of integers, got {list(shape)}"
                )
        if any(d is None or d <= 0 for d in shape):
            raise errors.InvalidArgument(f"the shape of parameter '{name}' has to be known, got {list(shape)}")
        block.create_var(name, shape, dtype, lod_level, persistable=True, stop_gradient=stop_gradient)
        block.vars[name].desc.is_parameter = True
        parameter = Parameter(block, name)
        parameter._set_training(
            trainable, regularizer, {"learning_rate": 1.0, **(optimize_attr or {})}, gradient_clip_attr
        )
        if do_model_average is not None:
            parameter.do_model_average = do_model_average
        if error_clip is not None:
            parameter.error_clip = error_clip
        if is_data:
            parameter.is_data = True
        block.vars[name] = parameter
        is_initialized = exists and any(name in op.output_arg_names for op in self.ops)
        if initializer is not None and not is_initialized:
            initializer(parameter, self)
            parameter.desc.lod_level = lod_level  # the operator has inferred it again
        return parameter

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, SlotValue] | None = None,
        outputs: Mapping[str, SlotValue] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        """Adds an operator at the end and infers the shapes and dtypes of its outputs.

        Attributes by which Fluid chooses a library (``use_cudnn``, ``use_mkldnn``, …) are accepted for any operator
        and have no effect; so is ``is_test`` where a test makes no difference. Other attributes that the operator lacks
        are left out as well, with a UserWarning.

        Raises:
            NotFound: there is no such operator, a variable does not exist, or an attribute does not, but one that is
                spelt almost so.
            InvalidArgument, TypeMismatch: slots, attributes, shapes or dtypes do not fit.
        """
        return self._insert_op(len(self.ops), type, inputs, outputs, attrs)

    def _prepend_op(
        self,
        type: str,
        inputs: Mapping[str, SlotValue] | None = None,
        outputs: Mapping[str, SlotValue] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        return self._insert_op(0, type, inputs, outputs, attrs)

    def _insert_op(
        self,
        index: int,
        type: str,
        inputs: Mapping[str, SlotValue] | None = None,
        outputs: Mapping[str, SlotValue] | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> Operator:
        check_instance(type, str, "append_op: type")
        for what, given in (("inputs", inputs), ("outputs", outputs), ("attrs", attrs)):
            check_optional(given, Mapping, f"append_op: {what} of '{type}'")
        attributes = {**self.program._role_attributes(), **_attributes(type, attrs or {})}
        reads, writes = _slots(inputs, type, self), _slots(outputs, type, self)
        desc = self.desc.insert_op(index, type, reads, writes, attributes)
        op = Operator(self, desc)
        self.ops.insert(index, op)
        return op

    def _rename_var(self, name: str, new_name: str) -> Variable:
        """Renames a variable of this block, also in the operators that have it, and returns it. Values in scopes keep
        their name. NotFound if there is no such variable, AlreadyExists if the new name is taken.
        """
        variable = self.var(name)
        if self._find_var_recursive(check_instance(new_name, str, "Block._rename_var: new_name")) is not None:
            raise errors.AlreadyExists(f"'{name}' cannot be renamed to '{new_name}': there is such a variable")
        self._describe_like(variable, new_name)
        for block in self.program.blocks:
            if block._find_var_recursive(name) is variable:
                for op in block.ops:
                    if name in op.input_arg_names or name in op.output_arg_names:
                        op._replace({name: new_name}, {name: new_name})
        variable._name, variable.desc = new_name, self.desc.var(new_name)
        self.vars = {var.name: var for var in self.vars.values()}
        self.desc.remove_var(name)
        return variable

    def _describe_like(self, variable: Variable, name: str) -> None:
        """Has the description declare ``name`` with what that of ``variable`` says."""
        desc = self.desc.var(name)
        keys = ["kind", "shape", "dtype", "lod_level", "persistable", "stop_gradient", "is_parameter", "attrs"]
        for key in [*keys, "reader_specs"] if variable.type == VarType.READER else keys:
            setattr(desc, key, getattr(variable.desc, key))

    def _remove_op(self, index: int) -> None:
        self.desc.remove_ops(index, index + 1)
        del self.ops[index]

    def _remove_var(self, name: str) -> None:
        self.desc.remove_var(name)
        del self.vars[name]

    def _sync_with_desc(self) -> None:
        """Takes in what C++ has added: new variables, operators at the end, and those between that save values in new
        variables for the gradients.
        """
        added = set()
        for desc in self.desc.vars():
            if desc.name not in self.vars:
                cls = Parameter if desc.is_parameter else Variable
                self.vars[desc.name] = cls(self, desc.name)
                added.add(desc.name)
        known = iter(self.ops)
        ops = []
        for op_desc in self.desc.ops():
            saves = op_desc.type == "assign" and not added.isdisjoint(op_desc.output_arg_names())
            op = None if saves else next(known, None)
            if op is None:
                op = Operator(self, op_desc)
            op.desc = op_desc
            ops.append(op)
        self.ops = ops

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """A listing. The arguments are Fluid's and make no difference."""
        lines = [f"block {self.idx} (parent {self.parent_idx})"]
        lines += [f"  {var!r}" for var in self.vars.values()]
        lines += [f"  {op!r}" for op in self.ops]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.to_string()
