"""The interface of a store for the documents and chunks of the cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace.wirehead.config import Config

Document = dict[str, Any]

TABLES = SETTINGS, SWAPS, VERIFIED, DROPS, LEASES, GRAVES, ROUNDS = (
    "settings",
    "swaps",
    "verified",
    "drops",
    "leases",
    "graves",
    "rounds",
)

_SMALLEST_BLOCK, _MOST_BLOCKS = 128, 64
_PART_BYTES, _MOST_PARTS = 2**20, 64
# Seconds for all that a store does once it closes. A program whose server is gone is to end within two seconds: PyMongo
# takes up to half a second of them, and a loader's workers as much.
FAREWELL = 0.75


class Store(Protocol):
    """Small documents by table and key, and chunks of bytes by generation and name.

    Its one atomic operation is :meth:`insert`: of all inserts under the same key, in any process and on any machine,
    exactly one succeeds. The guarantees of :mod:`headrace.wirehead._protocol.cache` depend on that and on the order of
    operations: every operation sees the effects of those that returned before it began. Nothing else is required of a
    server, because not every one that speaks MongoDB's protocol updates atomically (FerretDB 1 loses concurrent
    ``$inc``).

    All operations may be repeated after a failure whose outcome is not known. While the store does not answer, they are
    retried, with growing pauses, for ``Config.timeout`` seconds. Thread-safe. Not usable in a child after a fork.

    The tables are "settings", "swaps", "verified", "drops", "leases", "graves", "rounds", and for each generation those
    of ``samples_table``. All but "settings", and all chunks, are of one incarnation of the cache, see :meth:`use`.

    Raises:
        StoreUnreachableError: it did not answer in time.
        StoreError: it refused, for example because the disk is full.

    Attributes:
        parallel: number of chunks that it reads or writes concurrently. A sample is cut into that many, so that no part
            of the way stands idle: the one side packs while the other unpacks.
        ends: when, by ``time.monotonic()``, it stops trying: infinity before :meth:`begin_close`.
    """

    config: Config
    parallel: int
    ends: float

    def use(self, incarnation: str | None) -> None:
        """Which incarnation of the cache the tables and chunks are of from now on. Before, and with None, all are empty
        and nothing can be stored but settings.
        """

    def incarnations(self) -> list[str]:
        """All of which anything is stored."""

    def drop_incarnation(self, incarnation: str) -> None:
        """Removes all of an incarnation."""

    def insert(self, table: str, key: str, document: Mapping[str, Any]) -> bool:
        """Puts a document there if there is none under that key. Whether it did (or had, unanswered, before)."""

    def find(self, table: str, key: str) -> Document | None: ...

    def scan(self, table: str) -> dict[str, Document]:
        """All documents. None is missed that was there before and is there after, even if it is replaced meanwhile."""

    def replace(self, table: str, key: str, document: Mapping[str, Any]) -> None:
        """Puts a document there in place of another; for documents that only one process writes, one after the other.

        Its field "time" becomes the store's :meth:`now`. A field "beat" is a number that grows from one to the next:
        a late one, whose writer got no answer and continued, replaces none that has a higher one.
        """

    def remove(self, table: str, key: str) -> None: ...

    def now(self) -> float:
        """Seconds since 1970 by the store's own clock. For people, never to decide."""

    def write_chunks(self, generation: int, chunks: Mapping[str, bytes | memoryview]) -> None:
        """Keeps them all, under names of :func:`chunk_name`; on return they are as safe as the store makes anything."""

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        """Chunks in the order of their names; None for a missing one."""

    def missing_chunks(self, generation: int, lengths: Mapping[str, int]) -> list[str]:
        """Which of some chunks, by name, are not there, or not as long as they should be where that shows without
        reading them: a server stores a document whole. Changes nothing.
        """

    def generations(self) -> list[int]:
        """Those of which anything is stored, in ascending order."""

    def drop(self, generation: int) -> None:
        """Removes all of a generation."""

    def clean(self) -> list[str]:
        """Removes all that the cache has stored, each incarnation, the settings first. Returns what is left there
        that belongs to another process.
        """

    def begin_close(self) -> None:
        """From now on, all operations that begin try for ``FAREWELL`` seconds at most, together: leases that are not
        removed expire. One that another thread has begun before may go on for ``Config.timeout``; nobody who closes
        waits for it beyond ``ends``.
        """

    def close(self) -> None: ...


def key(number: int) -> str:
    """The key of a document that has a number: their order is that of the numbers."""
    return f"{number:012d}"


def block_size(swap_cap: int) -> int:
    """How many consecutive ids share a table of samples.

    A table is small, because not every server finds a document by its key without reading the others (FerretDB on
    SQLite does not), and because new entries are found by reading it all. A generation has at most 64.
    """
    return max(_SMALLEST_BLOCK, -(-swap_cap // _MOST_BLOCKS))


def samples_table(generation: int, block: int) -> str:
    """The table of a block of a generation's samples, by their ids."""
    return f"{key(generation)}.samples.{block:02d}"


def version_key(id: int, version: int) -> str:
    """The key of a description: of a sample's first version, or of the one that takes the place of those annulled."""
    return f"{key(id)}.{version}" if version else key(id)


def round_key(group: str, number: int | None) -> str:
    """The key of the generation that a group of readers has agreed on for a round; None: of the last round of which
    that is not known any more.
    """
    return f"{group}.{'gone' if number is None else number}"


def part_of(id: int, length: int, swap_cap: int) -> int:
    """The part of a generation that a sample's chunks belong to: 1 MiB, or a 64th of the generation if that is more.

    Operations of a server on a whole collection are then short steps, however large the samples are:
    dropping it, during which no other process writes (SQLite); scanning it for each chunk that is looked up (FerretDB
    on SQLite).

    Args:
        id: that the sample is meant to get.
        length: of its chunks together, in bytes.
        swap_cap: samples per generation.
    """
    samples = min(_PART_BYTES // max(length, 1), block_size(swap_cap))
    return id // max(samples, -(-swap_cap // _MOST_PARTS))


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
