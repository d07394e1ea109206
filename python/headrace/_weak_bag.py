"""Objects that are known only as long as somebody else refers to them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class WeakBag(Generic[Item]):
    """Holds weak references to objects, each once.

    Unlike :class:`weakref.WeakSet` it runs no Python code when an object goes. There a signal handler's exception, such
    as KeyboardInterrupt, would be reported as ignored, and lost.

    Thread-safety: any thread, also while others add or drop objects.
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[Item]] = set()

    def add(self, item: Item) -> None:
        self._references.add(weakref.ref(item, self._references.discard))

    def __contains__(self, item: Item) -> bool:
        return weakref.ref(item) in self._references

    def __iter__(self) -> Iterator[Item]:
        """The objects that are there now."""
        for reference in list(self._references):
            item = reference()
            if item is not None:
                yield item

    def clear(self) -> None:
        self._references.clear()
