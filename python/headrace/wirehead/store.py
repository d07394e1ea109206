"""What the cache needs of a place that keeps its documents and chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace.wirehead.config import Config

Document = dict[str, Any]

TABLES = SETTINGS, SWAPS, LEASES, ROUNDS = "settings", "swaps", "leases", "rounds"

_SMALLEST_BLOCK, _MOST_BLOCKS = 128, 64
_PART_BYTES, _MOST_PARTS = 2**24, 64


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
        """Keeps them all, under names of :func:`chunk_name`; on return they are as safe as the store makes anything."""

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        """Chunks in the order of their names; None for one that is not there."""

    def missing_chunks(self, generation: int, lengths: Mapping[str, int]) -> list[str]:
        """Which of some chunks, by name, are not there, or not as long as they should be where that shows without
        reading them: a server stores a document whole. Nobody may be writing them any more.

        Who is killed in it may leave what :meth:`repair` removes.
        """

    def repair(self, generation: int) -> None:
        """Undoes what a :meth:`missing_chunks` has left that did not come to its end."""

    def remove_chunk(self, generation: int, name: str) -> bool:
        """Whether it was there."""

    def remove_sample(self, generation: int, writer: str, number: int) -> int:
        """Removes all chunks of a sample, in whichever part they are. How many there were."""

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


def part_of(id: int, length: int, swap_cap: int) -> int:
    """The part of a generation that a sample's chunks belong to: 16 MiB, or a 64th of the generation if that is more.

    What a server does with a collection as a whole is then done in steps that are short however large the samples are:
    dropping it, during which nobody else writes (SQLite); going through it for each chunk that is looked for (FerretDB
    on SQLite).

    Args:
        id: that the sample is meant to get.
        length: of its chunks together, in bytes.
        swap_cap: samples per generation.
    """
    samples = min(_PART_BYTES // max(length, 1), block_size(swap_cap))
    return id // max(samples, -(-swap_cap // _MOST_PARTS), 1)


def chunk_name(part: int, writer: str, number: int, chunk: int) -> str:
    """The name of a chunk.

    Args:
        part: see :func:`part_of`.
        writer: the key of the lease of the process that writes it.
        number: of the sample, among those of that lease.
        chunk: its number in the sample.
    """
    return f"{part:02d}-{writer}-{number}-{chunk}"


def part_of_chunk(name: str) -> str:
    """The part, two or more digits, of a name of :func:`chunk_name`."""
    return name.partition("-")[0]


def seconds(time: Any) -> float:
    """A time that a store has set, in seconds since 1970."""
    return float(time.timestamp()) if hasattr(time, "timestamp") else float(time)
