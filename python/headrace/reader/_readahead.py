"""Threads that read ahead of a pass, and how they end with it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from headrace._warnings import warn

Item = TypeVar("Item")

# Seconds between two checks whether the reader is still used.
LOOK_EVERY = 0.05
# Seconds in which threads that only look stop.
_STOP_WITHIN = 4 * LOOK_EVERY
# Seconds that a pass waits for a mapper or a reader of the one before.
_PATIENCE = 5.0


class _Ended:
    """Comes after the last item of a queue.

    Attributes:
        error: the exception that ended it; None: there are no more items.
    """

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Readahead(Generic[Item]):
    """A bounded queue between threads that make items and one that reads them, which may go away at any moment.

    A maker puts through :meth:`put`, which gives up once the reader is no longer used. An exception of a maker reaches
    the reader after the items of all makers: the others have to end, too. Thread-safe.
    """

    def __init__(self, size: int) -> None:
        self._items: queue.Queue[Item | _Ended] = queue.Queue(size)
        self.abandoned = threading.Event()  # set once the reader is no longer used

    def put(self, item: Item | _Ended) -> bool:
        """Whether it may still be read."""
        while not self.abandoned.is_set():
            with contextlib.suppress(queue.Full):
                self._items.put(item, timeout=LOOK_EVERY)
                if self.abandoned.is_set():
                    self._clear()
                return True
        return False

    def abandon(self) -> None:
        """Tells the makers that the reader is no longer used."""
        self.abandoned.set()
        self._clear()

    def _clear(self) -> None:
        """Forgets what nobody reads: an error there refers to the frames of its maker, and so to this queue."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()

    def make(self, items: Callable[[], Iterable[Item]]) -> None:
        """Puts all items, and how they end."""
        error: BaseException | None = None
        try:
            iterator = iter(items())
            try:
                for item in iterator:
                    if not self.put(item):
                        return
            finally:
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
        except BaseException as raised:
            error = raised
        try:
            self.put(_Ended(error))
        finally:
            del error  # whose traceback has this frame, and so whatever the items have open

    def read(self, makers: int) -> Iterator[Item]:
        """The items, until this many makers have finished, or the reader is no longer used."""
        error: BaseException | None = None
        while makers > 0:
            try:
                item = self._items.get(timeout=LOOK_EVERY)
            except queue.Empty:
                if self.abandoned.is_set():
                    return
                continue
            if isinstance(item, _Ended):
                error = error or item.error
                makers -= 1
            else:
                yield item
            del item
        if error is not None:
            try:
                raise error
            finally:
                del error  # as above


class Passes:
    """The threads of all passes of a reader, of which each pass has its own.

    Args:
        owner, *functions: names the reader, and the functions of the user that its threads call.
    """

    def __init__(self, owner: str, *functions: Callable[..., Any]) -> None:
        self._owner, self._functions = owner, functions
        # Threads of earlier passes that may not have stopped yet.
        self._earlier: set[threading.Thread] = set()

    def await_earlier(self) -> None:
        """Waits for the threads of earlier passes: the functions of the user may share state between passes."""
        threads = tuple(self._earlier)
        _join(threads, _PATIENCE)
        self._earlier.difference_update(threads)
        if any(thread.is_alive() for thread in threads):
            names = " or ".join(getattr(each, "__qualname__", None) or repr(each) for each in self._functions)
            warn(
                f"{self._owner}: {names} has not returned for {_PATIENCE:.0f} s to a pass that was left early. The "
                "next one begins all the same, and runs it in another thread meanwhile"
            )

    @contextlib.contextmanager
    def threads(self, readahead: Sequence[Readahead[Any]], targets: Sequence[Callable[[], None]]) -> Iterator[None]:
        """Runs ``targets`` in threads within this context; at the end, tells them to stop. One that is in a function of
        the user is not waited for, since it may never return: it stops at its next item.
        """
        threads: list[threading.Thread] = []
        try:
            for target in targets:
                thread = threading.Thread(target=target, name="headrace reader", daemon=True)
                thread.start()
                threads.append(thread)
            yield
        finally:
            for each in readahead:
                each.abandon()
            self._earlier.update(threads)
            _join(threads, _STOP_WITHIN)


def _join(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Waits for threads, but no longer than that for all of them."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
