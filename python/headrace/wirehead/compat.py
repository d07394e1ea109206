"""The names and arguments of neuroneural/wirehead 0.9, and of 0.8, for scripts that were written for them.

``from headrace.wirehead.compat import …`` in place of ``from wirehead import …``. The classes of
:mod:`headrace.wirehead` have more. These differ where such scripts depend on the original: the input is float32,
``transform`` is called with bytes, ``cycle`` stores one sample, and a logger reports swaps; ``headrace-wirehead
config.yaml`` is the command ``wirehead config.yaml``. Arrays are stored with the dtype that
they have, and not as uint8. Databases that the original has filled cannot be read.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import dataclasses
import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace import errors
from headrace.wirehead._datasets.datasets import MongoheadDataset as _Dicts
from headrace.wirehead._datasets.datasets import MongoTupleheadDataset as _Tuples
from headrace.wirehead._datasets.finalizer_thread import close_at_exit, start_closing
from headrace.wirehead._format.sample import Array, Kind, as_tensor
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead.config import Config, ConfigSource, at_least
from headrace.wirehead.errors import StoreError
from headrace.wirehead.generator import WireheadGenerator as _Generator
from headrace.wirehead.generator import keeping, refuse_while_importing
from headrace.wirehead.manager import WireheadManager
from headrace.wirehead.status import status_of

__all__ = [
    "MongoTupleheadDataset",
    "MongoheadDataset",
    "SwapLog",
    "WireheadGenerator",
    "WireheadLogger",
    "WireheadManager",
    "WireheadSnapshot",
    "binary_to_tensor",
    "log_swaps",
    "quantile_normalize",
    "unit_interval_normalize",
]


_PATIENCE = 2.0  # seconds that closing waits for what a server does not answer
# Methods of the original's generators on its collections.
_OF_COLLECTIONS = frozenset(
    (
        "attempt_swap",
        "chunkify",
        "get_idx",
        "ping",
        "push",
        "reinitialize_database",
        "reset_counter",
        "reset_counter_and_write",
        "reset_write",
        "swap",
        "temp_is_valid",
    )
)


def unit_interval_normalize(img: Any) -> Any:
    """A tensor or array, scaled so that its least value is 0 and its greatest 1."""
    low, high = img.min(), img.max()
    return (img - low) / (high - low)


def quantile_normalize(img: Any, qmin: float = 0.01, qmax: float = 0.99) -> Any:
    """A tensor, scaled so that these quantiles are 0 and 1."""
    low, high = img.quantile(qmin), img.quantile(qmax)
    return (img - low) / (high - low)


def binary_to_tensor(tensor_binary: bytes) -> Any:
    """The tensor that ``torch.save`` has written."""
    import torch

    return torch.load(io.BytesIO(tensor_binary), weights_only=True)


def _same(value: Any) -> Any:
    return value


class _Compatible:
    """The differences of both datasets."""

    config: Config
    sample: tuple[str, ...]
    timeout: float

    def __init__(
        self,
        config_path: ConfigSource = "",
        timeout: float = 60,
        collection: object = None,
        sample: Sequence[str] | None = None,
        transform: Callable[[bytes], Any] = binary_to_tensor,
        normalize: Callable[[Any], Any] = _same,
        id: str = "id",
        keeptrying: bool = True,
    ) -> None:
        if collection is not None or id != "id":
            raise ValueError(
                "collection and id name a database that the original Wirehead has filled, which cannot be read: pass "
                "config_path, and fill the cache with headrace.wirehead.compat.WireheadGenerator"
            )
        self._from_bytes, self._normalized = transform, normalize
        config = Config.load(config_path or "config.yaml")
        # As the original does, it has pairs, and waits ten minutes at least for the first generation.
        sample = config.sample[:2] if sample is None else sample
        super().__init__(config, max(timeout, 600), sample, to="torch")  # type: ignore[call-arg]

    @property
    def indices(self) -> range:
        """The ids of the samples."""
        return range(self.config.swap_cap)

    def get_indeces(self) -> range:
        """The same as ``indices``."""
        return self.indices

    def _finished(self, name: str, kind: Kind, array: Array) -> Any:
        value = as_tensor(array)
        if self._from_bytes is not binary_to_tensor:
            import torch

            buffer = io.BytesIO()
            torch.save(value, buffer)
            value = self._from_bytes(buffer.getvalue())
        return self._normalized(value.float()) if name == self.sample[0] else value


class MongoheadDataset(_Compatible, _Dicts):
    """Samples as dicts: "input", a float32 tensor, and "label".

    Args:
        config_path, timeout, keeptrying: see :class:`headrace.wirehead.MongoheadDataset`.
        sample: the names to read. Default: the first two of SAMPLE.
        collection, id: must be left out.
        transform: called with the bytes that ``torch.save`` makes of each tensor; returns a tensor.
        normalize: called with the input, after that.
    """


class MongoTupleheadDataset(_Compatible, _Tuples):
    """Samples as tuples: the input, a float32 tensor, and the label. Arguments as for :class:`MongoheadDataset`."""


class WireheadGenerator(_Generator):
    """See :class:`headrace.wirehead.WireheadGenerator`."""

    def __init__(
        self, generator: Iterable[Any], config_path: ConfigSource = "config.yaml", n_samples: int = int(1e9)
    ) -> None:
        super().__init__(generator, config_path, n_samples)
        self._cache: Cache | None = None
        self._writer: Writer | None = None
        self._filled = 0  # the generation whose last id the last sample took
        self._open = contextlib.ExitStack()

    def __getattr__(self, name: str) -> Any:
        message = f"{type(self).__name__} has no attribute {name}"
        if name in _OF_COLLECTIONS:
            message += (
                ": the cache manages its collections itself; it swaps on its own, and is removed by "
                f"{self.config.clean_command}"
            )
        raise AttributeError(message)

    def cycle(self, verbose: bool = False) -> None:
        """Stores the next sample; until :meth:`close`, or the end of the process, a thread manages the cache.

        Raises:
            StopIteration: there is none.
            StoreError, TypeError, ValueError: see :meth:`run`.
            FailedPrecondition: it was stopped.
        """
        if self._writer is None:
            refuse_while_importing("a generator")
            cache = self._cache = self._open.enter_context(contextlib.closing(Cache(self.config)))
            manager = self._open.enter_context(contextlib.closing(GenerationManager(cache)))
            self._open.callback(self._swap_last, cache, manager)
            self._open.enter_context(keeping(manager, self._stop))
            self._writer = self._open.enter_context(contextlib.closing(Writer(cache, self._stop)))
            start_closing()
            atexit.register(self._close_at_exit)
        stored = self._writer.put(next(self.generator))
        if stored is None:
            self.close()  # raises what has ended the thread
            raise errors.FailedPrecondition("this generator was stopped, and stores no more samples")
        self.stored += 1
        generation, id = stored
        self._filled = generation if id + 1 == self.config.swap_cap else 0
        if verbose:
            self._report(generation, id)

    def _report(self, generation: int, index: int) -> None:
        print(f"Pushing index: {index}, with cap: {self.config.swap_cap}", flush=True)

    def close(self) -> None:
        """Stops the thread that :meth:`cycle` has started. If the server is gone, an operation of the thread may go on
        until TIMEOUT: after two seconds, this returns all the same.
        """
        atexit.unregister(self._close_at_exit)
        ended: list[BaseException] = []

        def end() -> None:
            try:
                self._end()
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=end, name="headrace-wirehead-closing", daemon=True)
        thread.start()
        thread.join(_PATIENCE)
        if ended:
            raise ended[0]

    def _end(self) -> None:
        if self._cache is not None:
            self._cache.begin_close()
        self._cache = self._writer = None
        self._open.close()

    def _swap_last(self, cache: Cache, manager: GenerationManager) -> None:
        """Swaps a generation that was filled just before the end, if the server answers and no reader is slow."""
        with contextlib.suppress(StoreError):
            while time.monotonic() < cache.store.ends and cache.current() < self._filled:
                if manager.step() is None:
                    time.sleep(0.01)

    def _close_at_exit(self) -> None:
        close_at_exit(self._end)  # the server may be gone


@dataclasses.dataclass
class SwapLog:
    """A swap.

    Attributes:
        swap_timestamp: when, in seconds since 1970.
        prev_swap_timestamp: of the one before; None for the first.
        swap_duration: seconds between the two.
        swap_count: swaps up to this one.
        db_name: DBNAME.
    """

    swap_timestamp: float
    prev_swap_timestamp: float | None = None
    swap_duration: float | None = None
    swap_count: int = 0
    db_name: str = ""

    def to_jsonl(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    __str__ = to_jsonl


@dataclasses.dataclass
class WireheadSnapshot:
    """A cache at one moment. ``samples_*``, ``fill_pct``: of the generation that is being filled; ``read_docs``:
    samples of the current one; ``avg_swap_duration``: seconds between the last swaps; ``*_mb``: MiB;
    ``samples_per_s``, ``write_mb_per_s``: since the previous snapshot. The other fields are 0: other processes never
    see operations in flight or a swap under way, and the load of the server is unknown.
    """

    samples_started: int = 0
    samples_completed: int = 0
    in_flight: int = 0
    swap_cap: int = 0
    fill_pct: float = 0.0
    is_swapping: bool = False
    swap_lock_duration: float | None = None
    swap_count: int = 0
    swap_timestamp: float | None = None
    swap_duration: float | None = None
    time_since_last_swap: float | None = None
    avg_swap_duration: float | None = None
    samples_per_s: float = 0.0
    swaps_per_s: float = 0.0
    write_mb_per_s: float = 0.0
    write_docs: int = 0
    write_size_mb: float = 0.0
    read_docs: int = 0
    read_size_mb: float = 0.0
    mongo_active_ops: int = 0
    db_name: str = ""
    poll_interval: float = 2.0
    timestamp: float = 0.0
    recent_swaps: list[SwapLog] = dataclasses.field(default_factory=list)

    def to_jsonl(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    __str__ = to_jsonl


class WireheadLogger:
    """Reports swaps. ``python -m headrace.wirehead status --watch`` shows more.

    Args:
        config_path: see :class:`headrace.wirehead.MongoheadDataset`.
        poll_interval: seconds between two polls.
    """

    def __init__(self, config_path: ConfigSource, poll_interval: float = 2.0) -> None:
        self.config = Config.load(config_path)
        self.poll_interval = poll_interval
        self._cache = Cache(self.config, create=False)
        # Of the snapshot before: time, samples and MiB generated.
        self._before: tuple[float, int, float] | None = None

    def history(self) -> list[SwapLog]:
        """The last swaps: as many as the cache keeps, more than ten."""
        self._cache.look_again()
        times: dict[int, float] = {}
        for swap in self._cache.swaps():
            first = swap.generation - len(swap.before)
            times.update((first + i, at) for i, (at, _) in enumerate(swap.before))
            times[swap.generation] = swap.time
        return [
            SwapLog(
                swap_timestamp=at,
                prev_swap_timestamp=times.get(count - 1),
                swap_duration=at - times[count - 1] if count - 1 in times else None,
                swap_count=count,
                db_name=self.config.dbname,
            )
            for count, at in sorted(times.items())
        ]

    def snapshot(self) -> WireheadSnapshot:
        """The cache as it is now."""
        status, swaps = status_of(self._cache), self.history()
        between = [swap.swap_duration for swap in swaps if swap.swap_duration is not None]
        average = sum(between) / len(between) if between else None
        now, each = time.time(), status.bytes_current / 2**20
        written = each * status.swaps + status.bytes_filling / 2**20  # as if all generations were as large
        before, self._before = self._before, (now, status.samples, written)
        samples_per_s = mb_per_s = 0.0
        if before is not None and now > before[0]:
            samples_per_s = max(0, status.samples - before[1]) / (now - before[0])
            mb_per_s = max(0.0, written - before[2]) / (now - before[0])
        return WireheadSnapshot(
            samples_started=status.fill,
            samples_completed=status.fill,
            swap_cap=status.swap_cap,
            fill_pct=100 * status.fill / status.swap_cap,
            swap_count=status.swaps,
            swap_timestamp=swaps[-1].swap_timestamp if swaps else None,
            swap_duration=swaps[-1].swap_duration if swaps else None,
            time_since_last_swap=status.last_swap_age,
            avg_swap_duration=average,
            samples_per_s=samples_per_s,
            swaps_per_s=1 / average if average else 0.0,
            write_mb_per_s=mb_per_s,
            write_docs=status.fill,
            write_size_mb=status.bytes_filling / 2**20,
            read_size_mb=each,
            read_docs=status.swap_cap if status.swaps else 0,
            db_name=status.database,
            poll_interval=self.poll_interval,
            timestamp=now,
            recent_swaps=swaps,
        )

    def run(self) -> None:
        """Prints the swaps so far, and each new one, until it is interrupted."""
        print(f"Logger: watching {self.config.dbname} (poll={self.poll_interval}s)")
        seen, incarnation = 0, self._cache.incarnation
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                swaps = self.history()
                if self._cache.incarnation != incarnation:  # it was cleaned
                    seen, incarnation = 0, self._cache.incarnation
                for swap in swaps:
                    if swap.swap_count > seen:
                        lost = swap.swap_count - seen - 1
                        if lost:
                            print(f"Logger: {lost} earlier swaps are no longer known")
                        print(swap, flush=True)
                        seen = swap.swap_count
                time.sleep(self.poll_interval)

    def run_tui(self) -> None:
        """Shows the cache on the terminal, and updates it until it is interrupted."""
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                print(f"\x1b[H\x1b[2J{status_of(self._cache)}", flush=True)
                time.sleep(self.poll_interval)

    def run_daemon(self) -> None:
        """Prints a snapshot at each poll until it is interrupted."""
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                print(self.snapshot(), flush=True)
                time.sleep(self.poll_interval)

    def close(self) -> None:
        """Closes the connection."""
        self._cache.close()


def log_swaps(arguments: Sequence[str]) -> int:
    """The original's command: prints the swaps so far; with ``--daemon``, a snapshot at each poll; with
    ``--tui``, shows the cache. Returns the exit code.
    """
    parser = argparse.ArgumentParser(prog="headrace-wirehead", description="Logs the swaps of a cache.")
    parser.add_argument("config", help="path of config.yaml")
    parser.add_argument("--daemon", action="store_true", help="print a snapshot as one line of JSON at each poll")
    parser.add_argument("--tui", action="store_true", help="show the cache on the terminal")
    parser.add_argument(
        "--poll-interval", type=at_least(0.01), default=2.0, metavar="S", help="seconds between polls (2)"
    )
    options = parser.parse_args(arguments)
    logger = WireheadLogger(options.config, options.poll_interval)
    if options.tui:
        logger.run_tui()
    elif options.daemon:
        logger.run_daemon()
    else:
        print("\n".join(map(str, logger.history())) or "No swaps recorded yet.")
    logger.close()
    return 0
