"""Which sources feed the readers of a program.

A source is found by the scope that the program runs on, which holds its queue: so a copy of the program, parsed from
bytes, say, has the same sources as the original.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._weak_collections import WeakBag

if TYPE_CHECKING:
    from headrace.fluid._feed_source import FeedSource
    from headrace.fluid.core import Scope

__all__ = ["live_sources", "sources_of"]

live_sources: WeakBag[FeedSource] = WeakBag()


def sources_of(readers: frozenset[str], scope: Scope) -> list[FeedSource]:
    """The sources of readers, by their names, in programs that run on ``scope``; in the order of their own names."""
    found = [s for s in live_sources if not readers.isdisjoint(s.reader_names) and s.has_queue_in(scope)]
    return sorted(found, key=lambda source: source.name)
