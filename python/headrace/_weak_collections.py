"""Collections of weak references to objects.

Unlike :class:`weakref.WeakSet` and :class:`weakref.WeakKeyDictionary`, these run no Python code when an object goes.
There a signal handler's exception, such as KeyboardInterrupt, would be reported as ignored, and lost.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


class WeakBag(Generic[Item]):
    """Holds weak references to objects, each once.

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


class WeakKeyMap(Generic[Item, Value]):
    """Values by objects, and as long as these are there.

    Thread-safety: that of WeakBag.
    """

    def __init__(self) -> None:
        self._values: dict[weakref.ref[Item], Value] = {}

    def get(self, key: Item) -> Value | None:
        return self._values.get(weakref.ref(key))

    def setdefault(self, key: Item, value: Value) -> Value:
        """The value of ``key``, which is ``value`` if it had none."""
        return self._values.setdefault(weakref.ref(key, self._values.pop), value)

    def __getitem__(self, key: Item) -> Value:
        return self._values[weakref.ref(key)]

    def __setitem__(self, key: Item, value: Value) -> None:
        self._values[weakref.ref(key, self._values.pop)] = value

    def __contains__(self, key: Item) -> bool:
        return weakref.ref(key) in self._values

    def clear(self) -> None:
        self._values.clear()
