"""Plots as SVG, made of text so that they change little from one run to the next."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

from harness.contest import LIMIT, LOOP, OURS, Family, Row
from harness.results import Result

WIDTH, LEFT, RIGHT, LINE, TOP = 760, 190, 24, 44, 74
#: By kind, and by the place among the peers.
COLOURS = {OURS: "#d1461f", LOOP: "#6b7280", LIMIT: "#111827"}
PEER_COLOURS = ("#2563eb", "#059669", "#9333ea", "#ca8a04", "#0891b2", "#db2777", "#65a30d", "#475569")


class Scale:
    """From ratios to places, by their logarithms."""

    def __init__(self, lowest: float, highest: float) -> None:
        self.low, self.high = math.log10(lowest * 0.8), math.log10(highest * 1.25)

    def __call__(self, value: float) -> float:
        return LEFT + (math.log10(value) - self.low) / (self.high - self.low) * (WIDTH - LEFT - RIGHT)

    def ticks(self) -> list[float]:
        """1, 2, 5, 10, …; fewer if the range is wide."""
        steps = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        values = [step * 10.0**power for power in range(-4, 7) for step in steps]
        return [value for value in values if self.low <= math.log10(value) <= self.high]


def spread(row: Row, result: Result, name: str) -> tuple[float, float, float] | None:
    """The lowest of the rounds' ratios to the reference, their median, and the highest."""
    median = result.ratio(row, name, row.reference)
    if median is None:
        return None
    pairs = list(zip(result.figures[name], result.figures[row.reference]))
    ratios = [mine / theirs if row.higher_is_better else theirs / mine for mine, theirs in pairs]
    return min(ratios), median, max(ratios)


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, colour: str = "#374151") -> str:
    escaped = html.escape(words)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escaped}</text>'


def ratios(family: Family, results: Mapping[str, Result]) -> str:
    """A line for each row, with a dot for each contestant: how many times better than the reference, logarithmic."""
    rows = [row for row in family.rows if row.name in results]
    dots = {
        row.name: {n: s for n in results[row.name].figures if (s := spread(row, results[row.name], n))} for row in rows
    }
    rows = [row for row in rows if dots[row.name]]
    values = [value for row in rows for found in dots[row.name].values() for value in found] or [1.0]
    scale = Scale(min(values), max(values))
    colours: dict[str, str] = {}
    peers = iter(PEER_COLOURS * 4)
    for row in rows:
        for name in dots[row.name]:
            if name not in colours:
                colours[name] = COLOURS.get(row.contestant(name).kind) or next(peers)
    legend = _legend(colours)
    top = TOP + 18 * (len(legend) - 1)
    height = top + LINE * len(rows) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif">',
        f"<title>{html.escape(family.title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        text(
            12,
            22,
            f"{family.title}: times better than {' or '.join(dict.fromkeys(r.reference for r in rows))}",
            size=14,
        ),
    ]
    for number, line in enumerate(legend):
        for x, name in line:
            parts.append(_dot(x, 40 + 18 * number, colours[name]))
            parts.append(text(x + 8, 44 + 18 * number, name))
    for tick in scale.ticks():
        x = scale(tick)
        stroke = "#9ca3af" if tick == 1 else "#e5e7eb"
        parts.append(f'<line x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{height - 12}" stroke="{stroke}"/>')
        parts.append(text(x, top - 8, f"{tick:g}", "middle", 11, "#6b7280"))
    for number, row in enumerate(rows):
        y = top + LINE * number + LINE / 2
        parts.append(text(LEFT - 12, y + 4, row.title, "end"))
        for place, (name, (low, median, high)) in enumerate(dots[row.name].items()):
            at = y + (place - (len(dots[row.name]) - 1) / 2) * (LINE - 10) / max(1, len(dots[row.name]))
            parts.append(
                f'<line x1="{scale(low):.1f}" y1="{at:.1f}" x2="{scale(high):.1f}" y2="{at:.1f}" '
                f'stroke="{colours[name]}" stroke-width="2" stroke-opacity="0.5"/>'
            )
            parts.append(_dot(scale(median), at, colours[name], f"{name}: {median:.2f}"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _dot(x: float, y: float, colour: str, title: str = "") -> str:
    inner = f"<title>{html.escape(title)}</title>" if title else ""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">{inner}</circle>'


def _legend(names: Mapping[str, str]) -> list[list[tuple[float, str]]]:
    """Lines of names, and the place of each."""
    lines: list[list[tuple[float, str]]] = [[]]
    x = 18.0
    for name in names:
        width = 26 + 6.6 * len(name)
        if x + width > WIDTH - RIGHT and lines[-1]:
            lines.append([])
            x = 18.0
        lines[-1].append((x, name))
        x += width
    return lines
