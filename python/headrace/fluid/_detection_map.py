"""Mean average precision over many batches, which a program adds up. :mod:`headrace.fluid.metrics` has it."""

from __future__ import annotations

import functools

import numpy as np

from headrace import errors
from headrace.fluid import layers
from headrace.fluid.executor import Executor, check_executor, global_scope
from headrace.fluid.framework import Program, Variable
from headrace.fluid.initializer import Constant
from headrace.fluid.layer_helper import LayerHelper, check_variable, create_initialized_var

__all__ = ["DetectionMAP"]


class DetectionMAP:
    """Mean average precision of a detector, of each batch and of all batches since the last :meth:`reset`. Adds what
    computes it to the default main program.

    ::

        found = layers.detection_output(codes, scores, priors, variances)
        measure = fluid.metrics.DetectionMAP(found, gt_label, gt_box, class_num=21)
        of_batch, of_all = measure.get_map_var()
        for epoch in range(epochs):
            measure.reset(exe)
            for batch in batches:
                of_batch_value, of_all_value = exe.run(test_program, batch, [of_batch, of_all])

    As in Fluid, programs that are built alike under ``unique_name.guard()``, with one startup program, share what is
    added up: :meth:`reset` it before another program runs.

    Args:
        input: the detections, in the form of :func:`layers.detection_map`.
        gt_label: classes of the objects, [objects, 1] with LoD, a sequence for each image.
        gt_box: their boxes, [objects, 4] with the same LoD.
        gt_difficult: 1 where an object is difficult, else 0, [objects, 1] with the same LoD; None: none is.
        class_num: number of classes; has to be given.
        background_label, overlap_threshold, evaluate_difficult, ap_version: see :func:`layers.detection_map`.

    Attributes:
        has_state: the variable that is 0 until the first batch after a reset.
    """

    def __init__(
        self,
        input: Variable,
        gt_label: Variable,
        gt_box: Variable,
        gt_difficult: Variable | None = None,
        class_num: int | None = None,
        background_label: int = 0,
        overlap_threshold: float = 0.5,
        evaluate_difficult: bool = True,
        ap_version: str = "integral",
    ) -> None:
        if class_num is None:
            raise errors.InvalidArgument("DetectionMAP: class_num, the number of classes, has to be given")
        gt_box = check_variable(gt_box, "gt_box", "detection_map")
        self._helper = LayerHelper("map_eval")
        columns = [layers.cast(gt_label, gt_box.dtype), gt_box]
        if gt_difficult is not None:
            columns.insert(1, layers.cast(gt_difficult, gt_box.dtype))
        label = layers.concat(columns, axis=1)
        arguments = (input, label, class_num, background_label, overlap_threshold, evaluate_difficult)
        self._of_batch = layers.detection_map(*arguments, ap_version=ap_version)
        new_state = functools.partial(
            create_initialized_var,
            self._helper.main_program,
            self._helper.startup_program,
            self._helper.name,
            init=Constant(0),
        )
        # The startup program only allocates memory for these: their initial contents do not count.
        states = [
            new_state([class_num, 1], "int32", suffix="_accum_pos_count"),
            new_state([-1, 2], input.dtype, suffix="_accum_true_pos", lod_level=1),
            new_state([-1, 2], input.dtype, suffix="_accum_false_pos", lod_level=1),
        ]
        self.has_state = new_state([1], "int32", suffix="_has_state")
        self._of_all = layers.detection_map(
            *arguments, has_state=self.has_state, input_states=states, out_states=states, ap_version=ap_version
        )
        layers.fill_constant([1], "int32", 1, out=self.has_state)

    def get_map_var(self) -> tuple[Variable, Variable]:
        """Variables to fetch: of the batch, and of all batches."""
        return self._of_batch, self._of_all

    def reset(self, executor: Executor, reset_program: Program | None = None) -> None:
        """Forgets all batches, in the global scope. ``reset_program`` is Fluid's."""
        check_executor(executor)
        tensor = global_scope().var(self.has_state.name).get_tensor()
        tensor.set(np.zeros(1, np.int32), executor.place)
