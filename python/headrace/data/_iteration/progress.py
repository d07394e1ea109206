"""The progress of an iteration, and the position from which it would be resumed."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from headrace import errors
from headrace.data._datasets.iterable_datasets import read_twice
from headrace.data._iteration.engine import Engine
from headrace.data._iteration.state import Position, StreamPosition
from headrace.data._workers.stream_reader import decode_state, encode_state


class _StreamProgress(NamedTuple):
    """The progress of one stream.

    Attributes:
        batches: the number of batches taken in this epoch.
        noted: the number of batches after which the worker last reported the dataset's state.
        message: the worker's report, for :func:`decode_state`: it is decoded only on request.
    """

    batches: int
    noted: int
    message: bytes

    def position(self) -> StreamPosition:
        """The same as a :class:`StreamPosition`."""
        return StreamPosition(self.batches, *decode_state(self.message), self.batches - self.noted)


class _StreamsProgress(NamedTuple):
    """The progress of an iteration over streams.

    Attributes:
        streams: the progress of each stream.
        next_stream: whose turn it is.
    """

    streams: tuple[_StreamProgress, ...]
    next_stream: int

    @classmethod
    def at(cls, position: Position, streams: int) -> _StreamsProgress:
        """The progress at the start of an iteration over that many streams."""
        starts = position.streams or (StreamPosition(),) * streams
        return cls(
            tuple(
                _StreamProgress(start.batches, start.batches - start.behind, encode_state(start.state, start.ended))
                for start in starts
            ),
            position.next_stream,
        )

    def after(self, last: Any) -> _StreamsProgress:
        """The progress after another batch was taken: the scheduler's ``last``."""
        streams = list(self.streams)
        batches, message = last.stream_batch + 1, last.attachment
        before = streams[last.stream]
        noted, message = (batches, message) if message else (before.noted, before.message)
        streams[last.stream] = _StreamProgress(batches, noted, message)
        return _StreamsProgress(tuple(streams), (last.stream + 1) % len(streams))

    @property
    def batch(self) -> int:
        """How many batches were taken."""
        return sum(stream.batches for stream in self.streams)

    @property
    def taken(self) -> int:
        """The same: a stream has no gaps."""
        return self.batch

    def position(self) -> dict[str, Any]:
        """The fields of a :class:`Position` for it."""
        streams = tuple(stream.position() for stream in self.streams)
        return {"batch": self.batch, "streams": streams, "next_stream": self.next_stream}


class _UnorderedProgress(NamedTuple):
    """The progress of an iteration whose batches arrive in any order.

    Immutable, and yet it takes constant time per batch, however many batches overtake a slow one: the newest are a
    linked list, which is folded into the set once it is as long.

    Attributes:
        first: all batches before this one were taken.
        ahead: batches from ``first`` on that were taken.
        newest: further ones: the last one taken, and the list of those before it.
        recent: how many ``newest`` holds.
    """

    first: int
    ahead: frozenset[int]
    newest: tuple[int, Any] | None = None
    recent: int = 0

    def after(self, last: Any) -> _UnorderedProgress:
        """The progress after another batch was taken: the scheduler's ``last``."""
        newest = (last.batch, self.newest)
        progress = _UnorderedProgress(self.first, self.ahead, newest, self.recent + 1)
        return progress if progress.recent <= 32 + len(self.ahead) else progress._folded()

    def _folded(self) -> _UnorderedProgress:
        first, ahead, newest = self.first, set(self.ahead), self.newest
        while newest is not None:
            batch, newest = newest
            ahead.add(batch)
        while first in ahead:
            ahead.remove(first)
            first += 1
        return _UnorderedProgress(first, frozenset(ahead))

    @property
    def batch(self) -> int:
        """The first batch that was not taken."""
        return self._folded().first

    @property
    def taken(self) -> int:
        """How many batches were taken."""
        return self.first + len(self.ahead) + self.recent

    def position(self) -> dict[str, Any]:
        """The fields of a :class:`Position` for it."""
        folded = self._folded()
        return {"batch": folded.first, "skip": tuple(sorted(folded.ahead))}


class Progress:
    """The progress of one iteration.

    Args:
        begin: where it began.
        resumed: whether a state said so.
        begins: where the streams of its epoch began.

    Attributes:
        back: the position that the loader returns to if no batch of it is taken, and whether a state set it.
        given_up: whether it fed a queue, and was stopped before all batches were taken.
        reached: the next batch of the order, whatever happened to those before; if ``detailed``, a
            :class:`_StreamsProgress` or an :class:`_UnorderedProgress`. Always replaced as a whole, so that it can be
            put back.
        engine: None once it was shut down.
    """

    def __init__(self, engine: Engine, begin: Position, resumed: bool, begins: tuple[StreamPosition, ...]) -> None:
        self.begin = begin
        self._begins = begins
        self.back = begin, resumed
        self.epoch = begin.epoch
        self.finished = False
        self.feeding = False
        self.given_up = False
        self.engine: Engine | None = engine
        # Where the streams of the epoch that follows begin; empty: at their beginnings.
        self._following_streams: tuple[StreamPosition, ...] = ()
        self._plan_states = engine.supply.states()
        self._stateful = engine.stateful
        self.detailed = bool(engine.stream_count) or not engine.in_order
        self.reached: Any = begin.batch
        if engine.stream_count:
            self.reached = _StreamsProgress.at(begin, engine.stream_count)
        elif self.detailed:
            self.reached = _UnorderedProgress(begin.batch, frozenset(begin.skip))
        self._start = self.reached

    @property
    def batch(self) -> int:
        """The first batch that was not taken."""
        batch: int = self.reached.batch if self.detailed else self.reached
        return batch

    @property
    def taken(self) -> int:
        """How many batches were taken, those that no sample was left of included."""
        taken: int = self.reached.taken if self.detailed else self.reached
        return taken

    @property
    def untouched(self) -> bool:
        """Whether no batch of it has been requested."""
        return not self.finished and self.reached == self._start

    def restart(self, begin: Position) -> None:
        """Begins elsewhere, if it is untouched."""
        assert self.engine is not None
        vars(self).update(vars(Progress(self.engine, begin, False, self._begins)))

    def finish(self, engine: Engine) -> None:
        """All batches were taken."""
        self.finished = True
        if not isinstance(self.reached, _StreamsProgress):
            return
        # In this process the dataset itself says where it is, when it is asked; unless this epoch was resumed at its
        # end, and nothing was read.
        if engine.workers.count == 0 and not any(stream.ended for stream in self.begin.streams):
            return
        states = []
        for stream, end in zip(self.reached.position()["streams"], engine.stream_ends()):
            states.append(stream.state if stream.ended else decode_state(end)[0])
        if any(state is not None for state in states):
            self._following_streams = tuple(StreamPosition(0, state) for state in states)

    def position(self, batches: int | None) -> Position:
        """The position to continue from; after ``batches`` of the epoch, if the caller knows better."""
        if batches is None:
            if self.feeding and not self.finished:
                raise errors.FailedPrecondition(
                    "while a loader feeds a queue, only the program knows how many batches it has consumed: pass "
                    "state_dict(batches=n), where n counts the batches of this epoch"
                )
            if self.finished:
                return Position(self.epoch + 1, streams=self._following_streams)
        else:
            return self._position_after(batches)
        position = self.reached.position() if self.detailed else self.begin.from_batch(self.reached)
        return self._position(position)

    def _position_after(self, batches: int) -> Position:
        """The position after that many batches of the epoch."""
        if self.begin.skip or self._left_out() or (self.detailed and not self._is_one_stream()):
            raise errors.FailedPrecondition(
                "the number of batches does not say which batches these were: state_dict accepts it only if batches "
                "come in order, none was taken out of turn or skipped, and workers have no streams of their own"
            )
        if not self.detailed:
            return self._position({"batch": batches})
        if self._stateful and (self.epoch > 0 or self.begin.streams):
            raise errors.FailedPrecondition(
                "the dataset has a state of its own, on which this epoch's batches may depend, and the number of "
                "batches does not determine that state: call state_dict() without a number when the epoch is over"
            )
        return Position(self.epoch, batches, streams=(StreamPosition(batches),))

    def _position(self, position: dict[str, Any]) -> Position:
        plan = self.begin.plan if position["batch"] == self.begin.batch else {}
        if not plan and self._plan_states is not None:
            plan = self._plan_states(position["batch"])
        if position["batch"] == 0 and self._begins:
            position = {**position, "streams": self._begins}
        return Position(self.epoch, plan=plan, begins=self._begins, **position)

    def _is_one_stream(self) -> bool:
        return isinstance(self.reached, _StreamsProgress) and len(self.reached.streams) == 1

    def _left_out(self) -> bool:
        """Whether samples were left out that kill workers, and so perhaps whole batches."""
        return self.engine is not None and self.engine.workers.deaths()["skipped_samples"] > 0


class OnlyReading:
    """Which iteration reads a dataset that can be read once. Copies of a loader share this, as they share the dataset;
    one that is sent to another process, or copied deeply with its dataset, goes its own way from there.
    """

    def __init__(self) -> None:
        # One at most; None: in another process, or of a deep copy's original.
        self._readers: dict[str, weakref.ref[Progress] | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_readers": dict.fromkeys(self._readers)}

    @property
    def has_begun(self) -> bool:
        """Whether a batch has been requested of it."""
        return bool(self._readers)

    def begin(self, progress: Progress) -> None:
        """An iteration is about to request its first batch.

        Raises:
            FailedPrecondition: another one has.
        """
        reader = self._readers.setdefault("first", weakref.ref(progress))  # atomic
        if reader is None or reader() is not progress:
            raise read_twice()
