"""One iteration of a loader: its batches, and how far it has come."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from headrace import _core, errors
from headrace.data._iteration.engine import Engine, Failed
from headrace.data._iteration.progress import Progress
from headrace.data._system.interpreter_exit import rest_if_interpreter_exits

# Of a batch that is not waited for.
_NOTHING = object()


class BatchIterator(_core.SerialIterator, Iterator[Any]):
    """One epoch of a loader.

    Thread-safety: threads that call ``next`` at the same time take turns, so that each batch goes to one of them. A
    dataset, sampler or ``collate_fn`` that calls it on the iterator for which it runs gets an error.

    A signal handler may raise while ``next`` runs: KeyboardInterrupt, for one. The batch that was on its way is then
    returned by the next call, and not counted before: the scheduler delivers a batch again until it is acknowledged,
    and after that ``_kept`` holds it until the call that returns it. An error arrives as a batch does, as
    :class:`Failed`, and is raised by C, where no handler can run in between.

    Args:
        length: gives the number of batches in the epoch.
        give_back: called with the engine when the iteration is over, or has no references any more.

    Attributes:
        progress: how far it has come.
    """

    failure_type = Failed

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
        self._last_batch, self._acknowledge = engine.last_batch, engine.acknowledge
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

    def _before_waiting(self) -> None:
        if self._engine is not None:
            self._engine.scheduler.require_consumer()

    def _advance(self) -> Any:
        if self._engine is None:
            if self._ended is not None:
                raise errors.FailedPrecondition(self._ended)
            raise StopIteration
        progress = self.progress
        before = progress.reached
        batch = self._kept
        try:
            if batch is _NOTHING:
                batch = self._take()
            failed = type(batch) is Failed
            if not failed or batch.counts:
                progress.reached = before.after(self._engine.last()) if progress.detailed else self._last_batch() + 1
            if self._unsure_of_pinning:
                self._check_pinning()
            self._kept = _NOTHING
            self._acknowledge()
            if failed:
                self._engine.forget_failure()
            return batch
        except StopIteration:
            progress.finish(self._engine)
            self._let_go()
            raise
        except BaseException:
            rest_if_interpreter_exits()
            self._kept = batch
            progress.reached = before
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
            del self._take, self._last_batch, self._acknowledge
            self._give_back(engine)
