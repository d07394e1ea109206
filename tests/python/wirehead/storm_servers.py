"""Servers for a storm, and what goes wrong with them."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ferretdb_server import Server
from mongo_proxy import Proxy
from replica_set import ReplicaSet

# (keys for the processes, what goes wrong, keys for who looks on)
Place = tuple[dict[str, Any], Callable[[random.Random], None], dict[str, Any]]


@contextlib.contextmanager
def behind_a_proxy(folder: Path, chance: float = 0.01) -> Iterator[Place]:
    """FerretDB, which is killed and started again, behind a proxy at which requests and replies go wrong."""
    server = Server(folder)
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(server.stop)
        proxy = stack.enter_context(Proxy(server.uri))
        proxy.chance, proxy.first_batch = chance, 5

        def fault(rng: random.Random) -> None:
            what = rng.choice(("cut", "lose cursors", "restart"))
            if what == "cut":
                proxy.cut()
            elif what == "lose cursors":
                proxy.lose_cursors()
            else:
                server.stop(rng.choice((signal.SIGKILL, signal.SIGTERM)))
                time.sleep(rng.uniform(0, 1))
                server.start()

        yield {"DBNAME": "storm", "MONGOHOST": proxy.uri}, fault, {"DBNAME": "storm", "MONGOHOST": server.uri}


@contextlib.contextmanager
def on_a_replica_set() -> Iterator[Place]:
    """A stub of a replica set, whose primary is killed, steps down, is cut off or stands still."""
    with contextlib.closing(ReplicaSet()) as members:

        def fault(rng: random.Random) -> None:
            members.disturb(rng.choice(("kill", "step_down", "partition", "freeze")))
            time.sleep(rng.uniform(0, 3))
            members.heal()

        location = {"DBNAME": "storm", "MONGOHOST": members.uri}
        yield location, fault, location
