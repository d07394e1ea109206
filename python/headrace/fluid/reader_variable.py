"""The variable that a program reads from, and whose methods set its source, and begin and end a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from headrace import errors
from headrace.fluid._feed_source import FeedingLoader, FeedSource, reader_stats, reset_reader
from headrace.fluid.core import LoDTensorBlockingQueue, Scope
from headrace.fluid.executor import global_scope
from headrace.fluid.framework import Block, Variable
from headrace.reader import batch

__all__ = ["ReaderVariable"]


class ReaderVariable(Variable):
    """A variable that holds a reader.

    If it is a py_reader, or a reader over one, its methods set its source, and begin and end a pass::

        reader.decorate_sample_list_generator(batches)
        for epoch in range(epochs):
            reader.start()
            try:
                while True:
                    executor.run(program)
            except fluid.core.EOFException:
                reader.reset()

    An exception that a source raises reaches ``Executor.run`` as it was raised, after the batches that came before it;
    then ``reset`` and ``start`` begin a new pass.

    Thread-safety: start, reset and the queue's methods may be called by any thread.
    """

    def __init__(self, block: Block, name: str, source: FeedSource | None = None) -> None:
        super().__init__(block, name)
        self._source = source

    def _copy_to(self, block: Block) -> ReaderVariable:
        return ReaderVariable(block, self.name, self._source)

    @property
    def _feed_source(self) -> FeedSource:
        if self._source is None:
            raise errors.FailedPrecondition(f"reader '{self.name}' is not fed from Python")
        return self._source

    @property
    def specs(self) -> list[tuple[list[int], int, int]]:
        """Shape, dtype and LoD level of each tensor that the reader yields."""
        return self.desc.reader_specs

    @property
    def queue(self) -> LoDTensorBlockingQueue:
        """The queue, to push batches into it by hand, before or while the program runs; ``queue.close()`` ends the
        pass.
        """
        return self._feed_source.take_queue()

    def stats(self, scope: Scope | None = None) -> dict[str, Any]:
        """Totals of the reader since its creation: ``batches`` given out, and ``wait_s``, the seconds that programs
        waited for them.

        ``scope`` is where the programs run, by default the current one; before they do, the totals are 0.
        """
        return reader_stats(scope or global_scope(), self.name)

    def start(self) -> None:
        """Begins to feed. FailedPrecondition without a source, or if it has been started since the last reset."""
        self._feed_source.start()

    def reset(self) -> None:
        """Ends the pass and drops the rest of it. May be called at any time, also before a pass or twice.

        Returns when the feeder has stopped, or with a warning if its generator does not return for five seconds; the
        next ``start`` waits for that, unless there is another source by then. A reader that is not fed from Python, but
        reads files, for example, begins its next pass immediately; the one of the global scope.
        """
        if self._source is not None:
            self._source.reset()
        else:
            reset_reader(global_scope(), self.name)

    def decorate_batch_generator(self, reader: Callable[[], Iterable[Any]], places: Any = None) -> None:
        """``reader()`` yields batches: sequences with a LoDTensor (which is shared), an array (which is copied) or a
        list (of which an array of the declared dtype is made) for each variable.
        """
        self._feed_source.decorate_batches(reader)

    def decorate_sample_list_generator(self, reader: Callable[[], Iterable[Any]], places: Any = None) -> None:
        """``reader()`` yields lists of samples, of which a DataFeeder makes batches."""
        self._feed_source.decorate_sample_lists(reader)

    def decorate_sample_generator(
        self,
        sample_generator: Callable[[], Iterable[Any]],
        batch_size: int,
        drop_last: bool = True,
        places: Any = None,
    ) -> None:
        """``sample_generator()`` yields samples; ``batch_size`` of them make a batch. ``drop_last``: leave out an
        incomplete one.
        """
        if not callable(sample_generator):
            raise errors.TypeMismatch(
                "decorate_sample_generator takes a function that returns an iterable, "
                f"got {type(sample_generator).__name__}"
            )
        self._feed_source.decorate_sample_lists(batch(sample_generator, batch_size, drop_last))

    def decorate_loader(self, loader: FeedingLoader) -> None:
        """The batches of a headrace.DataLoader, which C++ moves into the queue: no Python runs for each batch."""
        self._feed_source.decorate_loader(loader)

    decorate_tensor_provider = decorate_batch_generator
    decorate_paddle_reader = decorate_sample_list_generator
