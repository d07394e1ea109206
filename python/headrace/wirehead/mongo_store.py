"""The store on a server that speaks MongoDB's protocol: MongoDB itself, FerretDB, and others."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import os
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from headrace.wirehead.config import PASSWORD_VARIABLE, Config
from headrace.wirehead.errors import ConfigError, StoreError, StoreUnreachableError
from headrace.wirehead.store import TABLES, Document, chunk_name, part_of_chunk, seconds

try:
    import pymongo
    from bson import Binary
    from bson.errors import InvalidDocument
    from pymongo.errors import (
        AutoReconnect,
        BulkWriteError,
        ConfigurationError,
        DuplicateKeyError,
        InvalidURI,
        OperationFailure,
        PyMongoError,
        ServerSelectionTimeoutError,
    )
except ImportError:
    raise ImportError("MONGOHOST in the configuration needs PyMongo: pip install 'headrace[wirehead]'") from None

Item = TypeVar("Item")
Result = TypeVar("Result")

_DUPLICATE_KEY = 11000
# Of an interrupted server or a primary that steps down: shutting down, interrupted, not primary, …
_TRANSIENT = frozenset((6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436))
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
_LONGEST_GAP = 0.05  # seconds between two collections that are dropped
_ATTEMPT = 5.0  # seconds that PyMongo looks for a server before we look at the clock


class MongoStore:
    """See :class:`headrace.wirehead.store.Store`.

    Collections: ``<COUNTER>.settings``, ``.swaps``, ``.leases``, ``.rounds``; ``<WRITE>.<generation>.samples.<block>``
    with the samples' descriptions and ``<WRITE>.<generation>.chunks.<part>`` with their bytes. All ``_id`` are texts,
    and whatever is looked up is looked up by ``_id`` alone. A document is one JSON text beside its ``_id`` (and
    ``time``).

    FerretDB 1 on SQLite has an index on ``_id`` that refuses duplicates, but does not look there to find one: it goes
    through the collection. So an insert costs it less than a look, except in small collections.

    Reads go to the primary and writes wait for a majority of a replica set, unless the URI says otherwise: the
    arguments in :mod:`headrace.wirehead.cache` need both.
    """

    parallel = 2

    def __init__(self, config: Config) -> None:
        assert config.mongohost is not None
        self.config = config
        self._client: pymongo.MongoClient[Document] = _connect(config)
        self._database = self._client[config.dbname]
        self._name = re.compile(re.escape(config.write_collection) + r"\.(\d{12})\.(samples|chunks)\.(\d+)")
        # Threads start when there is something for them.
        self._pool = concurrent.futures.ThreadPoolExecutor(self.parallel, "headrace-wirehead-chunks")
        try:
            self._retried(lambda: self._client.admin.command("ping"))
        except BaseException:
            self.close()
            raise

    def insert(self, table: str, key: str, document: Mapping[str, Any]) -> bool:
        collection, stored = self._collection(table), {"_id": key, **_packed(document)}
        attempts = 0

        def attempt() -> bool:
            nonlocal attempts
            attempts += 1
            try:
                collection.insert_one(stored)
                return True
            except DuplicateKeyError:
                # An attempt before this one may have succeeded without our hearing of it.
                return attempts > 1 and collection.find_one({"_id": key}) == stored

        return self._retried(attempt)

    def find(self, table: str, key: str) -> Document | None:
        found = self._retried(lambda: self._collection(table).find_one({"_id": key}))
        return None if found is None else _unpacked(found)

    def scan(self, table: str) -> dict[str, Document]:
        found = self._retried(lambda: list(self._collection(table).find()))
        return {document["_id"]: _unpacked(document) for document in found}

    def replace(self, table: str, key: str, document: Mapping[str, Any]) -> None:
        update = {"$set": _packed(document), "$currentDate": {"time": True}}
        self._retried(lambda: self._collection(table).update_one({"_id": key}, update, upsert=True))

    def remove(self, table: str, key: str) -> None:
        self._retried(lambda: self._collection(table).delete_one({"_id": key}))

    def now(self) -> float:
        # "ismaster" is understood by every server, "hello" by new ones.
        reply = self._retried(lambda: self._client.admin.command("ismaster"))
        return seconds(reply["localTime"])

    def write_chunks(self, generation: int, chunks: Mapping[str, bytes | memoryview]) -> None:
        def write(chunk: tuple[str, bytes | memoryview]) -> None:
            name, document = chunk[0], {"_id": chunk[0], "data": Binary(bytes(chunk[1]))}
            # Names are unique: if it is there, it is ours, of an attempt that was not answered.
            with contextlib.suppress(DuplicateKeyError):
                self._retried(lambda: self._chunks(generation, name).insert_one(document))

        self._map(write, list(chunks.items()))

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        def read(name: str) -> memoryview | None:
            document = self._retried(lambda: self._chunks(generation, name).find_one({"_id": name}))
            data = None if document is None else document.get("data")
            return memoryview(data) if isinstance(data, bytes) else None

        for start in range(0, len(names), self.parallel):
            yield from self._map(read, names[start : start + self.parallel])

    def _map(self, action: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """What the action returns for each, several at once; all have ended when it returns or raises."""
        if len(items) == 1:
            return [action(items[0])]
        running = [self._pool.submit(action, item) for item in items]
        concurrent.futures.wait(running)
        return [done.result() for done in running]

    def missing_chunks(self, generation: int, lengths: Mapping[str, int]) -> list[str]:
        # Asks the unique index, not the documents: where a chunk is, an empty one is refused. Finding it would read it,
        # and some servers (FerretDB) read megabytes for that even when no field is asked for.
        parts = itertools.groupby(sorted(lengths, key=part_of_chunk), part_of_chunk)
        return [name for _, part in parts for name in self._missing_chunks(generation, list(part))]

    def _missing_chunks(self, generation: int, names: Sequence[str]) -> list[str]:
        """Of one part."""
        collection = self._chunks(generation, names[0])
        attempts = 0

        def attempt() -> list[str]:
            nonlocal attempts
            attempts += 1
            if attempts > 1:  # what the index refuses now may be from an attempt that was not answered
                return [name for name, chunk in zip(names, self.read_chunks(generation, names)) if chunk is None]
            try:
                collection.insert_many([{"_id": name} for name in names], ordered=False)
            except BulkWriteError as error:
                failures = error.details.get("writeErrors", ())
                if not failures or any(failure["code"] != _DUPLICATE_KEY for failure in failures):
                    raise
                there = {int(failure["index"]) for failure in failures}
                return [name for i, name in enumerate(names) if i not in there]
            return list(names)

        missing = self._retried(attempt)
        for name in missing:
            self.remove_chunk(generation, name)
        return missing

    def repair(self, generation: int) -> None:
        for part in self._parts(generation):
            self._remove_chunks(generation, chunk_name(part, "", 0, 0), {"data": {"$exists": False}})

    def remove_chunk(self, generation: int, name: str) -> bool:
        return bool(self._retried(lambda: self._chunks(generation, name).delete_one({"_id": name})).deleted_count)

    def remove_sample(self, generation: int, writer: str, number: int) -> int:
        # Several were on their way at once: any of them may be missing.
        count = 0
        for part in self._parts(generation):
            first = chunk_name(part, writer, number, 0)
            names = {"$gte": first, "$lt": first[:-1] + ":"}  # ":" follows "9"
            count += self._remove_chunks(generation, first, {"_id": names})
        return count

    def _remove_chunks(self, generation: int, of_part: str, query: Mapping[str, Any]) -> int:
        """Those that match in the part of a chunk of that name. How many there were."""
        collection = self._chunks(generation, of_part)
        found = self._retried(lambda: list(collection.find(query, {"_id": 1})))
        return sum(self.remove_chunk(generation, chunk["_id"]) for chunk in found)

    def generations(self) -> list[int]:
        return sorted({int(found[1]) for found in self._collections()})

    def _parts(self, generation: int) -> list[int]:
        """The parts that chunks of a generation are in."""
        return [int(f[3]) for f in self._collections() if int(f[1]) == generation and f[2] == "chunks"]

    def _collections(self) -> list[re.Match[str]]:
        """Those of generations: number, "samples" or "chunks", block or part."""
        matches = map(self._name.fullmatch, self._retried(self._database.list_collection_names))
        return [match for match in matches if match is not None]

    def drop(self, generation: int) -> None:
        # As long as one of them is there, somebody will find the generation and drop the rest.
        prefix = f"{self.config.write_collection}.{generation:012d}."
        for name in self._retried(self._database.list_collection_names):
            if name.startswith(prefix):
                started = time.monotonic()
                self._retried(self._database[name].drop)
                # SQLite lets nobody write meanwhile, and who waits looks again at growing intervals.
                time.sleep(min(3 * (time.monotonic() - started), _LONGEST_GAP))

    def clean(self) -> None:
        for generation in self.generations():
            self.drop(generation)
        for table in TABLES:
            self._retried(self._collection(table).drop)

    def close(self) -> None:
        self._pool.shutdown(wait=False)
        self._client.close()

    def _collection(self, table: str) -> Any:
        prefix = self.config.write_collection if table[0].isdigit() else self.config.counter_collection
        return self._database[f"{prefix}.{table}"]

    def _chunks(self, generation: int, name: str) -> Any:
        """The collection of a chunk."""
        return self._database[f"{self.config.write_collection}.{generation:012d}.chunks.{part_of_chunk(name)}"]

    def _retried(self, operation: Callable[[], Result]) -> Result:
        """What the operation returns, once the server answers; DuplicateKeyError passes through."""
        deadline = time.monotonic() + self.config.timeout
        pause = _SHORTEST_PAUSE
        while True:
            try:
                with pymongo.timeout(max(0.05, deadline - time.monotonic())):
                    return operation()
            except DuplicateKeyError:
                raise
            except (AutoReconnect, ServerSelectionTimeoutError) as error:
                problem: PyMongoError = error
            except (OperationFailure, BulkWriteError) as error:
                if error.code == _DUPLICATE_KEY:
                    raise DuplicateKeyError(str(error)) from None
                if error.code not in _TRANSIENT and not error.timeout and not _is_interrupted(error):
                    raise self._refused(error) from None
                problem = error
            except InvalidDocument as error:
                raise StoreError(f"{self.config.place} cannot hold the document: {error}") from None
            except PyMongoError as error:
                if not error.timeout:
                    raise self._refused(error) from None
                problem = error
            if time.monotonic() + pause >= deadline:
                raise StoreUnreachableError(
                    f"the database at {self.config.place} did not answer within {self.config.timeout:g} seconds "
                    f"(TIMEOUT): {self._without_password(problem)}. Is it running, and can this machine reach it?"
                ) from None
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _refused(self, error: Exception) -> StoreError:
        text = self._without_password(error)
        code = getattr(error, "code", None)
        if code == 18 or "Authentication failed" in text:
            return StoreError(
                f"the database at {self.config.place} refused user and password: {text}. "
                f"The password is read from the environment variable {PASSWORD_VARIABLE}, or from MONGOHOST"
            )
        if code == 14031 or re.search(r"disk is full|no space left|database or disk", text, re.IGNORECASE):
            return StoreError(
                f"the disk of the database at {self.config.place} is full: {text}. "
                "Make room, or lower SWAP_CAP: up to three generations are stored"
            )
        return StoreError(f"the database at {self.config.place} refused: {text}")

    def _without_password(self, error: Exception) -> str:
        text = re.sub(r", Timeout: .*", "", str(error))
        for secret in _passwords(self.config):
            text = text.replace(secret, "***")
        return text


def _packed(document: Mapping[str, Any]) -> Document:
    """One text for all fields: a server that takes its time for each field (FerretDB) has one."""
    return {"document": json.dumps(document)}


def _unpacked(stored: Mapping[str, Any]) -> Document:
    """Undoes :func:`_packed`. Whatever is damaged is missing."""
    try:
        document: Any = json.loads(stored["document"])
    except (KeyError, TypeError, ValueError):
        document = None
    fields: Document = document if isinstance(document, dict) else {}
    return {**fields, "time": stored["time"]} if "time" in stored else fields


def _is_interrupted(error: Exception) -> bool:
    """FerretDB, when stopped in the middle of an operation, reports an internal error with these words."""
    return bool(re.search(r"context canceled|interrupted|database is locked|database is closed", str(error)))


def _passwords(config: Config) -> list[str]:
    host = config.mongohost or ""
    found = re.match(r"mongodb(?:\+srv)?://[^:/@]*:([^@/]*)@", host)
    given = found[1] if found else ""
    return [secret for secret in (given, unquote_plus(given), os.environ.get(PASSWORD_VARIABLE, "")) if secret]


def _connect(config: Config) -> pymongo.MongoClient[Document]:
    host = config.mongohost or ""
    options: dict[str, Any] = {"tz_aware": True, "appname": "headrace.wirehead"}
    try:
        uri = re.match(r"mongodb(?:\+srv)?://(?:([^:/@]+)(:[^@/]*)?@)?", host)
        user, password = (uri[1], uri[2]) if uri else (None, None)
        if user and not password:
            if not os.environ.get(PASSWORD_VARIABLE):
                raise ConfigError(
                    f"MONGOHOST names the user {unquote_plus(user)} and no password: set the environment variable "
                    f"{PASSWORD_VARIABLE}"
                )
            options.update(username=unquote_plus(user), password=os.environ[PASSWORD_VARIABLE])
        given = {name.lower() for name, _ in parse_qsl(urlsplit(host).query)} if uri else ()
        defaults = {
            "w": "majority",
            "serverselectiontimeoutms": int(min(config.timeout, _ATTEMPT) * 1000),
            "connecttimeoutms": int(min(config.timeout, 20) * 1000),
        }
        options.update({name: value for name, value in defaults.items() if name not in given})
        return pymongo.MongoClient(host, config.port, **options)
    except (InvalidURI, ConfigurationError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        text = str(error)
        for secret in _passwords(config):
            text = text.replace(secret, "***")
        raise ConfigError(f"MONGOHOST: {text}") from None
