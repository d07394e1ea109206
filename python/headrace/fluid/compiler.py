"""Fluid's compilation of a program for several devices. Headrace has one device, the CPU.

Programs that ask for it run as they are: the strategies are accepted and make no difference to the result, because the
executor plans memory, in-place updates and the threads of operators by itself (``Executor(cpu_num=…)``).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Union

import numpy as np

from headrace import errors
from headrace.fluid._checks import check_instance, check_list, check_optional
from headrace.fluid.core import CPUPlace, LoDTensor
from headrace.fluid.framework import Program, default_main_program
from headrace.fluid.lod_tensor import create_lod_tensor

__all__ = [
    "AnyProgram",
    "BuildStrategy",
    "CompiledProgram",
    "ExecutionStrategy",
    "memory_optimize",
    "merge_feeds",
    "program_of",
    "release_memory",
]

Feed = Union[Mapping[str, Any], Sequence[Mapping[str, Any]], None]


class _Strategy:
    """Settings by name, of the types of their defaults; other names and types are refused."""

    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        vars(self).update(self._defaults)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._defaults:
            raise AttributeError(
                f"{type(self).__name__} has no setting {name!r}; those are {', '.join(sorted(self._defaults))}"
            )
        default = self._defaults[name]
        fits = isinstance(value, (type(default), int)) if isinstance(default, (bool, int)) else True
        if not fits and value is not None:
            raise errors.TypeMismatch(f"{type(self).__name__}.{name} is {default!r} by default, got {value!r}")
        vars(self)[name] = value

    def __repr__(self) -> str:
        changed = [f"{name}={value!r}" for name, value in vars(self).items() if value != self._defaults[name]]
        return f"{type(self).__name__}({', '.join(changed)})"


class BuildStrategy(_Strategy):
    """How a graph for several devices is built. Accepted; makes no difference on one CPU."""

    class ReduceStrategy(enum.IntEnum):
        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy(enum.IntEnum):
        CoeffNumDevice = 0
        One = 1
        Customized = 2

    _defaults: ClassVar[Mapping[str, Any]] = {
        "async_mode": False,
        "cache_runtime_context": False,
        "debug_graphviz_path": "",
        "enable_auto_fusion": False,
        "enable_backward_optimizer_op_deps": True,
        "enable_data_balance": False,
        "enable_inplace": False,
        "enable_sequential_execution": False,
        "fuse_all_optimizer_ops": False,
        "fuse_all_reduce_ops": None,
        "fuse_bn_act_ops": False,
        "fuse_broadcast_ops": None,
        "fuse_elewise_add_act_ops": False,
        "fuse_relu_depthwise_conv": False,
        "gradient_scale_strategy": GradientScaleStrategy.CoeffNumDevice,
        "hierarchical_allreduce_inter_nranks": 0,
        "is_distribution": False,
        "memory_optimize": None,
        "mkldnn_enabled_op_types": None,
        "nccl_comm_num": 1,
        "num_trainers": 1,
        "reduce_strategy": ReduceStrategy.AllReduce,
        "remove_unnecessary_lock": True,
        "sync_batch_norm": False,
        "trainer_id": 0,
        "trainers_endpoints": None,
        "use_hierarchical_allreduce": False,
    }


class ExecutionStrategy(_Strategy):
    """How a graph for several devices is run. Accepted; makes no difference on one CPU."""

    class ExecutorType(enum.IntEnum):
        Default = 0
        Experimental = 1

    _defaults: ClassVar[Mapping[str, Any]] = {
        "allow_op_delay": False,
        "dry_run": False,
        "num_iteration_per_drop_scope": 10,
        "num_iteration_per_run": 1,
        "num_threads": 0,
        "use_cuda": False,
        "use_experimental_executor": False,
        "use_thread_barrier": False,
    }


class CompiledProgram:
    """A program that ``Executor.run`` takes in the program's place, and runs as that.

    Args:
        program_or_graph: the program.
        build_strategy: see :class:`BuildStrategy`.

    Raises:
        TypeMismatch: it is no program.
    """

    def __init__(self, program_or_graph: Program, build_strategy: BuildStrategy | None = None) -> None:
        if not isinstance(program_or_graph, Program):
            raise errors.TypeMismatch(f"CompiledProgram takes a Program, got {type(program_or_graph).__name__}")
        self.program = program_or_graph
        self.build_strategy = check_optional(build_strategy, BuildStrategy, "build_strategy")
        self.places: tuple[CPUPlace, ...] = (CPUPlace(),)

    @property
    def _program(self) -> Program:
        """``program``, by the name that Fluid's programs use."""
        return self.program

    @property
    def _places(self) -> list[CPUPlace]:
        """Fluid's list of devices, by whose number its programs divide what they fetch: one, which makes the whole
        batch.
        """
        return [CPUPlace()]

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: CompiledProgram | None = None,
        places: Sequence[CPUPlace] | CPUPlace | None = None,
    ) -> CompiledProgram:
        """Runs each batch on all places. They are all the one CPU, which makes the whole batch in one go: the result is
        that of the whole batch, and ``cpu_num`` of the Executor says how many threads share the work.

        Args:
            loss_name: of the variable that is minimised, which has to be the program's.
            build_strategy, exec_strategy: make no difference.
            share_vars_from: makes none either: variables are in the scope that the program runs on.
            places: CPUPlaces, or one.

        Raises:
            NotFound: the program has no such variable.
            TypeMismatch: an argument is of another type.
        """
        check_loss(self.program, loss_name)
        if build_strategy is not None:
            self.build_strategy = check_optional(build_strategy, BuildStrategy, "build_strategy")
        check_optional(exec_strategy, ExecutionStrategy, "exec_strategy")
        check_optional(share_vars_from, CompiledProgram, "share_vars_from")
        if isinstance(places, CPUPlace):
            places = [places]
        given = [] if places is None else check_list(places, "places")
        self.places = tuple(check_instance(place, CPUPlace, "places") for place in given) or (CPUPlace(),)
        return self

    def with_inference_optimize(self, config: Any) -> CompiledProgram:
        """Fluid's; makes no difference: a program without gradients has no use for their memory here."""
        return self


#: What a program may be given as.
AnyProgram = Union[Program, CompiledProgram]


def program_of(given: AnyProgram | None) -> Program:
    """``given``, the program that it was compiled from, or the main program if there is none. TypeMismatch if it is
    something else.
    """
    program = default_main_program() if given is None else given
    program = program.program if isinstance(program, CompiledProgram) else program
    if not isinstance(program, Program):
        raise errors.TypeMismatch(f"expected a Program or CompiledProgram, got {type(program).__name__}")
    return program


def memory_optimize(
    input_program: Program,
    skip_opt_set: Any = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = True,
) -> None:
    """Fluid's; changes nothing: the executor gives temporaries that are not needed at the same time the same memory."""
    check_optional(input_program, Program, "input_program")


def release_memory(input_program: Program, skip_opt_set: Any = None) -> None:
    """Fluid's; changes nothing, see :func:`memory_optimize`."""
    check_optional(input_program, Program, "input_program")


def check_loss(program: Program, loss_name: str | None) -> None:
    """Raises NotFound if a program has no variable of that name."""
    if loss_name is None:
        return
    if not isinstance(loss_name, str) or not program.global_block().has_var(loss_name):
        raise errors.NotFound(f"loss_name has to name a variable of the program, got {loss_name!r}")


def merge_feeds(program: Program, feed: Feed) -> Mapping[str, Any] | None:
    """One batch of those that were meant for several devices: one mapping each. Rows are joined, and so are sequences.
    Persistable variables, such as a table that a program sets in its first run, are the same on every device: the
    first mapping has their value.

    Raises:
        InvalidArgument: they have different names, or shapes or levels of LoD that cannot be joined.
    """
    if feed is None or isinstance(feed, Mapping):
        return feed
    parts = check_list(feed, "feed")
    if not all(isinstance(part, Mapping) for part in parts):
        raise errors.TypeMismatch("feed has to map names to values, or to be a list of such mappings")
    if len(parts) <= 1:
        return parts[0] if parts else None
    names = set(parts[0])
    if any(set(part) != names for part in parts):
        raise errors.InvalidArgument("the mappings of a feed for several devices have to have the same names")
    declared = program.global_block().vars
    shared = {name for name in names if name in declared and declared[name].persistable}
    return {
        name: value if name in shared else _joined(name, [part[name] for part in parts])
        for name, value in parts[0].items()
    }


def _joined(name: str, values: Sequence[Any]) -> Any:
    tensors = [value.to_lod_tensor() if hasattr(value, "to_lod_tensor") else value for value in values]  # Ragged
    try:
        rows = np.concatenate([np.asarray(tensor) for tensor in tensors])
    except ValueError as error:
        raise errors.InvalidArgument(
            f"'{name}' in a feed for several devices cannot be joined: {error}; pad the parts alike, or prepare one "
            "batch (programs that ask CPU_NUM for the number of devices do with CPU_NUM=1)"
        ) from None
    lengths = [tensor.recursive_sequence_lengths() if isinstance(tensor, LoDTensor) else [] for tensor in tensors]
    levels = {len(of_part) for of_part in lengths}
    if len(levels) > 1:
        raise errors.InvalidArgument(
            f"'{name}' in a feed for several devices cannot be joined: its parts have LoDs of "
            f"{' and '.join(map(str, sorted(levels)))} levels"
        )
    if levels == {0}:
        return rows
    return create_lod_tensor(rows, [list(chain.from_iterable(level)) for level in zip(*lengths)])
