"""Stores for the tests: a folder, and a real server.

The server is FerretDB (ferretdb_server.py), or the one whose URI is in
HEADRACE_TEST_MONGO_URI, which then has to do all but being stopped.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import FUNCTIONS
from ferretdb_server import BINARY, SKIPPED, URI_VARIABLE, Server

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.lease import Lease


@pytest.fixture(scope="session")
def server_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that stays."""
    given = os.environ.get(URI_VARIABLE)
    if given:
        yield given
        return
    if not BINARY.exists():
        pytest.skip(SKIPPED)
    server = Server(tmp_path_factory.mktemp("ferretdb"))
    yield server.uri
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, to kill."""
    if not BINARY.exists():
        pytest.skip(SKIPPED)
    folder = tmp_path / "ferretdb"
    folder.mkdir()
    server = Server(folder)
    yield server
    server.stop()


@pytest.fixture(params=["local", "mongo"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The keys that say where the store is; what is there goes at the end."""
    if request.param == "local":
        yield {"DBNAME": "test", "DIRECTORY": str(tmp_path / "cache")}
        return
    uri = request.getfixturevalue("server_uri")
    name = f"headrace_test_{uuid.uuid4().hex[:12]}"
    yield {"DBNAME": name, "MONGOHOST": uri}
    import pymongo

    with contextlib.closing(pymongo.MongoClient(uri)) as client:
        client.drop_database(name)


@pytest.fixture
def config(location: dict[str, Any]) -> dict[str, Any]:
    """A small cache."""
    return {**location, "SWAP_CAP": 5, "TIMEOUT": 30}


@pytest.fixture
def cache(request: pytest.FixtureRequest, config: dict[str, Any]) -> Iterator[Cache]:
    """Of tests that use ``steps``, by their clock."""
    if "steps" in request.fixturenames:
        clock: list[float] = request.getfixturevalue("clock")
        cache = Cache(config, clock=lambda: clock[0])
    else:
        cache = Cache(config)
    yield cache
    cache.close()


@pytest.fixture
def clock() -> list[float]:
    """The time of ``steps``, which tests move."""
    return [1000.0]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    """Time passes, and leases are renewed, only as a test says."""
    monkeypatch.setattr(Lease, "_renew", lambda lease: None)


@pytest.fixture
def folder(location: dict[str, Any], tmp_path: Path) -> Path:
    """With functions and a configuration in it, for commands."""
    (tmp_path / "functions.py").write_text(textwrap.dedent(FUNCTIONS))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**location, "SWAP_CAP": 30, "LEASE": 10, "TIMEOUT": 30}))
    return tmp_path
