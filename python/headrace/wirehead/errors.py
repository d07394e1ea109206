"""The exceptions of a cache."""

from __future__ import annotations


class ConfigError(ValueError):
    """An invalid configuration. The message names each wrong key and its valid values."""


class StoreError(RuntimeError):
    """The store refused an operation: a full disk, missing rights, other settings than those it was made with."""


class StoreUnreachableError(StoreError, ConnectionError):
    """The database did not answer within TIMEOUT seconds. The message names host and port, never a password."""


class CacheGoneError(StoreError):
    """The cache that this process used no longer exists, or is an older state of it: it was cleaned, its database was
    dropped, or a backup was restored. Samples that the process stored are lost; after a restart it uses the new cache.
    """

    def __init__(self, cache: str, what: str = "was removed (by `clean`, or its database was dropped)") -> None:
        super().__init__(f"the cache {cache} {what} while this process used it: start this process again")


class CorruptSampleError(StoreError):
    """A stored sample differs from the one that was written. The message names the generation, the sample and the kind
    or chunk.

    Attributes:
        generation: the sample's generation.
        id: its number there.
        is_missing: whether it, or a chunk of it, is not there at all.
    """

    def __init__(self, generation: int, id: int, reason: str, is_missing: bool = False) -> None:
        super().__init__(f"sample {id} of generation {generation} is corrupt: {reason}")
        self.generation = generation
        self.id = id
        self.reason = reason
        self.is_missing = is_missing

    def __reduce__(self) -> tuple[type[CorruptSampleError], tuple[int, int, str, bool]]:
        return CorruptSampleError, (self.generation, self.id, self.reason, self.is_missing)
