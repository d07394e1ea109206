"""The store on a server that speaks MongoDB's protocol: MongoDB itself, FerretDB, and others."""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import json
import logging
import math
import os
import queue
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from headrace._wording import counted
from headrace.wirehead._stores.store import FAREWELL, SETTINGS, TABLES, Document, key, part_of_chunk, seconds
from headrace.wirehead.config import PASSWORD_VARIABLE, Config
from headrace.wirehead.errors import ConfigError, StoreError, StoreUnreachableError

try:
    import pymongo
    from bson.errors import InvalidDocument
    from pymongo.errors import (
        AutoReconnect,
        ConfigurationError,
        DuplicateKeyError,
        InvalidOperation,
        OperationFailure,
        PyMongoError,
    )
    from pymongo.monitoring import (
        ServerHeartbeatFailedEvent,
        ServerHeartbeatListener,
        ServerHeartbeatStartedEvent,
        ServerHeartbeatSucceededEvent,
    )
    from pymongo.uri_parser import split_options
except ImportError:
    raise ImportError("MONGOHOST in the configuration needs PyMongo: pip install 'pymongo>=4.8' zstandard") from None

log = logging.getLogger("headrace.wirehead")

Item = TypeVar("Item")
Result = TypeVar("Result")

# Of an interrupted server or a primary that steps down: shutting down, interrupted, not primary, a lost cursor, …
_TRANSIENT = frozenset(
    (6, 7, 43, 64, 89, 91, 112, 133, 134, 175, 189, 237, 262, 9001, 10107, 11600, 11601, 11602, 13435, 13436)
)
_TRANSIENT_LABELS = "RetryableWriteError", "TransientTransactionError"
# So that the first reply holds all of a table, of a block of a million samples too: the rest needs a cursor, which a
# fail-over loses. FerretDB makes room for as many documents before it has read a second one: for a million, that is
# 8 MiB, which cost its garbage collector 6 ms.
_BATCH = 1 << 14
_FEW = 8  # chunks that are looked for one by one
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
_LONGEST_GAP = 0.05  # seconds between two collections that are dropped
_FIRST_WORD = 3.0  # seconds that an operation waits for a server before that is said


class MongoStore:
    """See :class:`headrace.wirehead._stores.store.Store`.

    Collections: ``<COUNTER>.settings``; ``<COUNTER>.<incarnation>.swaps``, ``.leases`` and the other tables;
    ``<WRITE>.<incarnation>.<generation>.samples.<block>`` with the samples' descriptions and ``…chunks.<part>`` with
    their bytes. All ``_id`` are strings, and all look-ups use ``_id`` alone. A document is one JSON
    string and its ``_id`` (and ``time`` and ``beat``).

    FerretDB 1 on SQLite has an index on ``_id`` that refuses duplicates, but does not use it for look-ups: it scans
    the collection. So an insert costs it less than a look-up, except in small collections.

    Reads go to the primary and see what a majority of a replica set has, for which writes wait, unless the URI says
    otherwise; and each operation sees all that those of this store that ended before it have seen or done (a *causally
    consistent* session). The arguments in :mod:`headrace.wirehead._protocol.cache` need all of this, and no more:

    The writes of a majority form one sequence, which outlives every fail-over; each read sees the state after one of
    them. It may be an old one: a primary that has been replaced does not know it yet, and one that is new learns late
    how much of its data a majority also has. But a writer sees at least the state after its write, and
    a reader, none before its last read. So of two processes that each write and *then* read what the other one writes
    (a pin and a swap; a renewal and a grave), the one whose write is later in the sequence sees the other's; and a
    process that sees a swap and *then* reads the leases sees all pins that are before that swap, while the others'
    holders see the swap. A process that counts for how long a lease has not changed may have read an old one; but not
    after the grave was written. An insert counts when it is acknowledged, and of two under one key only one is part of
    the sequence. A duplicate key acknowledges nothing: what is in the way is read before it counts.

    Which collections there are is the primary's own view. Only how soon and how often something is dropped depends on
    it.
    """

    parallel = 2

    def __init__(self, config: Config) -> None:
        assert config.mongohost is not None
        self.config = config
        self._waiting: dict[object, float] = {}  # operations in progress, and since when
        self._says_outage = True  # not again before one has succeeded
        self._client: pymongo.MongoClient[Document] = _connect(config, _Heartbeats(self))
        self._database = self._client[config.dbname]
        self._incarnation: str | None = None
        self._has_sessions = False
        self._seen: Any = None  # the latest time of the server's that an operation has seen the state of
        self._seen_lock = threading.Lock()
        self.ends = math.inf
        self._chunk_threads = _ChunkThreads(self.parallel - 1)
        _opened.add(self)
        # Without an incarnation: the settings, and collections of format 2.
        counter, write, of = re.escape(config.counter_collection), re.escape(config.write_collection), "([0-9a-f]{16})"
        self._name = re.compile(
            rf"(?:{counter}\.(?:{of}\.)?(?:{'|'.join(TABLES)})|{write}\.(?:{of}\.)?(\d{{12}})\.(?:samples|chunks)\.\d+)"
        )
        try:
            found = self._retried(lambda session: self._client.admin.command("ismaster"))
            self._has_sessions = found.get("logicalSessionTimeoutMinutes") is not None
        except BaseException:
            self.close()
            raise

    def use(self, incarnation: str | None) -> None:
        self._incarnation = incarnation

    def incarnations(self) -> list[str]:
        names = self._names()
        found = {name[1] or name[2] for name in self._ours(names) if name[1] or name[2]}
        return sorted(found - self._others(names))

    def drop_incarnation(self, incarnation: str) -> None:
        self._drop(name[0] for name in self._collections() if incarnation in (name[1], name[2]))

    def insert(self, table: str, key: str, document: Mapping[str, Any]) -> bool:
        collection, stored = self._collection(table), {"_id": key, **_packed(document)}
        attempts = 0

        def attempt(session: Any) -> bool:
            nonlocal attempts
            attempts += 1
            try:
                collection.insert_one(stored, session=session)
                return True
            except DuplicateKeyError:
                # An attempt before this one may have succeeded without our hearing of it.
                return attempts > 1 and collection.find_one({"_id": key}, session=session) == stored

        return self._retried(attempt)

    def find(self, table: str, key: str) -> Document | None:
        found = self._retried(lambda s: self._collection(table).find_one({"_id": key}, session=s))
        return None if found is None else _unpacked(found)

    def scan(self, table: str) -> dict[str, Document]:
        found = self._retried(lambda s: list(self._collection(table).find(batch_size=_BATCH, session=s)))
        return {document["_id"]: _unpacked(document) for document in found}

    def replace(self, table: str, key: str, document: Mapping[str, Any]) -> None:
        which: Document = {"_id": key}
        update: Document = {"$set": _packed(document), "$currentDate": {"time": True}}
        if "beat" in document:
            which["beat"] = {"$not": {"$gte": document["beat"]}}  # or there is none
        collection = self._collection(table)

        def is_there(session: Any) -> bool:  # or a later one
            found = collection.find_one({"_id": key}, session=session) or {}
            return bool(found.get("beat", -1) >= document.get("beat", math.inf))

        self._store(lambda s: collection.update_one(which, update, upsert=True, session=s), is_there)

    def remove(self, table: str, key: str) -> None:
        self._retried(lambda s: self._collection(table).delete_one({"_id": key}, session=s))

    def now(self) -> float:
        # "ismaster" is understood by every server, "hello" by new ones. A command's times have no time zone otherwise.
        options = self._client.codec_options
        reply = self._retried(lambda s: self._client.admin.command("ismaster", codec_options=options))
        return seconds(reply["localTime"])

    def write_chunks(self, generation: int, chunks: Mapping[str, bytes | memoryview]) -> None:
        def write(chunk: tuple[str, bytes | memoryview]) -> None:
            name, document = chunk[0], {"_id": chunk[0], "data": bytes(chunk[1])}
            collection = self._chunks(generation, name)
            # Names are unique: if it is there, it is ours, of an attempt that was not answered.
            self._store(
                lambda s: collection.insert_one(document, session=s),
                lambda s: collection.find_one({"_id": name}, {"_id": 1}, session=s) is not None,
            )

        self._map(write, list(chunks.items()))

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        def read(name: str) -> memoryview | None:
            document = self._retried(lambda s: self._chunks(generation, name).find_one({"_id": name}, session=s))
            data = None if document is None else document.get("data")
            return memoryview(data) if isinstance(data, bytes) else None

        for start in range(0, len(names), self.parallel):
            yield from self._map(read, names[start : start + self.parallel])

    def _map(self, action: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results of the action for each, several at the same time; all have finished when it returns or raises an
        ``Exception``.
        """
        results: dict[int, Result] = {}
        errors: list[Exception] = []
        left = collections.deque(enumerate(items))

        def work() -> None:
            with contextlib.suppress(IndexError):  # there is nothing left
                while not errors:
                    k, item = left.popleft()
                    try:
                        results[k] = action(item)
                    except Exception as error:
                        errors.append(error)

        helps = [self._chunk_threads.submit(work) for _ in range(min(self.parallel, len(items)) - 1)]
        work()
        for help in helps:
            if not help.cancel():  # it has begun
                help.result()
        if errors:
            raise errors[0]
        return [results[k] for k in range(len(items))]

    def missing_chunks(self, generation: int, lengths: Mapping[str, int]) -> list[str]:
        # Of the documents only the names are asked for, which MongoDB's index on them answers. FerretDB makes documents
        # of all that is in a part to compare their names with several, but lets SQLite go through it for a single one.
        parts = itertools.groupby(sorted(lengths, key=part_of_chunk), part_of_chunk)
        return [name for _, part in parts for name in self._missing_chunks(generation, list(part))]

    def _missing_chunks(self, generation: int, names: Sequence[str]) -> list[str]:
        """Of one part."""
        collection, wanted = self._chunks(generation, names[0]), {"_id": {"$in": list(names)}}
        if len(names) > _FEW:
            found = self._retried(lambda s: list(collection.find(wanted, {"_id": 1}, batch_size=_BATCH, session=s)))
        else:
            one_by_one = (
                lambda s, name=name: collection.find_one({"_id": name}, {"_id": 1}, session=s) for name in names
            )
            found = list(filter(None, map(self._retried, one_by_one)))
        there = {chunk["_id"] for chunk in found}
        return [name for name in names if name not in there]

    def generations(self) -> list[int]:
        return sorted({int(name[3]) for name in self._collections() if name[3] and name[2] == self._incarnation})

    def _names(self) -> list[str]:
        """Of all collections of the database."""
        return self._retried(lambda s: self._database.list_collection_names(session=s))

    def _ours(self, names: Sequence[str]) -> list[re.Match[str]]:
        """Of all incarnations: incarnation (1 or 2), and generation (3) if it has samples or chunks."""
        matches = map(self._name.fullmatch, names)
        return [match for match in matches if match is not None]

    def _collections(self) -> list[re.Match[str]]:
        return self._ours(self._names())

    def _others(self, names: Sequence[str]) -> set[str]:
        """The incarnations of other caches of this database, which may have the same WRITE_COLLECTION.

        Args:
            names: of collections. The settings of their caches existed before.
        """
        found = set()
        for name in names:
            if name.endswith(f".{SETTINGS}") and name != self._collection(SETTINGS).name:
                collection = self._database[name]
                stored = self._retried(lambda s, of=collection: of.find_one({"_id": SETTINGS}, session=s))  # type: ignore[misc]
                found.add(str(_unpacked(stored or {}).get("incarnation")))
        return found

    def drop(self, generation: int) -> None:
        # As long as one of them exists, some process will find the generation and drop the rest.
        of = self._incarnation
        self._drop(name[0] for name in self._collections() if name[3] == key(generation) and name[2] == of)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            started = time.monotonic()
            self._retried(lambda s, name=name: self._database[name].drop(session=s))  # type: ignore[misc]
            # SQLite blocks all writers meanwhile, and waiting ones retry at growing intervals.
            time.sleep(min(3 * (time.monotonic() - started), _LONGEST_GAP))

    def clean(self) -> list[str]:
        settings = self._collection(SETTINGS)
        self._retried(lambda s: settings.drop(session=s))
        names = self._names()
        # Another process may have created the next one meanwhile: nothing of that existed before it had settings.
        found = self.find(SETTINGS, "settings") or {}
        kept = {found.get("incarnation"), *self._others(names)} - {None}
        self._drop(name[0] for name in self._ours(names) if name[0] != settings.name and not kept & {name[1], name[2]})
        return []  # other collections of the database are not looked at

    def begin_close(self) -> None:
        self.ends = min(self.ends, time.monotonic() + FAREWELL)

    def close(self) -> None:
        self.begin_close()
        self._chunk_threads.close()
        with pymongo.timeout(_left(self.ends)):  # it tells the server that its sessions end
            self._client.close()
        _opened.discard(self)

    def _collection(self, table: str) -> Any:
        prefix = self.config.write_collection if table[0].isdigit() else self.config.counter_collection
        within = "" if table == SETTINGS else f"{self._incarnation or 'none'}."
        return self._database[f"{prefix}.{within}{table}"]

    def _chunks(self, generation: int, name: str) -> Any:
        """The collection of a chunk."""
        return self._collection(f"{key(generation)}.chunks.{part_of_chunk(name)}")

    def _causally(self, operation: Callable[[Any], Result]) -> Result:
        """One attempt, in a session that sees the data that other operations have seen."""
        if not self._has_sessions:
            return operation(None)
        with self._client.start_session(causal_consistency=True) as session:
            if self._seen is not None:
                session.advance_operation_time(self._seen)
            try:
                return operation(session)
            finally:
                seen = session.operation_time
                with self._seen_lock:
                    if seen is not None and (self._seen is None or seen > self._seen):
                        self._seen = seen

    def _store(self, write: Callable[[Any], Any], is_there: Callable[[Any], bool]) -> None:
        """Writes until a majority has it. Where the server says that it is there already, and its primary has failed
        since, that may be the only one that has it; PyMongo does not say so.
        """

        def attempt(session: Any) -> None:
            try:
                write(session)
            except DuplicateKeyError:
                if not is_there(session):
                    raise AutoReconnect("what is there already has not reached a majority") from None

        self._retried(attempt)

    def _retried(self, operation: Callable[[Any], Result]) -> Result:
        """The result of the operation, called with a session or None, once the server answers."""
        this, start = object(), time.monotonic()
        self._waiting[this] = start
        try:
            result = self._until(start, operation)
        finally:
            del self._waiting[this]
        self._says_outage = True
        return result

    def _until(self, start: float, operation: Callable[[Any], Result]) -> Result:
        pause = _SHORTEST_PAUSE
        while True:
            deadline = min(start + self.config.timeout, self.ends)
            try:
                with pymongo.timeout(_left(deadline)):
                    return self._causally(operation)
            except AutoReconnect as error:
                problem: PyMongoError = error
            except OperationFailure as error:
                if not _is_transient(error):
                    raise self._refused(error) from None
                problem = error
            except InvalidDocument as error:
                raise StoreError(f"{self.config.location} cannot hold the document: {error}") from None
            except PyMongoError as error:
                # While it closes, another thread's operation finds the client closed.
                if not error.timeout and not (isinstance(error, InvalidOperation) and math.isfinite(self.ends)):
                    raise self._refused(error) from None
                problem = error
            deadline = min(deadline, self.ends)  # it may have begun to close meanwhile
            if time.monotonic() + pause >= deadline:
                tried = f"{counted(self.config.timeout, 'second')} (TIMEOUT)"
                if deadline == self.ends:
                    tried = f"{FAREWELL:g} seconds when it was closed"
                raise StoreUnreachableError(
                    f"the database at {self.config.location} did not answer within {tried}: "
                    f"{self._without_password(problem)}. Is it running, and can this machine reach it?"
                ) from None
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _say_outage(self, error: Exception) -> None:
        """A server did not answer PyMongo's monitor, which asks often while an operation waits for one."""
        waiting = list(self._waiting.values())
        if not (waiting and self._says_outage and time.monotonic() - min(waiting) >= _FIRST_WORD):
            return
        if not self._has_server():
            self._says_outage = False
            log.warning(
                "the database at %s does not answer (%s); trying for %g s (TIMEOUT)",
                self.config.location,
                self._reason(error),
                self.config.timeout,
            )

    def _has_server(self) -> bool:
        """Whether a server has answered PyMongo's monitor lately."""
        return self._client.topology_description.has_readable_server(self._client.read_preference)

    def _refused(self, error: Exception) -> StoreError:
        text = self._without_password(error)
        code = getattr(error, "code", None)
        if code == 18 or "Authentication failed" in text:
            return StoreError(
                f"the database at {self.config.location} refused user and password: {text}. "
                f"The password is read from the environment variable {PASSWORD_VARIABLE}, or from MONGOHOST"
            )
        if code == 14031 or re.search(r"disk is full|no space left", text, re.IGNORECASE):
            return StoreError(
                f"the disk of the database at {self.config.location} is full: {text}. "
                "Make room, or lower SWAP_CAP: up to three generations are stored"
            )
        return StoreError(f"the database at {self.config.location} refused: {text}")

    def _reason(self, error: Exception) -> str:
        """In few words: the operating system's, if it is to blame."""
        text = self._without_password(error)
        of_system = re.search(r"\[Errno -?\d+\] ([^(,]+)", text)
        return of_system[1].strip() if of_system else text

    def _without_password(self, error: Exception) -> str:
        text = re.sub(r", Timeout: .*", "", str(error))
        for secret in _passwords(self.config):
            text = text.replace(secret, "***")
        return text


_opened: weakref.WeakSet[MongoStore] = weakref.WeakSet()


def _close_unanswered() -> None:
    """Closes the stores whose server does not answer. At exit, PyMongo stops its monitors and waits for each of them up
    to a second; but a thread that waits for a server starts them again, until its client is closed.
    """
    threads, ends = [], time.monotonic() + FAREWELL
    for store in list(_opened):
        if not store._has_server():
            store.ends = time.monotonic()
            # At the same time, since each may take PyMongo half a second.
            thread = threading.Thread(target=store.close, name="headrace-wirehead-closing", daemon=True)
            try:
                thread.start()
                threads.append(thread)
            except RuntimeError:  # Python 3.12 starts no threads at exit
                store.close()
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))


atexit.register(_close_unanswered)  # after PyMongo has registered its own function, so before that is called
os.register_at_fork(after_in_child=_opened.clear)


class _Heartbeats(ServerHeartbeatListener):
    """Tells a store, if it is still there, of servers that do not answer."""

    def __init__(self, store: MongoStore) -> None:
        self._store = weakref.ref(store)

    def started(self, event: ServerHeartbeatStartedEvent) -> None:
        pass

    def succeeded(self, event: ServerHeartbeatSucceededEvent) -> None:
        pass

    def failed(self, event: ServerHeartbeatFailedEvent) -> None:
        store = self._store()
        if store is not None:
            store._say_outage(event.reply)


def _left(deadline: float) -> float:
    """Seconds for an operation that is to end by then, which has a chance in any case."""
    return max(0.05, deadline - time.monotonic())


class _ChunkThreads:
    """Threads that take part in others' work, from the first time on that there is any. Thread-safe.

    Not those of an executor: the interpreter waits for them at exit, even if the server has gone silent.
    """

    def __init__(self, count: int) -> None:
        self._count, self._started = count, 0
        self._lock = threading.Lock()  # guards the latter
        self._jobs: queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = queue.SimpleQueue()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Has one of them do it, unless it is cancelled before one has time. It must not raise anything."""
        with self._lock:
            if self._started < self._count:
                threading.Thread(target=_help, args=(self._jobs,), name="headrace-wirehead-chunks", daemon=True).start()
                self._started += 1
        future: Future[None] = Future()
        self._jobs.put((future, work))
        return future

    def close(self) -> None:
        """They end when they have done what they are doing."""
        with self._lock:
            for _ in range(self._started):
                self._jobs.put(None)
            self._started = self._count


def _help(jobs: queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None]) -> None:
    while (job := jobs.get()) is not None:
        future, work = job
        if future.set_running_or_notify_cancel():
            work()
            future.set_result(None)
        del job, future, work  # which keep the store


def _packed(document: Mapping[str, Any]) -> Document:
    """One text for all fields: a server that is slow for each field (FerretDB) has only one. Compared fields stay
    separate.
    """
    beat = {"beat": document["beat"]} if "beat" in document else {}
    return {"document": json.dumps(document), **beat}


def _unpacked(stored: Mapping[str, Any]) -> Document:
    """Undoes :func:`_packed`. Whatever is damaged is missing."""
    try:
        document: Any = json.loads(stored["document"])
    except (KeyError, TypeError, ValueError):
        document = None
    fields: Document = document if isinstance(document, dict) else {}
    return {**fields, "time": stored["time"]} if "time" in stored else fields


def _is_transient(error: OperationFailure) -> bool:
    """Whether the same may succeed a moment later, at this server or the one that takes its place."""
    if error.code in _TRANSIENT or error.timeout or any(map(error.has_error_label, _TRANSIENT_LABELS)):
        return True
    # FerretDB, when it is stopped or a collection dropped in the middle of an operation, reports an internal error with
    # these words.
    return bool(re.search(r"context canceled|interrupted|database is (locked|closed)|no such table", str(error)))


def _passwords(config: Config) -> list[str]:
    host = config.mongohost or ""
    found = re.match(r"mongodb(?:\+srv)?://[^:/@]*:([^@/]*)@", host)
    given = found[1] if found else ""
    return [secret for secret in (given, unquote_plus(given), os.environ.get(PASSWORD_VARIABLE, "")) if secret]


def _check_options(query: str, config: Config) -> None:
    """PyMongo itself only warns of options of a URI that it ignores: a misspelt concern would cost guarantees, as does
    one that no store can keep.
    """
    for option in filter(None, query.split("&")):
        try:
            found = split_options(option, warn=False)
        except (ConfigurationError, ValueError, OSError) as error:
            name, reason = option.partition("=")[0], str(error).partition(" or maybe")[0]
            if isinstance(error, OSError):  # of a file of keys
                reason = f"the file is not readable: {os.strerror(error.errno or 0)}"
            raise ConfigError(f"{config.source}: MONGOHOST: option {name!r}: {reason}") from None
        if found.get("w") == 0:
            raise ConfigError(
                f"{config.source}: MONGOHOST: option 'w': with 0, a server answers no write, and nobody knows which of "
                "two came first: leave it out, or write w=majority"
            )


def _connect(config: Config, heartbeats: ServerHeartbeatListener) -> pymongo.MongoClient[Document]:
    host = config.mongohost or ""
    options: dict[str, Any] = {"tz_aware": True, "appname": "headrace.wirehead", "event_listeners": [heartbeats]}
    try:
        uri = re.match(r"mongodb(?:\+srv)?://(?:([^:/@]+)(:[^@/]*)?@)?", host)
        user, password = (uri[1], uri[2]) if uri else (None, None)
        if user and not password:
            if not os.environ.get(PASSWORD_VARIABLE):
                raise ConfigError(
                    f"{config.source}: MONGOHOST names the user {unquote_plus(user)} and no password: set the "
                    f"environment variable {PASSWORD_VARIABLE}"
                )
            options.update(username=unquote_plus(user), password=os.environ[PASSWORD_VARIABLE])
        query = urlsplit(host).query if uri else ""
        if "@" not in query:  # or it may be part of a password, which PyMongo refuses
            _check_options(query, config)
        given = {name.lower() for name, _ in parse_qsl(query)}
        # A server that has gone silent is given up after both the latter, so that there is time for the one that takes
        # its place.
        defaults = {
            "w": "majority",
            "readconcernlevel": "majority",
            "heartbeatfrequencyms": int(min(max(config.timeout / 6, 0.5), 10) * 1000),
            "connecttimeoutms": int(min(config.timeout, max(config.timeout / 4, 2), 10) * 1000),
        }
        options.update({name: value for name, value in defaults.items() if name not in given})
        return pymongo.MongoClient(host, config.port, **options)
    except (ConfigurationError, ValueError, OSError) as error:
        if isinstance(error, ConfigError):
            raise
        # PyMongo's message may quote any part of it, including a password; but not if it is about a file of keys that
        # an option names, or from the name server, which is asked for the host.
        causes = error, error.__context__
        is_outside = any(isinstance(c, OSError) or type(c).__module__.startswith("dns.") for c in causes)
        if "@" not in host or is_outside:
            raise ConfigError(f"{config.source}: MONGOHOST: {error}") from None
        raise ConfigError(
            f"{config.source}: MONGOHOST is not a valid URI: write mongodb://user@host:27017/?option=value, with the "
            f"password in {PASSWORD_VARIABLE}; in a user's name or a password, @ : / % are written as %40 %3A %2F %25"
        ) from None
