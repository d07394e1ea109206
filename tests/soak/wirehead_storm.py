"""Storms on caches of :mod:`headrace.wirehead`: generators, managers and readers, while everything goes wrong that may.

    make soak                                                           ten minutes, after those of the loaders
    python tests/soak/wirehead_storm.py --on folder --operations 100000 until so many samples were stored and read

Processes are killed or stand still, clocks are set, the machine is suspended, the cache is cleaned. On "server", that
is FerretDB (``make build/ferretdb``) behind a proxy, requests and replies go wrong, and the server is killed; on
"replica-set", a stub, the primary fails. Prints what was found so far each minute, and what happened at the end, which
comes early with SIGINT or SIGTERM; exits with status 1 if anything was lost, torn, mixed or doubled.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "wirehead"))
from ferretdb_server import BINARY
from storm_servers import behind_a_proxy, on_a_replica_set

from headrace.wirehead._benchmarks.storm import StormResult, storm


def storm_on(where: str, folder: Path, **options: Any) -> StormResult:
    """One storm on a location of that kind."""
    if where == "folder":
        return storm({"DBNAME": "storm", "DIRECTORY": str(folder)}, **options)
    server: Any = behind_a_proxy(folder) if where == "server" else on_a_replica_set()
    with server as (location, fault, own_location):
        return storm(location, fault=fault, own_location=own_location, **options)


def show(where: str, result: StormResult) -> None:
    print(f"{where}: {result}", *result.problems[:20], sep="\n  ", flush=True)


def main() -> int:
    locations = ["folder", *(["server"] if BINARY.exists() else []), "replica-set"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", nargs="+", choices=["folder", "server", "replica-set"], default=locations)
    parser.add_argument("--operations", type=int, help="default: as many as there is time for")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_SECONDS", "600")), help="in all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Beside: the main thread may hold the event's lock.
        signal.signal(number, lambda *_: threading.Thread(target=stop.set).start())
    problems = 0
    for where in options.on:
        if stop.is_set():
            break
        seconds = options.seconds / len(options.on) if options.operations is None else float("inf")
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-storm-")))
            operations = options.operations or sys.maxsize
            result = storm_on(
                where,
                folder,
                operations=operations,
                disturbances=0,
                seconds=seconds,
                seed=options.seed,
                stop=stop,
                report=lambda so_far, where=where: show(f"{where}, so far", so_far),
            )
        show(where, result)
        problems += len(result.problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
