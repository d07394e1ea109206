"""Where the time of programs goes: a table by operator, and a timeline of operators, readers and loaders' workers.

::

    with fluid.profiler.profiler("CPU", sorted_key="total", profile_path="step.json"):
        for _ in range(10):
            exe.run(feed=..., fetch_list=[loss])

The table goes to standard output. The file, in the Trace Event Format, is shown by https://ui.perfetto.dev or
chrome://tracing; it has the operators and readers of each thread and, of each ``headrace.DataLoader(trace=True)`` that
works meanwhile, workers, slots and consumer. Profiling costs some 0.1 µs per operator, and 100 bytes until the profiler
is stopped; it costs nothing while it is off.

Thread-safety: there is one profiler per process; any thread may start and stop it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

from headrace import _core, errors
from headrace._traced import traced_loaders
from headrace.fluid._checks import check_path
from headrace.fluid.core import check_gpu

__all__ = ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]

#: As ``_core.stop_profiler`` gives it: kind, name, thread, begin, end, bytes.
Span = tuple[str, str, int, int, int, int]
Path = Union[str, "os.PathLike[str]"]

# When the profiler was started last, in nanoseconds of the monotonic clock.
_since = 0

_STATES = ("CPU", "All")
_OPTIONS = ("Default", "OpDetail", "AllOpDetail")
#: Sort key → the attribute of a row.
_KEYS = {"calls": "calls", "total": "total", "max": "longest", "min": "shortest", "ave": "mean", "memory": "bytes"}


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Starts recording operators and readers. Does nothing if the profiler is on.

    Args:
        state: "CPU" or "All", which are the same here.
        tracer_option: Fluid's; makes no difference.

    Raises:
        Unimplemented: ``state`` is "GPU", without ``HEADRACE_CUDA_ON_CPU=1``.
        InvalidArgument: it is something else.
    """
    if state == "GPU":
        check_gpu("start_profiler('GPU')", "profile 'CPU'")
        state = "CPU"
    _check_one_of(state, _STATES, "state")
    _check_one_of(tracer_option, _OPTIONS, "tracer_option")
    if not _core.profiler_is_on():
        _start()


def stop_profiler(sorted_key: str | None = None, profile_path: Path = "/tmp/profile") -> None:
    """Prints the table and writes the timeline. Nothing if the profiler is off.

    The columns of the table: calls; total, shortest, longest and mean time, including nested operators (a loop,
    its operators); the share that an operator has, without nested operators, in the time of all; and the most memory
    that a call has put out. Readers have a table of their own: several may wait for each other at the same time.

    Args:
        sorted_key: "calls", "total", "max", "min", "ave" or "memory": descending; None or "default": in the order
            in which the operators first ended.
        profile_path: of the timeline, a file that is replaced.

    Raises:
        InvalidArgument: there is no such key; then the profiler stays on.
        OSError: the file cannot be written; the table has been printed.
    """
    _check_one_of(sorted_key, (None, "default", *_KEYS), "sorted_key")
    profile_path = check_path(profile_path, "profile_path")
    if not _core.profiler_is_on():
        return
    spans = _core.stop_profiler()
    print(_report(spans, sorted_key))
    with open(profile_path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": _timeline(spans), "displayTimeUnit": "ms"}, file)


def reset_profiler() -> None:
    """Discards all records. The profiler stays on, or off."""
    if _core.profiler_is_on():
        _start()


def _start() -> None:
    global _since
    _since = time.monotonic_ns()
    _core.start_profiler()


@contextlib.contextmanager
def profiler(
    state: str, sorted_key: str | None = None, profile_path: Path = "/tmp/profile", tracer_option: str = "Default"
) -> Iterator[None]:
    """Profiles within its context. Arguments and errors as of start_profiler and stop_profiler."""
    _check_one_of(sorted_key, (None, "default", *_KEYS), "sorted_key")
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


def cuda_profiler(output_file: Path, output_mode: str | None = None, config: Sequence[str] | None = None) -> Any:
    """Raises Unimplemented: there is no GPU. With ``HEADRACE_CUDA_ON_CPU=1``, a context that profiles nothing."""
    check_gpu("cuda_profiler()", "use profiler.profiler('CPU')")
    return contextlib.nullcontext()


def _check_one_of(value: Any, known: tuple[str | None, ...], what: str) -> None:
    if value not in known:
        names = ", ".join(str(name) for name in known)
        raise errors.InvalidArgument(f"profiler: {what} has to be one of {names}, got {value!r}")


@dataclass
class Row:
    """The totals of one operator, or of one class of readers. Times in nanoseconds."""

    kind: str
    name: str
    calls: int = 0
    total: int = 0
    #: Without nested operators.
    own: int = 0
    shortest: int | None = None
    longest: int = 0
    #: The most that a call has put out.
    bytes: int = 0

    @property
    def mean(self) -> float:
        return self.total / self.calls

    def add(self, duration: int, own: int, bytes: int) -> None:
        self.calls += 1
        self.total += duration
        self.own += own
        self.shortest = duration if self.shortest is None else min(self.shortest, duration)
        self.longest = max(self.longest, duration)
        self.bytes = max(self.bytes, bytes)


def _rows(spans: Iterable[Span]) -> list[Row]:
    """One row for each operator and each class of readers, in the order in which they first ended."""
    rows: dict[tuple[str, str], Row] = {}
    # Of each thread, the spans that no later one has turned out to contain: they end before their container does.
    open_spans: defaultdict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for kind, name, thread, begin, end, size in spans:
        inner, siblings = 0, open_spans[thread, kind]
        while siblings and siblings[-1][0] >= begin:
            inner += siblings.pop()[1]
        siblings.append((begin, end - begin))
        rows.setdefault((kind, name), Row(kind, name)).add(end - begin, end - begin - inner, size)
    return list(rows.values())


def _report(spans: Iterable[Span], sorted_key: str | None) -> str:
    rows = _rows(spans)
    if sorted_key in _KEYS:
        rows.sort(key=lambda row: getattr(row, _KEYS[sorted_key]), reverse=True)
    tables = [_table(kind, [row for row in rows if row.kind == kind]) for kind in ("operator", "reader")]
    return "\n\n".join(table for table in tables if table) or "profiler: nothing has run"


def _table(kind: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    everything = sum(row.own for row in rows) or 1
    width = max(len(kind), *(len(row.name) for row in rows))
    head = f"{kind:{width}} {'calls':>9} {'total ms':>11} {'min ms':>10} {'max ms':>10} {'ave ms':>10} {'share':>7}"
    lines = [f"{head} {'memory bytes':>12}"]
    for row in rows:
        times = (row.shortest or 0, row.longest, row.mean)
        lines.append(
            f"{row.name:{width}} {row.calls:9d} {row.total / 1e6:11.4f} "
            + " ".join(f"{time / 1e6:10.4f}" for time in times)
            + f" {row.own / everything:7.2%} {row.bytes:12d}"
        )
    return "\n".join(lines)


def _timeline(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """The spans, and the events of traced loaders since the profiler was started."""
    programs = 1
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": programs, "tid": 0, "args": {"name": "programs"}}
    ]
    kinds: defaultdict[int, set[str]] = defaultdict(set)
    for kind, name, thread, begin, end, size in spans:
        kinds[thread].add(kind)
        span = {"name": name, "cat": kind, "ph": "X", "pid": programs, "tid": thread}
        events.append({**span, "ts": begin / 1000, "dur": (end - begin) / 1000, "args": {"bytes": size}})
    for thread, known in kinds.items():
        label = f"{'operators' if 'operator' in known else 'readers'} (thread {thread})"
        events.append({"name": "thread_name", "ph": "M", "pid": programs, "tid": thread, "args": {"name": label}})
    for number, loader in enumerate(traced_loaders):
        events += loader._trace_events(first_pid=programs + 1 + 3 * number, since=_since)
    return events
