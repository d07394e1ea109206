"""The circular cache: generations of samples that many processes fill, swap and read at once.

A *generation* is a numbered set of SWAP_CAP samples. The highest one that has been swapped is the *current* one, which
readers read; writers fill the next, and while that is verified, the one after it. So there is always one to read and
one to write, and older ones stay only as long as somebody reads them.

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
   sees that swap, *then* reads the leases, then drops what is older than all that they name. As the store orders these
   four operations, one of the two sees the other. A lease that names a generation keeps all after it, too: whoever has
   one goes on to a newer generation without asking, and lets the lease say so later.
5. **Death and standstill.** A lease whose time has not changed for LEASE seconds, by the clock of the store alone,
   belongs to nobody any more. A process that was stopped that long knows it from its own monotonic clock: a lease
   counts as alive until LEASE seconds after the last renewal was *sent*, and if the next one is answered later than
   that, it never does again: somebody may be clearing away what it has left. A writer that cannot say that it is alive
   when its description is inserted does not acknowledge the sample, but puts it again under a new lease, into a
   generation that it pins anew; a reader, too, pins anew under a new one. So clocks need not agree, only run at about
   the same speed. In a local store, a process that is seen to have ended is dead at once. With a server that would be
   too early: what the process sent before it died may still be on its way.
6. **Bound.** A swap waits until all generations older than the current one are dropped. A writer goes on from the
   generation after the current one to the second after it when it has found all numbers of the first taken, and has
   seen that all generations older than the current one are dropped; these do not come back. So at most three have
   samples: the current one, the one being filled, and either the one that slow readers still hold, or the one that is
   full and not yet verified. Of two that are being filled, the second cannot be swapped before the first: managers
   look only at the one after the current one. Should a damaged sample of that be thrown away, a writer comes back to
   it within a second or so.

That only one process manages at a time saves work; nothing depends on it.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.wirehead.config import Config, ConfigSource
from headrace.wirehead.errors import StoreError
from headrace.wirehead.store import LEASES, SETTINGS, SWAPS, Document, Store, block_size, key, samples_table, seconds


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


def this_process() -> str:
    """Host and process number, as leases and logs show them."""
    return f"{socket.gethostname()}:{os.getpid()}"


def whose() -> Document:
    """What a lease says of the process that holds it."""
    return {"process": this_process(), "pid": os.getpid(), "pid_namespace": _pid_namespace()}


def _pid_namespace() -> str | None:
    """Within what this process's number is its alone: a running system, and containers may share a host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _has_ended(lease: Document) -> bool:
    """Whether the process that holds a lease is known to have ended. False if it runs in another container, if its
    number has been given to another, or if the lease does not say.
    """
    pid, namespace = lease.get("pid"), lease.get("pid_namespace")
    if not isinstance(pid, int) or namespace is None or namespace != _pid_namespace():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it is another user's
        return False
    return False


class Cache:
    """One process's view of a cache. Thread-safe; not usable in a child after a fork.

    Args:
        config: where it is.
        store: that it is in; default: the one that the configuration names.
        check: that it was made with this configuration.

    Raises:
        StoreError: it was made with another SWAP_CAP or SAMPLE.
    """

    def __init__(self, config: ConfigSource, store: Store | None = None, check: bool = True) -> None:
        self.config = Config.load(config)
        self.store = open_store(self.config) if store is None else store
        self._block = block_size(self.config.swap_cap)
        self.blocks = range(-(-self.config.swap_cap // self._block))
        try:
            if check:
                self._check_settings()
        except BaseException:
            self.store.close()
            raise

    def current(self) -> int:
        """The generation to read; 0 if there has been no swap."""
        return max(map(int, self.store.scan(SWAPS)), default=0)

    def is_swapped(self, generation: int) -> bool:
        """Whether a generation can be, or could be, read."""
        return self.current() >= generation

    def swaps(self) -> list[Swap]:
        """The last swaps, in their order."""
        found = (Swap.from_document(document) for _, document in sorted(self.store.scan(SWAPS).items()))
        return [swap for swap in found if swap is not None]

    def swap(self, generation: int) -> Swap | None:
        """What is known of one swap."""
        document = self.store.find(SWAPS, key(generation))
        return None if document is None else Swap.from_document(document)

    def block_of(self, id: int) -> int:
        """The block that a sample belongs to, see :func:`headrace.wirehead.store.block_size`."""
        return id // self._block

    def ids_of(self, block: int) -> range:
        """The ids of a block."""
        return range(block * self._block, min((block + 1) * self._block, self.config.swap_cap))

    def sample(self, generation: int, id: int) -> Document | None:
        """The description of a sample; None if there is no such sample."""
        return self.store.find(samples_table(generation, self.block_of(id)), key(id))

    def samples(self, generation: int, block: int) -> dict[int, Document]:
        """The descriptions of the samples of a block, by their ids."""
        return {int(key): found for key, found in self.store.scan(samples_table(generation, block)).items()}

    def fill(self, generation: int) -> int:
        """How many samples a generation has."""
        return sum(len(self.samples(generation, block)) for block in self.blocks)

    def wait_for_data(self, timeout: float) -> int:
        """The current generation, as soon as there is one.

        Raises:
            TimeoutError: there was none in time.
        """
        deadline = time.monotonic() + timeout
        pause = 0.01
        while (generation := self.current()) == 0:
            if time.monotonic() > deadline:
                stored = self.fill(1)
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
        if now - seconds(lease.get("time", 0)) > self.config.lease:
            return True
        return self.config.is_local and _has_ended(lease)

    def blocked_by(self, generation: int) -> str | None:
        """Who keeps a full generation from being swapped, in words; None if nobody does."""
        holders = [
            f"{lease['role']} {lease['process']} (generation {min(lease['generations'])})"
            for lease in self.leases().values()
            if any(g < generation - 1 for g in lease.get("generations", ()))
        ]
        return f"older generations are still used by {', '.join(holders)}" if holders else None

    def close(self) -> None:
        self.store.close()

    def _check_settings(self) -> None:
        ours = {"SWAP_CAP": self.config.swap_cap, "SAMPLE": list(self.config.sample), "format": 2}
        if self.store.insert(SETTINGS, "settings", ours):
            return
        found = self.store.find(SETTINGS, "settings")
        if found is None:  # it has been cleaned since
            return
        if found.get("format") != ours["format"]:
            raise StoreError(
                f"{self.config.dbname} at {self.config.place} was made by another version of headrace, or is damaged: "
                "use another DBNAME, or `python -m headrace.wirehead clean` first"
            )
        for name, value in ours.items():
            if found.get(name) != value:
                raise StoreError(
                    f"{self.config.dbname} at {self.config.place} was made with {name} {found.get(name)}, this "
                    f"configuration says {value}: use the same, another DBNAME, or "
                    "`python -m headrace.wirehead clean` first"
                )


def open_store(config: Config) -> Store:
    """The store that a configuration names.

    Raises:
        StoreUnreachableError: its server does not answer.
        ImportError: it needs PyMongo, which is not installed.
    """
    if config.is_local:
        from headrace.wirehead.local_store import LocalStore

        return LocalStore(config)
    from headrace.wirehead.mongo_store import MongoStore

    return MongoStore(config)
