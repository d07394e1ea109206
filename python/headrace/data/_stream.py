"""Reads an iterable dataset batch by batch, from any batch on."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.data._dataset import has_state, tell_epoch
from headrace.data._sample_pickle import dumps

# Keys of a state that consists of the dataset's and its iterator's.
_BOTH = ("headrace.dataset", "headrace.iterator")


@dataclasses.dataclass(frozen=True)
class StreamPlace:
    """A place in a stream: after that many batches of an epoch, with the dataset's state there, if it has one."""

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
        places: where streams begin, by worker (if ``own``; else one for all).
        tells_epoch: call the dataset's ``set_epoch`` before each iteration.
    """

    own: bool
    batch_size: int
    rank: int
    world: int
    drop_last: bool
    places: dict[int, StreamPlace]
    tells_epoch: bool = True


class StreamReader:
    """Reads the samples of any batch of a stream; cheap as long as batches are requested in order.

    For an earlier batch it iterates anew; batches in between are read and dropped. So a worker can take over from one
    that died, and several workers can share a stream of which each makes some batches.

    Not thread-safe: one per worker.

    Args:
        interruptible: whether signal handlers may raise while it reads, as in the main thread: it then reads the same
            batch again. Elsewhere every exception is the dataset's.
    """

    def __init__(self, dataset: Any, task: StreamTask, worker_id: int, interruptible: bool) -> None:
        self._dataset = dataset
        self._interruptible = interruptible
        self._task = task
        self._stream = worker_id if task.own else 0
        self._place = task.places.get(self._stream)
        self._group = task.batch_size * task.world
        self._epoch = -1
        self._batch = 0
        self._ended = False
        self._interrupted = False
        self._outdated = False
        # Of a stream that had ended where this one was resumed: for the epoch that follows.
        self._end_state: Any = None
        self._elements: Iterator[Any] = iter(())
        # Read already, and next.
        self._ahead: list[Any] = []
        # For starting again after an iteration was abandoned, which a dataset with a state might otherwise resume.
        self._initial = self._state_now()
        # With which the latest epoch began; and whether it may be one of a dataset at its end.
        self._begin = self._initial
        self._begin_is_end = False

    def seek(self, epoch: int, batch: int) -> None:
        """Goes to where a batch begins, or to the end of the stream. Raises what the dataset raises when it begins."""
        restart = self._interrupted or self._outdated or epoch != self._epoch or batch < self._batch
        # Of workers that share a stream, not all come to its end: where it goes on then, ``places`` says.
        shared = not self._task.own and not self._interruptible
        given_up = self._epoch >= 0 and (self._interrupted or not self._ended or shared)
        with self._uninterrupted():
            if restart:
                self._restart(epoch, batch, given_up)
            while self._batch < batch and not self._ended:
                self._skip()

    def begin_anew(self, places: Mapping[int, StreamPlace]) -> None:
        """Has the next ``seek`` iterate anew: the dataset has changed.

        Args:
            places: where streams begin, as in :class:`StreamTask`.
        """
        self._outdated = True
        self._place = place = places.get(self._stream)
        if place is not None and place.batches == 0 and place.state is not None:
            self._begin, self._begin_is_end = place.state, True

    def read(self) -> tuple[list[Any], bool]:
        """The rows of the next batch, and whether the stream has ended with them. Raises what the dataset raises."""
        if self._ended:
            return [], True
        with self._uninterrupted():
            self._batch += 1  # also if the dataset raises: an error consumes its batch
            elements = self._take()
            self._ended = len(elements) < self._group
        task = self._task
        rows = [] if self._ended and task.drop_last else elements[task.rank :: task.world]
        return rows, self._ended

    def place(self) -> bytes:
        """What is worth knowing of the place that has been reached, for :func:`decode_place`; may be empty."""
        if self._ended:
            # For the epoch that follows, which is the dataset's affair, not the iterator's.
            return dumps((self._state_now(), True))
        holders = [each for each in (self._dataset, self._elements) if hasattr(each, "state_dict")]
        if not holders:
            return b""
        if len(holders) == 1 or self._elements is self._dataset:
            return dumps((holders[0].state_dict(), False))
        return dumps((dict(zip(_BOTH, (each.state_dict() for each in holders))), False))

    @contextlib.contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Leaves ``_interrupted`` behind if KeyboardInterrupt, say, strikes somewhere within a batch."""
        self._interrupted = True
        try:
            yield
        except BaseException as error:
            self._interrupted = self._is_interrupt(error)
            raise
        self._interrupted = False

    def _is_interrupt(self, error: BaseException) -> bool:
        """Whether it came from outside rather than from the dataset."""
        return self._interruptible and not isinstance(error, Exception)

    def _restart(self, epoch: int, batch: int, given_up: bool) -> None:
        self._ended = True  # unless an iterator comes of it
        self._outdated = False
        self._epoch, self._batch = epoch, 0
        self._ahead = []
        state, self._end_state = self._end_state, None
        place = self._place
        if place is not None and place.epoch == epoch and place.batches <= batch:
            self._batch, state = place.batches, place.state
            if place.ended:
                self._end_state = state
                return
        if self._task.tells_epoch:
            tell_epoch([self._dataset], epoch)
        if state is None and given_up:
            state = self._begin
        elif state is None:
            self._begin, self._begin_is_end = self._state_now(), True
        elif self._batch == 0:
            self._begin, self._begin_is_end = state, True
        self._elements = iter(self._dataset) if state is None else self._resumed(state)
        if state is self._begin and self._begin_is_end and self._initial is not None:
            self._pass_end()
        self._ended = False

    def _state_now(self) -> Any:
        """The dataset's state; None if it has none."""
        if has_state(self._dataset):
            with contextlib.suppress(Exception):  # it may have none before it has begun
                return self._dataset.state_dict()
        return None

    def _pass_end(self) -> None:
        """Begins anew if what was resumed is at its end: a state taken between two epochs may be that of the first."""
        for anew in (lambda: iter(self._dataset), lambda: self._resumed(self._initial)):
            with contextlib.suppress(StopIteration):
                self._ahead = [self._elements.__next__()]
                return
            self._elements = anew()

    def _resumed(self, state: Any) -> Iterator[Any]:
        """An iterator that goes on where :meth:`place` took ``state``."""
        dataset = self._dataset
        of_dataset, of_elements = state, state
        both = isinstance(state, dict) and tuple(state) == _BOTH
        if both:
            of_dataset, of_elements = state.values()
        # What is its own iterator has its state from then on: __iter__ sets it up.
        before = hasattr(dataset, "load_state_dict") and not hasattr(dataset, "__next__")
        if before:
            dataset.load_state_dict(of_dataset)
        elements: Iterator[Any] = iter(dataset)
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
            skipped = len(self._take())
        except BaseException as error:
            if self._is_interrupt(error):
                raise
            return  # that batch was, or will be, reported as failed
        self._ended = skipped < self._group

    def _take(self) -> list[Any]:
        """The next group of elements; a short one at the end."""
        # Not islice, which calls __iter__ again: that of many iterators goes back to the beginning.
        elements, self._ahead = self._ahead, []
        take, advance = elements.append, self._elements.__next__
        with contextlib.suppress(StopIteration):
            for _ in range(self._group - len(elements)):
                take(advance())
        return elements


def decode_place(message: bytes) -> tuple[Any, bool]:
    """The dataset's state, None if it has none, and whether the stream has ended."""
    state, ended = pickle.loads(message) if message else (None, False)
    return state, ended
