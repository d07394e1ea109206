"""What is made of the figures of a row: medians, ratios, and whether aims are reached."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest


@pytest.fixture
def row(harness: Any) -> Any:
    contest = harness.contest
    kinds = {"loop": "loop", "headrace": "ours", "torch": "peer", "grain": "peer", "memcpy": "limit"}
    field = tuple(contest.Contestant(name, kind, float, None, f"As {name} is.") for name, kind in kinds.items())
    aims = (contest.Aim("torch", 3), contest.Aim("best peer", 3), contest.Aim("nobody", 1))
    return contest.Row("a", "A", "Of A.", "samples/s", field, aims=aims)


@pytest.fixture
def result(harness: Any) -> Any:
    return harness.results.Result(
        "a",
        "2026-11-25 18:00 UTC",
        3,
        1.0,
        False,
        0.5,
        {"torch": "2.15.0"},
        {"loop": [1, 2, 9], "headrace": [10.0, 40.0, 20.0], "torch": [5.0, 4.0, 10.0], "grain": [8.0, 7.0, 9.0]},
        {"memcpy": "was not asked"},
    )


def test_figures_are_medians_and_ratios_are_medians_of_the_rounds(row: Any, result: Any) -> None:
    assert result.median("headrace") == 20
    assert result.ratio(row, "headrace", "torch") == 2  # of 2, 10 and 2; of the medians it would be 4
    assert result.ratio(row, "headrace", "memcpy") is None


def test_where_less_is_better_ratios_are_the_other_way_round(row: Any, result: Any) -> None:
    row = dataclasses.replace(row, higher_is_better=False)
    assert result.ratio(row, "headrace", "torch") == 0.5
    assert result.best_peer(row) == "torch"


def test_aims(harness: Any, row: Any, result: Any) -> None:
    assert result.best_peer(row) == "grain"
    assert [result.reached(row, aim) for aim in row.aims] == [2, pytest.approx(20 / 9), None]


def test_results_are_kept(harness: Any, result: Any, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "machine.json"
    harness.results.save(path, {"processor": "P"}, {"a": result})
    assert harness.results.load(path) == ({"processor": "P"}, {"a": result})


def test_the_page_states_everything(harness: Any, row: Any, result: Any) -> None:
    family = harness.contest.Family("letters", "Letters", "Of the alphabet.", (row,))
    result.wrong["spdl"] = "delivers something else"
    result.figures["a former one"] = [1.0, 1.0, 1.0]
    machine = {"processor": "P & Q", "processors": "2", "memory": "4 GiB", "system": "Linux"}
    text, plots = harness.report.page((family,), "p-2", machine, {"a": result, "gone": result})
    lines = text.splitlines()
    assert "# Benchmarks on P & Q" in lines
    assert "- Machine: P & Q, 2 processors, 4 GiB, Linux." in lines
    assert "| A: samples/s | loop | 2.00 | 1.00 – 9.00 | 0.50 × | 1.00 × |" in lines
    assert "|  | **headrace** | 20.0 | 10.0 – 40.0 | 2.00 × | 10.0 × |" in lines
    assert "| Letters: A | headrace | torch | 3.00 × | 2.00 × | missed |" in lines
    assert "| Letters: A | headrace | best peer (grain) | 3.00 × | 2.22 × | missed |" in lines
    assert "- memcpy, in a: was not asked" in lines
    assert "- spdl, in a: delivers something else" in lines
    assert "- **torch**: As torch is." in lines
    assert "torch 2.15.0" in text
    assert "![Letters](p-2-letters.svg)" in lines
    drawing = ElementTree.fromstring(plots["p-2-letters.svg"])
    titles = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["Letters", "loop: 0.50", "headrace: 2.00", "torch: 1.00", "grain: 1.60"]


def test_the_page_tells_that_other_programs_ran(harness: Any, result: Any) -> None:
    assert "load of the machine was at most 0.5" in harness.report.scheduling({"a": result})
    result.real_time = True
    other = dataclasses.replace(result, row="b", real_time=False)
    text = harness.report.scheduling({"a": result, "b": other})
    assert "the contestants of a ran before them, with real-time priority (`chrt -f 10`)" in text


def test_machines_with_other_processors_share_no_page(harness: Any) -> None:
    """Results of earlier runs are kept, so those of another machine would end up beside them."""
    names = [
        harness.machine.slug({"processor": processor, "processors": count})
        for processor, count in (
            ("AMD EPYC (family 25, model 1), in a virtual machine", "2"),
            ("AMD EPYC (family 25, model 17), in a virtual machine", "2"),
            ("AMD EPYC (family 25, model 17), in a virtual machine", "16"),
            ("Intel(R) Xeon(R) Processor (family 6, model 207)", "16"),
        )
    ]
    assert names == ["amd-epyc-25-1-2", "amd-epyc-25-17-2", "amd-epyc-25-17-16", "intel-xeon-processor-6-207-16"]
