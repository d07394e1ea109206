"""The command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True)


def test_a_row_is_measured_and_the_page_is_written(tmp_path: Path) -> None:
    choice = ["--contestants", "loop", "headrace", "memcpy"]
    done = run("--quick", "tiny", *choice, "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[1/1] tiny (samples/s): loop ")
    assert "tiny: round 1 of 1: headrace: " in done.stderr
    (results,) = tmp_path.glob("*.json")
    rows = json.loads(results.read_text())["rows"]
    assert list(rows) == ["tiny"]
    assert list(rows["tiny"]["figures"]) == ["loop", "headrace", "memcpy"]
    assert all(value > 0 for values in rows["tiny"]["figures"].values() for value in values)
    page = results.with_suffix(".md")
    assert done.stdout.splitlines()[-1] == str(page)
    written = page.read_text()
    assert "| 8 numbers: samples/s | loop |" in written
    page.write_text("")
    assert run("--page-only", "--output", str(tmp_path)).returncode == 0
    assert page.read_text() == written


def test_rows_are_chosen_by_name_pattern_and_family(harness: Any) -> None:
    def names(*patterns: str) -> list[str]:
        return [row.name for row in harness.run.chosen(list(patterns))]

    assert names("tiny") == ["tiny"]
    assert names("volumes", "t?ny") == ["tiny", "volumes"]
    assert {"tiny", "volumes"} < set(names("arrays"))
    assert names("*") == list(harness.rows.ROWS)


def test_a_row_that_there_is_not(capsys: pytest.CaptureFixture[str], harness: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        harness.run.parse(["huge"])
    assert "no row or family matches 'huge'; there are jpeg, " in capsys.readouterr().err


def test_rows_and_contestants_have_names_of_their_own(harness: Any) -> None:
    rows = [row for family in harness.rows.FAMILIES for row in family.rows]
    assert len({row.name for row in rows}) == len(rows) == len(harness.rows.ROWS)
    assert not {row.name for row in rows} & {family.name for family in harness.rows.FAMILIES}
    for row in rows:
        names = [each.name for each in row.contestants]
        assert len(set(names)) == len(names), row.name
        assert row.reference in names, row.name
        for aim in row.aims:
            assert aim.against in {"best peer", *names}, row.name
            assert row.contestant(aim.ours).kind == harness.contest.OURS, row.name
        for each in row.contestants:
            assert each.setting, f"{row.name}: {each.name} does not say how it is set up"
