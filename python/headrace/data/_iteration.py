"""One iteration of a loader: its batches, and how far it has come."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.data._engine import Engine
from headrace.data._stream import decode_place

if TYPE_CHECKING:
    from headrace.data._dataloader import DataLoader


class Progress:
    """How far one iteration has come.

    Args:
        resume: the position that it began with.
    """

    def __init__(self, epoch: int, engine: Engine, resume: dict[str, Any]) -> None:
        self.epoch = epoch
        self.batch = int(resume.get("batch", 0))
        self.finished = False
        self.feeding = False
        self.engine: Engine | None = engine
        self._plan_state = engine.plan_state()
        # Out of order: batches beyond ``batch`` that were taken.
        self._ahead = set(resume.get("skip", ()))
        # Iterable: how far each stream has been taken, as batches, state and end, the latter still to be decoded or
        # not; and whose turn it is.
        self._streams: list[tuple[int, bytes] | list[Any]] = []
        self._next_stream = int(resume.get("next_stream", 0))
        if engine.stream is not None:
            self._streams = list(resume.get("streams", ())) or [(0, b"")] * engine.stream_count
        self.detailed = engine.stream is not None or not engine.in_order

    def note(self, last: Any) -> None:
        """Another batch was taken, in an iteration that is ``detailed``: the scheduler's ``last``."""
        if self._streams:
            self.batch += 1
            self._streams[last.stream] = (last.stream_batch + 1, last.attachment)
            self._next_stream = (last.stream + 1) % len(self._streams)
            return
        self._ahead.add(last.batch)
        while self.batch in self._ahead:
            self._ahead.remove(self.batch)
            self.batch += 1

    def position(self, batches: int | None) -> dict[str, Any]:
        """The part of a state that says where to go on."""
        if self.finished and batches is None:
            return {"epoch": self.epoch + 1, "batch": 0}
        if batches is not None and self.detailed:
            if len(self._streams) != 1:
                raise errors.FailedPrecondition(
                    "which batches these were only the loader knows: batches can be given where they come in order and "
                    "workers have no streams of their own"
                )
            return {"epoch": self.epoch, "batch": batches, "next_stream": 0, "streams": [[batches, None, False]]}
        position: dict[str, Any] = {"epoch": self.epoch, "batch": self.batch if batches is None else batches}
        if self._plan_state:
            position["plan"] = self._plan_state
        if self._ahead:
            position["skip"] = sorted(self._ahead)
        if self._streams:
            position["next_stream"] = self._next_stream
            position["streams"] = [
                [stream[0], *decode_place(stream[1])] if isinstance(stream, tuple) else stream
                for stream in self._streams
            ]
        return position


class BatchIterator(Iterator[Any]):
    """One epoch of a loader."""

    def __init__(self, loader: DataLoader, engine: Engine, progress: Progress) -> None:
        self._loader = loader
        self._engine: Engine | None = engine
        self._next = engine.next
        self._progress = progress
        self._note = progress.note if progress.detailed else None
        self._unsure_of_pinning = loader.pin_memory
        self._ended: str | None = None
        self._give_back = weakref.finalize(self, give_back, weakref.ref(loader), engine)

    def __len__(self) -> int:
        return len(self._loader)

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
        """Every further batch is an error."""
        if self._engine is not None:
            self._ended = reason
            self._let_go()

    def _let_go(self) -> None:
        self._engine = None
        del self._next
        self._give_back()


def give_back(loader: weakref.ref[DataLoader], engine: Engine) -> None:
    """Returns an engine whose iteration is over to its loader, if that is still there."""
    alive = loader()
    if alive is None:
        engine.close()
    elif engine.is_mine():
        alive.release(engine)
