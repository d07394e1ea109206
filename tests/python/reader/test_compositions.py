"""Readers of readers of readers, beside a reference that works on lists."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from headrace import errors
from headrace.reader import (
    ComposeNotAligned,
    Fake,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)

Reader = Callable[[], Any]


class Failure(Exception):
    """What a reader or function of the test raises."""


class Expected(NamedTuple):
    """What a pass gives.

    Attributes:
        samples: in this order, if it ``is_ordered``.
        error: the type of what it raises after these; None: nothing.
        more: samples that may come before the error, too.
    """

    samples: list[Any]
    error: type[BaseException] | None = None
    is_ordered: bool = True
    more: tuple[Any, ...] = ()

    def is_given_by(self, samples: list[Any], error: BaseException | None) -> bool:
        if self.error is not (None if error is None else type(error)):
            return False
        if self.is_ordered:
            return samples == self.samples
        left = sorted(samples, key=repr)
        for sample in self.samples:
            if sample not in left:
                return False
            left.remove(sample)
        return all(sample in self.more for sample in left)


def twice(sample: Any) -> Any:
    return sample, sample


def fail_at(value: Any) -> Callable[[Any], Any]:
    def function(sample: Any) -> Any:
        if sample == value:
            raise Failure(sample)
        return "mapped", sample

    return function


class Composer:
    """Makes readers by chance, and what they have to give."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = itertools.count()
        self.open = 0  # generators of the lowest readers that are in the middle of a pass
        self.lock = threading.Lock()

    def lowest(self) -> tuple[Reader, Expected]:
        count = self.rng.choice((0, 1, 2, 5, 17))
        samples = [next(self.numbers) for _ in range(count)]
        kind = self.rng.choice(("list", "iterator", "generator", "generator", "fails"))
        if kind == "list":
            return lambda: samples, Expected(samples)
        if kind == "iterator":
            return lambda: iter(samples), Expected(samples)

        def generator() -> Iterator[Any]:
            with self.lock:
                self.open += 1
            try:
                yield from samples
                if kind == "fails":
                    raise Failure
            finally:
                with self.lock:
                    self.open -= 1

        return generator, Expected(samples, Failure if kind == "fails" else None)

    def reader(self, depth: int, is_ordered: bool = True) -> tuple[Reader, Expected]:
        """
        Args:
            is_ordered: of whatever comes in any order, nothing is asked for that depends on an order.
        """
        if depth == 0:
            return self.lowest()
        makers = [self.map_one, self.chained, self.buffered, self.cached, self.in_order]
        makers += [self.map_several, self.composed, self.firstn, self.batched, self.fake] if is_ordered else []
        makers += [] if is_ordered else [self.shuffled, self.unordered, self.in_turn]
        return self.rng.choice(makers)(depth - 1, is_ordered)

    def map_one(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth, is_ordered)
        return map_readers(twice, reader), expected._replace(
            samples=[*map(twice, expected.samples)], more=tuple(map(twice, expected.more))
        )

    def chained(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        parts = [self.reader(depth, is_ordered) for _ in range(self.rng.randrange(4))]
        samples: list[Any] = []
        for _, expected in parts:
            samples += expected.samples
            if expected.error is not None:
                rest = expected._replace(samples=samples)
                return chain(*[reader for reader, _ in parts]), rest._replace(is_ordered=is_ordered)
        return chain(*[reader for reader, _ in parts]), Expected(samples, None, is_ordered)

    def buffered(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth, is_ordered)
        return buffered(reader, self.rng.choice((1, 3, 100))), expected

    def cached(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth, is_ordered)
        if expected.error is not None:
            expected = Expected([], expected.error)
        return cache(reader), expected

    def in_order(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth, is_ordered)
        threads, size = self.rng.choice((1, 2, 5)), self.rng.choice((1, 4))
        if not is_ordered or not expected.samples or self.rng.random() < 0.5:
            return xmap_readers(twice, reader, threads, size, order=True), expected._replace(
                samples=[*map(twice, expected.samples)], more=tuple(map(twice, expected.more))
            )
        wrong = expected.samples.index(self.rng.choice(expected.samples))
        before = [("mapped", sample) for sample in expected.samples[:wrong]]
        return xmap_readers(fail_at(expected.samples[wrong]), reader, threads, size, order=True), Expected(
            before, Failure
        )

    def side_by_side(self, depth: int) -> tuple[list[tuple[Reader, Expected]], int, list[Expected]]:
        """Readers, how many samples the shortest ones have, and how these end: all alike, or it would depend on which
        of them is asked first, and which fails when it is called already.
        """
        while True:
            parts = [self.reader(depth) for _ in range(self.rng.choice((1, 2, 3)))]
            shortest = min(len(expected.samples) for _, expected in parts)
            ends = [expected for _, expected in parts if len(expected.samples) == shortest]
            if len({expected.error for expected in ends}) == 1:
                return parts, shortest, ends

    def map_several(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        parts, shortest, ends = self.side_by_side(depth)
        samples = [*zip(*[expected.samples[:shortest] for _, expected in parts])]
        return map_readers(lambda *samples: samples, *[reader for reader, _ in parts]), Expected(samples, ends[0].error)

    def composed(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        parts, shortest, ends = self.side_by_side(depth)
        checks = self.rng.random() < 0.5
        readers, of = [reader for reader, _ in parts], [expected for _, expected in parts]
        tuples = [
            tuple(itertools.chain.from_iterable(s if isinstance(s, tuple) else (s,) for s in samples))
            for samples in zip(*[expected.samples[:shortest] for expected in of])
        ]
        # Of those that end here, each is asked before it is seen that another one has more.
        error = ends[0].error
        if error is None and checks and len(ends) < len(of):
            error = ComposeNotAligned
        return compose(*readers, check_alignment=checks), Expected(tuples, error)

    def firstn(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth)
        n = self.rng.choice((0, 1, 3, 100))
        if not expected.samples and n == 0:
            n = 1  # it is called all the same, and some fail then
        return firstn(reader, n), expected if n > len(expected.samples) else Expected(expected.samples[:n])

    def batched(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth)
        size, drops = self.rng.choice((1, 2, 5)), self.rng.random() < 0.5
        batches = [expected.samples[i : i + size] for i in range(0, len(expected.samples), size)]
        if batches and len(batches[-1]) < size and (drops or expected.error is not None):
            del batches[-1]
        return batch(reader, size, drops), expected._replace(samples=batches)

    def fake(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth)
        count = self.rng.choice((1, 7))
        if not expected.samples:
            return Fake()(reader, count), Expected([], expected.error or errors.InvalidArgument)
        return Fake()(reader, count), Expected(expected.samples[:1] * count)

    def shuffled(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth, is_ordered=True)
        size = self.rng.choice((1, 3, 100))
        whole = expected.samples
        if expected.error is not None:  # the last run is lost
            whole = whole[: len(whole) // size * size]
        return shuffle(reader, size), expected._replace(samples=whole, is_ordered=False)

    def unordered(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        reader, expected = self.reader(depth, is_ordered=True)
        threads, size = self.rng.choice((1, 2, 5)), self.rng.choice((1, 4))
        if not expected.samples or self.rng.random() < 0.5:
            mapped = [*map(twice, expected.samples)]
            return xmap_readers(twice, reader, threads, size), expected._replace(samples=mapped, is_ordered=False)
        wrong = expected.samples.index(self.rng.choice(expected.samples))
        mapped = [("mapped", sample) for sample in expected.samples]
        return xmap_readers(fail_at(expected.samples[wrong]), reader, threads, size), Expected(
            mapped[:wrong], Failure, False, tuple(mapped[wrong:])
        )

    def in_turn(self, depth: int, is_ordered: bool) -> tuple[Reader, Expected]:
        if self.rng.random() < 0.8:  # processes take their time
            return self.unordered(depth, is_ordered)
        counts = [self.rng.choice((0, 1, 4)) for _ in range(self.rng.choice((1, 2)))]
        parts = [[next(self.numbers) for _ in range(count)] for count in counts]
        readers = [lambda part=part: part for part in parts]
        return multiprocess_reader(readers), Expected([*itertools.chain(*parts)], None, False)


def read(reader: Reader, count: int | None = None) -> tuple[list[Any], BaseException | None]:
    """The samples of a pass, or the first ones, and its error."""
    samples: list[Any] = []
    try:
        for sample in itertools.islice(reader(), count):
            samples.append(sample)
    except Exception as error:
        return samples, error
    return samples, None


def is_idle(composer: Composer) -> bool:
    return composer.open == 0 and not any(thread.name == "headrace reader" for thread in threading.enumerate())


@pytest.mark.parametrize("seed", range(12))
def test_what_a_composition_gives(seed: int) -> None:
    composer = Composer(seed)
    for _ in range(8):
        reader, expected = composer.reader(composer.rng.choice((1, 2, 3, 4)), composer.rng.random() < 0.6)
        for _ in range(2):  # passes
            samples, error = read(reader)
            assert expected.is_given_by(samples, error), (expected, samples, error)
        wanted = composer.rng.randrange(len(expected.samples) + 1)
        samples, error = read(reader, wanted)  # a pass that is left early
        assert error is None or expected.error is type(error)
        assert not expected.is_ordered or samples == expected.samples[: len(samples)]
        assert error is not None or len(samples) == wanted
        samples, error = read(reader)
        assert expected.is_given_by(samples, error), (expected, samples, error)
        del error
        deadline = time.monotonic() + 60
        while not is_idle(composer):
            assert time.monotonic() < deadline
            time.sleep(0.01)
