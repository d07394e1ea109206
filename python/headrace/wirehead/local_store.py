"""The store in a folder of this machine, on disk or in shared memory (``/dev/shm``)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import mmap
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.wirehead.config import Config
from headrace.wirehead.errors import StoreError
from headrace.wirehead.store import Document, key

_numbers = itertools.count()


class LocalStore:
    """See :class:`headrace.wirehead.store.Store`.

    A table is a folder, a document a JSON file, a chunk a file. Each file is written under a name of its writer's own
    and then linked (``insert``) or renamed (``replace``) to its final name, so that nobody sees half of one; linking
    fails if the name is taken, which makes it atomic. Files are written, not mapped, by their writer: a full disk is
    then an error and not a signal. Readers map them, and a map stays valid when the file is removed.

    What was written survives the death of any process, but not a crash of the machine: nothing is flushed to the disk.
    """

    parallel = 1  # files are written and mapped, which waits for nobody

    def __init__(self, config: Config) -> None:
        self.config = config
        self._root = config.local_directory
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the folder {self._root} (DIRECTORY) cannot be made: {error.strerror}") from None

    def insert(self, table: str, key: str, document: Mapping[str, Any]) -> bool:
        with self._new_file(table, json.dumps(document).encode()) as path:
            try:
                os.link(path, self._root / table / key)
            except FileExistsError:
                return False
        return True

    def find(self, table: str, key: str) -> Document | None:
        try:
            document: Any = json.loads((self._root / table / key).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:  # the machine has crashed: whatever is damaged is missing
            document = None
        return document if isinstance(document, dict) else {}

    def scan(self, table: str) -> dict[str, Document]:
        found = ((key, self.find(table, key)) for key in _names(self._root / table))
        return {key: document for key, document in found if document is not None}

    def replace(self, table: str, key: str, document: Mapping[str, Any]) -> None:
        with self._new_file(table, json.dumps({**document, "time": self.now()}).encode()) as path:
            os.replace(path, self._root / table / key)

    def remove(self, table: str, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._root / table / key)

    def now(self) -> float:
        return time.time()

    def write_chunks(self, generation: int, chunks: Mapping[str, bytes | memoryview]) -> None:
        table = _chunks_table(generation)
        for name, data in chunks.items():
            with self._new_file(table, data) as path:
                os.replace(path, self._root / table / name)

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        return (self._read_chunk(generation, name) for name in names)

    def _read_chunk(self, generation: int, name: str) -> memoryview | None:
        try:
            file = os.open(self._root / _chunks_table(generation) / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if os.fstat(file).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(file, 0, prot=mmap.PROT_READ))
        finally:
            os.close(file)

    def missing_chunks(self, generation: int, lengths: Mapping[str, int]) -> list[str]:
        folder = self._root / _chunks_table(generation)
        return [name for name, length in lengths.items() if _size(folder / name) != length]

    def repair(self, generation: int) -> None:
        pass

    def remove_chunk(self, generation: int, name: str) -> bool:
        try:
            os.unlink(self._root / _chunks_table(generation) / name)
        except FileNotFoundError:
            return False
        return True

    def remove_sample(self, generation: int, writer: str, number: int) -> int:
        names = [
            name
            for name in _names(self._root / _chunks_table(generation))
            if name.partition("-")[2].rpartition("-")[0] == f"{writer}-{number}"
        ]
        return sum(self.remove_chunk(generation, name) for name in names)

    def generations(self) -> list[int]:
        return sorted({int(name.split(".")[0]) for name in _names(self._root) if name[0].isdigit()})

    def drop(self, generation: int) -> None:
        for table in _names(self._root):
            if table.startswith(f"{key(generation)}."):
                shutil.rmtree(self._root / table, ignore_errors=True)

    def clean(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def close(self) -> None:
        pass

    @contextlib.contextmanager
    def _new_file(self, table: str, data: bytes | memoryview) -> Iterator[Path]:
        """A file with these contents under a name that nobody else uses; removed at the end."""
        folder = self._root / table
        path = folder / f".{os.getpid()}-{next(_numbers)}"
        try:
            for attempt in itertools.count():
                try:
                    with open(path, "wb", buffering=0) as file:
                        view = memoryview(data)
                        while len(view) > 0:
                            view = view[file.write(view) :]
                    break
                except FileNotFoundError:
                    if attempt == 3:
                        raise
                    folder.mkdir(parents=True, exist_ok=True)
            yield path
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StoreError(
                    f"{self._root} cannot hold more: {error.strerror}. "
                    "Make room, or lower SWAP_CAP: up to three generations are stored"
                ) from None
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StoreError(f"{self._root} cannot be written to: {error.strerror}") from None
            raise
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _chunks_table(generation: int) -> str:
    return f"{key(generation)}.chunks"


def _names(folder: Path) -> list[str]:
    """Of what is in a folder, without the files that are being written."""
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except FileNotFoundError:
        return []
