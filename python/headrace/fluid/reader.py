"""Loaders that feed programs from generators, in threads of their own."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from headrace import errors
from headrace.fluid import unique_name
from headrace.fluid._feed_source import FeedingLoader, FeedSource, init_queue
from headrace.fluid.core import LoDTensor, Scope
from headrace.fluid.framework import Variable, default_main_program
from headrace.fluid.layers.io import create_py_reader_by_data
from headrace.reader import batch

__all__ = ["DataLoader", "GeneratorLoader", "PyReader"]

Self = TypeVar("Self", bound="GeneratorLoader")


class GeneratorLoader:
    """Reads a generator ahead of the program, in a thread, into a queue; see :meth:`DataLoader.from_generator`.

    If it is iterable, each iteration is one pass, and its batches are to be fed::

        loader.set_sample_list_generator(batches)
        for epoch in range(epochs):
            for data in loader():
                executor.run(program, feed=data)

    If it is not, the program reads the variables of ``feed_list`` from it::

        for epoch in range(epochs):
            loader.start()
            try:
                while True:
                    executor.run(program)
            except fluid.core.EOFException:
                loader.reset()

    An exception of the generator reaches the program, or the loop, as it was raised, after the batches before it.

    Thread-safety: ``start``, ``reset`` and the queue's methods may be called by any thread; an iterator by one at a
    time.
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None,
        capacity: int | None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        drop_last: bool = True,
    ) -> None:
        if capacity is None:
            raise errors.InvalidArgument("capacity, how many batches the queue holds, has to be given")
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity <= 0:
            raise errors.InvalidArgument(f"capacity has to be a positive number of batches, got {capacity!r}")
        if isinstance(feed_list, Variable) or not isinstance(feed_list, Sequence) or not feed_list:
            raise errors.TypeMismatch("feed_list has to be a list of the variables that the generator gives values for")
        for item in feed_list:
            if not isinstance(item, Variable):
                raise errors.TypeMismatch(f"feed_list takes Variables, got {type(item).__name__}")
        self._feed_list, self._return_list, self._drop_last = list(feed_list), return_list, drop_last
        self._iterable = iterable
        self._taken = 0  # batches of the latest iteration
        if iterable:
            self._source = _source_of(self._feed_list, capacity)
            weakref.finalize(self, self._source._kill)  # its thread may wait for room in the queue
        else:
            self._source = _read_by_program(self._feed_list, capacity, use_double_buffer)
        # The user has named its variables, but neither the loader nor a reader.
        self._source.title = f"the loader of {', '.join(variable.name for variable in feed_list)}"
        self._source.where = ""

    @property
    def queue(self) -> Any:
        """The queue, a ``LoDTensorBlockingQueue``."""
        return self._source.queue

    @property
    def iterable(self) -> bool:
        """Whether it is iterated over, rather than read by the program."""
        return self._iterable

    def set_batch_generator(self: Self, reader: Callable[[], Iterable[Any]], places: Any = None) -> Self:
        """``reader()`` yields batches: sequences with a LoDTensor (which is shared), an array (which is copied) or a
        list (of which an array of the declared dtype is made) for each variable. ``places`` makes no difference.
        Returns the loader.
        """
        self._source.decorate_batches(reader)
        return self

    def set_sample_list_generator(self: Self, reader: Callable[[], Iterable[Any]], places: Any = None) -> Self:
        """``reader()`` yields lists of samples, each a tuple with a value for each variable, of which a DataFeeder
        makes batches. Returns the loader.
        """
        self._source.decorate_sample_lists(reader)
        return self

    def set_sample_generator(
        self: Self,
        reader: Callable[[], Iterable[Any]],
        batch_size: int,
        drop_last: bool | None = None,
        places: Any = None,
    ) -> Self:
        """``reader()`` yields samples, of which ``batch_size`` make a batch. ``drop_last``: leave out an incomplete
        one; None: as the loader says. Returns the loader.
        """
        if not callable(reader):
            raise errors.TypeMismatch(
                f"the generator has to be a function, got {type(reader).__name__}: pass it uncalled"
            )
        drop_last = self._drop_last if drop_last is None else drop_last
        self._source.decorate_sample_lists(batch(reader, batch_size, drop_last))
        return self

    def set_loader(self: Self, loader: FeedingLoader) -> Self:
        """The batches of a headrace.DataLoader, which C++ moves into the queue: no Python runs for each. Returns this
        loader.
        """
        self._source.decorate_loader(loader)
        return self

    def start(self) -> None:
        """Begins a pass, if the program reads from it. FailedPrecondition if it is iterable, if it has no generator, or
        if it was started since the last :meth:`reset`.
        """
        self._require(False, "start() begins a pass of a loader with iterable=False: iterate over this one")
        self._source.start()

    def reset(self) -> None:
        """Ends a pass, at any moment, if the program reads from it; the rest of it is dropped."""
        self._require(False, "reset() ends a pass of a loader with iterable=False: this one's ends with its iterator")
        self._source.reset()

    def state_dict(self) -> dict[str, Any]:
        """The place of the next batch, if it is iterated over and :meth:`set_loader` has given its source: for
        ``save_checkpoint(loaders=...)``. Once an iterator has ended, or was dropped, that is the next pass.

        Raises:
            FailedPrecondition: it has another source, or the program reads from it, with which a checkpoint keeps its
                place anyway.
        """
        self._check_place()
        return self._source.loader_state_after(self._taken)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iteration begin where ``state`` was taken; one that is in progress ends.

        Raises:
            FailedPrecondition: as of :meth:`state_dict`.
            Exception: what ``headrace.DataLoader.load_state_dict`` raises for a state that it refuses.
        """
        self._check_place()
        self._source.reset()
        self._source.load_loader_state(state)

    def _check_place(self) -> None:
        if not self._iterable:
            raise errors.FailedPrecondition(
                f"{self._source.title} is read by the program: save_checkpoint keeps its place with the program's"
            )
        if self._source.loader is None:
            raise errors.FailedPrecondition(
                f"{self._source.title} has no place that could be saved: only a headrace.DataLoader, given to "
                "set_loader, has"
            )

    def __call__(self: Self) -> Self:
        """The loader itself: programs call it before they give it a source, too."""
        return self

    def __iter__(self) -> Iterator[Any]:
        """Begins a pass. One that is in progress ends: its iterator gives an error."""
        self._require(True, "a loader with iterable=False is read by its program: call start() and run that")
        return _Pass(self)

    def _require(self, iterable: bool, otherwise: str) -> None:
        if self._iterable != iterable:
            raise errors.FailedPrecondition(otherwise)

    def _given(self, tensors: list[LoDTensor]) -> Any:
        """A batch as it is to be fed: for the one place that there is."""
        if self._return_list:
            return [tensors]
        return [{variable.name: tensor for variable, tensor in zip(self._feed_list, tensors)}]


class _Pass(Iterator[Any]):
    """One pass of an iterable loader."""

    def __init__(self, loader: GeneratorLoader) -> None:
        self._loader: GeneratorLoader | None = None  # once the pass is over
        loader._source.reset()
        loader._source.start()
        loader._taken = 0
        self._epoch = loader.queue.epoch
        self._loader = loader

    def __next__(self) -> Any:
        loader = self._loader
        if loader is None:
            raise StopIteration
        if loader.queue.epoch != self._epoch:
            raise errors.FailedPrecondition("a new iteration of this loader has ended this one, or a state was loaded")
        try:
            tensors = loader.queue.pop()
            loader._taken += 1
            return loader._given(tensors)
        except errors.EOFException:
            self._end()
            raise StopIteration from None
        except KeyboardInterrupt:  # the next call continues
            raise
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        loader, self._loader = self._loader, None
        if loader is not None and loader.queue.epoch == self._epoch and not loader.queue.is_killed():
            loader._source.reset()

    def __del__(self, interpreter_ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if not interpreter_ends():
            self._end()


class PyReader(GeneratorLoader):
    """Reads a generator ahead of the program; see :class:`GeneratorLoader`, whose other names these are.

    Args:
        feed_list: the variables that the generator gives values for.
        capacity: how many batches the queue holds.
        use_double_buffer: if the program reads, have a thread read two batches ahead of it.
        iterable: whether it is iterated over, rather than read by the program.
        return_list: iterate over lists of tensors rather than dicts.

    Raises:
        TypeMismatch, InvalidArgument: an argument is of another type, or out of range.
        FailedPrecondition: the program is to read variables that its operators use already.
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity, use_double_buffer, iterable, return_list)

    def decorate_sample_generator(
        self,
        sample_generator: Callable[[], Iterable[Any]],
        batch_size: int,
        drop_last: bool = True,
        places: Any = None,
    ) -> None:
        """See :meth:`GeneratorLoader.set_sample_generator`."""
        self.set_sample_generator(sample_generator, batch_size, drop_last, places)

    def decorate_sample_list_generator(self, reader: Callable[[], Iterable[Any]], places: Any = None) -> None:
        """See :meth:`GeneratorLoader.set_sample_list_generator`."""
        self.set_sample_list_generator(reader, places)

    def decorate_batch_generator(self, reader: Callable[[], Iterable[Any]], places: Any = None) -> None:
        """See :meth:`GeneratorLoader.set_batch_generator`."""
        self.set_batch_generator(reader, places)

    decorate_paddle_reader = decorate_sample_list_generator
    decorate_tensor_provider = decorate_batch_generator


class DataLoader:
    """Makes loaders for programs; ``headrace.DataLoader``, whose batches :meth:`GeneratorLoader.set_loader` takes, is
    another class.
    """

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """A loader that reads a generator, which one of its ``set_…_generator`` methods gives it.

        Args:
            feed_list, capacity, use_double_buffer, iterable, return_list: see :class:`PyReader`.
            use_multiprocess: has to be False.
            drop_last: leave out a last batch that is not full.

        Raises:
            Unimplemented: ``use_multiprocess``.
            TypeMismatch, InvalidArgument, FailedPrecondition: see :class:`PyReader`.
        """
        if use_multiprocess:
            raise errors.Unimplemented(
                "use_multiprocess: pass a headrace.DataLoader with num_workers to set_loader, which makes batches in "
                "worker processes"
            )
        return GeneratorLoader(feed_list, capacity, use_double_buffer, iterable, return_list, drop_last)

    @staticmethod
    def from_dataset(dataset: Any, places: Any = None, drop_last: bool = True) -> GeneratorLoader:
        """Raises Unimplemented: Fluid's datasets are read by programs of its own."""
        raise errors.Unimplemented("from_dataset: use from_generator, with a headrace.DataLoader of the files' records")


def _source_of(feed_list: Sequence[Variable], capacity: int) -> FeedSource:
    """A queue that no program reads, and what fills it."""
    name = unique_name.generate("generator_loader")
    scope = Scope()
    specs = [(list(v.shape), int(v.dtype), int(v.lod_level)) for v in feed_list]
    names = [variable.name for variable in feed_list]
    queue = init_queue(scope, f"{name}.queue", capacity, specs, names)
    return FeedSource(name, name, queue, scope, [(each, *spec) for each, spec in zip(names, specs)], is_named=True)


def _read_by_program(feed_list: Sequence[Variable], capacity: int, use_double_buffer: bool) -> FeedSource:
    """Has the main program begin by reading the variables."""
    program = default_main_program()
    names = {variable.name for variable in feed_list}
    for block in program.blocks:
        for op in block.ops:
            used = sorted(names.intersection((*op.input_arg_names, *op.output_arg_names)))
            if used:
                raise errors.FailedPrecondition(
                    f"'{used[0]}' is used by the operator '{op.type}' already, which would run before it is read: make "
                    "the loader before the layers"
                )
    reader = create_py_reader_by_data(capacity, feed_list, use_double_buffer=use_double_buffer)
    program.current_block().append_op("read", {"Reader": reader}, {"Out": list(feed_list)})
    return reader._feed_source
