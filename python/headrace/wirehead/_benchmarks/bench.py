"""Measures the cache: against the published algorithm on the same server, during swaps, with many processes.

Each part prints its results and, if there is one, the goal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace.wirehead._benchmarks.child import run_child
from headrace.wirehead._benchmarks.published_algorithm import Published
from headrace.wirehead._benchmarks.storm import storm
from headrace.wirehead._datasets.datasets import MongoTupleheadDataset
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager, manage_generations
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead.config import COMPRESSIONS, Config
from headrace.wirehead.errors import ConfigError
from headrace.wirehead.generator import WireheadGenerator

Sample = tuple[Any, Any]


def run_bench(uri: str | None, only: Sequence[str] | None, quick: bool) -> int:
    """Runs the parts that are named, or all; returns the exit code, which is 1 if the storm finds problems.

    Args:
        uri: of a server. None: a local store, in a temporary folder.
    """
    parts: dict[str, Callable[[dict[str, Any], bool], int | None]] = {
        "transfer": transfer,
        "latency": latency,
        "scaling": scaling,
        "swap": swap,
        "storm": storm_report,
    }
    unknown = [name for name in only or () if name not in parts]
    if unknown:
        raise ConfigError(f"unknown part {unknown[0]}; the parts are {', '.join(parts)}")
    problems = 0
    for name, part in parts.items():
        if only is None or name in only:
            print(f"\n{name}: {(part.__doc__ or '').partition(chr(10))[0]}", flush=True)
            with _location(uri) as location:
                problems += part(location, quick) or 0
    return 1 if problems else 0


@contextlib.contextmanager
def _location(uri: str | None) -> Iterator[dict[str, Any]]:
    """The keys of a store of its own."""
    with tempfile.TemporaryDirectory(prefix="headrace-wirehead-") as folder:
        if uri is None:
            yield {"DBNAME": "bench", "DIRECTORY": folder}
            return
        import pymongo.errors

        name = f"headrace_bench_{uuid.uuid4().hex[:8]}"
        try:
            yield {"DBNAME": name, "MONGOHOST": uri}
        finally:
            # If it does not answer, the part has said so already.
            unreachable = contextlib.suppress(pymongo.errors.PyMongoError)
            with unreachable, contextlib.closing(pymongo.MongoClient[dict[str, Any]](uri)) as client:
                for database in client.list_database_names():  # parts add to the name
                    if database.startswith(name):
                        client.drop_database(database)


def noise(side: int, dtype: str, rng: np.random.Generator) -> Sample:
    """Two volumes of noise, which nothing compresses."""
    shape = (2, side, side, side)
    values: Any = rng.integers(0, 256, shape, np.uint8) if dtype == "uint8" else rng.random(shape, np.float32)
    return values[0], values[1]


def scan(side: int, dtype: str, rng: np.random.Generator) -> Sample:
    """A picture and its labels, both of that dtype, in the manner of SynthSeg: each of 20 regions has an intensity of
    its own, over which lie a bias field and noise.
    """
    axes = np.meshgrid(*[np.arange(side, dtype=np.float32)] * 3, indexing="ij", sparse=True)
    nearest, labels = np.full((side,) * 3, np.inf, np.float32), np.zeros((side,) * 3, np.uint8)
    for label, seed in enumerate(rng.uniform(0, side, (20, 3)).astype(np.float32)):
        distance = sum(np.square(axis - s) for axis, s in zip(axes, seed))
        closer = distance < nearest
        nearest[closer], labels[closer] = distance[closer], label
    bias = sum(axis * np.float32(slope / side) for axis, slope in zip(axes, rng.uniform(-20, 20, 3)))
    picture = rng.uniform(40, 200, 20).astype(np.float32)[labels] + bias
    picture += rng.normal(0, 5, picture.shape).astype(np.float32)
    picture = picture.clip(0, 255)
    return (picture if dtype == "uint8" else picture / 255).astype(dtype), labels.astype(dtype)


def transfer(location: dict[str, Any], quick: bool) -> None:
    """Samples/s written and read, in turns with the published algorithm (goal at 128³ uint8: 2 and 9 times)."""
    count, repetitions = (4, 2) if quick else (8, 5)
    rng = np.random.default_rng(0)
    for side, dtype in ((128, "uint8"), (64, "float32")):
        for make, compression in ((noise, "auto"), *((scan, name) for name in COMPRESSIONS)):
            samples = [make(side, dtype, rng) for _ in range(count)]
            name = f"{side}^3 {dtype} {make.__name__}, COMPRESSION {compression}"
            try:
                keys = {**location, "COMPRESSION": compression}
                rates = [
                    _transfer_once({**keys, "DBNAME": f"{location['DBNAME']}_{side}_{r}"}, samples)
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
    with contextlib.ExitStack() as stack:
        cache = stack.enter_context(contextlib.closing(Cache(config)))
        stack.callback(cache.store.clean)
        published = None if config.mongohost is None else Published(config.mongohost, config.dbname)
        if published is not None:
            stack.enter_context(contextlib.closing(published.client))
            stack.callback(published.client.drop_database, config.dbname)
        writer, manager = Writer(cache), GenerationManager(cache)
        put, get, their_put, their_get = 0.0, 0.0, 0.0, 0.0
        for sample in samples:
            put += _timed(writer.put, sample)[0]
            their_put += _timed(published.put, sample)[0] if published else 0
        writer.close()
        while manager.step() is None:
            pass
        reader = Reader(cache, config.sample)
        generation = reader.pin_current(60)
        for id, sample in enumerate(samples):
            seconds, arrays = _timed(reader.read, generation, id)
            get += seconds
            assert (arrays["data"][1] == sample[0]).all()
            their_get += _timed(published.get, id)[0] if published else 0
        reader.close()
    count = len(samples)
    return (count / put, count / get), (count / their_put, count / their_get) if published else None


def _timed(action: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """(seconds, result)."""
    start = time.perf_counter()
    result = action(*arguments)
    return time.perf_counter() - start, result


def latency(location: dict[str, Any], quick: bool) -> None:
    """The duration of reads during swaps (goal: p99 at most twice the median, with a core for each process)."""
    config = Config.load({**location, "SWAP_CAP": 32})
    duration = 5 if quick else 30
    context = multiprocessing.get_context("forkserver")
    stop = context.Event()
    generator = context.Process(target=run_child, args=(_generate_until, config, stop, 0.0))
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


def _generate_until(config: Config, stop: Any, pause: float, index: int = 0, length: int = 65536) -> None:
    def samples() -> Iterator[Sample]:
        while not stop.is_set():
            time.sleep(pause)
            yield np.frombuffer(os.urandom(length), np.uint8), np.int64(index)

    WireheadGenerator(samples(), config).run()


def scaling(location: dict[str, Any], quick: bool) -> None:
    """Generators whose sample takes 0.5 s of sleep: 1, 2, 4, 8, 16 processes (goal: 0.95 N times one)."""
    context = multiprocessing.get_context("forkserver")
    single = 0.0
    for n in (1, 2, 4) if quick else (1, 2, 4, 8, 16):
        config = Config.load({**location, "DBNAME": f"{location['DBNAME']}_{n}", "SWAP_CAP": 100})
        if config.is_local:
            config = dataclasses.replace(config, directory=f"{config.directory}/{n}")
        stop = context.Event()
        processes = [
            context.Process(target=run_child, args=(_generate_until, config, stop, 0.5, i, 4096)) for i in range(n)
        ]
        for process in processes:
            process.start()
        with contextlib.closing(Cache(config)) as cache:
            while _stored(cache) < 2 * n:
                time.sleep(0.2)
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
    """Samples stored in all."""
    while True:
        current = cache.current()
        fill = cache.fill(current + 1) + cache.fill(current + 2)
        if cache.current() == current:
            return current * cache.config.swap_cap + fill


def swap(location: dict[str, Any], quick: bool) -> None:
    """The time that a swap costs any process at SWAP_CAP 1,000, for small and large samples (goal: 50 ms).

    The writer takes 10 ms to generate a sample, or none at all. A swap costs the manager the time in its log, and
    the writer the additional time of the puts around it: above all the first put of the next generation.
    Neither depends on the size of the samples. Readers are the business of ``latency``.
    """
    cap, swaps = (100, 2) if quick else (1000, 3)
    for length, pause in ((64, 0.01), (65536, 0.01), (64, 0.0), (65536, 0.0)):
        config = Config.load({**location, "DBNAME": f"{location['DBNAME']}_{length}_{pause > 0:d}", "SWAP_CAP": cap})
        if config.is_local:
            config = dataclasses.replace(config, directory=f"{config.directory}/{config.dbname}")
        with contextlib.closing(Cache(config)) as cache:
            stop = threading.Event()
            manager = GenerationManager(cache)
            thread = threading.Thread(target=manage_generations, args=(manager, stop))
            thread.start()
            writer = Writer(cache)
            starts, puts = [], []
            for number in range(cap * swaps + cap // 2):
                time.sleep(pause)
                sample = np.frombuffer(os.urandom(length), np.uint8), number
                starts.append(time.perf_counter())
                puts.append(_timed(writer.put, sample)[0])
            while cache.current() < swaps:
                time.sleep(0.01)
            stop.set()
            thread.join()
            writer.close()
            took = [done.seconds for done in cache.swaps()]
            cache.store.clean()
        first = [cap * k for k in range(1, swaps + 1)]
        near = [put for start, put in zip(starts, puts) if any(abs(start - starts[i]) < 1 for i in first)]
        print(
            f"  samples of {length} bytes, {f'one every {1e3 * pause:g} ms' if pause else 'as fast as they come'}:\n"
            f"    manager {_ms(took)}\n"
            f"    the first put of a generation {_ms(puts[i] for i in first)}\n"
            f"    puts within a second of that: {_distribution(near)}; all puts: {_distribution(puts)}",
            flush=True,
        )


def _distribution(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    median, p99 = (1e3 * ordered[int(len(ordered) * share)] for share in (0.5, 0.99))
    return f"median {median:.1f}, p99 {p99:.1f}, worst {1e3 * ordered[-1]:.1f} ms"


def _ms(seconds: Iterable[float]) -> str:
    return ", ".join(f"{1e3 * value:.1f}" for value in seconds) + " ms"


def storm_report(location: dict[str, Any], quick: bool) -> int:
    """8 writers, 4 readers and 2 managers while everything goes wrong (to reach: 0 problems, at most 3 generations)."""
    result = storm(location, 1000 if quick else 10_000, disturbances=5 if quick else 50)
    print(f"  {result}")
    for problem in result.problems[:10]:
        print(f"    {problem}")
    return len(result.problems)
