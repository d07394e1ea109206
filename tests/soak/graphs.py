"""Graphs of Python objects that refer to each other, and edits of them: what a dataset may look like from inside.

Two graphs that were made with the same random numbers, and edited with the same, look the same.
"""

from __future__ import annotations

import array
import collections
import copy
import functools
import hashlib
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Compared by identity, as ``x is MISSING``.
MISSING = object()

_LARGE = 20_000  # numbers in an array of which a loader sees changes in place only after refresh()
_LINKS = 300  # a chain too long for a walk that recurses
_ATTRIBUTES = "abcdef"


class Box:
    """An object with attributes."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Slots:
    """An object without ``__dict__``."""

    __slots__ = ("other", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.other = None


class Shy:
    """Looking for an attribute that it does not have raises something odd."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise LookupError(f"no {name} here")


class Link:
    """One of a long chain."""

    def __init__(self, value: Any, following: Link | None) -> None:
        self.value = value
        self.following = following

    def __reduce__(self) -> tuple[Any, ...]:
        return _chain, (_chain_values(self),)


class Pair(NamedTuple):
    first: Any
    second: Any


class OwnDict(dict[str, Any]):
    pass


class OwnList(list[Any]):
    pass


class ManyParts(list[Any]):
    """So many objects that nobody wants to look at all of them."""


def _chain(values: list[Any]) -> Link:
    link = None
    for value in reversed(values):
        link = Link(value, link)
    assert link is not None
    return link


def _chain_values(link: Link | None) -> list[Any]:
    values = []
    while link is not None:
        values.append(link.value)
        link = link.following
    return values


def _closure(value: Any) -> Callable[[], Any]:
    def get() -> Any:
        return value

    return get


def scaled(number: Any, by: Any = 1) -> Any:
    return number * by


_MAKERS: dict[str, Callable[[int], Any]] = {
    "box": Box,
    "slots": Slots,
    "shy": Shy,
    "dict": lambda number: {"k0": number},
    "own dict": lambda number: OwnDict(k0=number),
    "OrderedDict": lambda number: collections.OrderedDict(k0=number, k1=-number),
    "defaultdict": lambda number: collections.defaultdict(list, k0=number),
    "Counter": lambda number: collections.Counter(k0=number),
    "UserDict": lambda number: collections.UserDict(k0=number),
    "list": lambda number: [number],
    "own list": lambda number: OwnList([number]),
    "deque": lambda number: collections.deque([number], maxlen=4),
    "set": lambda number: {number},
    "bytearray": lambda number: bytearray([number]),
    "array": lambda number: array.array("i", [number]),
    "ndarray": lambda number: np.array([number, 7], np.int32),
    "large ndarray": lambda number: np.full(_LARGE, number),
    "tuple": lambda number: ([number], number),
    "pair": lambda number: Pair(Box(number), number),
    "partial": lambda number: functools.partial(scaled, by=number),
    "closure": _closure,
    "chain": lambda number: _chain([number] * _LINKS),
    "many parts": lambda number: ManyParts([(number, [part]) for part in range(11_000)]),
}
# What changes in it are not promised to be seen without refresh().
_UNSEEN = (np.ndarray, ManyParts)


class Walk:
    """A look at everything that an object refers to.

    Attributes:
        text: equal for two graphs if a program cannot tell them apart, in values, types, order, or in what is the same
            object.
        nodes: all that can change, in an order that depends on the text alone.
    """

    def __init__(self, root: Any) -> None:
        self.nodes: list[Any] = []
        self._numbers: dict[int, int] = {}
        self.text = self._look(root)

    def _look(self, value: Any) -> str:
        if value is MISSING:
            return "MISSING"
        if value is None or isinstance(value, (bool, int, float, str, bytes, type)):
            return repr(value)
        if isinstance(value, np.generic):
            return f"{value.dtype}({value})"
        name = type(value).__name__
        if isinstance(value, tuple):
            return f"{name}({', '.join(map(self._look, value))})"
        number = self._numbers.get(id(value))
        if number is not None:
            return f"#{number}"
        self._numbers[id(value)] = len(self.nodes)
        name = f"{name}#{len(self.nodes)}"
        self.nodes.append(value)
        return name + self._content(value)

    def _content(self, value: Any) -> str:
        if isinstance(value, np.ndarray):
            return f"{value.dtype}{value.shape}{_numbers_of(value)}"
        if isinstance(value, (bytearray, array.array)):
            return str(list(value))
        if isinstance(value, set):
            return str(sorted(value))
        if isinstance(value, ManyParts):
            return f"({len(value)} parts, {value[0]}, {value[-1]})"
        if isinstance(value, Link):
            values = _chain_values(value)
            return f"({len(values)} links, {self._look(values[0])}, {self._look(values[-1])})"
        if isinstance(value, functools.partial):
            return f"({value.func.__name__}{self._look(value.args)}{self._look(value.keywords)})"
        if callable(value) and hasattr(value, "__closure__"):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return f"({', '.join(map(self._look, cells))})"
        if isinstance(value, dict):
            own = "{" + ", ".join(f"{key}: {self._look(inner)}" for key, inner in value.items()) + "}"
        elif isinstance(value, (list, collections.deque)):
            own = "[" + ", ".join(map(self._look, value)) + "]"
        else:
            own = ""
        return own + "".join(f".{key}={self._look(inner)}" for key, inner in sorted(attributes(value).items()))


def _numbers_of(value: np.ndarray) -> str:
    return str(value.tolist()) if value.size < 10 else hashlib.blake2b(value.tobytes(), digest_size=6).hexdigest()


def attributes(value: Any) -> dict[str, Any]:
    slots = getattr(type(value), "__slots__", ())
    return dict(getattr(value, "__dict__", {})) or {
        name: getattr(value, name) for name in slots if hasattr(value, name)
    }


class Graph:
    """Map-style: each sample tells its index, and what the whole dataset looks like from inside."""

    def __init__(self, chance: random.Random, length: int, kinds: list[str]) -> None:
        self.length = length
        nodes = [_MAKERS[kind](chance.randrange(100)) for kind in kinds]
        for name in _ATTRIBUTES[: chance.randrange(2, len(_ATTRIBUTES) + 1)]:
            setattr(self, name, chance.choice(nodes))
        for node in nodes[: chance.randrange(3)]:
            if not isinstance(node, tuple):
                _change(node, chance, nodes)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "view": Walk(self).text}


class Collate:
    """A ``collate_fn`` with parts of its own, some of which are the dataset's."""

    def __init__(self, chance: random.Random, dataset: Any) -> None:
        self.own = Box(chance.randrange(100))
        self.shared = chance.choice([part for name, part in attributes(dataset).items() if name != "length"])

    def __call__(self, samples: list[Any]) -> Any:
        return {"samples": Walk(samples).text, "view": Walk(self).text}


def kinds_of_nodes(chance: random.Random, pickles: bool, rare: bool) -> list[str]:
    """What a graph is made of.

    Args:
        pickles: only of what can be copied.
        rare: also of what takes long.
    """
    names = [name for name in _MAKERS if not (pickles and name == "closure") and (rare or name != "many parts")]
    return [chance.choice(names) for _ in range(chance.randrange(2, 6))]


# How a graph is edited: "change" an object in place; let an attribute refer to an object that something else refers to
# ("alias"), to a copy of what it refers to, or to a "new" object; "swap" two attributes; "delete" one.
EDITS = ("change", "change", "change", "alias", "alias", "swap", "copy", "new", "delete")


def edit(root: tuple[Any, Any], seed: int, how: str, refreshed: bool) -> str:
    """Changes something in a graph.

    Args:
        root: the dataset and the ``collate_fn``.
        seed: decides what.
        how: one of ``EDITS``; where it is not possible, something is changed in place.
        refreshed: whether the loader is told, so that it may be a change that it does not look for.

    Returns:
        What was done, in the words of a script.
    """
    chance = random.Random(seed)
    owner = chance.choice([part for part in root if isinstance(part, (Graph, Collate))])
    nodes = [node for node in Walk(root).nodes if not isinstance(node, (Graph, Collate))]
    names = [name for name in attributes(owner) if name != "length"]
    name = chance.choice(names)
    what = f"{type(owner).__name__.lower()}.{name}"
    if how == "alias":
        node = chance.choice(nodes)
        setattr(owner, name, node)
        return f"{what} = {_name_of(node)}, which something else refers to"
    if how == "swap":
        other = chance.choice(names)
        first, second = getattr(owner, name), getattr(owner, other)
        setattr(owner, name, second)
        setattr(owner, other, first)
        return f"{what} and .{other} change places"
    if how == "copy" and not isinstance(getattr(owner, name), (ManyParts, int)):
        setattr(owner, name, copy.copy(getattr(owner, name)))
        return f"{what} = copy.copy({what})"
    if how == "new":
        kind = chance.choice([kind for kind in _MAKERS if kind not in ("closure", "many parts")])
        setattr(owner, name, _MAKERS[kind](chance.randrange(100)))
        return f"{what} = a new {kind}"
    if how == "delete" and len(names) > 1 and isinstance(owner, Graph):
        delattr(owner, name)
        return f"del {what}"
    able = [node for node in nodes if refreshed or not _is_unseen(node)]
    if not able:
        owner.d = chance.randrange(100)
        return f"{type(owner).__name__.lower()}.d = {owner.d}"
    return _change(chance.choice(able), chance, nodes)


def _is_unseen(node: Any) -> bool:
    return isinstance(node, _UNSEEN) and (not isinstance(node, np.ndarray) or node.size > 1000)


def _name_of(node: Any) -> str:
    return f"the {type(node).__name__}"


def _change(node: Any, chance: random.Random, nodes: list[Any]) -> str:
    """Changes an object in place; at times so that it refers to another one."""
    number = chance.randrange(100)
    link = chance.choice(nodes) if chance.random() < 0.3 else number
    key, way = f"k{chance.randrange(3)}", chance.randrange(3)
    value = number if link is number else f"the {type(link).__name__}"
    if isinstance(node, (bytearray, array.array, np.ndarray)):
        node[0] = number
        return f"{_name_of(node)}[0] = {number}"
    if isinstance(node, set):
        node.add(number)
        return f"the set.add({number})"
    if isinstance(node, collections.Counter):
        node[key] += number
        return f"the Counter[{key!r}] += {number}"
    if isinstance(node, collections.OrderedDict) and way == 0 and node:
        node.move_to_end(next(iter(node)))
        return "the first of the OrderedDict moves to the end"
    if isinstance(node, (dict, collections.UserDict)):
        if way == 1 and node:
            node.pop(next(iter(node)))
            return f"{_name_of(node)} loses its first key"
        node[key] = link
        return f"{_name_of(node)}[{key!r}] = {value}"
    if isinstance(node, ManyParts):
        node[0] = (number, [0])
        return f"{_name_of(node)}[0] = {number}"
    if isinstance(node, (list, collections.deque)):
        if way == 0 or not node:
            node.append(link)
            return f"{_name_of(node)}.append({value})"
        if way == 1 and isinstance(node, OwnList):
            node.note = number  # type: ignore[attr-defined]
            return f"{_name_of(node)}.note = {number}"
        node[0] = link
        return f"{_name_of(node)}[0] = {value}"
    if isinstance(node, functools.partial):
        node.keywords["by"] = link
        return f"the partial.keywords['by'] = {value}"
    if isinstance(node, Link):
        while node.following is not None:
            node = node.following
        node.value = number
        return f"the last Link.value = {number}"
    if callable(node) and getattr(node, "__closure__", None):
        node.__closure__[0].cell_contents = link
        return f"the closure's variable = {value}"
    node.value = link
    return f"{_name_of(node)}.value = {value}"
