"""An interrupt while a loader gives a batch: the next call gives that batch, and until then the state says so."""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import multiprocessing
import random
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm
from loader_datasets import Ints, Raising, Vectors, same

import headrace
from headrace.data import DataLoader, IterableDataset, RandomSampler
from headrace.data._iteration.iterator import BatchIterator

# A garbage collection on the way may run finalizers of other loaders, in which Python reports an interrupt as ignored.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

OWN = str(Path(headrace.__file__).parent)


class Count(IterableDataset[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Objects(Ints):
    """Samples that Python code in the main process puts together."""

    def __getitem__(self, index: int) -> Any:
        return {"array": np.full((2, 3), index), "text": f"number {index}", "more": [(index, b"x"), {"y": index * 0.5}]}


def sums(samples: list[int]) -> Any:
    return [np.array(samples), sum(samples)]


LOADERS: dict[str, Callable[..., DataLoader]] = {
    "in this process": lambda: DataLoader(Objects(6), 2),
    "two workers": lambda: DataLoader(Objects(6), 2, num_workers=2),
    "threads": lambda: DataLoader(Objects(6), 2, num_workers=2, workers="thread"),
    "a collate_fn": lambda: DataLoader(Ints(6), 2, num_workers=2, collate_fn=sums),
    "a sampler with random access": lambda: DataLoader(
        Ints(12), 3, num_workers=1, sampler=RandomSampler(Ints(12), generator=1)
    ),
    "a sampler of another kind": lambda: DataLoader(Ints(12), 2, sampler=[5, 3, 11, 7, 1]),
    "a batch sampler": lambda: DataLoader(Ints(12), batch_sampler=[[5, 3], [11, 7, 1], [0]], num_workers=1),
    "Grain's order": lambda: DataLoader(Ints(7), 2, shuffle=True, seed=3, num_workers=2, order="grain"),
    "a stream in this process": lambda: DataLoader(Count(5), 2),
    "a common stream": lambda: DataLoader(Count(5), 2, num_workers=2),
    "streams of the workers' own": lambda: DataLoader(Count(5), 2, num_workers=2, iterable_sharding="dataset"),
    "no batches": lambda: DataLoader(Vectors(3), None, num_workers=1),
    "a progress bar": lambda: DataLoader(Ints(6), 2, num_workers=1, progress=True),
    "batches in any order": lambda: DataLoader(Ints(6), 2, in_order=False),
}


# An exception that is raised before one of these would leave the one that is being handled behind.
END_OF_HANDLER = ("COPY", "POP_EXCEPT", "PUSH_EXC_INFO", "RERAISE")


@functools.cache
def steps(code: types.CodeType) -> frozenset[int]:
    """A superset of the instructions before which CPython may run a signal handler.

    Excluded is the end of an exception handler.
    """
    return frozenset(
        instruction.offset for instruction in dis.get_instructions(code) if instruction.opname not in END_OF_HANDLER
    )


@functools.cache
def moments(code: types.CodeType) -> frozenset[int]:
    """The instructions before which CPython may run a signal handler: since 3.11 only after a call, at the start of a
    function and at the start of a loop's iteration.
    """
    if sys.version_info < (3, 11):
        return steps(code)
    instructions = list(dis.get_instructions(code))
    names = ["", *(instruction.opname for instruction in instructions)]
    return frozenset(
        instruction.offset
        for before, instruction in zip(names, instructions)
        if before.startswith(("CALL", "JUMP_BACKWARD", "RESUME"))
        and not before.startswith("CALL_INTRINSIC")
        and instruction.opname not in (*END_OF_HANDLER, "RETURN_VALUE")
    )


def moments_and_all_of_an_iteration(code: types.CodeType) -> frozenset[int]:
    """Where CPython runs signal handlers, and wherever it could where a batch changes hands."""
    return steps(code) if code.co_filename == BatchIterator._advance.__code__.co_filename else moments(code)


@contextlib.contextmanager
def struck_at(step: int, candidates: Callable[[types.CodeType], frozenset[int]] = steps) -> Iterator[list[str]]:
    """Raises KeyboardInterrupt before the ``step``-th candidate in headrace that runs. The list then tells where."""
    places: list[str] = []
    left = step

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OWN):
            return None
        frame.f_trace_opcodes = True
        among = candidates(frame.f_code)  # once per call: to hash code takes long

        def trace_call(frame: types.FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if event == "opcode" and frame.f_lasti in among:
                left -= 1
                if left == 0:
                    places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
                    raise KeyboardInterrupt
            return trace_call

        return trace_call

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield places
    finally:
        sys.settrace(before)


def place(loader: DataLoader) -> tuple[int, int]:
    """The next epoch and batch."""
    state = loader.state_dict()
    return state["epoch"], state["batch"]


@pytest.mark.parametrize("name", LOADERS)
def test_an_interrupt_before_any_bytecode_loses_no_batch(name: str) -> None:
    expected = list(LOADERS[name]())
    loader = LOADERS[name]()
    iterator = iter(loader)
    got: list[Any] = []
    strikes = 0
    ended = False
    while not ended:
        for step in range(1, 100_000):
            with struck_at(step) as places:
                try:
                    got.append(next(iterator))
                except KeyboardInterrupt:
                    strikes += 1
                except StopIteration:
                    ended = True
            if not places or ended:
                break
            assert place(loader) in ((0, len(got)), (1, 0)), places
        assert len(got) <= len(expected)
        assert place(loader) == ((1, 0) if ended else (0, len(got)))
    assert strikes > 100
    assert same(got, expected)


class Broken:
    """A sampler that fails in the middle of an epoch."""

    def __iter__(self) -> Iterator[int]:
        yield from (3, 1)
        raise LookupError("no more indices")


FAILING: dict[str, tuple[Callable[..., DataLoader], list[Any]]] = {
    "a dataset": (lambda **more: DataLoader(Raising(5, 2), **more), [[0], [1], KeyError, [3], [4]]),
    "a sampler": (lambda **more: DataLoader(Ints(6), sampler=Broken(), **more), [[3], [1], LookupError]),
}


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("name", FAILING)
def test_an_interrupt_at_any_step_of_an_error_loses_neither_it_nor_a_batch(name: str, num_workers: int) -> None:
    """Starts anew for each step, and interrupts the third call there."""
    make, expected = FAILING[name]
    for step in itertools.count(1):
        loader = make(num_workers=num_workers)
        iterator = iter(loader)
        got: list[Any] = []
        places: list[str] = []
        while True:
            now = step if len(got) == 2 and not places else 0
            with struck_at(now, moments_and_all_of_an_iteration) as struck:
                try:
                    got.append(next(iterator).tolist())
                except KeyboardInterrupt:
                    places = struck
                except StopIteration:
                    break
                except LookupError as error:  # KeyError is one
                    got.append(type(error))
                except headrace.errors.FailedPrecondition:
                    # "the sampler was interrupted": if struck before the error was noted, only its existence is known
                    got.append(LookupError)
            if len(got) <= len(expected) and name == "a dataset":
                assert loader.state_dict()["batch"] == len(got), places
        assert got == expected, places
        if not places:
            break
    assert step > 5


def take(iterator: Iterator[Any], taken: list[Any]) -> None:
    """Appends the next batch, if there is one: in C, so that no interrupt comes between the two."""
    taken.extend(itertools.islice(iterator, 1))


def is_taking(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is take.__code__:
            return True
        frame = frame.f_back
    return False


class Alarm:
    """Interrupts a call of :func:`take` at a random moment after :meth:`set`, and no other code, however late it comes.

    Attributes:
        strikes: how many times it has.
    """

    def __init__(self) -> None:
        self._is_set = False
        self.chance = random.Random(1)
        self.strikes = 0

    def __enter__(self) -> Alarm:
        self._before = signal.signal(signal.SIGALRM, self._strike)
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()
        signal.signal(signal.SIGALRM, self._before)

    def set(self, shortest: float, longest: float) -> None:
        self._is_set = True
        signal.setitimer(signal.ITIMER_REAL, self.chance.uniform(shortest, longest))

    def cancel(self) -> None:
        self._is_set = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _strike(self, number: int, frame: types.FrameType | None) -> None:
        if is_taking(frame):
            self.strikes += 1
            raise KeyboardInterrupt
        if self._is_set:
            self.set(1e-5, 3e-4)


@pytest.mark.parametrize(
    "name", ["in this process", "two workers", "threads", "a collate_fn", "a common stream", "a progress bar"]
)
def test_signals_at_random_moments_lose_no_batch(name: str) -> None:
    expected = list(LOADERS[name]())
    loader = LOADERS[name]()
    with Alarm() as alarm:
        while alarm.strikes < 200:
            iterator = iter(loader)
            got: list[Any] = []
            ended = False
            while not ended:
                count = len(got)
                alarm.set(1e-5, 1e-3)
                try:
                    take(iterator, got)
                    ended = len(got) == count
                except KeyboardInterrupt:
                    alarm.cancel()
                    assert loader.state_dict()["batch"] in (len(got), 0)
                finally:
                    alarm.cancel()
            assert same(got, expected)
    assert tqdm_is_unlocked()


def tqdm_is_unlocked() -> bool:
    """Whether other threads and processes can have the lock that all of tqdm's bars share."""
    parts = tqdm.tqdm.get_lock().locks
    free: list[bool] = []

    def try_each() -> None:
        for part in parts:
            free.append(part.acquire(False))
            if free[-1]:
                part.release()

    thread = threading.Thread(target=try_each)
    thread.start()
    thread.join()
    return all(free)


def test_a_sampler_that_an_interrupt_ends_is_an_error_and_not_the_end_of_the_epoch() -> None:
    def indices() -> Iterator[int]:
        yield from (0, 1)
        raise KeyboardInterrupt

    class Interrupted:
        def __iter__(self) -> Iterator[int]:
            return indices()

    iterator = iter(DataLoader(Ints(9), sampler=Interrupted()))
    assert [next(iterator).tolist() for _ in range(1)] == [[0]]
    with pytest.raises(KeyboardInterrupt):
        for _ in range(2):
            next(iterator)
    with pytest.raises(headrace.errors.FailedPrecondition, match="the sampler was interrupted"):
        for _ in range(3):
            next(iterator)


@pytest.mark.filterwarnings("ignore:worker:RuntimeWarning")
def test_an_interrupt_while_dead_workers_are_replaced_loses_nothing() -> None:
    loader = DataLoader(Ints(12), 2, num_workers=2)
    expected = [[i, i + 1] for i in range(0, 12, 2)]
    assert [batch.tolist() for batch in loader] == expected
    with Alarm() as alarm:
        while alarm.strikes < 15:
            for process in loader._epochs.latest_engine().workers.processes:  # type: ignore[union-attr]
                process.kill()
                process.join()
            iterator = iter(loader)
            got: list[Any] = []
            ended = False
            while not ended:
                count = len(got)
                alarm.set(1e-4, 0.02)
                try:
                    take(iterator, got)
                    ended = len(got) == count
                except KeyboardInterrupt:
                    pass
                finally:
                    alarm.cancel()
            assert [batch.tolist() for batch in got] == expected
    assert len(multiprocessing.active_children()) == 2


# Ctrl-C, which a terminal sends to all its processes, reaches the forkserver as it starts, again and again.
INTERRUPTED_FORKSERVER = """
import contextlib, multiprocessing, os, signal, threading, time
from multiprocessing import forkserver
from headrace.data import DataLoader

def interrupt():
    while (pid := forkserver._forkserver._forkserver_pid) is None:
        time.sleep(0.0001)
    while not over.wait(0.002):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)

def tell(ours):
    ours.send([signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []), repr(signal.getsignal(signal.SIGINT))])

if __name__ == "__main__":
    over = threading.Event()
    threading.Thread(target=interrupt).start()
    try:
        loader = DataLoader(range(8), 4, num_workers=2, multiprocessing_context="forkserver")
        print([batch.tolist() for batch in loader])
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=tell, args=(theirs,))  # the program's own
        process.start()
        print(ours.recv())
    finally:
        over.set()
"""


def test_ctrl_c_while_a_forkserver_starts_is_no_error_of_what_it_imports(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(INTERRUPTED_FORKSERVER)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=250, check=False)
    assert done.stderr == ""
    batches, process = done.stdout.splitlines()
    assert batches == "[[0, 1, 2, 3], [4, 5, 6, 7]]"
    assert process.startswith("[False, '<built-in function default_int_handler>"), process
