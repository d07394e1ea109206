"""Measures the cache: against the published algorithm on the same server, while swaps go on, with many processes.

Each part prints what it measured and, where there is one, the figure to reach.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import multiprocessing
import multiprocessing.connection
import os
import random
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.wirehead.cache import Cache, Keeper, Reader, Writer, run_keeper
from headrace.wirehead.config import COMPRESSIONS, Config
from headrace.wirehead.dataset import MongoTupleheadDataset
from headrace.wirehead.errors import ConfigError, CorruptSampleError, StoreError
from headrace.wirehead.generator import WireheadGenerator

Sample = tuple[Any, Any]


def run_bench(uri: str | None, only: Sequence[str] | None, quick: bool) -> int:
    """Runs the parts that are named, or all; returns the exit code.

    Args:
        uri: of a server. None: a local store, in a temporary folder.
    """
    parts: dict[str, Callable[[dict[str, Any], bool], None]] = {
        "transfer": transfer,
        "latency": latency,
        "scaling": scaling,
        "swap": swap,
        "storm": storm_report,
    }
    unknown = [name for name in only or () if name not in parts]
    if unknown:
        raise ConfigError(f"there is no part {unknown[0]}; there are {', '.join(parts)}")
    for name, part in parts.items():
        if only is None or name in only:
            print(f"\n{name}: {(part.__doc__ or '').splitlines()[0]}", flush=True)
            with _place(uri) as place:
                part(place, quick)
    return 0


@contextlib.contextmanager
def _place(uri: str | None) -> Iterator[dict[str, Any]]:
    """The keys of a store of its own."""
    with tempfile.TemporaryDirectory(prefix="headrace-wirehead-") as folder:
        if uri is None:
            yield {"DBNAME": "bench", "DIRECTORY": folder}
            return
        import pymongo

        name = f"headrace_bench_{uuid.uuid4().hex[:8]}"
        try:
            yield {"DBNAME": name, "MONGOHOST": uri}
        finally:
            with contextlib.closing(pymongo.MongoClient[dict[str, Any]](uri)) as client:
                client.drop_database(name)


class Published:
    """The published algorithm, small: the baseline.

    A sample takes the next number of a counter document; each of its arrays is serialised whole (by ``torch.save``, or
    by ``numpy.save`` where torch is not installed), cut into chunks and inserted with number, kind and chunk number
    into a collection with an index on the numbers. A read finds all chunks of a sample by number and kind (``$in``),
    sorts and joins them in Python, and loads the arrays from the result.
    """

    def __init__(self, uri: str, database: str, chunksize: float = 10) -> None:
        import pymongo

        self.client: Any = pymongo.MongoClient(uri)
        self._database = self.client[database]
        self._chunks = self._database["published.write.bin"]
        self._counter = self._database["published.counter"]
        self._chunks.create_index([("id", 1)])
        self._counter.insert_one({"_id": "uniqueFieldCounter", "sequence_value": 0})
        self._chunk_bytes = int(chunksize * 2**20)

    def put(self, sample: Sample) -> None:
        counter: Any = self._counter.find_one_and_update({"_id": "uniqueFieldCounter"}, {"$inc": {"sequence_value": 1}})
        documents = []
        for kind, array in zip(("data", "label"), sample):
            data = _serialise(array)
            for number, start in enumerate(range(0, len(data), self._chunk_bytes)):
                chunk = data[start : start + self._chunk_bytes]
                documents.append({"id": counter["sequence_value"], "chunk_id": number, "kind": kind, "chunk": chunk})
        self._chunks.insert_many(documents)

    def get(self, id: int) -> list[Any]:
        fields = {"id": 1, "chunk": 1, "kind": 1, "chunk_id": 1}
        found = list(self._chunks.find({"id": {"$in": [id]}, "kind": {"$in": ["data", "label"]}}, fields))
        arrays = []
        for kind in ("data", "label"):
            chunks = [chunk for chunk in found if chunk["kind"] == kind]
            chunks.sort(key=lambda chunk: int(chunk["chunk_id"]))
            arrays.append(_load(b"".join(chunk["chunk"] for chunk in chunks)))
        return arrays


def _serialise(array: Any) -> bytes:
    buffer = io.BytesIO()
    torch = _torch()
    if torch is None:
        np.save(buffer, array)
    else:
        torch.save(torch.from_numpy(array), buffer)
    return buffer.getvalue()


def _load(data: bytes) -> Any:
    torch = _torch()
    if torch is None:
        return np.load(io.BytesIO(data))
    return torch.load(io.BytesIO(data), weights_only=True)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


def volumes(side: int, dtype: str, compressible: bool, rng: np.random.Generator) -> Sample:
    """A volume and its labels, both of that dtype: noise, or a smooth picture and a few regions."""
    shape = (side, side, side)
    if not compressible:
        if dtype == "uint8":
            return rng.integers(0, 256, shape, np.uint8), rng.integers(0, 256, shape, np.uint8)
        return rng.random(shape, np.float32), rng.random(shape, np.float32)
    coarse = rng.integers(0, 12, (4, 4, 4))
    labels = np.kron(coarse, np.ones((side // 4,) * 3, np.int64))
    picture = labels * 15 + rng.normal(0, 4, shape)
    return picture.astype(np.uint8).astype(dtype), labels.astype(dtype)


def transfer(place: dict[str, Any], quick: bool) -> None:
    """Samples/s written and read, in turn with the published algorithm (to reach: 1.5 times written, 2 times read)."""
    count, repetitions = (4, 2) if quick else (12, 5)
    rng = np.random.default_rng(0)
    for side, dtype in ((128, "uint8"), (64, "float32")):
        for compressible, compression in ((False, "none"), *((True, name) for name in COMPRESSIONS)):
            samples = [volumes(side, dtype, compressible, rng) for _ in range(count)]
            name = f"{side}^3 {dtype} pairs of {'pictures' if compressible else 'noise'}, COMPRESSION {compression}"
            try:
                keys = {**place, "COMPRESSION": compression}
                rates = [
                    _transfer_once({**keys, "DBNAME": f"{place['DBNAME']}_{side}_{r}"}, samples)
                    for r in range(repetitions)
                ]
            except ImportError as error:
                print(f"  {name}: {error}")
                continue
            ours = [statistics.median(column) for column in zip(*(rate[0] for rate in rates))]
            text = f"  {name}: written {ours[0]:.1f}/s, read {ours[1]:.1f}/s"
            if rates[0][1] is not None:
                theirs = [statistics.median(column) for column in zip(*(rate[1] or (1, 1) for rate in rates))]
                text += f"; published: {theirs[0]:.1f}/s, {theirs[1]:.1f}/s"
                text += f"; ratio {ours[0] / theirs[0]:.2f} written, {ours[1] / theirs[1]:.1f} read"
            print(text, flush=True)


def _transfer_once(
    keys: dict[str, Any], samples: Sequence[Sample]
) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """(written/s, read/s) of ours and of the published algorithm, which take turns sample by sample."""
    config = Config.load({**keys, "SWAP_CAP": len(samples)})
    with contextlib.closing(Cache(config)) as cache:
        published = None if config.mongohost is None else Published(config.mongohost, config.dbname)
        writer, keeper = Writer(cache), Keeper(cache)
        put, get, their_put, their_get = 0.0, 0.0, 0.0, 0.0
        for sample in samples:
            put += _timed(writer.put, sample)[0]
            their_put += _timed(published.put, sample)[0] if published else 0
        writer.close()
        while keeper.step() is None:
            pass
        reader = Reader(cache, config.sample)
        generation = reader.pin_current(60)
        for id, sample in enumerate(samples):
            seconds, arrays = _timed(reader.read, generation, id)
            get += seconds
            assert (arrays["data"][1] == sample[0]).all()
            their_get += _timed(published.get, id)[0] if published else 0
        reader.close()
        cache.store.clean()
        if published is not None:
            published.client.drop_database(config.dbname)
            published.client.close()
    count = len(samples)
    return (count / put, count / get), (count / their_put, count / their_get) if published else None


def _timed(action: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """(seconds, what it returned)."""
    start = time.perf_counter()
    result = action(*arguments)
    return time.perf_counter() - start, result


def latency(place: dict[str, Any], quick: bool) -> None:
    """How long a read takes while swaps go on (to reach: p99 at most 3 times the median)."""
    config = Config.load({**place, "SWAP_CAP": 32})
    duration = 5 if quick else 30
    context = multiprocessing.get_context("forkserver")
    stop = context.Event()
    generator = context.Process(target=_child, args=(_generate_until, config, stop, 0.0))
    generator.start()
    try:
        times: list[float] = []
        with (
            MongoTupleheadDataset(config, to="numpy", timeout=120) as dataset,
            contextlib.closing(Cache(config)) as cache,
        ):
            first = cache.current()
            start = time.monotonic()
            while time.monotonic() - start < duration:
                for id in range(config.swap_cap):
                    times.append(_timed(dataset.__getitem__, id)[0])
            swaps = cache.current() - first
    finally:
        stop.set()
        generator.join(60)
    times.sort()
    median, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    print(
        f"  {len(times)} reads of 64 KiB during {swaps} swaps: median {1e3 * median:.2f} ms, p99 {1e3 * p99:.2f} ms, "
        f"ratio {p99 / median:.1f}, longest {1e3 * times[-1]:.1f} ms"
    )


def _child(action: Callable[..., None], *arguments: Any) -> None:
    """What a process of a benchmark does; it ends when the benchmark does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    action(*arguments)


def _generate_until(config: Config, stop: Any, pause: float, index: int = 0, length: int = 65536) -> None:
    def samples() -> Iterator[Sample]:
        while not stop.is_set():
            time.sleep(pause)
            yield np.full(length, index, np.uint8), np.int64(index)

    WireheadGenerator(samples(), config).run()


def scaling(place: dict[str, Any], quick: bool) -> None:
    """Generators whose sample takes 0.5 s of sleep: 1, 2, 4, 8, 16 processes (to reach: 0.9 N times one)."""
    context = multiprocessing.get_context("forkserver")
    single = 0.0
    for n in (1, 2, 4) if quick else (1, 2, 4, 8, 16):
        config = Config.load({**place, "DBNAME": f"{place['DBNAME']}_{n}", "SWAP_CAP": 100})
        if config.is_local:
            config = dataclasses.replace(config, directory=f"{config.directory}/{n}")
        stop = context.Event()
        processes = [
            context.Process(target=_child, args=(_generate_until, config, stop, 0.5, i, 4096)) for i in range(n)
        ]
        for process in processes:
            process.start()
        with contextlib.closing(Cache(config)) as cache:
            while _stored(cache) < 2 * n:
                time.sleep(0.05)
            before, start = _stored(cache), time.monotonic()
            time.sleep(6 if quick else 15)
            rate = (_stored(cache) - before) / (time.monotonic() - start)
            stop.set()
            for process in processes:
                process.join(60)
            cache.store.clean()
        single = single or rate
        share = rate / single / n
        print(f"  {n:2d} processes: {rate:.2f} samples/s, {rate / single:.2f} times one ({share:.2f} N)", flush=True)


def _stored(cache: Cache) -> int:
    from headrace.wirehead.status import status_of

    return status_of(cache).samples


def swap(place: dict[str, Any], quick: bool) -> None:
    """What a swap takes of anybody's time at SWAP_CAP 1,000, for small and large samples (to reach: 50 ms).

    A sample takes 10 ms to generate: a writer that does nothing but write also waits for its samples to be verified.
    """
    cap, swaps = (100, 2) if quick else (1000, 3)
    for length in (64, 65536):
        config = Config.load({**place, "DBNAME": f"{place['DBNAME']}_{length}", "SWAP_CAP": cap})
        if config.is_local:
            config = dataclasses.replace(config, directory=f"{config.directory}/{length}")
        with contextlib.closing(Cache(config)) as cache:
            stop = threading.Event()
            keeper = Keeper(cache)
            thread = threading.Thread(target=run_keeper, args=(keeper, stop))
            thread.start()
            writer = Writer(cache)
            waits = []
            for _ in range(swaps):
                waited = writer.waited
                for number in range(cap):
                    time.sleep(0.01)
                    writer.put((np.full(length, number % 256, np.uint8), number))
                writer.put((np.zeros(length, np.uint8), 0))
                waits.append(writer.waited - waited)
            stop.set()
            thread.join()
            writer.close()
            took = [done.seconds for done in cache.swaps()]
            cache.store.clean()
        print(
            f"  samples of {length} bytes: manager {_ms(took)}; a writer waited {_ms(waits)}; readers do not wait",
            flush=True,
        )


def _ms(seconds: Sequence[float]) -> str:
    return ", ".join(f"{1e3 * value:.1f}" for value in seconds) + " ms"


@dataclasses.dataclass
class StormResult:
    """What a storm left.

    Attributes:
        operations: samples stored, samples read and swaps.
        kills: processes killed.
        swaps: in all.
        most_generations: stored at once.
        problems: what must not happen, in words; empty.
    """

    operations: int = 0
    kills: int = 0
    swaps: int = 0
    most_generations: int = 0
    seconds: float = 0
    problems: list[str] = dataclasses.field(default_factory=list)


def storm_report(place: dict[str, Any], quick: bool) -> None:
    """8 writers, 4 readers and 2 managers under random kills (to reach: all whole, at most 3 generations)."""
    result = storm(place, 1000 if quick else 10_000, kills=5 if quick else 50)
    print(
        f"  {result.operations} operations, {result.swaps} swaps, {result.kills} kills in {result.seconds:.0f} s: "
        f"at most {result.most_generations} generations, {len(result.problems)} problems"
    )
    for problem in result.problems[:10]:
        print(f"    {problem}")


def storm(
    place: dict[str, Any],
    operations: int,
    kills: int,
    swaps: int = 0,
    writers: int = 8,
    readers: int = 4,
    managers: int = 2,
    seed: int = 0,
) -> StormResult:
    """Puts, gets and swaps in many processes, one of which is killed every now and then; then checks everything.

    Each sample has a number of its own in all its elements. Processes write down, one line for each, which number was
    acknowledged or read under which generation and id. It ends after that many operations, kills and swaps.
    """
    config = Config.load({**place, "SWAP_CAP": 20, "LEASE": 2, "CHUNKSIZE": 0.001})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headrace.wirehead.bench"])
    rng = random.Random(seed)
    roles: dict[str, Callable[..., None]] = {"writer": _storm_write, "reader": _storm_read, "manager": _storm_manage}
    wanted = {"writer": writers, "reader": readers, "manager": managers}
    result = StormResult()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Cache(config)) as cache:
        running: list[tuple[str, Any]] = []
        numbers = iter(range(1, 1 << 30))

        def begin(role: str) -> None:
            number = next(numbers)
            path = f"{folder}/{role}-{number}"
            process = context.Process(target=_child, args=(roles[role], config, number, path), daemon=True)
            process.start()
            running.append((role, process))

        for role, count in wanted.items():
            for _ in range(count):
                begin(role)
        kill_at = time.monotonic() + 2
        try:
            while True:
                time.sleep(0.1)
                generations = cache.store.generations()
                result.most_generations = max(result.most_generations, len(generations))
                lines = sum(path.stat().st_size for path in Path(folder).iterdir()) // _LINE
                if lines + cache.current() >= operations and result.kills >= kills and cache.current() >= swaps:
                    break
                if time.monotonic() >= kill_at:
                    kill_at = time.monotonic() + rng.uniform(0.1, 0.8)
                    role, process = running.pop(rng.randrange(len(running)))
                    process.kill()
                    process.join()
                    result.kills += 1
                    begin(role)
                for entry in [entry for entry in running if not entry[1].is_alive()]:
                    running.remove(entry)
                    entry[1].join()
                    result.problems.append(f"a {entry[0]} ended by itself with code {entry[1].exitcode}")
                    begin(entry[0])
        finally:
            for _, process in running:
                process.kill()
                process.join()
        result.swaps = cache.current()
        result.seconds = time.monotonic() - start
        _check_storm(Path(folder), cache, result)
        result.operations = result.operations + result.swaps
        cache.store.clean()
    return result


_LINE = 40  # bytes of a line that a process writes down, in one system call


def _note(file: int, *numbers: int) -> None:
    os.write(file, (" ".join(map(str, numbers)).ljust(_LINE - 1) + "\n").encode())


def _storm_write(config: Config, number: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.closing(Cache(config)) as cache:
        writer = Writer(cache)
        for sequence in range(1 << 20):
            value = (number << 20) + sequence
            place = writer.put((np.full(300 + sequence % 7, value), np.full(3, value)))
            assert place is not None
            _note(file, *place, value)


def _storm_read(config: Config, number: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rng = random.Random(number)
    with MongoTupleheadDataset(config, to="numpy", timeout=300) as dataset:
        while True:
            id = rng.randrange(config.swap_cap)
            try:
                data, label = dataset[id]
            except CorruptSampleError as error:
                _note(file, error.generation, id, -1)
                continue
            value = int(label[0])
            whole = (data == value).all() and (label == value).all() and len(data) == 300 + (value & 0xFFFFF) % 7
            _note(file, dataset.generation, id, value if whole else -2)


def _storm_manage(config: Config, number: int, path: str) -> None:
    with contextlib.closing(Cache(config)) as cache:
        run_keeper(Keeper(cache), threading.Event())


def _check_storm(folder: Path, cache: Cache, result: StormResult) -> None:
    """One number under each generation and id; none twice among the acknowledged; none of these lost."""
    seen: dict[tuple[int, int], int] = {}
    acknowledged: dict[int, tuple[int, int]] = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            generation, id, value = map(int, line.split())
            result.operations += 1
            if value < 0:
                result.problems.append(f"sample {id} of generation {generation} was not whole")
            elif seen.setdefault((generation, id), value) != value:
                result.problems.append(f"sample {id} of generation {generation} had two contents")
            if path.name.startswith("writer"):
                acknowledged[value] = (generation, id)
    current = cache.current()
    reader = Reader(cache, cache.config.sample)
    stored = set(cache.store.generations())
    for value, (generation, id) in acknowledged.items():
        if generation >= current:
            try:
                found = int(reader.read(generation, id)["label"][1][0])
            except StoreError as error:
                result.problems.append(f"an acknowledged sample is lost: {error}")
            else:
                if found != value:
                    result.problems.append(f"an acknowledged sample is lost: {id} of generation {generation}")
        elif generation not in stored and generation > current:
            result.problems.append(f"generation {generation} is lost")
    reader.close()
    counts = [seen_generation for seen_generation, _ in acknowledged.values() if seen_generation <= current]
    if len(counts) > current * cache.config.swap_cap:
        result.problems.append("more samples were acknowledged than the generations hold")
