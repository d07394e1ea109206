"""The page of the results: Markdown, with a plot for each family."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness import plot
from harness.contest import LOOP, OURS, Contestant, Family, Row
from harness.results import Result, load


def number(value: float) -> str:
    """With three digits, or more where it is large."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{number(value)} ×"


def summary(row: Row, result: Result) -> str:
    """A line for the terminal."""
    parts = [f"{name} {number(result.median(name))}" for name in result.figures]
    text = f"{row.name} ({row.unit}): {', '.join(parts) or 'no figures'}"
    if result.left_out:
        text += f"; left out: {', '.join(result.left_out)}"
    return text + (f"; WRONG: {result.wrong}" if result.wrong else "")


def table(lines: Iterator[list[str]]) -> str:
    """The first line is the head."""
    head = next(lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines))


def family_table(family: Family, results: Mapping[str, Result]) -> Iterator[list[str]]:
    reference = family.rows[0].reference
    has_loop = any(each.kind == LOOP for row in family.rows for each in row.contestants)
    others = [reference, "loop"] if has_loop else [reference]
    yield ["Work", "Contestant", "Median", "Lowest – highest", *(f"Times {other}" for other in others)]
    for row in family.rows:
        result = results.get(row.name)
        for count, name in enumerate(result.figures if result else ()):
            assert result is not None
            values = result.figures[name]
            title = f"{row.title}: {row.unit}" if count == 0 else ""
            shown = f"**{name}**" if row.contestant(name).kind == OURS else name
            spread = f"{number(min(values))} – {number(max(values))}"
            ratios = (ratio(result.ratio(row, name, other)) for other in others)
            yield [title, shown, number(result.median(name)), spread, *ratios]


def aims_table(families: tuple[Family, ...], results: Mapping[str, Result]) -> Iterator[list[str]]:
    yield ["Work", "Contestant", "Times better than", "Aim", "Reached", ""]
    for family in families:
        for row in family.rows:
            for aim in row.aims:
                result = results.get(row.name)
                reached = result and result.reached(row, aim)
                if result is None or reached is None:
                    continue
                against = aim.against
                if against == "best peer":
                    against += f" ({result.best_peer(row)})"
                met = "met" if reached >= aim.at_least else "missed"
                yield [f"{family.title}: {row.title}", aim.ours, against, ratio(aim.at_least), ratio(reached), met]


def settings(rows: list[Row]) -> Iterator[str]:
    """How each contestant is set up, and why."""
    seen: dict[str, Contestant] = {}
    for row in rows:
        for each in row.contestants:
            if each.setting and each.setting not in seen:
                seen[each.setting] = each
                yield f"- **{each.name}**: {each.setting}"


def missing(results: Mapping[str, Result]) -> Iterator[str]:
    """Who took no part in what, and why; those of the same reason together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, result in results.items():
        for who, why in [*result.left_out.items(), *result.wrong.items()]:
            reasons.setdefault((who, why), []).append(name)
    for (who, why), where in reasons.items():
        yield f"- {who}, in {', '.join(where)}: {why}"


def page(
    families: tuple[Family, ...], name: str, machine: Mapping[str, str], results: Mapping[str, Result]
) -> tuple[str, dict[str, str]]:
    """The Markdown, and the plots by the names of their files."""
    results = {row.name: known(row, results[row.name]) for f in families for row in f.rows if row.name in results}
    versions = {package: version for result in results.values() for package, version in result.versions.items()}
    dates = sorted(result.date for result in results.values())
    rounds = sorted({result.rounds for result in results.values()})
    text = [
        f"# Benchmarks on {machine['processor']}",
        "`make bench` has written this page. [Benchmarks](README.md) explains how it measures.",
        f"- Machine: {machine['processor']}, {machine['processors']} processors, {machine['memory']}, "
        f"{machine['system']}.\n"
        f"- Time: {dates[0]} to {dates[-1]}.\n"
        f"- Rounds: {' or '.join(map(str, rounds))}; each contestant in a new process in each round.\n"
        f"- Versions: {', '.join(f'{package} {version}' for package, version in sorted(versions.items()))}.\n"
        f"- {scheduling(results)}",
    ]
    plots = {}
    if any(row.aims for family in families for row in family.rows if row.name in results):
        text += ["## Aims", table(aims_table(families, results))]
    for family in families:
        if any(row.name in results for row in family.rows):
            file = f"{name}-{family.name}.svg"
            plots[file] = plot.ratios(family, results)
            text += [f"## {family.title}", family.about, f"![{family.title}]({file})"]
            text += [table(family_table(family, results)), abouts(family)]
    left_out = list(missing(results))
    if left_out:
        text += ["## Left out", "\n".join(left_out)]
    chosen = [row for family in families for row in family.rows if row.name in results]
    text += ["## How they are set up, and why", "\n".join(settings(chosen))]
    return "\n\n".join(text) + "\n", plots


def known(row: Row, result: Result) -> Result:
    """A result without the contestants that the row no longer has."""
    figures = {each.name: result.figures[each.name] for each in row.contestants if each.name in result.figures}
    return dataclasses.replace(result, figures=figures)


def abouts(family: Family) -> str:
    return "\n".join(f"- **{row.title}** (`{row.name}`): {row.about}" for row in family.rows)


def scheduling(results: Mapping[str, Result]) -> str:
    """How busy the machine was."""
    load = max(result.load for result in results.values())
    text = f"The load of the machine was at most {load:.1f} when a row began."
    before = [name for name, result in results.items() if result.real_time]
    if before:
        text += (
            f" Other programs used it at the same time; the contestants of {', '.join(before)} ran before them, with "
            "real-time priority (`chrt -f 10`)."
        )
    return text


def write(path: Path, families: tuple[Family, ...]) -> Path:
    """Writes the page and the plots of a file of results beside it; returns the path of the page."""
    machine, results = load(path)
    text, plots = page(families, path.stem, machine, results)
    for old in path.parent.glob(f"{path.stem}-*.svg"):
        old.unlink()
    for file, drawing in plots.items():
        (path.parent / file).write_text(drawing, "utf-8")
    path.with_suffix(".md").write_text(text, "utf-8")
    return path.with_suffix(".md")
