"""Damage to what a cache has stored."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._stores.store import GRAVES, LEASES


def remove_chunk(cache: Cache, generation: int, name: str) -> bool:
    """Whether it was there."""
    store: Any = cache.store
    if cache.config.is_local:
        path: Path = store._chunks(generation) / name
        was_there = path.exists()
        path.unlink(missing_ok=True)
        return was_there
    return bool(store._chunks(generation, name).delete_one({"_id": name}).deleted_count)


def table(cache: Cache, name: str) -> Path:
    """The folder of a table."""
    store: Any = cache.store
    path: Path = store._table(name)
    return path


def bury(cache: Cache, keys: Iterable[str]) -> None:
    """Declares leases dead, as managers do after LEASE seconds."""
    for key in keys:
        cache.store.insert(GRAVES, key, {})
        cache.store.remove(LEASES, key)
