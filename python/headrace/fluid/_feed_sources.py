"""Which sources feed the readers of a program.

A source is found by the scope that the program runs on, which holds its queue: so a copy of the program, parsed from
bytes, say, has the same sources as the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace._weak_collections import WeakBag

if TYPE_CHECKING:
    from headrace.fluid.core import Scope
    from headrace.fluid.framework import Program
    from headrace.fluid.reader_variable import FeedSource

__all__ = ["live_sources", "sources_of"]

live_sources: WeakBag[FeedSource] = WeakBag()


def sources_of(program: Program, scope: Scope) -> Sequence[FeedSource]:
    """The sources of the readers of a program that runs on ``scope``, in the order of their names."""
    readers = program._reader_names()
    if not readers:
        return ()
    found = [s for s in live_sources if not readers.isdisjoint(s.reader_names) and s.has_queue_in(scope)]
    return sorted(found, key=lambda source: source.name)
