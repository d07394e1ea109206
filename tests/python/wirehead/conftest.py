"""Stores for the tests: a folder, and a real server.

The server is FerretDB from ``build/ferretdb`` (``make build/ferretdb``), or the one whose URI is in
HEADRACE_TEST_MONGO_URI, which then has to do all but being stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

URI_VARIABLE = "HEADRACE_TEST_MONGO_URI"
BINARY = Path(__file__).parents[3] / "build" / "ferretdb"
SKIPPED = f"needs a database: run `make build/ferretdb` (needs Go), or give the URI of a server in {URI_VARIABLE}"


class Server:
    """A FerretDB that can be killed and started again at the same port."""

    def __init__(self, folder: Path, pages: int = 0, tls: bool = False) -> None:
        self._folder = folder
        self._arguments = ["-data", str(folder), "-pages", str(pages), *(["-tls"] if tls else [])]
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        for _ in range(50):  # until the port is free again
            with open(self._folder / "log", "a") as log:
                self._process = subprocess.Popen(
                    [str(BINARY), *self._arguments, "-listen", self._listen],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=self._folder,
                )
            assert self._process.stdout is not None
            line = self._process.stdout.readline().strip()
            if line:
                self.uri = line
                self._listen = line.removeprefix("mongodb://").partition("/")[0]
                return
            self._process.wait()
            time.sleep(0.1)
        raise RuntimeError((self._folder / "log").read_text())

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


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
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
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
def config(place: dict[str, Any]) -> dict[str, Any]:
    """A small cache."""
    return {**place, "SWAP_CAP": 5, "TIMEOUT": 30}
