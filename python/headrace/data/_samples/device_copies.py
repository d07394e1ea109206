"""Copies batches to a CUDA device, on a stream of the loader's own: ``DataLoader(device=...)``.

``pin_memory=True`` only locks the arena for copies of the user's: ``reader/shared_memory/cuda/pinned_memory.h``.

Torch is imported when a loader is given a device, not with this module.
"""

from __future__ import annotations

import collections
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace._wording import counted
from headrace.data._argument_checks import require_torch


def check_device(device: Any) -> str | None:
    """Returns the name of the device for ``DataLoader(device=...)``; None: tensors stay on the CPU.

    Raises:
        TypeError: it is not None, a name or a torch.device.
        ValueError: it is not a CUDA device.
    """
    if device is None:
        return None
    if not isinstance(device, str) and type(device).__module__.partition(".")[0] != "torch":
        raise TypeError(f'device must be a name such as "cuda:0" or a torch.device, got {device!r}')
    name = str(device)
    kind, colon, ordinal = name.partition(":")
    if kind != "cuda" or (colon and not ordinal.isdecimal()):
        raise ValueError(f'device must be "cuda" or "cuda:N", got {name!r}')
    return name


def require_devices(device: str) -> None:
    """Checks that there is such a CUDA device. Processes that are forked later can still use it: of all that torch
    asks, only the count leaves CUDA uninitialized.

    Raises:
        ImportError: torch is not installed.
        RuntimeError: torch finds no such device.
    """
    require_torch(f'device="{device}"')
    count = importlib.import_module("torch").cuda.device_count()
    if count == 0:
        raise RuntimeError(f'device="{device}": torch finds no CUDA device here; leave device out')
    if int(device.partition(":")[2] or 0) >= count:
        raise RuntimeError(f'device="{device}": torch finds {counted(count, "CUDA device")} here, numbered from 0')


class Submitted(NamedTuple):
    """A batch whose copies are in progress.

    Attributes:
        batch: its tensors are on the device.
        event: recorded after the last copy.
        tensors: all tensors in ``batch``.
    """

    batch: Any
    event: Any
    tensors: list[Any]


class DeviceCopies:
    """Copies the tensors of batches to a device before they are needed.

    Call ``copy`` for each tensor of a batch, then ``submit`` for the batch; neither waits. ``deliver`` hands the batch
    out, and makes the consumer's current stream, not the host, wait for the copies. The CPU tensors, and with them the
    batch's slot, are kept until their copies have ended: no producer can overwrite what the device is reading.

    Thread-safety: one thread at a time.

    Args:
        device: "cuda" (the current device) or "cuda:N".

    Raises:
        ImportError: torch is not installed.
        RuntimeError: torch finds no such device.
    """

    def __init__(self, device: str) -> None:
        self._torch = importlib.import_module("torch")
        self.device = self._torch.device(device)
        self._stream = self._torch.cuda.Stream(self.device)
        self._sources: list[Any] = []
        self._tensors: list[Any] = []
        # Copies in progress, oldest first: the event and the source tensors of each batch.
        self._under_way: collections.deque[tuple[Any, list[Any]]] = collections.deque()

    def copy(self, value: Any) -> Any:
        """Starts to copy a tensor and returns the copy. Returns anything else unchanged."""
        if not isinstance(value, self._torch.Tensor):
            return value
        with self._torch.cuda.stream(self._stream):
            copied = value.to(self.device, non_blocking=True)
        self._sources.append(value)
        self._tensors.append(copied)
        return copied

    def decoder(
        self, decode_tree: Callable[..., tuple[Callable[[list[Any]], Any], list[Any]]]
    ) -> Callable[[bytes], tuple[Callable[[list[Any]], Submitted], list[Any]]]:
        """Wraps ``decode_tree`` so that building a batch also submits its copies."""

        def decode(tree: bytes) -> tuple[Callable[[list[Any]], Submitted], list[Any]]:
            build, dtypes = decode_tree(tree, to="torch", move=self.copy)
            return lambda leaves: self.submit(build(leaves)), dtypes

        return decode

    def submit(self, batch: Any) -> Submitted:
        """Completes a batch: everything copied since the previous call belongs to it."""
        event = self._torch.cuda.Event()
        event.record(self._stream)
        sources, self._sources = self._sources, []
        tensors, self._tensors = self._tensors, []
        self._under_way.append((event, sources))
        self.release()
        return Submitted(batch, event, tensors)

    def deliver(self, submitted: Submitted) -> Any:
        """Returns the batch; from here on, the caller's current stream may use it."""
        current = self._torch.cuda.current_stream(self.device)
        current.wait_event(submitted.event)
        for tensor in submitted.tensors:
            # Otherwise the allocator could reuse the memory for the next copy while this stream still reads it.
            tensor.record_stream(current)
        return submitted.batch

    def release(self) -> None:
        """Drops the CPU tensors whose copies have ended."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()

    def close(self) -> None:
        """Waits for all copies to end, and drops their CPU tensors."""
        if self._sources:
            self.submit(None)
        while self._under_way:
            self._under_way[0][0].synchronize()
            self._under_way.popleft()

    def __del__(self) -> None:
        if hasattr(self, "_under_way"):
            self.close()
