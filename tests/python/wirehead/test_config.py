"""config.yaml."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.wirehead import Config, ConfigError, MongoheadDataset, StoreUnreachableError, WireheadManager

ORIGINAL = """
MONGOHOST: "localhost" # hostname or ip of node hosting mongodb
DBNAME: "unit-test"    # name of database inside mongodb
SWAP_CAP: 10           # max size for write/read collection
SAMPLE: ["data", "label"]
WRITE_COLLECTION: "write"
READ_COLLECTION: "read"
COUNTER_COLLECTION: "counter"
TEMP_COLLECTION: "temp"
CHUNKSIZE: 10
"""


def test_the_file_of_the_original(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(ORIGINAL)
    config = Config.load(path)
    assert (config.mongohost, config.port, config.swap_cap, config.chunksize) == ("localhost", 27017, 10, 10)
    assert config.sample == ("data", "label")
    assert config.place == "localhost:27017"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"DBNAME": "x"}, "SWAP_CAP is missing"),
        ({"SWAP_CAP": 3}, "DBNAME is missing"),
        ({"SWAP_CAP": "3", "DBNAME": "x"}, "SWAP_CAP must be a whole number, got '3'"),
        ({"SWAP_CAP": 0, "DBNAME": "x"}, "SWAP_CAP must be at least 1, got 0"),
        ({"SWAP_CAP": True, "DBNAME": "x"}, "SWAP_CAP must be a whole number"),
        ({"SWAP_CAP": 3, "DBNAME": "x/y"}, "DBNAME must be a name without"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "SWAPCAP": 4}, r"SWAPCAP is unknown; did you mean SWAP_CAP\?"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "ZZ": 4}, "ZZ is unknown; valid are SWAP_CAP, DBNAME, MONGOHOST"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "CHUNKSIZE": 16}, "CHUNKSIZE must be at most 15 MiB"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "CHUNKSIZE": 0}, "CHUNKSIZE must be a number of MiB above 0"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "CHUNKSIZE": 1e-7}, "CHUNKSIZE must be at least 0.000010 MiB"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "SAMPLE": "data"}, "SAMPLE must be a list of names"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "SAMPLE": ["a", "a"]}, "SAMPLE must be a list of different names"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "PORT": 70000}, "PORT must be from 1 to 65535"),
        (
            {"SWAP_CAP": 3, "DBNAME": "x", "COMPRESSION": "gzip"},
            "COMPRESSION must be one of auto, none, zlib",
        ),
        ({"SWAP_CAP": 3, "DBNAME": "x", "MONGOHOST": "h", "DIRECTORY": "d"}, "MONGOHOST and DIRECTORY exclude"),
        ({"SWAP_CAP": -1, "ZZ": 4}, "(?s)SWAP_CAP must.*DBNAME is missing"),
    ],
)
def test_each_wrong_key_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.load(keys)


def test_a_file_that_is_not_there_and_one_that_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no configuration file .*none\.yaml"):
        WireheadManager(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match="must hold keys and values"):
        Config.load(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        Config.load(str(tmp_path / "broken.yaml"))


def test_a_place_has_no_credentials() -> None:
    config = Config.load(
        {"SWAP_CAP": 1, "DBNAME": "x", "MONGOHOST": "mongodb://me:secret@db.example:27018/?tls=true&w=1"}
    )
    assert config.place == "db.example:27018"


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("db", "db:4"),
        ("mongodb://db/admin", "db:4/admin"),
        ("[::1]", "[::1]:4"),
        ("mongodb://me@one:1,two:2/?w=1", "one:1,two:2"),
        ("mongodb+srv://me:secret@db.example/", "db.example"),
    ],
)
def test_a_place_has_the_port(host: str, place: str) -> None:
    assert Config.load({"SWAP_CAP": 1, "DBNAME": "x", "MONGOHOST": host, "PORT": 4}).place == place


def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("is_uri", [False, True])
def test_an_unreachable_host_is_named_and_the_password_is_not(is_uri: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pymongo")
    port = unused_port()
    keys: dict[str, Any] = {"SWAP_CAP": 1, "DBNAME": "x", "TIMEOUT": 0.5, "MONGOHOST": "127.0.0.1", "PORT": port}
    if is_uri:
        monkeypatch.setenv("WIREHEAD_PASSWORD", "swordfish")
        keys["MONGOHOST"] = f"mongodb://me@127.0.0.1:{port}/?tls=true"
    start = time.monotonic()
    with pytest.raises(StoreUnreachableError, match=f"127.0.0.1:{port} did not answer within 0.5 seconds") as caught:
        MongoheadDataset(keys)
    assert time.monotonic() - start < 30
    assert isinstance(caught.value, ConnectionError)
    assert "swordfish" not in str(caught.value)


def test_a_user_without_a_password_and_a_broken_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pymongo")
    monkeypatch.delenv("WIREHEAD_PASSWORD", raising=False)
    with pytest.raises(ConfigError, match="set the environment variable WIREHEAD_PASSWORD"):
        MongoheadDataset({"SWAP_CAP": 1, "DBNAME": "x", "MONGOHOST": "mongodb://me@localhost"})
    with pytest.raises(ConfigError, match="MONGOHOST") as caught:
        MongoheadDataset({"SWAP_CAP": 1, "DBNAME": "x", "MONGOHOST": "mongodb://me:sword/fish@localhost"})
    assert "fish" not in str(caught.value)
