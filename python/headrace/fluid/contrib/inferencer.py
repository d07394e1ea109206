"""Runs a network whose parameters a Trainer has saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from headrace.fluid import io, unique_name
from headrace.fluid._checks import check_function, check_path
from headrace.fluid.core import Scope
from headrace.fluid.executor import Executor, scope_guard
from headrace.fluid.framework import Program, Variable, program_guard

__all__ = ["Inferencer"]


class Inferencer:
    """Infers with parameters that ``Trainer.save_params`` has written.

    Args:
        infer_func: adds the layers, with the names that they had for training, and returns the prediction.
        param_path: the folder.
        place, parallel: Fluid's; programs run on the processor.

    Raises:
        NotFound: a parameter of the network is not in the folder.
    """

    def __init__(
        self,
        infer_func: Callable[[], Variable],
        param_path: str | os.PathLike[str],
        place: Any = None,
        parallel: bool = False,
    ) -> None:
        check_function(infer_func, "Inferencer: infer_func")
        self.scope = Scope()
        self.inference_program = Program()
        with program_guard(self.inference_program, Program()), unique_name.guard():
            self.predict_var = infer_func()
        self.exe = Executor(place)
        with scope_guard(self.scope):
            io.load_persistables(self.exe, check_path(param_path, "Inferencer: param_path"), self.inference_program)
        self.inference_program = self.inference_program.clone(for_test=True)

    def infer(self, inputs: Mapping[str, Any], return_numpy: bool = True) -> list[Any]:
        """The prediction for the given feeds, as a list with one value: see :meth:`Executor.run`."""
        with scope_guard(self.scope):
            return self.exe.run(
                self.inference_program, feed=inputs, fetch_list=[self.predict_var.name], return_numpy=return_numpy
            )
