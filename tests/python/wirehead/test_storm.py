"""Storms, short: `make soak` has longer ones."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from ferretdb_server import BINARY, SKIPPED
from storm_servers import behind_a_proxy, on_a_replica_set

from headrace.wirehead._benchmarks.storm import storm

SMALL = {"writers": 3, "readers": 2, "managers": 2}


def test_in_a_folder(tmp_path: Path) -> None:
    result = storm({"DBNAME": "storm", "DIRECTORY": str(tmp_path)}, 1500, disturbances=30, swaps=4, seed=2, **SMALL)
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
        place, fault, own_place = stack.enter_context(servers)
        result = storm(place, 300, disturbances=20, swaps=2, seed=4, fault=fault, own_place=own_place, **SMALL)
    assert result.problems == []
    assert {"kill", "freeze", "fault"} <= set(result.happened)
