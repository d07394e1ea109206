#!/usr/bin/env python3
"""Measures Headrace and other loaders at the same work, and writes a page about it.

Each contestant of a row runs in a process of its own, once to compare what it delivers with what the others do, then
once in each round, in turns with the others. Figures are medians of the rounds, ratios medians of the rounds' ratios.
Results of earlier runs into the same folder are kept for the rows that are not run again.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import tempfile
import time
from pathlib import Path

import rows
from harness import machine, processes, report, results
from harness.contest import Effort, Row

ROOT = Path(__file__).resolve().parents[2]


def chosen(patterns: list[str]) -> list[Row]:
    """The rows whose names, or whose families' names, match one of the patterns.

    Raises:
        ValueError: a pattern matches none.
    """
    found = {}
    for pattern in patterns:
        matches = {
            row.name: row
            for family in rows.FAMILIES
            for row in family.rows
            if fnmatch.fnmatch(row.name, pattern) or fnmatch.fnmatch(family.name, pattern)
        }
        if not matches:
            raise ValueError(f"no row or family matches {pattern!r}; there are {', '.join(rows.ROWS)}")
        found.update(matches)
    return [row for row in rows.ROWS.values() if row.name in found]


def parse(words: list[str] | None = None) -> argparse.Namespace:
    listing = "\n".join(f"  {family.name}: {', '.join(row.name for row in family.rows)}" for family in rows.FAMILIES)
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"families and their rows:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows or families, * allowed (default: all)")
    parser.add_argument("--contestants", nargs="+", default=[], metavar="NAME", help="only these (default: all)")
    parser.add_argument("--python", default=sys.executable, help="runs the contestants (default: this interpreter)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a measurement (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="only see whether it runs: short epochs, one round")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench", help="(default: build/bench)")
    parser.add_argument("--page-only", action="store_true", help="write the pages of earlier results again")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    try:
        arguments.chosen = chosen(arguments.rows or ["*"])
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main() -> int:
    """The exit code: 1 if a contestant has failed, or delivered something else than the others."""
    arguments = parse()
    if arguments.serve is not None:
        name, contestant, what, request = arguments.serve
        processes.serve(rows.ROWS[name], contestant, what, request)
        return 0
    if arguments.page_only:
        for path in sorted(arguments.output.glob("*.json")):
            print(report.write(path, rows.FAMILIES))
        return 0
    here = machine.describe()
    path = arguments.output / f"{machine.slug(here)}.json"
    found = results.load(path)[1] if path.is_file() else {}
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for number, row in enumerate(arguments.chosen, 1):
            begin = time.monotonic()
            effort = Effort(Path(folder) / row.name, arguments.seconds)
            if arguments.quick:
                effort = Effort(Path(folder) / row.name, seconds=0.05, warm_up=0.02, short=True)
            rounds = 1 if arguments.quick else arguments.rounds
            result = results.Contest(row, arguments.python, effort, rounds, arguments.contestants).run()
            found[row.name] = result
            wrong += len(result.wrong)
            results.save(path, here, found)
            took = time.monotonic() - begin
            print(f"[{number}/{len(arguments.chosen)}] {report.summary(row, result)} ({took:.0f} s)", flush=True)
    print(report.write(path, rows.FAMILIES))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
