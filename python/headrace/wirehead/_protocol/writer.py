"""Writing: samples into the generation that is being filled."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Sequence
from typing import Any

from headrace.wirehead._format.sample import NamedArray, arrays_of, cut, encode
from headrace.wirehead._protocol.cache import Cache, versions_of
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._stores.store import Document, chunk_name, part_of, samples_table, version_key

log = logging.getLogger("headrace.wirehead")

_SHORTEST_WAIT, _LONGEST_WAIT = 0.005, 4.0  # seconds between two looks, of one request each
_LOOK_EVERY = 1.0  # second: whether a generation that was full has numbers again that are free
_LONGEST_LOOK = 15.0  # seconds between two such looks, where it has been full for long
_SMALLEST_CHUNK = 2**20  # bytes; a sample is not cut into smaller ones to write them side by side
_MOST_MISSES = 8  # ids in a row that others had taken, before it looks again which ones are free


class Writer:
    """Puts samples into the cache. Its lease begins with the first put.

    Not thread-safe, but :meth:`take` may be called by one thread while another calls :meth:`store`: the former touches
    nothing but the number of samples and their shapes, which the latter does not.

    Writers share the ids of a generation out among themselves, so that none asks which are free: the second of three
    takes 1, 4, 7, … A writer that has used up its own takes ids that the others have left. This is to save work: only
    inserting under a free id makes an id one's own.

    A writer that has found a generation full does not wait until that is verified and swapped, but continues with the
    next one where there is room for it (6 in :mod:`headrace.wirehead._protocol.cache`).

    Args:
        cache: where.
        stop: ends waiting for room when set.
    """

    def __init__(self, cache: Cache, stop: threading.Event | None = None) -> None:
        self._cache = cache
        self._stop = threading.Event() if stop is None else stop
        self._lease: Lease | None = None
        self._versions: dict[int, int] = {}  # by id, of the generation, where they are not the first
        self._number = 0  # of the next sample of this lease
        self._count = 0  # samples that it was given
        self._shapes: dict[str, tuple[int, ...]] | None = {}  # of the sample before, by name; None: they have changed
        self._generation = 0
        self._rank, self._writers = 0, 1
        self._next = 0  # its own next id, free as far as is known
        self._free: list[int] = []  # ids that were free when it looked, to take before that
        self._free_of: int | None = None  # the block, if these were all that were free in it
        self._full: set[int] = set()  # blocks in which nothing was free
        self._misses = 0  # ids in a row that were not free after all
        self._is_alone = False  # so it will have taken all ids itself
        self._look_at = math.inf  # when to see whether the generation before this one is swapped
        self._left_at = 0.0  # when that was left
        self._left_with: dict[int, int] = {}  # versions of its samples, in which all were taken

    def put(self, sample: Any) -> tuple[int, int] | None:
        """Takes and stores a sample: see the two methods."""
        return self.store(self.take(sample))

    def take(self, sample: Any) -> list[NamedArray]:
        """The arrays of a sample, which may share its memory.

        Raises:
            TypeError, ValueError: the sample has another form than SAMPLE says. The message has its number among those
                that this writer was given, from 0.
        """
        try:
            arrays = arrays_of(sample, self._cache.config.sample)
        except (TypeError, ValueError) as error:
            raise type(error)(f"sample {self._count} of this generator cannot be stored: {error}") from None
        self._warn_of_other_shapes(arrays)
        self._count += 1
        return arrays

    def store(self, arrays: Sequence[NamedArray]) -> tuple[int, int] | None:
        """Stores a sample. Returns its generation and id when others can rely on it; None if there is no room for it
        and ``stop`` is set.

        Raises:
            StoreError: it could not be stored.
        """
        config, store = self._cache.config, self._cache.store
        kinds, parts = encode(arrays, config.compression_of_arrays)
        largest = int(config.chunksize * 2**20)
        length = sum(len(part) for part in parts)
        chunk_bytes = min(largest, max(_SMALLEST_CHUNK, -(-length // store.parallel)))
        chunks = list(cut(parts, chunk_bytes))
        try:
            while (target := self._target()) is not None:
                generation, id = target
                assert self._lease is not None
                part = part_of(id, length, config.swap_cap)
                names = [chunk_name(part, self._lease.key, self._number, k) for k in range(len(chunks))]
                store.write_chunks(generation, dict(zip(names, chunks)))
                description = {
                    "part": part,
                    "writer": self._lease.key,
                    "number": self._number,
                    "chunk_bytes": chunk_bytes,
                    "chunks": len(chunks),
                    "length": length,
                    "kinds": [kind.to_document() for kind in kinds],
                }
                made = self._insert(generation, id, description)
                if made is not None and self._lease.is_alive():
                    self._number += 1
                    self._lease.rest()
                    return generation, made
                if made is not None:  # see 5 in headrace.wirehead._protocol.cache
                    log.warning(
                        "this process or the store was suspended for longer than LEASE; the sample is stored again"
                    )
                    self._begin_anew()
        except BaseException:
            # Its leftovers must not be mistaken for chunks of its next sample.
            self._begin_anew()
            raise
        return None

    def _warn_of_other_shapes(self, arrays: Sequence[NamedArray]) -> None:
        """Once: they are allowed, but many training scripts do not expect them."""
        if self._shapes is None:
            return
        for named in arrays:
            before = self._shapes.setdefault(named.name, named.array.shape)
            if before != named.array.shape:
                self._shapes = None
                log.warning(
                    "%s of sample %d of this generator has shape %s, but earlier samples have %s: loaders cannot batch "
                    "these without ragged= or a collate_fn. Yield arrays of one shape if this is not intended",
                    named.name,
                    self._count,
                    named.array.shape,
                    before,
                )
                return

    def close(self) -> None:
        """Ends the lease."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def abandon(self) -> None:
        """Ends it without a word to the store, as death would."""
        if self._lease is not None:
            self._lease.abandon()
            self._lease = None

    def _begin_anew(self) -> None:
        self.abandon()
        self._generation, self._number = 0, 0

    def _target(self) -> tuple[int, int] | None:
        """A pinned generation and an id that is free in it, as far as is known; waits for a swap where none is. None if
        ``stop`` is set by then.
        """
        while True:
            generation = self._open_generation()
            id = self._free_id(generation)
            if id is not None:
                return generation, id
            if self._stop.is_set():
                return None
            self._go_on(generation)

    def _open_generation(self) -> int:
        """A generation to write to, pinned."""
        if self._lease is not None and self._lease.has_lapsed():
            self._begin_anew()
        if self._lease is None:
            self._lease = Lease(self._cache, "generator", joined=self._cache.store.now())
        if self._generation and self._lease.use(self._generation):
            if self._cache.clock() >= self._look_at:
                self._look_back()
            if self._generation:
                return self._generation
        while not self._begin(self._cache.current() + 1):
            pass
        return self._generation

    def _begin(self, generation: int) -> bool:
        """Pins a generation to write to. Whether it is certain that it stays."""
        assert self._lease is not None
        if not self._lease.pin([generation]) and self._cache.is_swapped(generation):
            self._generation = 0  # the previous generation is no longer pinned
            return False
        if generation != self._generation:
            self._generation, self._look_at = generation, math.inf
            entries = self._cache.entries(generation)
            self._versions, self._full = versions_of(entries), self._cache.verified_blocks(generation, entries)
            self._take_rank()
            self._next, self._free, self._free_of = self._rank, [], None
            self._is_alone = self._writers == 1
        return True

    def _look_back(self) -> None:
        """Goes back to the generation before, if that is not swapped, and samples of it were thrown away."""
        before, now = self._generation - 1, self._cache.clock()
        if self._cache.is_swapped(before):
            self._look_at = math.inf
            return
        self._look_at = now + _next_look(now - self._left_at)
        left_with, versions = self._left_with, self._cache.versions(before)
        free = [id for block in sorted(self._changed(left_with, versions)) for id in self._look(before, block)]
        if free and self._begin(before):
            random.shuffle(free)
            self._next, self._free, self._free_of = self._cache.config.swap_cap, free, None
            self._full = set(self._cache.blocks) - self._changed(left_with, self._versions)
            self._is_alone = False
        else:
            self._left_with = versions

    def _insert(self, generation: int, id: int | None, description: Document) -> int | None:
        """Makes a sample visible under this id or another one, which is returned; None if all are taken."""
        while id is not None:
            name = version_key(id, self._versions.get(id, 0))
            if self._cache.store.insert(samples_table(generation, self._cache.block_of(id)), name, description):
                self._misses = 0
                return id
            self._was_taken(generation, id)
            id = self._free_id(generation)
        return None

    def _take_rank(self) -> None:
        """Which of how many writers this is, in the order in which they came."""
        assert self._lease is not None
        leases = self._cache.leases()
        generators = [holder for holder, lease in leases.items() if lease.get("role") == "generator"]
        writers = sorted(generators, key=lambda holder: (float(leases[holder].get("joined", 0)), holder))
        self._writers = max(1, len(writers))
        self._rank = writers.index(self._lease.key) if self._lease.key in writers else 0

    def _free_id(self, generation: int) -> int | None:
        """An id that is free, as far as is known; None if all are taken."""
        if self._free:
            return self._free.pop(0)
        if self._free_of is not None:  # all of these were taken, by this one or others
            self._full.add(self._free_of)
            self._free_of = None
        while self._next < self._cache.config.swap_cap and self._cache.block_of(self._next) in self._full:
            self._go_past(self._cache.block_of(self._next))
        if self._next < self._cache.config.swap_cap:
            id = self._next
            self._next += self._writers
            block = self._cache.block_of(id)
            if self._cache.block_of(self._next) > block:
                # The others are here or hereabouts. So that not all blocks are left to look at in the end.
                self._look_at_block(generation, block - 1)
            return id
        # Its own ids are used up: those that others have not used are free for all.
        unknown = [block for block in self._cache.blocks if block not in self._full]
        if not unknown or self._is_alone or self._cache.is_swapped(generation):
            return None
        for block in unknown:
            free = self._look_at_block(generation, block)
            if free:
                random.shuffle(free)  # lest all want the same
                self._free, self._free_of = free, block
                return self._free.pop(0)
        return None

    def _look_at_block(self, generation: int, block: int) -> list[int]:
        """The ids of a block that are free, unless it is known to be full."""
        if block not in self._cache.blocks or block in self._full:
            return []
        free = self._look(generation, block)
        if not free:
            self._full.add(block)
        return free

    def _was_taken(self, generation: int, id: int) -> None:
        """Corrects the known ids: one was not free after all."""
        self._is_alone = False
        if self._next >= self._cache.config.swap_cap:
            # To look at a block may cost a hundred times as much as to try the next one that was free.
            self._misses += 1
            if self._misses % _MOST_MISSES == 0:
                self._free, self._free_of = [], None
            return
        # Others have come or gone since the shares were made.
        block = self._cache.block_of(id)
        self._take_rank()
        self._free = [id for id in self._look(generation, block) if id % self._writers == self._rank]
        self._go_past(block)

    def _go_past(self, block: int) -> None:
        """Its own next id is the first after a block."""
        after = self._cache.ids_of(block).stop
        self._next = after + (self._rank - after) % self._writers

    def _look(self, generation: int, block: int) -> list[int]:
        """The ids of a block that are free."""
        taken = self._cache.samples(generation, block, self._learn(generation))
        return [id for id in self._cache.ids_of(block) if id not in taken]

    def _learn(self, generation: int) -> dict[int, int]:
        """Which versions of a generation's samples count. Where others do than before, blocks are not full any more."""
        versions = self._cache.versions(generation)
        if generation == self._generation:
            changed = self._changed(self._versions, versions)
            if changed and self._is_alone:
                self._full, self._is_alone = set(self._cache.blocks), False
            self._full -= changed
            self._versions = versions
        return versions

    def _changed(self, before: dict[int, int], now: dict[int, int]) -> set[int]:
        """The blocks in which other versions count than before."""
        return {self._cache.block_of(id) for id, version in now.items() if version != before.get(id, 0)}

    def _go_on(self, generation: int) -> None:
        """Leaves a generation that is full: for the next one, as soon as three are enough for that; or because it has
        been swapped. Stays if numbers have become free, since a damaged sample was thrown away. Returns, too, if
        ``stop`` was set, or its lease is lost, and with it what it knows of the generation.
        """
        assert self._lease is not None
        since = self._cache.clock()
        look_at, warn_at = since + _LOOK_EVERY, since + 10
        current = self._cache.current()
        while not self._stop.is_set() and not self._lease.is_lost():
            if current >= generation:
                self._generation = 0
                return
            is_first = generation == current + 1
            if is_first and min(self._cache.store.generations(), default=current) >= current:
                left_with = self._versions
                if self._begin(generation + 1):
                    self._left_at, self._left_with = self._cache.clock(), left_with
                    self._look_at = self._left_at + _LOOK_EVERY
                return
            now = self._cache.clock()
            is_time = now >= look_at
            if is_time:
                look_at = now + _next_look(now - since)
                if not is_first:
                    self._look_back()
                if self._generation:
                    self._learn(self._generation)
                id = self._free_id(self._generation) if self._generation else None
                if id is not None:
                    self._free.insert(0, id)
                if id is not None or not self._generation:
                    return
            if now >= warn_at:
                warn_at = now + 30
                unknown = "no process uses an older one; `python -m headrace.wirehead status` shows who manages"
                reason = self._cache.blocked_by(current + 1) or unknown
                log.warning("waiting for the swap of generation %d: %s", current + 1, reason)
            # So that it waits a fifth longer than it must, at most.
            self._stop.wait(min(max(_SHORTEST_WAIT, (now - since) / 5), _LONGEST_WAIT))
            # As long as older ones are there, the first one is not swapped either.
            if is_time or not is_first:
                current = self._cache.current()


def _next_look(since: float) -> float:
    """In how many seconds to look again for free numbers in a generation that has been full for so long."""
    return min(max(_LOOK_EVERY, since / 5), _LONGEST_LOOK)
