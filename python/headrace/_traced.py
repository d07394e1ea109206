"""Objects that record events, for a common timeline."""

from __future__ import annotations

from typing import Any, Protocol

from headrace._weak_collections import WeakBag


class Traced(Protocol):
    """A loader that records a trace."""

    def _trace_events(self, first_pid: int, since: int) -> list[dict[str, Any]]:
        """Its events since then, in nanoseconds of the monotonic clock, in the Trace Event Format.

        Args:
            first_pid: the first of three numbers of processes that it may use.
        """


#: The loaders that record a trace.
traced_loaders: WeakBag[Traced] = WeakBag()
