"""One iteration of a loader: its batches, and how far it has come."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace import errors
from headrace.data._engine import Engine, Failed
from headrace.data._interpreter_exit import rest_if_interpreter_exits
from headrace.data._state import Position, StreamPosition
from headrace.data._stream import decode_place


class _StreamsPlace(NamedTuple):
    """How far an iteration over streams has come.

    Attributes:
        batch: how many batches were taken.
        streams: how far each stream was taken. A stream's state is decoded only when somebody asks for it.
        next_stream: whose turn it is.
    """

    batch: int
    streams: tuple[StreamPosition | tuple[int, bytes], ...]
    next_stream: int

    def after(self, last: Any) -> _StreamsPlace:
        """The place once another batch was taken: the scheduler's ``last``."""
        streams = list(self.streams)
        streams[last.stream] = (last.stream_batch + 1, last.attachment)
        return _StreamsPlace(self.batch + 1, tuple(streams), (last.stream + 1) % len(streams))

    def position(self) -> dict[str, Any]:
        """What a :class:`Position` says of it."""
        streams = tuple(
            stream if isinstance(stream, StreamPosition) else StreamPosition(stream[0], *decode_place(stream[1]))
            for stream in self.streams
        )
        return {"batch": self.batch, "streams": streams, "next_stream": self.next_stream}


class _UnorderedPlace(NamedTuple):
    """How far an iteration has come whose batches arrive in any order.

    Immutable, and yet it takes constant time per batch, however many batches overtake a slow one: the newest are a
    linked list, which is folded into the set once it is as long.

    Attributes:
        first: all batches before this one were taken.
        ahead: batches from ``first`` on that were taken.
        newest: further ones: the last one taken, and the list of those before it.
        recent: how many ``newest`` holds.
        taken: how many were taken in all.
    """

    first: int
    ahead: frozenset[int]
    newest: tuple[int, Any] | None = None
    recent: int = 0
    taken: int = 0

    def after(self, last: Any) -> _UnorderedPlace:
        """The place once another batch was taken: the scheduler's ``last``."""
        newest = (last.batch, self.newest)
        place = _UnorderedPlace(self.first, self.ahead, newest, self.recent + 1, self.taken + 1)
        return place if place.recent <= 32 + len(self.ahead) else place._folded()

    def _folded(self) -> _UnorderedPlace:
        first, ahead, newest = self.first, set(self.ahead), self.newest
        while newest is not None:
            batch, newest = newest
            ahead.add(batch)
        while first in ahead:
            ahead.remove(first)
            first += 1
        return _UnorderedPlace(first, frozenset(ahead), taken=self.taken)

    @property
    def batch(self) -> int:
        """How many batches were taken without a gap."""
        return self._folded().first

    def position(self) -> dict[str, Any]:
        """What a :class:`Position` says of it."""
        place = self._folded()
        return {"batch": place.first, "skip": tuple(sorted(place.ahead))}


class Progress:
    """How far one iteration has come.

    Args:
        begin: where it began.
        resumed: whether a state said so.

    Attributes:
        back: what the loader goes back to if nobody reads it: a position, and whether a state said so.
        place: how many batches were taken; if ``detailed``, a :class:`_StreamsPlace` or an :class:`_UnorderedPlace`.
            Always replaced as a whole, so that it can be put back.
        engine: None once it was shut down.
    """

    def __init__(self, engine: Engine, begin: Position, resumed: bool) -> None:
        self.begin = begin
        self.back = begin, resumed
        self.epoch = begin.epoch
        self.finished = False
        self.feeding = False
        self.engine: Engine | None = engine
        # Where the streams of the epoch that follows begin; empty: at their beginnings.
        self._following_streams: tuple[StreamPosition, ...] = ()
        self._plan_states = engine.supply.states()
        self._stateful = engine.stateful
        self.detailed = bool(engine.stream_count) or not engine.in_order
        self.place: Any = begin.batch
        if engine.stream_count:
            streams = begin.streams or (StreamPosition(),) * engine.stream_count
            self.place = _StreamsPlace(begin.batch, streams, begin.next_stream)
        elif self.detailed:
            self.place = _UnorderedPlace(begin.batch, frozenset(begin.skip), taken=begin.batch + len(begin.skip))

    @property
    def batch(self) -> int:
        """How many batches were taken without a gap."""
        batch: int = self.place.batch if self.detailed else self.place
        return batch

    @property
    def taken(self) -> int:
        """How many batches were taken."""
        taken: int = self.place.taken if isinstance(self.place, _UnorderedPlace) else self.batch
        return taken

    @property
    def untouched(self) -> bool:
        """Whether nobody has asked it for a batch."""
        return not self.finished and self.taken == self.begin.batch + len(self.begin.skip)

    def finish(self, engine: Engine) -> None:
        """All batches were taken."""
        self.finished = True
        # In this process the dataset itself says where it is, when it is asked.
        if not isinstance(self.place, _StreamsPlace) or engine.workers.count == 0:
            return
        states = []
        for stream, end in zip(self.place.position()["streams"], engine.stream_ends()):
            states.append(stream.state if stream.ended else decode_place(end)[0])
        if any(state is not None for state in states):
            self._following_streams = tuple(StreamPosition(0, state) for state in states)

    def position(self, batches: int | None) -> Position:
        """Where to go on; after ``batches`` of the epoch, if the caller knows better."""
        if batches is None:
            if self.feeding and not self.finished:
                raise errors.FailedPrecondition(
                    "while a loader feeds a queue, only the program knows how many batches it has consumed: pass "
                    "state_dict(batches=n), n of this epoch"
                )
            if self.finished:
                return Position(self.epoch + 1, streams=self._following_streams)
        elif self.detailed:
            if not isinstance(self.place, _StreamsPlace) or len(self.place.streams) != 1:
                raise errors.FailedPrecondition(
                    "the number of batches does not say which these were: state_dict takes it only where batches come "
                    "in order and workers have no streams of their own"
                )
            if self._stateful and (self.epoch > 0 or self.begin.streams):
                raise errors.FailedPrecondition(
                    "the dataset has a state of its own, on which this epoch's batches may depend, and the number of "
                    "batches does not say what it was: call state_dict() when the epoch is over, without a number"
                )
            return Position(self.epoch, batches, streams=(StreamPosition(batches),))
        place = self.place.position() if self.detailed else {"batch": self.place if batches is None else batches}
        plan = self.begin.plan if place["batch"] == self.begin.batch else {}
        if not plan and self._plan_states is not None:
            plan = self._plan_states(place["batch"])
        return Position(self.epoch, plan=plan, **place)


class ProgressBar(Iterator[Any]):
    """The batches of an iterator, with a bar that counts those that the consumer is done with.

    Not tqdm's own iterator: a generator, which an interrupt would end.

    Args:
        bar: a ``tqdm``.
    """

    def __init__(self, batches: BatchIterator, progress: Progress, bar: Any) -> None:
        self._batches = batches
        self._progress = progress
        self._bar = bar

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        self._count()  # before a batch is at hand, which an interrupt could lose
        try:
            return self._batches.__next__()
        except StopIteration:
            self._end()
            raise

    def __del__(self) -> None:
        self._end()

    def _count(self) -> None:
        self._draw(self._bar.update, self._progress.taken - self._bar.n)

    def _end(self) -> None:
        self._count()
        self._draw(self._bar.close)

    def _draw(self, method: Callable[..., object], *arguments: int) -> None:
        try:
            method(*arguments)
        except BaseException:
            _unlock(self._bar)
            raise


def _unlock(bar: Any) -> None:
    """Gives back what an interrupt within tqdm has left locked: the lock that all bars share, those of child processes,
    too, which would wait for it forever.
    """
    import multiprocessing.synchronize  # not for nothing: where there are no semaphores it fails

    lock = bar.get_lock()
    for part in getattr(lock, "locks", [lock]):
        if isinstance(part, (type(threading.RLock()), multiprocessing.synchronize.RLock)):
            with contextlib.suppress(RuntimeError, AssertionError):  # this thread does not hold it any more
                while True:
                    part.release()


# Of a batch that nobody waits for.
_NOTHING = object()


class BatchIterator(Iterator[Any]):
    """One epoch of a loader.

    A signal handler may raise while ``next`` runs: KeyboardInterrupt, for one. The batch that was on its way is then
    what the next call gives, and not counted before: the scheduler gives a batch again until it is acknowledged, and
    after that ``_kept`` holds it until the call that returns it.

    Args:
        length: gives the number of batches in the epoch.
        give_back: called with the engine when the iteration is over, or nobody refers to it any more.

    Attributes:
        progress: how far it has come.
    """

    def __init__(
        self,
        engine: Engine,
        progress: Progress,
        length: Callable[[], int],
        give_back: Callable[[Engine], None],
        pin_memory: bool,
    ) -> None:
        self._engine: Engine | None = engine
        # Under this name, PyTorch's, programs look for the processes.
        self._workers = engine.workers.processes
        self._take = engine.next
        self._acknowledge = engine.acknowledge
        self.progress = progress
        self._kept: Any = _NOTHING
        self._length = length
        self._give_back = give_back
        self._unsure_of_pinning = pin_memory
        self._ended: str | None = None

    def __len__(self) -> int:
        return self._length()

    # Not a weakref.finalize, which would keep the engine, and with it all that the user gave, in a global registry: an
    # iterator that the dataset or collate_fn refers to could never be collected.
    def __del__(self) -> None:
        self._let_go()

    def __next__(self) -> Any:
        if self._engine is None:
            if self._ended is not None:
                raise errors.FailedPrecondition(self._ended)
            raise StopIteration
        progress = self.progress
        before = progress.place
        batch = self._kept
        told: BaseException | None = None
        try:
            if batch is _NOTHING:
                batch = self._take()
            progress.place = before.after(self._engine.last()) if progress.detailed else before + 1
            if self._unsure_of_pinning:
                self._check_pinning()
            self._kept = _NOTHING
            self._acknowledge()
            if type(batch) is Failed:
                self._engine.forget_failure()
                told = batch.error
                raise told
            return batch
        except StopIteration:
            progress.finish(self._engine)
            self._let_go()
            raise
        except BaseException as error:
            # No calls on the way of an error that the consumer is to hear of: at their ends signal handlers run.
            if error is told:
                told = batch = None  # the error refers to this frame
            elif self._engine is not None and error is self._engine.supply.error:
                self._engine.supply.error = None
            else:
                rest_if_interpreter_exits()
                self._kept = batch
                progress.place = before
            raise

    def _check_pinning(self) -> None:
        self._unsure_of_pinning = False
        problem = self._engine.scheduler.pinning if self._engine is not None else ""
        if problem:
            warnings.warn(f"pin_memory has no effect: {problem}", RuntimeWarning, stacklevel=3)

    def end(self, reason: str) -> None:
        """Makes every further batch an error."""
        if self._engine is not None:
            self._ended = reason
            self._let_go()

    def _let_go(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            del self._take, self._acknowledge
            self._give_back(engine)
