"""Leases: which processes live, and which generations they use."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

from headrace.wirehead.cache import Cache, this_process
from headrace.wirehead.store import LEASES

log = logging.getLogger("headrace.wirehead")

_OVERLAP = 1.0  # seconds that a reader keeps a generation after it went on to the next


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
