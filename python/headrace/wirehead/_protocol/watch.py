"""Watching leases: which of them have no living holder any more."""

from __future__ import annotations

import logging

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._stores.store import GRAVES, LEASES, Document

log = logging.getLogger("headrace.wirehead")

MANAGER = "manager"  # the key of a lease that says whose turn it is, and pins nothing


class Watch:
    """One process's judgement of the leases, by its own clock. Not thread-safe. See 5 in
    :mod:`headrace.wirehead._protocol.cache`.

    A lease that this process has seen unchanged for its holder's LEASE seconds gets a grave: a document that its holder
    looks for after each renewal. If the lease is unchanged even then, it is permanently dead.

    Args:
        cache: the cache.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._seen: dict[str, tuple[Document, float]] = {}  # and when it was first seen like that
        self._graves: dict[str, float] = {}  # and when this process first saw them
        self.dead: set[str] = set()

    def look(self) -> dict[str, Document]:
        """The leases that count now, by their keys."""
        # A document without these is none of ours, and stays.
        scanned = self._cache.store.scan(LEASES)
        found = {key: lease for key, lease in scanned.items() if lease.keys() & {"beat", "generations"}}
        now = self._cache.clock()
        suspected = []
        for key, lease in found.items():
            since = self.since(key, lease, now)
            if key == MANAGER or key in self.dead:
                continue
            if self._cache.has_ended(lease):
                self.dead.add(key)
            elif now - since > self._cache.lasts(lease):
                suspected.append(key)
        if suspected:
            self._bury(suspected, found)
        self._seen = {key: seen for key, seen in self._seen.items() if key in found}
        self.dead.intersection_update(found)
        return {key: lease for key, lease in found.items() if key not in self.dead}

    def since(self, key: str, lease: Document, now: float) -> float:
        """Since when this process has seen a lease as it is.

        Args:
            now: a time after it was read.
        """
        known = self._seen.get(key)
        if known is None or known[0] != lease:
            known = self._seen[key] = lease, now
        return known[1]

    def _bury(self, suspected: list[str], found: dict[str, Document]) -> None:
        store = self._cache.store
        for key in suspected:
            store.insert(GRAVES, key, {"lease": self._cache.lasts(found[key])})
        again = store.scan(LEASES)
        self.dead.update(key for key in suspected if again.get(key) == found[key])

    def clear(self) -> None:
        """Removes the leases of the dead, and graves that are so old that their holders know without them."""
        store = self._cache.store
        for key in sorted(self.dead):
            store.remove(LEASES, key)
        now = self._cache.clock()
        graves = {key: grave for key, grave in store.scan(GRAVES).items() if "lease" in grave}
        self._graves = {key: self._graves.get(key, now) for key in graves}
        for key, since in self._graves.items():
            if now - since > 2 * self._cache.lasts(graves[key]) and key not in self._seen:
                store.remove(GRAVES, key)
