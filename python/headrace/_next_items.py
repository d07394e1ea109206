"""Taking items from an iterator that has begun."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


def next_items(iterator: Iterator[Item], count: int | None) -> Iterator[Item]:
    """The next ``count`` items, or as many as there are; None: all.

    ``itertools.islice`` would call ``__iter__`` again, with which some iterators begin anew. Read by ``list`` or
    ``list.extend``, it runs no bytecode between an item's arrival and its place in the list, so that no signal handler
    can lose one.
    """
    return map(next, itertools.repeat(iterator) if count is None else itertools.repeat(iterator, count))
