"""The work of a row that compares loaders, and how loaders are measured."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from harness import content
from harness.contest import Contestant, Effort


class Stream:
    """Samples that are read in their order, from several files.

    Attributes:
        shards: the files, which workers share among them.
    """

    shards: list[Any]

    def read(self, shard: Any) -> Iterator[Any]:
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Job:
    """
    Attributes:
        dataset: with ``__len__`` and ``__getitem__``, or a :class:`Stream`. Samples hold NumPy arrays and numbers.
        make_tensors: makes the dataset that loaders of tensors get; None: they get ``dataset``, and wrap its arrays by
            ``torch.from_numpy``.
        batch_size: which the length is a multiple of (of a stream: of each shard). None: samples are batches.
        collate: makes a batch of a list of samples, of NumPy arrays; None: arrays are stacked.
        samples_of: the samples of a batch, for the comparison of contents.
        workers: processes, or threads where a loader has none.
        start_method: of worker processes.
    """

    dataset: Any
    batch_size: int | None
    make_tensors: Callable[[], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    samples_of: Callable[[Any], Iterable[content.Sample]] = content.rows
    workers: int = 2
    start_method: str = "fork"

    @property
    def is_stream(self) -> bool:
        return isinstance(self.dataset, Stream)


class Loader:
    """What a contestant has made of a job.

    Args:
        epoch: starts an epoch.
        endless: starts one epoch after the other, if there is a better way than to do so one by one.
    """

    def __init__(self, epoch: Callable[[], Iterable[Any]], endless: Callable[[], Iterable[Any]] | None = None) -> None:
        self.epoch = epoch
        self._endless = endless

    def endless(self) -> Iterator[Any]:
        if self._endless is not None:
            return iter(self._endless())
        return itertools.chain.from_iterable(self.epoch() for _ in itertools.count())


class Peer(Protocol):
    """A module of ``peers``: a library, or a way to use it."""

    NAME: str
    KIND: str
    PACKAGES: tuple[str, ...]
    SETTING: str

    @staticmethod
    def make(job: Job) -> contextlib.AbstractContextManager[Loader]: ...


#: Makes a contestant's loader.
Make = Callable[[], "contextlib.AbstractContextManager[Loader]"]
#: From these, a figure.
Measure = Callable[[Make, Job, Effort], float]


def contestant(peer: Peer, job: Callable[[Effort], Job], measure: Measure) -> Contestant:
    """A loader that does a job."""

    def run(effort: Effort) -> float:
        work = job(effort)
        return measure(lambda: peer.make(work), work, effort)

    def deliver(effort: Effort) -> Any:
        work = job(effort)
        with peer.make(work) as loader:
            return content.digest(loader.epoch(), work.samples_of)

    return Contestant(peer.NAME, peer.KIND, run, deliver, peer.SETTING, peer.PACKAGES)


def consume(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    """Takes batches for some time; how many they were, and how long it took."""
    begin = time.perf_counter()
    for count, batch in enumerate(batches, 1):
        content.touch(batch)
        took = time.perf_counter() - begin
        if took >= seconds:
            return count, took
    raise RuntimeError("the batches have come to an end")


@contextlib.contextmanager
def running(make: Make, effort: Effort) -> Iterator[Iterator[Any]]:
    """The batches of a loader that has warmed up."""
    with make() as loader:
        batches = loader.endless()
        consume(batches, effort.warm_up)
        yield batches
        if hasattr(batches, "close"):
            batches.close()


def samples_per_second(make: Make, job: Job, effort: Effort) -> float:
    with running(make, effort) as batches:
        count, seconds = consume(batches, effort.seconds)
    return count * (job.batch_size or 1) / seconds


def cpu_seconds() -> float:
    """Processor time of all threads of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def consumer_cpu(make: Make, job: Job, effort: Effort) -> float:
    """Microseconds of the consumer's processor time per batch."""
    with running(make, effort) as batches:
        before = cpu_seconds()
        count, _ = consume(batches, effort.seconds)
        return (cpu_seconds() - before) / count * 1e6


def first_batch(make: Make, job: Job, effort: Effort) -> float:
    """Milliseconds from the making of the loader to the first batch, in a program that has imported the library."""
    with make():
        pass
    begin = time.perf_counter()
    with make() as loader:
        batches = loader.endless()
        content.touch(next(batches))
        took = time.perf_counter() - begin
        if hasattr(batches, "close"):
            batches.close()
    return took * 1e3


def epochs_per_second(make: Make, job: Job, effort: Effort) -> float:
    """Of epochs that are read one after the other, each to its end."""
    per_epoch = -(-len(job.dataset) // (job.batch_size or 1))
    with running(make, effort) as batches:
        begin = time.perf_counter()
        for count in itertools.count(1):
            for batch in itertools.islice(batches, per_epoch):
                content.touch(batch)
            took = time.perf_counter() - begin
            if took >= effort.seconds:
                return count / took
    raise AssertionError
