"""The circular cache: generations of samples that many processes fill, swap and read at once.

A *generation* is a numbered set of SWAP_CAP samples. The highest one that has been swapped is the *current* one, which
readers read; writers fill the next. So there is always one to read and one to write, and older ones stay only as long
as somebody reads them.

Why nothing can be lost, torn or mixed, whoever is killed and when:

1. **Put.** A writer first writes the chunks of a sample under names that nobody else uses, and when the store has
   acknowledged all of them inserts the sample's description under a free number below SWAP_CAP. Inserting succeeds for
   one writer only (``Store.insert``), so a number belongs to one sample; and what has a description is whole. A writer
   killed before that leaves chunks that nobody refers to.
2. **Swap.** Once all numbers below SWAP_CAP are taken, and whoever manages has seen each description and that its
   chunks are there, it inserts a document into the table of swaps, under the generation's number. That is the whole
   swap: one insert, of which all sees either nothing or everything, which succeeds once however many managers try, and
   which moves no sample. The current generation is the one with the highest number in that table.
3. **No sample is put into a generation that has gone.** A number is free only while the generation has not been
   swapped: a swap needs all of them taken. Only dropping a generation makes numbers free again; rule 4 is about that.
4. **Drop.** A process pins a generation before it touches it: it first writes the generation into its lease, *then*
   checks for the swap that would make it obsolete: for a writer the swap of that generation, for a reader that of the
   next. If it has happened the process lets go and pins a newer one. Whoever drops does it the other way round: it
   sees that swap, *then* reads the leases, then drops what no lease names. As the store orders these four operations,
   one of the two sees the other.
5. **Death and standstill.** A lease whose time has not changed for LEASE seconds, by the clock of the store alone,
   belongs to nobody any more. A process that was stopped that long knows it from its own monotonic clock: a lease
   counts as alive until LEASE seconds after the last renewal was *sent*. A writer that cannot say so when its
   description is inserted does not acknowledge the sample, but puts it again into a generation that it pins anew. So
   clocks need not agree, only run at about the same speed.
6. **Bound.** A swap waits until all generations older than the current one are dropped. So at most three have samples:
   the one being filled, the current one, and one that slow readers still hold.

That only one process manages at a time saves work; nothing depends on it.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.wirehead.config import Config, ConfigSource
from headrace.wirehead.errors import CorruptSampleError, StoreError
from headrace.wirehead.sample import Array, Decoder, Kind, cut, encode, pieces_of
from headrace.wirehead.store import LEASES, ROUNDS, SETTINGS, SWAPS, Document, Store, open_store, samples_table, seconds

log = logging.getLogger("headrace.wirehead")

_KEPT_SWAPS = 128
_LOOK_AGAIN = 20.0  # seconds until the table of swaps is read anew, in case others were faster than it is kept
_OVERLAP = 1.0  # seconds that a reader keeps a generation after it went on to the next
_MANY, _MOST = 32, 512  # samples that are verified at once: from how many on, and at most
_SHORTEST_WAIT, _LONGEST_WAIT = 0.002, 0.1


@dataclasses.dataclass(frozen=True)
class Swap:
    """What is known of a swap.

    Attributes:
        generation: which became readable; 1 is the first.
        time: of the swap, in seconds since 1970 by the store's clock.
        samples: generated in all, up to and with this generation.
        deleted: incomplete or damaged samples thrown away, in all.
        seconds: from the moment at which the generation was found full to its being readable.
        by: host and process that did it.
    """

    generation: int
    time: float
    samples: int
    deleted: int
    seconds: float
    by: str

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Swap:
        return cls(**{field.name: document[field.name] for field in dataclasses.fields(cls)})


def this_process() -> str:
    """Host and process number, as leases and logs show them."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Cache:
    """One process's view of a cache. Thread-safe; not usable in a child after a fork.

    Raises:
        StoreError: it was made with another SWAP_CAP or SAMPLE.
    """

    def __init__(self, config: ConfigSource, store: Store | None = None) -> None:
        self.config = Config.load(config)
        self.store = open_store(self.config) if store is None else store
        self._current = 0
        self._scanned = float("-inf")
        try:
            self._check_settings()
        except BaseException:
            self.store.close()
            raise

    def current(self) -> int:
        """The generation to read; 0 if there has been no swap."""
        generation = self._current
        if time.monotonic() - self._scanned > _LOOK_AGAIN:
            self._scanned = time.monotonic()
            generation = max([generation, *map(int, self.store.scan(SWAPS))])
        while self.is_swapped(generation + 1):
            generation += 1
        self._current = max(self._current, generation)  # several threads may be here
        return generation

    def is_swapped(self, generation: int) -> bool:
        """Whether a generation that is not long gone can be, or could be, read."""
        return self.store.find(SWAPS, _key(generation)) is not None

    def swaps(self) -> list[Swap]:
        """The last swaps, in their order."""
        return [Swap.from_document(document) for _, document in sorted(self.store.scan(SWAPS).items())]

    def swap(self, generation: int) -> Swap | None:
        """What is known of one swap."""
        document = self.store.find(SWAPS, _key(generation))
        return None if document is None else Swap.from_document(document)

    def wait_for_data(self, timeout: float) -> int:
        """The current generation, as soon as there is one.

        Raises:
            TimeoutError: there was none in time.
        """
        deadline = time.monotonic() + timeout
        pause = 0.01
        while (generation := self.current()) == 0:
            if time.monotonic() > deadline:
                stored = len(self.store.scan(samples_table(1)))
                raise TimeoutError(
                    f"no data after {timeout:g} seconds: the first generation of {self.config.dbname} at "
                    f"{self.config.place} has {stored} of {self.config.swap_cap} samples. Is a generator running?"
                )
            time.sleep(min(pause, max(0.0, deadline - time.monotonic()) + 0.001))
            pause = min(pause * 1.5, 0.5)
        return generation

    def leases(self) -> dict[str, Document]:
        """The leases that count, by their keys."""
        now = self.store.now()
        return {key: lease for key, lease in self.store.scan(LEASES).items() if not self.is_expired(lease, now)}

    def is_expired(self, lease: Document, now: float) -> bool:
        """Whether nobody holds a lease any more, at a time of the store."""
        return now - seconds(lease.get("time", 0)) > self.config.lease

    def close(self) -> None:
        self.store.close()

    def _check_settings(self) -> None:
        ours = {"SWAP_CAP": self.config.swap_cap, "SAMPLE": list(self.config.sample), "format": 1}
        if self.store.insert(SETTINGS, "settings", ours):
            return
        found = self.store.find(SETTINGS, "settings") or ours
        for name, value in ours.items():
            if found.get(name) != value:
                raise StoreError(
                    f"{self.config.dbname} at {self.config.place} was made with {name} {found.get(name)}, this "
                    f"configuration says {value}: use the same, another DBNAME, or "
                    "`python -m headrace.wirehead clean` first"
                )


class Lease:
    """Tells others that this process lives, and which generations it uses. A thread renews it three times per LEASE.

    A generation that has become old is let go when it is not in use, so that it can be dropped: by a generator within a
    second after its put; by a reader a second after it went on to a newer one, or when it has read nothing for LEASE
    seconds. Thread-safe.

    Args:
        cache: where.
        role: "generator" or "reader".
        details: what else the lease is to say.
    """

    def __init__(self, cache: Cache, role: str, **details: Any) -> None:
        self.key = f"{role}-{uuid.uuid4().hex[:16]}"
        self._cache = cache
        self._details = {"role": role, "process": this_process(), **details}
        self._generations: list[int] = []
        self._renewed = float("-inf")
        self._used: dict[int, float] = {}  # when, by generation
        self._busy = False
        self._lock = threading.Lock()  # guards all above, and orders what is written
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def generations(self) -> list[int]:
        return self._generations

    def pin(self, generations: Iterable[int]) -> None:
        """These, and no others, are in use from now on."""
        with self._lock:
            self._busy = True
            self._generations = sorted(set(generations))
            now = time.monotonic()
            self._used = {g: self._used.get(g, now) for g in self._generations}
            self._write()
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._renew, name="headrace-wirehead-lease", daemon=True)
                self._thread.start()

    def use(self, generation: int) -> bool:
        """Whether a generation is pinned still, and stays so for now: it is not idle."""
        with self._lock:
            self._busy = generation in self._generations and self.is_alive()
            if self._busy:
                self._used[generation] = time.monotonic()
            return self._busy

    def rest(self) -> None:
        """Nothing is in use before :meth:`use` or :meth:`pin` is called again."""
        self._busy = False

    def update(self, **details: Any) -> None:
        """What the next renewal tells."""
        with self._lock:
            self._details.update(details)

    def is_alive(self) -> bool:
        """Whether no other process can have declared it dead before now."""
        return time.monotonic() - self._renewed < self._cache.config.lease

    def abandon(self) -> None:
        """Ends it without a word, as death would."""
        self._stop.set()

    def close(self) -> None:
        """Ends it. The store may be gone already."""
        self._stop.set()
        with self._lock:
            written = self._thread is not None
        if written:
            self._cache.store.remove(LEASES, self.key)

    def _write(self) -> None:
        sent = time.monotonic()
        self._cache.store.replace(LEASES, self.key, {**self._details, "generations": self._generations})
        self._renewed = sent

    def _renew(self) -> None:
        period = self._cache.config.lease / 3
        while not self._stop.wait(min(1.0, period)):
            try:
                self._let_go()
                with self._lock:
                    if not self._stop.is_set() and time.monotonic() - self._renewed >= period:
                        self._write()
            except Exception as error:  # the operations themselves will say so
                log.debug("lease %s was not renewed: %s", self.key, error)

    def _let_go(self) -> None:
        """Unpins what is old and not in use."""
        with self._lock:
            suspected = self._unused(self._generations)
        if not suspected:
            return
        current = self._cache.current()
        with self._lock:
            # What is not old, and can be read or written at any moment, stays.
            first = current + 1 if self._details["role"] == "generator" else current
            unused = [g for g in self._unused(suspected) if g < first]
            if unused and not self._stop.is_set():
                self._generations = [g for g in self._generations if g not in unused]
                self._write()

    def _unused(self, generations: list[int]) -> list[int]:
        if self._details["role"] == "generator":
            return [] if self._busy else list(generations)
        now, newest = time.monotonic(), max(self._generations, default=0)
        limits = {g: self._cache.config.lease if g == newest else _OVERLAP for g in self._generations}
        return [g for g in generations if now - self._used.get(g, now) > limits.get(g, 0)]


class Writer:
    """Puts samples into the cache. Not thread-safe: one per thread. Its lease begins with the first put.

    Args:
        cache: where.
        stop: ends waiting when set.
    """

    def __init__(self, cache: Cache, stop: threading.Event | None = None) -> None:
        self._cache = cache
        self._stop = threading.Event() if stop is None else stop
        self._lease: Lease | None = None
        self._number = 0  # of the next sample of this lease
        self._generation = 0
        self._next = 0  # in the generation, the id that may be free
        self._contended = False  # it was not, the last time
        self.waited = 0.0  # seconds in all, for swaps

    def put(self, sample: Any) -> tuple[int, int] | None:
        """Stores a sample. Returns its generation and id when others can rely on it; None if ``stop`` was set before.

        Raises:
            TypeError, ValueError: the sample has another form than SAMPLE says.
            StoreError: it could not be stored.
        """
        config = self._cache.config
        kinds, parts = encode(sample, config.sample, config.compression)
        chunk_bytes = int(config.chunksize * 2**20)
        chunks = list(cut(parts, chunk_bytes))
        try:
            while not self._stop.is_set():
                generation = self._open_generation()
                if generation is None:
                    break
                assert self._lease is not None
                name = f"{self._lease.key}-{self._number}"
                self._cache.store.write_chunks(generation, {f"{name}-{k}": chunk for k, chunk in enumerate(chunks)})
                description = {
                    "writer": self._lease.key,
                    "number": self._number,
                    "chunk_bytes": chunk_bytes,
                    "chunks": len(chunks),
                    "kinds": [kind.to_document() for kind in kinds],
                }
                id = self._commit(generation, description)
                if id is not None and self._lease.is_alive():
                    self._number += 1
                    self._lease.update(number=self._number)
                    self._lease.rest()
                    return generation, id
                if id is not None:  # see 5 above
                    log.warning("this process stood still for longer than LEASE; its sample is stored again")
                    self._begin_anew()
        except BaseException:
            # What it left must not be mistaken for chunks of its next sample.
            self._begin_anew()
            raise
        return None

    def close(self) -> None:
        """Ends the lease."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def _begin_anew(self) -> None:
        if self._lease is not None:
            self._lease.abandon()
        self._lease, self._generation, self._number = None, 0, 0

    def _open_generation(self) -> int | None:
        """A generation to write to, pinned; None if ``stop`` was set."""
        if self._lease is None:
            self._lease = Lease(self._cache, "generator", number=0)
        if self._generation and self._lease.use(self._generation):
            return self._generation
        while not self._stop.is_set():
            generation = self._cache.current() + 1
            self._lease.pin([generation])
            if not self._cache.is_swapped(generation):
                if generation != self._generation:
                    self._generation, self._next = generation, 0
                return generation
        return None

    def _commit(self, generation: int, description: Document) -> int | None:
        """The sample's id; None if the generation has been swapped without it, or ``stop`` was set."""
        store, table = self._cache.store, samples_table(generation)
        waiting_since: float | None = None
        pause, checked, warn_at = _SHORTEST_WAIT, time.monotonic(), time.monotonic() + 10
        if self._contended and self._next > 0:
            # Where others write, too, the next id is taken; asking is cheaper for a server than refusing an insert.
            free = self._free_after(generation, self._next - 1)
            self._contended, self._next = free != self._next, free
        while True:
            while self._next < self._cache.config.swap_cap:
                if store.insert(table, _key(self._next), description):
                    self._next += 1
                    return self._next - 1
                self._contended = True
                self._next = self._free_after(generation, self._next)
            now = time.monotonic()
            waiting_since = now if waiting_since is None else waiting_since
            if self._cache.is_swapped(generation) or self._stop.is_set():
                self.waited += now - waiting_since
                self._generation = 0
                return None
            if now - checked > 1:
                checked = now
                # A damaged sample may have been thrown away: then its number is free.
                taken = store.scan(table)
                holes = (id for id in range(self._cache.config.swap_cap) if _key(id) not in taken)
                self._next = next(holes, self._next)
                if now >= warn_at:
                    warn_at = now + 30
                    reason = blocked_by(self._cache, generation) or "is a manager or another generator running?"
                    log.warning("waiting for the swap of generation %d: %s", generation, reason)
            self._stop.wait(pause)
            pause = min(pause * 1.5, _LONGEST_WAIT)

    def _free_after(self, generation: int, taken: int) -> int:
        """An id that was free a moment ago, or SWAP_CAP, in O(log n) questions; ``taken`` is not."""
        store, table, cap = self._cache.store, samples_table(generation), self._cache.config.swap_cap
        step = 1
        while taken + step < cap and store.find(table, _key(taken + step)) is not None:
            taken += step
            step *= 2
        free = min(taken + step, cap)
        while free - taken > 1:
            middle = (free + taken) // 2
            if store.find(table, _key(middle)) is not None:
                taken = middle
            else:
                free = middle
        return free


def blocked_by(cache: Cache, generation: int) -> str | None:
    """Who keeps a full generation from being swapped, in words; None if nobody does."""
    current = generation - 1
    holders = [
        f"{lease['role']} {lease['process']} (generation {min(lease['generations'])})"
        for lease in cache.leases().values()
        if any(g < current for g in lease.get("generations", ()))
    ]
    return f"older generations are still used by {', '.join(holders)}" if holders else None


class Reader:
    """Reads samples of the generations that it pins. Thread-safe.

    Args:
        cache: where.
        kinds: which arrays of a sample to read.
    """

    def __init__(self, cache: Cache, kinds: Sequence[str]) -> None:
        self._cache = cache
        self._kinds = tuple(kinds)
        self._lease = Lease(cache, "reader")
        self._lock = threading.Lock()
        self._descriptions: dict[int, dict[int, Document]] = {}

    def pin_current(self, timeout: float, keep: bool = False) -> int:
        """The current generation, which stays until it is not pinned any more; waits for the first.

        Args:
            timeout: seconds to wait for data.
            keep: the one before, if it is pinned, is read still.
        """
        with self._lock:
            while True:
                generation = self._cache.wait_for_data(timeout)
                wanted = self._with(generation) if keep else [generation]
                if wanted == self._lease.generations and self._lease.is_alive():
                    return generation
                self._lease.pin(wanted)
                if not self._cache.is_swapped(generation + 1):
                    self._forget()
                    return generation

    def pin(self, generation: int) -> None:
        """Pins a generation of which another process told us; it may be gone. The one before is read still."""
        with self._lock:
            self._lease.pin(self._with(generation))
            self._forget()

    def _with(self, generation: int) -> list[int]:
        others = [g for g in self._lease.generations if g != generation]
        return sorted([*others[-1:], generation])

    def is_pinned(self, generation: int) -> bool:
        """Whether it is certain that nobody has dropped it."""
        return generation in self._lease.generations and self._lease.is_alive()

    def describe(self, generation: int, id: int) -> list[Kind]:
        """What the arrays of a sample are.

        Raises:
            CorruptSampleError: there is no such sample, or no sense in what is said of it.
        """
        return self._kinds_of(generation, id, self._description(generation, id))

    def read(self, generation: int, id: int, out: Mapping[str, Any] | None = None) -> dict[str, tuple[Kind, Array]]:
        """The arrays of a sample, by kind.

        Args:
            out: arrays to put them into, where these fit; what does not fit comes in an array of its own.

        Raises:
            CorruptSampleError: it is not what was written.
        """
        self._lease.use(generation)
        description = self._description(generation, id)
        kinds = self._kinds_of(generation, id, description)
        decoders = {}
        for kind in kinds:
            if kind.name in self._kinds:
                place = None if out is None else out.get(kind.name)
                decoders[kind.name] = Decoder(kind, place if Decoder.fits(kind, place) else None)
        name = f"{description['writer']}-{description['number']}"
        number, chunk = -1, memoryview(b"")
        for k, kind_name, part in pieces_of(kinds, self._kinds, int(description["chunk_bytes"])):
            if k != number:
                found = self._cache.store.read_chunk(generation, f"{name}-{k}")
                if found is None:
                    raise CorruptSampleError(generation, id, f"chunk {k} ({kind_name}) is missing")
                number, chunk = k, found
            decoders[kind_name].feed(chunk[part])
        try:
            return {name: (decoder.kind, decoder.finish()) for name, decoder in decoders.items()}
        except ValueError as error:
            raise CorruptSampleError(generation, id, str(error)) from None

    def close(self) -> None:
        """Ends the lease."""
        self._lease.close()

    def _forget(self) -> None:
        pinned = self._lease.generations
        self._descriptions = {g: known for g, known in self._descriptions.items() if g in pinned}

    def _description(self, generation: int, id: int) -> Document:
        known = self._descriptions.get(generation, {}).get(id)
        if known is None:
            known = self._cache.store.find(samples_table(generation), _key(id))
            if known is None:
                raise CorruptSampleError(generation, id, "it is not there")
            if generation in self._lease.generations:
                self._descriptions.setdefault(generation, {})[id] = known
        return known

    def _kinds_of(self, generation: int, id: int, description: Document) -> list[Kind]:
        try:
            return check_description(description)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptSampleError(generation, id, f"its description is wrong: {error}") from None


def check_description(description: Document) -> list[Kind]:
    """The kinds of a sample.

    Raises:
        KeyError, TypeError, ValueError: it is not a description, or its lengths do not add up.
    """
    kinds = [Kind.from_document(kind) for kind in description["kinds"]]
    chunk_bytes, length = int(description["chunk_bytes"]), sum(kind.length for kind in kinds)
    if chunk_bytes < 1 or description["chunks"] != -(-length // chunk_bytes):
        raise ValueError(f"{description['chunks']} chunks of {chunk_bytes} bytes for {length} bytes")
    return kinds


class Keeper:
    """Verifies samples as they come, swaps, and drops what is not used any more. Not thread-safe: one per thread.

    Several may run, in any processes: they take turns, the others wait until that one ends or dies.

    Args:
        cache: of what.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._me = f"{this_process()}-{uuid.uuid4().hex[:8]}"
        self._renewed = float("-inf")
        self._asked = float("-inf")
        self._swept = float("-inf")
        self._generation = 0
        self._verified = 0  # samples of the generation, from 0 on
        self._full_since: float | None = None
        self._thrown_away = 0  # since the last swap
        self.blocked: str | None = None

    def step(self) -> Swap | None:
        """Does what is to be done now. Returns the swap, if it was that.

        Raises:
            StoreError: the store failed.
        """
        if not self._leads():
            return None
        generation = self._cache.current() + 1
        if generation != self._generation:
            self._generation, self._verified, self._full_since, self._thrown_away = generation, 0, None, 0
            self._swept = float("-inf")
        self._verify()
        self._sweep()
        if self._verified < self._cache.config.swap_cap:
            return None
        if self._full_since is None:
            self._full_since = time.monotonic()
        if any(g < generation - 1 for g in self._retire()):
            self.blocked = blocked_by(self._cache, generation) or self.blocked
            return None
        self.blocked = None
        return self._swap()

    def close(self) -> None:
        """Lets another one manage."""
        found = self._cache.store.find(LEASES, "manager")
        if found is not None and found.get("holder") == self._me:
            self._cache.store.remove(LEASES, "manager")
        self._renewed = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether it is this one's turn."""
        return time.monotonic() - self._renewed < self._cache.config.lease

    def _leads(self) -> bool:
        store, lease = self._cache.store, self._cache.config.lease
        now = time.monotonic()
        if now - self._renewed < lease / 3:
            return True
        if now - self._renewed >= lease and now - self._asked < min(1.0, lease / 3):
            return False  # somebody else had it a moment ago
        self._asked = now
        found = store.find(LEASES, "manager")
        mine = {"holder": self._me, "role": "manager", "process": this_process(), "generations": []}
        if found is not None and found.get("holder") != self._me:
            if not self._cache.is_expired(found, store.now()):
                return False
            store.remove(LEASES, "manager")
            found = None
        if found is None and not store.insert(LEASES, "manager", {**mine, "time": store.now()}):
            return False
        if found is not None:
            store.replace(LEASES, "manager", mine)
        self._renewed = now
        return True

    def _verify(self) -> None:
        """Looks at the samples that have come since, in the order of their ids."""
        store, table = self._cache.store, samples_table(self._generation)
        while self._verified < self._cache.config.swap_cap:
            # One after the other as they come; all at once where many have come.
            if store.find(table, _key(self._verified + _MANY)) is not None:
                come = store.scan(table)
            else:
                description = store.find(table, _key(self._verified))
                if description is None:
                    return
                come = {_key(self._verified): description}
            found = list(itertools.takewhile(come.__contains__, map(_key, itertools.count(self._verified))))[:_MOST]
            problems = self._problems([come[key] for key in found])
            for key, problem in zip(found, problems):
                if problem is not None:
                    log.warning("sample %d of generation %d is thrown away: %s", int(key), self._generation, problem)
                    store.remove(table, key)
                    self._thrown_away += 1
                    return
                self._verified += 1
            if not found:  # one before them was thrown away
                return

    def _problems(self, descriptions: Sequence[Document]) -> list[str | None]:
        """What is wrong with each sample."""
        problems: list[str | None] = []
        names: list[list[str]] = []
        for description in descriptions:
            problem, chunks = None, []
            try:
                kinds = tuple(kind.name for kind in check_description(description))
                if kinds != self._cache.config.sample:
                    problem = f"it has {list(kinds)}, SAMPLE is {list(self._cache.config.sample)}"
                name = f"{description['writer']}-{description['number']}"
                chunks = [f"{name}-{k}" for k in range(description["chunks"])]
            except (KeyError, TypeError, ValueError) as error:
                problem = f"its description is wrong: {error}"
            problems.append(problem)
            names.append(chunks)
        missing = set(self._cache.store.missing_chunks(self._generation, [name for part in names for name in part]))
        for i, part in enumerate(names):
            lost = len(missing.intersection(part))
            if lost and problems[i] is None:
                problems[i] = f"{lost} of {len(part)} chunks are missing"
        return problems

    def _sweep(self) -> None:
        """Once in a while: throws away what the dead have left, and drops generations."""
        now = time.monotonic()
        if now - self._swept < self._cache.config.lease / 3:
            return
        self._swept = now
        cache = self._cache
        store_now = cache.store.now()
        for key, lease in cache.store.scan(LEASES).items():
            if key != "manager" and cache.is_expired(lease, store_now):
                if lease.get("role") == "generator":
                    self._throw_away(key, lease)
                cache.store.remove(LEASES, key)
        self._retire()

    def _throw_away(self, writer: str, lease: Document) -> None:
        """Removes the chunks of the one sample that a dead writer may have left half done."""
        store = self._cache.store
        for generation in lease.get("generations", ()):
            numbers = [
                int(sample["number"])
                for sample in store.scan(samples_table(generation)).values()
                if sample.get("writer") == writer
            ]
            number = max(int(lease.get("number", 0)), *(n + 1 for n in numbers), 0)
            chunks = 0
            while store.remove_chunk(generation, f"{writer}-{number}-{chunks}"):
                chunks += 1
            if chunks:
                log.warning("%s died in the middle of a put; its sample is thrown away", lease.get("process"))
                self._thrown_away += 1

    def _retire(self) -> list[int]:
        """Drops the generations that nobody uses; which are left of those before the current one."""
        cache = self._cache
        current = cache.current()
        old = [generation for generation in cache.store.generations() if generation < current]
        if old:
            pinned = {g for lease in cache.leases().values() for g in lease.get("generations", ())}
            for generation in [g for g in old if g not in pinned]:
                cache.store.drop(generation)
                old.remove(generation)
        return old

    def _swap(self) -> Swap | None:
        cache, generation = self._cache, self._generation
        assert self._full_since is not None
        last = cache.swap(generation - 1)
        swap = Swap(
            generation=generation,
            time=cache.store.now(),
            samples=(last.samples if last else 0) + cache.config.swap_cap,
            deleted=(last.deleted if last else 0) + self._thrown_away,
            seconds=round(time.monotonic() - self._full_since, 6),
            by=this_process(),
        )
        if not cache.store.insert(SWAPS, _key(generation), dataclasses.asdict(swap)):
            return None
        cache.store.remove(SWAPS, _key(generation - _KEPT_SWAPS))
        for key, agreed in cache.store.scan(ROUNDS).items():
            if agreed.get("generation", 0) < generation - 2:
                cache.store.remove(ROUNDS, key)
        self._swept = float("-inf")
        return swap


def run_keeper(
    keeper: Keeper, stop: threading.Event, on_swap: Callable[[Swap], None] | None = None, pause: float = 0.02
) -> None:
    """Calls ``keeper.step`` until ``stop`` is set; a store that fails is tried again."""
    while not stop.is_set():
        try:
            swap = keeper.step()
            if swap is not None:
                if on_swap is not None:
                    on_swap(swap)
                continue
        except StoreError as error:
            log.error("%s", error)
            stop.wait(1)
        stop.wait(pause)


def _key(number: int) -> str:
    return f"{number:012d}"


__all__ = ["Cache", "Keeper", "Lease", "Reader", "Swap", "Writer"]
