"""The drop-in for PyTorch's loader; ``_arguments`` makes the loader behind it, and decides on the order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Optional

from torch.utils import data as torch_data

from headrace.data._argument_checks import rank_and_world
from headrace.data._config import MAX_WORKERS
from headrace.torch._arguments import LoaderBacking, Option, Options, backing_of, is_datapipe
from headrace.torch._samplers import LoaderSampler, show_epoch_at

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Sample = TypeVar("Sample", covariant=True, default=Any)
else:
    from typing import TypeVar

    Sample = TypeVar("Sample", covariant=True)


class DataLoader(torch_data.DataLoader[Sample], Generic[Sample]):  # type: ignore[misc, unused-ignore]
    """PyTorch's loader, with Headrace's workers: the same arguments, attributes, batches, orders and errors.

    It is a subclass of ``torch.utils.data.DataLoader``, whose documentation applies; libraries that check for that
    class accept it. Headrace makes the batches: in shared memory that is mapped once, by workers that are replaced
    when they die, and :meth:`state_dict` says after any batch where to continue.

    What differs:

    - Any worker may make any sample. Two or more workers seed the generators of :mod:`random`, :mod:`numpy.random` and
      torch for each sample, so augmentations that draw from them are still repeatable under ``torch.manual_seed``. With
      a ``worker_init_fn``, which may have seeded them, they do not; worker w of W then makes the batches w, w + W, and
      so on, and draws the same numbers as PyTorch's worker.
    - A worker that replaces one that has died seeds these generators with new seeds: it repeats no numbers, and draws
      the same ones only where each sample is seeded. It rereads a stream with the stream's original seeds.
    - Iterations are independent, even with ``persistent_workers=True``: a second one does not end the first.

    The guide has a table of the smaller differences.

    Thread-safety: use a loader from one thread at a time. Threads may share an iterator: they take turns, and each
    batch goes to one of them.

    Args:
        seed: of the order and of the workers; default: drawn from ``generator``, or torch's global one, as PyTorch
            does.
        seed_records: seed the global generators for each sample, from its position in the epoch. Default: with two or
            more workers, for datasets that are read by index, unless these only look samples up in tensors, or there is
            a ``worker_init_fn``.
        shard: ``(rank, world)``: the share of the samples that this loader gets; see :class:`headrace.DataLoader`.
        device: "cuda" or "cuda:N": tensors on that device; see :class:`headrace.DataLoader`.
        max_deaths_per_sample, on_worker_death, on_state_mismatch, threads_per_worker, trace: see
            :class:`headrace.DataLoader`.

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
        on_state_mismatch: str = "raise",
        threads_per_worker: int = 1,
        trace: bool = False,
    ) -> None:
        if str(num_workers) == "auto":
            raise TypeError(
                "num_workers must be a number, as in PyTorch, got 'auto', which only headrace.DataLoader accepts"
            )
        options = Options(
            seed=seed,
            seed_records=seed_records,
            shard=rank_and_world(shard),
            device=device,
            max_deaths_per_sample=max_deaths_per_sample,
            on_worker_death=on_worker_death,
            on_state_mismatch=on_state_mismatch,
            threads_per_worker=threads_per_worker,
            trace=trace,
        )
        self._headrace = LoaderBacking(options)
        order = self._headrace.sampler(dataset, batch_size, shuffle, sampler, batch_sampler, drop_last)
        if order is not None:
            shuffle, sampler = None, order
        # Where Lightning looks for the arguments of a loader that it recreates.
        for name, value in options.given().items():
            vars(self).setdefault(name, value)
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
        vars(self)["batch_sampler"] = self._headrace.batch_sampler(self)  # no attribute that can be set any more
        if order is not None:
            show_epoch_at(self.batch_sampler, order)
        # Too many workers, and datasets that cannot be read, are errors when an epoch starts, as with PyTorch.
        can_be_read = hasattr(dataset, "__getitem__") or hasattr(dataset, "__iter__")
        if can_be_read and not is_datapipe(dataset) and self.num_workers <= MAX_WORKERS:
            loader = backing_of(self).loader(self)  # whose errors belong here
            if order is not None and loader.seed is not None:  # which a generator has given, if there was none
                order.seed = loader.seed

    # Read-only. A subclass may reuse these names.
    seed = Option[Optional[int]]()
    seed_records = Option[Optional[bool]]()
    shard = Option["tuple[int, int]"]()
    device = Option[Any]()
    max_deaths_per_sample = Option[int]()
    on_worker_death = Option[str]()
    on_state_mismatch = Option[str]()
    threads_per_worker = Option[int]()
    trace = Option[bool]()

    def __len__(self) -> int:
        """Batches per epoch, as PyTorch counts them; with ``shard``, those of this loader."""
        backing = backing_of(self)
        shared = backing.options.shard != (0, 1) and not isinstance(self.dataset, torch_data.IterableDataset)
        return len(backing.loader(self)) if shared else super().__len__()

    def __repr__(self) -> str:
        shown = {"batch_size": 1, "num_workers": 0, "drop_last": False, "shard": (0, 1)}
        given = [(name, getattr(self, name, usual)) for name, usual in shown.items()]
        parts = [f"{name}={value!r}" for name, value in given if value != shown[name]]
        dataset: Any = getattr(self, "dataset", None)
        return f"{type(self).__name__}({', '.join([type(dataset).__name__, *parts])})"

    def __iter__(self) -> Any:
        """Starts the next epoch."""
        kept: Any = vars(self).get("_iterator")
        if kept is not None:  # one of PyTorch's, by a subclass
            return super().__iter__()
        batches = self._get_iterator()
        if self.persistent_workers and isinstance(batches, torch_data.dataloader._BaseDataLoaderIter):
            self._iterator = batches
        return batches

    def _get_iterator(self) -> Any:
        """An iterator over the next epoch, which a subclass may wrap, as with PyTorch."""
        if is_datapipe(self.dataset):
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return backing_of(self).iterator(self)

    def state_dict(self) -> dict[str, Any]:
        """The position that the latest iteration has reached; see :meth:`headrace.DataLoader.state_dict`."""
        return backing_of(self).stateful(self).state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration continue from ``state``; see :meth:`headrace.DataLoader.load_state_dict`."""
        backing_of(self).load_state_dict(self, state)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of ``epoch``; see :meth:`headrace.DataLoader.set_epoch`. Also calls the
        ``set_epoch`` of samplers and of the dataset, where they have one.

        Without ``seed``, a shuffled order does not depend on it: as with PyTorch, each epoch's order is newly drawn.
        """
        parts: tuple[Any, ...] = (self.sampler, self.batch_sampler, self.dataset)
        for counting in parts:
            if hasattr(counting, "set_epoch"):
                counting.set_epoch(epoch)
        backing_of(self).stateful(self).set_epoch(epoch)

    def refresh(self) -> None:
        """Has the next iteration begin with the dataset as it is now; see :meth:`headrace.DataLoader.refresh`."""
        backing_of(self).stateful(self).refresh()

    def stats(self) -> dict[str, Any]:
        """Statistics of the latest iteration; see :meth:`headrace.DataLoader.stats`."""
        return backing_of(self).stateful(self).stats()

    def write_trace(self, path: Any) -> None:
        """Writes a timeline of the latest iteration; see :meth:`headrace.DataLoader.write_trace`."""
        backing_of(self).stateful(self).write_trace(path)

    def shutdown(self) -> None:
        """Ends the workers, which have up to five seconds for the samples that they are at; the next iteration starts
        workers again.
        """
        backing_of(self).shutdown()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in this process or another, runs on its own."""
        state = {**self.__dict__, "_iterator": None, "_headrace": copy.copy(backing_of(self))}
        order, batches = state.get("sampler"), state.get("batch_sampler")
        if isinstance(order, LoaderSampler):
            state["sampler"] = copy.copy(order)
            if getattr(batches, "sampler", None) is order:
                state["batch_sampler"] = copy.copy(batches)
                state["batch_sampler"].sampler = state["sampler"]
                show_epoch_at(state["batch_sampler"], state["sampler"])
        return state
