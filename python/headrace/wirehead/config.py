"""The configuration that generators, manager and datasets share: ``config.yaml``."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import difflib
import importlib
import json
import os
import re
import reprlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from headrace.wirehead.errors import ConfigError

ConfigSource = Union[str, "os.PathLike[str]", Mapping[str, Any], "Config"]

PASSWORD_VARIABLE = "WIREHEAD_PASSWORD"
COMPRESSIONS = ("auto", "none", "zlib", "zstd", "lz4")
_WHOLE_NUMBERS = {"SWAP_CAP": 1_000_000_000, "PORT": 65535}  # and the largest; the least is 1
_MOST_SECONDS = 1_000_000
_NUMBERS = {  # least, largest, unit, why
    "CHUNKSIZE": (1e-5, 15, "MiB", " (a document of MongoDB holds 16)"),
    "TIMEOUT": (0.001, _MOST_SECONDS, "seconds", ""),
    "LEASE": (0.1, _MOST_SECONDS, "seconds", ""),
}
_LONGEST_NAME = 63  # bytes: MongoDB's limit for databases; of a collection's 255, the rest is for what follows
_A_COLLECTION = (
    f"a name of at most {_LONGEST_NAME} bytes that has no $, no dot at an end or after another one, and does not begin "
    'with "system."'
)
_TEXTS = {
    "DBNAME": f'a name of at most {_LONGEST_NAME} bytes, without spaces or any of / \\ . " $ * < > : | ?',
    "MONGOHOST": "a host name, or a URI such as mongodb://user@host:27017/?tls=true",
    "DIRECTORY": "a folder's path",
    **dict.fromkeys((f"{name}_COLLECTION" for name in ("WRITE", "READ", "COUNTER", "TEMP")), _A_COLLECTION),
}
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
        compression: "auto": on a server, compress each array that becomes clearly smaller, with zstd (or zlib, if
            zstandard is not installed); in a folder, do not compress. "none", "zlib", "zstd" or "lz4" (needs lz4): use
            this for every array.
        directory: the parent folder of a local store, which is called ``<dbname>.wirehead``: an absolute path, made so
            from the working directory at the time of :meth:`load`. Default: ``$XDG_CACHE_HOME/headrace/wirehead``.
        timeout: seconds to keep trying while the server does not answer.
        lease: seconds after which a process that has stopped renewing its lease is considered dead.
        source: the file that it was read from, for messages; no key.
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
    source: str = dataclasses.field(default="the configuration", repr=False, compare=False)

    @classmethod
    def load(cls, source: ConfigSource) -> Config:
        """Reads and checks a configuration.

        Args:
            source: path of a YAML file (or a JSON file, ``*.json``), a mapping with these keys, or a Config.

        Raises:
            FileNotFoundError: there is no such file.
            ConfigError: it cannot be read, or keys are missing, unknown or have a wrong value; the message names all of
                them.
            TypeError: ``source`` is none of these.
            ImportError: the file needs PyYAML, which is not installed.
        """
        if isinstance(source, Config):
            return source
        if isinstance(source, Mapping):
            return cls._from_mapping(source, cls.source)
        if not isinstance(source, (str, os.PathLike)):
            raise TypeError(f"a configuration is the path of config.yaml or a mapping with its keys, got {source!r}")
        path = Path(source)
        return cls._from_mapping(_read(path), str(path))

    @classmethod
    def _from_mapping(cls, keys: Mapping[Any, Any], where: str) -> Config:
        problems: list[str] = []
        values: dict[str, Any] = {}
        for key, value in keys.items():
            field = KEYS.get(str(key))
            if field is None:
                near = difflib.get_close_matches(str(key).upper(), KEYS, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; valid are {', '.join(KEYS)}"
                problems.append(f"{key} is unknown{hint}")
            elif value is not None:
                problem, checked = _check(str(key), value)
                if problem:
                    got = "" if field.name == "mongohost" else f", got {_shown(value)}"  # it may hold a password
                    problems.append(f"{key} must be {problem}{got}")
                values[field.name] = checked
        for key, field in KEYS.items():
            if field.default is dataclasses.MISSING and field.name not in values:
                what = "samples per generation" if key == "SWAP_CAP" else "name of the database"
                problems.append(f"{key} is missing ({what})")
        if values.get("mongohost") is not None and values.get("directory") is not None:
            problems.append("MONGOHOST and DIRECTORY exclude each other: a database, or a local store")
        if problems:
            raise ConfigError(f"{where}: " + "; ".join(problems))
        return cls(**values, source=where)

    @property
    def is_local(self) -> bool:
        """Whether the store is a folder on this machine."""
        return self.mongohost is None

    @property
    def compression_of_arrays(self) -> str:
        """The argument for ``compress``: a folder on this machine is faster without compression."""
        return "none" if self.compression == "auto" and self.is_local else self.compression

    @property
    def local_directory(self) -> Path:
        """The folder of a local store, which holds nothing else.

        Raises:
            ConfigError: the default is meant, and this user has no home folder.
        """
        name = f"{self.dbname}.wirehead"
        if self.directory is not None:
            return Path(self.directory) / name
        cache = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(cache):  # then it does not count, by its specification
            try:
                cache = str(Path.home() / ".cache")
            except RuntimeError:
                raise ConfigError(f"{self.source}: this user has no home folder: set DIRECTORY") from None
        return Path(cache) / "headrace" / "wirehead" / name

    @property
    def location(self) -> str:
        """The store in words, without credentials."""
        if self.mongohost is None:
            return str(self.local_directory)
        # Up to the last @: a password may hold what should have been escaped.
        host = re.sub(r"^(mongodb(?:\+srv)?://)?(?:.*@)?", "", self.mongohost).split("?")[0].rstrip("/")
        host, slash, database = host.partition("/")
        has_port = re.search(r":\d+$", host) or "," in host or self.mongohost.startswith("mongodb+srv")
        return (host if has_port else f"{host}:{self.port}") + slash + database

    @property
    def cache(self) -> str:
        """The cache and its store in words, without credentials."""
        return f"{self.dbname} at {self.location}"

    @property
    def clean_command(self) -> str:
        """The command that removes this cache, and no other one, for messages."""
        command = "python -m headrace.wirehead clean --config"
        if self.source == Config.source:
            return f"`{command} FILE`, with the keys of this configuration in FILE"
        return f"`{command} {shlex.quote(self.source)}`"


KEYS = {field.name.upper(): field for field in dataclasses.fields(Config) if field.name != "source"}


def working_directory() -> str:
    """
    Raises:
        ConfigError: it has been removed.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "the working directory of this process has been removed: start it in another one, and name files by their "
            "whole paths"
        ) from None


def _read(path: Path) -> Mapping[Any, Any]:
    """The keys and values of a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no configuration file {path} (in {working_directory()})") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text in UTF-8: byte {error.start} is {error.object[error.start]:#x}: save it as UTF-8"
        ) from None
    except (OSError, ValueError) as error:  # a path with a null character
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{path} cannot be read as a configuration: {reason}; name a file that you may read"
        ) from None
    keys = _parse_json(text, path) if path.suffix == ".json" else _parse_yaml(text, path)
    if not isinstance(keys, Mapping):
        found = "nothing" if keys is None else _shown(keys)
        raise ConfigError(f"{path} must hold keys and values, one to a line, such as SWAP_CAP: 10; it holds {found}")
    return keys


def _parse_json(text: str, path: Path) -> Any:
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path))
    except ConfigError:
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from None


def _parse_yaml(text: str, path: Path) -> Any:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise ImportError(f"reading {path} needs PyYAML: pip install pyyaml") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if isinstance(node, yaml.MappingNode):
            _once([(key.value, None) for key, _ in node.value if isinstance(key, yaml.ScalarNode)], path)
        return yaml.safe_load(text)
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ConfigError(f"{path} is not valid YAML{where}: {problem or ' '.join(str(error).split())}") from None
    except (ValueError, RecursionError) as error:  # a date that does not exist, brackets a thousand deep
        raise ConfigError(f"{path} is not valid YAML: {error}") from None


def _once(pairs: Sequence[tuple[Any, Any]], path: Path) -> dict[Any, Any]:
    """Keys and values, if each key is there once."""
    counts = collections.Counter(key for key, _ in pairs)
    twice = [str(key) for key, count in counts.items() if count > 1]
    if twice:
        raise ConfigError(f"{path} has {', '.join(twice)} more than once: leave all but one out")
    return dict(pairs)


def _check(key: str, value: Any) -> tuple[str, Any]:
    """The problem with a value ("" if none), in words that follow "must be"; and the value as it is kept."""
    if key in _WHOLE_NUMBERS:
        most = _WHOLE_NUMBERS[key]
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return ("" if is_whole and 1 <= value <= most else f"a whole number from 1 to {most}"), value
    if key in _NUMBERS:
        least, most, unit, why = _NUMBERS[key]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_within = is_number and least <= value <= most
        return ("" if is_within else f"a number of {unit} from {_plain(least)} to {_plain(most)}{why}"), value
    if key == "SAMPLE":
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(n, str) and n for n in value):
            return 'a list of names, such as ["data", "label"]', value
        return ("a list of different names" if len(set(value)) < len(value) else ""), tuple(value)
    if key == "COMPRESSION":
        is_one = isinstance(value, str) and value in COMPRESSIONS
        return ("" if is_one else f"one of {', '.join(COMPRESSIONS)}"), value
    what = _TEXTS[key]
    if key == "DIRECTORY" and isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        is_scalar = isinstance(value, (int, float, datetime.date))  # as YAML reads 1, true, 2026-11-25
        return ("text in quotes" if is_scalar else what), value
    is_wrong = not value.strip() or any(not letter.isprintable() for letter in value)
    if key == "MONGOHOST":
        if "@" in value and not value.startswith(("mongodb://", "mongodb+srv://")):
            return "mongodb://user@host if it names a user (the password comes from WIREHEAD_PASSWORD)", value
        is_wrong = is_wrong or " " in value
    elif key == "DIRECTORY":
        if not is_wrong and (expanded := os.path.expanduser(value)).startswith("~"):
            return "a folder's path, with ~ only for users that have a home folder", value
        if not is_wrong:  # the program may change its working directory
            value = os.path.normpath(
                expanded if os.path.isabs(expanded) else os.path.join(working_directory(), expanded)
            )
    elif key == "DBNAME":
        is_wrong = is_wrong or bool(_UNNAMEABLE.search(value)) or len(value.encode()) > _LONGEST_NAME
    else:  # a prefix of collections
        is_wrong = is_wrong or "$" in value or value.startswith("system.") or "" in value.split(".")
        is_wrong = is_wrong or len(value.encode()) > _LONGEST_NAME
    return (what if is_wrong else ""), value


def _shown(value: Any) -> str:
    """A value in a message."""
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes down no integers of more than 4300 digits
        return "a number of thousands of digits"


def _plain(number: float) -> str:
    """Without an exponent."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


def at_least(least: float, most: float | None = None) -> Callable[[str], Any]:
    """A parser for the number of a command line option: a whole number if ``least`` is one.

    Args:
        least, most: what it may be. Default of ``most``: what Python can count, or the seconds that it can wait.
    """
    if most is None:
        most = sys.maxsize if isinstance(least, int) else _MOST_SECONDS

    def read(text: str) -> Any:
        number = type(least)(text)
        if not least <= number < float("inf"):
            raise ValueError
        if number > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, got {text}")
        return number

    read.__name__ = (
        f"{'whole number' if isinstance(least, int) else 'number'} (at least {least:g})"  # argparse shows it
    )
    return read
