"""Leases of writers and readers: which processes live, and which generations they use. They are timed by the clock of
``process``, which no one sets.

Who leads the managers is a lease of ``generation_manager``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.process import whose
from headrace.wirehead._stores.store import GRAVES, LEASES
from headrace.wirehead.errors import CacheGoneError

log = logging.getLogger("headrace.wirehead")

_TRUST = 0.9  # of LEASE that a holder trusts in, lest its clock be slower than the one of who watches it
_OVERLAP = 1.0  # seconds that a reader keeps a generation after it continued with the next


class Lease:
    """Tells others that this process lives, and which generations it uses. A thread renews it three times per LEASE.

    A lease that names a generation keeps that one and all after it. So a process that continues with a newer one need
    not wait until the lease says so: the thread writes it immediately, in parallel.

    A generation that has become old is released when it is not in use, so that it can be dropped: by a generator within
    a second after its put; by a reader a second after it continued with a newer one, or when it has read nothing for
    LEASE seconds; if that was in the middle of a loader's epoch, whose dataset then warns. Thread-safe.

    Args:
        cache: where.
        role: "generator" or "reader".
        details: further data of the lease.
    """

    def __init__(self, cache: Cache, role: str, **details: Any) -> None:
        self.key = _new_key(role)
        self._cache = cache
        self._details = {"role": role, **whose(), **details}
        self._generations: list[int] = []
        self._kept_from = math.inf  # the first generation that the store's document keeps, whichever it has by now
        self._renewed = float("-inf")
        self._has_lapsed = False
        self._beat = 0  # of the last write
        self._acknowledged = 0  # that of the last write under this key that the store has confirmed; 0: none yet
        self._gone: CacheGoneError | None = None
        self._used: dict[int, float] = {}  # when, by generation
        self._sure: set[int] = set()  # those that have not been dropped, since they were kept in time
        self._busy = False
        self._lock = threading.Lock()  # guards all above; the thread reads _renewed without it, for its pauses only
        self._write_lock = threading.Lock()  # orders the writes; taken before the other
        self._stop = threading.Event()
        self._wake = threading.Event()  # there is something to write, or the end
        self._thread: threading.Thread | None = None

    @property
    def generations(self) -> list[int]:
        with self._lock:
            return list(self._generations)

    def pin(self, generations: Iterable[int]) -> bool:
        """These, and no others, are in use from now on. Returns whether they were kept from being dropped before: if
        not, they may be gone.

        Raises:
            CacheGoneError: the cache is not the one that it was.
        """
        with self._lock:
            if self._gone is not None:
                raise self._gone
            if self._lapsed():
                # Another process may be removing the leftovers of this one, and removes the lease at the end.
                self.key = _new_key(self._details["role"])
                self._kept_from, self._renewed, self._has_lapsed = math.inf, float("-inf"), False
                self._acknowledged = 0
            was_kept = self._pin(generations)
        if was_kept:
            self._wake.set()
            return True
        with self._write_lock:
            self._write()
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._renew, name="headrace-wirehead-lease", daemon=True)
                self._thread.start()
        return False

    def _pin(self, generations: Iterable[int]) -> bool:
        self._busy = True
        self._generations = sorted(set(generations))
        now = self._cache.clock()
        self._used = {g: self._used.get(g, now) for g in self._generations}
        kept_from = self._kept_from if self._is_alive() else math.inf
        self._sure = {g for g in self._sure.intersection(self._generations) if g >= kept_from}
        return kept_from <= min(self._generations)

    @property
    def unsure(self) -> list[int]:
        """The pinned generations that may have been dropped before this kept them."""
        with self._lock:
            return [g for g in self._generations if g not in self._sure]

    def assure(self, generations: Iterable[int]) -> None:
        """Notes that these, if they are pinned, had not been dropped when this kept them."""
        with self._lock:
            if self._is_alive():
                self._sure.update(g for g in generations if g in self._generations)

    def is_sure(self, generation: int) -> bool:
        """Whether a generation is kept, and was not dropped before."""
        with self._lock:
            return generation in self._sure and self._is_alive()

    def use(self, generation: int) -> bool:
        """Whether a generation is pinned still, and stays so for now: it is not idle.

        Raises:
            CacheGoneError: the cache is not the one that it was.
        """
        with self._lock:
            if self._gone is not None:
                raise self._gone
            self._busy = generation in self._generations and self._is_alive()
            if self._busy:
                self._used[generation] = self._cache.clock()
            return self._busy

    def is_lost(self) -> bool:
        """Whether it has lapsed, or the cache is not the one that it was: the next use or pin finds that, too."""
        with self._lock:
            return self._gone is not None or self._lapsed()

    def rest(self) -> None:
        """Nothing is in use before :meth:`use` or :meth:`pin` is called again."""
        with self._lock:
            self._busy = False

    def update(self, **details: Any) -> None:
        """The contents of the next renewal."""
        with self._lock:
            self._details.update(details)

    def is_alive(self) -> bool:
        """Whether no other process can have declared it dead before now, since it was first pinned with this key."""
        with self._lock:
            return self._is_alive()

    def keeps(self, generation: int) -> bool:
        """Whether it is alive and names this generation."""
        with self._lock:
            return generation in self._generations and self._is_alive()

    def _is_alive(self) -> bool:
        return not self._has_lapsed and self._cache.clock() - self._renewed < _TRUST * self._cache.config.lease

    def has_lapsed(self) -> bool:
        """Whether another process may have declared it dead, even if it has been renewed after that. The next pin gives
        it a new key.
        """
        with self._lock:
            return self._lapsed()

    def _lapsed(self) -> bool:
        return self._renewed > float("-inf") and not self._is_alive()

    def abandon(self) -> None:
        """Ends it without a word, as death would."""
        self._stop.set()
        self._wake.set()

    def close(self) -> None:
        """Ends it. Once the store closes, this does not wait for a renewal that the store does not answer, which holds
        the lock for as long as TIMEOUT: then the lease expires by itself.
        """
        self.abandon()
        left = self._cache.store.ends - time.monotonic()
        if not self._write_lock.acquire(timeout=-1 if math.isinf(left) else max(0.0, left)):
            return
        try:
            if self._thread is not None:
                self._cache.store.remove(LEASES, self.key)
        finally:
            self._write_lock.release()

    def _write(self) -> None:
        """Updates the store. Under the lock for writing only: reading continues meanwhile."""
        with self._lock:
            self._beat += 1  # so that each renewal is a change
            key, beat = self.key, self._beat
            document = {**self._details, "beat": beat, "generations": list(self._generations)}
            document["lease"] = self._cache.config.lease  # the others' may be another one
            kept_from = min(self._generations, default=math.inf)
            self._kept_from = max(self._kept_from, kept_from)  # until it is known which one the store has
        sent = self._cache.clock()
        self._cache.store.replace(LEASES, key, document)
        is_buried = self._cache.store.find(GRAVES, key) is not None
        with self._lock:
            if key == self.key:
                self._has_lapsed = is_buried or self._lapsed()  # before the store had the new one
                self._kept_from, self._renewed, self._acknowledged = kept_from, sent, beat

    def _renew(self) -> None:
        longest, before = min(1.0, self._period), float("-inf")
        while not self._stop.is_set():
            due = self._renewed + self._period - self._cache.clock()
            # After one that took long, the next is due at once; after one that failed, in its time.
            pause = longest if due <= 0 and self._renewed == before else min(max(due, 0.0), longest)
            before = self._renewed
            is_new = self._wake.wait(pause)
            self._wake.clear()
            self.tick(is_new)

    @property
    def _period(self) -> float:
        return self._cache.config.lease / 3

    def tick(self, is_new: bool = False) -> None:
        """The periodic work of its thread: renews, if it is time or ``is_new``, and releases old generations."""
        try:
            since = self._cache.clock() - self._renewed
            is_time = since >= self._period
            if is_new or is_time:  # before anything else, which may take its time
                self._write_again(checks=is_time and since < self._cache.config.lease / 2)
            if self._let_go():
                self._write_again()
            if is_time:
                self._cache.check_is_there()
        except CacheGoneError as error:
            with self._lock:
                self._gone = error
        except Exception as error:  # the operations themselves will say so
            log.debug("lease %s was not renewed: %s", self.key, error)

    def _write_again(self, checks: bool = False) -> None:
        with self._write_lock:
            if not self._stop.is_set() and not self.has_lapsed():
                if checks:
                    self._check_is_kept()
                self._write()

    def _check_is_kept(self) -> None:
        """
        Raises:
            CacheGoneError: the store does not have the last renewal, but an earlier state of the cache.
        """
        with self._lock:
            key, acknowledged = self.key, self._acknowledged
        for _ in range(2 if acknowledged else 0):
            found = self._cache.store.find(LEASES, key)
            if found is not None and int(found.get("beat", 0)) >= acknowledged:
                return
        # Others remove leases, too: those that they have declared dead, whose holder goes on under a new key.
        if not acknowledged or self._cache.store.find(GRAVES, key) is not None:
            return
        with self._lock:
            is_dead = key != self.key or self._lapsed()
        if not is_dead:
            self._cache.check_is_there()
            raise CacheGoneError(self._cache.config.cache, "has lost a lease of this process (a backup restored?)")

    def _let_go(self) -> bool:
        """Unpins old, unused generations; whether it did."""
        with self._lock:
            suspected = self._unused(self._generations)
        if not suspected:
            return False
        current = self._cache.current()
        with self._lock:
            # Others, which can be read or written at any moment, stay.
            first = current + 1 if self._details["role"] == "generator" else current
            unused = [g for g in self._unused(suspected) if g < first]
            self._generations = [g for g in self._generations if g not in unused]
            self._sure.intersection_update(self._generations)
            return bool(unused)

    def _unused(self, generations: list[int]) -> list[int]:
        if self._details["role"] == "generator":
            return [] if self._busy else list(generations)
        now, newest = self._cache.clock(), max(self._generations, default=0)
        limits = {g: self._cache.config.lease if g == newest else _OVERLAP for g in self._generations}
        return [g for g in generations if now - self._used.get(g, now) > limits.get(g, 0)]


def _new_key(role: str) -> str:
    return f"{role}-{uuid.uuid4().hex[:16]}"
