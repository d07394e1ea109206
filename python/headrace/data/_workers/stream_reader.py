"""Reads an iterable dataset batch by batch, from any batch on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace._next_items import next_items
from headrace.data._datasets.capabilities import tell_epoch
from headrace.data._datasets.datasets import has_state
from headrace.data._datasets.iterable_datasets import is_read_once, read_twice
from headrace.data._samples.pickling import dumps
from headrace.data._untold_state import UntoldState

# Several batches share the cost of a large state: for each _BYTES_PER_BATCH of it, one batch is sent without it, but at
# most _MOST_BEHIND in a row.
_BYTES_PER_BATCH = 4096
_MOST_BEHIND = 32

# Keys of a state that consists of the dataset's and its iterator's.
_BOTH = ("headrace.dataset", "headrace.iterator")


@dataclasses.dataclass(frozen=True)
class StreamStart:
    """Where a stream starts: after that many batches of an epoch, with the dataset's state there, if it has one."""

    epoch: int
    batches: int
    state: Any
    ended: bool


@dataclasses.dataclass(frozen=True)
class StreamTask:
    """How the workers read an iterable dataset.

    Attributes:
        own: each worker has a stream of its own; else all iterate over the same one, and each batch is one worker's.
        batch_size: rows of this loader's batches.
        rank, world: of each ``batch_size * world`` elements every ``world``-th, from ``rank`` on, is this loader's.
        drop_last: leave out a last batch that is not full.
        starts: where streams start, by worker (if ``own``; else one for all).
        tells_epoch: call the dataset's ``set_epoch`` before each iteration.
        initial: the state of the dataset before anyone read it, if that is known.
    """

    own: bool
    batch_size: int
    rank: int
    world: int
    drop_last: bool
    starts: Mapping[int, StreamStart]
    tells_epoch: bool = True
    initial: Any = None


class _Uninterrupted:
    """Leaves ``_interrupted`` behind if KeyboardInterrupt, say, strikes somewhere within a batch of a reader."""

    def __init__(self, reader: StreamReader) -> None:
        self._reader = reader

    def __enter__(self) -> None:
        self._reader._interrupted = True

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._reader._interrupted = error is not None and self._reader._is_interrupt(error)


class StreamReader:
    """Reads the samples of any batch of a stream; cheap as long as batches are requested in order.

    For an earlier batch it iterates again; batches in between are read and dropped. So a worker can take over from one
    that died, and several workers can share a stream of which each makes some batches.

    Not thread-safe: one per worker.

    Args:
        interruptible: whether signal handlers may raise while it reads, as in the main thread: it then reads the same
            batch again. Elsewhere every exception is the dataset's.

    Attributes:
        is_broken: the dataset raised when its iteration was to begin: there is nothing to read in this epoch.
    """

    def __init__(self, dataset: Any, task: StreamTask, worker_id: int, interruptible: bool) -> None:
        self._dataset = dataset
        self._interruptible = interruptible
        self._process = os.getpid()
        self._task = task
        self._stream = worker_id if task.own else 0
        self._start = task.starts.get(self._stream)
        self._group = task.batch_size * task.world
        self._epoch = -1
        self._batch = 0
        self._ended = self.is_broken = False
        self._interrupted = False
        self._outdated = self._begun = False
        # Whether the latest batch failed, and whether nothing came after one that had: a generator does not survive an
        # exception.
        self._failed = self._died = False
        # From which batch on the next state is worth its cost.
        self._next_state = 0
        # Of a stream that had ended where this one was resumed: for the epoch that follows.
        self._end_state: Any = None
        self._elements: Iterator[Any] = iter(())
        # Read already, and next.
        self._ahead: list[Any] = []
        # With which the latest epoch began: for starting again after an iteration was abandoned, which a dataset with a
        # state might otherwise resume. And whether it may be one of a dataset at its end.
        self._begin = self._state_now()
        self._begin_is_end = False
        self._initial = self._begin if task.initial is None else task.initial
        # The report of the end of the latest epoch that this reader came to, and which that was.
        self._end_report = b""
        self._end_epoch = -1

    def seek(self, epoch: int, batch: int, may_pass: Callable[[], bool]) -> bool:
        """Goes to the beginning of a batch, or to the end of the stream. Raises the exceptions of the dataset's
        ``__iter__``.

        Args:
            may_pass: called before each batch that is dropped on the way.

        Returns:
            False if that said no; it is somewhere before the batch then.
        """
        restart = self._interrupted or self._outdated or epoch != self._epoch or batch < self._batch
        if not restart and (batch == self._batch or self._ended):
            return True
        # A worker may have read ahead of the consumer, to the end even, and of those that share a stream not all come
        # to its end: ``starts`` says where the stream continues once all of it was consumed.
        given_up = self._epoch >= 0 and (self._interrupted or not self._ended or not self._interruptible)
        with _Uninterrupted(self):
            if restart:
                self._restart(epoch, batch, given_up)
            while self._batch < batch and not self._ended:
                if not may_pass():
                    return False
                self._skip()
        return True

    def begin_anew(self, starts: Mapping[int, StreamStart]) -> None:
        """Makes the next ``seek`` iterate again: the dataset has changed.

        Args:
            starts: where streams start, as in :class:`StreamTask`.
        """
        self._outdated = True
        self._start = start = starts.get(self._stream)
        if start is not None and start.batches == 0 and start.state is not None:
            self._begin, self._begin_is_end = start.state, True
        elif start is not None:  # the state at the start of that epoch is unknown: as in a worker that starts there
            self._begin, self._begin_is_end = self._initial, False

    def let_go(self) -> None:
        """Drops the iterator of an epoch that nobody reads to its end, which may then close what it has open."""
        if not self._ended:
            self._outdated = True
            self._elements, self._ahead = iter(()), []

    def forget_start(self) -> None:
        """Has the following epoch start where the dataset is, even if it has the number of the one before."""
        self._start = None

    def read(self) -> tuple[list[Any], bool]:
        """The rows of the next batch, and whether the stream has ended with them. Raises the exceptions of the
        dataset.
        """
        if self._ended:
            return [], True
        with _Uninterrupted(self):
            self._batch += 1  # also if the dataset raises: an error consumes its batch
            elements = self._take()
        task, has_ended = self._task, len(elements) < self._group
        rows = [] if has_ended and task.drop_last else elements[task.rank :: task.world]
        return rows, has_ended

    def report(self) -> bytes:
        """The state at the position that was reached, for :func:`decode_state`. May be empty: the position is then the
        last reported one and the batches since.
        """
        if self._ended:
            # For the epoch that follows, which is the dataset's affair, not the iterator's. After one that an error has
            # ended, it begins anew.
            self._end_report = dumps((None if self._died else self._state_at_end(), True))
            self._end_epoch = self._epoch
            return self._end_report
        holders = [each for each in (self._dataset, self._elements) if hasattr(each, "state_dict")]
        if not holders or self._batch < self._next_state:
            return b""
        if len(holders) == 1 or self._elements is self._dataset:
            state = holders[0].state_dict()
        else:
            state = dict(zip(_BOTH, (each.state_dict() for each in holders)))
        message = dumps((state, False))
        self._next_state = self._batch + 1 + min(_MOST_BEHIND, len(message) // _BYTES_PER_BATCH)
        return message

    def _is_interrupt(self, error: BaseException) -> bool:
        """Whether it came from outside rather than from the dataset."""
        return self._interruptible and not isinstance(error, Exception)

    def _restart(self, epoch: int, batch: int, given_up: bool) -> None:
        at_end = self._ended and self._batch > 0 and not self._interrupted
        self._ended = self.is_broken = True  # unless an iterator comes of it
        self._outdated = False
        self._epoch, self._batch, self._next_state = epoch, 0, 0
        self._failed = self._died = False
        self._ahead = []
        state, self._end_state = self._end_state, None
        start = self._start
        if start is not None and start.epoch == epoch and start.batches <= batch:
            self._batch, state = start.batches, start.state
            if start.ended:
                self._end_state, self.is_broken = state, False
                return
        self._tell(epoch)
        if state is None and given_up:
            state = self._begin
        elif state is None:
            self._begin, self._begin_is_end = self._state_now(), True
        elif self._batch == 0:
            self._begin, self._begin_is_end = state, True
        if state is None or (self._batch == 0 and at_end and self._is_at(state)):
            self._elements = self._begun_anew()
        elif state is self._begin and self._begin_is_end:
            self._begin_after(state)
        else:
            self._elements = self._resumed(state)
        self._ended = self.is_broken = False

    def _begun_anew(self) -> Iterator[Any]:
        if self._begun and is_read_once(self._dataset):
            raise read_twice()
        elements: Iterator[Any] = iter(self._dataset)
        self._begun = True
        return elements

    def _tell(self, epoch: int) -> None:
        if self._task.tells_epoch:
            tell_epoch([self._dataset], epoch)

    def _is_at(self, state: Any) -> bool:
        """Whether that is the state of the dataset when this reader came to its end. It then need not be loaded, which
        not every dataset can do in a worker.
        """
        # An unpickled object is pickled to the same bytes each time.
        return bool(self._end_report) and dumps(pickle.loads(self._end_report)) == dumps((state, True))

    def _state_now(self) -> Any:
        """The dataset's state; None if it has none."""
        if has_state(self._dataset):
            with contextlib.suppress(Exception):  # it may have none before it has started
                return self._dataset.state_dict()
        return None

    def _state_at_end(self) -> Any:
        """The same, of one that was read: it has to have one, without which the next epoch would be the first."""
        try:
            return self._dataset.state_dict() if has_state(self._dataset) else None
        except Exception as error:
            return UntoldState(self._dataset, error)

    def _begin_after(self, state: Any) -> None:
        """Begins the epoch after the one that ended with ``state``: if an iteration that is resumed there is at its
        end, with another one.

        The epoch before is told first, if the dataset is told of epochs: in this one it may be longer, or in another
        order, and what comes after as many samples would be taken for all of it. So it does, too, as PyTorch's loader
        would, if the dataset proves unable to load the state: nothing has been read of the epoch.
        """
        before = self._end_epoch if self._is_at(state) else self._epoch - 1
        tells = before >= 0 and self._task.tells_epoch and hasattr(self._dataset, "set_epoch")
        begin: list[Callable[[], Iterator[Any]]] = [self._begun_anew]
        if self._initial is not None:
            begin.append(lambda: self._resumed(self._initial))
        if tells:
            self._tell(before)
        self._elements = self._resumed(state)
        is_at_end = not self._look_ahead()
        if tells:
            self._tell(self._epoch)
            if not is_at_end:
                self._elements = self._resumed(state)
                is_at_end = not self._look_ahead()
        while is_at_end and begin:
            self._elements = begin.pop(0)()
            is_at_end = not self._look_ahead()

    def _look_ahead(self) -> bool:
        """Whether there is a sample, which is then the next."""
        self._ahead = []
        try:
            self._ahead.append(self._elements.__next__())
        except StopIteration:
            return False
        except Exception as error:
            if not _is_of_loading(error):
                raise
            warnings.warn(
                f"{type(self._dataset).__name__} cannot load the state in which its last epoch ended "
                f"({type(error).__name__}: {error}), so it starts from the beginning",
                RuntimeWarning,
                stacklevel=2,
            )
            return False
        return True

    def _resumed(self, state: Any) -> Iterator[Any]:
        """An iterator that continues where :meth:`report` took ``state``."""
        dataset = self._dataset
        of_dataset, of_elements = state, state
        both = isinstance(state, dict) and tuple(state) == _BOTH
        if both:
            of_dataset, of_elements = state.values()
        # A dataset that is its own iterator has its state from then on: __iter__ sets it up.
        before = hasattr(dataset, "load_state_dict") and not hasattr(dataset, "__next__")
        if before:
            dataset.load_state_dict(of_dataset)
        elements = self._begun_anew()
        if both or not before:
            load = getattr(elements, "load_state_dict", None)
            if load is None:
                kind = type(dataset).__name__
                raise ValueError(f"the loader's state holds one of its dataset, and {kind} has no load_state_dict")
            load(of_elements)
        return elements

    def _skip(self) -> None:
        self._batch += 1
        try:
            self._take()
        except BaseException as error:
            if self._is_interrupt(error) or os.getpid() != self._process:
                raise
            # that batch was, or will be, reported as failed

    def _take(self) -> list[Any]:
        """The next group of elements; a short one at the end, which it notes."""
        failed, self._failed = self._failed, True  # unless they come
        elements, self._ahead = self._ahead, []
        elements.extend(next_items(self._elements, self._group - len(elements)))
        self._failed, self._died = False, failed and not elements
        self._ended = len(elements) < self._group
        return elements


def _is_of_loading(error: BaseException) -> bool:
    """Whether it was raised by a ``load_state_dict`` that the iteration called."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name == "load_state_dict" for frame, _ in frames)


def encode_state(state: Any, ended: bool) -> bytes:
    """What :func:`decode_state` gives back."""
    return dumps((state, ended)) if state is not None or ended else b""


def decode_state(message: bytes) -> tuple[Any, bool]:
    """The dataset's state, None if it has none, and whether the stream has ended."""
    state, ended = pickle.loads(message) if message else (None, False)
    return state, ended
