"""Reading: samples of the generations that a process has pinned."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.wirehead._format.sample import Array, Decoder, Kind, check_description, chunk_names, pieces_of
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._stores.store import Document
from headrace.wirehead.errors import CorruptSampleError

# Of each generation, in memory: some 2 KiB each.
_MOST_DESCRIPTIONS = 4096


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
        self._versions: dict[int, dict[int, int]] = {}  # of samples, by generation and id; a swap makes them final

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
                if self._lease.pin(wanted) or not self._cache.is_swapped(generation + 1):
                    self._lease.assure([generation])  # it was kept while it was the current one
                    self._settle()
                    self._forget()
                    return generation

    def pin(self, generation: int) -> None:
        """Pins a generation of which another process told us; it may be gone. The one before is read still."""
        with self._lock:
            self._lease.pin(self._with(generation))
            self._settle()
            self._forget()

    def _settle(self) -> None:
        """Finds out which pinned generations no process has begun to drop: now that it sees the pin, none will."""
        if unsure := self._lease.unsure:
            dropped = self._cache.dropped()
            self._lease.assure(g for g in unsure if g > dropped)

    def _with(self, generation: int) -> list[int]:
        others = [g for g in self._lease.generations if g != generation]
        return sorted([*others[-1:], generation])

    def is_pinned(self, generation: int) -> bool:
        """Whether it cannot be dropped from now on."""
        return self._lease.keeps(generation)

    def is_certain(self, generation: int) -> bool:
        """Whether it has not been dropped either."""
        return self._lease.is_sure(generation)

    def is_damaged(self, error: CorruptSampleError) -> bool:
        """Whether a sample of a pinned generation is damaged, as it seems, rather than dropped. Names are never given
        twice, so what is there is no other sample's.
        """
        return not error.is_missing or self.is_certain(error.generation)

    def describe(self, generation: int, id: int) -> list[Kind]:
        """The description of a sample's arrays.

        Raises:
            CorruptSampleError: the sample is missing, or its description is invalid.
        """
        return self._kinds_of(generation, id, self._description(generation, id))

    def read(self, generation: int, id: int, out: Mapping[str, Any] | None = None) -> dict[str, tuple[Kind, Array]]:
        """The arrays of a sample, by kind.

        Args:
            out: arrays to read into, where they fit; others are returned as new arrays.

        Raises:
            CorruptSampleError: it differs from the written sample.
        """
        self._lease.use(generation)
        description = self._description(generation, id)
        kinds = self._kinds_of(generation, id, description)
        decoders = {}
        for kind in kinds:
            if kind.name in self._kinds:
                place = None if out is None else out.get(kind.name)
                try:
                    decoders[kind.name] = Decoder(kind, place if Decoder.fits(kind, place) else None)
                except ValueError as error:
                    raise CorruptSampleError(generation, id, str(error)) from None
        pieces = list(pieces_of(kinds, self._kinds, int(description["chunk_bytes"])))
        numbers = sorted({number for number, _, _ in pieces})
        names = chunk_names(description, numbers)
        chunks = self._cache.store.read_chunks(generation, names)
        number, chunk = -1, memoryview(b"")
        for k, kind_name, part in pieces:
            if k != number:
                found = next(chunks)
                if found is None:
                    self._cache.check_is_kept()
                    raise CorruptSampleError(generation, id, f"chunk {k} ({kind_name}) is missing", True)
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
        # Of copies: other threads add to them meanwhile.
        self._descriptions = {g: known for g, known in list(self._descriptions.items()) if g in pinned}
        self._versions = {g: known for g, known in list(self._versions.items()) if g in pinned}

    def _description(self, generation: int, id: int) -> Document:
        known = self._descriptions.get(generation, {}).get(id)
        if known is None:
            versions = self._versions.get(generation)
            if versions is None:
                versions = self._cache.versions(generation)
                if generation in self._lease.generations:
                    self._versions[generation] = versions
            known = self._find(generation, id, versions)
            if known is None:
                self._cache.check_is_kept()
                raise CorruptSampleError(generation, id, "it is missing", True)
        return known

    def _find(self, generation: int, id: int, versions: Mapping[int, int]) -> Document | None:
        """A description that is not known, which is remembered if the generation is pinned."""
        if generation not in self._lease.generations:
            return self._cache.version(generation, id, versions.get(id, 0))
        if len(self._cache.blocks) == 1 and generation not in self._descriptions:
            # One request for all costs a server less than one for each; and they are asked for while it is busy most:
            # after a swap.
            self._descriptions[generation] = self._cache.samples(generation, 0, versions)
        descriptions = self._descriptions.setdefault(generation, {})
        known = descriptions.get(id) or self._cache.version(generation, id, versions.get(id, 0))
        if known is not None:
            descriptions[id] = known
            if len(descriptions) > _MOST_DESCRIPTIONS:
                with contextlib.suppress(KeyError, RuntimeError):  # another thread does the same
                    del descriptions[next(iter(descriptions))]
        return known

    def _kinds_of(self, generation: int, id: int, description: Document) -> list[Kind]:
        try:
            return check_description(description)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptSampleError(generation, id, f"its description is wrong: {error}") from None
