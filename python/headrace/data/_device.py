"""Batches on a CUDA device: their tensors are copied on a stream of the loader's own.

Torch is imported when the first :class:`DeviceCopies` is made, not with this module.
"""

from __future__ import annotations

import collections
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple


def check_device(device: Any) -> str | None:
    """The name of a device that ``DataLoader(device=...)`` can hand out tensors on; None: tensors stay on the CPU.

    Raises:
        TypeError: it is neither None, a name nor a torch.device.
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


class Submitted(NamedTuple):
    """A batch whose copies are under way.

    Attributes:
        batch: with tensors on the device.
        event: recorded behind the last of their copies.
        tensors: those in ``batch``.
    """

    batch: Any
    event: Any
    tensors: list[Any]


class DeviceCopies:
    """Copies the tensors of batches to one device, ahead of their use.

    ``copy`` is called for each tensor of a batch, then ``submit`` for the batch; nothing waits. When it is handed out,
    ``deliver`` makes the consumer's current stream, not the host, wait for the copies. The tensors on the CPU are kept
    until their copies have ended, and with them the batch's slot: a producer cannot overwrite what a device reads.

    Thread-safety: one thread at a time.

    Args:
        device: "cuda" (the current device) or "cuda:N".

    Raises:
        ImportError: torch is not installed.
        RuntimeError: it has no such device.
    """

    def __init__(self, device: str) -> None:
        self._torch = importlib.import_module("torch")
        self.device = self._torch.device(device)
        self._stream = self._torch.cuda.Stream(self.device)
        self._sources: list[Any] = []
        self._tensors: list[Any] = []
        # Copies under way, the oldest first: their events and what they read.
        self._under_way: collections.deque[tuple[Any, list[Any]]] = collections.deque()

    def copy(self, value: Any) -> Any:
        """The tensor, on the device. What is not a tensor stays as it is."""
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
        """What decodes a batch's tree as ``decode_tree`` does, so that building the batch submits its copies."""

        def decode(tree: bytes) -> tuple[Callable[[list[Any]], Submitted], list[Any]]:
            build, dtypes = decode_tree(tree, to="torch", move=self.copy)
            return lambda leaves: self.submit(build(leaves)), dtypes

        return decode

    def submit(self, batch: Any) -> Submitted:
        """Ends a batch: what was copied since the last call belongs to it."""
        event = self._torch.cuda.Event()
        event.record(self._stream)
        sources, self._sources = self._sources, []
        tensors, self._tensors = self._tensors, []
        self._under_way.append((event, sources))
        self.release()
        return Submitted(batch, event, tensors)

    def deliver(self, submitted: Submitted) -> Any:
        """The batch, which the caller's current stream may use from here on."""
        current = self._torch.cuda.current_stream(self.device)
        current.wait_event(submitted.event)
        for tensor in submitted.tensors:
            # Or the allocator could give the memory to the next copy while this stream still reads it.
            tensor.record_stream(current)
        return submitted.batch

    def release(self) -> None:
        """Lets go of the tensors on the CPU whose copies have ended."""
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()

    def close(self) -> None:
        """Waits for all copies and lets go of what they read."""
        if self._sources:
            self.submit(None)
        while self._under_way:
            self._under_way[0][0].synchronize()
            self._under_way.popleft()

    def __del__(self) -> None:
        if hasattr(self, "_under_way"):
            self.close()
