"""Storms, short: `make soak` has longer ones."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ferretdb_server import BINARY, SKIPPED
from storm_servers import behind_a_proxy, on_a_replica_set

from headrace.wirehead._benchmarks import storm as module
from headrace.wirehead._benchmarks.storm import Latency, Storm, storm
from headrace.wirehead.config import Config

SMALL = {"writers": 3, "readers": 2, "managers": 2}


def test_in_a_folder(tmp_path: Path) -> None:
    result = storm({"DBNAME": "storm", "DIRECTORY": str(tmp_path)}, 700, disturbances=16, swaps=4, seed=35, **SMALL)
    assert result.problems == []
    assert {"kill", "freeze", "set the clock", "suspend", "clean"} <= set(result.happened)
    assert result.caches >= 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("on", ["server", "replica set"])
def test_on_a_server_that_fails(tmp_path: Path, on: str) -> None:
    if on == "server" and not BINARY.exists():
        pytest.skip(SKIPPED)
    with contextlib.ExitStack() as stack:
        servers: Any = behind_a_proxy(tmp_path) if on == "server" else on_a_replica_set()
        location, fault, own_location = stack.enter_context(servers)
        result = storm(location, 300, disturbances=20, swaps=2, seed=4, fault=fault, own_location=own_location, **SMALL)
    assert result.problems == []
    assert {"kill", "freeze", "fault"} <= set(result.happened)


def test_what_happens_depends_on_the_seed_and_not_on_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_signal", lambda pid, number: None)
    for name in ("begin", "_kill", "_suspend"):
        monkeypatch.setattr(Storm, name, lambda *arguments: None)

    def kinds(processes: int) -> list[str]:
        with contextlib.closing(Storm({"DBNAME": "storm", "DIRECTORY": str(tmp_path)}, seed=0)) as it:
            it._running = [("read", SimpleNamespace(pid=number)) for number in range(processes)]
            found: list[str] = []
            for _ in range(50):
                before = it.result.happened.copy()
                it.disturb()
                found += it.result.happened - before
            it._running.clear()
            return found

    assert kinds(1) == kinds(7) == kinds(8)


def test_a_storm_waits_for_a_slow_server(tmp_path: Path) -> None:
    with contextlib.closing(Storm({"DBNAME": "storm", "DIRECTORY": str(tmp_path)}, seed=0)) as it:
        assert it.lease == 2
        it.begin("read")
        ((_, quick),) = it._running
        it._latency._seconds.extend([0.3, 0.5])
        it.look()
        ((role, slow),) = it._running
        assert role == "read"
        assert not quick.is_alive()
        assert it._leases[slow.pid] == it.result.longest_lease == pytest.approx(8)
        it.look()
        assert it._running == [(role, slow)]


def test_how_long_a_server_takes_is_measured_beside_the_cache(server_uri: str, location: dict[str, Any]) -> None:
    config = Config.load({**location, "SWAP_CAP": 4})
    with contextlib.closing(Latency(config)) as latency:
        latency.measure()
        assert (latency.seconds > 0) == (not config.is_local)
        before = list(latency._seconds)
        latency.measure()  # too soon
        assert list(latency._seconds) == before
