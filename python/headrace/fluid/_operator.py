"""Operators of a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid._protocols import DeclaringBlock

__all__ = ["Operator"]

#: Stands in a slot of a description for no variable.
_NO_VARIABLE = "@EMPTY@"


class Operator:
    """An operator of a block, as it was when it was added."""

    def __init__(self, block: DeclaringBlock, desc: core.OpDesc) -> None:
        self.block = block
        self.desc = desc
        # The Python functions that a program calls live as long as its operators.
        self._functions: list[core.PyFunction] = []
        if desc.type == "py_func":
            ids = (desc.attrs()["forward_callable_id"], desc.attrs()["backward_callable_id"])
            self._functions = [core.PyFunction.find(id) for id in ids if id >= 0]

    @property
    def type(self) -> str:
        return self.desc.type

    @property
    def idx(self) -> int:
        """Its position in the block."""
        return next(i for i, op in enumerate(self.block.ops) if op is self)

    @property
    def is_backward(self) -> bool:
        """Whether its role ("op_role") is to train, since a backward pass, an optimizer or a schedule of learning rates
        has added it: ``clone(for_test=True)`` leaves it out.
        """
        return self.desc.is_training

    @property
    def _role(self) -> int:
        """The number that its attribute "op_role" is; see core.OpRole."""
        return int(self.desc.attrs().get(core.OP_ROLE, 0))

    @property
    def namescope(self) -> str:
        """The name scopes it was added in: "/encoder/layer_0/"."""
        return str(self.desc.attrs().get(core.OP_NAME_SCOPE, "/"))

    @property
    def input_names(self) -> list[str]:
        """Names of the input slots."""
        return self.desc.input_names()

    @property
    def output_names(self) -> list[str]:
        """Names of the output slots."""
        return self.desc.output_names()

    @property
    def input_arg_names(self) -> list[str]:
        """Names of all input variables."""
        return self.desc.input_arg_names()

    @property
    def output_arg_names(self) -> list[str]:
        """Names of all output variables."""
        names = self.desc.output_arg_names()
        return [name for slot in self.output_names for name in self.output(slot)] if _NO_VARIABLE in names else names

    def input(self, slot: str) -> list[str]:
        """Names of the variables in an input slot."""
        return self.desc.input(slot)

    def output(self, slot: str) -> list[str]:
        """Names of the variables in an output slot. As in Fluid, a slot for one variable is empty if that is not
        wanted, such as a gradient that nobody reads.
        """
        names = self.desc.output(slot)
        return [] if names == [_NO_VARIABLE] else names

    @property
    def attr_names(self) -> list[str]:
        return list(self.desc.attrs())

    def has_attr(self, name: str) -> bool:
        return name in self.desc.attrs()

    def attr(self, name: str) -> Any:
        """The value of an attribute. NotFound if there is none of that name."""
        attrs = self.desc.attrs()
        if name not in attrs:
            raise errors.NotFound(f"operator '{self.type}' has no attribute '{name}'; it has {', '.join(attrs)}")
        return attrs[name]

    def all_attrs(self) -> dict[str, Any]:
        return self.desc.attrs()

    def _set_attr(self, name: str, value: Any) -> None:
        position = self.idx
        self.block.desc.set_attr(position, name, value)
        self.desc = self.block.desc.ops()[position]

    def _remove_input(self, slot: str) -> None:
        """Leaves an optional input out."""
        self._replace({}, {}, without=slot)

    def _rename_input(self, old_name: str, new_name: str) -> None:
        """Has it read the variable ``new_name`` where it reads ``old_name``. That may be a name which ``old_name`` gets
        later, by ``Block._rename_var``.
        """
        self._expect(old_name, new_name)
        self._replace({old_name: new_name}, {})

    def _rename_output(self, old_name: str, new_name: str) -> None:
        """Has it write the variable ``new_name`` where it writes ``old_name``; see ``_rename_input``."""
        self._expect(old_name, new_name)
        self._replace({}, {old_name: new_name})

    def _expect(self, name: str, new_name: str) -> None:
        """Has the description declare ``new_name``, as ``name`` is, unless it does."""
        if self.block.desc.find_var(new_name) is None:
            variable = self.block._var_recursive(name)
            variable.block._describe_like(variable, new_name)

    def _replace(self, read: Mapping[str, str], written: Mapping[str, str], without: str | None = None) -> None:
        """Gives it other variables, by the names of those that it has, and none in the input slot ``without``."""
        slots = [slot for slot in self.input_names if slot != without]
        inputs = {slot: [read.get(name, name) for name in self.input(slot)] for slot in slots}
        outputs = {slot: [written.get(name, name) for name in self.desc.output(slot)] for slot in self.output_names}
        attrs = self.all_attrs()
        if "sub_block" in attrs:
            attrs["sub_block"] = self.block.program.blocks[attrs["sub_block"]].desc
        if core.OP_ROLE_VAR in attrs:
            attrs[core.OP_ROLE_VAR] = [{**read, **written}.get(name, name) for name in attrs[core.OP_ROLE_VAR]]
        position, block = self.idx, self.block.desc
        self.desc = block.insert_op(position, self.type, inputs, outputs, attrs)
        block.remove_ops(position + 1, position + 2)

    def to_string(self, throw_on_error: bool = False) -> str:
        """A line about the operator. The argument is Fluid's and makes no difference."""
        return str(self)

    def __repr__(self) -> str:
        return str(self.desc)
