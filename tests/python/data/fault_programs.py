"""Programs that meet faults, run by fault_harness.py.

The command line gives the name of a function and its arguments as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import gc
import hashlib
import importlib
import json
import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.popen_fork
import multiprocessing.util
import os
import random
import re
import resource
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from fault_processes import ignores_interrupts, session_members, workers_of

from headrace import errors
from headrace.data import DataLoader, FrozenList, IterableDataset, get_worker_info
from headrace.data._workers import process_pool, stalls

if TYPE_CHECKING:
    from headrace.fluid import core


def be_quiet() -> None:
    """Discards the expected error output of this process and its children."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def report(result: Any) -> None:
    print(json.dumps(result), flush=True)


class Work:
    """Sample i is an array that depends on i and on the record's generator. In a worker it takes a while."""

    def __init__(self, length: int, seconds: float = 0.0005) -> None:
        self.length = length
        self.seconds = seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int, rng: np.random.Generator) -> Any:
        if get_worker_info() is not None:
            time.sleep(self.seconds)
        return rng.integers(0, 1 << 30, 50), index


class Stream(IterableDataset):
    """The numbers of a range, or of this worker's share of it."""

    def __init__(self, length: int, seconds: float = 0.0002) -> None:
        self.length = length
        self.seconds = seconds

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in range(first, self.length, step):
            if info is not None:
                time.sleep(self.seconds)
            yield np.full(20, number), number


class OfWorker:
    """The stream of worker ``number`` of ``count``, for use in this process."""

    def __init__(self, stream: Stream, number: int, count: int) -> None:
        self.values = range(number, stream.length, count)

    def batches(self, size: int) -> list[Any]:
        samples = [(np.full(20, number), number) for number in self.values]
        return [
            [np.stack([array for array, _ in part]), np.array([number for _, number in part])]
            for part in (samples[begin : begin + size] for begin in range(0, len(samples), size))
        ]


def stack_and_grow(samples: list[Any]) -> Any:
    """Makes a batch of 1 MiB, slowly."""
    if get_worker_info() is not None:
        time.sleep(0.005)
    arrays = np.stack([array for array, _ in samples])
    return {"grown": np.resize(arrays, 1 << 17), "numbers": [number for _, number in samples]}


def digest(batch: Any) -> str:
    """A hash of a batch, bit for bit."""
    state = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, dict):
            for key in sorted(part):
                add(key)
                add(part[key])
        elif isinstance(part, (list, tuple)):
            state.update(f"[{len(part)}".encode())
            for element in part:
                add(element)
        elif isinstance(part, np.ndarray):
            state.update(f"{part.dtype} {part.shape}".encode() + part.tobytes())
        else:
            state.update(repr(part).encode())

    add(batch)
    return state.hexdigest()


# By name: the dataset, and the loader's other arguments.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "map": (Work(400), {"batch_size": 8, "shuffle": True}),
    "collation": (Work(400), {"batch_size": 8, "shuffle": True, "collate_fn": stack_and_grow}),
    "one collator": (
        Work(400),
        {"batch_size": 8, "shuffle": True, "collate_fn": stack_and_grow, "num_workers_batches": 1},
    ),
    "stream": (Stream(2000), {"batch_size": 20}),
    "streams": (Stream(2000), {"batch_size": 20, "iterable_sharding": "dataset"}),
    "single samples": (Work(100), {"batch_size": None, "shuffle": True}),
    "sampler": (Work(400), {"batch_size": 8, "sampler": range(399, -1, -1)}),
}


def make_loader(kind: str, workers: int, context: str, **arguments: Any) -> DataLoader:
    dataset, given = KINDS[kind]
    return DataLoader(dataset, num_workers=workers, multiprocessing_context=context, seed=11, **{**given, **arguments})


class Expected:
    """The batches of an undisturbed run, epoch by epoch."""

    def __init__(self, kind: str, workers: int) -> None:
        self._streams: list[str] | None = None
        dataset, given = KINDS[kind]
        if given.get("iterable_sharding") == "dataset":
            parts = [OfWorker(dataset, number, workers).batches(given["batch_size"]) for number in range(workers)]
            longest = max(map(len, parts))
            turns = [part[turn] for turn in range(longest) for part in parts if turn < len(part)]
            self._streams = [digest(batch) for batch in turns]
        else:
            self._loader = DataLoader(dataset, seed=11, **given)

    def epoch(self, number: int) -> list[str]:
        if self._streams is not None:
            return self._streams
        self._loader.set_epoch(number)
        return [digest(batch) for batch in self._loader]


class Killer(threading.Thread):
    """Kills workers of this process until ``count`` have been killed.

    Args:
        pattern: "random" moments, up to 20 ms apart; "faster" than workers start; "all" workers at once.
    """

    def __init__(self, count: int, pattern: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.killed = 0
        self._count = count
        self._pattern = pattern
        self._random = random.Random(seed)

    def run(self) -> None:
        main = os.getpid()
        while self.killed < self._count:
            pause = {"random": self._random.uniform(0, 0.02), "faster": 0.003, "all": 0.1}[self._pattern]
            time.sleep(pause)
            workers = workers_of(main)
            chosen = workers if self._pattern == "all" else self._random.sample(workers, min(1, len(workers)))
            for pid in chosen:
                try:
                    os.kill(pid, signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:
                    pass


def kills(kind: str, context: str, workers: int, count: int, pattern: str = "random", fed: bool = False) -> None:
    """Iterates over epochs while workers are being killed, and over one more afterwards."""
    warnings.simplefilter("ignore", RuntimeWarning)
    loader = make_loader(kind, workers, context)
    expected = Expected(kind, workers)
    queue = new_queue([[-1, 50], [-1]]) if fed else None
    killer = Killer(count, pattern, seed=count)
    wrong, epochs, quiet = [], 0, False
    while not quiet:
        quiet = epochs > 0 and not killer.is_alive()  # the last epoch sees no kill
        iterator = fed_batches(loader, queue) if queue is not None else iter(loader)
        first = [digest(next(iterator))]
        if epochs == 0:
            killer.start()
        got = first + [digest(batch) for batch in iterator]
        if got != expected.epoch(epochs):
            wrong.append(epochs)
        epochs += 1
    report({"killed": killer.killed, "epochs": epochs, "wrong": wrong})


def new_queue(shapes: list[list[int]]) -> core.LoDTensorBlockingQueue:
    """Few programs, and none of their workers, need the framework, whose import takes a while."""
    import headrace.fluid as fluid

    return fluid.core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 4, shapes)


def fed_batches(loader: DataLoader, queue: core.LoDTensorBlockingQueue) -> Iterator[Any]:
    from headrace.fluid import core

    feed = loader._feed(queue)
    while True:
        try:
            yield [np.asarray(tensor) for tensor in queue.pop(timeout=100)]
        except core.EOFException:
            break
    feed.stop()
    queue.reopen()


def endless(kind: str, context: str) -> None:
    """Iterates forever; prints "ready" once the first batch has arrived."""
    loader = make_loader(kind, 2, context)
    _iterate(loader, lambda: print("ready", flush=True))


def executes(context: str) -> None:
    """Becomes another program in mid-epoch, beside a child that has all its files open."""
    loader = make_loader("map", 2, context)
    iterator = iter(loader)
    next(iterator)
    if os.fork() == 0:
        time.sleep(1000)
    report({"workers": [process.pid for process in loader._epochs.latest_engine().workers.processes]})  # type: ignore[union-attr]
    os.execv("/bin/sleep", ["sleep", "1000"])


def _iterate(loader: DataLoader, on_first: Callable[[], object]) -> None:
    first = True
    while True:
        for _ in loader:
            if first:
                on_first()
                first = False


WAYS_TO_END = ("SIGKILL", "SIGTERM", "SIGINT", "segfault", "os._exit", "killed beside a stopped worker")


def ends(count: int, seed: int) -> None:
    """Forks main processes that end in every way, at random moments. Reports for each: for how many seconds its workers
    outlived it, in how many of them some process waited for a processor, and how it ended.
    """
    chance = random.Random(seed)
    reports = []
    for number in range(count):
        way = WAYS_TO_END[number % len(WAYS_TO_END)]
        kind = chance.choice(["map", "collation", "stream", "single samples"])
        readable, writable = os.pipe()
        main = os.fork()
        if main == 0:
            _be_main_process(kind, lambda: os.write(writable, b"."))  # noqa: B023
        os.close(writable)
        if chance.random() < 0.7:
            os.read(readable, 1)
        time.sleep(chance.uniform(0, 0.06))
        os.close(readable)
        _end(main, way, chance)
        os.waitpid(main, 0)
        begin, starved = time.monotonic(), starved_seconds()
        while _others() and time.monotonic() - begin < 20:
            time.sleep(0.005)
        reports.append((time.monotonic() - begin, starved_seconds() - starved, way))
        for pid in _others():
            os.kill(pid, signal.SIGKILL)
    report(sorted(reports))


def starved_seconds() -> float:
    """Seconds, from some moment on, in which some process has waited for a processor; all, if the kernel has no PSI."""
    try:
        with open("/proc/pressure/cpu") as file:
            return int(re.findall(r"some .* total=(\d+)", file.read())[0]) / 1e6
    except OSError:
        return time.monotonic()


def _be_main_process(kind: str, on_first: Callable[[], object]) -> None:
    os.setpgid(0, 0)
    be_quiet()
    signal.signal(signal.SIGUSR1, lambda *_: ctypes.string_at(0))
    signal.signal(signal.SIGUSR2, lambda *_: os._exit(3))
    try:
        _iterate(make_loader(kind, 2, "fork"), on_first)
    except KeyboardInterrupt:
        sys.exit(4)


def _end(main: int, way: str, chance: random.Random) -> None:
    if way == "SIGINT":  # as from a terminal: to the whole group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(main, signal.SIGINT)
        time.sleep(0.2)
        # While a process starts, an import statement may swallow an interrupt.
        os.kill(main, signal.SIGINT)
    elif way == "killed beside a stopped worker":
        # What is stopped before it has run an instruction learns of nothing until it goes on.
        started = [pid for pid in workers_of(main) if ignores_interrupts(pid)]
        if started:
            os.kill(chance.choice(started), signal.SIGSTOP)
        os.kill(main, signal.SIGKILL)
    else:
        numbers = {"segfault": signal.SIGUSR1, "os._exit": signal.SIGUSR2}
        number = numbers.get(way)
        os.kill(main, number if number is not None else getattr(signal, way))


def _others() -> list[int]:
    """The other processes of this session, except its leader."""
    session = os.getsid(0)
    return [pid for pid in session_members(session) if pid not in (session, os.getpid())]


class Hanging:
    """Sample 21 hangs in a worker: once, if ``memory`` names a file that records it; else always."""

    def __init__(self, length: int, how: str, memory: str = "") -> None:
        self.length = length
        self.how = how
        self.memory = memory

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == 21 and get_worker_info() is not None and not (self.memory and os.path.exists(self.memory)):
            if self.memory:
                with open(self.memory, "w") as file:
                    file.write(str(os.getpid()))
            hang_here(self.how)
        return index


def hang_here(how: str) -> None:
    while True:
        if how == "in Python":
            threading.Event().wait(1000)
        elif how == "in C":
            ctypes.CDLL(None).sleep(1000)
        elif how == "without a main thread":
            ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
        else:
            ctypes.PyDLL(None).sleep(1000)


def patiently(iterator: Iterator[Any]) -> tuple[list[Any], list[str]]:
    """The batches of an epoch as lists, or the text of the error in their place, and the timeouts that came between."""
    got: list[Any] = []
    timeouts: list[str] = []
    while True:
        try:
            got.append(next(iterator).tolist())
        except StopIteration:
            return got, timeouts
        except errors.Timeout as error:
            timeouts.append(str(error))
        except RuntimeError as error:
            got.append(str(error))
            assert len(got) < 1000, f"the epoch does not end: {got[-1]}"


def hang(how: str, context: str, workers: int) -> None:
    """One worker hangs, once."""
    warnings.simplefilter("ignore", RuntimeWarning)
    memory = os.path.join(os.environ["TMPDIR"], "hung")
    loader = DataLoader(
        Hanging(40, how, memory), batch_size=4, num_workers=workers, multiprocessing_context=context, timeout=1
    )
    whole = [list(range(begin, begin + 4)) for begin in range(0, 40, 4)]
    got, timeouts = patiently(iter(loader))
    with open(memory) as file:
        pid = int(file.read())
    later, _ = patiently(iter(loader))
    named = [text for text in timeouts if "index 21" in text]
    os.remove(memory)  # must not be reported as left
    alive = os.path.exists(f"/proc/{pid}")
    report(
        {
            "error": named[0] if named else repr(timeouts),
            "pid": pid,
            "alive": alive,
            "exact": got == whole,
            "later": later == whole,
        }
    )


def lifeless(timeout: float) -> None:
    """A worker ends its main thread, once; the loader looks for that often."""
    stalls._LOOK_EVERY = 0.2
    memory = os.path.join(os.environ["TMPDIR"], "ended")
    loader = DataLoader(Hanging(40, "without a main thread", memory), batch_size=4, num_workers=2, timeout=timeout)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = [batch.tolist() for batch in loader]
    os.remove(memory)  # must not be reported as left
    whole = [list(range(begin, begin + 4)) for begin in range(0, 40, 4)]
    report({"exact": got == whole, "warned": [str(each.message) for each in caught]})


def hang_always() -> None:
    """A sample hangs every time."""
    warnings.simplefilter("ignore", RuntimeWarning)
    loader = DataLoader(Hanging(40, "in Python"), batch_size=4, num_workers=2, timeout=1, max_deaths_per_sample=2)
    got, timeouts = patiently(iter(loader))
    whole = [list(range(begin, begin + 4)) for begin in range(0, 40, 4)]
    report(
        {
            "timeouts": len([text for text in timeouts if "index 21" in text]),
            "given_up": got[5],
            "rest": got[:5] + got[6:] == whole[:5] + whole[6:],
        }
    )


def hang_all() -> None:
    """All workers hang; the epoch is abandoned, and the next one works."""
    warnings.simplefilter("ignore", RuntimeWarning)
    memory = os.path.join(os.environ["TMPDIR"], "hung")
    loader = DataLoader(Hanging(40, "in C with the lock", memory), batch_size=4, num_workers=1, timeout=1)
    iterator = iter(loader)
    with contextlib.suppress(errors.Timeout):
        while True:
            next(iterator)
    got, _ = patiently(iter(loader))
    os.remove(memory)
    report({"later": len(got) == 10})


class HangingStream(IterableDataset):
    """The numbers of a range. Reading number 21 hangs in a worker, once; ``memory`` names a file that records it."""

    def __init__(self, memory: str) -> None:
        self.memory = memory

    def __iter__(self) -> Iterator[int]:
        for number in range(40):
            yield Hanging(40, "in Python", self.memory)[number]


def hang_in_a_read() -> None:
    """A stream hangs in a read, once."""
    warnings.simplefilter("ignore", RuntimeWarning)
    memory = os.path.join(os.environ["TMPDIR"], "hung")
    loader = DataLoader(HangingStream(memory), batch_size=4, num_workers=1, timeout=1)
    got, timeouts = patiently(iter(loader))
    os.remove(memory)
    named = [text for text in timeouts if "hang_here" in text]
    whole = [list(range(begin, begin + 4)) for begin in range(0, 40, 4)]
    report({"exact": got == whole, "timeouts": len(named), "deaths": loader.stats()["worker_deaths"]})


def hang_in_worker_init_fn() -> None:
    """A ``worker_init_fn`` never ends."""
    loader = DataLoader(
        range(8), num_workers=1, timeout=1, worker_init_fn=lambda _: hang_here("in Python"), persistent_workers=True
    )
    iterator = iter(loader)
    workers = workers_of(os.getpid())
    timeouts: list[str] = []
    while len([text for text in timeouts if "hang_here" in text]) < 2:
        try:
            next(iterator)
        except errors.Timeout as error:
            timeouts.append(str(error))
    same, deaths = workers_of(os.getpid()) == workers, loader.stats()["worker_deaths"]
    del iterator
    loader.shutdown()
    report({"timeouts": timeouts, "same": same, "deaths": deaths, "left": workers_of(os.getpid())})


class SlowToCatchUp(IterableDataset):
    """The numbers of a range, the first 20 of them slowly in a worker if ``slow``."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __iter__(self) -> Iterator[int]:
        for number in range(40):
            if self.slow and number < 20 and get_worker_info() is not None:
                time.sleep(0.15)
            yield number


def slow_to_catch_up() -> None:
    """A stream is resumed, and takes longer than the timeout to come to where it was left."""
    first = DataLoader(SlowToCatchUp(False), batch_size=4, num_workers=1)
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    loader = DataLoader(SlowToCatchUp(True), batch_size=4, num_workers=1, timeout=1)
    loader.load_state_dict(first.state_dict())
    got, timeouts = patiently(iter(loader))
    rest = [list(range(begin, begin + 4)) for begin in range(20, 40, 4)]
    deaths = loader.stats()["worker_deaths"]
    report({"exact": got == rest, "timeouts": timeouts, "deaths": deaths})


def hang_fed() -> None:
    """A worker hangs while its batches are fed into a queue."""
    warnings.simplefilter("ignore", RuntimeWarning)
    queue = new_queue([[-1]])
    loader = DataLoader(Hanging(40, "in C"), batch_size=4, num_workers=2, timeout=5)  # workers may start slowly
    feed = loader._feed(queue)
    try:
        while True:
            queue.pop(timeout=100)
    except Exception as error:
        report({"error": str(error)})
    feed.stop()


def stopped(kind: str) -> None:
    """Stops one of two workers for a while in each epoch; then it continues or is killed."""
    warnings.simplefilter("ignore", RuntimeWarning)
    loader = make_loader(kind, 2, "fork")
    expected = Expected(kind, 2)
    wrong, finished = [], 0
    ends = [(2.0, signal.SIGCONT), (0.2, signal.SIGKILL), (0.2, signal.SIGCONT), (0.5, signal.SIGKILL)]
    for epoch, (seconds, end) in enumerate(ends):
        iterator = iter(loader)
        got = [digest(next(iterator))]
        worker = workers_of(os.getpid())[epoch % 2]
        os.kill(worker, signal.SIGSTOP)
        if kind in ("map", "single samples"):
            # The other one finishes all that is made ahead, except the batch of which the stopped one holds rows.
            while loader.stats()["ready_batches"] < loader.prefetch_factor - 1:
                time.sleep(0.005)
            finished += 1
        thread = threading.Timer(seconds, os.kill, (worker, end))
        thread.start()
        got += [digest(batch) for batch in iterator]
        thread.join()
        if got != expected.epoch(epoch):
            wrong.append(epoch)
    report({"wrong": wrong, "finished without it": finished})


class Raising(Work):
    def __getitem__(self, index: int, rng: np.random.Generator) -> Any:
        if index == 5:
            raise ValueError("x" * 40_000_000)
        return index


def long_error() -> None:
    """Raises an error whose message does not fit the slots."""
    iterator = iter(DataLoader(Raising(12), batch_size=2, num_workers=1))
    batches, error = 0, None
    while True:
        try:
            next(iterator)
            batches += 1
        except StopIteration:
            break
        except Exception as raised:
            error = raised
    cause: Any = error.__cause__ if error is not None else None
    report(
        {
            "type": type(error).__name__,
            "index": getattr(cause, "sample_index", None),
            "begin": str(error)[:60],
            "rest": batches,
        }
    )


class Deadly:
    """Some samples always end their worker."""

    def __init__(self, length: int, how: str, deadly: tuple[int, ...]) -> None:
        self.length = length
        self.how = how
        self.deadly = deadly

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.deadly and get_worker_info() is not None:
            if self.how == "segfault":
                ctypes.string_at(0)
            elif self.how == "abort":
                os.abort()
            elif self.how == "os._exit":
                os._exit(9)
            elif self.how == "out of memory":
                held = []
                while True:
                    held.append(b"x" * (1 << 24))
            else:
                os.kill(os.getpid(), getattr(signal, self.how))
        return index


def deadly(
    how: str, kind: str, on_worker_death: str, tries: int, count: int = 1, samples: Sequence[int] = (5, 22)
) -> None:
    """Two of 40 samples, or those named, always end their worker."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    be_quiet()
    arguments: dict[str, Any] = {"collate_fn": sum_up} if kind == "collation" else {}
    loader = DataLoader(
        Deadly(40, how, tuple(samples)),
        batch_size=4,
        num_workers=2,
        max_deaths_per_sample=tries,
        on_worker_death=on_worker_death,
        **arguments,
    )
    epochs = []
    for _ in range(count):
        got: list[Any] = []
        iterator = iter(loader)
        while True:
            try:
                got.append(next(iterator).tolist())
            except StopIteration:
                break
            except errors.WorkerDied as error:
                got.append([error.sample_index, str(error)])
        epochs.append(got)
    report({"epochs": epochs, "stats": {name: loader.stats()[name] for name in ("worker_deaths", "skipped_samples")}})


class DeadlyStream(IterableDataset):
    """The numbers of a range, or of this worker's share of it; ``deadly`` always ends the worker."""

    def __init__(self, length: int, how: str, deadly: int) -> None:
        self.length = length
        self.samples = Deadly(length, how, (deadly,))

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        return map(self.samples.__getitem__, range(first, self.length, step))


def deadly_element(how: str, sharding: str, workers: int, context: str) -> None:
    """Number 9 of a stream always ends its worker, in each of two epochs."""
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    be_quiet()
    loader = DataLoader(
        DeadlyStream(40, how, 9),
        batch_size=2,
        num_workers=workers,
        multiprocessing_context=context,
        iterable_sharding=sharding,
    )
    epochs = []
    for _ in range(2):
        got: list[Any] = []
        iterator = iter(loader)
        while True:
            try:
                got.append(next(iterator).tolist())
            except StopIteration:
                break
            except errors.WorkerDied as error:
                got.append(str(error))
        epochs.append(got)
    report(epochs)


class SlowStream(IterableDataset):
    """The numbers of a range; each is announced on ``pipe``, and takes a while."""

    def __init__(self, length: int, pipe: int) -> None:
        self.length = length
        self.pipe = pipe

    def __iter__(self) -> Iterator[int]:
        for number in range(self.length):
            os.write(self.pipe, b".")
            time.sleep(0.05)
            yield number


def bursts(workers: int, count: int) -> None:
    """All workers of a slow stream are killed at once, each time while elements are being made."""
    warnings.simplefilter("ignore", RuntimeWarning)
    read_end, write_end = os.pipe()
    loader = DataLoader(SlowStream(12, write_end), batch_size=2, num_workers=workers, multiprocessing_context="fork")

    def kill_all() -> None:
        main = os.getpid()
        for _ in range(count):
            os.read(read_end, 1 << 16)  # what came before the latest burst
            os.read(read_end, 1)
            time.sleep(0.02)
            for pid in workers_of(main):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_all, daemon=True)
    killer.start()
    got = [batch.tolist() for batch in loader]
    report({"got": got, "deaths": loader.stats()["worker_deaths"]})


def sum_up(samples: list[int]) -> Any:
    return np.array([sum(samples), *samples])


class Big:
    """Samples of 4 MiB."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.full(1 << 22, index, np.uint8)


def big_batches(context: str) -> None:
    """Makes batches of 16 MiB, and keeps all six."""
    loader = DataLoader(Big(), batch_size=4, num_workers=2, multiprocessing_context=context)
    try:
        kept = list(loader)
    except errors.ResourceExhausted as error:
        report({"ok": False, "error": str(error)})
        return
    good = [
        int(batch[row].min()) == int(batch[row].max()) == 4 * number + row
        for number, batch in enumerate(kept)
        for row in range(4)
    ]
    report({"ok": good == [True] * 24})


def memfd_noexec() -> None:
    try:
        with open("/proc/sys/vm/memfd_noexec") as file:
            state = file.read().strip()
    except OSError:
        state = ""
    loader = DataLoader(Work(40), batch_size=4, num_workers=2)
    names = DataLoader(FrozenList(["a", "b", "c", "d"]), batch_size=2, num_workers=1)
    report({"noexec": state, "ok": len(list(loader)) == 10 and list(names) == [["a", "b"], ["c", "d"]]})


def few_descriptors(context: str, limit: int) -> None:
    """Starts loaders under a limit that allows a few workers, but not many."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    works = len(list(DataLoader(Work(40), batch_size=4, num_workers=4, multiprocessing_context=context))) == 10
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    error = ""
    for _ in range(3):
        try:
            iter(DataLoader(Work(40), batch_size=4, num_workers=30, multiprocessing_context=context))
        except OSError as raised:
            error = str(raised)
    gc.collect()
    report({"works": works, "error": error, "leaked": len(os.listdir("/proc/self/fd")) - before})


def little_stack(context: str) -> None:
    """Starts workers whose interpreters have no room for their stacks."""
    be_quiet()
    resource.setrlimit(resource.RLIMIT_STACK, (4096, 4096))
    try:
        error = ""
        list(DataLoader(Work(8), batch_size=4, num_workers=2, multiprocessing_context=context))
    except (errors.WorkerDied, errors.FailedPrecondition) as raised:
        error = str(raised)
    report({"error": error, "left": workers_of(os.getpid())})


def ever_more_descriptors() -> None:
    """Iterates with each number of free descriptors, from none on; reports what was raised."""
    be_quiet()

    def outcome() -> str:
        try:
            batches = list(DataLoader(Work(8), batch_size=4, num_workers=2, multiprocessing_context="fork"))
        except OSError as raised:
            return str(raised)
        return "" if len(batches) == 2 else f"{len(batches)} batches"

    outcomes = [outcome()]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = os.open("/", os.O_PATH)  # the first that is free
    os.close(taken)
    for more in range(32):
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + more, limits[1]))
        outcomes.append(outcome())
        gc.collect()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    report(outcomes)


def many_workers(context: str) -> None:
    be_quiet()
    error = ""
    try:
        iter(DataLoader(Work(40), batch_size=4, num_workers=20, multiprocessing_context=context))
    except (OSError, RuntimeError) as raised:
        error = str(raised)
    gc.collect()
    left = workers_of(os.getpid())
    if context == "forkserver":  # which, ending, has told multiprocessing nothing of workers that it had started
        left = [pid for pid in left if ignores_interrupts(pid)]
    report({"error": error, "left": left})


def one_process_more(cgroup: str) -> None:
    """Starts a worker where the limit on processes allows it no second thread."""
    warnings.simplefilter("ignore")
    with open(os.path.join(cgroup, "pids.current")) as file:
        now = int(file.read())
    with open(os.path.join(cgroup, "pids.max"), "w") as file:
        file.write(str(now + 1))
    error = ""
    try:
        next(iter(DataLoader(Work(40), batch_size=4, num_workers=1)))
    except (RuntimeError, MemoryError) as raised:
        error = str(raised)
    report({"error": error})


def forbid(number: int, error: int) -> None:
    """Makes a system call fail with that error from now on, as a container's strict seccomp profile does."""
    code = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 0, 1, number),  # if it is that one
        (0x06, 0, 0, 0x00050000 | error),  # fail
        (0x06, 0, 0, 0x7FFF0000),  # else allow
    ]
    program = (ctypes.c_uint64 * len(code))(*(op | jt << 16 | jf << 24 | k << 32 for op, jt, jf, k in code))

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    given = Filter(len(code), ctypes.addressof(program))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(given), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no seccomp filter")


def forbidden_call(call: str, error: str) -> None:
    forbid({"pidfd_open": 434, "memfd_create": 319}[call], getattr(errno, error))
    got: dict[str, Any] = {"error": "", "threads": False, "in process": False}
    try:
        iter(DataLoader(Work(40), batch_size=4, num_workers=2))
    except OSError as raised:
        got["error"] = str(raised)
    with contextlib.suppress(OSError):
        got["threads"] = len(list(DataLoader(Work(40), batch_size=4, num_workers=2, workers="thread"))) == 10
    with contextlib.suppress(OSError):
        got["in process"] = len(list(DataLoader(Work(40), batch_size=4))) == 10
    report(got)


def few_processes(more: int) -> None:
    """Starts workers as a user who may have only so many more processes and threads."""
    warnings.simplefilter("ignore")
    be_quiet()
    for name in ("multiprocessing.popen_fork", "numpy.random"):  # from where only root may read
        importlib.import_module(name)
    user = 40_000 + os.getpid() % 20_000  # who has no other processes
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    threads = len(os.listdir("/proc/self/task"))
    resource.setrlimit(resource.RLIMIT_NPROC, (threads + more, threads + more))
    error = ""
    try:
        next(iter(DataLoader(Work(40), batch_size=4, num_workers=1, multiprocessing_context="fork")))
    except (RuntimeError, OSError, MemoryError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    gc.collect()
    report({"error": error})


def another_user(context: str) -> None:
    """Starts as root and becomes another user, as servers do."""
    for name in ("multiprocessing.popen_fork", "numpy.random"):  # from where only root may read
        importlib.import_module(name)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    loader = DataLoader(Work(40), batch_size=4, num_workers=2, multiprocessing_context=context)
    report({"ok": len(list(loader)) == 10})


def forks(way: str, context: str) -> None:
    """Forks in the middle of an epoch; the children end."""
    loader = make_loader("map", 2, context)
    expected = Expected("map", 2)
    wrong = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        for epoch in range(2):
            got = []
            for number, batch in enumerate(loader):
                got.append(digest(batch))
                if number % 20 == 5:
                    child = os.fork()
                    if child == 0:
                        if way == "os._exit":
                            os._exit(0)
                        elif way == "sys.exit":
                            sys.exit(0)
                        return
                    os.waitpid(child, 0)
            if got != expected.epoch(epoch):
                wrong.append(epoch)
    report(
        {
            "wrong": wrong,
            "worker_deaths": loader.stats()["worker_deaths"],
            # Python 3.12 and newer also warn of any fork of a process with threads, such as those of OpenBLAS.
            "warnings": [str(each.message) for each in caught if issubclass(each.category, RuntimeWarning)],
        }
    )


class Nested:
    """Each sample is the sum of the batches of a loader of its own."""

    def __init__(self, workers: str) -> None:
        self.workers = workers

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return sum(
            int(batch.sum()) for batch in DataLoader(range(10), batch_size=2, num_workers=2, workers=self.workers)
        )


def nested(context: str, workers: str) -> None:
    sums, error = [], ""
    try:
        sums = [int(batch[0]) for batch in DataLoader(Nested(workers), num_workers=1, multiprocessing_context=context)]
    except RuntimeError as raised:
        error = str(raised)
    report({"sums": sums, "error": error})


class Noted:
    """Takes a while, and records in a file each sample that is begun."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        with open(os.path.join(os.environ["TMPDIR"], "begun"), "a") as file:
            file.write(f"{index}\n")
        time.sleep(0.02 + index % 7 * 0.01)
        return index


def let_go() -> None:
    """Lets a worker with four threads go in the middle of an epoch."""
    loader = DataLoader(Noted(), batch_size=4, num_workers=2, threads_per_worker=4, persistent_workers=False)
    iterator = iter(loader)
    got = [next(iterator).tolist()]
    engine = loader._epochs.latest_engine()
    assert engine is not None
    engine.workers.resize(1)
    got += [batch.tolist() for batch in iterator]
    path = os.path.join(os.environ["TMPDIR"], "begun")
    with open(path) as file:
        begun = [int(line) for line in file]
    del iterator, engine
    loader.shutdown()
    os.remove(path)
    report(
        {
            "made twice": sorted({index for index in begun if begun.count(index) > 1}),
            "exact": sum(got, []) == list(range(60)),  # noqa: RUF017
        }
    )


def dies_while_ready() -> None:
    """Kills a worker while the consumer always finds a batch ready."""
    warnings.simplefilter("ignore", RuntimeWarning)
    loader = DataLoader(range(100_000), batch_size=10, num_workers=2, prefetch_factor=64)
    iterator = iter(loader)
    got = [next(iterator) for _ in range(20)]
    victim = min(workers_of(os.getpid()))
    ended = os.pidfd_open(victim)
    os.kill(victim, signal.SIGKILL)
    select.select([ended], [], [])  # a zombie may still have threads
    time.sleep(0.05)  # longer than the 20 ms between two checks for deaths
    replaced = 0
    for batch in iterator:
        got.append(batch)
        if loader.stats()["worker_deaths"]:
            break
        replaced += 1
    deadline = time.monotonic() + 100
    while len(workers_of(os.getpid())) != 2 and time.monotonic() < deadline:
        time.sleep(0.001)  # for a moment a forked worker bears the template's name
    after = len(workers_of(os.getpid()))
    got += list(iterator)
    exact = np.concatenate(got).tolist() == list(range(100_000))
    report({"replaced after batches": replaced, "workers after": after, "exact": exact})


def cpu_seconds() -> float:
    """The processor time of this process and its live children."""
    ticks = 0
    for pid in [os.getpid(), *_others()]:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rests(kinds: list[str], seconds: float) -> None:
    """Takes a few batches of each loader, and then none for a while."""
    loaders = [make_loader(kind, 3, "fork") for kind in kinds]
    iterators = [iter(loader) for loader in loaders]
    got = [[digest(next(iterator)) for _ in range(3)] for iterator in iterators]
    while any(loader.stats()["ready_batches"] < loader.prefetch_factor for loader in loaders):
        time.sleep(0.05)
    before, resident = cpu_seconds(), [loader.stats()["resident_bytes"] for loader in loaders]
    time.sleep(seconds)
    spent = cpu_seconds() - before
    grown = [loader.stats()["resident_bytes"] - then for loader, then in zip(loaders, resident)]
    for iterator, batches in zip(iterators, got):
        batches += [digest(batch) for batch in iterator]
    exact = [batches == Expected(kind, 3).epoch(0) for kind, batches in zip(kinds, got)]
    report({"spent": spent, "grown": grown, "exact": exact})


class Huge:
    """Samples of 32 MiB."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return np.full(32 << 20, index, np.uint8)


def more_than_memory() -> None:
    """Has more batches made ahead than fit into memory."""
    warnings.simplefilter("ignore")
    be_quiet()
    loader = DataLoader(Huge(), batch_size=2, num_workers=2, prefetch_factor=8)
    error = ""
    iterator = iter(loader)
    try:
        next(iterator)
        workers, deadline = set(workers_of(os.getpid())), time.monotonic() + 5
        while workers <= set(workers_of(os.getpid())) and time.monotonic() < deadline:
            time.sleep(0.05)  # until one is killed
        for _ in iterator:
            pass
    except RuntimeError as raised:
        error = str(raised)
    report({"error": error})


class KeepsPlaces:
    """Keeps the places of its samples, of 32 MiB each. At sample 3 there is no address space for another one."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int, out: Any = None) -> Any:
        if out is None:
            return np.full(32 << 20, index, np.uint8)
        self.kept.append(out)
        out[:] = index
        if index == 3:
            with open("/proc/self/statm") as file:
                space = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (space + (16 << 20), resource.RLIM_INFINITY))
            raise ValueError("mine")
        return out


def keeps_places() -> None:
    """Fails while a place that was kept cannot get memory of its own."""
    dataset = KeepsPlaces()
    iterator = iter(DataLoader(dataset, batch_size=1, num_workers=1, workers="thread", prefetch_factor=1, timeout=30))
    got: list[Any] = []
    for _ in range(6):
        try:
            got.append(int(next(iterator)[0, 0]))
        except (ValueError, errors.Timeout) as error:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            got.append(f"{type(error).__name__}: {error}")
    report({"got": got, "kept": [np.unique(place).tolist() for place in dataset.kept]})


def flush_late(folder: str, worker: int) -> None:
    time.sleep(2)
    open(os.path.join(folder, str(worker)), "w").close()


def flush_at_exit(folder: str, worker: int) -> None:
    multiprocessing.util.Finalize(None, flush_late, args=(folder, worker), exitpriority=1)
    open(os.path.join(folder, f"begun {worker}"), "w").close()


def flushes(folder: str, context: str) -> None:
    """Has workers that write something down as they end, as profilers and loggers do. Reports whose notes there are."""
    init = functools.partial(flush_at_exit, folder)
    loader = DataLoader(Work(400), 4, num_workers=3, worker_init_fn=init, multiprocessing_context=context)
    iterator = iter(loader)
    next(iterator)
    while len(os.listdir(folder)) < 3:
        time.sleep(0.005)
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
    process_pool.GRACE = 60.0  # two seconds may become more than five on a busy machine
    begin = time.monotonic()
    loader.shutdown()
    report({"notes": sorted(os.listdir(folder)), "seconds": time.monotonic() - begin})


def preloads(way: str) -> None:
    """Starts workers by a forkserver. Reports the private memory of each, in MiB, and what the forkserver imported."""
    if way == "own":
        multiprocessing.set_forkserver_preload(["json"])
    elif way == "running":
        multiprocessing.forkserver.ensure_running()
    elif way == "torch":
        importlib.import_module("torch")
    loader = DataLoader(Work(64), batch_size=4, num_workers=8, multiprocessing_context="forkserver")
    assert len(list(loader)) == 16
    assert len(list(loader)) == 16
    private = []
    for process in loader._epochs.latest_engine().workers.processes:  # type: ignore[union-attr]
        with open(f"/proc/{process.pid}/smaps_rollup") as file:
            private.append(sum(int(line.split()[1]) for line in file if line.startswith("Private_")) / 1024)
    report({"private": private, "modules": multiprocessing.forkserver._forkserver._preload_modules})


def _report_mask(to: Any) -> None:
    to.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))


def other_process() -> None:
    """Starts workers by a forkserver, then a process of the program's own. Reports whether that is deaf to Ctrl-C."""
    loader = DataLoader(Work(8), batch_size=4, num_workers=1, multiprocessing_context="forkserver")
    assert len(list(loader)) == 2
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("forkserver").Process(target=_report_mask, args=(theirs,))
    process.start()
    report({"deaf": ours.recv()})
    process.join()


class KeepsBatches:
    """Samples of 1 MiB, which take a little while."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        return np.full(1 << 20, index, np.uint8)


def keeps_batches() -> None:
    """Keeps batches until memory runs out."""
    warnings.simplefilter("ignore")
    be_quiet()
    kept: list[Any] = []
    error, progress = "", time.monotonic()
    try:
        for batch in DataLoader(KeepsBatches(), batch_size=4, num_workers=2):
            kept.append(batch)
            progress = time.monotonic()
    except RuntimeError as raised:
        error = str(raised)
    report({"error": error, "kept": len(kept), "seconds": time.monotonic() - progress})


def exits_beside_a_thread(count: int, workers: int) -> None:
    """Forks main processes that end while a daemon thread of theirs iterates."""
    chance = random.Random(count)
    statuses = []
    for _ in range(count):
        seconds = chance.uniform(0.02, 0.2)
        child = os.fork()
        if child == 0:
            loader = DataLoader(Work(400), batch_size=8, num_workers=workers)
            threading.Thread(target=_iterate, args=(loader, int), daemon=True).start()
            time.sleep(seconds)
            return
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    report(sorted(set(statuses)))


def exits_while_workers_start() -> None:
    """Ends while a daemon thread is between the starts of two workers. multiprocessing waits for the second one."""
    main_may_end, terminated = threading.Event(), threading.Event()
    terminate = multiprocessing.popen_fork.Popen.terminate

    def terminate_and_rest(popen: Any) -> None:
        terminate(popen)
        terminated.set()
        time.sleep(0.5)  # in which the second worker could start

    class Fork(multiprocessing.context.ForkContext):
        def Process(self, *args: Any, name: str, **kwargs: Any) -> Any:  # type: ignore[override]
            if name == "headrace-worker-1":
                main_may_end.set()
                terminated.wait()
            return super().Process(*args, name=name, **kwargs)

    multiprocessing.popen_fork.Popen.terminate = terminate_and_rest  # type: ignore[method-assign]
    loader = DataLoader(Work(400), batch_size=8, num_workers=2, multiprocessing_context=Fork())
    threading.Thread(target=_iterate, args=(loader, int), daemon=True).start()
    main_may_end.wait()
    report("ends")


def main() -> None:
    print(os.getpid(), flush=True)
    # As at a terminal: in a shell's background job, which may run the tests, Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    globals()[sys.argv[1]](*json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
