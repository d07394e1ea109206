"""The drop-in for PyTorch's loader."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch.utils import data as torch_data

from headrace.data import DataLoader as HeadraceLoader
from headrace.data._config import MAX_WORKERS
from headrace.torch._collation import TorchCollate

_MAX_PREFETCH = 512


class _Loader(HeadraceLoader):
    """Makes the batches of the drop-in.

    As with PyTorch, the program alone tells a dataset its epoch, and a worker that it has seeded makes the batches that
    PyTorch's would.
    """

    _tells_epoch = False
    _keeps_to_workers = True


class _AllReplicas:
    """The order that PyTorch's ``DistributedSampler`` shares out: position p of it is that of replica p % num_replicas.

    With ``shard=(rank, num_replicas)`` it gives each replica what the sampler would, and the place in it is one that
    another number of replicas understands.
    """

    def __init__(self, sampler: torch_data.DistributedSampler[Any]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        whole = copy.copy(self.sampler)
        whole.rank, whole.num_replicas, whole.num_samples = 0, 1, whole.total_size
        return iter(whole)

    def __len__(self) -> int:
        return int(self.sampler.total_size)


class DataLoader(torch_data.DataLoader):  # type: ignore[misc, unused-ignore]
    """PyTorch's loader, with Headrace's workers: the same arguments, attributes, batches, orders and errors.

    It is an instance of ``torch.utils.data.DataLoader``, whose documentation holds; libraries that look for that class
    take it for one. Batches are made by Headrace: in shared memory that is mapped once, by workers that are replaced
    when they die, and :meth:`state_dict` says after any batch where to go on.

    What differs:

    - Which worker makes a sample is open. So that augmentations that draw from :mod:`random`, :mod:`numpy.random` or
      torch repeat under ``torch.manual_seed`` all the same, several workers seed these generators for each sample. With
      a ``worker_init_fn``, which may have seeded them, they do not; worker w of W then makes the batches w, w + W, and
      so on, and draws what PyTorch's worker would draw.
    - A worker that starts in place of one that has died seeds these generators anew: it repeats no numbers, and draws
      the same ones only where each sample is seeded. It reads a stream again with the seeds that this began with.
    - Each iteration is its own, with ``persistent_workers=True``, too: a second one does not end the first.

    Thread-safety: use a loader, and its iterators, from one thread at a time.

    Args:
        seed: of the order and of the workers; default: drawn from ``generator``, or torch's global one, as PyTorch
            does.
        seed_records: seed the global generators for each sample, from its place in the epoch. Default: with two or
            more workers, for datasets that are read by index, unless these only look samples up in tensors, or there is
            a ``worker_init_fn``.
        shard: ``(rank, world)``: the share of the samples that this loader gets; see :class:`headrace.DataLoader`.
        device: "cuda" or "cuda:N": tensors on that device; see :class:`headrace.DataLoader`.
        max_deaths_per_sample, on_worker_death, threads_per_worker, trace: see :class:`headrace.DataLoader`.

    Raises:
        TypeError, ValueError: arguments that are out of range or exclude one another; as PyTorch where it has them.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        seed_records: bool | None = None,
        shard: tuple[int, int] = (0, 1),
        device: Any = None,
        max_deaths_per_sample: int = 4,
        on_worker_death: str = "raise",
        threads_per_worker: int = 1,
        trace: bool = False,
    ) -> None:
        if str(num_workers) == "auto":
            raise TypeError("num_workers is a number, as in PyTorch, got 'auto', which headrace.DataLoader takes")
        self._inner: HeadraceLoader | None = None
        self._inner_arguments: dict[str, Any] = {}
        self._replicas: _AllReplicas | None = None
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.seed = seed
        self.seed_records = seed_records
        self.shard = shard
        self.device = device
        self.max_deaths_per_sample = max_deaths_per_sample
        self.on_worker_death = on_worker_death
        self.threads_per_worker = threads_per_worker
        self.trace = trace
        if not self._is_datapipe:
            self._loader()  # whose errors belong here

    # Type hints may say what the batches consist of.
    __class_getitem__: ClassVar[Any] = classmethod(types.GenericAlias)

    def __len__(self) -> int:
        """Batches per epoch, as PyTorch counts them; with ``shard``, those of this loader."""
        return super().__len__() if self.shard == (0, 1) or self._dataset_kind != _MAP else len(self._loader())

    def __iter__(self) -> Any:
        """Starts the next epoch."""
        if self._is_datapipe:
            return super().__iter__()
        self.check_worker_number_rationality()
        self._warn_of_pinning()
        batches = iter(self._loader())
        if self.num_workers == 0 and self.pin_memory and torch.accelerator.is_available():
            batches = map(_pinned, batches)
        if self._IterableDataset_len_called is not None:
            batches = self._counted(batches)
        return batches

    def state_dict(self) -> dict[str, Any]:
        """The place that the latest iteration has reached; see :meth:`headrace.DataLoader.state_dict`."""
        return self._stateful().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration go on there; see :meth:`headrace.DataLoader.load_state_dict`."""
        self._stateful().load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of ``epoch``; see :meth:`headrace.DataLoader.set_epoch`. A sampler or dataset
        that counts epochs is told.

        Without ``seed``, a shuffled order does not depend on it: as with PyTorch, each epoch's is drawn anew.
        """
        for counting in (self.sampler, self.batch_sampler, self.dataset):
            if hasattr(counting, "set_epoch"):
                counting.set_epoch(epoch)
        self._stateful().set_epoch(epoch)

    def refresh(self) -> None:
        """Has the next iteration begin with the dataset as it is now; see :meth:`headrace.DataLoader.refresh`."""
        self._stateful().refresh()

    def stats(self) -> dict[str, Any]:
        """What the workers have done; see :meth:`headrace.DataLoader.stats`."""
        return self._stateful().stats()

    def write_trace(self, path: Any) -> None:
        """Writes a timeline of the latest iteration; see :meth:`headrace.DataLoader.write_trace`."""
        self._stateful().write_trace(path)

    def shutdown(self) -> None:
        """Ends the workers; the next iteration starts workers again."""
        if self._inner is not None:
            self._inner.shutdown()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in this process or another, runs on its own."""
        return {**self.__dict__, "_iterator": None}

    @property
    def _is_datapipe(self) -> bool:
        """Whether PyTorch's own workers read the dataset, which those of a graph of DataPipes alone can set up."""
        pipes = [getattr(torch_data, name, None) for name in ("IterDataPipe", "MapDataPipe")]
        return any(pipe is not None and isinstance(self.dataset, pipe) for pipe in pipes)

    def _stateful(self) -> HeadraceLoader:
        if self._is_datapipe:
            raise TypeError(
                "a loader of DataPipes has no state, statistics or epochs of its own: PyTorch's workers read these"
            )
        return self._loader()

    def _loader(self) -> HeadraceLoader:
        """The loader that makes the batches. Attributes that PyTorch lets change take effect at the next epoch."""
        arguments = self._arguments()
        if self._inner is None or not _same(arguments, self._inner_arguments):
            before, self._inner = self._inner, _Loader(self.dataset, **arguments)
            self._inner_arguments = arguments
            if before is not None:
                self._inner._succeed(before)
        return self._inner

    def _arguments(self) -> dict[str, Any]:
        workers = min(self.num_workers, MAX_WORKERS)
        collate_fn = self.collate_fn
        if collate_fn is torch_data.default_collate and workers > 0:
            collate_fn = _COLLATE
        several = workers * self.threads_per_worker > 1 and self._dataset_kind == _MAP
        several = several and self.worker_init_fn is None
        draws = collate_fn not in (_COLLATE, torch_data.default_collate) or _may_draw(self.dataset)
        seeds = several and draws if self.seed_records is None else self.seed_records
        return {
            "num_workers": workers,
            "collate_fn": collate_fn,
            "pin_memory": self.pin_memory and workers > 0 and torch.accelerator.is_available(),
            "timeout": self.timeout if workers > 0 else 0,
            "worker_init_fn": self.worker_init_fn,
            "multiprocessing_context": self.multiprocessing_context,
            "generator": self.generator if self.seed is None else None,
            "prefetch_factor": None if workers == 0 else _prefetch(self.prefetch_factor, workers),
            "persistent_workers": self.persistent_workers,
            "in_order": self.in_order,
            "seed": self.seed,
            "seed_records": "place" if seeds else False,
            "shard": self.shard,
            "device": self.device,
            "max_deaths_per_sample": self.max_deaths_per_sample,
            "on_worker_death": self.on_worker_death,
            "threads_per_worker": self.threads_per_worker,
            "trace": self.trace,
            **self._order(),
        }

    def _order(self) -> dict[str, Any]:
        """Where the indices come from: Headrace's own order where PyTorch's sampler would give the same."""
        if self._dataset_kind != _MAP:
            return {"batch_size": self.batch_size, "drop_last": self.drop_last}
        sampler, batch_sampler = self.sampler, self.batch_sampler
        plain = batch_sampler is None or (
            type(batch_sampler) is torch_data.BatchSampler
            and batch_sampler.sampler is sampler
            and batch_sampler.batch_size == self.batch_size
            and batch_sampler.drop_last == self.drop_last
        )
        usual = plain and getattr(sampler, "data_source", None) is self.dataset
        if usual and type(sampler) is torch_data.SequentialSampler:
            return {"batch_size": self.batch_size, "drop_last": self.drop_last}
        shuffled = usual and type(sampler) is torch_data.RandomSampler and sampler.generator is self.generator
        if shuffled and not sampler.replacement and sampler._num_samples is None:
            return {"batch_size": self.batch_size, "drop_last": self.drop_last, "shuffle": True}
        if not plain:
            return {"batch_sampler": batch_sampler}
        order = {"batch_size": self.batch_size, "drop_last": self.drop_last, "sampler": sampler}
        if type(sampler) is torch_data.DistributedSampler and self.shard == (0, 1):
            if self._replicas is None or self._replicas.sampler is not sampler:
                self._replicas = _AllReplicas(sampler)
            order |= {"sampler": self._replicas, "shard": (sampler.rank, sampler.num_replicas)}
        return order

    def _warn_of_pinning(self) -> None:
        if self.pin_memory and self.pin_memory_device:
            warnings.warn(
                "pin_memory_device is deprecated, the current accelerator will be used as the device, "
                f"ignore pin_memory_device='{self.pin_memory_device}'.",
                stacklevel=3,
            )
        if self.pin_memory and not torch.accelerator.is_available():
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be "
                "used.",
                stacklevel=3,
            )

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Warns as PyTorch does when there are more samples than ``len(loader)`` has said."""
        length = self._IterableDataset_len_called
        for number, batch in enumerate(batches, 1):
            if number > length:
                text = (
                    f"Length of IterableDataset {self.dataset} was reported to be {length}(when accessing "
                    f"len(dataloader)), but {number} samples have been fetched. "
                )
                if self.num_workers > 0:
                    text += (
                        "For multiprocessing data-loading, this happens unless the dataset gives each worker a share "
                        "of its own: see torch.utils.data.get_worker_info."
                    )
                warnings.warn(text, stacklevel=2)
            yield batch


_COLLATE = TorchCollate()
_MAP = torch_data.dataloader._DatasetKind.Map


def _same(arguments: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether the arguments are the same objects, or equal numbers or pairs of them."""
    return arguments.keys() == others.keys() and all(
        value is others[name] or (isinstance(value, (int, float, tuple)) and value == others[name])
        for name, value in arguments.items()
    )


def _may_draw(dataset: Any) -> bool:
    """Whether making a sample may take random numbers: not if PyTorch's own classes only look it up in tensors."""
    if type(dataset) is torch_data.Subset:
        return _may_draw(dataset.dataset)
    if type(dataset) is torch_data.ConcatDataset:
        return any(map(_may_draw, dataset.datasets))
    return type(dataset) is not torch_data.TensorDataset


def _prefetch(factor: int, workers: int) -> int:
    """Batches in flight in all. PyTorch's workers have none in flight with a factor of 0, and give none."""
    return min(max(1, factor) * workers, _MAX_PREFETCH)


def _pinned(batch: Any) -> Any:
    return torch_data._utils.pin_memory.pin_memory(batch)
