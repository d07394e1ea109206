"""Sources of readers that Python feeds: what fills the queue, pass by pass, and how many batches the program has taken,
for checkpoints.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from headrace import errors
from headrace._warnings import warn
from headrace._weak_collections import WeakBag
from headrace.fluid import core
from headrace.fluid.core import LoDTensor, LoDTensorBlockingQueue, Scope
from headrace.fluid.data_feeder import DataFeeder
from headrace.fluid.framework import Program

__all__ = ["FeedHandle", "FeedSource", "FeedingLoader", "init_queue", "reader_stats", "reset_reader", "sources_of"]

#: Seconds that a reset waits for a generator.
_PATIENCE = 5.0


def reset_reader(scope: Scope, name: str) -> bool:
    """Brings the chain of readers that the one in a variable belongs to back to the start. False if there is none: the
    run that makes it was not there yet, or has failed.
    """
    variable = scope.find_var(name)
    if variable is None or not variable.is_initialized():
        return False
    try:
        variable.reset_reader()
    except errors.FailedPrecondition:
        return False
    return True


def reader_stats(scope: Scope, name: str) -> dict[str, Any]:
    """``batches`` and ``wait_s`` of the reader in a variable: 0 as long as there is none."""
    variable = scope.find_var(name)
    if variable is not None and variable.is_initialized():
        with contextlib.suppress(errors.FailedPrecondition):
            return variable.reader_stats()
    return {"batches": 0, "wait_s": 0.0}


class FeedHandle(Protocol):
    """A feeder at work."""

    def stop(self) -> None:
        """Ends the feeder, and waits until it has ended, except for a generator that does not return. May be called
        again.
        """


class FeedingLoader(Protocol):
    """The argument of ``decorate_loader``: an object that feeds a queue without running Python for each batch."""

    def _feed(self, queue: LoDTensorBlockingQueue, names: Sequence[str] | None = None) -> FeedHandle:
        """Starts to feed ``queue`` in its present epoch; at the end of the data closes it, or fails it.

        Args:
            names: what batches that have names call the values; None: values come in order.
        """

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The place of its next batch; ``batches``: of the epoch, how many have been consumed."""

    def _next_pass(self) -> dict[str, Any]:
        """The place of the next feeding, also after one that was stopped early."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has the next feeding begin there."""


class _Feeder(threading.Thread):
    """Feeds a source's queue from a Python iterable, for one epoch of the queue.

    ``convert`` makes tensors of an item; its errors do not say which item that was.
    """

    def __init__(
        self, source: FeedSource, items: Callable[[], Iterable[Any]], convert: Callable[[Any], list[LoDTensor]]
    ) -> None:
        # A daemon: the interpreter joins other threads before it runs atexit's functions, and this one may be waiting
        # for room.
        super().__init__(name=f"headrace feeder of {source.name}", daemon=True)
        self.source = source
        self._items = items
        self._convert = convert
        self._epoch = source.queue.epoch
        self.start()

    def run(self) -> None:
        queue, epoch, refused = self.source.queue, self._epoch, False
        try:
            iterator = self._iterator()
            try:
                for index, item in enumerate(iterator):
                    with _prefixed(self.source.where):
                        with _prefixed(f"batch {index}: "):
                            batch = self._convert(item)
                        refused = not queue.push(batch, epoch)
                    if refused:
                        return
            finally:
                # Runs the generator's own clean-up now, before the caller of reset() continues.
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
            queue.close(epoch)
        except BaseException as error:
            # Without this function's frame, which refers to the queue that is about to hold the error.
            error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ is not None else None
            if refused or not queue.fail(error, epoch):
                # The pass is over and this will not be read any more; but it should not be lost.
                traceback.print_exception(type(error), error, error.__traceback__)

    def _iterator(self) -> Iterator[Any]:
        items = self._items()
        try:
            return iter(items)
        except TypeError as error:
            raise errors.TypeMismatch(
                f"{self.source.title} takes a function that returns an iterable, but this one has returned {items!r}"
                + ("; is a yield missing?" if items is None else "")
            ) from error

    def stop(self) -> None:
        """Waits a while for the thread, which the end of its epoch has told to stop: its generator may be waiting for
        something, and may do so for ever.
        """
        self.join(_PATIENCE)
        if self.is_alive():
            warn(
                f"{self.source.title}: the generator has not returned for {_PATIENCE:.0f} s. The pass has ended "
                "without it, and the next one will begin when it returns; with another generator, at once"
            )


@contextlib.contextmanager
def _prefixed(where: str) -> Iterator[None]:
    """Puts ``where`` before the messages of our own errors."""
    try:
        yield
    except errors.HeadraceError as error:
        error.args = (f"{where}{error}",)
        raise


def _tensor(name: str, dtype: Any, value: Any) -> LoDTensor:
    """The value for a variable: a LoDTensor itself, or a copy of anything else. A list, of numbers or of arrays, has no
    dtype of its own: it gets the declared one, if that is of the same kind and holds its integers.
    """
    if isinstance(value, LoDTensor):
        return value
    if not isinstance(value, np.ndarray) and hasattr(value, "to_lod_tensor"):
        tensor: LoDTensor = value.to_lod_tensor()
        return tensor
    try:
        if isinstance(value, (list, tuple)):
            value, declared = np.asarray(value), core.dtype_name(dtype)
            if declared in np.sctypeDict and np.can_cast(value.dtype, declared, "same_kind"):
                array = value.astype(declared, copy=False)
                if array.dtype.kind == "f" or core.is_same(array, value):
                    value = array
        return LoDTensor.from_numpy(value)
    except errors.HeadraceError as error:
        raise errors.TypeMismatch(f"variable '{name}': {error}") from None
    except ValueError as error:
        raise errors.InvalidArgument(
            f"variable '{name}': a value of type {type(value).__name__} cannot be converted to an array ({error}); for "
            "sequences of different lengths, give fluid.create_lod_tensor(rows, [lengths])"
        ) from None


class FeedSource:
    """The source of a py_reader: its queue, and the object that fills it.

    Each pass over the data is an epoch of the queue. Whoever feeds knows the epoch it was started in and can do nothing
    to the queue once that is over; so ``reset`` is safe in any state, and nothing of an old pass gets into a new one.
    A generator may share state with that of the next pass, or be the same object: so ``start`` waits for the thread of
    the previous pass.

    Thread-safety: one lock guards start and reset; the queue has its own.

    Args:
        specs: of each variable that is read: name, shape, dtype, LoD level.
        is_named: the names are the user's.
    """

    def __init__(
        self,
        name: str,
        queue_name: str,
        queue: LoDTensorBlockingQueue,
        scope: Scope,
        specs: Sequence[tuple[str, Sequence[int], Any, int]],
        is_named: bool,
    ) -> None:
        self.name = name
        self._is_named = is_named
        #: How errors call it.
        self.title = f"py_reader '{name}'"
        #: What precedes messages about its batches.
        self.where = f"{self.title}, "
        self.queue_name, self.queue = queue_name, queue
        #: The reader variables that read from the queue, the outermost last.
        self.reader_names: list[str] = []
        #: Where readers of the queue may be. A program refers to the source, and must not keep scopes alive.
        self._scopes: WeakBag[Scope] = WeakBag()
        self._scopes.add(scope)
        self._specs = list(specs)
        self._read_names: list[str] | None = [name for name, *_ in specs]
        self._lock = threading.Lock()
        self._begin: Callable[[], FeedHandle] | None = None
        #: What ``decorate_loader`` was given; None: something else feeds.
        self.loader: FeedingLoader | None = None
        #: A decorated reader that gives other batches than the queue has, or in another order.
        self.regrouped_by: str | None = None
        self._begun_at = 0  # batch of the loader's epoch
        self._given_before: Counter[str] = Counter()
        self._ended = 0  # the epoch of the queue whose end the program has seen
        #: Whether this process was forked from the one that feeds.
        self.is_of_parent = False
        self._handle: FeedHandle | None = None
        #: What fed the previous pass, unless the source was changed since: its generator may not have returned.
        self._previous: FeedHandle | None = None
        self._queue_taken = False
        self._sent_before = 0
        _live_sources.add(self)

    @property
    def users_names(self) -> list[str]:
        """What the user calls the variables that are read; empty: they were declared by shapes."""
        return [name for name, *_ in self._specs] if self._is_named else []

    def decorate(self, begin: Callable[[], FeedHandle]) -> None:
        with self._lock:
            if self._handle is not None:
                raise errors.FailedPrecondition(f"{self.title} is running: call reset() before its source is changed")
            self._begin = begin
            self._previous = None
            self.loader = None

    def decorate_batches(self, batches: Callable[[], Iterable[Any]]) -> None:
        """Feeds the items of the iterable that ``batches`` returns: sequences with a tensor or array for each
        variable.
        """
        self._decorate_items(batches, self._tensors)

    def decorate_sample_lists(self, sample_lists: Callable[[], Iterable[Any]]) -> None:
        """Feeds lists of samples, converted by DataFeeder."""
        self._decorate_items(sample_lists, DataFeeder._of_specs(self._specs)._tensors)

    def _decorate_items(self, items: Callable[[], Iterable[Any]], convert: Callable[[Any], list[LoDTensor]]) -> None:
        if not callable(items):
            raise errors.TypeMismatch(
                f"{self.title} takes a function that returns an iterable, got {type(items).__name__}"
            )
        self.decorate(lambda: _Feeder(self, items, convert))

    def _tensors(self, batch: Any) -> list[LoDTensor]:
        """What a generator of batches has yielded, as tensors."""
        names = [name for name, *_ in self._specs]
        if not isinstance(batch, (list, tuple)):
            raise errors.TypeMismatch(
                f"expected a list with a tensor or array for each of {', '.join(names)}, got {type(batch).__name__}"
            )
        if len(batch) != len(names):
            raise errors.InvalidArgument(f"expected {len(names)} values, for {', '.join(names)}, got {len(batch)}")
        return [_tensor(name, dtype, value) for (name, _, dtype, _), value in zip(self._specs, batch)]

    def decorate_loader(self, loader: FeedingLoader) -> None:
        if not callable(getattr(loader, "_feed", None)):
            raise errors.TypeMismatch(f"decorate_loader takes a headrace.DataLoader, got {type(loader).__name__}")
        names = self.users_names or None
        self.decorate(lambda: loader._feed(self.queue, names))
        self.loader = loader

    def _given(self) -> Counter[str]:
        """Batches that each reader has given out so far, to programs or to the reader that decorates it."""
        given: Counter[str] = Counter()
        for scope in self._scopes:
            for name in self.reader_names:
                given[name] += reader_stats(scope, name)["batches"]
        return given

    def loader_state(self, program: Program) -> dict[str, Any]:
        """The place of the next batch that ``program`` has not read. FailedPrecondition if readers regroup batches, or
        it reads from several of them.
        """
        assert self.loader is not None
        if self.regrouped_by is not None:
            raise errors.FailedPrecondition(
                f"{self.title} has no position that can be saved, because '{self.regrouped_by}' regroups "
                "its batches; let the headrace.DataLoader shuffle and batch"
            )
        read = self._read_by(program)
        if len(read) > 1:
            raise errors.FailedPrecondition(
                f"{self.title} has no position that can be saved, because the program reads from "
                f"{' and '.join(map(repr, read))}: read from one of them"
            )
        with self._lock:
            if self._handle is not None and self._ended == self.queue.epoch:
                self._handle.stop()  # it has fed everything: the loader goes on to its next epoch
                return self.loader.state_dict()
            if self._handle is None:
                return self.loader._next_pass()
            given = self._given()
            # A program that reads nothing may be saved in place of the one that does.
            name = read[0] if read else max(given, key=self.reader_names.index, default="")
            return self.loader.state_dict(self._begun_at + given[name] - self._given_before[name])

    def loader_state_after(self, batches: int) -> dict[str, Any]:
        """The place of the next batch, where no program reads from the queue; the pass has given out ``batches``."""
        assert self.loader is not None
        with self._lock:
            return (
                self.loader._next_pass() if self._handle is None else self.loader.state_dict(self._begun_at + batches)
            )

    def load_loader_state(self, state: dict[str, Any]) -> None:
        """Makes the next ``start`` continue from a position. FailedPrecondition if the reader is running."""
        assert self.loader is not None
        with self._lock:
            if self._handle is not None:
                raise errors.FailedPrecondition(f"{self.title} is running: call reset() first")
            self.loader.load_state_dict(state)

    def note_end(self, program: Program) -> None:
        """``program`` was told that its data have ended. If it has read the whole pass, the next one is to be saved."""
        read = self._read_by(program)
        if self.loader is None or len(read) != 1:
            return
        with self._lock:
            given = self._given()[read[0]] - self._given_before[read[0]]
            if self.queue.is_closed() and self.queue.stats()["sent"] - self._sent_before == given:
                self._ended = self.queue.epoch

    def take_queue(self) -> LoDTensorBlockingQueue:
        """The queue, for code that will push into it."""
        self._queue_taken = True
        return self.queue

    def take_read_names(self, count: int) -> list[str] | None:
        """Names for the ``count`` variables that ``read_file`` makes: those that errors use for the fed variables. None
        if they have been taken, or there is another number of them.
        """
        names, self._read_names = self._read_names, None
        return names if names is not None and len(names) == count else None

    def start(self) -> None:
        self._check_process()
        while (previous := self._start()) is not None:
            previous.join()

    def _start(self) -> _Feeder | None:
        """Starts, unless it returns the feeder of the previous pass, whose generator has to return first."""
        with self._lock:
            if self._handle is not None:
                raise errors.FailedPrecondition(f"{self.title} is already running: call reset() before start()")
            if self._begin is None:
                raise errors.FailedPrecondition(
                    f"{self.title} has nothing to start: give it a source, or push into its queue without start()"
                )
            if self.queue.is_closed():
                raise errors.FailedPrecondition(f"{self.title} is at the end of a pass: call reset() before start()")
            if isinstance(self._previous, _Feeder) and self._previous.is_alive():
                return self._previous
            if self.loader is not None:
                self._begun_at = self._place_of(self.loader)
                self._given_before = self._given()
            self._handle, self._previous = self._begin(), None
            return None

    @staticmethod
    def _place_of(loader: FeedingLoader) -> int:
        """The batch of its epoch with which a loader will begin."""
        try:
            return int(loader._next_pass()["batch"])
        except errors.FailedPrecondition:  # it feeds another reader: it starts again
            return 0

    def reset(self) -> None:
        self._check_process()
        current = threading.current_thread()
        if isinstance(current, _Feeder) and current.source is self:
            raise errors.FailedPrecondition(f"{self.title} cannot be reset by the generator that feeds it")
        with self._lock:
            epoch = self.queue.epoch
            for scope in self._scopes:
                self._reset_readers(scope)
            if self.queue.epoch == epoch:
                self.queue.reopen()  # no program has made a reader of it yet
            self._sent_before = self.queue.stats()["sent"]
            handle, self._handle = self._handle, None
            if handle is not None:
                self._previous = handle
                handle.stop()

    def _reset_readers(self, scope: Scope) -> None:
        for name in reversed(self.reader_names):
            if reset_reader(scope, name):  # the whole chain, and with it the queue
                return

    def has_queue_in(self, scope: Scope) -> bool:
        """Whether programs that run on ``scope`` read from this source's queue, if from one of that name."""
        variable = scope.find_var(self.queue_name)
        return variable is not None and variable.is_initialized() and variable.get_queue() is self.queue

    def check_fed(self, program: Program, scope: Scope) -> None:
        """FailedPrecondition if ``program``, about to run on ``scope``, reads from the queue, which nothing fills or
        ever will.

        It is fed if the reader is started. Otherwise it counts as fed if batches were pushed or the queue was closed;
        or, as long as no source has been given, if the program has accessed the queue and may push from another thread
        at any time.
        """
        self._check_process()
        if scope not in self._scopes:
            with self._lock:
                self._scopes.add(scope)
        if self._handle is not None or (self._queue_taken and self._begin is None):
            return
        if self.queue.is_closed() or self.queue.stats()["sent"] != self._sent_before:
            return
        if not self._read_by(program):
            return
        raise errors.FailedPrecondition(
            f"{self.title} was not started: "
            + (
                "call start()"
                if self._begin is not None
                else "give it a source and call start(), or push into its queue"
            )
        )

    def _read_by(self, program: Program) -> list[str]:
        """Those of its readers from which a program reads."""
        read = program._readers_read()
        return [name for name in self.reader_names if name in read]

    def _check_process(self) -> None:
        if self.is_of_parent:
            raise errors.FailedPrecondition(
                f"{self.title} is fed by the process from which this one was forked: build the program in this one"
            )

    def _kill(self) -> _Feeder | None:
        """Kills the queue and stops the feeder; does not wait for its thread."""
        handle, self._handle = self._handle, None
        self.queue.kill()
        if handle is None or isinstance(handle, _Feeder):
            return handle
        handle.stop()
        return None


# A source is found by the scope that a program runs on, which holds its queue: so a copy of the program, parsed from
# bytes, say, has the same sources as the original.
_live_sources: WeakBag[FeedSource] = WeakBag()


def sources_of(readers: frozenset[str], scope: Scope) -> list[FeedSource]:
    """The sources of readers, by their names, in programs that run on ``scope``; in the order of their own names."""
    found = [s for s in _live_sources if not readers.isdisjoint(s.reader_names) and s.has_queue_in(scope)]
    return sorted(found, key=lambda source: source.name)


def _stop_all_at_exit() -> None:
    """Ends the feeders while Python still works: afterwards their threads could not run to their end."""
    threads = [source._kill() for source in _live_sources if not source.is_of_parent]
    deadline = time.monotonic() + _PATIENCE
    for thread in threads:
        if thread is not None:
            thread.join(max(0.0, deadline - time.monotonic()))


def _after_fork() -> None:
    """A forked child has none of the threads, and locks in whatever state they were."""
    for source in _live_sources:
        source.is_of_parent = True


atexit.register(_stop_all_at_exit)
os.register_at_fork(after_in_child=_after_fork)


def init_queue(
    scope: Scope, name: str, capacity: int, specs: Sequence[tuple[Sequence[int], int, int]], tensor_names: Sequence[str]
) -> LoDTensorBlockingQueue:
    """Makes the queue that the scope's variable ``name`` holds. AlreadyExists if there is one."""
    return core.init_lod_tensor_blocking_queue(
        scope.var(name),
        capacity,
        [list(shape) for shape, _, _ in specs],
        dtypes=[int(dtype) for _, dtype, _ in specs],
        lod_levels=[lod_level for _, _, lod_level in specs],
        names=list(tensor_names),
        need_check_feed=[False] * len(specs),
    )
