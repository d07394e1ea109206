"""The common part of the datasets: which generation they read, and how its samples reach the user."""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from headrace._waiting import waiting_for_others
from headrace._weak_collections import WeakBag
from headrace.wirehead._datasets.finalizer_thread import close_later, start_closing
from headrace.wirehead._datasets.sampler import FIRST_ROUND, GenerationSampler, Round
from headrace.wirehead._format.sample import Array, Kind, as_tensor, dtype_named
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._stores.store import ROUNDS, round_key
from headrace.wirehead.config import Config, ConfigSource
from headrace.wirehead.errors import CorruptSampleError, StoreError

log = logging.getLogger("headrace.wirehead")

Self = TypeVar("Self", bound="CacheDataset")

_TOO_FAST = (
    "generations come faster than this process reads. It needs more processor time, or the cache a larger SWAP_CAP"
)


class _Name(str):
    """In messages without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


class CacheDataset:
    """The common part of the datasets.

    The dataset has SWAP_CAP samples, those of the current generation. When it is asked for a sample again, it continues
    with the generation that is current then, and stays with that until it is asked for one of its samples again: a pass
    over all ids reads one generation. With :meth:`sampler`, each epoch is one whole generation for all workers of a
    loader. While it reads from a generation, no process removes it; if it reads nothing for LEASE seconds, it restarts
    with the current one.

    Samples are tensors if the program has imported torch, else NumPy arrays; ``to`` overrides this. They belong to the
    reader. Thread-safe; may be pickled, and used in a child after a fork. Each process has its own connection.

    Args:
        config_path: path of ``config.yaml``, or a mapping with its keys.
        timeout: seconds to wait for the first generation.
        sample: names of the kinds to read; default: SAMPLE.
        transform: called with each array.
        normalize: called with the first array, after ``transform``; integers become float32 before.
        to: "numpy", "torch" or None.
        on_corrupt: the reaction to a damaged sample: "raise", or "skip": warn, and give the next one instead; in a list
            of ids, leave it out.
        wait_for_new: with :meth:`sampler`, wait at the end of a generation until there is a newer one, instead of
            reading it again.
        keeptrying: accepted for scripts written for the original; a swap never disturbs reading.

    Raises:
        ConfigError, FileNotFoundError: the configuration is invalid or does not exist.
        TypeError, ValueError: another argument is invalid.
        StoreError: the store does not answer, or was made with another SWAP_CAP or SAMPLE.
        TimeoutError: there was no data in time.
    """

    def __init__(
        self,
        config_path: ConfigSource = "config.yaml",
        timeout: float = 600,
        sample: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        normalize: Callable[[Any], Any] | None = None,
        to: str | None = None,
        on_corrupt: str = "raise",
        wait_for_new: bool = False,
        keeptrying: bool = True,
    ) -> None:
        self.config = Config.load(config_path)
        try:
            self.sample = self.config.sample if sample is None else tuple(sample)
        except TypeError:
            self.sample = ()
        unknown = [name for name in self.sample if name not in self.config.sample]
        if unknown or not self.sample or isinstance(sample, str) or len(set(self.sample)) < len(self.sample):
            kinds = list(self.config.sample)
            raise ValueError(f"sample must be a list of different names of SAMPLE {kinds}, got {sample!r}")
        if not isinstance(timeout, (int, float)) or not timeout >= 0:
            raise ValueError(f"timeout must be a number of seconds from 0 on, got {timeout!r}")
        for name, function in (("transform", transform), ("normalize", normalize)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function of an array, or None, got {function!r}")
        if to not in (None, "numpy", "torch"):
            raise ValueError(f'to must be "numpy", "torch" or None, got {to!r}')
        if on_corrupt not in ("raise", "skip"):
            raise ValueError(f'on_corrupt must be "raise" or "skip", got {on_corrupt!r}')
        self.timeout, self.transform, self.normalize, self.to = timeout, transform, normalize, to
        self.on_corrupt, self.wait_for_new = on_corrupt, wait_for_new
        self._group = uuid.uuid4().hex[:16]  # of all copies in a loader's workers
        self._begin()
        self._open()

    def __len__(self) -> int:
        return self.config.swap_cap

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.config.cache}, generation {self._generation}>"

    def __getstate__(self) -> dict[str, Any]:
        of_process = {"_lock", "_cache", "_reader", "_finalizer", "_pid"}
        of_reading = {"_generation", "_of_pass", "_read_ids", "_rounds", "_newest_round"}
        own = of_process | of_reading
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def generation(self) -> int:
        """The generation that was read last; 0 if none was."""
        return self._generation

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Releases the generation and closes the connection. Reading opens them again. Threads that wait for data, or
        for a server that is gone, get a StoreError; this waits less than a second for them.
        """
        self._leave_parent()
        cache, reader, finalizer, lock = self._cache, self._reader, self._finalizer, self._lock
        if cache is None or reader is None or finalizer is None:
            return
        cache.begin_close()
        has_lock = lock.acquire(timeout=max(0.0, cache.store.ends - time.monotonic()))
        try:
            if finalizer.detach() is not None:  # no other thread closes it
                self._begin()
                _close(cache, reader, os.getpid())
        finally:
            if has_lock:
                lock.release()

    def sampler(
        self,
        shuffle: bool = True,
        seed: int | None = None,
        infinite: bool = False,
        shard: tuple[int, int] | str | None = None,
    ) -> GenerationSampler:
        """For a loader's ``sampler``: each epoch is a whole generation, the newest at its beginning.

        Args:
            shuffle: in a random order.
            seed: of that.
            infinite: one epoch without an end, which follows the generations as they come.
            shard: ``(rank, world)``: the share of one of ``world`` processes that train together, such as one for each
                GPU: of each generation's order every ``world``-th sample from ``rank`` on, the same number for each;
                the remainder of a generation, fewer than ``world``, is not read. "environment": rank and world are
                those of ``torch.distributed``, torchrun or SLURM. None: all samples. Replaces
                ``shard`` of headrace's loader.

        Raises:
            ValueError: ``shard`` is out of range, ``seed`` is missing where processes share a random order, or the
                environment does not say the rank.
        """
        return GenerationSampler(self.config.swap_cap, shuffle, seed, infinite, shard, self._group)

    @property
    def sample_spec(self) -> Any:
        """Structure, shapes and dtypes of a sample, for loaders that let the dataset fill its row of a batch."""
        if self.transform is not None or self.normalize is not None or self._wants_tensors():
            raise AttributeError("the result of transform or normalize is known only when it is called")
        with waiting_for_others(), self._locked():
            cache, _ = self._open()
        # With a lease of its own, which ends here: a process that only asks this must not keep a generation.
        with waiting_for_others(), contextlib.closing(Reader(cache, self.sample)) as reader:
            generation = reader.pin_current(self.timeout)
            for id in range(self.config.swap_cap):
                try:
                    kinds = {kind.name: kind for kind in reader.describe(generation, id)}
                except CorruptSampleError:
                    continue
                return self._structured([(kinds[name].shape, dtype_named(kinds[name].dtype)) for name in self.sample])
        raise AttributeError(f"no sample of generation {generation} has a description")

    def _structured(self, values: Sequence[Any]) -> Any:
        """A sample of these arrays, in the order of ``sample``."""
        raise NotImplementedError

    def _places(self, out: Any) -> Sequence[Any]:
        """The arrays of a sample's place in a batch."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._leave_parent()
        while True:
            lock = self._lock
            with lock:
                if lock is self._lock:  # else the dataset was closed meanwhile
                    yield
                    return

    def _leave_parent(self) -> None:
        """In a forked child, nothing is open, and the lock is a new one: a thread of the parent may hold the other."""
        if self._pid != os.getpid():
            with _fork_lock:
                if self._pid != os.getpid():
                    self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._cache: Cache | None = None
        self._reader: Reader | None = None
        self._finalizer: weakref.finalize[..., CacheDataset] | None = None
        self._generation = 0  # that was read last, by any thread
        self._of_pass = 0  # the generation that is read without a sampler; changes under the lock
        self._read_ids: set[int] = set()  # of it
        self._rounds: dict[int, int] = {}  # generation by number of the round: those under way
        self._newest_round = (-1, 0)  # its number, and the generation, of those that this copy has read
        self._pid = os.getpid()  # whose all above are; last, for other threads

    def _open(self) -> tuple[Cache, Reader]:
        """Under the lock."""
        if self._cache is None:
            cache = Cache(self.config, create=False)
            reader = Reader(cache, self.sample)
            try:
                cache.wait_for_data(self.timeout)
            except BaseException:
                cache.close()
                raise
            self._cache, self._reader = cache, reader
            self._finalizer = weakref.finalize(self, close_later, _close, cache, reader, os.getpid())
            _opened.add(self)
            start_closing(_close_opened)
        assert self._cache is not None
        assert self._reader is not None
        return self._cache, self._reader

    def _wants_tensors(self) -> bool:
        return self.to == "torch" or (self.to is None and "torch" in sys.modules)

    def _sample(self, index: Any, out: Any = None) -> Any:
        """One sample."""
        round, id = self._round_and_id(_whole(index))
        cap = self.config.swap_cap
        generation: int | None = None
        for skipped in range(cap):
            try:
                return self._read(round, (id + skipped) % cap, out, generation)
            except CorruptSampleError as error:
                if self.on_corrupt == "raise":
                    raise
                log.warning("%s; the next one replaces it", error)
                generation = error.generation  # of which the replacement has not been asked for
        raise CorruptSampleError(self._generation, id, "and so is every other sample of this generation")

    def _round_and_id(self, index: int) -> tuple[Round | None, int]:
        """What an index means; None: no sampler says in which round it is."""
        if index < FIRST_ROUND:
            return None, self._id(index)
        code, id = divmod(index - FIRST_ROUND, self.config.swap_cap)
        return Round.of_code(code), id

    def name_of(self, index: Any) -> str:
        """What messages call the sample of an index, one of a sampler's too, that this process has read just now."""
        round, id = self._round_and_id(_whole(index))
        generation = self._generation if round is None else self._rounds.get(round.number, self._generation)
        return _Name(f"{id} of generation {generation}")

    def _read(self, round: Round | None, id: int, out: Any = None, generation: int | None = None) -> Any:
        """
        Args:
            generation: None: the one that the round, or the pass, reads.
        """
        places = None if out is None else dict(zip(self.sample, self._places(out)))
        with waiting_for_others():
            generation, arrays = self._arrays(round, id, places, generation)
        self._generation = generation
        in_place = places is not None and all(arrays[name][1] is places[name] for name in self.sample)
        if in_place and self.transform is None and self.normalize is None:
            return out
        return self._structured([self._finished(name, *arrays[name]) for name in self.sample])

    def _arrays(
        self, round: Round | None, id: int, places: dict[str, Any] | None, generation: int | None
    ) -> tuple[int, dict[str, tuple[Kind, Array]]]:
        """A sample's generation, see :meth:`_read`, and its arrays by their kinds, in their places where they fit."""
        with self._locked():
            _, reader = self._open()
            if generation is None:
                generation = self._of_ids([id]) if round is None else self._of_round(round)
        for _ in range(3):
            try:
                return generation, reader.read(generation, id, places)
            except CorruptSampleError as error:
                if reader.is_damaged(error):
                    raise
                # This process was suspended for so long that its lease expired, or came to the round too late.
                with self._lock:
                    before, generation = generation, reader.pin_current(self.timeout, keep=True)
                    if round is None:
                        self._of_pass = generation
                    else:
                        self._rounds[round.number] = generation
                        if generation != before:
                            self._warn_of_mixture(generation)
        raise StoreError(f"sample {id} of generation {generation} cannot be read: {_TOO_FAST}")

    def _finished(self, name: str, kind: Kind, array: Array) -> Any:
        value: Any = as_tensor(array) if self._wants_tensors() else array
        if self.transform is not None:
            value = self.transform(value)
        if self.normalize is not None and name == self.sample[0]:
            value = self.normalize(_floating(value))
        return value

    def _many(self, ids: Sequence[Any]) -> list[tuple[int, Any]]:
        """Several samples of one generation, each with its id as given."""
        numbers = [_whole(id) for id in ids]
        for _ in range(3):
            with waiting_for_others(), self._locked():
                _, reader = self._open()
                generation = self._of_ids([self._id(number) for number in numbers])
            try:
                found = list(self._read_all(reader, generation, numbers))
                break
            except CorruptSampleError as error:
                if reader.is_damaged(error):
                    raise
                # This process was suspended for so long that its lease expired.
        else:
            raise StoreError(f"the samples of generation {generation} cannot be read: {_TOO_FAST}")
        self._generation = generation
        return found

    def _read_all(self, reader: Reader, generation: int, numbers: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for number in numbers:
            try:
                with waiting_for_others():
                    arrays = reader.read(generation, self._id(number))
            except CorruptSampleError as error:
                if self.on_corrupt == "raise" or not reader.is_damaged(error):
                    raise
                log.warning("%s; it is skipped", error)
                continue
            yield number, self._structured([self._finished(name, *arrays[name]) for name in self.sample])

    def _id(self, index: int) -> int:
        """The id that an index means, which may count from the end."""
        cap = self.config.swap_cap
        if not -cap <= index < cap:
            raise IndexError(f"index {index} is out of range: there are {cap} samples")
        return index % cap

    def _of_ids(self, ids: Sequence[int]) -> int:
        """The generation to read these from when no sampler says in which round they are. Under the lock."""
        _, reader = self._open()
        pinned = reader.is_pinned(self._of_pass)
        if not pinned or not self._read_ids.isdisjoint(ids):
            self._of_pass = reader.pin_current(self.timeout, keep=bool(self._rounds))
            self._read_ids.clear()  # asked once for each pass, even if there is no newer one
        self._read_ids.update(ids)
        return self._of_pass

    def _of_round(self, round: Round) -> int:
        """The generation that all copies of this dataset read in a round. Under the lock."""
        cache, reader = self._open()
        known = self._rounds.get(round.number)
        if known is not None and reader.is_pinned(known):
            return known
        # Where one round ends and the next begins, both are read.
        self._rounds = dict(sorted(self._rounds.items())[-1:])
        generation = self._agreed(cache, reader, round)
        if known is not None and generation < known:  # it was gone already, and this process has continued with another
            generation = known
            reader.pin(generation)
        if known is not None and generation != known:
            self._warn_of_mixture(generation)
        self._rounds[round.number] = generation
        self._newest_round = max(self._newest_round, (round.number, generation))
        return generation

    def _warn_of_mixture(self, generation: int) -> None:
        log.warning(
            "this epoch mixes generations: it continues with generation %d, because the one that it began with was "
            "dropped while this process read nothing for LEASE (%g) seconds. If training pauses for longer, raise "
            "LEASE in its configuration",
            generation,
            self.config.lease,
        )

    def _agreed(self, cache: Cache, reader: Reader, round: Round) -> int:
        """The generation, which is pinned, that is read in a round; the current one if this is the first to ask.

        Workers read ahead: whoever is the first in a round may come before anyone has begun the one before. That is
        then agreed on first, so that a later round never reads an earlier generation.
        """
        key = round_key(self._group, round.number)
        while True:
            agreed = cache.store.find(ROUNDS, key)
            if agreed is not None:
                generation = int(agreed.get("generation", 0))
                reader.pin(generation)
                return generation
            newest, last = self._newest_round
            if newest > round.number:
                last = 0  # it was agreed on, and its generation is gone
            elif round.before > 0 and newest < round.number - 1:
                last = self._agreed(cache, reader, Round(round.number - 1, round.before - 1))
            elif round.before == 0 and self.wait_for_new:
                last = max(last, self._last_agreed(cache, round.number))
            if self.wait_for_new:
                self._wait_for_newer(cache, last)
            generation = reader.pin_current(self.timeout, keep=True)
            gone = cache.store.find(ROUNDS, round_key(self._group, None)) or {}
            if cache.store.insert(ROUNDS, key, {"generation": generation, "by": uuid.uuid4().hex}):
                if round.number <= gone.get("beat", -1):
                    self._warn_of_mixture(generation)  # it was agreed on, so others have begun it
                return generation

    def _last_agreed(self, cache: Cache, number: int) -> int:
        """The newest generation that was read in the rounds before; 0: none that is known."""
        generations = [0]
        for key, agreed in cache.store.scan(ROUNDS).items():
            group, _, other = key.rpartition(".")
            if group == self._group and other.isdecimal() and int(other) < number:
                generations.append(int(agreed.get("generation", 0)))
        return max(generations)

    def _wait_for_newer(self, cache: Cache, generation: int) -> None:
        deadline = time.monotonic() + self.timeout
        pause = 0.005
        while cache.current() <= generation:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no generation after {generation} within {self.timeout:g} seconds")
            cache.check_is_awaited()
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)


# Held by a thread of a forked child while it gives a dataset a lock of its own.
_fork_lock = threading.Lock()


def _after_fork() -> None:
    global _fork_lock
    _fork_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


_opened: WeakBag[CacheDataset] = WeakBag()


def _close_opened() -> None:
    """When the process exits, and not LEASE seconds later."""
    for dataset in _opened:
        if dataset._finalizer is not None:
            dataset._finalizer()


def _close(cache: Cache, reader: Reader, pid: int) -> None:
    if pid == os.getpid():
        cache.begin_close()
        with contextlib.suppress(StoreError):
            reader.close()
        cache.close()


def _whole(index: Any) -> int:
    try:
        return operator.index(index)
    except TypeError:
        raise TypeError(f"an index must be an integer, got {index!r:.200}") from None


def _floating(value: Any) -> Any:
    """Integers as float32; others unchanged."""
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "fcV" else value.astype(np.float32)
    is_floating = getattr(value, "is_floating_point", None)
    return value.float() if callable(is_floating) and not is_floating() and not value.is_complex() else value
