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

from harness.contest import LOOP, OURS, PEER, Aim, Effort, LeftOut, Row
from harness.processes import CONTENT, MEASURE, PREPARE, Failed, ask


@dataclasses.dataclass
class Result:
    """What came out of a row.

    Attributes:
        figures: of each contestant, one per round.
        left_out: who did not take part, and why.
        wrong: who has failed, or delivered something else than the others.
        load: of the machine, before it began.
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


def run(
    row: Row,
    python: str,
    effort: Effort,
    rounds: int,
    only: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Result:
    """Compares what the contestants deliver, then measures them in turns."""
    real_time = os.sched_getscheduler(0) != os.SCHED_OTHER
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    result = Result(row.name, date, rounds, effort.seconds * row.seconds, real_time, os.getloadavg()[0])
    effort = dataclasses.replace(effort, seconds=effort.seconds * row.seconds)
    effort.folder.mkdir(parents=True)
    try:
        if row.prepare is not None:
            say(f"{row.name}: making the data")
            ask(python, row, "", PREPARE, effort)
        field = _compare(row, python, effort, only, result, say)
        _measure(row, python, effort, field, result, say)
    except (LeftOut, Failed) as error:  # of the data
        result.left_out["everybody"] = str(error)
        say(f"{row.name} is left out: {error}")
    finally:
        shutil.rmtree(effort.folder, ignore_errors=True)
    return result


def _compare(
    row: Row, python: str, effort: Effort, only: Sequence[str], result: Result, say: Callable[[str], None]
) -> list[str]:
    """The contestants that deliver what the first with any content does: the plain loop, or ours."""
    order = [LOOP, OURS]
    expected: Any = None
    agreeing = set()
    for each in sorted(row.contestants, key=lambda each: order.index(each.kind) if each.kind in order else len(order)):
        if only and each.name not in only:
            continue
        try:
            answer = ask(python, row, each.name, CONTENT, dataclasses.replace(effort, short=True))
        except LeftOut as error:
            result.left_out[each.name] = str(error)
            say(f"{row.name}: {each.name} is left out: {error}")
            continue
        except Failed as error:
            result.wrong[each.name] = str(error)
            say(f"{row.name}: {each.name} has failed: {error}")
            continue
        result.versions.update(answer["versions"])
        content = answer["content"]
        if content is not None:
            expected = content if expected is None else expected
            if not row.same(expected, content):
                result.wrong[each.name] = f"delivers something else: {content} instead of {expected}"
                say(f"{row.name}: {each.name} {result.wrong[each.name]}")
                continue
        agreeing.add(each.name)
    return [each.name for each in row.contestants if each.name in agreeing]


def _measure(
    row: Row, python: str, effort: Effort, field: list[str], result: Result, say: Callable[[str], None]
) -> None:
    """In turns, another first in each round."""
    figures: dict[str, list[float]] = {name: [] for name in field}
    for number in range(result.rounds):
        turn = number % max(1, len(field))
        for name in field[turn:] + field[:turn]:
            if name in result.wrong:
                continue
            try:
                figures[name].append(ask(python, row, name, MEASURE, effort))
            except (LeftOut, Failed) as error:
                result.wrong[name] = str(error)
                say(f"{row.name}: {name} has failed: {error}")
                continue
            say(f"{row.name}: round {number + 1} of {result.rounds}: {name}: {figures[name][-1]:,.1f} {row.unit}")
    result.figures = {name: values for name, values in figures.items() if name not in result.wrong}


def load(path: Path) -> dict[str, Result]:
    """By row."""
    if not path.is_file():
        return {}
    return {name: Result(**fields) for name, fields in json.loads(path.read_text("utf-8"))["rows"].items()}


def save(path: Path, machine: dict[str, Any], results: dict[str, Result]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "rows": {name: dataclasses.asdict(result) for name, result in results.items()}}
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
