"""The executor of Fluid's programs for several devices."""

from __future__ import annotations

from typing import Any

from headrace import errors
from headrace.fluid.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy, Feed, check_loss
from headrace.fluid.core import CPUPlace, Scope, check_gpu
from headrace.fluid.executor import Executor, FetchList
from headrace.fluid.framework import Program, default_main_program

__all__ = ["BuildStrategy", "ExecutionStrategy", "ParallelExecutor"]


class ParallelExecutor:
    """An Executor of one program on one CPU, with the arguments of Fluid's. ``CPU_NUM`` says how many threads share the
    work of each operator.

    Args:
        use_cuda: has to be False, unless ``HEADRACE_CUDA_ON_CPU=1`` in the environment makes the CPU stand for a GPU.
        loss_name: of the variable that is minimised.
        main_program: None: the default main program.
        share_vars_from, exec_strategy, build_strategy: make no difference.
        num_trainers, trainer_id: have to be 1 and 0.
        scope: where persistable variables live; None: the global scope of each run.

    Raises:
        Unimplemented: a GPU, or several trainers, are asked for.
        NotFound: the program has no variable ``loss_name``.
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Program | None = None,
        share_vars_from: Any = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ) -> None:
        if use_cuda:
            check_gpu("ParallelExecutor(use_cuda=True)", "pass use_cuda=False")
        if num_trainers != 1 or trainer_id != 0:
            raise errors.Unimplemented(
                "several trainers that share one program's parameters are not supported: pass num_trainers=1"
            )
        program = default_main_program() if main_program is None else main_program
        self._program = CompiledProgram(program, build_strategy)
        check_loss(program, loss_name)
        self._executor, self._scope = Executor(CPUPlace()), scope

    def run(
        self, fetch_list: FetchList, feed: Feed = None, feed_dict: Feed = None, return_numpy: bool = True
    ) -> list[Any]:
        """As ``Executor.run``. A ``feed`` that is a list, for several devices, is joined."""
        if feed is None:
            feed = feed_dict
        return self._executor.run(self._program, feed, fetch_list, scope=self._scope, return_numpy=return_numpy)

    @property
    def device_count(self) -> int:
        """1: the CPU."""
        return 1

    def drop_local_exe_scopes(self) -> None:
        """Fluid's; makes no difference: there are none."""
