"""A generator makes a sample while a thread stores the one before; in the plain way, these take turns."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.wirehead import StoreError, WireheadGenerator
from headrace.wirehead._format.sample import NamedArray
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer

Before = Callable[[int], None]  # called with the number of the sample that is to be stored


@pytest.fixture
def folder_config(tmp_path: Path) -> dict[str, Any]:
    return {"DBNAME": "test", "DIRECTORY": str(tmp_path / "cache"), "SWAP_CAP": 50, "TIMEOUT": 30}


def before_storing(monkeypatch: pytest.MonkeyPatch, action: Before) -> None:
    store, number = Writer.store, iter(range(1000))

    def observed(self: Writer, arrays: list[NamedArray]) -> tuple[int, int] | None:
        action(next(number))
        return store(self, arrays)

    monkeypatch.setattr(Writer, "store", observed)


def stored(config: dict[str, Any]) -> list[int]:
    """The values of the samples that are stored in the first generation, by id."""
    with contextlib.closing(Cache(config)) as cache:
        reader = Reader(cache, cache.config.sample)
        return [int(reader.read(1, id)["data"][1][0]) for id in range(cache.fill(1))]


def test_the_next_sample_is_made_while_one_is_stored(
    folder_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = [threading.Event() for _ in range(6)]

    def samples() -> Iterator[tuple[Any, int]]:
        for value in range(5):
            yield np.full(3, value), value
            resumed[value].set()

    before_storing(monkeypatch, lambda number: resumed[number].wait(60) or pytest.fail("the generator waits"))
    assert WireheadGenerator(samples(), folder_config).run() == 5
    assert stored(folder_config) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_a_generator_may_use_its_arrays_again(
    compression: str, folder_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples() -> Iterator[tuple[Any, Any]]:
        data, label = np.zeros(2000, np.int16), np.zeros((), np.int16)
        for value in range(10):
            data[:], label[()] = value, value
            yield data, label
            data[:], label[()] = -1, -1

    before_storing(monkeypatch, lambda number: time.sleep(0.02))
    config = {**folder_config, "COMPRESSION": compression}
    assert WireheadGenerator(samples(), config).run() == 10
    with contextlib.closing(Cache(config)) as cache:
        reader = Reader(cache, cache.config.sample)
        for id in range(10):
            sample = reader.read(1, id)
            assert {*sample["data"][1].tolist(), int(sample["label"][1])} == {id}


@pytest.mark.parametrize("ends", [sys.exit, exec])
def test_an_error_of_the_generator_follows_the_sample_before(
    ends: Callable[[str], object], folder_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples() -> Iterator[tuple[Any, int]]:
        yield np.full(3, 7), 7
        ends("1 / 0")

    before_storing(monkeypatch, lambda number: time.sleep(0.1))
    runner = WireheadGenerator(samples(), folder_config)
    with pytest.raises((SystemExit, ZeroDivisionError)):
        runner.run()
    assert runner.stored == 1
    with contextlib.closing(Cache(folder_config)) as cache:
        assert cache.leases() == {}
    assert stored(folder_config) == [7]


@pytest.mark.parametrize("last", [OSError("the input ends"), SystemExit(3), (1, 2, 3)])
def test_a_generation_that_is_full_can_be_read_although_the_generator_fails(
    last: Any, folder_config: dict[str, Any]
) -> None:
    def samples() -> Iterator[Any]:
        yield from [(np.zeros(3), 0)] * 50
        if isinstance(last, BaseException):
            raise last
        yield last

    with pytest.raises((OSError, SystemExit, ValueError)):
        WireheadGenerator(samples(), folder_config).run()
    with contextlib.closing(Cache(folder_config)) as cache:
        assert (cache.current(), cache.leases()) == (1, {})


def test_an_error_of_the_generator_is_raised_although_the_store_fails_after_it(
    folder_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def samples() -> Iterator[Any]:
        yield np.zeros(3), 0
        monkeypatch.setattr(Cache, "fill", refuses)
        raise Broken

    def refuses(self: Cache, generation: int) -> int:
        raise StoreError("the disk is full")

    with pytest.raises(Broken):
        WireheadGenerator(samples(), folder_config).run()


def test_a_second_run_stores_what_the_first_has_left(folder_config: dict[str, Any]) -> None:
    failing: list[BaseException] = [OSError("no more for now")]

    class Samples:
        def __iter__(self) -> Iterator[tuple[Any, int]]:
            self.made = 0
            return self

        def __next__(self) -> tuple[Any, int]:
            if self.made == 2 and failing:
                raise failing.pop()
            self.made += 1
            return np.full(3, self.made), self.made

    runner = WireheadGenerator(Samples(), folder_config, n_samples=np.int64(5))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no more for now"):
        runner.run()
    assert runner.stored == 2
    assert runner.run() == 3
    assert runner.run() == 0
    assert stored(folder_config) == [1, 2, 3, 4, 5]


def test_a_verbose_generator_prints_a_line_for_each_sample(
    folder_config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    cap, name = folder_config["SWAP_CAP"], folder_config["DBNAME"]
    samples = ((np.zeros(3), number) for number in range(cap + 1))
    WireheadGenerator(samples, folder_config).run(verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:cap]) == sorted(f"stored sample {number} of generation 1 of {name}" for number in range(cap))
    assert len(lines) == cap + 1
    assert lines[cap].endswith(f" of generation 2 of {name}")


def test_a_generator_that_was_stopped_makes_no_samples(folder_config: dict[str, Any]) -> None:
    runner = WireheadGenerator(iter([(np.zeros(3), 0)]), folder_config)
    runner.stop()
    assert runner.run() == 0
    assert [int(label) for _, label in runner.generator] == [0]


def test_the_sample_that_is_made_when_a_signal_comes_is_stored(folder_config: dict[str, Any]) -> None:
    def samples() -> Iterator[tuple[Any, int]]:
        for value in range(5):
            if value == 3:
                os.kill(os.getpid(), signal.SIGTERM)
                while not runner._stop.is_set():
                    time.sleep(0.001)
            yield np.full(3, value), value

    runner = WireheadGenerator(samples(), folder_config)
    assert runner.run() == 4
    assert stored(folder_config) == [0, 1, 2, 3]


def test_a_second_signal_does_not_wait_for_a_sample(
    folder_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def waits(number: int) -> None:
        begun.set()
        goes_on.wait(60)

    def samples() -> Iterator[tuple[Any, int]]:
        yield np.zeros(3), 0
        begun.wait(60)
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
        pytest.fail("the second signal was not noticed")

    before_storing(monkeypatch, waits)
    start = time.monotonic()
    with pytest.raises(SystemExit) as caught:
        WireheadGenerator(samples(), folder_config).run()
    assert time.monotonic() - start < 30
    assert caught.value.code == 128 + signal.SIGTERM
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "headrace-wirehead-storing":
            thread.join(100)


class Broken(Exception):
    """Of a generator."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What happens at which sample; -1: never."""

    count: int
    limit: int | None
    breaks: int  # the generator, instead of yielding that one
    malformed: int
    refused: int  # by the store
    stops: int  # asked to, before it yields that one
    slow: float  # seconds that the store takes; the generator takes the rest of 5 ms

    def samples(self, stop: Callable[[], None]) -> Iterator[tuple[Any, ...]]:
        data = np.zeros(3, np.int64)
        for value in range(self.count):
            time.sleep(0.005 - self.slow)
            if value == self.breaks:
                raise Broken(str(value))
            if value == self.stops:
                stop()
            data[:] = value
            yield (data,) if value == self.malformed else (data, value)

    def store(self, number: int) -> None:
        time.sleep(self.slow)
        if number == self.refused:
            raise StoreError(f"{number}: the disk is full")


Outcome = tuple[list[int], type[Exception], str]  # the values that are stored, and the beginning of the error


def ending(values: list[int], error: Exception) -> Outcome:
    return values, type(error), str(error)[:8]


def plain(case: Case) -> Outcome:
    """Each sample is stored before the next is made."""
    values: list[int] = []
    stop = threading.Event()
    try:
        for value, sample in enumerate(itertools.islice(case.samples(stop.set), case.limit)):
            if len(sample) != 2:
                raise ValueError(f"sample {value}")
            case.store(value)
            values.append(value)
            if stop.is_set():
                break
        raise StopIteration
    except (Broken, ValueError, StoreError, StopIteration) as error:
        return ending(values, error)


def generated(case: Case, config: dict[str, Any]) -> Outcome:
    runner = WireheadGenerator(case.samples(lambda: runner.stop()), config, case.limit)
    caught: Exception = StopIteration()
    try:
        runner.run()
    except (Broken, ValueError, StoreError) as error:
        caught = error
    values = stored(config)
    assert runner.stored == len(values)
    return ending(values, caught)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_stored_is_what_the_plain_way_stores(
    seed: int, folder_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    random_ = random.Random(seed)

    def sometimes() -> int:
        return random_.choice((-1, -1, random_.randrange(8)))

    for number in range(15):
        case = Case(
            count=random_.randrange(8),
            limit=random_.choice((None, random_.randrange(8))),
            breaks=sometimes(),
            malformed=sometimes(),
            refused=sometimes(),
            stops=sometimes(),
            slow=random_.choice((0.0, 0.002, 0.005)),
        )
        with monkeypatch.context() as patch:
            before_storing(patch, case.store)
            assert generated(case, {**folder_config, "DBNAME": f"test{number}"}) == plain(case), case
