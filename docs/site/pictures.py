"""Draws the pictures of docs/pictures, each from a real run. The site's build only copies them.

    python docs/site/pictures.py [timeline] [program] [curve]

timeline: a second of a loader with a trace. program: needs Graphviz's dot. curve: trains docs/examples/lenet_digits.py,
which takes a minute, and needs matplotlib, scikit-learn and scipy.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import headrace.fluid as fluid
from headrace import DataLoader

DOCS = Path(__file__).resolve().parents[1]
PICTURES = DOCS / "pictures"

STYLE = """\
    rect.page { fill: #ffffff; }
    text { font: 12px system-ui, "DejaVu Sans", sans-serif; fill: #1f2937; }
    text.number { font-size: 10px; text-anchor: middle; }
    text.time { font-size: 10px; fill: #4b5563; text-anchor: middle; }
    .grid { stroke: #e5e7eb; }
    .wait { fill: #f3f4f6; stroke: #9ca3af; stroke-dasharray: 3 2; }
    .slow { stroke: #111827; stroke-width: 1.5; }
"""
# By the number of a batch.
COLOURS = ("#93c5fd", "#fcd34d", "#86efac", "#fca5a5", "#c4b5fd", "#5eead4")
WIDTH, LEFT, TOP, ROW = 720, 84, 16, 34
SHOWN_MS = 120.0
SLOW_MS = 25.0


class Uneven:
    """Samples of 2 ms, and of 25 ms now and then."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        time.sleep((SLOW_MS if index % 41 == 20 else 2.0) / 1000)
        return np.full(1000, index, dtype=np.float32)


class Timeline:
    """An SVG of tracks with spans, from ``begin`` on; all times in microseconds."""

    def __init__(self, begin: float, tracks: list[str]) -> None:
        self.begin = begin
        self.tracks = tracks
        self.parts: list[str] = []

    def span(self, kind: str, track: int, begin: float, end: float, batch: int | None = None) -> None:
        """A span of a batch, or of none. ``kind``: one of STYLE's; "use" has the batch's number."""
        left, right = self._x(begin), self._x(min(end, self.begin + 1000 * SHOWN_MS))
        if begin < self.begin or right <= left:
            return
        y, width = TOP + track * ROW, max(right - left - 0.6, 0.6)
        fill = "" if batch is None else f' style="fill: {COLOURS[batch % len(COLOURS)]}"'
        self.parts.append(f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="22"{fill}/>')
        if kind == "use" and width > 14:
            self.parts.append(f'<text class="number" x="{(left + right) / 2:.1f}" y="{y + 15}">{batch}</text>')

    def text(self, title: str) -> str:
        height = TOP + len(self.tracks) * ROW + 26
        lines = [f'<text x="12" y="{TOP + i * ROW + 15}">{track}</text>' for i, track in enumerate(self.tracks)]
        for ms in range(0, int(SHOWN_MS) + 1, 20):
            x, bottom = self._x(self.begin + 1000 * ms), height - 22
            lines.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}"/>')
            lines.append(f'<text class="time" x="{x:.1f}" y="{bottom + 14}">{ms} ms</text>')
        body = "\n".join(f"  {line}" for line in [*lines, *self.parts])
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            f'role="img">\n  <title>{title}</title>\n  <style>\n{STYLE}  </style>\n'
            f'  <rect class="page" width="{WIDTH}" height="{height}" rx="8"/>\n{body}\n</svg>\n'
        )

    def _x(self, at: float) -> float:
        return LEFT + (at - self.begin) / 1000 * (WIDTH - LEFT - 24) / SHOWN_MS


def timeline() -> None:
    """Three workers whose samples take different times, and the consumer."""
    loader = DataLoader(Uneven(), batch_size=16, shuffle=True, seed=3, num_workers=3, trace=True)
    for _ in loader:
        time.sleep(0.005)
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        loader.write_trace(file.name)
        events = json.load(file)["traceEvents"]
    loader.shutdown()
    takes = [(event["ts"], event["args"]["batch"]) for event in events if event["name"].startswith("takes batch")]
    waits = [(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "waits for data"]
    drawn = Timeline(takes[4][0], ["worker 0", "worker 1", "worker 2", "consumer"])
    for event in events:
        if event["name"].startswith("samples of batch"):
            kind = "slow" if event["dur"] > 800 * SLOW_MS else "sample"
            drawn.span(kind, event["tid"], event["ts"], event["ts"] + event["dur"], event["args"]["batch"])
    for begin, end in waits:
        drawn.span("wait", 3, begin, end)
    moments = [begin for begin, _ in waits] + [at for at, _ in takes]
    for at, batch in takes:
        drawn.span("use", 3, at, min((moment for moment in moments if moment > at), default=at), batch)
    (PICTURES / "timeline.svg").write_text(
        drawn.text(
            "Three workers make the samples of each batch together. While one makes a slow sample, the others make the "
            "rest of the batch, and begin the next."
        )
    )


def program() -> None:
    """The program of programs.md, without what its optimizer adds, as fluid.debugger draws it."""
    main = fluid.Program()
    with fluid.program_guard(main, fluid.Program()), fluid.unique_name.guard():
        reader = fluid.layers.py_reader(capacity=8, shapes=[[-1, 2], [-1, 1]], dtypes=["float32", "int64"])
        point, quadrant = fluid.layers.read_file(reader)
        logits = fluid.layers.fc(point, size=4)
        loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(logits, quadrant))
    with tempfile.TemporaryDirectory() as folder:
        dot = os.path.join(folder, "program.dot")
        fluid.debugger.draw_block_graphviz(main.global_block(), highlights=[loss.name], path=dot)
        options = [
            "-Tsvg",
            "-Gbgcolor=white",
            "-Nfontname=sans-serif",
            "-Nfontsize=11",
            "-Granksep=0.25",
            "-Gnodesep=0.2",
            "-Nheight=0.3",
        ]
        done = subprocess.run(["dot", *options, dot], check=True, stdout=subprocess.PIPE, text=True)
    (PICTURES / "program.svg").write_text(done.stdout)


def curve() -> None:
    """The learning curve of LeNet on the digits of scikit-learn."""
    os.environ["SOURCE_DATE_EPOCH"] = "0"  # so that matplotlib writes no date
    import matplotlib as mpl

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "headrace", "font.family": "sans-serif"})
    sys.argv = ["lenet_digits.py", "--plot", str(PICTURES / "lenet_digits.svg")]
    runpy.run_path(str(DOCS / "examples" / "lenet_digits.py"), run_name="__main__")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    drawers = {drawer.__name__: drawer for drawer in (timeline, program, curve)}
    parser.add_argument("pictures", nargs="*", choices=[*drawers, []], help="which to draw (default: all)")
    PICTURES.mkdir(exist_ok=True)
    for name in parser.parse_args().pictures or drawers:
        drawers[name]()


if __name__ == "__main__":
    main()
