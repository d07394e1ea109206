"""Where Fluid has the devices that its ``ParallelDo`` once ran on."""

from __future__ import annotations

from headrace import errors
from headrace.fluid.core import NO_GPU, CPUPlace
from headrace.fluid.device import cpu_places

__all__: list[str] = []


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[CPUPlace]:
    """``fluid.cpu_places``, under an older name.

    Raises:
        Unimplemented: ``device_type`` is neither None nor "CPU".
    """
    if device_type not in (None, "CPU"):
        raise errors.Unimplemented(f"get_places(device_type={device_type!r}): {NO_GPU}")
    return cpu_places(device_count or None)
