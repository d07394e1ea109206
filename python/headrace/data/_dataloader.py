"""The loader: batches of a dataset, made by workers in shared memory, in an order that depends on the seed alone.

Which epoch comes next is decided in ``_iteration.epochs``; states are read and checked in ``_iteration.state``.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Optional

from headrace import _core, errors
from headrace._traced import traced_loaders
from headrace.data._argument import Argument
from headrace.data._argument_checks import import_tqdm, integer
from headrace.data._config import ARGUMENT_NAMES, LoaderConfig
from headrace.data._iteration.epochs import Epochs
from headrace.data._iteration.feed import Feed
from headrace.data._iteration.iterator import BatchIterator
from headrace.data._iteration.progress_bar import ProgressBar
from headrace.data._iteration.state import MAX_BATCH, MAX_EPOCH, decode_state, encode_state
from headrace.data._order.choose_order import batches_per_epoch
from headrace.data._reports.timeline import trace_events, write_timeline
from headrace.data._samplers.protocols import SeekableSampler
from headrace.data._samplers.samplers import BatchSampler, RandomSampler, SequentialSampler

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Batch = TypeVar("Batch", default=Any)
else:
    from typing import TypeVar

    Batch = TypeVar("Batch")


class _FixedBatchSampler(BatchSampler):
    """A read-only view of a loader's batches: changing it would not change them."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool) -> None:
        vars(self).update(sampler=sampler, batch_size=batch_size, drop_last=drop_last)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ValueError(f"{name} of a loader's batch_sampler cannot be changed; create a new loader")


class DataLoader(Generic[Batch]):
    """Iterates over a dataset in batches, with the arguments of ``torch.utils.data.DataLoader``.

    ``num_workers`` processes make the samples of a batch together and write them straight to their final place, in
    memory shared with this process: batches are not pickled, copied or newly allocated. The same seed gives the same
    order for any number of workers, even none, except with ``order="grain"``, ``iterable_sharding="dataset"`` and
    ``in_order=False``.

    A batch consists of NumPy arrays, or torch tensors, that view the shared memory. It belongs to the consumer, stays
    valid and unchanged for as long as any reference to it exists, and may be written to; with ``num_workers=0``,
    arrays in it that have other references are copied first. Lists, tuples, named tuples, dicts and dataclasses of
    arrays, tensors, numbers and strings are collated as in PyTorch.

    Several iterations of one loader may be in progress at the same time; each has workers of its own, which the next
    one takes over. Thread-safety: use a loader from one thread at a time. Threads may share an iterator: they take
    turns, and each batch goes to one of them. After a fork, the child can iterate over a loader, which then starts
    workers of its own; batches of the parent must not be used there.

    Args:
        dataset: has ``__len__`` and ``__getitem__``, or ``__iter__``; see :class:`headrace.data.Dataset` and
            :class:`headrace.data.IterableDataset` for optional methods.
        batch_size: samples per batch. None: no batches; each sample arrives as ``collate_fn`` (default:
            :func:`headrace.data.default_convert`) returns it.
        shuffle: a new random order each epoch, a function of the seed and the epoch.
        sampler: yields the indices instead; an iterable, iterated over once per epoch. Excludes ``shuffle``.
        batch_sampler: yields lists of indices; excludes ``batch_size``, ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: worker processes; 0 makes the samples in this process, on demand. "auto": starts with one and
            adjusts the number at run time: at most one per processor if they keep it busy, and four per processor if
            they wait for files or networks.
        collate_fn: makes a batch from a list of samples, in a worker. Default: see
            :func:`headrace.data.default_collate`. It may keep samples beyond the call. Its result, any object that can
            be pickled, arrives unchanged: with its strides, arrays that share memory, and attributes.
        pin_memory: page-lock the memory of batches, for fast asynchronous copies to a GPU; has no effect without one. A
            batch may be dropped while its ``.to("cuda", non_blocking=True)`` is in progress: its memory is not reused
            before the device has finished. Not page-locked are objects; batches that arrive as copies because the
            program keeps hundreds; and, with ``num_workers=0``, batches of a ``collate_fn``, or of samples that hold
            more than numbers, strings, arrays and tensors.
        drop_last: drop a last batch that is not full.
        timeout: seconds that a batch may take; 0: no limit. After that time, ``errors.Timeout`` names the samples in
            progress, with the workers' stacks; a worker that has spent half of the time on one sample is replaced,
            unless it is still in ``worker_init_fn`` or is reading up to the position where a stream resumes.
        worker_init_fn: called with the worker's number in each worker when it starts.
        multiprocessing_context: a start method ("fork", "forkserver", "spawn") or a context of :mod:`multiprocessing`.
        generator: the source of the seed: a ``torch.Generator``, from which shuffling draws the same numbers as
            PyTorch, and so gives the same order; or a :class:`numpy.random.Generator`. Excludes ``seed``.
        prefetch_factor: how many batches are in progress or ready, in all (PyTorch: per worker). It bounds the shared
            memory, whatever the number of workers; if that many batches take more than 16 MiB, there are only as many
            as keep the consumer from waiting. Default: two per worker, at most 8; four per worker where one worker
            makes a whole batch, as with a ``collate_fn``, an iterable dataset, or one with ``__getitems__``.
        persistent_workers: keep the workers from one epoch to the next. Default: as long as the dataset and the
            functions have not changed. True: also if the loader cannot tell whether they have, as with a large dataset
            (see :meth:`refresh`). They start the next epoch while one ends, unless something may change in between that
            the loader cannot see. After a minute or so between two epochs, two or more workers that may make any sample
            exit in any case, and the next epoch starts new ones; a single worker stays, and so do workers that read
            streams or make particular batches.
        in_order: batches arrive in their order; False: as they become ready, except those of one stream.
        pin_memory_device: accepted for compatibility with PyTorch, and ignored.
        device: "cuda" or "cuda:N": tensors on that device, copied on a stream of the loader's own while the previous
            batch is in use; the stream that is current when a batch is taken waits for its copies. Implies ``to`` and
            ``pin_memory``. Needs torch.
        seed: determines the order and the records' generators; workers seed :mod:`random`, :mod:`numpy.random` and
            torch with it, the position where they start and their number. A worker that replaces another draws other
            numbers than that one, except from a stream, which it reads again with the same seeds. Default: fresh
            entropy, readable as ``loader.seed``; in a program that has imported torch, torch's global generator, as in
            PyTorch: then ``torch.manual_seed`` makes the loader repeatable, and shuffling gives PyTorch's order.
        to: the type of a batch's arrays: "numpy"; "torch"; or None: torch tensors if the samples hold tensors or the
            dataset is a PyTorch dataset, else NumPy arrays.
        shard: ``(rank, world)``: this loader is one of ``world`` that share the dataset, one on each host or GPU. A
            global batch has ``batch_size * world`` samples, of which this loader gets every ``world``-th from ``rank``
            on. Nothing is repeated or padded: without ``drop_last``, some loaders may get fewer samples, or batches, at
            the end.
        order: None, or "grain": Grain's order, in which worker w of W makes batches of every W-th record.
        ragged: the rule for arrays whose shapes differ within a batch: None (an error), "pad", ``("pad", value)``,
            "list" or "lod"; see :func:`headrace.data.default_collate`.
        workers: whether the workers are processes ("process") or threads ("thread"), which suit datasets that release
            the GIL.
        threads_per_worker: threads that make samples in each worker process, for datasets that wait for files or
            networks. The dataset must be thread-safe.
        num_workers_batches: how many of the workers run ``collate_fn``, on samples that all of them have made: for
            samples that take long. The samples are pickled on their way to it, so it cannot compare them, or objects
            in them, by identity (``sample is MISSING``). Default: each worker makes the samples of whole batches and
            collates them.
        iterable_sharding: who divides an iterable dataset among the workers. "engine": the loader does: all workers
            iterate over the same stream; each batch is made by one of them, and the others skip it; the order is the
            same as without workers. "dataset": the dataset does: each worker iterates over a stream of its own, which
            the dataset derives from ``get_worker_info``, and makes batches of it; the loader takes a batch from each
            worker in turn. Default: "dataset" for torch's ``IterableDataset``, else "engine".
        progress: show a progress bar (needs tqdm).
        trace: record the actions of workers, slots and consumer over time, for :meth:`write_trace`.
        max_deaths_per_sample: a worker that dies is replaced, and the sample it was making is made again, after a
            pause; after this many deaths by the same signal or exit status, the sample is given up. If workers also die
            of that cause at other samples, they are being killed from outside, and the sample is not blamed.
        on_worker_death: what happens when a sample is given up: "raise": ``errors.WorkerDied`` comes instead of its
            batch; "skip": the batch comes without that sample.
        on_state_mismatch: what :meth:`load_state_dict` does with a state of a loader whose batches were others, because
            of its batch size, number of loaders, dataset, order or seed. "raise": a ValueError. "adapt": if only the
            size of the (global) batches differs, the epoch continues with the batch that contains the next sample, so
            that at most the beginning of this batch is repeated; not with a sampler whose order the state cannot
            repeat: one that is not seekable, has no state, and draws from no torch.Generator. Otherwise the epoch
            restarts; a sampler of the same type then begins it with the state that it had at its beginning. A
            RuntimeWarning says what is repeated, or left out.
        seed_records: seed :mod:`random`, :mod:`numpy.random` and torch for each sample from (seed, epoch, index), so
            that datasets that draw from them do not depend on which worker runs them; or "position": from the sample's
            position in the epoch, so that a record that comes twice draws different numbers. ``collate_fn`` and
            ``__getitems__``, which "position" lets make whole batches, then have a separate seed for each batch.

    Raises:
        TypeError, ValueError: arguments that are out of range or exclude one another.
        ImportError: torch, which ``device`` and ``to="torch"`` need, is not installed.
        RuntimeError: there is no CUDA device for ``device``.
    """

    # The arguments, which can be read. The properties below are those that may differ from the argument.
    dataset = Argument[Any]()
    batch_size = Argument[Optional[int]]()
    shuffle = Argument[bool]()
    pin_memory = Argument[bool]()
    drop_last = Argument[bool]()
    timeout = Argument[float]()
    worker_init_fn = Argument["Callable[[int], None] | None"]()
    multiprocessing_context = Argument[Any]()
    generator = Argument[Any]()
    prefetch_factor = Argument[int]()
    persistent_workers = Argument[bool]()
    pin_memory_device = Argument[str]()
    device = Argument[Optional[str]]()
    in_order = Argument[bool]()
    to = Argument[Optional[str]]()
    shard = Argument["tuple[int, int]"]()
    order = Argument[Optional[str]]()
    ragged = Argument[Any]()
    workers = Argument[str]()
    threads_per_worker = Argument[int]()
    num_workers_batches = Argument[int]()
    seed_records = Argument["bool | str"]()
    iterable_sharding = Argument[Optional[str]]()
    progress = Argument[bool]()
    trace = Argument[bool]()
    max_deaths_per_sample = Argument[int]()
    on_worker_death = Argument[str]()
    on_state_mismatch = Argument[str]()

    # What LoaderConfig says of them.
    _tells_epoch: ClassVar[bool] = True
    _keeps_to_workers: ClassVar[bool] = False
    _keeps_indices: ClassVar[bool] = False
    _rephrases: ClassVar[Any] = None
    _iterator_class: type[BatchIterator] = BatchIterator

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Iterable[Any]] | None = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | Any | None = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        device: Any = None,
        in_order: bool = True,
        seed: int | None = None,
        to: str | None = None,
        shard: tuple[int, int] = (0, 1),
        order: str | None = None,
        ragged: Any = None,
        workers: str = "process",
        threads_per_worker: int = 1,
        num_workers_batches: int | None = None,
        seed_records: bool | str = False,
        iterable_sharding: str | None = None,
        progress: bool = False,
        trace: bool = False,
        max_deaths_per_sample: int = 4,
        on_worker_death: str = "raise",
        on_state_mismatch: str = "raise",
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name in ARGUMENT_NAMES}
        self._config = LoaderConfig(
            **arguments,
            tells_epoch=self._tells_epoch,
            keeps_to_workers=self._keeps_to_workers,
            keeps_indices=self._keeps_indices,
            rephrases=self._rephrases,
        )
        self._epochs = Epochs(self._config)
        self._own_sampler: SeekableSampler | None = None
        self._summary: dict[str, Any] = {}
        if self.trace:
            traced_loaders.add(self)

    @property
    def num_workers(self) -> int:
        """Workers; with "auto", how many there were when the latest epoch ended."""
        return self._epochs.num_workers

    @property
    def seed(self) -> int | None:
        """The seed of the order and of the records' generators; None until torch draws it."""
        return self._epochs.seed

    @property
    def sampler(self) -> Any:
        """The given sampler; if none was given, one of :mod:`headrace.data` with this loader's order for all shards.

        Its ``set_epoch`` chooses the loader's next epoch, too. It yields that epoch's indices from their beginning, but
        not in PyTorch's order (torch imported, no ``seed``), which is drawn as an epoch begins.
        """
        config = self._config
        if config.sampler is not None or config.iterable:
            return config.sampler
        if self._own_sampler is None and config.shuffle:
            self._own_sampler = RandomSampler(config.dataset, generator=config.torch_generator or self.seed)
        elif self._own_sampler is None:
            self._own_sampler = SequentialSampler(config.dataset)
        chosen = self._own_sampler.chosen_epoch()
        if chosen is None:
            self._own_sampler.begin_epoch(self._epochs.next.epoch)
        else:
            self._own_sampler.set_epoch(chosen)
        return self._own_sampler

    @property
    def batch_sampler(self) -> Any:
        """The given batch sampler, or one made of ``sampler``, whose attributes cannot be changed; None where there are
        no lists of indices, and with ``order="grain"``, whose batches are not successive indices of a sampler.
        """
        config = self._config
        if config.batch_sampler is not None or config.iterable or config.batch_size is None or config.order == "grain":
            return config.batch_sampler
        return _FixedBatchSampler(self.sampler, config.batch_size, config.drop_last)

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """The function that makes a batch of samples."""
        return self._config.collate

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ARGUMENT_NAMES:
            raise ValueError(f"{name} cannot be changed after construction; create a new loader")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        shown = {
            "batch_size": 1,
            "shuffle": False,
            "num_workers": 0,
            "drop_last": False,
            "shard": (0, 1),
            "order": None,
        }
        given = [f"{name}={getattr(self, name)!r}" for name, usual in shown.items() if getattr(self, name) != usual]
        return f"DataLoader({', '.join([type(self.dataset).__name__, *given, f'seed={self.seed}'])})"

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy, in this process or another: it continues from this loader's position, independently of
        it.
        """
        return {**self.__dict__, "_own_sampler": None, "_epochs": copy.copy(self._epochs)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.trace:
            traced_loaders.add(self)

    def __len__(self) -> int:
        """Batches per epoch that this loader gives."""
        return batches_per_epoch(self._config, self.seed or 0)

    def __iter__(self) -> Iterator[Batch]:
        """Starts the next epoch. If the iterator is dropped before the first ``next``, the epoch counts as not
        started.
        """
        config = self._config
        total = self._length_if_known() if config.progress else None
        engine, progress = self._epochs.start(self._own_sampler)
        length = functools.partial(batches_per_epoch, config, self.seed or 0)
        bar = None
        if config.progress:
            bar = ProgressBar(import_tqdm()(total=total, initial=progress.taken, unit="batch"))
        iterator = self._iterator_class(
            engine, progress, length, self._epochs.give_back_of(progress), config.pin_memory, bar
        )
        begin_reading = self._epochs.begin_reading()
        if begin_reading is not None:
            iterator.before_first(begin_reading)
        self._epochs.running.add(iterator)
        return iterator

    def _length_if_known(self) -> int | None:
        try:
            return len(self)
        except TypeError:  # the dataset or sampler has none
            return None

    def set_epoch(self, epoch: int) -> None:
        """Makes ``epoch``, counted from 0, the next iteration's; later iterations continue counting from it.

        If a state within that epoch was loaded, the next iteration still resumes there. If one between two epochs was
        loaded, samplers with a state and PyTorch's generators go on from it, whichever epoch is chosen. In PyTorch's
        order (torch imported, no ``seed``) an epoch has no order of its own: whatever its number, it is drawn from
        torch's generator as the epoch begins.
        """
        self._epochs.choose(integer("epoch", epoch, 0, MAX_EPOCH))

    def refresh(self) -> None:
        """Has the next iteration begin with the dataset and ``collate_fn`` as they are now, in new workers.

        Between epochs the loader detects changes in the dataset, in ``collate_fn`` and in the objects they refer to,
        and the workers of the next epoch have them: with "fork", new workers start; others receive the changes, or are
        replaced. If a dataset has more than 64 MiB of arrays or 4 MiB of other data, or cannot be pickled, the loader
        cannot detect changes and starts new workers in each epoch, unless ``persistent_workers=True`` was given; in
        that case, call this method after a change. The loader does not see class attributes, global variables and
        state that ``__getstate__`` leaves out; new workers of "spawn" and "forkserver" have the first two as their
        modules define them.

        During an epoch the workers' dataset does not change. Threads, and a loader without workers, use the program's
        own objects, so a change takes effect immediately.
        """
        self._epochs.refresh()

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The position that the latest iteration has reached: a small dict for :meth:`load_state_dict`, which JSON can
        hold.

        It can be taken between any two batches, however far ahead the workers are. Restoring takes O(1) for the
        built-in orders and samplers; any other sampler is iterated over again up to that position. The number of
        workers may change, and so may the number of loaders (``shard``) if ``batch_size * world`` stays the same.

        Args:
            batches: how many batches of the epoch have been consumed, if the caller knows better. Required while the
                loader feeds a program's reader, whose queue holds batches; no longer required once the reader was reset
                after the last batch.

        Raises:
            FailedPrecondition: ``batches`` is required; or a number does not identify the batches, since they come in
                any order, from several streams, or of a dataset with a state of its own.
        """
        if batches is not None:
            batches = integer("batches", batches, 0, MAX_BATCH)
        return encode_state(self._config, *self._epochs.reached(batches))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration resume with the batch after those that ``state`` counts.

        An iteration in progress ends, and its workers with it: its next call of ``next`` raises an error. A rejected
        state changes nothing.

        Raises:
            TypeError: ``state`` is not a loader's state, or one of its values has the wrong type.
            ValueError: ``state`` belongs to another dataset, seed, order, batch size or version, or one of its values
                is out of range; see ``on_state_mismatch``.
        """
        position, seed, of_dataset = decode_state(self._config, state)
        for part in of_dataset:
            self._load_dataset(part)
        if seed != self.seed:
            self._own_sampler = None
        if of_dataset:
            self.refresh()
        self._epochs.resume(position, seed)

    def _load_dataset(self, state: Any) -> None:
        """Has the dataset load its part of a state. If it refuses, it goes back to where it was."""
        dataset = self._config.dataset
        before = dataset.state_dict()
        try:
            dataset.load_state_dict(state)
        except BaseException:
            with contextlib.suppress(Exception):
                dataset.load_state_dict(before)
            raise

    def stats(self) -> dict[str, Any]:
        """Statistics of the latest iteration since its workers started; empty before the first iteration.

        Returns:
            Rates (``samples_per_s``, ``bytes_per_s``); totals (``batches``, ``samples``, ``bytes``); seconds that the
            consumer and the workers waited (``consumer_wait_s``, ``worker_wait_s``); seconds that the workers were
            busy, summed over them, in all and by stage (``worker_busy_s``; ``dataset_s``, ``collate_s``,
            ``copy_s``); slots and memory in use (``held_slots``, ``slots_used``, ``resident_bytes``); workers that
            died, and samples left out because of that (``worker_deaths``, ``skipped_samples``); and ``bottleneck``, a
            sentence.
        """
        engine = self._epochs.latest_engine()
        return self._summary if engine is None else engine.stats()

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a timeline of the latest iteration's workers, slots and consumer: a JSON file in the Trace Event
        Format, which https://ui.perfetto.dev displays.

        It holds the newest 16,384 events of each worker.

        Raises:
            FailedPrecondition: the loader was made without ``trace=True``, has not been iterated over yet, or has
                been shut down.
        """
        engine = self._epochs.latest_engine()
        if not self.trace or engine is None:
            raise errors.FailedPrecondition(
                "a trace needs a loader with trace=True that has been iterated over and not shut down since"
            )
        write_timeline(path, engine.scheduler.trace(), self.threads_per_worker)

    def _trace_events(self, first_pid: int, since: int) -> list[dict[str, Any]]:
        """For a timeline of another module: the events of workers, slots and consumer in the latest iteration since
        ``since``, in nanoseconds of the monotonic clock. See trace_events.
        """
        engine = self._epochs.latest_engine()
        if engine is None:
            return []
        events = (event for event in engine.scheduler.trace() if event[3] >= since)
        return trace_events(events, self.threads_per_worker, first_pid)

    def shutdown(self) -> None:
        """Ends the workers and frees their memory. Batches stay valid; the next iteration starts new workers.

        A worker that is at a sample finishes it first: what a dataset writes is written to its end. After five seconds,
        as with PyTorch, it is killed, since it may wait for a server that is gone; after one second, if it waits for
        data of :mod:`headrace.wirehead`.
        """
        if self._epochs.latest is not None:
            self._summary = self.stats()
        self._epochs.close()

    def _feed(self, queue: _core.LoDTensorBlockingQueue, names: Sequence[str] | None = None) -> Feed:
        """Starts the next epoch and a C++ thread that moves its batches into ``queue``; used by
        ``py_reader.decorate_loader``. ``names``: see :class:`Feed`.
        """
        engine, progress = self._epochs.start(self._own_sampler, feeds=True)
        progress.feeding = True
        feed = Feed(engine, queue, names, progress.finish, self._epochs.give_back_of(progress))
        self._epochs.running.add(feed)
        return feed

    def _next_pass(self) -> dict[str, Any]:
        """The position of the next epoch, also after one that was fed and stopped early: whoever has stopped it drops
        the rest, which ``state_dict`` cannot know.
        """
        return encode_state(self._config, *self._epochs.reached(None, goes_on=False))
