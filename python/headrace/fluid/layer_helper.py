"""The common part of layers: parameters, temporaries, bias and activation, in the default programs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union

import numpy as np

from headrace import errors
from headrace.fluid import _checks, core, initializer, unique_name
from headrace.fluid._names import free_name
from headrace.fluid._variable import SlotValue
from headrace.fluid.framework import (
    Block,
    Operator,
    OpRole,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
)
from headrace.fluid.param_attr import ParamAttr, ParamAttrLike, WeightNormParamAttr

__all__ = [
    "Ints",
    "LayerHelper",
    "append_layer",
    "append_random_op",
    "as_integers",
    "check_shape",
    "check_variable",
    "check_variables",
    "declare_known",
    "ints_argument",
]

#: Declares a variable of a name in the block of a startup program, and gives it its first value there.
Declaration = Callable[[str, Block], None]

#: Integers, as attributes or as variables: a list in which there may be variables of one element, or a variable of all.
Ints = Union[Variable, Sequence[Union[int, Variable]]]

#: Initializers that draw floating-point numbers.
_RANDOM = (
    initializer.MSRA,
    initializer.Normal,
    initializer.TruncatedNormal,
    initializer.Uniform,
    initializer.Xavier,
)

#: Attributes that every operator may have, and that do not change its result.
_OF_THE_PLACE = frozenset({core.OP_ROLE, core.OP_ROLE_VAR, core.OP_NAME_SCOPE, "op_callstack", "op_device"})

#: Stands for the layer's own argument.
_LAYERS_OWN: Any = object()


def check_variable(value: Any, what: str, layer: str) -> Variable:
    """``value``, which has to be a Variable, or a list of one."""
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not isinstance(value, Variable):
        raise errors.TypeMismatch(f"layers.{layer}: {what} has to be a Variable, got {type(value).__name__}")
    return value


def check_variables(value: Any, what: str, layer: str) -> list[Variable]:
    """A Variable, or a list of Variables, as a list."""
    if not isinstance(value, (Variable, Iterable)) or isinstance(value, str):
        raise errors.TypeMismatch(
            f"layers.{layer}: {what} has to be a Variable or a list of Variables, got {type(value).__name__}"
        )
    return [check_variable(item, what, layer) for item in ([value] if isinstance(value, Variable) else value)]


def check_shape(value: Any, what: str, layer: str) -> list[int]:
    """``value``, which has to be a list or tuple of integers, or an iterator, as a list."""
    if not isinstance(value, (list, tuple, range, np.ndarray, Iterator)):
        raise errors.TypeMismatch(f"layers.{layer}: {what} has to be a list or tuple of integers, got {value!r}")
    value = list(value)
    for extent in value:
        if not isinstance(extent, (int, np.integer)) or isinstance(extent, bool):
            raise errors.TypeMismatch(
                f"layers.{layer}: {what} has to consist of integers, got {extent!r} in {list(value)}"
            )
    return [int(extent) for extent in value]


def check_list(value: Any, what: str, layer: str) -> list[Any]:
    """``value``, which has to be a list, a tuple or another iterable, as a list."""
    return _checks.check_list(value, f"layers.{layer}: {what}")


def check_integer(value: Any, what: str, layer: str) -> int:
    """``value``, which has to be a whole number, as an integer."""
    return _checks.check_integer(value, f"layers.{layer}: {what}")


def check_number(value: Any, what: str, layer: str) -> float:
    """``value``, which has to be a number, as a float."""
    return _checks.check_number(value, f"layers.{layer}: {what}")


def ints_argument(
    value: Any, what: str, layer: str, attr: str, tensor: str, items: str, least: int | None = None
) -> tuple[dict[str, SlotValue], dict[str, list[int]]]:
    """The inputs and attributes by which an operator takes the integers ``value``: a Variable in slot ``tensor``; a
    list with Variables in it in slot ``items`` and, with -1 in their places, in ``attr``; any other list in ``attr``.

    Args:
        least: the least number that the operator takes, which it checks at the run if there are Variables.
    """
    if isinstance(value, Variable):
        return {tensor: as_integers(value)}, {}
    if not isinstance(value, (list, tuple)) or not any(isinstance(item, Variable) for item in value):
        return {}, {attr: check_shape(value, what, layer)}
    numbers = check_shape([-1 if isinstance(item, Variable) else item for item in value], what, layer)
    if least is not None and any(n < least for n, item in zip(numbers, value) if not isinstance(item, Variable)):
        given = [item.name if isinstance(item, Variable) else item for item in value]
        raise errors.InvalidArgument(f"layers.{layer}: {what} has to have numbers of {least} or more, got {given}")
    variables = [as_integers(item) if isinstance(item, Variable) else _constant(item) for item in value]
    return {items: variables}, {attr: numbers}


def as_integers(variable: Variable) -> Variable:
    """``variable``; if it is one of ``layers.data`` whose dtype was left at float32, the integers that it is fed with,
    as int64. Fractions would be cut off.
    """
    if not variable.is_data or variable._is_fed_as_declared or variable.dtype != core.VarType.FP32:
        return variable
    helper = LayerHelper("cast")
    out = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"X": variable}, {"Out": out}, {"in_dtype": int(variable.dtype), "out_dtype": int(out.dtype)})
    return out


def declare_known(out: Variable, dims: Sequence[int]) -> None:
    """Declares the dimensions of ``out`` that an operator is given as inputs, but that a layer knows: those of ``dims``
    that are not -1.
    """
    if len(dims) == len(out.shape):
        out.desc.shape = [now if known < 0 else known for known, now in zip(dims, out.shape)]


def _constant(value: int) -> Variable:
    """A variable of one element, int32 [1]."""
    helper = LayerHelper("fill_constant")
    out = helper.create_variable("int32", stop_gradient=True)
    attrs = {"shape": [1], "dtype": int(core.convert_dtype("int32")), "value": float(value)}
    helper.append_op(outputs={"Out": out}, attrs=attrs)
    return out


class LayerHelper:
    """One use of a layer. Layers of your own may be written as Fluid's are::

        def scaled(input, size, param_attr=None, bias_attr=None, act=None, name=None):
            helper = LayerHelper("scaled", **locals())
            weight = helper.create_parameter(helper.param_attr, [input.shape[-1], size], helper.input_dtype())
            out = helper.create_variable_for_type_inference(helper.input_dtype())
            helper.append_op(type="mul", inputs={"X": input, "Y": weight}, outputs={"Out": out})
            return helper.append_activation(helper.append_bias_op(out))

    Args:
        layer_type: the layer's name; names of variables begin with it.
        name: the user's name for this use; None: numbered.
        kwargs: the layer's arguments, of which the helper reads ``input``, ``param_attr``, ``bias_attr`` and ``act``.
    """

    def __init__(self, layer_type: str, name: str | None = None, **kwargs: Any) -> None:
        self.layer_type = layer_type
        if name is not None and not isinstance(name, str):  # another argument, most likely, in its place
            raise errors.TypeMismatch(f"layers.{layer_type}: name has to be a string, got {type(name).__name__}")
        self.name = unique_name.generate(layer_type) if name is None else name
        self.kwargs = kwargs

    @staticmethod
    def _skip_generated_name() -> None:
        """Leaves out the automatic name that Fluid gives to the step scopes of a block, so that later ones agree."""
        unique_name.generate("_generated_var")

    @property
    def main_program(self) -> Program:
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        return default_startup_program()

    def append_op(
        self,
        inputs: Mapping[str, SlotValue] | None = None,
        outputs: Mapping[str, SlotValue] | None = None,
        attrs: Mapping[str, Any] | None = None,
        type: str | None = None,
    ) -> Operator:
        """Adds an operator, of the layer's type unless another is given, to the current block."""
        return self.main_program.current_block().append_op(type or self.layer_type, inputs, outputs, attrs)

    def append_random_op(
        self,
        inputs: Mapping[str, SlotValue],
        outputs: Mapping[str, SlotValue],
        attrs: Mapping[str, Any],
        seed: int | None = None,
        draws: bool = True,
    ) -> Operator:
        """Adds an operator of the layer's type that draws random numbers to the current block; see the function."""
        block = self.main_program.current_block()
        return append_random_op(block, self.layer_type, inputs, outputs, attrs, self.name, seed, draws)

    def create_variable(
        self, dtype: Any = None, stop_gradient: bool | None = False, name: str | None = None, **declared: Any
    ) -> Variable:
        """A variable of the current block: without more than a dtype, a temporary, whose shape is what shape inference
        finds. Other arguments as of ``Block.create_var``.
        """
        block = self.main_program.current_block()
        name = free_name(f"{self.name}.tmp", block.program) if name is None else name
        return block.create_var(name=name, dtype=dtype, stop_gradient=stop_gradient, **declared)

    #: Fluid's names for it.
    create_variable_for_type_inference = create_variable
    create_tmp_variable = create_variable

    def create_global_variable(
        self,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        init: initializer.Initializer | None = None,
        persistable: bool = True,
        stop_gradient: bool = True,
        **declared: Any,
    ) -> Variable:
        """A variable of the root block that is not trained; ``init`` gives it a value in the startup program. Other
        arguments as of ``Block.create_var``. Without a name it gets the one that programs, and files, of Fluid's have
        for it: ``_generated_var_0``, and so on.
        """
        if name is None:
            declaration = None if init is None else declaration_of(shape, dtype, init)
            name = initialized_name("_generated_var", self.main_program, self.startup_program, declaration)
        variable = self.main_program.global_block().create_var(
            name=name, shape=shape, dtype=dtype, persistable=persistable, stop_gradient=stop_gradient, **declared
        )
        if init is not None:
            self.set_variable_initializer(variable, init)
        return variable

    def create_or_get_global_variable(self, name: str, **declared: Any) -> tuple[Variable, bool]:
        """The variable ``name`` of the root block, and whether it is new: see create_global_variable."""
        block = self.main_program.global_block()
        if block.has_var(name):
            return block.var(name), False
        return self.create_global_variable(name, **declared), True

    def set_variable_initializer(self, var: Variable, initializer: initializer.Initializer) -> Variable:
        """Has the startup program give a persistable variable its first value, unless it does so already."""
        block = self.startup_program.global_block()
        if not block.has_var(var.name):
            initializer(
                block.create_var(name=var.name, shape=var.shape, dtype=var.dtype, persistable=True, stop_gradient=True),
                block,
            )
        return var

    def get_parameter(self, name: str) -> Parameter:
        """The parameter ``name`` of the main program. TypeMismatch if it is no parameter."""
        found = self.main_program.global_block().var(name)
        if not isinstance(found, Parameter):
            raise errors.TypeMismatch(f"'{name}' is a variable, but not a parameter")
        return found

    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        """The layer's argument of that name, a variable or several."""
        given = self.kwargs.get(input_param_name)
        items = list(given) if isinstance(given, (list, tuple)) else [given]
        return [check_variable(item, input_param_name, self.layer_type) for item in items]

    def input(self, input_param_name: str = "input") -> Variable:
        """The layer's argument of that name, which is one variable."""
        found = self.multiple_input(input_param_name)
        if len(found) != 1:
            raise errors.InvalidArgument(
                f"layers.{self.layer_type}: {input_param_name} has to be one variable, got {len(found)}"
            )
        return found[0]

    def input_dtype(self, input_param_name: str = "input") -> core.VarType:
        """The dtype of the layer's inputs. TypeMismatch if they have several."""
        found = self.multiple_input(input_param_name)
        for item in found:
            if item.dtype != found[0].dtype:
                raise errors.TypeMismatch(
                    f"layers.{self.layer_type}: the inputs have to have one dtype, '{found[0].name}' is "
                    f"{core.dtype_name(found[0].dtype)}, '{item.name}' {core.dtype_name(item.dtype)}"
                )
        return found[0].dtype

    @property
    def param_attr(self) -> ParamAttr | Literal[False]:
        """The layer's argument ``param_attr``, as a ParamAttr."""
        return ParamAttr._to_attr(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> ParamAttr | Literal[False]:
        """The layer's argument ``bias_attr``, as a ParamAttr."""
        return ParamAttr._to_attr(self.kwargs.get("bias_attr"))

    def multiple_param_attr(self, length: int) -> list[ParamAttr | Literal[False]]:
        """One ParamAttr for each of ``length`` inputs, from the layer's argument ``param_attr``: one for all, or a
        list.
        """
        given = self.kwargs.get("param_attr")
        items = list(given) if isinstance(given, (list, tuple)) else [given] * length
        if len(items) != length:
            raise errors.InvalidArgument(
                f"layers.{self.layer_type}: param_attr has to have one item for each of the {length} inputs, got "
                f"{len(items)}"
            )
        return [ParamAttr._to_attr(copy.copy(item)) for item in items]

    def iter_inputs_and_params(
        self, input_param_name: str = "input"
    ) -> Iterator[tuple[Variable, ParamAttr | Literal[False]]]:
        """Each input with its ParamAttr."""
        inputs = self.multiple_input(input_param_name)
        return zip(inputs, self.multiple_param_attr(len(inputs)))

    def is_instance(self, param_name: str, cls: type | tuple[type, ...]) -> None:
        """Raises TypeMismatch unless the layer's argument ``param_name`` is of that class."""
        if not isinstance(self.kwargs.get(param_name), cls):
            raise errors.TypeMismatch(
                f"layers.{self.layer_type}: {param_name} has to be a {cls}, got "
                f"{type(self.kwargs.get(param_name)).__name__}"
            )

    def create_parameter(
        self,
        attr: ParamAttrLike,
        shape: Sequence[int],
        dtype: Any,
        is_bias: bool = False,
        default_initializer: initializer.Initializer | None = None,
        stop_gradient: bool = False,
    ) -> Variable | None:
        """A parameter and, in the startup program, its initialisation; None if ``attr`` is False; with a
        WeightNormParamAttr, what is made of its two parameters.

        A parameter that exists already is shared; its shape and dtype have to be the same.
        """
        attr = ParamAttr._to_attr(attr)
        if not attr:
            return None
        _checks.check_object(
            default_initializer,
            initializer.Initializer,
            "Constant(0.1)",
            f"layers.{self.layer_type}: default_initializer",
        )
        name = attr.name
        if name is None:
            name = unique_name.generate(f"{self.name}.{'b' if is_bias else 'w'}")
        if isinstance(attr, WeightNormParamAttr):
            return self._normalized(attr, name, shape, dtype, default_initializer)
        root = self.main_program.global_block()
        if root.has_var(name):
            existing = root.var(name)
            if not isinstance(existing, Parameter):
                raise errors.AlreadyExists(f"'{name}' is the name of a variable that is not a parameter")
            if list(existing.shape) != [int(d) for d in shape] or existing.dtype != core.convert_dtype(dtype):
                raise errors.AlreadyExists(
                    f"parameter '{name}' is shared, but it has shape {list(existing.shape)} and dtype "
                    f"{core.dtype_name(existing.dtype)}, where {list(shape)} and {core.dtype_name(dtype)} are needed"
                )
        init = attr.initializer or default_initializer
        if init is None:
            init = initializer.Constant(0.0) if is_bias else initializer.Xavier()
        element = core.dtype_name(dtype)
        if isinstance(init, _RANDOM) and element not in ("float32", "float64"):
            raise errors.TypeMismatch(
                f"layers.{self.layer_type}: the parameter '{name}' would be {element}, expected float32 or float64: "
                f"convert the input with layers.cast, or look ids up with layers.embedding"
            )
        parameter = root.create_parameter(
            shape,
            dtype,
            name,
            trainable=attr.trainable,
            regularizer=attr.regularizer,
            optimize_attr={"learning_rate": attr.learning_rate},
            stop_gradient=stop_gradient,
            gradient_clip_attr=attr.gradient_clip,
        )
        parameter.do_model_average = attr.do_model_average
        startup = self.startup_program.global_block()
        if not startup.has_var(name):
            variable = startup.create_parameter(shape, dtype, name, trainable=attr.trainable)
            init(variable, startup)
        return parameter

    def create_weight(
        self,
        attr: ParamAttrLike,
        shape: Sequence[int],
        dtype: Any,
        default_initializer: initializer.Initializer | None = None,
    ) -> Variable:
        """A parameter that the layer cannot do without. InvalidArgument if ``attr`` is False."""
        weight = self.create_parameter(attr, shape, dtype, default_initializer=default_initializer)
        if weight is None:
            raise errors.InvalidArgument(
                f"layers.{self.layer_type}: param_attr=False is not supported; the layer needs the parameter"
            )
        return weight

    def _normalized(
        self,
        attr: WeightNormParamAttr,
        name: str,
        shape: Sequence[int],
        dtype: Any,
        default_initializer: initializer.Initializer | None,
    ) -> Variable:
        """The weight g · v / ‖v‖."""
        rank, dim = len(shape), attr.dim
        if dim is not None and not -rank <= dim < rank:
            raise errors.InvalidArgument(
                f"WeightNormParamAttr: dim has to be in [{-rank}, {rank}) for a weight of {list(shape)}, got {dim}"
            )
        dim = None if dim is None else dim % rank
        plain = ParamAttr(
            None,
            attr.initializer,
            attr.learning_rate,
            attr.regularizer,
            attr.trainable,
            attr.gradient_clip,
            attr.do_model_average,
        )
        v = self.create_parameter(plain._named(f"{name}_v"), shape, dtype, default_initializer=default_initializer)
        startup = self.startup_program.global_block()
        has_lengths = startup.has_var(f"{name}_g")
        lengths = [shape[d] if d == dim else 1 for d in range(rank)]
        g = self.create_parameter(plain._named(f"{name}_g"), lengths, dtype, default_initializer=_NOTHING)
        assert v is not None  # the attributes are not False
        assert g is not None
        if not has_lengths:
            _append_norm(startup, v, dim, g)
        block = self.main_program.current_block()
        norm, ratio, weight = (self.create_variable(dtype) for _ in range(3))
        _append_norm(block, v, dim, norm)
        block.append_op("elementwise_div", {"X": g, "Y": norm}, {"Out": ratio})
        block.append_op("elementwise_mul", {"X": v, "Y": ratio}, {"Out": weight})
        return weight

    def append_bias(self, x: Variable, attr: ParamAttrLike, dim_start: int = 1, size: int | None = None) -> Variable:
        """``x`` plus a bias of shape ``[size]``, by default that of dimension ``dim_start``; ``x`` itself if ``attr``
        is False.
        """
        shape = [x.shape[dim_start] if size is None else size]
        return self._append_bias(x, attr, shape, dim_start)

    def append_bias_op(self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None) -> Variable:
        """``input_var`` plus a bias, as the layer's argument ``bias_attr`` says, of the shape of its dimensions from
        ``dim_start`` to before ``dim_end``.
        """
        return self._append_bias(input_var, self.bias_attr, input_var.shape[dim_start:dim_end], dim_start)

    def _append_bias(self, x: Variable, attr: ParamAttrLike, shape: Sequence[int], axis: int) -> Variable:
        bias = self.create_parameter(attr, shape, x.dtype, is_bias=True)
        if bias is None:
            return x
        out = self.create_variable(x.dtype)
        self.append_op({"X": x, "Y": bias}, {"Out": out}, {"axis": axis}, type="elementwise_add")
        return out

    def append_activation(self, x: Variable, act: str | Mapping[str, Any] | None = _LAYERS_OWN) -> Variable:
        """``x`` after the activation: an operator's type, or a dict with its type under "type" and its attributes; by
        default the layer's argument ``act``.
        """
        act = self.kwargs.get("act") if act is _LAYERS_OWN else act
        if act is None:
            return x
        if not isinstance(act, (str, Mapping)):
            raise errors.TypeMismatch(
                f"layers.{self.layer_type}: act has to be the name of an activation, or a dict with it, got {act!r:.80}"
            )
        attrs = {"type": act} if isinstance(act, str) else dict(act)
        if "type" not in attrs:
            raise errors.InvalidArgument(
                f"layers.{self.layer_type}: act has to have the name of an activation as its 'type', got {act!r:.80}"
            )
        act_type = attrs.pop("type")
        out = self.create_variable(x.dtype)
        self.append_op({"X": x}, {"Out": out}, attrs, type=act_type)
        return out


class _Nothing(initializer.Initializer):
    """Leaves the value to the caller, who adds an operator afterwards."""

    def __call__(self, var: Variable, block: Block) -> Any:
        return None


_NOTHING = _Nothing()


def _append_norm(block: Block, v: Variable, dim: int | None, out: Variable) -> None:
    """Has ``block`` put into ``out``, of the rank of ``v``, its norm, or those of the slices along ``dim``."""
    square, total = (block.create_var(dtype=v.dtype) for _ in range(2))
    others = [d for d in range(len(v.shape)) if d != dim]
    block.append_op("square", {"X": v}, {"Out": square})
    if others:
        attrs = {"dim": others, "reduce_all": dim is None, "keep_dim": True}
        block.append_op("reduce_sum", {"X": square}, {"Out": total}, attrs)
    block.append_op("sqrt", {"X": total if others else square}, {"Out": out})


def append_layer(
    op_type: str,
    inputs: Mapping[str, Any],
    attrs: Mapping[str, Any] | None = None,
    name: str | None = None,
    act: str | None = None,
    out_slot: str = "Out",
    intermediate: str | None = None,
    intermediate_first: bool = False,
    exact_name: bool = False,
) -> Variable:
    """Adds an operator with one output, of the dtype of its first input, and perhaps an activation.

    Args:
        inputs: Variables, or lists of them.
        exact_name: the output's name is ``name`` itself, as Fluid has it for some layers, and does not merely begin
            with it.
        intermediate: the slot of an output of the same dtype that is only for the gradient. That may depend on the
            inputs through it alone, so it has no stop_gradient: the gradient would count as a constant.
        intermediate_first: its name has the lower number, as Fluid has it for some layers.
    """
    variables = {slot: check_variables(value, slot, op_type) for slot, value in inputs.items()}
    slot, first = next(iter(variables.items()))
    if not first:
        raise errors.InvalidArgument(f"layers.{op_type}: {slot} has to be a Variable, got an empty list")
    helper = LayerHelper(op_type, name)
    dtype = first[0].dtype  # what IfElse gives is a list
    outputs = {}
    if intermediate is not None and intermediate_first:
        outputs[intermediate] = helper.create_variable(dtype)
    outputs[out_slot] = helper.create_variable(dtype, name=name if exact_name else None)
    if intermediate is not None and not intermediate_first:
        outputs[intermediate] = helper.create_variable(dtype)
    helper.append_op(variables, outputs, attrs)
    return helper.append_activation(outputs[out_slot], act)


def append_random_op(
    block: Block,
    op_type: str,
    inputs: Mapping[str, SlotValue],
    outputs: Mapping[str, SlotValue],
    attrs: Mapping[str, Any],
    name: str,
    seed: int | None = None,
    draws: bool = True,
) -> Operator:
    """Adds an operator that draws random numbers.

    With a ``seed``, which the user gives, it draws the same ones in each run. Without one, what it draws follows from
    the ``random_seed`` of the program, if there is one, and from a variable that counts its runs: other numbers in each
    run, and in each step of a loop, and the same ones when training is repeated or resumed. In the block of a
    ``Preprocessor`` it draws afresh for each batch.

    Args:
        name: that of the counter begins with it.
        draws: False: there is nothing to count, since the operator draws nothing with these arguments.
    """
    program, startup = default_main_program(), default_startup_program()
    counter = None
    if not seed:
        # The block of a reader can count nothing, and would draw the same numbers for each batch.
        seed = 0 if block._within_reader() else program._next_seed()
        # A startup program runs once, and cannot give a counter its first value before.
        if seed != 0 and draws and program is not startup:
            zero = initializer.Constant(0.0)
            counter = create_initialized_var(program, startup, f"{name}.run", [1], "int64", zero, bare=True)
            inputs = {**inputs, "Seed": counter}
    op = block.append_op(op_type, inputs, outputs, {**attrs, "seed": seed})
    if counter is not None:
        with program._role_guard(OpRole.OPTIMIZE):  # a clone for a test does not count, and draws afresh
            block.append_op("increment", {"X": counter}, {"Out": counter}, {"step": 1.0})
    return op


def create_initialized_var(
    main: Program,
    startup: Program,
    key: str,
    shape: Sequence[int],
    dtype: Any,
    init: initializer.Initializer | None = None,
    bare: bool = False,
    suffix: str = "",
    lod_level: int = 0,
) -> Variable:
    """A new persistable variable, not trained, in the root block of ``main``; ``init`` gives it a value in ``startup``,
    where extents that are not known are 1. ``key``, ``bare``, ``suffix``: of its name, see ``initialized_name``.
    """
    known = [1 if extent < 0 else extent for extent in shape]
    declaration = None if init is None else declaration_of(known, dtype, init)
    name = initialized_name(key, main, startup, declaration, bare=bare, suffix=suffix)
    variable = main.global_block().create_var(
        name=name, shape=shape, dtype=dtype, persistable=True, stop_gradient=True, lod_level=lod_level
    )
    if declaration is not None and not startup._has_name(name):
        declaration(name, startup.global_block())
    return variable


def declaration_of(shape: Sequence[int] | None, dtype: Any, init: initializer.Initializer) -> Declaration:
    """The declaration of a variable to which ``init`` gives its first value."""

    def declare(name: str, block: Block) -> None:
        init(block.create_var(name=name, shape=shape, dtype=dtype, persistable=True, stop_gradient=True), block)

    return declare


def initialized_name(
    key: str, main: Program, startup: Program, declaration: Declaration | None, bare: bool = False, suffix: str = ""
) -> str:
    """The next name of ``key`` that ``main`` does not have. ``startup`` may have it if it gives the variable the first
    value that ``declaration`` gives: programs that are built alike under ``unique_name.guard()`` share what optimizers
    and metrics keep, as they share parameters. For other arguments see ``free_name``.
    """
    name = free_name(key, main, bare=bare, suffix=suffix)
    while startup._has_name(name) and not _has_declaration(startup.global_block(), name, declaration):
        name = free_name(key, main, suffix=suffix)
    return name


def _has_declaration(block: Block, name: str, declaration: Declaration | None) -> bool:
    """Whether the variable ``name`` of a block is as ``declaration`` makes it."""
    if declaration is None or not block.has_var(name):
        return False
    other = Program().global_block()
    declaration(name, other)
    return _declared(block, name) == _declared(other, name)


def _declared(block: Block, name: str) -> tuple[Any, ...]:
    """What decides the variable ``name`` of a block and its first value."""
    variable = block.var(name)
    operators = [(op.type, op.input_arg_names, _deciding_attrs(op)) for op in block.ops if name in op.output_arg_names]
    return variable.shape, variable.dtype, variable.persistable, operators


def _deciding_attrs(op: Operator) -> dict[str, Any]:
    """The attributes of an operator, without those that say where in a program it is and what for."""
    return {name: value for name, value in op.all_attrs().items() if name not in _OF_THE_PLACE}
