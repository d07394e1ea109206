"""What is compared: rows, and the contestants of each."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

OURS, PEER, LOOP, LIMIT = "ours", "peer", "loop", "limit"


class LeftOut(Exception):
    """A contestant cannot take part; the message says why."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much to do.

    Attributes:
        folder: where :attr:`Row.prepare` has put the data.
        seconds: of one measurement.
        warm_up: seconds before it.
        short: epochs are short, since they are read to their end, to compare what is delivered.
    """

    folder: Path
    seconds: float = 1.0
    warm_up: float = 0.5
    short: bool = False


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to do the work of a row.

    Attributes:
        kind: OURS, PEER, LOOP (the work without any loader) or LIMIT (what the machine can do at most).
        setting: how it is set up, and why so.
        packages: the distributions whose versions matter.
        measure: returns the figure. It runs in a process of its own, as does ``content``, which returns what is
            delivered, as JSON can hold it; None: nothing to compare.
    """

    name: str
    kind: str
    measure: Callable[[Effort], float]
    content: Callable[[Effort], Any] | None
    setting: str = ""
    packages: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Aim:
    """How many times better than another our figure is to be.

    Attributes:
        against: the name of a contestant, or "best peer".
        ours: the name of our contestant.
    """

    against: str
    at_least: float
    ours: str = "headrace"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the comparison.

    Attributes:
        about: the work, in a sentence or two.
        reference: the name of the contestant that ratios refer to; where it is missing, there are none.
        prepare: makes the data, in a process of its own.
        same: whether two contents agree.
        seconds: how long to measure, in multiples of what was asked for: longer where few batches fit in.
    """

    name: str
    title: str
    about: str
    unit: str
    contestants: tuple[Contestant, ...]
    higher_is_better: bool = True
    reference: str = "torch"
    aims: tuple[Aim, ...] = ()
    prepare: Callable[[Effort], None] | None = None
    same: Callable[[Any, Any], bool] = operator.eq
    seconds: float = 1.0

    def contestant(self, name: str) -> Contestant:
        return next(each for each in self.contestants if each.name == name)


@dataclasses.dataclass(frozen=True)
class Family:
    """Rows that share a table and a plot."""

    name: str
    title: str
    about: str
    rows: tuple[Row, ...]
