"""Encrypted connections to a real server, and passwords: FerretDB asks nobody for one, so a stand-in does."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import socket
import struct
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ferretdb_server import BINARY, SKIPPED, Server

from headrace.wirehead import MongoTupleheadDataset, StoreError, StoreUnreachableError, WireheadGenerator
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead.config import Config
from headrace.wirehead.errors import ConfigError

bson: Any = pytest.importorskip("bson")

PASSWORD = "sword/fish:@1"


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[Server, Path]]:
    """A server that speaks TLS, and the file with its certificate."""
    if not BINARY.exists():
        pytest.skip(SKIPPED)
    server = Server(tmp_path, tls=True)
    yield server, tmp_path / "cert.pem"
    server.stop()


def test_put_swap_and_get_over_tls(encrypted: tuple[Server, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    server, certificate = encrypted
    monkeypatch.setenv("WIREHEAD_PASSWORD", PASSWORD)
    uri = server.uri.replace("mongodb://", "mongodb://me@")
    keys = {"DBNAME": "test", "SWAP_CAP": 3, "TIMEOUT": 30}
    config = {**keys, "MONGOHOST": f"{uri}&tlsCAFile={certificate}&authMechanism=PLAIN"}
    WireheadGenerator(((np.full(100, i), i) for i in range(3)), config).run()
    with MongoTupleheadDataset(config, to="numpy") as dataset:
        assert [int(label) for _, label in (dataset[i] for i in range(3))] == [0, 1, 2]
    # A certificate that nobody knows is not trusted.
    with pytest.raises(StoreUnreachableError, match="certificate verify failed") as caught:
        open_store(Config.load({**keys, "MONGOHOST": f"{uri}&authMechanism=PLAIN", "TIMEOUT": 1}))
    assert PASSWORD not in str(caught.value)


class PasswordServer:
    """Speaks as much of MongoDB's protocol as it takes to check a password by SCRAM-SHA-256 (RFC 7677) and to answer a
    ping. Each connection has a thread.
    """

    def __init__(self, user: str, password: str) -> None:
        self._user, self._password = user, password
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.location = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        state: dict[str, Any] = {"user": None}
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while len(header := stream.read(16)) == 16:
                length, number, _, opcode = struct.unpack("<4i", header)
                body = stream.read(length - 16)
                if opcode == 2004:  # OP_QUERY: flags, name, two numbers, document
                    start = body.index(b"\0", 4) + 9
                    answer = bson.encode(self._answer(bson.decode(body[start:]), state))
                    reply, opcode = struct.pack("<iqii", 0, 0, 0, 1) + answer, 1
                else:  # OP_MSG: flags, kind of section, document
                    answer = bson.encode(self._answer(bson.decode(body[5:]), state))
                    reply = struct.pack("<ib", 0, 0) + answer
                connection.sendall(struct.pack("<4i", 16 + len(reply), 0, number, opcode) + reply)

    def _answer(self, request: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        command = next(iter(request)).lower()
        if command in ("hello", "ismaster"):
            limits = {"maxBsonObjectSize": 1 << 24, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000}
            versions = {"helloOk": True, "minWireVersion": 0, "maxWireVersion": 17}
            mechanisms = {"saslSupportedMechs": ["SCRAM-SHA-256"]}
            return {"ismaster": True, "isWritablePrimary": True, **versions, **limits, **mechanisms, "ok": 1}
        if command == "saslstart":
            first = request["payload"].decode().removeprefix("n,,")
            state["first"] = first
            state["challenge"] = f"r={first.partition('r=')[2]}more,s={base64.b64encode(b'salt' * 4).decode()},i=4096"
            return {"conversationId": 1, "done": False, "payload": state["challenge"].encode(), "ok": 1}
        if command == "saslcontinue":
            final, _, proof = request["payload"].decode().rpartition(",p=")
            key = hashlib.pbkdf2_hmac("sha256", self._password.encode(), b"salt" * 4, 4096)
            client = hmac.digest(key, b"Client Key", "sha256")
            message = ",".join((state["first"], state["challenge"], final)).encode()
            signature = hmac.digest(hashlib.sha256(client).digest(), message, "sha256")
            expected = bytes(a ^ b for a, b in zip(client, signature))
            if not state["first"].startswith(f"n={self._user},") or base64.b64decode(proof) != expected:
                return {"ok": 0, "code": 18, "codeName": "AuthenticationFailed", "errmsg": "Authentication failed."}
            state["user"] = self._user
            server = hmac.digest(hmac.digest(key, b"Server Key", "sha256"), message, "sha256")
            return {"conversationId": 1, "done": True, "payload": b"v=" + base64.b64encode(server), "ok": 1}
        if state["user"] is None:
            return {"ok": 0, "code": 13, "codeName": "Unauthorized", "errmsg": "requires authentication"}
        return {"ok": 1}


@pytest.fixture
def password_server() -> Iterator[PasswordServer]:
    server = PasswordServer("me", PASSWORD)
    yield server
    server.close()


QUOTED = "sword%2Ffish%3A%401"


@pytest.mark.parametrize("where", ["environment", "uri"])
def test_the_password_is_passed_on(
    password_server: PasswordServer, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys: dict[str, Any] = {"DBNAME": "test", "SWAP_CAP": 3, "TIMEOUT": 30}
    if where == "environment":
        monkeypatch.setenv("WIREHEAD_PASSWORD", PASSWORD)
        config = Config.load({**keys, "MONGOHOST": f"mongodb://me@{password_server.location}/"})
    else:
        monkeypatch.delenv("WIREHEAD_PASSWORD", raising=False)
        config = Config.load({**keys, "MONGOHOST": f"mongodb://me:{QUOTED}@{password_server.location}/"})
    open_store(config).close()
    assert PASSWORD not in caplog.text
    assert not any(secret in config.location for secret in (PASSWORD, QUOTED, "me"))


@pytest.mark.parametrize("where", ["environment", "uri"])
def test_a_wrong_password_is_an_error_that_does_not_show_it(
    password_server: PasswordServer, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WIREHEAD_PASSWORD", "swordfish")
    user = "me" if where == "environment" else "me:swordfish"
    keys = {
        "DBNAME": "test",
        "SWAP_CAP": 3,
        "TIMEOUT": 30,
        "MONGOHOST": f"mongodb://{user}@{password_server.location}/",
    }
    with pytest.raises(StoreError, match=r"refused user and password.*WIREHEAD_PASSWORD") as caught:
        open_store(Config.load(keys))
    assert password_server.location in str(caught.value)
    assert "swordfish" not in str(caught.value) + caplog.text


def test_a_password_shows_in_no_representation() -> None:
    config = Config.load({"DBNAME": "test", "SWAP_CAP": 3, "MONGOHOST": f"mongodb://me:{QUOTED}@db.example/"})
    for text in (repr(config), str(config), f"{config}"):
        assert QUOTED not in text
        assert PASSWORD not in text


@pytest.mark.filterwarnings("ignore:Unknown option")  # as which PyMongo takes part of a password
@pytest.mark.parametrize(
    "host",
    [
        "user:s3cret@host",
        "mongodb://user:s3c/ret@host/",
        "mongodb://u:s3c@ret@host/x",
        "mongodb://user:x?s3cret=1@host/",
        "mongodb://user:s3cret@host:port/",
        "mongodb://user:s3cret@[host/",
        "mongodb+srv://user:s3cret@/",
    ],
)
def test_a_configuration_that_does_not_work_shows_no_password(host: str) -> None:
    with pytest.raises(ConfigError, match="MONGOHOST") as caught:
        Cache({"SWAP_CAP": 1, "DBNAME": "test", "MONGOHOST": host, "TIMEOUT": 0.1})
    text = "".join(traceback.format_exception(type(caught.value), caught.value, None))
    assert not any(part in text for part in ("s3c", "ret@", "cret"))
    assert "mongodb://user@host" in text


def test_a_file_of_keys_that_is_missing_is_named(tmp_path: Path) -> None:
    host = "mongodb://user:s3cret@host/?tls=true&tlsCAFile=/nowhere"
    message = "^the configuration: MONGOHOST: option 'tlsCAFile': the file is not readable: No such file or directory$"
    with pytest.raises(ConfigError, match=message):
        Cache({"SWAP_CAP": 1, "DBNAME": "test", "MONGOHOST": host, "TIMEOUT": 0.1})


@pytest.mark.parametrize("option", ["tlsCAFile", "tlsCertificateKeyFile", "tlsCRLFile"])
def test_a_file_of_keys_that_holds_none_is_not_taken_for_a_wrong_uri(tmp_path: Path, option: str) -> None:
    (tmp_path / "keys").write_text("none")
    host = f"mongodb://user:s3cret@host/?tls=true&{option}={tmp_path}/keys"
    with pytest.raises(ConfigError, match=r"^the configuration: MONGOHOST: .*\(_ssl\.c") as caught:
        Cache({"SWAP_CAP": 1, "DBNAME": "test", "MONGOHOST": host, "TIMEOUT": 0.1})
    assert "s3cret" not in str(caught.value)


def test_a_host_that_the_name_server_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    resolvers = pytest.importorskip("dns.resolver")

    def resolve(name: str, *arguments: Any, **options: Any) -> None:
        raise resolvers.NXDOMAIN(qnames=[name])

    monkeypatch.setattr(resolvers, "resolve", resolve)
    host = "mongodb+srv://user:s3cret@db.example.org/"
    with pytest.raises(ConfigError, match=r"^the configuration: MONGOHOST: .*DNS.*db\.example\.org") as caught:
        Cache({"SWAP_CAP": 1, "DBNAME": "test", "MONGOHOST": host, "TIMEOUT": 0.1})
    assert "s3cret" not in str(caught.value)
