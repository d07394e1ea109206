"""Fluid's ``ParallelDo``, and the devices that it runs on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from headrace import errors
from headrace.fluid.core import CPUPlace, VarType, check_gpu
from headrace.fluid.device import cpu_places
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import check_variable

__all__ = ["ParallelDo"]


class ParallelDo:
    """Layers that several devices apply to a part of the batch each, in Fluid before 1.3. The devices asked for are one
    CPU, which computes the whole batch: the outputs of a block are its results.

    ::

        devices = layers.ParallelDo(layers.device.get_places())
        with devices.do():
            loss = network(devices.read_input(x))
            devices.write_output(loss)
        loss = layers.mean(devices())
    """

    def __init__(self, places: Sequence[CPUPlace], use_nccl: bool = False, name: str | None = None) -> None:
        for place in places:
            if not isinstance(place, CPUPlace):
                raise errors.TypeMismatch(f"layers.ParallelDo: expected CPUPlaces, got {type(place).__name__}")
        self._inside = False
        self._outputs: list[Variable] | None = None

    @contextlib.contextmanager
    def do(self) -> Iterator[None]:
        """Within it, layers define the work of the devices."""
        if self._outputs is not None:
            raise errors.FailedPrecondition("layers.ParallelDo: the block has already been defined")
        self._inside, self._outputs = True, []
        try:
            yield
        finally:
            self._inside = False

    def read_input(self, var: Variable) -> Variable:
        """The part of ``var`` for a device: all of it."""
        self._check_inside("read_input")
        return check_variable(var, "var", "ParallelDo.read_input")

    def write_output(self, var: Variable) -> None:
        """``var`` is an output of the block."""
        self._check_inside("write_output").append(check_variable(var, "var", "ParallelDo.write_output"))

    def __call__(self) -> Variable | list[Variable]:
        """The outputs: a variable, or a list if there are several."""
        if self._inside or not self._outputs:
            raise errors.FailedPrecondition("layers.ParallelDo: no block with an output has been defined")
        return self._outputs[0] if len(self._outputs) == 1 else list(self._outputs)

    def _check_inside(self, method: str) -> list[Variable]:
        if not self._inside or self._outputs is None:
            raise errors.FailedPrecondition(f"layers.ParallelDo.{method} must be called in the block")
        return self._outputs


class _Places(list[CPUPlace]):
    """Places that say what they are, as Fluid's variable of them does."""

    type = VarType.PLACE_LIST


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[CPUPlace]:
    """``fluid.cpu_places``, under an older name.

    Raises:
        Unimplemented: ``device_type`` is neither None nor "CPU", without ``HEADRACE_CUDA_ON_CPU=1``.
    """
    if device_type not in (None, "CPU"):
        check_gpu(f"get_places(device_type={device_type!r})")
    return _Places(cpu_places(device_count or None))
