"""Turns the current arguments of PyTorch's loader into the Headrace loader that makes the drop-in's batches."""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, overload

import torch
from torch.utils import data as torch_data

from headrace._warnings import warn
from headrace.data import DataLoader as HeadraceLoader
from headrace.data._argument_checks import integer
from headrace.data._config import MAX_PREFETCH
from headrace.data._iteration.iterator import BatchIterator
from headrace.data._iteration.state import Position
from headrace.data._world import sharing_sampler
from headrace.torch._collation import NewCollate, TorchCollate
from headrace.torch._errors import as_pytorch_says
from headrace.torch._iterator import Batches, CheckedBatches
from headrace.torch._samplers import InOrder, LoaderSampler, Share

Value = TypeVar("Value", covariant=True)

_COLLATE = TorchCollate()
_COLLATE_HERE = NewCollate()
_PIN_MEMORY_DEVICE_IS_DEPRECATED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments that the drop-in has beyond PyTorch's, and documents."""

    seed: int | None = None
    seed_records: bool | None = None
    shard: tuple[int, int] = (0, 1)
    device: Any = None
    max_deaths_per_sample: int = 4
    on_worker_death: str = "raise"
    on_state_mismatch: str = "raise"
    threads_per_worker: int = 1
    trace: bool = False

    def given(self) -> dict[str, Any]:
        """Those that differ from their defaults."""
        pairs = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        return {field.name: value for field, value in pairs if value != field.default}


class Option(Generic[Value]):
    """An option as an attribute of a loader, to be read: what a subclass or a user assigns to that name takes its place
    there, and changes no option.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, loader: None, owner: type) -> Option[Value]: ...

    @overload
    def __get__(self, loader: object, owner: type) -> Value: ...

    def __get__(self, loader: Any, owner: type) -> Any:
        return self if loader is None else getattr(backing_of(loader).options, self._name)


class _Loader(HeadraceLoader):
    """Makes the batches of the drop-in.

    As with PyTorch, the program alone tells a dataset its epoch, a worker that it has seeded makes the batches that
    PyTorch's would, and indices and errors are those of PyTorch.
    """

    _tells_epoch = False
    _keeps_to_workers = True
    _keeps_indices = True
    _rephrases = staticmethod(as_pytorch_says)
    _iterator_class: type[BatchIterator] = Batches

    def follow(self, sampler: LoaderSampler) -> None:
        """Has the next iteration begin with the epoch that was chosen at the loader's sampler, if one was. As with
        PyTorch, an iteration of which nothing has been read yet is the next one. A state that was loaded goes before,
        unless it has nothing left of its epoch.
        """
        epoch = sampler.chosen_epoch()
        if epoch is None:
            return
        unread = None
        epochs = self._epochs
        for running in epochs.running:
            if isinstance(running, Batches) and running.progress is epochs.latest and running.unread:
                unread = running
        position, resumed = (epochs.next, epochs.resuming) if unread is None else unread.progress.back
        if resumed and position.batch < len(self):
            return
        if unread is None:
            self.set_epoch(epoch)
        elif epoch != position.epoch:
            epochs.next = Position(epoch + 1)
            unread.restart(Position(epoch), epochs.give_back_of(unread.progress))


def _follow(reference: weakref.ref[_Loader], sampler: LoaderSampler, batches: BatchIterator) -> None:
    """Has an iteration that is about to begin, begin with the epoch that has been chosen at the sampler by now."""
    loader = reference()
    if loader is not None and batches.unread:
        loader.follow(sampler)


class _AllReplicas:
    """The order that PyTorch's ``DistributedSampler`` shares out: position p of it is that of replica p % num_replicas.

    With ``shard=(rank, num_replicas)`` it gives each replica what the sampler would, and the place in it is one that
    another number of replicas understands.
    """

    def __init__(self, sampler: torch_data.DistributedSampler[Any]) -> None:
        self.replicated = sampler

    def __iter__(self) -> Iterator[int]:
        whole = copy.copy(self.replicated)
        whole.rank, whole.num_replicas, whole.num_samples = 0, 1, whole.total_size
        return iter(whole)

    def __len__(self) -> int:
        return int(self.replicated.total_size)


class LoaderBacking:
    """What is behind one of the drop-in's loaders, which it is given with each call: Headrace's options and its loader,
    which is made when it is first needed, and again when the arguments have changed.

    All that a loader has beyond PyTorch's attributes is here, under one name of the loader's: its subclasses, which
    choose their own names, cannot hit it.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._loader: _Loader | None = None
        self._arguments: dict[str, Any] = {}
        self._replicas: _AllReplicas | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": copy.copy(self._loader)}

    def sampler(
        self, dataset: Any, batch_size: Any, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: Any
    ) -> LoaderSampler | None:
        """What shows the order of a loader with these arguments; None if that is PyTorch's, or a given sampler's."""
        seed, shard = self.options.seed, self.options.shard
        usual = (seed is None and shard == (0, 1)) or isinstance(dataset, torch_data.IterableDataset)
        if usual or is_datapipe(dataset) or sampler is not None or batch_sampler is not None:
            return None
        if shuffle:
            torch_data.RandomSampler(dataset)  # raises what PyTorch's loader raises
        kind = LoaderSampler if shuffle else InOrder
        return kind(dataset, seed, shard, _group(batch_size, drop_last, shard))

    def batch_sampler(self, of: Any) -> Any:
        """The batch sampler that shows the batches of a loader that PyTorch's constructor has made."""
        sampler, batches, shard = of.sampler, of.batch_sampler, self.options.shard
        whole = type(batches) is torch_data.BatchSampler and batches.sampler is sampler and shard != (0, 1)
        if not whole or isinstance(sampler, LoaderSampler) or isinstance(of.dataset, torch_data.IterableDataset):
            return batches
        share = Share(sampler, shard, of.batch_size * shard[1], of.drop_last)
        return torch_data.BatchSampler(share, of.batch_size, of.drop_last)

    @staticmethod
    def _is_share(part: Any, sampler: Any) -> bool:
        return isinstance(part, Share) and part.sampler is sampler

    def loader(self, of: Any) -> HeadraceLoader:
        """The loader that makes the batches. Attributes that PyTorch lets change take effect at the next epoch."""
        return self._current(of)

    def stateful(self, of: Any) -> HeadraceLoader:
        """The same; TypeError if PyTorch's workers make the batches."""
        if is_datapipe(of.dataset):
            raise TypeError(
                "a loader of DataPipes has no state, statistics or epochs of its own: PyTorch's workers read these"
            )
        return self._current(of)

    def iterator(self, of: Any) -> BatchIterator:
        """Starts the next epoch."""
        if of.num_workers == 0 and of.timeout != 0:
            raise AssertionError("timeout is how long to wait for workers: with num_workers=0 it must be 0")
        _warn_of_pinning(of)
        loader = self._current(of)
        # Workers page-lock the arrays that they make, and those alone.
        only_arrays = of.num_workers > 0 and of.collate_fn is torch_data.default_collate
        pins = of.pin_memory and not only_arrays and torch.accelerator.is_available()
        said = of._IterableDataset_len_called
        loader._iterator_class = CheckedBatches if pins or said is not None else Batches
        batches = iter(loader)
        if isinstance(batches, CheckedBatches):
            batches.expect(of.dataset, said, pins)
        assert isinstance(batches, Batches)
        if isinstance(of.sampler, LoaderSampler):
            of.sampler.begin_epoch(loader._epochs.next.epoch)
            batches.before_first(functools.partial(_follow, weakref.ref(loader), of.sampler))
        return batches

    def load_state_dict(self, of: Any, state: dict[str, Any]) -> None:
        """Makes the next iteration continue from ``state``."""
        loader = self.stateful(of)
        loader.load_state_dict(state)
        if isinstance(of.sampler, LoaderSampler):
            of.sampler.seed = loader.seed or 0
            of.sampler.begin_epoch(loader._epochs.next.epoch)

    def shutdown(self) -> None:
        """Ends the workers."""
        if self._loader is not None:
            self._loader.shutdown()

    def _current(self, of: Any) -> _Loader:
        arguments = self._arguments_of(of)
        if self._loader is None or not _same(arguments, self._arguments):
            before, self._loader = self._loader, _Loader(of.dataset, **arguments)
            self._arguments = arguments
            if before is not None:
                self._loader._epochs.succeed(before._epochs)
        if isinstance(of.sampler, LoaderSampler):
            self._loader.follow(of.sampler)
        return self._loader

    def _arguments_of(self, of: Any) -> dict[str, Any]:
        options, workers, collate_fn = self.options, of.num_workers, of.collate_fn
        if isinstance(workers, bool):  # which counts as a number for PyTorch
            workers = int(workers)
        if collate_fn is torch_data.default_collate and workers == 0:
            collate_fn = _COLLATE_HERE
        elif collate_fn is torch_data.default_collate and (of.batch_size, of.batch_sampler) != (None, None):
            collate_fn = _COLLATE  # of a single sample, it makes a batch that the writer could not
        several = workers * options.threads_per_worker > 1 and not isinstance(of.dataset, torch_data.IterableDataset)
        several = several and of.worker_init_fn is None
        draws = collate_fn not in (_COLLATE, _COLLATE_HERE) or _may_draw(of.dataset)
        seeds = several and draws if options.seed_records is None else options.seed_records
        return {
            "num_workers": workers,
            "collate_fn": collate_fn,
            "pin_memory": bool(of.pin_memory) and workers > 0 and torch.accelerator.is_available(),
            "timeout": of.timeout if workers > 0 else 0,
            "worker_init_fn": of.worker_init_fn,
            "multiprocessing_context": of.multiprocessing_context if workers > 0 else None,
            "generator": of.generator,
            "prefetch_factor": None
            if workers == 0
            else _prefetch(of.prefetch_factor, workers * options.threads_per_worker),
            "persistent_workers": bool(of.persistent_workers) and workers > 0,
            "in_order": bool(of.in_order),
            "seed": options.seed,
            "seed_records": "position" if seeds is True else seeds,
            "shard": options.shard,
            "device": options.device,
            "max_deaths_per_sample": options.max_deaths_per_sample,
            "on_worker_death": options.on_worker_death,
            "on_state_mismatch": options.on_state_mismatch,
            "threads_per_worker": options.threads_per_worker,
            "trace": options.trace,
            **self._order(of),
        }

    def _order(self, of: Any) -> dict[str, Any]:
        """Where the indices come from: Headrace's own order where PyTorch's sampler would give the same."""
        sizes = {"batch_size": of.batch_size, "drop_last": bool(of.drop_last)}
        if isinstance(of.dataset, torch_data.IterableDataset):
            return sizes
        sampler, batch_sampler = of.sampler, of.batch_sampler
        plain = batch_sampler is None or (
            type(batch_sampler) is torch_data.BatchSampler
            and (batch_sampler.sampler is sampler or self._is_share(batch_sampler.sampler, sampler))
            and batch_sampler.batch_size == of.batch_size
            and batch_sampler.drop_last == of.drop_last
        )
        usual = plain and getattr(sampler, "data_source", None) is of.dataset
        if usual and type(sampler) is torch_data.SequentialSampler:
            return sizes
        shuffled = usual and type(sampler) is torch_data.RandomSampler and sampler.generator is of.generator
        if shuffled and not sampler.replacement and sampler.num_samples == len(sampler.data_source):
            return {**sizes, "shuffle": True}
        shard = self.options.shard
        own = sharing_sampler(sampler if plain else batch_sampler)
        if isinstance(own, (LoaderSampler, Share)) and (own.rank, own.num_replicas) == shard:
            group = _group(of.batch_size, of.drop_last, shard)
            if (
                plain
                and isinstance(own, LoaderSampler)
                and own is sampler
                and own.is_of(of.dataset, self.options.seed, shard, group)
            ):
                return {**sizes, "shuffle": own.shuffle}
            shares = {"shard": (0, 1)}  # its indices are this loader's share already
        else:
            shares = {}
        if not plain:
            return {"batch_sampler": batch_sampler, **shares}
        if type(sampler) is torch_data.DistributedSampler and self.options.shard == (0, 1):
            if self._replicas is None or self._replicas.replicated is not sampler:
                self._replicas = _AllReplicas(sampler)
            return {**sizes, "sampler": self._replicas, "shard": (sampler.rank, sampler.num_replicas)}
        return {**sizes, "sampler": sampler, **shares}


def _group(batch_size: Any, drop_last: Any, shard: tuple[int, int]) -> int:
    """How many indices of the order must be there for all loaders to get a batch, if there must be any number."""
    return (batch_size or 1) * shard[1] if drop_last and shard[1] > 1 else 1


def backing_of(loader: Any) -> LoaderBacking:
    """What is behind a loader; its subclass need not call ``__init__``."""
    backing: LoaderBacking | None = vars(loader).get("_headrace")
    if backing is None:
        backing = vars(loader)["_headrace"] = LoaderBacking(Options())
    return backing


def is_datapipe(dataset: Any) -> bool:
    """Whether PyTorch's own workers read a dataset, which those of a graph of DataPipes alone can set up."""
    pipes = [getattr(torch_data, name, None) for name in ("IterDataPipe", "MapDataPipe")]
    return any(pipe is not None and isinstance(dataset, pipe) for pipe in pipes)


def _warn_of_pinning(of: Any) -> None:
    if of.pin_memory and of.pin_memory_device and _PIN_MEMORY_DEVICE_IS_DEPRECATED:
        warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device, "
            f"ignore pin_memory_device='{of.pin_memory_device}'.",
            UserWarning,
        )
    if of.pin_memory and not torch.accelerator.is_available():
        warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be "
            "used.",
            UserWarning,
        )


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


def _prefetch(factor: int | None, producers: int) -> int:
    """Batches in flight in all. PyTorch's workers have none in flight with a factor of 0, and give none."""
    return min(max(1, integer("prefetch_factor", factor or 0)) * producers, MAX_PREFETCH)
