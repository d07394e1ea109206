"""Writing: samples into the generation that is being filled."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Any

from headrace.wirehead.cache import Cache
from headrace.wirehead.lease import Lease
from headrace.wirehead.sample import cut, encode
from headrace.wirehead.store import Document, key, samples_table

log = logging.getLogger("headrace.wirehead")

_SHORTEST_WAIT, _LONGEST_WAIT = 0.002, 0.05
_SMALLEST_CHUNK = 2**20  # bytes; a sample is not cut into smaller ones to write them side by side


class Writer:
    """Puts samples into the cache. Not thread-safe: one per thread. Its lease begins with the first put.

    Writers share the ids of a generation out among themselves, so that none asks which are free: the second of three
    takes 1, 4, 7, … Who has come to the end of its own takes what the others have left. This is to save work: only
    inserting under a free id makes an id one's own.

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
        self._rank, self._writers = 0, 1
        self._next = 0  # its own next id, free as far as is known
        self._free: list[int] = []  # ids that were free when it looked, to take before that
        self._full: set[int] = set()  # blocks in which nothing was free

    def put(self, sample: Any) -> tuple[int, int] | None:
        """Stores a sample. Returns its generation and id when others can rely on it; None if ``stop`` was set before.

        Raises:
            TypeError, ValueError: the sample has another form than SAMPLE says.
            StoreError: it could not be stored.
        """
        config, store = self._cache.config, self._cache.store
        kinds, parts = encode(sample, config.sample, config.compression_of_arrays)
        largest = int(config.chunksize * 2**20)
        length = sum(len(part) for part in parts)
        chunk_bytes = min(largest, max(_SMALLEST_CHUNK, -(-length // store.parallel)))
        chunks = list(cut(parts, chunk_bytes))
        try:
            while (place := self._place()) is not None:
                generation, id = place
                assert self._lease is not None
                name = f"{self._lease.key}-{self._number}"
                store.write_chunks(generation, {f"{name}-{k}": chunk for k, chunk in enumerate(chunks)})
                description = {
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
                    self._lease.update(number=self._number)
                    self._lease.rest()
                    return generation, made
                if made is not None:  # see 5 in headrace.wirehead.cache
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

    def _place(self) -> tuple[int, int] | None:
        """A pinned generation and an id that is free in it, as far as is known; waits for a swap where none is. None if
        ``stop`` was set.
        """
        while not self._stop.is_set():
            generation = self._open_generation()
            if generation is None:
                break
            id = self._free_id(generation)
            if id is None:
                id = self._wait_for_swap(generation)
            if id is not None:
                return generation, id
        return None

    def _open_generation(self) -> int | None:
        """A generation to write to, pinned; None if ``stop`` was set."""
        if self._lease is None:
            self._lease = Lease(self._cache, "generator", number=0, joined=self._cache.store.now())
        if self._generation and self._lease.use(self._generation):
            return self._generation
        while not self._stop.is_set():
            generation = self._cache.current() + 1
            if self._lease.pin([generation]) or not self._cache.is_swapped(generation):
                if generation != self._generation:
                    self._generation = generation
                    self._take_rank()
                    self._next, self._free = self._rank, []
                    # Alone, it will have taken all of them itself.
                    self._full = set(self._cache.blocks) if self._writers == 1 else set()
                return generation
        return None

    def _insert(self, generation: int, id: int | None, description: Document) -> int | None:
        """Makes a sample visible under this id or another one, which is returned; None if all are taken."""
        while id is not None:
            if self._cache.store.insert(samples_table(generation, self._cache.block_of(id)), key(id), description):
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
        if self._next < self._cache.config.swap_cap:
            self._next += self._writers
            return self._next - self._writers
        # Its own ids are used up: what others have not used yet is there for all.
        if self._cache.is_swapped(generation):
            return None
        for block in self._cache.blocks:
            if block not in self._full:
                self._free = self._look(generation, block)
                if self._free:
                    random.shuffle(self._free)  # lest all want the same
                    return self._free.pop()
                self._full.add(block)
        return None

    def _was_taken(self, generation: int, id: int) -> None:
        """Corrects what is known: an id was not free after all."""
        if self._next >= self._cache.config.swap_cap:
            self._free = []
            return
        # Others have come or gone since the shares were made.
        block = self._cache.block_of(id)
        self._take_rank()
        self._free = [id for id in self._look(generation, block) if id % self._writers == self._rank]
        after = self._cache.ids_of(block).stop
        self._next = after + (self._rank - after) % self._writers

    def _look(self, generation: int, block: int) -> list[int]:
        """The ids of a block that are free."""
        taken = self._cache.samples(generation, block)
        return [id for id in self._cache.ids_of(block) if id not in taken]

    def _wait_for_swap(self, generation: int) -> int | None:
        """Waits until a generation that is full has been swapped, and returns None; or a number that has become free,
        because a damaged sample was thrown away. None, too, if ``stop`` was set.
        """
        since = time.monotonic()
        look_at, warn_at = since + 1, since + 10
        while not self._stop.is_set():
            if self._cache.is_swapped(generation):
                self._generation = 0
                break
            now = time.monotonic()
            if now >= look_at:
                look_at = now + 1
                self._full.clear()
                id = self._free_id(generation)
                if id is not None:
                    return id
            if now >= warn_at:
                warn_at = now + 30
                reason = self._cache.blocked_by(generation) or "is a manager or another generator running?"
                log.warning("waiting for the swap of generation %d: %s", generation, reason)
            # So that it waits a fifth longer than it must, at most.
            self._stop.wait(min(max(_SHORTEST_WAIT, (now - since) / 5), _LONGEST_WAIT))
        return None
