"""Who may take part in a row, and what becomes of those who cannot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ended_processes import assert_no_process

SCRIPT = Path(__file__).parent / "contest_script.py"


@pytest.fixture
def row(harness: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(harness.processes, "RUN", SCRIPT)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.delitem(sys.modules, "contest_script", raising=False)
    import contest_script

    return contest_script.ROW


def test_those_who_deliver_the_same_are_measured_and_the_others_are_named(
    harness: Any, row: Any, tmp_path: Path
) -> None:
    said: list[str] = []
    names = [each.name for each in row.contestants if each.name != "hanging"]
    effort = harness.contest.Effort(tmp_path / "work")
    result = harness.results.Contest(row, sys.executable, effort, 2, names, said.append).run()
    assert result.figures == {name: [4.0, 4.0] for name in ("loop", "ours", "limit")}
    assert set(result.wrong) == {"wrong", "crashing", "ending", "once"}
    assert result.wrong["wrong"] == (
        "delivers something else: {'samples': 2, 'digest': 'b'} instead of {'samples': 2, 'digest': 'a'}"
    )
    assert result.wrong["crashing"] == "RuntimeError: out of order (exit status 1)"
    assert result.wrong["ending"] == "what a library says (exit status 7)"
    assert result.wrong["once"] == "RuntimeError: the second time (exit status 1)"
    assert result.left_out == {
        "unknown": "a-library-that-nobody-has is not installed",
        "missing": "No module named 'a_library_that_nobody_has'",
    }
    assert list(result.versions) == ["numpy"]
    assert not effort.folder.exists()
    assert "work: missing is left out: No module named 'a_library_that_nobody_has'" in said


def test_who_does_not_answer_is_killed_with_its_children(harness: Any, row: Any, tmp_path: Path) -> None:
    effort = harness.contest.Effort(tmp_path / "work")
    effort.folder.mkdir()
    (effort.folder / "figure").write_text("4")
    with pytest.raises(harness.processes.Failed, match=r"no answer in 30 s"):
        harness.processes.ask(sys.executable, row, "hanging", harness.processes.COMPARE, effort, timeout=30)
    assert_no_process({int((tmp_path / "child").read_text())}, 60)
