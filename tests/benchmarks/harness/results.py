"""Runs rows, and keeps what came out."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.contest import LOOP, OURS, PEER, Aim, Contestant, Effort, LeftOut, Row
from harness.processes import COMPARE, MEASURE, PREPARE, Failed, ask


@dataclasses.dataclass
class Result:
    """What came out of a row.

    Attributes:
        figures: of each contestant, one per round.
        left_out: who did not take part, and why.
        wrong: who has failed, or delivered something else than the others.
        load: of the machine, before it began.
        real_time: it ran with real-time priority, from beginning to end.
    """

    row: str
    date: str
    rounds: int
    seconds: float
    real_time: bool
    load: float
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    figures: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    wrong: dict[str, str] = dataclasses.field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.figures[name])

    def ratio(self, row: Row, name: str, other: str) -> float | None:
        """How many times better one is than another: the median of the rounds' ratios."""
        if name not in self.figures or other not in self.figures:
            return None
        pairs = zip(self.figures[name], self.figures[other])
        return statistics.median(a / b if row.higher_is_better else b / a for a, b in pairs)

    def best_peer(self, row: Row) -> str | None:
        peers = [each.name for each in row.contestants if each.kind == PEER and each.name in self.figures]
        choose = max if row.higher_is_better else min
        return choose(peers, key=self.median) if peers else None

    def reached(self, row: Row, aim: Aim) -> float | None:
        """How many times better than the other ours is; None: one of them is missing."""
        other = self.best_peer(row) if aim.against == "best peer" else aim.against
        return None if other is None else self.ratio(row, aim.ours, other)


def has_real_time() -> bool:
    """Whether this process, and so those that it starts, run before the others."""
    return os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)


class Contest:
    """Runs a row.

    Args:
        only: the names of those who take part; empty: all.
        say: is told what happens, line by line.
    """

    def __init__(
        self,
        row: Row,
        python: str,
        effort: Effort,
        rounds: int,
        only: Sequence[str] = (),
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    ) -> None:
        self._row, self._python, self._say = row, python, say
        self._effort = dataclasses.replace(effort, seconds=effort.seconds * row.seconds)
        self._field = [each for each in row.contestants if not only or each.name in only]
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        self._result = Result(row.name, date, rounds, self._effort.seconds, has_real_time(), os.getloadavg()[0])

    def run(self) -> Result:
        """In each round all take turns, another first each time. The first also compares what they deliver."""
        row, result = self._row, self._result
        self._effort.folder.mkdir(parents=True)
        try:
            if row.prepare is not None:
                self._say(f"{row.name}: making the data")
                ask(self._python, row, "", PREPARE, self._effort)
            contents = {}
            for number in range(result.rounds):
                turn = number % max(1, len(self._field))
                for each in self._field[turn:] + self._field[:turn]:
                    if number == 0:
                        answer = self._ask(each, COMPARE)
                        if answer is not None:
                            result.versions.update(answer["versions"])
                            contents[each.name] = answer["content"]
                            self._note(each, number, answer["figure"])
                    elif each.name in result.figures:
                        self._note(each, number, self._ask(each, MEASURE))
                if number == 0:
                    self._compare(contents)
        except (LeftOut, Failed) as error:  # of the data
            result.left_out["everybody"] = str(error)
            self._say(f"{row.name} is left out: {error}")
        finally:
            shutil.rmtree(self._effort.folder, ignore_errors=True)
        result.real_time = result.real_time and has_real_time()  # another program may have taken it away
        result.figures = {e.name: result.figures[e.name] for e in self._field if e.name in result.figures}
        return result

    def _ask(self, each: Contestant, what: str) -> Any:
        """None: it takes part no longer."""
        try:
            return ask(self._python, self._row, each.name, what, self._effort)
        except LeftOut as error:
            self._drop(each.name, self._result.left_out, str(error), "is left out")
        except Failed as error:
            self._drop(each.name, self._result.wrong, str(error), "has failed")
        return None

    def _note(self, each: Contestant, number: int, figure: float | None) -> None:
        if figure is not None:
            self._result.figures.setdefault(each.name, []).append(figure)
            where = f"{self._row.name}: round {number + 1} of {self._result.rounds}"
            self._say(f"{where}: {each.name}: {figure:,.1f} {self._row.unit}")

    def _compare(self, contents: dict[str, Any]) -> None:
        """With what the plain loop delivers, or else ours, or else the first."""
        order = {LOOP: 0, OURS: 1}
        found = [each for each in self._field if contents.get(each.name) is not None]
        found.sort(key=lambda each: order.get(each.kind, 2))
        for each in found[1:]:
            expected, content = contents[found[0].name], contents[each.name]
            if not self._row.same(expected, content):
                why = f"delivers something else: {content} instead of {expected}"
                self._drop(each.name, self._result.wrong, why, "is wrong")

    def _drop(self, name: str, where: dict[str, str], why: str, how: str) -> None:
        self._result.figures.pop(name, None)
        where[name] = why
        self._say(f"{self._row.name}: {name} {how}: {why}")


def load(path: Path) -> tuple[dict[str, str], dict[str, Result]]:
    """The machine, and the results by row."""
    document = json.loads(path.read_text("utf-8"))
    return document["machine"], {name: Result(**fields) for name, fields in document["rows"].items()}


def save(path: Path, machine: dict[str, str], results: dict[str, Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "rows": {name: dataclasses.asdict(result) for name, result in results.items()}}
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
