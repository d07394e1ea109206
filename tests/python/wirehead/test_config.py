"""config.yaml."""

from __future__ import annotations

import datetime
import re
import reprlib
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.wirehead import Config, ConfigError, MongoheadDataset, StoreUnreachableError, WireheadManager
from headrace.wirehead.config import KEYS

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
    assert config.location == "localhost:27017"


NAMES = ["WRITE_COLLECTION", "READ_COLLECTION", "COUNTER_COLLECTION", "TEMP_COLLECTION"]
WHOLE = "must be a whole number from 1 to"
A_NAME = (
    "must be a name of at most 63 bytes that has no $, no dot at an end or after another one, and does not begin with "
    '"system."'
)
A_DATABASE = "must be a name of at most 63 bytes, without spaces or any of"
A_HOST = "must be a host name, or a URI such as mongodb://user@host:27017/"
# What each key refuses, and what the message says of it; lists and mappings where none belong are tried for each key.
REFUSED: dict[str, list[tuple[Any, str]]] = {
    "SWAP_CAP": [(value, WHOLE) for value in ("3", 0, -1, True, 1.5, float("nan"), 10**10, 10**400)],
    "PORT": [(value, f"{WHOLE} 65535") for value in ("27017", 0, 65536, True, 1.5)],
    "DBNAME": [
        *(
            (value, A_DATABASE)
            for value in ("", " ", "a b", "x/y", "x.y", "x$", "x\n", "x\0", "x" * 64, "ü" * 32, "\ud800")
        ),
        *((value, "must be text in quotes, got") for value in (12, True, 1.5, datetime.date(2026, 11, 25))),
    ],
    "MONGOHOST": [
        *((value, A_HOST) for value in ("", "a b", "host\n")),
        (1, "must be text in quotes"),
        ("me:secret@host", "must be mongodb://user@host if it names a user"),
    ],
    "SAMPLE": [
        *((value, 'must be a list of names, such as ["data", "label"]') for value in ("data", 1, [], [1], [""])),
        (["a", "a"], "must be a list of different names, got ['a', 'a']"),
    ],
    **{
        name: [
            *((value, A_NAME) for value in ("", "a$", ".a", "a.", "a..b", "system.x", "a\0", "x" * 64, "\ud800")),
            (1, "must be text in quotes"),
        ]
        for name in NAMES
    },
    "CHUNKSIZE": [
        (value, "must be a number of MiB from 0.00001 to 15 (a document of MongoDB holds 16), got")
        for value in ("10", 0, 1e-7, 15.5, float("inf"), float("nan"), True)
    ],
    "COMPRESSION": [
        (value, "must be one of auto, none, zlib, zstd, lz4, got") for value in ("gzip", "", False, 9, "AUTO")
    ],
    "DIRECTORY": [
        *((value, "must be a folder's path") for value in ("", "a\0b", "~\0", "~no-such-user/x", "\ud800")),
        (1, "must be text in quotes"),
    ],
    **{
        name: [
            (value, "must be a number of seconds from 0.") for value in ("30", 0, -1, float("inf"), float("nan"), True)
        ]
        for name in ("TIMEOUT", "LEASE")
    },
}


def config_error(source: Any) -> str:
    """What is said of a configuration that does not work: one line."""
    with pytest.raises(ConfigError) as caught:
        Config.load(source)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def test_each_key_is_tried() -> None:
    assert set(REFUSED) == set(KEYS)


@pytest.mark.parametrize(("key", "value", "message"), [(k, v, m) for k, cases in REFUSED.items() for v, m in cases])
def test_a_wrong_value_is_named_with_what_to_write_instead(key: str, value: Any, message: str) -> None:
    said = config_error({"SWAP_CAP": 3, "DBNAME": "x", key: value})
    assert said.startswith(f"the configuration: {key} {message}")
    assert (reprlib.repr(value) in said) == (key != "MONGOHOST")  # which may hold a password


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [{}, {"a": 1}, [[]], [None], b"x"])
def test_no_key_is_a_mapping_or_the_like(key: str, value: Any) -> None:
    said = config_error({"SWAP_CAP": 3, "DBNAME": "x", key: value})
    assert said.startswith(f"the configuration: {key} must be ")


@pytest.mark.parametrize("key", KEYS)
def test_a_number_that_python_does_not_write_down_is_refused(key: str) -> None:
    assert config_error({"SWAP_CAP": 3, "DBNAME": "x", key: 10**5000}).startswith(f"the configuration: {key} must be ")


@pytest.mark.parametrize("key", KEYS)
def test_a_key_without_a_value_has_its_default_or_is_missing(key: str) -> None:
    keys = {"SWAP_CAP": 3, "DBNAME": "x", key: None}
    if key in ("SWAP_CAP", "DBNAME"):
        assert config_error(keys).startswith(f"the configuration: {key} is missing (")
    else:
        assert getattr(Config.load(keys), key.lower()) == KEYS[key].default


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"SWAP_CAP": 3, "DBNAME": "x", "SWAPCAP": 4}, "SWAPCAP is unknown; did you mean SWAP_CAP?"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "lease": 4}, "lease is unknown; did you mean LEASE?"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "ZZ": 4}, "ZZ is unknown; valid are SWAP_CAP, DBNAME, MONGOHOST"),
        ({"SWAP_CAP": 3, "DBNAME": "x", 7: 4}, "7 is unknown; valid are"),
        ({"SWAP_CAP": 3, "DBNAME": "x", "MONGOHOST": "h", "DIRECTORY": "d"}, "MONGOHOST and DIRECTORY exclude"),
        ({"SWAP_CAP": -1, "ZZ": 4}, "SWAP_CAP must be a whole number from 1 to 1000000000, got -1; ZZ is unknown"),
        ({"SWAP_CAP": -1, "ZZ": 4}, "; DBNAME is missing (name of the database)"),
    ],
)
def test_each_wrong_key_is_named(keys: dict[Any, Any], message: str) -> None:
    assert message in config_error(keys)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "", "must hold keys and values, one to a line, such as SWAP_CAP: 10; it holds nothing"),
        ("c.yaml", "- 1", "must hold keys and values, one to a line, such as SWAP_CAP: 10; it holds [1]"),
        ("c.yaml", "SWAP_CAP 10", "must hold keys and values, one to a line, such as SWAP_CAP: 10; it holds 'SWAP"),
        ("c.yaml", "DBNAME: x\nSAMPLE: [a", "is not valid YAML in line 2, column 11: "),
        ("c.yaml", "DBNAME: x\n\tSWAP_CAP: 3", "is not valid YAML in line 2, column 1: found character"),
        ("c.yaml", "DBNAME: 2026-02-31", "is not valid YAML: day "),
        ("c.yaml", "[" * 5000, "is not valid YAML: maximum recursion depth exceeded"),
        ("c.yaml", "SWAP_CAP: 1\nDBNAME: x\nSWAP_CAP: 2", "has SWAP_CAP more than once: leave all but one out"),
        ("c.json", '{"SWAP_CAP": 1, "SWAP_CAP": 2}', "has SWAP_CAP more than once: leave all but one out"),
        ("c.json", "{", "is not valid JSON: "),
        ("c.yaml", b"DBNAME: \xff", "is not text in UTF-8: byte 8 is 0xff: save it as UTF-8"),
        ("c.yaml", None, "cannot be read as a configuration: Is a directory; name a file"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, name: str, text: Any, message: str) -> None:
    path = tmp_path / name
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    for source in (path, str(path)):
        assert config_error(source).startswith(f"{path} {message}")


def test_a_path_with_a_null_character_is_named() -> None:
    assert "cannot be read as a configuration: embedded null" in config_error("a\0b")


@pytest.mark.parametrize(
    ("name", "text"), [("c.yaml", "DBNAME: x\nSWAP_CAP: 2"), ("c.json", '{"DBNAME": "x", "SWAP_CAP": 2}')]
)
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")
    assert Config.load(path).swap_cap == 2


def test_a_directory_stays_where_it_was_when_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = {"SWAP_CAP": 1, "DBNAME": "x"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    configs = [Config.load({**keys, "DIRECTORY": where}) for where in ("here", Path("here"), "~/here")]
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/elsewhere")
    here, home = tmp_path / "here" / "x.wirehead", tmp_path / "home" / "here" / "x.wirehead"
    assert [config.local_directory for config in configs] == [here, here, home]


def test_the_default_directory_is_below_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.load({"SWAP_CAP": 1, "DBNAME": "x"})
    monkeypatch.setenv("HOME", "/home/me")
    for cache in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert str(config.local_directory) == "/home/me/.cache/headrace/wirehead/x.wirehead"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert str(config.local_directory) == "/cache/headrace/wirehead/x.wirehead"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: Path("~no-such-user").expanduser())
    with pytest.raises(ConfigError, match="the configuration: this user has no home folder: set DIRECTORY"):
        print(config.local_directory)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no configuration file .*none\.yaml"):
        WireheadManager(tmp_path / "none.yaml")
    source: Any
    for source in (None, 3, b"config.yaml"):
        with pytest.raises(TypeError, match=r"the path of config\.yaml or a mapping with its keys, got"):
            Config.load(source)


def test_a_location_has_no_credentials() -> None:
    config = Config.load(
        {"SWAP_CAP": 1, "DBNAME": "x", "MONGOHOST": "mongodb://me:secret@db.example:27018/?tls=true&w=1"}
    )
    assert config.location == "db.example:27018"
    for secret in ("s@fish", "s/fish", "s?fish", "s:fish@"):
        keys = {"SWAP_CAP": 1, "DBNAME": "x", "MONGOHOST": f"mongodb://me:{secret}@db.example/"}
        assert Config.load(keys).location == "db.example:27017"


@pytest.mark.parametrize(
    ("host", "location"),
    [
        ("db", "db:4"),
        ("mongodb://db/admin", "db:4/admin"),
        ("[::1]", "[::1]:4"),
        ("mongodb://me@one:1,two:2/?w=1", "one:1,two:2"),
        ("mongodb://one,two/", "one,two"),
        ("mongodb+srv://me:secret@db.example/", "db.example"),
    ],
)
def test_a_location_has_the_port(host: str, location: str) -> None:
    assert Config.load({"SWAP_CAP": 1, "DBNAME": "x", "MONGOHOST": host, "PORT": 4}).location == location


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


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("mongodb://me@localhost", "names the user me and no password: set the environment variable WIREHEAD_PASSWORD"),
        ("mongodb://me:sword/fish@localhost", "is not a valid URI: write mongodb://user@host:27017/"),
        ("mongodb://localhost:99999/", "Port must be an integer between 0 and 65535"),
        (
            "mongodb://localhost/?readConcernLevell=majority",
            r"option 'readConcernLevell': Unknown option(. Did you mean one of \([^)]*\)|: \S*)$",
        ),
        ("mongodb://localhost/?W=0", r"option 'w': with 0, a server answers no write, .* write w=majority$"),
        ("mongodb://localhost/?w=1&journal=maybe", "option 'journal': The value of journal must be 'true' or 'false'"),
    ],
)
def test_a_uri_that_is_refused_later_is_named_with_its_file(
    host: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pymongo")
    monkeypatch.delenv("WIREHEAD_PASSWORD", raising=False)
    path = tmp_path / "config.yaml"
    path.write_text(f'SWAP_CAP: 1\nDBNAME: x\nMONGOHOST: "{host}"\n')
    with pytest.raises(ConfigError) as caught:
        MongoheadDataset(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: MONGOHOST")
    assert re.search(message, said)
    assert "\n" not in said
    assert "fish" not in said
