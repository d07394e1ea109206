"""One iteration of a loader: its batches, and how far it has come."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headrace import _core, errors
from headrace._warnings import warn
from headrace.data._iteration.engine import Engine, Failed
from headrace.data._iteration.progress import Progress
from headrace.data._iteration.progress_bar import ProgressBar
from headrace.data._iteration.state import Position
from headrace.data._system.interpreter_exit import rest_if_interpreter_exits

# What a step calls: takes a batch, gives its number, acknowledges it.
_Calls = tuple[Callable[..., Any], Callable[[], int], Callable[[], None]]


class BatchIterator(_core.SerialIterator, Iterator[Any]):
    """One epoch of a loader.

    Thread-safety: threads that call ``next`` at the same time take turns, so that each batch goes to one of them. A
    dataset, sampler or ``collate_fn`` that calls it on the iterator for which it runs gets an error. Any thread may end
    the iteration, also while another one is in ``next``: ``_advance`` decides what that one gets.

    A signal handler may raise while ``next`` runs: KeyboardInterrupt, for one. The batch that was on its way is then
    returned by the next call, and not counted before: the scheduler delivers a batch again until it is acknowledged,
    ``_step`` holds it from before that on, and C takes it from there, counts it and returns it, with no handler in
    between. An error arrives as a batch does, as :class:`Failed`, and is raised by C. A batch for which nothing is left
    to do in Python does not come here: C takes it from the scheduler, in ``_source``, acknowledges it and counts it.

    Args:
        length: gives the number of batches in the epoch.
        give_back: called with the engine when the iteration is over, or has no references any more.
        bar: counts the batches that the consumer is done with.

    Attributes:
        progress: how far it has come.
    """

    failure_type = Failed
    progress: Progress
    _engine: Engine | None = None  # once it was let go

    def __init__(
        self,
        engine: Engine,
        progress: Progress,
        length: Callable[[], int],
        give_back: Callable[[Engine], None],
        pin_memory: bool,
        bar: ProgressBar | None = None,
    ) -> None:
        self._engine = engine
        # Under this name, PyTorch's, programs look for the processes.
        self._workers = engine.workers.processes
        self._calls: _Calls | None = (engine.next, engine.last_batch, engine.acknowledge)
        self.progress = progress
        # What the next call returns, and progress.reached after it.
        self._step: tuple[Any, Any] | None = None
        self._bar = bar
        plain = bar is None and not pin_memory and not progress.detailed
        self._source = self._source_of_rest = engine.source if plain else None
        self._before_first: Callable[[BatchIterator], None] | None = None
        self._length = length
        self._give_back = give_back
        self._unsure_of_pinning = pin_memory
        # Why, and in which thread, it was ended before its last batch.
        self._ended: tuple[str, int] | None = None

    def __len__(self) -> int:
        return self._length()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at batch {self.progress.taken}>"

    @property
    def unread(self) -> bool:
        """Whether it is under way and nothing of it has been read."""
        return self._engine is not None and self.progress.untouched

    def before_first(self, function: Callable[[BatchIterator], None]) -> None:
        """Has ``function`` called before the first batch is requested, which it refuses by an exception."""
        self._before_first, self._source = function, None

    def restart(self, position: Position, give_back: Callable[[Engine], None]) -> None:
        """Begins elsewhere, if it is unread."""
        engine = self._engine
        assert engine is not None
        self._step = None
        engine.start_epoch(position)
        self.progress.restart(position)
        self._give_back = give_back

    # Not a weakref.finalize, which would keep the engine, and with it all that the user gave, in a global registry: an
    # iterator that the dataset or collate_fn refers to could never be collected.
    def __del__(self, interpreter_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        # The workers have ended by then, and modules may have lost their names.
        if not interpreter_ends():
            self._let_go()

    def _before_waiting(self) -> None:
        engine = self._engine
        if engine is not None:
            engine.scheduler.require_consumer()

    def _advance(self, first: list[Any] | None) -> None:
        engine, calls = self._engine, self._calls
        try:
            if engine is not None and calls is not None:
                self._make_step(engine, calls, first)
                return
            if first and isinstance(first[0], BaseException):
                raise first.pop()
        except StopIteration:
            raise
        except BaseException as error:
            rest_if_interpreter_exits()
            if not self._is_overtaken(error):
                raise
        if self._ended is not None:
            raise errors.FailedPrecondition(self._ended[0])
        raise StopIteration

    def _is_overtaken(self, error: BaseException) -> bool:
        """Whether ``error`` was met because another thread has ended the iteration meanwhile. If this thread has, it
        was a signal handler, and the error may be that handler's.
        """
        return isinstance(error, Exception) and self._ended is not None and self._ended[1] != threading.get_ident()

    def _make_step(self, engine: Engine, calls: _Calls, first: list[Any] | None) -> None:
        take, last_batch, acknowledge = calls
        if self._before_first is not None:
            self._before_first(self)
            self._before_first, self._source = None, self._source_of_rest
        progress = self.progress
        if self._bar is not None:
            self._bar.show(progress.taken)
        try:
            if self._step is None:
                batch, reached = take(first), progress.reached
                if type(batch) is not Failed or batch.counts:
                    reached = reached.after(engine.last()) if progress.detailed else last_batch() + 1
                self._step = batch, reached
            if self._unsure_of_pinning:
                self._check_pinning(engine)
            acknowledge()
            if type(self._step[0]) is Failed:
                engine.forget_failure()
        except StopIteration:
            progress.finish(engine)
            self._let_go()
            raise

    def _check_pinning(self, engine: Engine) -> None:
        self._unsure_of_pinning = False
        problem = engine.scheduler.pinning
        if problem:
            warn(f"pin_memory has no effect: {problem}")

    def end(self, reason: str) -> None:
        """Makes every further batch an error, and ends the workers: another thread may be about to take a batch of
        theirs, which no other epoch must miss.
        """
        if self._engine is not None:
            self._ended = reason, threading.get_ident()
            self._let_go(close=True)

    def _let_go(self, close: bool = False) -> None:
        engine = vars(self).pop("_engine", None)  # atomic: if several threads get here, one of them gives it back
        if engine is not None:
            self._source = self._source_of_rest = self._calls = None
            if close:
                engine.close()
            self._give_back(engine)
            if self._bar is not None:
                self._bar.close(self.progress.taken)
