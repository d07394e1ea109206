"""The C++ part of the package, under the names of Fluid's ``core``."""

from __future__ import annotations

import enum
import os
from collections.abc import Collection, Iterable, MutableSequence, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace._core import (
    BlockDesc,
    Executor,
    FileSetLock,
    LoDTensor,
    LoDTensorBlockingQueue,
    OpDesc,
    PreparedProgram,
    ProgramDesc,
    PyFunction,
    RecordIOWriter,
    Scope,
    ScopeVariable,
    SelectedRows,
    VarDesc,
    append_backward,
    append_gradients,
    has_attr_like,
    init_lod_tensor_blocking_queue,
    load_op_library,
    op_info,
    op_types,
    read_tensors,
    replace_files,
    variable_file_name,
)
from headrace.errors import EOFException, QueueClosedError
from headrace.errors import HeadraceError as EnforceNotMet
from headrace.fluid._refused import refusal

__all__ = [
    "EMPTY_VAR_NAME",
    "GRAD_VAR_SUFFIX",
    "BlockDesc",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "Executor",
    "FileSetLock",
    "LoDTensor",
    "LoDTensorArray",
    "LoDTensorBlockingQueue",
    "OpDesc",
    "OpRole",
    "PreparedProgram",
    "ProgramDesc",
    "PyFunction",
    "QueueClosedError",
    "RecordIOWriter",
    "Scope",
    "ScopeVariable",
    "SelectedRows",
    "VarDesc",
    "VarType",
    "append_backward",
    "append_gradients",
    "array_of",
    "as_float",
    "convert_dtype",
    "dtype_name",
    "exact_float",
    "get_cuda_device_count",
    "get_fetch_variable",
    "get_grad_op_desc",
    "has_attr_like",
    "init_lod_tensor_blocking_queue",
    "is_compiled_with_cuda",
    "load_op_library",
    "op_info",
    "op_proto_and_checker_maker",
    "op_types",
    "read_tensors",
    "replace_files",
    "set_feed_variable",
    "variable_file_name",
]


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "core", name)


class VarType(enum.IntEnum):
    """Element types of tensors, and kinds of variables. The numbers are Fluid's."""

    BOOL = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    FP16 = 4
    FP32 = 5
    FP64 = 6
    UINT8 = 20
    INT8 = 21
    BF16 = 22
    UINT16 = 101
    UINT32 = 102
    UINT64 = 103

    LOD_TENSOR = 7
    SELECTED_ROWS = 8
    FEED_MINIBATCH = 9
    FETCH_LIST = 10
    STEP_SCOPES = 11
    LOD_RANK_TABLE = 12
    LOD_TENSOR_ARRAY = 13
    PLACE_LIST = 14
    READER = 15
    RAW = 17


VarDesc.VarType = VarType  # where Fluid's programs look for it
ProgramDesc.flush = lambda self: None  # a description has no parts that lag behind
# As they ask for and set what is a property here.
VarDesc.type = lambda self: VarType(self.kind)
VarDesc.get_shape = lambda self: self.shape
VarDesc.set_shape = lambda self, shape: setattr(self, "shape", list(shape))
VarDesc.set_dtype = lambda self, dtype: setattr(self, "dtype", int(dtype))
VarDesc.set_lod_level = lambda self, lod_level: setattr(self, "lod_level", lod_level)
VarDesc.set_persistable = lambda self, persistable: setattr(self, "persistable", persistable)
VarDesc.need_check_feed = lambda self: "need_check_feed" in self.attrs


def _set_need_check_feed(self: VarDesc, need_check_feed: bool) -> None:
    others = {name: value for name, value in self.attrs.items() if name != "need_check_feed"}
    self.attrs = {**others, "need_check_feed": True} if need_check_feed else others


VarDesc.set_need_check_feed = _set_need_check_feed


def _inputs_in(block: BlockDesc, op: OpDesc) -> dict[str, list[str]]:
    """The inputs of an operator of no block as one of ``block``. A gradient operator reads the gradient of each result;
    where the block has some of them, those that it does not have are left out.
    """
    inputs = {slot: op.input(slot) for slot in op.input_names()}
    gradients = {name for name in op.input_arg_names() if name.endswith(GRAD_VAR_SUFFIX)}
    missing = {name for name in gradients if block.find_var(name) is None}
    if missing == gradients:
        return inputs
    known = {slot: [EMPTY_VAR_NAME if name in missing else name for name in names] for slot, names in inputs.items()}
    return {slot: names for slot, names in known.items() if any(name != EMPTY_VAR_NAME for name in names)}


def _infer_shape(self: OpDesc, block: BlockDesc) -> None:
    """Has ``block`` declare the operator's outputs as it writes them now that its inputs are described anew. One that
    runs a block of its own is left as it is.
    """
    if "sub_block" in self.attrs():
        return
    outputs = {slot: self.output(slot) for slot in self.output_names()}
    end = block.op_count()
    block.append_op(self.type, _inputs_in(block, self), outputs, self.attrs())
    block.remove_ops(end, end + 1)


OpDesc.infer_shape = OpDesc.infer_var_type = _infer_shape


class NewOpDesc:
    """What ``block.desc.append_op()`` gives: an operator that stands in the block once it is copied from another."""

    def __init__(self, block: BlockDesc) -> None:
        self._block = block
        self._op: OpDesc | None = None
        self._position = 0

    def copy_from(self, op: OpDesc) -> None:
        """Has the block end with ``op``. Outputs that the block does not know are declared.

        Raises:
            FailedPrecondition: it has been copied already.
        """
        if self._op is not None:
            raise errors.FailedPrecondition(
                f"this description is the operator '{self._op.type}' already: append_op() makes another one"
            )
        block = self._block
        written = {name for name in op.output_arg_names() if name != EMPTY_VAR_NAME}
        undeclared = sorted(name for name in written if block.find_var(name) is None)
        for name in undeclared:
            block.var(name)
        outputs = {slot: op.output(slot) for slot in op.output_names()}
        try:
            self._op = _append_op(block, op.type, _inputs_in(block, op), outputs, op.attrs())
        except Exception:
            for name in undeclared:
                block.remove_var(name)
            raise
        self._position = block.op_count() - 1

    def set_attr(self, name: str, value: Any) -> None:
        """Sets an attribute of the operator in the block, such as its role.

        Raises:
            FailedPrecondition: there is none yet, or it no longer stands where it was appended.
        """
        op = self._described()
        ops = self._block.ops()
        if self._position >= len(ops) or str(ops[self._position]) != str(op):
            raise errors.FailedPrecondition(
                f"the operator '{op.type}' no longer stands where it was appended, at {self._position} of its block"
            )
        self._block.set_attr(self._position, name, value)
        self._op = self._block.ops()[self._position]

    _set_attr = set_attr

    def _described(self) -> OpDesc:
        if self._op is None:
            raise errors.FailedPrecondition("copy_from has to say first which operator this is")
        return self._op

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"a new operator has no {name}")
        return getattr(self._described(), name)


_append_op = BlockDesc.append_op


def _append_op_or_a_new_one(self: BlockDesc, *args: Any, **kwargs: Any) -> OpDesc | NewOpDesc:
    return _append_op(self, *args, **kwargs) if args or kwargs else NewOpDesc(self)


BlockDesc.append_op = _append_op_or_a_new_one  # type: ignore[method-assign, assignment]


def get_grad_op_desc(
    op_desc: OpDesc, no_grad_set: Collection[str], grad_sub_block_list: Sequence[BlockDesc] = ()
) -> tuple[list[OpDesc], dict[str, str]]:
    """The operators that compute the gradients of an operator's inputs from those of its outputs, for a backward pass
    of one's own. They stand in no block yet: ``block.desc.append_op().copy_from(op)`` appends one.

    Args:
        no_grad_set: gradients that are not wanted, such as ``"x@GRAD"``.
        grad_sub_block_list: empty. What has a block is differentiated by ``backward.append_backward`` only.

    Returns:
        The operators, in their order; none if there is no gradient. And the variable of each gradient.

    Raises:
        Unimplemented: a block is given, or the operator runs one.
    """
    if grad_sub_block_list or "sub_block" in op_desc.attrs():
        raise errors.Unimplemented(
            f"get_grad_op_desc: '{op_desc.type}' runs a block, which only backward.append_backward differentiates"
        )
    return op_desc.gradient_ops_without(set(no_grad_set))


#: An array over a tensor's memory. FailedPrecondition if it has none yet.
array_of = LoDTensor.__array__


def _array(self: LoDTensor, dtype: Any = None, *, copy: bool | None = None) -> np.ndarray:
    """What ``numpy.array(tensor)`` gives: of a tensor without memory, an array without elements, as in Fluid."""
    return array_of(self, dtype, copy=copy) if self._is_initialized() else np.empty(0, dtype)


LoDTensor.__array__ = _array  # type: ignore[method-assign]


_DTYPE_NAMES = {
    VarType.BOOL: "bool",
    VarType.INT8: "int8",
    VarType.INT16: "int16",
    VarType.INT32: "int32",
    VarType.INT64: "int64",
    VarType.UINT8: "uint8",
    VarType.UINT16: "uint16",
    VarType.UINT32: "uint32",
    VarType.UINT64: "uint64",
    VarType.FP16: "float16",
    VarType.BF16: "bfloat16",
    VarType.FP32: "float32",
    VarType.FP64: "float64",
}
_DTYPES_BY_NAME = {name: dtype for dtype, name in _DTYPE_NAMES.items()}


def convert_dtype(dtype: Any) -> VarType:
    """The element type that ``dtype`` names: a VarType, its number, NumPy's name, or whatever ``numpy.dtype`` takes.

    Raises:
        TypeMismatch: no tensor can hold it.
    """
    if isinstance(dtype, (int, np.integer)) and not isinstance(dtype, bool):
        try:
            found = VarType(int(dtype))
        except ValueError:
            found = None
        if found in _DTYPE_NAMES:
            return found
        raise errors.TypeMismatch(f"{dtype!r} is not the number of a dtype")
    name = dtype if isinstance(dtype, str) and dtype in _DTYPES_BY_NAME else None
    if name is None:
        try:
            name = np.dtype(dtype).name
        except TypeError:
            name = str(dtype)
    if name not in _DTYPES_BY_NAME:
        raise errors.TypeMismatch(f"{dtype!r} is not a dtype of tensors; those are {', '.join(_DTYPES_BY_NAME)}")
    return _DTYPES_BY_NAME[name]


def dtype_name(dtype: Any) -> str:
    """NumPy's name of an element type."""
    return _DTYPE_NAMES[convert_dtype(dtype)]


def is_same(integers: np.ndarray, given: np.ndarray) -> bool:
    """Whether integers are the numbers that they were made of."""
    return given.dtype.kind not in "fiuc" or np.array_equal(integers, given)


def as_float(value: Any, what: str) -> float:
    """``value``, which errors call ``what``, as a float. TypeMismatch if it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise errors.TypeMismatch(f"{what} has to be a number, got {value!r}") from None


def exact_float(value: Any, what: str) -> float:
    """``value`` as the double that an attribute holds. TypeMismatch if it is no number, InvalidArgument for an integer
    that would be rounded.
    """
    number = as_float(value, what)
    if isinstance(value, (int, np.integer)) and int(number) != int(value):
        raise errors.InvalidArgument(
            f"{what} {value} cannot be represented exactly by an attribute, which is a double: use "
            f"layers.fill_constant([1], 'int64', {value}) and an elementwise layer"
        )
    return number


#: What follows the name of a variable in that of its gradient.
GRAD_VAR_SUFFIX = "@GRAD"
#: Stands in a slot of an operator for a variable that there is not.
EMPTY_VAR_NAME = "@EMPTY@"

#: The attributes of an operator that say its role, what it is about, and the name scopes it was added in.
OP_ROLE, OP_ROLE_VAR, OP_NAME_SCOPE = "op_role", "op_role_var", "op_namescope"


class OpRole(enum.IntFlag):
    """The role of an operator in a program: its attribute "op_role". The numbers are Fluid's."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZE = 2
    LR_SCHED = 16
    LOSS = 256

    Forward = FORWARD
    Backward = BACKWARD
    Optimize = OPTIMIZE
    LRSched = LR_SCHED
    Loss = LOSS


class op_proto_and_checker_maker:
    """Where Fluid's programs look for the roles of operators and the names of the attributes that say them."""

    OpRole = OpRole

    @staticmethod
    def kOpRoleAttrName() -> str:
        return OP_ROLE

    @staticmethod
    def kOpRoleVarAttrName() -> str:
        return OP_ROLE_VAR

    @staticmethod
    def kOpNameScopeAttrName() -> str:
        return OP_NAME_SCOPE


def set_feed_variable(scope: Scope, tensor: LoDTensor, var_name: str, index: int) -> None:
    """Puts ``tensor`` where the operators ``feed`` whose list is ``var_name`` find column ``index``."""
    tensors = scope.var(var_name).get_lod_tensor_array()
    tensors.extend(LoDTensor() for _ in range(len(tensors), index + 1))
    tensors[index] = tensor


def get_fetch_variable(scope: Scope, var_name: str, index: int) -> LoDTensor:
    """The value that an operator ``fetch`` has stored in column ``index`` of the list ``var_name``.

    Raises:
        NotFound, OutOfRange: nothing has been put there.
    """
    variable = scope.find_var(var_name)
    if variable is None:
        raise errors.NotFound(f"the scope has no variable '{var_name}'")
    tensors = variable.get_lod_tensor_array()
    if not 0 <= index < len(tensors):
        raise errors.OutOfRange(f"'{var_name}' has {len(tensors)} columns, there is no column {index}")
    return tensors[index]


def is_compiled_with_cuda() -> bool:
    """Whether there is a CUDAPlace: no, unless the environment has ``HEADRACE_CUDA_ON_CPU=1``."""
    return os.environ.get("HEADRACE_CUDA_ON_CPU") == "1"


def get_cuda_device_count() -> int:
    """0, or 1 if the environment has ``HEADRACE_CUDA_ON_CPU=1``."""
    return int(is_compiled_with_cuda())


def check_gpu(
    what: str, instead: str = "use fluid.CPUPlace(), for example if fluid.is_compiled_with_cuda() is False"
) -> None:
    """Refuses ``what``, which needs a GPU, unless the CPU is to stand for one. ``instead``: what to do.

    Raises:
        Unimplemented: the environment has no ``HEADRACE_CUDA_ON_CPU=1``.
    """
    if not is_compiled_with_cuda():
        raise errors.Unimplemented(
            f"{what}: kernels run on the CPU only: {instead}, or set the environment variable HEADRACE_CUDA_ON_CPU=1, "
            "with which the CPU stands for a GPU"
        )


class CPUPlace:
    """Where tensors live and operators run. There is one place so far."""

    def __repr__(self) -> str:
        return "CPUPlace"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CPUPlace)

    def __hash__(self) -> int:
        return hash(CPUPlace)


class CUDAPlace(CPUPlace):
    """A GPU, of which there is none: to make one raises Unimplemented. With ``HEADRACE_CUDA_ON_CPU=1`` in the
    environment, it is the CPU.

    Raises:
        Unimplemented: the environment does not say so, or ``id`` is not 0.
    """

    def __init__(self, id: int = 0) -> None:
        check_gpu(f"{type(self).__name__}({id})")
        if id != 0:
            raise errors.Unimplemented(f"CUDAPlace({id}): the CPU stands for one GPU, CUDAPlace(0)")

    def __repr__(self) -> str:
        return "CUDAPlace(0)"


class CUDAPinnedPlace(CPUPlace):
    """Memory for copies to a GPU, of which there is none: to make one raises Unimplemented. With
    ``HEADRACE_CUDA_ON_CPU=1`` in the environment, it is any memory.
    """

    def __init__(self) -> None:
        check_gpu(f"{type(self).__name__}()")

    def __repr__(self) -> str:
        return "CUDAPinnedPlace"


class LoDTensorArray(list[LoDTensor]):
    """A list of LoDTensors: a batch, one tensor for each variable."""

    def __init__(self, tensors: Iterable[LoDTensor] = ()) -> None:
        super().__init__()
        for tensor in tensors:
            self.append(tensor)

    def append(self, tensor: LoDTensor) -> None:
        """Adds a tensor at the end. TypeMismatch for anything else: an array becomes a tensor by
        ``LoDTensor.from_numpy``.
        """
        super().append(_check_tensor(tensor))


def _check_tensor(tensor: LoDTensor) -> LoDTensor:
    if not isinstance(tensor, LoDTensor):
        raise errors.TypeMismatch(f"a LoDTensorArray holds LoDTensors, got {type(tensor).__name__}")
    return tensor


class _HeldTensorArray(MutableSequence[LoDTensor]):
    """The array that a variable of a scope holds, which changes with this one."""

    def __init__(self, variable: ScopeVariable) -> None:
        self._variable = variable
        _tensors_of(variable)

    def __len__(self) -> int:
        return len(_tensors_of(self._variable))

    def __getitem__(self, index: Any) -> Any:
        return _tensors_of(self._variable)[index]

    def __setitem__(self, index: Any, tensor: Any) -> None:
        tensors = _tensors_of(self._variable)
        tensors[index] = _check_tensor(tensor)
        self._variable.set_lod_tensor_array(tensors)

    def __delitem__(self, index: Any) -> None:
        tensors = _tensors_of(self._variable)
        del tensors[index]
        self._variable.set_lod_tensor_array(tensors)

    def insert(self, index: int, tensor: LoDTensor) -> None:
        tensors = _tensors_of(self._variable)
        tensors.insert(index, _check_tensor(tensor))
        self._variable.set_lod_tensor_array(tensors)

    def __repr__(self) -> str:
        return repr(_tensors_of(self._variable))


_tensors_of = ScopeVariable.get_lod_tensor_array
ScopeVariable.get_lod_tensor_array = lambda self: _HeldTensorArray(self)  # type: ignore[method-assign, assignment, return-value]
