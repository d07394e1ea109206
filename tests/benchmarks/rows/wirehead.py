"""Wirehead beside the algorithm that it was published with, on the same kind of server."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import content
from harness.contest import OURS, PEER, Aim, Contestant, Effort, Family, LeftOut, Row

SERVER = Path(__file__).parents[2] / "python" / "wirehead"  # the folder that has the server of the tests
SETTINGS = {
    "headrace": "`headrace.wirehead` with COMPRESSION auto, read by its reader.",
    "published": (
        "the published algorithm: a counter, whole arrays by `torch.save` in chunks of 10 MiB, an index on the "
        "numbers; found by `$in`, sorted and joined in Python."
    ),
}


@contextlib.contextmanager
def server(effort: Effort) -> Iterator[str]:
    """The URI of a server that speaks MongoDB's protocol."""
    given = os.environ.get("HEADRACE_TEST_MONGO_URI")
    if given:
        yield given
        return
    sys.path.insert(0, str(SERVER))
    from ferretdb_server import BINARY, Server

    if not BINARY.exists():
        raise LeftOut("there is no server: run `make build/ferretdb`, or name one in HEADRACE_TEST_MONGO_URI")
    folder = effort.folder / uuid.uuid4().hex
    folder.mkdir()
    started = Server(folder)
    try:
        yield started.uri
    finally:
        started.stop()


def samples(effort: Effort) -> list[Any]:
    """Pictures and their labels, uint8."""
    from headrace.wirehead._benchmarks.bench import scan

    rng = np.random.default_rng(0)
    side, count = (32, 2) if effort.short else (128, 6)
    return [scan(side, "uint8", rng) for _ in range(count)]


class Ours:
    """A cache of one generation."""

    def __init__(self, uri: str, count: int) -> None:
        from headrace.wirehead._protocol.cache import Cache
        from headrace.wirehead._protocol.reader import Reader
        from headrace.wirehead._protocol.writer import Writer
        from headrace.wirehead.config import Config

        name = f"bench_{uuid.uuid4().hex[:8]}"
        self._config = Config.load({"DBNAME": name, "MONGOHOST": uri, "SWAP_CAP": count})
        self._cache = Cache(self._config)
        self._writer, self._reader = Writer(self._cache), Reader(self._cache, self._config.sample)
        self._generation = 0

    def put(self, sample: Any) -> None:
        self._writer.put(sample)

    def publish(self) -> None:
        """Makes what was put readable."""
        from headrace.wirehead._protocol.generation_manager import GenerationManager

        self._writer.close()
        manager = GenerationManager(self._cache)
        while manager.step() is None:
            pass
        self._generation = self._reader.pin_current(60)

    def get(self, id: int) -> tuple[Any, ...]:
        arrays = self._reader.read(self._generation, id)
        return tuple(arrays[kind][1] for kind in self._config.sample)

    def close(self) -> None:
        self._reader.close()
        self._cache.store.clean()
        self._cache.close()


class Theirs:
    """The published algorithm."""

    def __init__(self, uri: str, count: int) -> None:
        from headrace.wirehead._benchmarks.published_algorithm import Published

        del count
        self._name = f"bench_{uuid.uuid4().hex[:8]}"
        self._published = Published(uri, self._name)

    def put(self, sample: Any) -> None:
        self._published.put(sample)

    def publish(self) -> None:
        pass

    def get(self, id: int) -> tuple[Any, ...]:
        return tuple(self._published.get(id))

    def close(self) -> None:
        self._published.client.drop_database(self._name)
        self._published.client.close()


#: By contestant.
CACHES: dict[str, Callable[[str, int], Any]] = {"headrace": Ours, "published": Theirs}


def transfer(name: str, effort: Effort) -> tuple[float, float, list[Any]]:
    """Samples written a second, samples read a second, and what was read."""
    put = samples(effort)
    with server(effort) as uri, contextlib.closing(CACHES[name](uri, len(put))) as cache:
        begin = time.perf_counter()
        for sample in put:
            cache.put(sample)
        written = time.perf_counter() - begin
        cache.publish()
        begin = time.perf_counter()
        got = [cache.get(id) for id in range(len(put))]
        read = time.perf_counter() - begin
        # In a batch of one; what a reader returns may be gone with it.
        batches = [tuple(np.array(array)[None] for array in sample) for sample in got]
    return len(put) / written, len(put) / read, batches


def contestant(name: str, which: int) -> Contestant:
    def deliver(effort: Effort) -> Any:
        return content.digest(transfer(name, effort)[2])

    kind = OURS if name == "headrace" else PEER
    packages = ("headrace", "pymongo") if name == "headrace" else ("pymongo", "torch")
    return Contestant(name, kind, lambda effort: transfer(name, effort)[which], deliver, SETTINGS[name], packages)


def row(which: int, name: str, title: str, at_least: float) -> Row:
    return Row(
        name,
        title,
        "Pictures of 128³ and their labels, both uint8, as synthetic scans are; one process.",
        "samples/s",
        tuple(contestant(each, which) for each in CACHES),
        reference="published",
        aims=(Aim("published", at_least),),
    )


FAMILY = Family(
    "wirehead",
    "Wirehead",
    "The cache beside the algorithm that Wirehead was published with, on FerretDB, a server in memory that speaks "
    "MongoDB's protocol. Each contestant has a server of its own.",
    (row(0, "wirehead-write", "written", 1.5), row(1, "wirehead-read", "read", 2)),
)
