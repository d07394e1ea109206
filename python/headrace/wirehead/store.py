"""What the cache needs of a place that keeps its documents and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace.wirehead.config import Config

Document = dict[str, Any]

SETTINGS, SWAPS, LEASES, ROUNDS = "settings", "swaps", "leases", "rounds"

_SMALLEST_BLOCK, _MOST_BLOCKS = 128, 64


class Store(Protocol):
    """Small documents by table and key, and chunks of bytes by generation and name.

    Its one atomic operation is :meth:`insert`: of all who insert under the same key, in any process and on any machine,
    exactly one succeeds. Everything that :mod:`headrace.wirehead.cache` promises rests on that and nothing else,
    because not every server that speaks MongoDB's protocol updates atomically (FerretDB 1 loses concurrent ``$inc``).

    All operations may be repeated after a failure whose outcome is not known. While the store does not answer they try
    again, with growing pauses, for ``Config.timeout`` seconds. Thread-safe. Not usable in a child after a fork.

    The tables are "settings", "swaps", "leases", "rounds", and for each generation those of ``samples_table``.

    Raises:
        StoreUnreachableError: it did not answer in time.
        StoreError: it refused, for example because the disk is full.

    Attributes:
        parallel: how many chunks it reads or writes at once. A sample is cut into that many, so that no part of the way
            stands idle: the one side packs while the other unpacks.
    """

    config: Config
    parallel: int

    def insert(self, table: str, key: str, document: Mapping[str, Any]) -> bool:
        """Puts a document there if there is none under that key. Whether it did (or had, unanswered, before)."""

    def find(self, table: str, key: str) -> Document | None: ...

    def scan(self, table: str) -> dict[str, Document]: ...

    def replace(self, table: str, key: str, document: Mapping[str, Any]) -> None:
        """Puts a document there in place of another; for documents that only one process writes.

        Its field "time" becomes the store's :meth:`now`.
        """

    def remove(self, table: str, key: str) -> None: ...

    def now(self) -> float:
        """Seconds by the store's own clock, which is the same for all machines."""

    def write_chunks(self, generation: int, chunks: Mapping[str, bytes | memoryview]) -> None:
        """Keeps them all; on return they are as safe as the store makes anything."""

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        """Chunks in the order of their names; None for one that is not there."""

    def missing_chunks(self, generation: int, names: Sequence[str]) -> list[str]:
        """Which of some chunks that nobody is writing any more are not there. Does not read them."""

    def remove_chunk(self, generation: int, name: str) -> bool:
        """Whether it was there."""

    def generations(self) -> list[int]:
        """Those of which anything is stored, in ascending order."""

    def drop(self, generation: int) -> None:
        """Removes all of a generation."""

    def clean(self) -> None:
        """Removes everything."""

    def close(self) -> None: ...


def key(number: int) -> str:
    """The key of a document that has a number: their order is that of the numbers."""
    return f"{number:012d}"


def block_size(swap_cap: int) -> int:
    """How many consecutive ids share a table of samples.

    A table is small, because not every server finds a document by its key without reading the others (FerretDB on
    SQLite does not), and because what is new in it is found by reading it all. A generation has at most 64.
    """
    return max(_SMALLEST_BLOCK, -(-swap_cap // _MOST_BLOCKS))


def samples_table(generation: int, block: int) -> str:
    """The table of a block of a generation's samples, by their ids."""
    return f"{key(generation)}.samples.{block:02d}"


def seconds(time: Any) -> float:
    """A time that a store has set, in seconds since 1970."""
    return float(time.timestamp()) if hasattr(time, "timestamp") else float(time)
