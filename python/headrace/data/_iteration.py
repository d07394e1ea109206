"""One iteration of a loader: its batches, and how far it has come."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from headrace import errors
from headrace.data._engine import Engine
from headrace.data._state import Position, StreamPosition
from headrace.data._stream import decode_place


class Progress:
    """How far one iteration has come.

    Args:
        begin: where it began.
    """

    def __init__(self, engine: Engine, begin: Position) -> None:
        self.epoch = begin.epoch
        self.batch = begin.batch
        self.finished = False
        self.feeding = False
        # None once it was shut down.
        self.engine: Engine | None = engine
        self._plan_state = engine.plan_state()
        # Out of order: batches beyond ``batch`` that were taken.
        self._ahead = set(begin.skip)
        # Iterable: how far each stream has been taken. A stream's state is decoded when somebody asks.
        self._streams: list[StreamPosition | tuple[int, bytes]] = []
        self._next_stream = begin.next_stream
        if engine.stream_count:
            self._streams = list(begin.streams) or [StreamPosition()] * engine.stream_count
        self.detailed = bool(engine.stream_count) or not engine.in_order

    def note(self, last: Any) -> None:
        """Counts another batch, in an iteration that is ``detailed``: the scheduler's ``last``."""
        if self._streams:
            self.batch += 1
            self._streams[last.stream] = (last.stream_batch + 1, last.attachment)
            self._next_stream = (last.stream + 1) % len(self._streams)
            return
        self._ahead.add(last.batch)
        while self.batch in self._ahead:
            self._ahead.remove(self.batch)
            self.batch += 1

    def position(self, batches: int | None) -> Position:
        """Where to go on; after ``batches`` of the epoch, if the caller knows better."""
        if batches is None:
            if self.feeding and not self.finished:
                raise errors.FailedPrecondition(
                    "while a loader feeds a queue, only the program knows how many batches it has consumed: pass "
                    "state_dict(batches=n), n of this epoch"
                )
            if self.finished:
                return Position(self.epoch + 1)
        elif self.detailed:
            if len(self._streams) != 1:
                raise errors.FailedPrecondition(
                    "the number of batches does not say which these were: state_dict takes it only where batches come "
                    "in order and workers have no streams of their own"
                )
            return Position(self.epoch, batches, streams=(StreamPosition(batches),))
        return Position(
            epoch=self.epoch,
            batch=self.batch if batches is None else batches,
            skip=tuple(sorted(self._ahead)),
            streams=tuple(
                stream if isinstance(stream, StreamPosition) else StreamPosition(stream[0], *decode_place(stream[1]))
                for stream in self._streams
            ),
            next_stream=self._next_stream,
            plan=self._plan_state,
        )


class BatchIterator(Iterator[Any]):
    """One epoch of a loader.

    Args:
        length: gives the number of batches in the epoch.
        give_back: called with the engine when the iteration is over, or nobody refers to it any more.
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
        self._next = engine.next
        self._progress = progress
        self._note = progress.note if progress.detailed else None
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
        try:
            batch = self._next()
        except StopIteration:
            self._progress.finished = True
            self._let_go()
            raise
        except BaseException:
            if self._engine.took_failed_batch():
                self._count()
            raise
        if self._note is None:
            self._progress.batch += 1
        else:
            self._count()
        if self._unsure_of_pinning:
            self._unsure_of_pinning = False
            problem = self._engine.scheduler.pinning
            if problem:
                warnings.warn(f"pin_memory has no effect: {problem}", RuntimeWarning, stacklevel=2)
        return batch

    def _count(self) -> None:
        if self._note is None or self._engine is None:
            self._progress.batch += 1
        else:
            self._note(self._engine.last())

    def end(self, reason: str) -> None:
        """Makes every further batch an error."""
        if self._engine is not None:
            self._ended = reason
            self._let_go()

    def _let_go(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            del self._next
            self._give_back(engine)
