"""The configuration that generators, manager and datasets share: ``config.yaml``."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

from headrace.wirehead.errors import ConfigError

ConfigSource = Union[str, "os.PathLike[str]", Mapping[str, Any], "Config"]

PASSWORD_VARIABLE = "WIREHEAD_PASSWORD"
COMPRESSIONS = ("auto", "none", "zlib", "zstd", "lz4")
_MIN_CHUNK_MEGABYTES, _MAX_CHUNK_MEGABYTES = 1e-5, 15  # a document of MongoDB holds 16
_UNNAMEABLE = re.compile(r'[/\\. "$*<>:|?\x00]')


@dataclasses.dataclass(frozen=True)
class Config:
    """A checked configuration. The fields are the keys of ``config.yaml`` in lower case.

    Attributes:
        swap_cap: samples per generation.
        dbname: name of the database, or of the folder of a local store.
        mongohost: host name, address or URI (``mongodb://``, ``mongodb+srv://``) of the server. None: a local store.
        port: the server's port, unless the URI has one.
        sample: names of the kinds of arrays in a sample, in the order in which the generator yields them.
        write_collection: the generations' collections are called ``<write_collection>.<generation>.…``.
        counter_collection: swaps, leases and settings are in ``<counter_collection>.…``.
        read_collection, temp_collection: accepted and unused, since a swap moves nothing.
        chunksize: largest chunk, in MiB.
        compression: "auto": on a server, of each array that it makes clearly smaller, by zstd (or zlib, where
            zstandard is not installed); in a folder none. Or "none", "zlib", "zstd", "lz4" (needs lz4) of all.
        directory: where the folder of a local store is, which is called ``<dbname>.wirehead``. Default:
            ``$XDG_CACHE_HOME/headrace/wirehead``.
        timeout: seconds to keep trying while the server does not answer.
        lease: seconds after which a process that has stopped is considered dead.
    """

    swap_cap: int
    dbname: str
    mongohost: str | None = dataclasses.field(default=None, repr=False)  # it may hold a password
    port: int = 27017
    sample: tuple[str, ...] = ("data", "label")
    write_collection: str = "write"
    read_collection: str = "read"
    counter_collection: str = "counter"
    temp_collection: str = "temp"
    chunksize: float = 10
    compression: str = "auto"
    directory: str | None = None
    timeout: float = 60
    lease: float = 30

    @classmethod
    def load(cls, source: ConfigSource) -> Config:
        """Reads and checks a configuration.

        Args:
            source: path of a YAML file (or a JSON file, ``*.json``), a mapping with these keys, or a Config.

        Raises:
            FileNotFoundError: there is no such file.
            ConfigError: keys are missing, unknown or have a wrong value; the message names all of them.
            ImportError: the file needs PyYAML, which is not installed.
        """
        if isinstance(source, Config):
            return source
        if isinstance(source, Mapping):
            return cls._from_mapping(source, "the configuration")
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no configuration file {path} (in {Path.cwd()})") from None
        keys = _parse(text, path)
        if not isinstance(keys, Mapping):
            raise ConfigError(f"{path} must hold keys and values such as SWAP_CAP: 10, not {type(keys).__name__}")
        return cls._from_mapping(keys, str(path))

    @classmethod
    def _from_mapping(cls, keys: Mapping[Any, Any], where: str) -> Config:
        fields = {field.name.upper(): field for field in dataclasses.fields(cls)}
        problems: list[str] = []
        values: dict[str, Any] = {}
        for key, value in keys.items():
            field = fields.get(str(key))
            if field is None:
                near = difflib.get_close_matches(str(key).upper(), fields, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; valid are {', '.join(fields)}"
                problems.append(f"{key} is unknown{hint}")
            elif value is not None:
                problem, checked = _check(str(key), value)
                if problem:
                    got = "" if field.name == "mongohost" else f", got {value!r}"  # which may hold a password
                    problems.append(f"{key} must be {problem}{got}")
                values[field.name] = checked
        for key, field in fields.items():
            if field.default is dataclasses.MISSING and field.name not in values:
                what = "samples per generation" if key == "SWAP_CAP" else "name of the database"
                problems.append(f"{key} is missing ({what})")
        if values.get("mongohost") is not None and values.get("directory") is not None:
            problems.append("MONGOHOST and DIRECTORY exclude each other: a database, or a local store")
        if problems:
            raise ConfigError(f"{where}: " + "; ".join(problems))
        return cls(**values)

    @property
    def is_local(self) -> bool:
        """Whether the store is a folder on this machine."""
        return self.mongohost is None

    @property
    def compression_of_arrays(self) -> str:
        """What ``compress`` is told: a folder of this machine is faster without."""
        return "none" if self.compression == "auto" and self.is_local else self.compression

    @property
    def local_directory(self) -> Path:
        """The folder of a local store, which holds nothing else."""
        name = f"{self.dbname}.wirehead"
        if self.directory is not None:
            return Path(self.directory).expanduser() / name
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "headrace" / "wirehead" / name

    @property
    def place(self) -> str:
        """The store in words, without credentials."""
        if self.mongohost is None:
            return str(self.local_directory)
        host = re.sub(r"^(mongodb(?:\+srv)?://)?(?:[^@/]*@)?", "", self.mongohost).split("?")[0].rstrip("/")
        host, slash, database = host.partition("/")
        has_port = re.search(r":\d+$", host) or "," in host or self.mongohost.startswith("mongodb+srv")
        return (host if has_port else f"{host}:{self.port}") + slash + database


def _parse(text: str, path: Path) -> Any:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{path} is not valid JSON: {error}") from None
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise ImportError(f"reading {path} needs PyYAML: pip install 'headrace[wirehead]'") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None


def _check(key: str, value: Any) -> tuple[str, Any]:
    """What is wrong with a value ("" if nothing), in words that follow "must be"; and the value as it is kept."""
    if key in ("SWAP_CAP", "PORT"):
        if not isinstance(value, int) or isinstance(value, bool):
            return "a whole number", value
        if key == "PORT" and not 0 < value < 65536:
            return "from 1 to 65535", value
        return ("at least 1" if value < 1 else ""), value
    if key in ("CHUNKSIZE", "TIMEOUT", "LEASE"):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            return ("a number of MiB above 0" if key == "CHUNKSIZE" else "a number of seconds above 0"), value
        if key == "CHUNKSIZE" and value < _MIN_CHUNK_MEGABYTES:
            return f"at least {_MIN_CHUNK_MEGABYTES:f} MiB", value
        if key == "CHUNKSIZE" and value > _MAX_CHUNK_MEGABYTES:
            return f"at most {_MAX_CHUNK_MEGABYTES} MiB, because a document of MongoDB holds 16", value
        return "", value
    if key == "SAMPLE":
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(n, str) and n for n in value):
            return 'a list of names, such as ["data", "label"]', value
        return ("a list of different names" if len(set(value)) < len(value) else ""), tuple(value)
    if not isinstance(value, str) or not value:
        return "a text", value
    if key == "COMPRESSION" and value not in COMPRESSIONS:
        return f"one of {', '.join(COMPRESSIONS)}", value
    if key == "MONGOHOST" and "@" in value and not value.startswith(("mongodb://", "mongodb+srv://")):
        return "mongodb://user@host where it names a user (the password comes from WIREHEAD_PASSWORD)", value
    if key == "DBNAME" and _UNNAMEABLE.search(value):
        return 'a name without spaces and any of / \\ . " $ * < > : | ?', value
    if key.endswith("_COLLECTION") and ("$" in value or "\0" in value or value.startswith("system.")):
        return "a collection's name, without $ and not beginning with system.", value
    return "", value
