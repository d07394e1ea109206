"""The devices: the CPU. Names that need a GPU raise an error, unless the CPU is to stand for one
(``HEADRACE_CUDA_ON_CPU=1``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from headrace import errors
from headrace.fluid.core import (
    CPUPlace,
    CUDAPinnedPlace,
    CUDAPlace,
    check_gpu,
    get_cuda_device_count,
    is_compiled_with_cuda,
)

__all__ = [
    "CUDAPinnedPlace",
    "CUDAPlace",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "device_guard",
    "get_cuda_device_count",
    "in_dygraph_mode",
    "is_compiled_with_cuda",
]


def in_dygraph_mode() -> bool:
    """Whether layers are run as they are called: no, they are added to a program."""
    return False


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """As many CPUPlaces as asked for, all the same CPU; None: as ``CPU_NUM`` says, or 1.

    Raises:
        InvalidArgument: the number is not positive.
    """
    if device_count is None:
        what, given = "environment variable CPU_NUM", os.environ.get("CPU_NUM") or 1
    else:
        what, given = "cpu_places: device_count", device_count
    try:
        count = int(given)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise errors.InvalidArgument(f"{what}: expected a positive number, got {given!r}")
    return [CPUPlace() for _ in range(count)]


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """Raises Unimplemented: there is no GPU. With ``HEADRACE_CUDA_ON_CPU=1``, CUDAPlaces of these numbers, which have
    to be 0; None: one.
    """
    check_gpu("cuda_places()")
    return [CUDAPlace(device_id) for device_id in ([0] if device_ids is None else device_ids)]


def cuda_pinned_places(device_count: int | None = None) -> list[CUDAPinnedPlace]:
    """Raises Unimplemented: there is no GPU. With ``HEADRACE_CUDA_ON_CPU=1``, as many as asked for; None: one."""
    check_gpu("cuda_pinned_places()")
    return [CUDAPinnedPlace() for _ in cpu_places(device_count or 1)]


@contextlib.contextmanager
def device_guard(device: str | None = None) -> Iterator[None]:
    """Operators that are added within it run on ``device``: "cpu", or None for wherever the program runs.

    Raises:
        Unimplemented: another device, unless ``HEADRACE_CUDA_ON_CPU=1``.
    """
    if device not in (None, "cpu"):
        check_gpu(f"device_guard({device!r})")
    yield
