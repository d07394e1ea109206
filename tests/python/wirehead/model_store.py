"""The store of the model, whose operations give others the turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.wirehead._stores.store import SETTINGS, SWAPS, Document

if TYPE_CHECKING:
    from protocol_model import World

    from headrace.wirehead.config import Config

Result = TypeVar("Result")


class Memory:
    """A store: see :class:`headrace.wirehead._stores.store.Store`."""

    parallel, ends = 1, math.inf

    def __init__(self, world: World, config: Config | None = None) -> None:
        self._world, self.config = world, config
        self._incarnation: str | None = None
        self._seen = 0  # the number of the state that this process has seen
        self._lags_until = 0.0

    def _write(self, action: Callable[[], Result], repeats: bool = False) -> Result:
        def write() -> Result:
            result = action()
            self._seen = self._world.wrote()
            return result

        return self._world.operation(write, repeats)  # type: ignore[no-any-return]

    def _read(self, table: tuple[str | None, str], action: Callable[[dict[str, Any]], Result]) -> Result:
        def read() -> Result:
            world = self._world
            if not world.lags:
                return action(world.tables.get(table, {}))
            if world.time >= self._lags_until:
                self._lags_until = world.begins_to_lag()
                self._seen = len(world.states) - 1
            return action(world.states[self._seen].get(table, {}))

        return self._world.operation(read)  # type: ignore[no-any-return]

    def use(self, incarnation: str | None) -> None:
        self._incarnation = incarnation

    def incarnations(self) -> list[str]:
        return self._world.operation(lambda: sorted({of for of, _ in self._world.tables if of}))

    def drop_incarnation(self, incarnation: str) -> None:
        for table in [table for table in self._world.tables if table[0] == incarnation]:
            self._write(lambda table=table: self._world.tables.pop(table, None))

    def _key(self, table: str) -> tuple[str | None, str]:
        return (None if table == SETTINGS else self._incarnation, table)

    def insert(self, table: str, key: str, document: Mapping[str, Any]) -> bool:
        at, world, done = self._key(table), self._world, []

        def insert() -> bool:
            stored = world.tables.setdefault(at, {})
            if key in stored:
                return stored[key] == document and bool(done)
            stored[key] = dict(document)
            if table == SWAPS and not done:
                world.decided(at[0], int(key[:12]), document)
            elif ".samples." in table and not done:
                world.described(at[0], int(table[:12]), document)
            done.append(True)
            world.count_generations(at[0])
            return True

        return self._write(insert, repeats=table not in (SETTINGS, SWAPS))

    def find(self, table: str, key: str) -> Document | None:
        def find(stored: dict[str, Any]) -> Document | None:
            self._world.looks()
            return stored.get(key)

        found = self._read(self._key(table), find)
        return None if found is None else dict(found)

    def scan(self, table: str) -> dict[str, Document]:
        return self._read(self._key(table), lambda stored: {key: dict(stored[key]) for key in stored})

    def replace(self, table: str, key: str, document: Mapping[str, Any]) -> None:
        at, world = self._key(table), self._world

        def replace() -> None:
            stored = world.tables.setdefault(at, {})
            if stored.get(key, {}).get("beat", -1) < document.get("beat", 0):
                stored[key] = {**document, "time": world.wall + world.time}

        self._write(replace, repeats=True)

    def remove(self, table: str, key: str) -> None:
        at = self._key(table)
        self._write(lambda: self._world.tables.get(at, {}).pop(key, None), repeats=True)

    def now(self) -> float:
        return self._world.wall + self._world.time

    def write_chunks(self, generation: int, chunks: Mapping[str, Any]) -> None:
        at, world = (self._incarnation, f"{generation:012d}.chunks"), self._world

        def write() -> None:
            world.tables.setdefault(at, {}).update({name: bytes(data) for name, data in chunks.items()})
            world.count_generations(at[0])

        self._write(write)

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        for name in names:
            data = self._read(
                (self._incarnation, f"{generation:012d}.chunks"), lambda stored, name=name: stored.get(name)
            )
            yield None if data is None else memoryview(data)

    def missing_chunks(self, generation: int, lengths: Mapping[str, int]) -> list[str]:
        at = (self._incarnation, f"{generation:012d}.chunks")
        return self._read(at, lambda stored: [name for name in lengths if name not in stored])

    def generations(self) -> list[int]:
        names = self._world.operation(lambda: [n for of, n in self._world.tables if of == self._incarnation])
        return sorted({int(name[:12]) for name in names if name[0].isdigit()})

    def drop(self, generation: int) -> None:
        prefix = f"{generation:012d}."
        for table in [t for t in self._world.tables if t[0] == self._incarnation and t[1].startswith(prefix)]:
            self._write(lambda table=table: self._world.tables.pop(table, None))
        self._world.dropped.add((self._incarnation, generation))

    def clean(self) -> list[str]:
        def remove_settings() -> None:
            for settings in self._world.tables.pop((None, SETTINGS), {}).values():
                self._world.cleaned(settings["incarnation"])

        self._write(remove_settings)
        before = self.incarnations()
        kept = (self.find(SETTINGS, "settings") or {}).get("incarnation")
        for incarnation in before:
            if incarnation != kept:
                self.drop_incarnation(incarnation)
        return []

    def begin_close(self) -> None: ...

    def close(self) -> None: ...
