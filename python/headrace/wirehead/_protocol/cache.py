"""The circular cache: generations of samples that many processes fill, swap and read concurrently.

A *generation* is a numbered set of SWAP_CAP samples. The highest one that has been swapped is the *current* one, which
readers read; writers fill the next, and while that is verified, the one after it. So there is always one to read and
one to write, and older ones stay only as long as they are read.

These rules ensure that no sample is lost, torn or mixed, whichever process is killed at any time. Documents are
inserted and never removed before a whole generation is dropped; the only documents that change are leases.

1. **Put.** A writer first writes the chunks of a sample under names that no other process uses, and when the store has
   acknowledged all of them inserts the sample's description under a free number below SWAP_CAP. Inserting succeeds for
   one writer only (``Store.insert``), so a number belongs to one sample; and a sample with a description is complete. A
   writer killed before that leaves chunks without references, which are removed with their generation.
2. **Swap.** The decisions of managers about a generation are a sequence of entries in the table of swaps: entry *n* is
   inserted under the generation's number and *n*, by a manager that has read all *n* before it. An entry annuls damaged
   samples, which are put again under their next version; the last one is the swap, inserted once a manager has seen
   each description, in the version that counts, and all its chunks, or has read that another manager had seen these
   for a whole block, with that many entries before it. So none of the samples that were verified for a swap has been
   annulled meanwhile: that would have taken the place of its entry; and a manager that sees a swap annuls nothing any
   more. The current generation is the highest one with a swap. (An entry that arrives late, after those of its
   generation have been removed, is below that and has no readers.)
3. **No sample is put into a dropped generation.** A number is free only while the generation has not been
   swapped: a swap needs all of them taken. Only dropping a generation makes numbers free again; rule 4 is about that.
4. **Drop.** A process pins a generation before it touches it: it first writes the generation into its lease, *then*
   checks for the swap that would make it obsolete: for a writer the swap of that generation, for a reader that of the
   next. If it has happened, the process releases it and pins a newer one. A process that drops does it in the reverse
   order: it sees that swap, *then* reads the leases, then drops what is older than all that they name. As the store
   orders these four operations, one of the two sees the other. A lease that names a generation also keeps all later
   ones: its holder continues with a newer generation without asking, and updates the lease later. A generation that may
   be dropped may always be dropped, so it does not matter how late it is dropped, or by how many processes. A reader
   may be told of a generation that is obsolete already. So before a process reads the leases in order to drop, it notes
   up to which generation; and a reader that pins a generation and *then* finds no such note for it or a later one is
   sure that nobody has dropped it: whoever notes that later sees the pin. Of one that it is not sure of, it cannot tell
   lost samples from dropped ones, and continues with a newer one. The last note stays.
5. **Death and suspension.** A process that watches a lease and has seen it unchanged for LEASE seconds, by its own
   clock alone, inserts a *grave* for it and reads it again: if it is still unchanged, it is permanently dead. (The
   LEASE of its holder, which the lease states: processes may have different ones.) Its holder looks for a grave after
   each renewal. A lease counts as alive until 0.9 LEASE after the last renewal that found none was *sent*: that renewal
   was in the store before the watcher began to count, or the watcher has seen it and restarted; and one that arrives
   after the watcher's second look finds the grave. A lease that has expired never counts as alive again. A writer that
   cannot be sure that it is alive when its description is inserted does not acknowledge the sample, but puts it again
   under a new lease, into a newly pinned generation; likewise a reader pins again under a new one. Graves stay for 2
   LEASE; after that, a holder's own clock tells it. In a local store, a process that is known to have exited is
   immediately dead. With a server that would be too early: requests that the process sent before it died may still be
   on their way.
6. **Bound.** A swap waits until all generations older than the current one are dropped. A writer continues from the
   generation after the current one to the second after it when it has found all numbers of the first taken, and has
   seen that all generations older than the current one are dropped; these do not come back. So at most three have
   samples: the current one, the one being filled, and either the one that slow readers still hold, or the one that is
   full and not yet verified. Of two that are being filled, the second cannot be swapped before the first: managers
   look only at the one after the current one. If a damaged sample of that one is discarded, a writer returns to
   it within about a second, or after a fifth of the time that it has waited, at most 15 seconds, if that is more. (A
   writer that was stopped may insert one sample into a generation that was dropped; it is dropped again.)
7. **Incarnations.** The process that creates the settings chooses a random name for the cache, and all tables are under
   that name. Cleaning removes the settings first. So late writes belong to the old name and mix with nothing; managers
   of the new cache remove them, having read the settings after they saw them. Each process checks the settings when it
   renews its lease, while it waits for data, and when an entry is missing; if they have changed, the current generation
   is lower than before, or the lease is not as this process left it (a backup has been restored), it stops with
   ``CacheGoneError``. A manager whose lease is not as it left it begins anew with what the store has: another one may
   have led meanwhile.
8. **Restored backups.** A manager remembers what it has verified, but does not act on its memory. Before it swaps a
   generation, writes down that a block is whole, annuls samples or drops generations, it renews its lease, looks again
   at all that it acts on, looks whether the store still has that renewal, and acts. For a swap, it looks again at the
   entries, for older generations, and at the notes of whole blocks; of a block without a note, at all descriptions:
   each must be the one that it has verified, put under the same lease with the same number. (A description is stored
   after its chunks, and a note after another look at its block, so a backup that has one has what it stands for.) For a
   drop, it looks again at its note (see 4), then at the leases. Suppose that a backup is restored in which some of this
   differs. If that happens before the second look, this look shows it. If it happens after that, the backup was made
   before the renewal, or it would have all that the second look has seen; so it holds an earlier renewal, or none, and
   the last look shows that.

Having only one process manage at a time saves work; correctness does not depend on it.
``tests/python/wirehead/test_protocol.py`` explores these rules, with the code itself, in a model in which anything may
happen between two operations.

Requirements that cannot be checked: clocks that are never set and that keep counting in a suspended machine
(``CLOCK_BOOTTIME``) run at the same speed within a tenth, and while a virtual machine is frozen, none of its requests
is under way for longer than LEASE. A server keeps acknowledged writes, and later reads see them; with a replica set,
:mod:`headrace.wirehead._stores.mongo_store` guarantees less, but enough for 1 to 8. A backup is the state of the whole
cache at one moment, and takes its place at one moment: not between a manager's last look at its lease (or one to renew
it meanwhile, where the second look of 8 takes longer than LEASE / 3) and what it does next, not while a request is
retried, and no two of them while a manager decides. Who stops all processes first is on the safe side. Until a process
notices a restored backup, within LEASE / 3, what it puts may be lost, or stays in the two generations that it fills, in
addition to those of 6, until the cache comes to their numbers again.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace._waiting import is_over
from headrace._wording import counted
from headrace.wirehead._protocol.process import boot_clock, has_ended
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import (
    DROPS,
    LEASES,
    SETTINGS,
    SWAPS,
    VERIFIED,
    Document,
    Store,
    block_size,
    key,
    samples_table,
    seconds,
    version_key,
)
from headrace.wirehead.config import Config, ConfigSource
from headrace.wirehead.errors import CacheGoneError, StoreError

log = logging.getLogger("headrace.wirehead")

_FIRST_WORD, _NEXT_WORD = 5.0, 60.0  # seconds of waiting for data until it is said, and until it is said again


@dataclasses.dataclass(frozen=True)
class Swap:
    """The known data of a swap.

    Attributes:
        generation: which became readable; 1 is the first.
        time: of the swap, in seconds since 1970 by the store's clock.
        samples: generated in all, up to and with this generation.
        deleted: incomplete or damaged samples thrown away, in all.
        seconds: from the moment at which the generation was found full to its being readable.
        by: host and process that did it.
        before: (time, samples) of the swaps before this one, at most 10.
    """

    generation: int
    time: float
    samples: int
    deleted: int
    seconds: float
    by: str
    before: tuple[tuple[float, int], ...] = ()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Swap | None:
        """None if the document is damaged."""
        try:
            values = {field.name: document[field.name] for field in dataclasses.fields(cls)}
            before = tuple((float(time), int(samples)) for time, samples in document["before"])
        except (KeyError, TypeError, ValueError):
            return None
        return cls(**{**values, "before": before})


class Cache:
    """One process's view of a cache. Thread-safe; not usable in a child after a fork.

    Args:
        config: where it is.
        store: that it is in; default: the one that the configuration names.
        create: create it if it does not exist. Otherwise nothing is stored: it has no generations then.
        check: that it was made with this configuration.
        clock: seconds, see :func:`boot_clock`.

    Raises:
        StoreError: it was made with another SWAP_CAP or SAMPLE.
    """

    def __init__(
        self,
        config: ConfigSource,
        store: Store | None = None,
        create: bool = True,
        check: bool = True,
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self.clock = clock
        self.config = Config.load(config)
        self.store = open_store(self.config, create) if store is None else store
        self._block = block_size(self.config.swap_cap)
        self.blocks = range(-(-self.config.swap_cap // self._block))
        self._checks = check
        self._incarnation: str | None = None
        self._newest = 0  # swap that was seen
        # The last generation that was found current, and the versions that count in it: no entry follows a swap.
        self._final: tuple[int, dict[int, int]] = (0, {})
        try:
            self._open(create)
        except BaseException:
            self.store.close()
            raise

    @property
    def incarnation(self) -> str | None:
        """Which of those that this location has had; None if there was no cache yet."""
        return self._incarnation

    def current(self) -> int:
        """The generation to read; 0 if there has been no swap.

        Raises:
            CacheGoneError: it was a later one before.
        """
        return max((int(name[:12]) for name in self._swap_documents()), default=0)

    def _swap_documents(self) -> dict[str, Document]:
        """Those of swaps, by their keys."""
        known = self._newest
        entries = self.store.scan(SWAPS)
        swaps = {name: entry for name, entry in entries.items() if is_entry_key(name) and "void" not in entry}
        newest = max((int(name[:12]) for name in swaps), default=0)
        if newest < known:
            if not self.store.scan(SWAPS).keys() - entries.keys():
                self.check_is_there()
                raise CacheGoneError(
                    self.config.cache, f"went back from generation {known} to {newest} (a backup restored?)"
                )
            return self._swap_documents()  # swaps have happened while this process was suspended
        self._newest = max(self._newest, newest)
        if newest != self._final[0]:
            of_newest = _in_order(newest, entries.get)
            if of_newest and "void" not in of_newest[-1]:  # else the scan has missed one that was made meanwhile
                self._final = newest, versions_of(of_newest)
        return swaps

    def is_swapped(self, generation: int) -> bool:
        """Whether a generation can be, or could be, read."""
        return self.current() >= generation

    def swaps(self) -> list[Swap]:
        """The last swaps, in their order."""
        found = (Swap.from_document(document) for _, document in sorted(self._swap_documents().items()))
        return [swap for swap in found if swap is not None]

    def swap(self, generation: int) -> Swap | None:
        """The known data of one swap."""
        entry = next(reversed(self.entries(generation)), None)
        return None if entry is None else Swap.from_document(entry)

    def entries(self, generation: int) -> list[Document]:
        """The managers' entries about a generation, in the order that all agree on: annulments, and at
        last the swap. See 2.
        """
        return _in_order(generation, lambda name: self.store.find(SWAPS, name))

    def versions(self, generation: int) -> dict[int, int]:
        """Which version of a sample counts, by id, where it is not the first."""
        of, versions = self._final
        return versions if of == generation else versions_of(self.entries(generation))

    def verified_blocks(self, generation: int, entries: Sequence[Document]) -> set[int]:
        """The blocks of which a manager has written down that all samples are there and whole, where none has been
        annulled since.

        Args:
            entries: about the generation.
        """
        if len(self.blocks) == 1:
            return set()
        noted = self.store.scan(VERIFIED)
        found = ((block, noted.get(entry_key(generation, block))) for block in self.blocks)
        counts = {block: int(note.get("entries", 0)) for block, note in found if note is not None}
        annulled = {block: versions_of(entries[count:]) for block, count in counts.items()}
        return {block for block, ids in annulled.items() if block not in map(self.block_of, ids)}

    def dropped(self) -> int:
        """The last generation that managers have begun to drop, or were about to; 0: none."""
        return max((int(name) for name in self.store.scan(DROPS) if is_entry_key(name)), default=0)

    def note_drop(self, generation: int) -> None:
        """Tells all that this generation and those before it may be dropped from now on."""
        self.store.insert(DROPS, key(generation), {})

    def block_of(self, id: int) -> int:
        """The block that a sample belongs to, see :func:`headrace.wirehead._stores.store.block_size`."""
        return id // self._block

    def ids_of(self, block: int) -> range:
        """The ids of a block."""
        return range(block * self._block, min((block + 1) * self._block, self.config.swap_cap))

    def sample(self, generation: int, id: int) -> Document | None:
        """The description of a sample; None if there is no such sample."""
        return self.version(generation, id, self.versions(generation).get(id, 0))

    def version(self, generation: int, id: int, version: int) -> Document | None:
        """The description of one version of a sample."""
        return self.store.find(samples_table(generation, self.block_of(id)), version_key(id, version))

    def samples(self, generation: int, block: int, versions: Mapping[int, int] | None = None) -> dict[int, Document]:
        """The descriptions of the samples of a block, by their ids.

        Args:
            versions: which ones count; default: those that do now.
        """
        versions = self.versions(generation) if versions is None else versions
        stored = self.store.scan(samples_table(generation, block))
        wanted = ((id, stored.get(version_key(id, versions.get(id, 0)))) for id in self.ids_of(block))
        return {id: description for id, description in wanted if description is not None}

    def fill(self, generation: int) -> int:
        """How many samples a generation has."""
        return sum(len(self.samples(generation, block)) for block in self.blocks)

    def wait_for_data(self, timeout: float) -> int:
        """The current generation, as soon as there is one.

        Raises:
            TimeoutError: there was none in time.
            CacheGoneError: this is not the cache that it was before.
        """
        start = look = time.monotonic()
        deadline, word = start + timeout, start + _FIRST_WORD
        pause = 0.01
        while (generation := self._current_if_there()) == 0:
            now = time.monotonic()
            if now >= look or now > deadline:
                self.check_is_there()
                look = now + self.config.lease / 3
            if now > deadline:
                waited = counted(timeout, "second")
                raise TimeoutError(f"no data after {waited}: {self._first_fill()}. Is a generator running?")
            self.check_is_awaited()
            if now >= word:
                log.warning("no data yet: %s; waiting up to %g s", self._first_fill(), timeout)
                word = now + _NEXT_WORD
            time.sleep(min(pause, max(0.0, deadline - time.monotonic()) + 0.001))
            pause = min(pause * 1.5, 0.5)
        return generation

    def check_is_awaited(self) -> None:
        """
        Raises:
            StoreError: the loader that this thread reads for has ended, or the cache is being closed: nobody waits for
                data any more.
        """
        if is_over():
            raise StoreError(f"the loader that waited for data of {self.config.cache} has ended")
        if math.isfinite(self.store.ends):
            raise StoreError(f"{self.config.cache} was closed while a thread waited for data")

    def _first_fill(self) -> str:
        return f"the first generation of {self.config.cache} has {self.fill(1)} of {self.config.swap_cap} samples"

    def _current_if_there(self) -> int:
        if self._incarnation is None:
            self._open(create=False)
        return self.current()

    def leases(self) -> dict[str, Document]:
        """The leases whose holders seem to live, by their keys: to be shown. Clocks may be wrong; who is dead is for
        :class:`headrace.wirehead._protocol.watch.Watch` to say.
        """
        now = self.store.now()
        return {key: lease for key, lease in self.store.scan(LEASES).items() if not self._seems_dead(lease, now)}

    def _seems_dead(self, lease: Document, now: float) -> bool:
        return now - seconds(lease.get("time", 0)) > self.lasts(lease) or self.has_ended(lease)

    def lasts(self, lease: Document) -> float:
        """Seconds that a lease lasts: its holder's LEASE."""
        return float(lease.get("lease", self.config.lease))

    def has_ended(self, lease: Document) -> bool:
        """Whether the holder's process is known to have ended, and all that it has sent to have arrived."""
        return self.config.is_local and has_ended(lease)

    def blocked_by(self, generation: int) -> str | None:
        """The processes that keep a full generation from being swapped, in words; None if there are none."""
        holders = [
            f"{lease['role']} {lease['process']} (generation {min(lease['generations'])})"
            for lease in self.leases().values()
            if any(g < generation - 1 for g in lease.get("generations", ()))
        ]
        return f"older generations are still used by {', '.join(holders)}" if holders else None

    def begin_close(self) -> None:
        """What is still done at the store, such as ending leases, takes less than a second."""
        self.store.begin_close()

    def close(self) -> None:
        self.store.close()

    def check_is_there(self) -> None:
        """
        Raises:
            CacheGoneError: this is not the cache that it was before.
        """
        found = self.store.find(SETTINGS, "settings") or {}
        if self._incarnation is not None and found.get("incarnation") != self._incarnation:
            raise CacheGoneError(self.config.cache)

    def check_is_kept(self) -> None:
        """
        Raises:
            CacheGoneError: this is not the cache that it was before, or an earlier state of it.
        """
        self.check_is_there()
        self.current()

    def look_again(self) -> None:
        """For those who only watch: continues with the cache that is there now, which may have been made since, or made
        anew after it was cleaned; or with none, if it was cleaned just now.
        """
        before, self._incarnation = self._incarnation, None
        self._open(create=False)
        if self._incarnation is None:
            self.store.use(None)
        if self._incarnation != before:
            self._newest, self._final = 0, (0, {})

    def _open(self, create: bool) -> None:
        """Finds the incarnation that is there, or makes one."""
        ours: Document = {"format": _FORMAT, "SWAP_CAP": self.config.swap_cap, "SAMPLE": list(self.config.sample)}
        if not self.config.is_local:  # where the samples are; the settings themselves are where COUNTER_COLLECTION says
            ours["WRITE_COLLECTION"] = self.config.write_collection
        found = self.store.find(SETTINGS, "settings")
        while found is None and create:
            self.store.insert(SETTINGS, "settings", {**ours, "incarnation": uuid.uuid4().hex[:16]})
            found = self.store.find(SETTINGS, "settings")
        if found is None:  # it has not been created yet, or it has been cleaned since
            return
        if self._checks:
            self._check_settings(found, ours)
        if (incarnation := _incarnation_of(found)) is not None:
            self._incarnation = incarnation
            self.store.use(incarnation)

    def _check_settings(self, found: Document, ours: Document) -> None:
        cache = self.config.cache
        remedy = f"another DBNAME, or first {self.config.clean_command}"
        if found.get("format", _FORMAT) != _FORMAT:
            raise StoreError(
                f"{cache} was made by another version of headrace, in format {found['format']}; this version uses "
                f"{_FORMAT}: use {remedy}"
            )
        if _incarnation_of(found) is None or not ours.keys() <= found.keys():
            raise StoreError(f"{cache} has damaged settings: use {remedy}")
        for name, value in ours.items():
            if found[name] != value:
                raise StoreError(
                    f"{cache} was made with {name} {found[name]}, but {self.config.source} says {value}: use the same, "
                    f"{remedy}"
                )


def _incarnation_of(settings: Document) -> str | None:
    """None if they are damaged."""
    found = settings.get("incarnation")
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{16}", found) else None


_FORMAT = 3


def entry_key(generation: int, number: int) -> str:
    """The key of an entry about a generation, by the number of entries before it."""
    return f"{key(generation)}.{number:06d}" if number else key(generation)


def is_entry_key(name: str) -> bool:
    """Whether it is a key of :func:`entry_key`: what others have put there is left alone."""
    return re.fullmatch(r"\d{12}(?:\.\d{6})?", name) is not None


def _in_order(generation: int, find: Callable[[str], Document | None]) -> list[Document]:
    """The entries about a generation up to the first that ``find``, which is given a key, does not find."""
    entries: list[Document] = []
    while (entry := find(entry_key(generation, len(entries)))) is not None:
        entries.append(entry)
    return entries


def versions_of(entries: Iterable[Document]) -> dict[int, int]:
    """See :meth:`Cache.versions`."""
    return {int(id): int(version) + 1 for entry in entries for id, version in entry.get("void", ())}
