"""The manager's process. ``_protocol/generation_manager.py`` verifies, swaps and cleans up, and says who leads."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time

from headrace._standard_output import discard_output, drop_unwritten
from headrace.wirehead._protocol.cache import Cache, Swap
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead.config import Config, ConfigSource
from headrace.wirehead.errors import CacheGoneError, StoreError
from headrace.wirehead.generator import SecondSignal, ending_on_signals, refuse_while_importing

log = logging.getLogger("headrace.wirehead")


class WireheadManager:
    """Verifies samples as they arrive, swaps full generations, drops old ones, and logs each swap.

    Any number may run: one is active, and another takes over when it exits or dies.

    Args:
        config_path: path of ``config.yaml``, or a mapping with its keys.

    Raises:
        FileNotFoundError, ConfigError: the configuration does not exist or is invalid.
    """

    def __init__(self, config_path: ConfigSource = "config.yaml") -> None:
        self.config = Config.load(config_path)
        self._stop = threading.Event()

    def run_manager(self, swaps: int | None = None) -> None:
        """Runs until the process is asked to stop (SIGTERM, SIGINT, :meth:`stop`); a second signal terminates it.

        Args:
            swaps: return after this many swaps, no matter which process did them.

        Raises:
            ConfigError: a command imports the module that calls this.
            StoreUnreachableError: the store did not answer at the start. Later, the manager waits for it.
            CacheGoneError: the cache was cleaned, or its database dropped.
        """
        refuse_while_importing("a manager")
        log_to_stdout()
        with ending_on_signals(self._stop):
            cache = Cache(self.config)
            manager = GenerationManager(cache)
            with contextlib.closing(cache), contextlib.ExitStack() as leases:
                leases.callback(_end_lease, cache, manager)
                try:
                    self._run(cache, manager, swaps)
                except SecondSignal:
                    leases.pop_all()
                    raise

    def stop(self) -> None:
        """Makes :meth:`run_manager` return; from any thread."""
        self._stop.set()

    def _run(self, cache: Cache, manager: GenerationManager, swaps: int | None) -> None:
        log.info(
            "Manager: manages %s at %s, SWAP_CAP %d", self.config.dbname, self.config.location, self.config.swap_cap
        )
        seen = cache.current()
        last = None if swaps is None else seen + swaps
        blocked_since: float | None = None
        led = True
        while not self._stop.is_set() and (last is None or seen < last):
            try:
                manager.step()
                for generation in range(seen + 1, cache.current() + 1):
                    self._log_swap(cache.swap(generation))
                    seen = generation
                if led and not manager.leads:
                    log.info("Manager: another process is the active manager; this one is on standby")
                led = manager.leads
                if manager.blocked is None:
                    blocked_since = None
                elif blocked_since is None or time.monotonic() - blocked_since > 30:
                    blocked_since = time.monotonic()
                    log.warning("Manager: generation %d is full and waits: %s", cache.current() + 1, manager.blocked)
            except CacheGoneError:
                raise
            except StoreError as error:
                log.error("Manager: %s", error)
                self._stop.wait(1)
            self._stop.wait(manager.pause)

    def _log_swap(self, swap: Swap | None) -> None:
        if swap is not None:
            log.info(
                "Manager: SWAP! Time: %.6f Generated samples so far: %d Documents deleted: %d Generation: %d",
                swap.time,
                swap.samples,
                swap.deleted,
                swap.generation,
            )


def _end_lease(cache: Cache, manager: GenerationManager) -> None:
    cache.begin_close()
    try:
        manager.close()
    except StoreError as error:
        log.error("%s", error)


class _Output(logging.StreamHandler):  # type: ignore[type-arg]  # Python 3.9
    """If nobody reads the output any more, this process is asked to end, as one that prints would end. If it cannot be
    written for another reason, such as a full disk, that is said once, and the work goes on.
    """

    _has_failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif isinstance(error, BrokenPipeError):
            discard_output()
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            with contextlib.suppress(OSError, ValueError):
                drop_unwritten()
            self._say_once(error)

    def _say_once(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            text = f"standard output cannot be written ({error.strerror}); messages are lost, and the work goes on"
            with contextlib.suppress(OSError):
                print(f"headrace.wirehead: {text}", file=sys.stderr, flush=True)


def log_to_stdout() -> None:
    """Messages go to standard output, unless the program has set up logging."""
    if not log.hasHandlers():
        handler = _Output(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
