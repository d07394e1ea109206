"""The task of a worker, and the settings of its process."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from headrace.data._system.memory_file import MemoryFile, unpickled
from headrace.data._workers.stream_reader import StreamTask


class SharedDescriptor:
    """A file descriptor that reaches a child process whatever its start method.

    A forked child has it under the same number; with the other start methods, pickling duplicates it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _receive_descriptor, (reduction.DupFd(self.fd),)


def _receive_descriptor(duplicate: Any) -> SharedDescriptor:
    return SharedDescriptor(duplicate.detach())


@dataclasses.dataclass(frozen=True)
class WorkerTask:
    """The task of all workers of a loader.

    Attributes:
        collate: makes a batch from the list of its samples; None: the default, which writes each sample to its row.
        convert: a batch is one sample; ``collate`` gets it alone.
        seed: of the records' generators.
        base_seed: of the workers' global generators, to which each worker adds its number; see also :func:`own_task`.
        seed_records: seed the global generators for each sample, by its index (True) or its position ("position").
        stream: how to read ``dataset`` if it is an iterable one.
        feeds: batches go into a queue of a program, which takes whole arrays in C's order, whatever ``collate`` gives.
    """

    dataset: Any
    collate: Callable[[Any], Any] | None
    convert: bool
    seed: int
    seed_records: bool | str
    num_workers: int
    worker_init_fn: Callable[[int], None] | None
    base_seed: int
    stream: StreamTask | None = None
    feeds: bool = False


@dataclasses.dataclass(frozen=True)
class WorkerSetup:
    """All that a worker process is given.

    Attributes:
        arena, completion: of the scheduler.
        life: of the program with which it exits; see :class:`LifeLine`.
        stacks: where it writes its Python stacks on request.
        waits: where it marks that it waits for others; see :class:`Waits`.
        updates: of the task, which it reads with :class:`UpdateReader`.
        revision, updates_size: of the updates that ``task`` contains.
        sockets: a folder to remove if the main process cannot; empty: none.
        delay: seconds to wait before it starts.
        predecessors: how many workers of that number came before it.
    """

    task: WorkerTask
    worker_id: int
    threads: int
    arena: SharedDescriptor
    completion: SharedDescriptor
    life: SharedDescriptor
    stacks: SharedDescriptor
    waits: SharedDescriptor
    updates: SharedDescriptor
    revision: int
    updates_size: int
    sockets: str
    delay: float
    predecessors: int

    def __reduce__(self) -> tuple[Callable[..., WorkerSetup], tuple[Any, ...]]:
        """A worker reads it from a file. The pipe that :mod:`multiprocessing` writes to holds little: if a worker of
        "spawn" were killed before it has read all, the main process would wait for it without end.
        """
        values = tuple(getattr(self, field.name) for field in dataclasses.fields(self))
        file = MemoryFile("headrace-setup")
        weakref.finalize(self, file.close)  # the worker has its own descriptor of it, once it has started
        with open(file.fd, "wb", closefd=False) as sink:
            length = sink.write(reduction.ForkingPickler.dumps(values))
        return _receive_setup, (SharedDescriptor(file.fd), length)


def _receive_setup(file: SharedDescriptor, length: int) -> WorkerSetup:
    with open(file.fd, "rb"):  # which closes it
        return WorkerSetup(*unpickled(file.fd, 0, length))
