"""The store in a folder of this machine, on disk or in shared memory (``/dev/shm``)."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import mmap
import os
import re
import shlex
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.wirehead._stores.store import FAREWELL, SETTINGS, TABLES, Document, key
from headrace.wirehead.config import Config
from headrace.wirehead.errors import CacheGoneError, StoreError

Method = TypeVar("Method", bound=Callable[..., Any])

# The file that marks a folder as a cache: nothing is stored in, read from or removed from a folder without it.
_MARK = "headrace-wirehead-cache"
# At a folder that has been renamed: what other processes have begun to store may arrive in it still.
_ATTEMPTS = 10
_TABLE = re.compile(
    # Without an incarnation: the settings, and tables of format 2.
    rf"(?:([0-9a-f]{{16}})\.)?(?:(\d{{12}})\.(?:chunks|samples\.\d+)|{'|'.join(TABLES)})"
)
# Of several machines, whose clocks differ and whose caches show each other's files late. Not 9p: it is the root of some
# containers (gVisor), or a folder of the host of a virtual machine (WSL), and so of one machine.
_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|lustre|gpfs|ceph|beegfs|fhgfs|afs|panfs|pvfs2|wekafs|ocfs2|gfs2"
    r"|fuse\.(?:sshfs|gluster.*|ceph.*|juicefs|gcsfuse|rclone|.*s3.*)"
)
_FORBIDDEN = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP))


def _reported(method: Method) -> Method:
    """An operation of the store, which may be repeated. Its ``OSError`` is a :class:`StoreError`."""

    @functools.wraps(method)
    def report(self: LocalStore, *args: Any, **keywords: Any) -> Any:
        attempt = 0
        while True:
            try:
                return method(self, *args, **keywords)
            except FileNotFoundError as error:  # tables come and go
                if attempt == 3:
                    raise self._error(error) from error
                time.sleep(0.01 * 4**attempt)  # if another process cleans it, it disappears soon
                attempt += 1
            except OSError as error:
                raise self._error(error) from error

    return report  # type: ignore[return-value]


class LocalStore:
    """See :class:`headrace.wirehead._stores.store.Store`.

    A table is a folder, a document a JSON file, a chunk a file. Each file is written under a name that no other process
    uses, in any container, and then linked (``insert``) or renamed (``replace``) to its final name, so
    that no process sees half of one; linking fails if the name is taken, which makes it atomic. A listing of a folder
    may miss a name that is renamed meanwhile; so replaced files lie next to their name, which stays. Files are written,
    not mapped, by their writer: a full disk is then an error and not a signal. Readers map them, and a map stays valid
    when the file is removed.

    All of it is in one folder, which only its owner can enter. It is marked as a cache before anything else is stored
    there; foreign files in that folder are neither read nor removed. Its subfolders are its own, with all in them.
    Nothing is stored in another folder that has taken its place, such as a backup.

    Written data survives the death of any process, but not a crash of the machine: nothing is flushed to the disk.

    Args:
        config: where the folder is.
        create: create it if it does not exist. Otherwise, a missing cache counts as empty.

    Raises:
        StoreError: the folder is another user's, others can write to it, it is on a network file system, it holds
            something else than a cache, or it cannot be made.
    """

    parallel = 1  # files are written and mapped, which waits for no other process

    def __init__(self, config: Config, create: bool = True) -> None:
        self.config = config
        self._root = config.local_directory
        self.ends = math.inf
        self._incarnation: str | None = None
        self._folder: tuple[int, ...] | None = None  # which one it was when the incarnation was found
        try:
            os.fsencode(self._root)
        except UnicodeEncodeError as error:
            raise StoreError(
                f"the folder {self._root} has a name that this process cannot write in its encoding, {error.encoding}: "
                "set PYTHONUTF8=1 in its environment, or use another DIRECTORY or DBNAME"
            ) from None
        try:
            if create:
                self._make_root()
            elif os.path.lexists(self._root):
                with contextlib.suppress(FileNotFoundError):  # it was cleaned just now
                    self._check_root()
        except OSError as error:
            raise self._cannot_be_created(error) from None

    def use(self, incarnation: str | None) -> None:
        self._incarnation = incarnation
        self._folder = None if incarnation is None else self._identity()

    @_reported
    def incarnations(self) -> list[str]:
        return sorted({match[1] for match in self._tables() if match[1]})

    @_reported
    def drop_incarnation(self, incarnation: str) -> None:
        for match in self._tables():
            if match[1] == incarnation:
                _remove_table(self._root / match[0])

    @_reported
    def insert(self, table: str, key: str, document: Mapping[str, Any]) -> bool:
        folder = self._table(table)
        with self._new_file(folder, json.dumps(document).encode()) as path:
            try:
                os.link(path, folder / key)
            except FileExistsError:
                return False
        return True

    @_reported
    def find(self, table: str, key: str) -> Document | None:
        return _document(self._table(table), key)

    @_reported
    def scan(self, table: str) -> dict[str, Document]:
        folder = self._table(table)
        found = ((key, _document(folder, key)) for key in _names(folder))
        return {key: document for key, document in found if document is not None}

    @_reported
    def replace(self, table: str, key: str, document: Mapping[str, Any]) -> None:
        folder = self._table(table)
        with self._new_file(folder, json.dumps({**document, "time": self.now()}).encode()) as path:
            with contextlib.suppress(FileExistsError):
                os.link(path, folder / key)
            os.replace(path, folder / _replaced(key))

    @_reported
    def remove(self, table: str, key: str) -> None:
        for name in (key, _replaced(key)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._table(table) / name)

    def now(self) -> float:
        return time.time()

    @_reported
    def write_chunks(self, generation: int, chunks: Mapping[str, bytes | memoryview]) -> None:
        folder = self._chunks(generation)
        for name, data in chunks.items():
            with self._new_file(folder, data) as path:
                os.replace(path, folder / name)

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        return (self._read_chunk(generation, name) for name in names)

    @_reported
    def _read_chunk(self, generation: int, name: str) -> memoryview | None:
        try:
            file = os.open(self._chunks(generation) / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            if os.fstat(file).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ))
        finally:
            os.close(file)

    @_reported
    def missing_chunks(self, generation: int, lengths: Mapping[str, int]) -> list[str]:
        folder = self._chunks(generation)
        return [name for name, length in lengths.items() if _size(folder / name) != length]

    @_reported
    def generations(self) -> list[int]:
        return sorted({int(match[2]) for match in self._tables() if match[2] and match[1] == self._incarnation})

    @_reported
    def drop(self, generation: int) -> None:
        for match in self._tables():
            if match[2] == key(generation) and match[1] == self._incarnation:
                _remove_table(self._root / match[0])

    def _tables(self) -> list[re.Match[str]]:
        """Of all incarnations: incarnation, and generation if it is a table of samples or chunks."""
        return [match for match in map(_TABLE.fullmatch, _names(self._root)) if match is not None]

    def _table(self, table: str) -> Path:
        return self._root / (table if table == SETTINGS else f"{self._incarnation or 'none'}.{table}")

    def _chunks(self, generation: int) -> Path:
        return self._table(f"{key(generation)}.chunks")

    @_reported
    def clean(self) -> list[str]:
        root = self._root
        left = [aside / name for aside in self._asides() for name in self._remove(aside)]
        if os.path.lexists(root):
            self._check_root()
            if _are_remains(os.listdir(root)):
                self._mark()
            if (root / _MARK).exists():
                left += self._clean_root()
        return list(map(str, left))

    def _clean_root(self) -> list[Path]:
        """What is left there that is not the cache's."""
        root = self._root
        tables = [match[0] for match in self._tables() if match[0] != SETTINGS]  # of caches that are gone, after this
        for table in (SETTINGS, *tables):
            _remove_table(root / table)
        foreign = [name for name in sorted(os.listdir(root)) if name != _MARK and not _TABLE.fullmatch(name)]
        if not foreign and not (root / SETTINGS).exists():  # no process has created the next cache yet
            # Who stores something at this moment finds no folder, instead of one that is half removed.
            aside = self._aside()
            os.rename(root, aside)
            foreign = self._remove(aside)
            if foreign:
                try:
                    os.rename(aside, root)
                except OSError:  # another process has created the next cache by now
                    root = aside
        return [root / name for name in foreign]

    @staticmethod
    def _remove(folder: Path) -> list[str]:
        """Removes a folder that no process knows as a cache's, or not any more, unless there is something in it that is
        not a cache's, which is returned.
        """
        with contextlib.suppress(FileNotFoundError):  # another one removes it, too
            for _ in range(_ATTEMPTS):
                for table in filter(_TABLE.fullmatch, os.listdir(folder)):
                    _remove_table(folder / table)
                kept = sorted(name for name in os.listdir(folder) if name != _MARK)
                if not kept:
                    os.unlink(folder / _MARK)
                    try:
                        os.rmdir(folder)
                        break
                    except OSError:
                        _make_mark(folder)
            return kept
        return []

    def begin_close(self) -> None:
        self.ends = min(self.ends, time.monotonic() + FAREWELL)

    def close(self) -> None:
        pass

    def _is_gone(self) -> bool:
        """Whether the cache that is used was cleaned, or another folder has taken its place, such as a backup."""
        if self._incarnation is None:
            return False
        found = self._identity()
        return found is None or found != self._folder

    def _identity(self) -> tuple[int, ...] | None:
        """Which folder is there; None if it is no cache."""
        try:
            root, mark = os.stat(self._root), os.stat(self._root / _MARK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return root.st_dev, root.st_ino, mark.st_ino

    def _make_root(self) -> None:
        self._root.parent.mkdir(parents=True, exist_ok=True)
        self._refuse_network(self._root.parent)
        while True:
            if not os.path.lexists(self._root):
                # With its mark from the first moment on: who has not heard of a `clean` may store something there.
                made = self._aside()
                os.mkdir(made, 0o700)
                _make_mark(made)
                try:
                    os.rename(made, self._root)
                except OSError:  # another process has created it
                    self._remove(made)
            with contextlib.suppress(FileNotFoundError):  # another process has cleaned it
                return self._check_root(marks=True)

    def _aside(self) -> Path:
        """A name that no other process uses, next to the folder."""
        return self._root.with_name(f".{self._root.name}.{uuid.uuid4().hex}")

    def _asides(self) -> list[Path]:
        """The folders that processes which were killed have left under such names."""
        pattern = re.compile(re.escape(f".{self._root.name}.") + "[0-9a-f]{32}")
        try:
            found = [self._root.with_name(name) for name in os.listdir(self._root.parent) if pattern.fullmatch(name)]
        except OSError:  # there is no such folder, or it must not be listed
            return []
        return [path for path in found if _is_own_folder(path) and (path / _MARK).exists()]

    def _check_root(self, marks: bool = False) -> None:
        """Raises StoreError if the folder is not one to use; an empty one is marked if it ``marks``."""
        found = os.lstat(self._root)
        if not stat.S_ISDIR(found.st_mode):
            what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a folder"
            raise StoreError(f"{self._root} is {what}: use another DIRECTORY or DBNAME")
        if found.st_uid != os.geteuid():
            raise StoreError(
                f"{self._root} belongs to another user (number {found.st_uid}), who could change its contents: "
                "use another DIRECTORY or DBNAME"
            )
        self._refuse_network(self._root)
        if (self._root / _MARK).exists():
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise StoreError(
                    f"{self._root} has mode {stat.S_IMODE(found.st_mode):04o}, so that other users could change its "
                    f"contents: chmod 700 {shlex.quote(str(self._root))} if you trust what is there, or use another "
                    "DIRECTORY or DBNAME"
                )
            return
        found_there = os.listdir(self._root)
        if _MARK in found_there:  # others are making it
            return
        if found_there and not _are_remains(found_there):
            raise StoreError(
                f"{self._root} is not a cache of headrace.wirehead (it has no file {_MARK}): use another DIRECTORY or "
                "DBNAME. Nothing in it was changed"
            )
        if marks:
            if SETTINGS in found_there:  # or the next cache would continue with what is left of that one
                raise StoreError(f"{self._root} is a cache that was deleted in part: first {self.config.clean_command}")
            self._mark()

    def _mark(self) -> None:
        os.chmod(self._root, 0o700)  # an empty folder of the user's, who may have made it for all to write to
        _make_mark(self._root)

    def _refuse_network(self, folder: Path) -> None:
        kind = _file_system(folder)
        if _NETWORK_FILE_SYSTEMS.fullmatch(kind):
            raise StoreError(
                f"{self._root} is on a network file system ({kind}), where machines see each other's files late and "
                "have different clocks: use a DIRECTORY on a disk of this machine, or a database (MONGOHOST) for "
                "several"
            )

    def _make_table(self, folder: Path) -> None:
        if self._is_gone():
            raise CacheGoneError(self.config.cache)
        if self._incarnation is None:  # it is being made, and others may clean it meanwhile
            self._make_root()
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)

    @contextlib.contextmanager
    def _new_file(self, folder: Path, data: bytes | memoryview) -> Iterator[Path]:
        """A file with these contents under a unique name; removed at the end."""
        path = folder / f".{uuid.uuid4().hex}"
        if self._is_gone():  # nothing is stored in a folder that holds something else than this process believes
            raise CacheGoneError(self.config.cache)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            try:
                file = os.open(path, flags, 0o600)
            except FileNotFoundError:
                self._make_table(folder)
                file = os.open(path, flags, 0o600)
            try:
                view = memoryview(data)
                while len(view) > 0:
                    view = view[os.write(file, view) :]
            finally:
                os.close(file)
            yield path
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _cannot_be_created(self, error: OSError) -> StoreError:
        return StoreError(
            f"the folder {self._root} cannot be created: {error.strerror}: use another DIRECTORY, or make "
            f"{self._root.parent} a folder that you can write to"
        )

    def _error(self, error: OSError) -> StoreError:
        if error.errno == errno.ENOTDIR and not self._root.parent.is_dir():
            return self._cannot_be_created(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return StoreError(
                f"{self._root} cannot hold more: {error.strerror}. "
                "Make room, or lower SWAP_CAP: up to three generations are stored"
            )
        if error.errno in _FORBIDDEN:
            return StoreError(
                f"{self._root} cannot be used: {error.strerror}: use a DIRECTORY that you can write to, on a file "
                "system that has hard links"
            )
        return StoreError(f"{self._root} failed: {error}")


def _make_mark(folder: Path) -> None:
    """Where there is none."""
    os.close(os.open(folder / _MARK, os.O_WRONLY | os.O_CREAT, 0o600))


def _are_remains(names: Sequence[str]) -> bool:
    """Whether a folder without a mark, in which these are, was a cache: ``rm -r`` leaves one where processes go on to
    store something, or where it is interrupted. Nothing else has the names of tables with an incarnation.
    """
    tables = [_TABLE.fullmatch(name) for name in names if name != SETTINGS]
    return bool(tables) and all(table is not None and table[1] for table in tables)


def _is_own_folder(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except OSError:  # another process has removed it meanwhile
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _remove_table(folder: Path) -> None:
    """Removes a folder, except what other processes store there meanwhile, and what is none.

    Raises:
        OSError: it may not be removed.
    """

    def report(function: object, path: str, error: Any) -> None:
        if getattr(error[1], "errno", None) in _FORBIDDEN:
            raise error[1]

    shutil.rmtree(folder, onerror=report)


def _file_system(folder: Path) -> str:
    """The type of the file system that a folder is on, as ``/proc/self/mountinfo`` names it; "" if that is unknown."""
    real, kind, longest = os.path.realpath(folder), "", -1
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            mount, _, source = line.partition(" - ")
            point = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), mount.split()[4])
            if len(point) >= longest and (real + "/").startswith(point.rstrip("/") + "/"):
                kind, longest = source.split()[0], len(point)
    return kind


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _replaced(key: str) -> str:
    """The unlisted file with the replacement of a document."""
    return f".{key}.now"


def _document(folder: Path, key: str) -> Document | None:
    for name in (_replaced(key), key):
        try:
            stored = (folder / name).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            continue
        try:
            document: Any = json.loads(stored)
        except ValueError:  # the machine has crashed: whatever is damaged is missing
            document = None
        return document if isinstance(document, dict) else {}
    return None


def _names(folder: Path) -> list[str]:
    """The names in a folder, without the files that are being written."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except FileNotFoundError:
        return []
