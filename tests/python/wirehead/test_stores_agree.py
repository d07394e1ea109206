"""The stores do the same: random operations, on the model's store, a folder, a replica set's stub and a real server."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from model_store import Memory
from replica_set import ReplicaSet

from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import (
    FAREWELL,
    SETTINGS,
    SWAPS,
    TABLES,
    chunk_name,
    key,
    round_key,
    seconds,
    version_key,
)
from headrace.wirehead.config import Config

INCARNATIONS = ("0" * 16, "0123456789abcdef")
GENERATIONS = (1, 2, 12, 10**11)
TABLES_OF_ALL = [table for table in TABLES if table != SETTINGS]
SAMPLES = [f"{key(generation)}.samples.{block:02d}" for generation in GENERATIONS for block in (0, 63)]
KEYS = [
    *(key(number) for number in (0, 1, 10**12 - 1)),
    version_key(1, 3),
    round_key("0123456789abcdef", 7),
    round_key("0123456789abcdef", None),
    "manager",
    "generator-12",
    "Generator-12",
    "größe 日本",
    "a.now",
    "$set",
    "-",
    "x" * 200,
]
CHUNKS = [
    chunk_name(part, writer, number, 0) for part in (0, 7, 63) for writer in ("a-1", "a-11") for number in (1, 11)
]
VALUES = [
    None,
    True,
    0,
    -1,
    2**63,
    1.5,
    "",
    "text",
    'a"\\\n\0é😀\ud800',
    [],
    [1, [2]],
    {},
    {"a.b": {"$c": 1}},
    "x" * 10**5,
]


class Calm:
    """The world of the model's store, where nothing happens."""

    lags, time = False, 0.0

    def __init__(self) -> None:
        self.tables: dict[Any, dict[str, Any]] = {}
        self.dropped: set[Any] = set()
        self.lock = threading.Lock()

    @property
    def wall(self) -> float:
        return time.time()

    def operation(self, action: Callable[[], Any], repeats: bool = False) -> Any:
        with self.lock:
            return action()

    def wrote(self) -> int:
        return 0

    def looks(self, *arguments: Any) -> None:
        pass

    decided = described = count_generations = cleaned = looks


@pytest.fixture(params=["folder", "stub", "server"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens a store, always the same."""
    keys: dict[str, Any] = {"DBNAME": f"headrace_test_{uuid.uuid4().hex[:12]}", "SWAP_CAP": 5, "TIMEOUT": 30}
    with contextlib.ExitStack() as stack:
        if request.param == "folder":
            keys["DIRECTORY"] = str(tmp_path)
        elif request.param == "stub":
            stub = ReplicaSet(lag=0.0)
            stack.callback(stub.close)
            keys["MONGOHOST"] = stub.uri
        else:
            keys["MONGOHOST"] = request.getfixturevalue("server_uri")
        stores = []

        def opened() -> Any:
            stores.append(open_store(Config.load(keys)))
            return stores[-1]

        yield opened
        if stores and request.param == "server":
            stores[0]._client.drop_database(keys["DBNAME"])
        for store in stores:
            store.close()


class Agreement:
    """Does the same to two stores, the model's and another one, and compares what they say."""

    def __init__(self, other: Any, rng: random.Random) -> None:
        self.stores, self._rng = (Memory(Calm()), other), rng  # type: ignore[arg-type]
        self._beats = dict.fromkeys(KEYS, 0)  # of no document twice
        self._contents: dict[Any, bytes] = {}  # of chunks: what is there already is what comes again
        self._incarnation: str | None = None
        self._used: list[tuple[str, str]] = []  # keys, the latest last
        self.use(INCARNATIONS[0])

    def both(self, name: str, *arguments: Any) -> Any:
        first, second = (plain(getattr(store, name)(*arguments)) for store in self.stores)
        assert second == first, (name, arguments)
        return first

    def use(self, incarnation: str | None) -> None:
        self._incarnation = incarnation
        for store in self.stores:
            store.use(incarnation)

    def step(self) -> None:
        rng = self._rng
        actions = {self._document: 60, self._chunk: 25, self._look: 8, self._remove_much: 5, self._clean: 2}
        rng.choices(list(actions), list(actions.values()))[0]()

    def _document(self) -> None:
        rng = self._rng
        table = rng.choice([*TABLES_OF_ALL, *SAMPLES])
        name = rng.choice(KEYS[:3] if table == SWAPS else KEYS)  # the model looks at the numbers of swaps
        if rng.random() < 0.6:  # where something has happened
            table, name = rng.choice([*self._used, (table, name)])
        self._used = [*self._used, (table, name)][-20:]
        document = {f"field {k}": rng.choice(VALUES) for k in range(rng.randrange(3))}
        action = rng.choice(["insert", "insert", "replace", "find", "scan", "remove"])
        if action == "insert":
            self.both(action, table, name, document)
        elif action == "replace":
            if table not in SAMPLES:  # whose documents nobody replaces
                self._beats[name] += rng.randint(1, 3)
                self.both(action, table, name, {**document, "beat": self._beats[name]})
        else:
            self.both(action, table, *([] if action == "scan" else [name]))

    def _chunk(self) -> None:
        rng = self._rng
        generation, names = rng.choice(GENERATIONS), rng.sample(CHUNKS, rng.randint(1, len(CHUNKS)))
        of = {name: (self._incarnation, generation, name) for name in names}
        if rng.random() < 0.4:
            chunks: Mapping[str, Any] = {
                name: self._contents.setdefault(of[name], rng.randbytes(rng.choice([0, 1, 1000, 100_000])))
                for name in names[:3]
            }
            if rng.random() < 0.5:
                chunks = {name: memoryview(data) for name, data in chunks.items()}
            self.both("write_chunks", generation, chunks)
        elif rng.random() < 0.5:
            self.both("read_chunks", generation, names)
        else:
            lengths = {name: len(self._contents.get(of[name], b"")) for name in names}
            self.both("missing_chunks", generation, lengths)

    def _look(self) -> None:
        self.both("incarnations")
        self.both("generations")
        assert abs(self.stores[1].now() - time.time()) < 60
        self.use(None)
        assert self.both("scan", self._rng.choice([*TABLES_OF_ALL, *SAMPLES])) == {}
        assert self.both("generations") == []
        self.use(self._rng.choice(INCARNATIONS))

    def _remove_much(self) -> None:
        if self._rng.random() < 0.2:
            self.both("drop_incarnation", self._rng.choice(INCARNATIONS))
        else:
            self.both("drop", self._rng.choice(GENERATIONS))

    def _clean(self) -> None:
        self.both("clean")
        self.both("incarnations")
        self.use(None)
        assert self.both("insert", SETTINGS, "settings", {"incarnation": INCARNATIONS[0]})
        assert not self.both("insert", SETTINGS, "settings", {"incarnation": INCARNATIONS[1]})
        assert self.both("find", SETTINGS, "settings")["incarnation"] == INCARNATIONS[0]
        self.use(INCARNATIONS[0])

    def compare_all(self, other: Any | None = None) -> None:
        """Of all that is there. ``other``: as a third process sees it."""
        if other is not None:
            self.stores = self.stores[0], other
        self.both("incarnations")
        self.both("scan", SETTINGS)
        for incarnation in INCARNATIONS:
            self.use(incarnation)
            self.both("generations")
            for table in (*TABLES_OF_ALL, *SAMPLES):
                found = self.both("scan", table)
                assert {name: self.both("find", table, name) for name in found} == found
            for generation in GENERATIONS:
                self.both("read_chunks", generation, CHUNKS)


def plain(result: Any) -> Any:
    """So that it can be compared. A time only has to be one."""
    if isinstance(result, dict):
        is_time = "time" in result and abs(seconds(result["time"]) - time.time()) < 1000
        return {name: is_time if name == "time" else plain(value) for name, value in result.items()}
    if isinstance(result, Iterator):
        return [None if chunk is None else bytes(chunk) for chunk in result]
    return sorted(result) if isinstance(result, list) and all(isinstance(item, str) for item in result) else result


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_have_the_same_results(open_one: Callable[[], Any], seed: int) -> None:
    stores = Agreement(open_one(), random.Random(seed))
    for store in stores.stores:
        assert store.insert(SETTINGS, "settings", {"incarnation": INCARNATIONS[0]})
    for _ in range(300):
        stores.step()
    stores.compare_all()
    stores.compare_all(open_one())


def test_threads_leave_the_same_and_one_of_them_wins_each_key(open_one: Callable[[], Any]) -> None:
    """Each has keys and chunks of its own, which it treats at random, and inserts some that all insert."""
    stores = Agreement(open_one(), random.Random(0))
    for store in stores.stores:
        assert store.insert(SETTINGS, "settings", {"incarnation": INCARNATIONS[0]})
    won: list[list[tuple[str, str]]] = [[], []]

    def work(which: int, store: Any, thread: str) -> None:
        rng = random.Random(thread)
        for beat in range(60):
            table, name = rng.choice(["drops", "leases", "rounds"]), f"{thread}-{rng.randrange(5)}"
            document = {"by": thread, "value": rng.choice(VALUES)}
            chunk = chunk_name(rng.randrange(3), thread, beat, 0)
            action = rng.choice(["insert", "replace", "remove", "chunk", "race", "drop"])
            if action == "insert":
                store.insert(table, name, document)
            elif action == "replace":
                store.replace(table, name, {**document, "beat": beat})
            elif action == "remove":
                store.remove(table, name)
            elif action == "chunk":
                store.write_chunks(1, {chunk: rng.randbytes(1000)})
                (there,) = store.read_chunks(1, [chunk])
                assert len(there) == 1000
            elif action == "drop":
                store.drop(2 + ord(thread))
            if store.insert("graves", f"all-{beat}", {"by": thread}):
                won[which].append((f"all-{beat}", thread))

    for which, store in enumerate(stores.stores):
        errors: list[BaseException] = []

        def run(which: int, store: Any, thread: str, errors: list[BaseException] = errors) -> None:
            try:
                work(which, store, thread)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(which, store, name)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        graves = {name: grave for name, grave in store.scan("graves").items() if name.startswith("all-")}
        assert {name: grave["by"] for name, grave in graves.items()} == dict(won[which])
        assert len(won[which]) == len(graves) == 60
        for name in graves:
            store.remove("graves", name)
    stores.compare_all()
    stores.use(INCARNATIONS[0])
    for thread in "abcd":
        names = [chunk_name(part, thread, beat, 0) for part in range(3) for beat in range(60)]
        assert any(chunk is not None for chunk in stores.both("read_chunks", 1, names))


@pytest.mark.parametrize("open_one", ["stub", "server"], indirect=True)  # in a folder none comes late
def test_a_late_beat_replaces_none_that_is_higher(open_one: Callable[[], Any]) -> None:
    store = open_one()
    store.use(INCARNATIONS[0])
    for most, beat in zip([3, 3, 3, 3, 5, 5], [3, 1, 3, 2, 5, 4]):
        store.replace("leases", "a", {"beat": beat, "nth": beat})
        found = store.find("leases", "a")
        assert (found["beat"], found["nth"]) == (most, most)


def test_who_begins_to_close_twice_ends_as_soon_as_after_the_first_time(open_one: Callable[[], Any]) -> None:
    store, before = open_one(), time.monotonic()
    assert store.ends == float("inf")
    store.begin_close()
    ends = store.ends
    assert before + FAREWELL <= ends <= time.monotonic() + FAREWELL
    store.begin_close()
    assert store.ends == ends
