"""A loader's arguments: checked, completed, and fixed from then on."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from headrace._warnings import warn
from headrace.data._argument_checks import (
    MAX_SEED,
    flag,
    function,
    import_tqdm,
    integer,
    is_torch_generator,
    number,
    rank_and_world,
    require_torch,
    seconds,
    start_method,
)
from headrace.data._datasets.capabilities import is_torch_dataset, wants_out
from headrace.data._datasets.datasets import bulk_method
from headrace.data._datasets.grain import SampledDataset, is_grain_sampler
from headrace.data._datasets.iterable_datasets import is_iter_datapipe, is_iterable_dataset, is_read_once
from headrace.data._samplers.protocols import SeekableSampler
from headrace.data._samplers.sampler_state import SamplerState
from headrace.data._samples.collation import (
    DefaultCollate,
    InPlaceCollate,
    check_ragged_rule,
    default_collate,
    default_convert,
)
from headrace.data._samples.device_copies import check_device, require_devices
from headrace.data._samples.tensor_columns import tensor_columns
from headrace.data._worker_tuning import WAITING_WORKERS, processors
from headrace.data._world import check_sharing

MAX_WORKERS = 512
MAX_PREFETCH = 512
_MAX_BATCH_SIZE = (1 << 31) - 1
# An index is a signed 64-bit number, of which two bits are reserved for arithmetic.
_MAX_LENGTH = 1 << 62


@dataclasses.dataclass(frozen=True, eq=False)
class LoaderConfig:
    """The arguments of a :class:`headrace.data.DataLoader`, which documents them.

    Arguments that were left out have the values that the loader uses, except ``sampler``, ``batch_sampler`` and
    ``collate_fn``, which have the given values. Immutable, so it can be read from any thread.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind, out of range, or excluded by another one.
    """

    dataset: Any
    batch_size: int | None
    shuffle: bool
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Iterable[Any]] | None
    num_workers: int  # at the start, if ``auto_workers``
    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: Any
    prefetch_factor: int
    persistent_workers: bool
    pin_memory_device: str
    device: str | None
    in_order: bool
    seed: int | None  # None: drawn from torch when an epoch begins
    to: str | None
    shard: tuple[int, int]
    order: str | None
    ragged: Any
    workers: str
    threads_per_worker: int
    num_workers_batches: int
    seed_records: bool | str
    iterable_sharding: str | None
    progress: bool
    trace: bool
    max_deaths_per_sample: int
    on_worker_death: str
    on_state_mismatch: str
    # Of the loader's class: whether a dataset's set_epoch is called for it, rather than by the program alone.
    tells_epoch: bool = True
    # Of the loader's class: worker w of W makes whole batches, w, w + W, …, if worker_init_fn may have seeded it.
    keeps_to_workers: bool = False
    # Of the loader's class: an index of a sampler reaches the dataset as it is, not as an int if it is another integer.
    keeps_indices: bool = False
    # Of the loader's class: converts an exception of a worker process before it is raised; None: no conversion.
    rephrases: Callable[[BaseException], BaseException] | None = None

    # Derived from the arguments.
    iterable: bool = dataclasses.field(init=False)
    # Whether the iterable dataset is empty once it was read.
    read_once: bool = dataclasses.field(init=False)
    auto_workers: bool = dataclasses.field(init=False)
    # Torch's generator, if one was given; and whether torch decides order and seed.
    torch_generator: Any = dataclasses.field(init=False)
    follows_torch: bool = dataclasses.field(init=False)
    # Whether the user chose the seed: a state of another seed is then an error.
    seed_is_given: bool = dataclasses.field(init=False)
    # Whether torch's generator is asked for a seed in each epoch: torch's loader asks when it starts workers.
    draws_each_epoch: bool = dataclasses.field(init=False)
    # Whether several workers make the samples of one batch for ``collate_fn``.
    splits_batches: bool = dataclasses.field(init=False)
    # Whether the user wants workers to stay even if the loader cannot tell whether the dataset has changed.
    always_persistent: bool = dataclasses.field(init=False)
    # The dataset that workers read: a Grain sampler gives the record at each position.
    source: Any = dataclasses.field(init=False)
    # Of the sampler or batch sampler.
    sampler_state: SamplerState = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self._check_dataset()
        self._check_flags()
        self._check_order()
        self._set("sampler_state", SamplerState(self.sampler if self.batch_sampler is None else self.batch_sampler))
        self._check_functions()
        self._check_workers()
        self._check_seed()
        self._check_shard()
        self._check_stream()
        if self.to not in (None, "numpy", "torch"):
            raise ValueError(f'to must be "numpy", "torch" or None, got {self.to!r}')
        if self.to == "torch":
            require_torch('to="torch"')
        self._check_device()
        if self.on_state_mismatch not in ("raise", "adapt"):
            raise ValueError(f'on_state_mismatch must be "raise" or "adapt", got {self.on_state_mismatch!r}')
        if self.progress:
            import_tqdm()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_device(self) -> None:
        self._set("device", check_device(self.device))
        if self.device is not None:
            if self.to == "numpy":
                raise ValueError('device excludes to="numpy": NumPy has no arrays on a GPU')
            require_devices(self.device)
            self._set("to", "torch")
            self._set("pin_memory", True)

    def _check_dataset(self) -> None:
        self._set("iterable", is_iterable_dataset(self.dataset))
        self._set("read_once", self.iterable and is_read_once(self.dataset))
        # A sampler decides which samples there are, so they need not be counted.
        sampled = self.sampler is not None or self.batch_sampler is not None
        indexed = ("__getitem__",) if sampled else ("__len__", "__getitem__")
        for method in ("__iter__",) if self.iterable else indexed:
            # A class has its methods for its instances; an enumeration, for one, has some for itself.
            if not hasattr(type(self.dataset) if isinstance(self.dataset, type) else self.dataset, method):
                got = f"{type(self.dataset).__name__} has no {method}"
                if isinstance(self.dataset, type):
                    got = f"got the class {self.dataset.__name__}: write {self.dataset.__name__}(...)"
                elif isinstance(self.dataset, types.FunctionType):
                    got = "got a function; if it is a generator function, call it"
                raise TypeError(f"dataset must have __len__ and __getitem__, or __iter__; {got}")
        grain = self.sampler is not None and is_grain_sampler(self.sampler)
        self._set("source", SampledDataset(self.dataset, self.sampler) if grain else self.dataset)

    def _check_flags(self) -> None:
        for name in ("shuffle", "drop_last", "pin_memory", "persistent_workers", "in_order", "trace", "progress"):
            value = getattr(self, name)
            left_out = value is None and name in ("shuffle", "persistent_workers")
            self._set(name, value if left_out else flag(name, value))

    def _check_order(self) -> None:
        if self.iterable:
            for name in ("shuffle", "sampler", "batch_sampler"):
                value = getattr(self, name)
                if value:
                    raise ValueError(f"an iterable dataset decides its own order: leave out {name}, got {value!r}")
        if self.sampler is not None and self.shuffle:
            raise ValueError("sampler excludes shuffle: the sampler decides the order")
        for name in ("sampler", "batch_sampler"):
            value = getattr(self, name)
            if not (value is None or hasattr(value, "__iter__") or hasattr(value, "__getitem__")):
                what = "indices" if name == "sampler" else "lists of indices"
                raise TypeError(f"{name} must be an iterable of {what}, got {value!r}")
        if self.batch_sampler is not None:
            if self.batch_size != 1 or self.shuffle or self.sampler is not None or self.drop_last:
                raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            self._set("batch_size", None)
        elif self.batch_size is None:
            if self.drop_last:
                raise ValueError("batch_size=None makes no batches, so drop_last has no meaning: leave it out")
        else:
            self._set("batch_size", integer("batch_size", self.batch_size, 1, _MAX_BATCH_SIZE))
        if self.order not in (None, "grain"):
            raise ValueError(f'order must be None or "grain", got {self.order!r}')
        if self.order is not None:
            if self.iterable or self.batch_size is None:
                raise ValueError('order="grain" needs a map-style dataset and a batch_size')
            listed = isinstance(self.sampler, (Sequence, np.ndarray))
            seekable = listed or getattr(self.sampler, "seekable", False) or is_grain_sampler(self.sampler)
            if self.sampler is not None and not seekable:
                raise ValueError(
                    'order="grain" needs a sampler with random access: a list, one of headrace.data, or one of Grain\'s'
                )
        self._set("shuffle", bool(self.shuffle))

    def _check_functions(self) -> None:
        function("collate_fn", self.collate_fn)
        function("worker_init_fn", self.worker_init_fn)
        if self.ragged is not None and self.collate_fn is not None:
            raise ValueError("collate_fn excludes ragged: the function decides what a batch is")
        if self.ragged is not None and not self.batches_samples:
            raise ValueError("batch_size=None makes no batches, so ragged has no meaning: leave it out")
        check_ragged_rule(self.ragged)

    def _check_workers(self) -> None:
        workers: Any = self.num_workers
        self._set("auto_workers", isinstance(workers, str) and workers == "auto")
        self._set("num_workers", 1 if self.auto_workers else integer("num_workers", workers, 0, MAX_WORKERS))
        self._set("timeout", seconds("timeout", self.timeout))
        self._set("threads_per_worker", integer("threads_per_worker", self.threads_per_worker, 1, 256))
        if self.workers not in ("process", "thread"):
            raise ValueError(f'workers must be "process" or "thread", got {self.workers!r}')
        prefetch: Any = self.prefetch_factor
        if prefetch is not None:
            self._set("prefetch_factor", integer("prefetch_factor", prefetch, 1, MAX_PREFETCH))
        start_method(self.multiprocessing_context)
        self._set("splits_batches", self.num_workers_batches is not None)
        self._check_worker_options()
        producers = self.num_workers * self.threads_per_worker
        if producers > MAX_WORKERS:
            raise ValueError(f"num_workers * threads_per_worker must be at most {MAX_WORKERS}, got {producers}")
        if prefetch is None:
            # Enough for a consumer that sleeps until several batches are there: see nap.h.
            each, most = (4, MAX_PREFETCH) if self._batch_is_one_claim(producers, 4 * producers) else (2, 8)
            producers *= WAITING_WORKERS * processors() if self.auto_workers else 1
            self._set("prefetch_factor", min(max(2, each * producers), most))
        elif prefetch < producers and self._batch_is_one_claim(producers, prefetch):
            warn(
                f"prefetch_factor={prefetch} leaves {producers - prefetch} of {producers} workers idle: it counts the "
                "batches in flight in all, and one worker makes a whole batch of this dataset. Leave it out, or pass "
                f"at least {producers}."
            )
        self._set("draws_each_epoch", not self.persistent_workers)
        persistent: Any = self.persistent_workers
        self._set("always_persistent", bool(persistent))
        self._set("persistent_workers", self.num_workers > 0 if persistent is None else bool(persistent))
        collators: Any = self.num_workers_batches
        collators = max(1, self.num_workers) if collators is None else collators
        self._set("num_workers_batches", integer("num_workers_batches", collators, 1, MAX_WORKERS))
        self._set("max_deaths_per_sample", integer("max_deaths_per_sample", self.max_deaths_per_sample, 1, 1000))
        if self.on_worker_death not in ("raise", "skip"):
            raise ValueError(f'on_worker_death must be "raise" or "skip", got {self.on_worker_death!r}')
        if self.on_worker_death == "skip" and self.iterable:
            raise ValueError(
                'on_worker_death="skip" needs a map-style dataset: an iterable dataset cannot continue past a sample '
                "without making it"
            )
        if self.seed_records not in (False, True, "position"):
            raise ValueError(f'seed_records must be True, False or "position", got {self.seed_records!r}')
        if self.seed_records != "position":
            self._set("seed_records", bool(self.seed_records))
        if self.seed_records and (self.workers == "thread" or self.threads_per_worker > 1):
            raise ValueError(
                "seed_records needs worker processes of one thread each: threads share the global generators, so their "
                "random numbers are not reproducible. Pass seed_records=False if the samples do not use these "
                "generators, or let the dataset draw from the generator of the record (a parameter named rng)"
            )

    def collation(self, producers: int, prefetch: int) -> str | None:
        """Whether, in the scheduler's words, one of the producers makes a batch with all its samples, or several make
        these, if so many batches are in flight.
        """
        in_process = self.num_workers == 0
        if self.iterable:
            return None
        collate = None if self.stacks_samples else self.collate
        bulk = bulk_method(self.source) is not None or tensor_columns(self.source, collate) is not None
        if self.batches_samples and bulk and producers <= prefetch:
            return "whole"  # a call for many samples costs little more than one for a few
        if collate is None or isinstance(collate, InPlaceCollate):
            alone = producers == 1 and not self.seed_records and collate is not None and collate.makes_once
            return "whole" if (in_process or alone) and not wants_out(self.source) else None
        # The samples that several workers make are copies by the time that one collates them, which the function can
        # see.
        return "split" if self.splits_batches and self.batches_samples and not in_process else "whole"

    def _batch_is_one_claim(self, producers: int, prefetch: int) -> bool:
        """Whether workers cannot share the making of a batch, so that each needs one to be busy."""
        single = self.batch_sampler is None and self.batch_size in (None, 1)
        return self.iterable or single or self.collation(producers, prefetch) == "whole"

    def _check_worker_options(self) -> None:
        if self.num_workers == 0:
            for name, given in (
                ("prefetch_factor", self.prefetch_factor is not None),
                ("multiprocessing_context", self.multiprocessing_context is not None),
                ("persistent_workers=True", bool(self.persistent_workers)),
                ('workers="thread"', self.workers == "thread"),
                ("threads_per_worker", self.threads_per_worker != 1),
                ("timeout", self.timeout > 0),
            ):
                if given:
                    raise ValueError(f"{name} needs workers: num_workers must be more than 0")
        elif self.workers == "thread":
            if self.multiprocessing_context is not None:
                raise ValueError('multiprocessing_context is for processes, not for workers="thread"')
            if self.threads_per_worker != 1:
                raise ValueError(
                    'with workers="thread", num_workers is the number of threads: leave out threads_per_worker'
                )
        if self.auto_workers and (self.workers == "thread" or self.iterable or self.order == "grain"):
            raise ValueError(
                'num_workers="auto" needs worker processes and an order that does not depend on their number; it '
                'excludes workers="thread", iterable datasets and order="grain"'
            )

    def _check_seed(self) -> None:
        seed, generator = self.seed, self.generator
        torch_generator, follows_torch, given = None, False, seed is not None
        if generator is not None:
            if seed is not None:
                raise ValueError("generator excludes seed: both say where the random numbers come from")
            if isinstance(generator, np.random.Generator):
                seed = int(generator.integers(1 << 63))
            elif is_torch_generator(generator):
                torch_generator, follows_torch = generator, True
            elif number(generator) is not None:
                seed, given = generator, True
            else:
                raise TypeError(f"generator must be a torch.Generator or a numpy.random.Generator, got {generator!r}")
        elif seed is None:
            follows_torch = sys.modules.get("torch") is not None
        if seed is None and not follows_torch:
            seed = int.from_bytes(os.urandom(8), "little") >> 1  # fits an int64, for those who keep it in one
        self._set("torch_generator", torch_generator)
        self._set("follows_torch", follows_torch)
        self._set("seed_is_given", given)
        self._set("seed", None if seed is None else integer("seed", seed, 0, MAX_SEED))

    def _check_shard(self) -> None:
        self._set("shard", rank_and_world(self.shard))
        check_sharing(self.shard, self.sampler, self.batch_sampler)
        if self.shard[1] > 1:
            if self.batch_sampler is not None:
                raise ValueError("shard excludes batch_sampler, which already yields the batches of this loader alone")
            chosen = self.seed_is_given or isinstance(self.generator, np.random.Generator)
            if self.shuffle and not chosen:
                raise ValueError("shard with shuffle needs a seed, the same in every loader of the group: pass seed=")
            sampler: Any = self.sampler
            # Torch's samplers that draw have a generator; None if none was given.
            ours = isinstance(sampler, SeekableSampler)
            chosen = sampler.seed_is_chosen if ours else getattr(sampler, "generator", self) is not None
            if not chosen:
                raise ValueError(
                    f"shard needs the same order in every loader of the group: pass the {type(sampler).__name__} a "
                    "generator with the same seed"
                )

    def _check_stream(self) -> None:
        sharding = self.iterable_sharding
        if sharding not in (None, "engine", "dataset"):
            raise ValueError(f'iterable_sharding must be "engine", "dataset" or None, got {sharding!r}')
        if not self.iterable:
            if sharding is not None:
                raise ValueError("iterable_sharding is for iterable datasets: this one is read by index")
            return
        if self.workers == "thread" or self.threads_per_worker > 1:
            raise ValueError("an iterable dataset needs worker processes of one thread each: threads would share it")
        if self.num_workers > 1 and is_iter_datapipe(self.dataset):
            raise TypeError(
                "only PyTorch's own workers can shard and shuffle a DataPipe: use headrace.torch.DataLoader, which "
                "starts these"
            )
        if sharding is None:
            sharding = "dataset" if is_torch_dataset(self.dataset) else "engine"
        if sharding == "dataset" and self.shard[1] > 1:
            raise ValueError('shard needs iterable_sharding="engine": the dataset shards by worker only')
        self._set("iterable_sharding", sharding)

    @property
    def index_sampler(self) -> Any:
        """The sampler that gives the dataset's indices; None if there is none, or if the workers read by it."""
        return self.sampler if self.source is self.dataset else None

    @property
    def batches_samples(self) -> bool:
        """Whether samples are collated; else each arrives on its own."""
        return self.batch_size is not None or self.batch_sampler is not None

    @property
    def collate(self) -> Callable[[Any], Any]:
        """What makes a batch of samples."""
        if self.collate_fn is not None:
            return self.collate_fn
        if not self.batches_samples:
            return default_convert
        return default_collate if self.ragged is None else DefaultCollate(self.ragged)

    @property
    def stacks_samples(self) -> bool:
        """Whether batches are made by Headrace's own default collation, which need not be called for those that the
        writer can stack. Of a single sample it is a function like any other.
        """
        return self.batches_samples and self.collate is default_collate

    @property
    def batch_type(self) -> str | None:
        """What arrays of a batch become, as :func:`decode_tree` says."""
        if self.to is not None:
            return self.to
        if self.collate_fn is not None:
            return "as made"
        return "torch" if is_torch_dataset(self.dataset) else None

    @property
    def own_streams(self) -> bool:
        """Whether each worker reads a stream of its own from an iterable dataset."""
        return self.iterable_sharding == "dataset" and self.num_workers > 0

    @property
    def round_robin(self) -> bool:
        """Whether each batch has its worker, as in PyTorch, rather than any that is free."""
        own_seeds = self.worker_init_fn is not None and not self.seed_records and self.threads_per_worker == 1
        return self.keeps_to_workers and own_seeds and self.num_workers > 1 and not self.iterable

    @property
    def workers_are_alike(self) -> bool:
        """Whether nothing depends on which worker makes a sample, so that others may take the place of all.

        Not where one makes them all, or those of its batches: its random numbers continue from epoch to epoch. Nor
        where they read streams, of which they may keep data that is in no state.
        """
        several = self.num_workers > 1 or self.auto_workers or self.workers == "thread"
        return several and not self.iterable and not self.round_robin

    @property
    def global_batch_size(self) -> int | None:
        """Samples per batch of all loaders of the group together."""
        return None if self.batch_size is None else self.batch_size * self.shard[1]

    def dataset_length(self) -> int:
        """How many samples there are now; 0 if the dataset does not say, and the maximum for a stream.

        Raises:
            Exception: what the dataset's ``__len__`` raises, unless a sampler decides which samples there are.
        """
        if self.iterable:
            return _MAX_LENGTH
        if not hasattr(self.source, "__len__"):
            return 0
        try:
            return min(len(self.source), _MAX_LENGTH)
        except (NotImplementedError, TypeError):  # it has a __len__ only to say that it has no length
            if self.sampler is None and self.batch_sampler is None:
                raise
            return 0


ARGUMENT_NAMES = frozenset(
    field.name
    for field in dataclasses.fields(LoaderConfig)
    if field.init and field.name not in ("tells_epoch", "keeps_to_workers", "keeps_indices", "rephrases")
)
