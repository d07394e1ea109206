"""Information about the current worker: ``get_worker_info``."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from typing import Any

from headrace.data._workers.task import WorkerTask


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """Describes a worker; see :func:`get_worker_info`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_process_info: WorkerInfo | None = None
thread_info = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """In a worker: its number, the number of workers, its seed and its copy of the dataset. Elsewhere None."""
    info: WorkerInfo | None = getattr(thread_info, "info", None)
    return info if info is not None else _process_info


def _tell_torch(info: WorkerInfo) -> None:
    """Makes torch's get_worker_info work in this process, for datasets that call it."""
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    if module is not None:
        with contextlib.suppress(Exception):  # an internal of torch's: without it only that question fails
            module._worker_info = module.WorkerInfo(
                id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset
            )


def set_process_info(info: WorkerInfo) -> None:
    """In a worker: the information for all its threads."""
    global _process_info
    _process_info = info
    _tell_torch(info)


def worker_info(task: WorkerTask, worker_id: int) -> WorkerInfo:
    """What :func:`get_worker_info` returns in the worker of that number.

    Where all workers iterate over one stream, each appears to be the only one: a dataset that shards itself by
    worker must not do so in addition.
    """
    if task.stream is not None and not task.stream.own:
        return WorkerInfo(0, 1, worker_seed(task.base_seed, 0), task.dataset)
    return WorkerInfo(worker_id, task.num_workers, worker_seed(task.base_seed, worker_id), task.dataset)


def worker_seed(base_seed: int, worker_id: int) -> int:
    """The seed of a worker's global generators, which torch's ``manual_seed`` takes."""
    return (base_seed + worker_id) & ((1 << 63) - 1)
