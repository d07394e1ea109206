"""docs/wirehead.md: its examples run as printed, with its own configuration."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from headrace.wirehead import WireheadManager
from headrace.wirehead._command_line.commands import parser
from headrace.wirehead.config import KEYS

TEXT = (Path(__file__).parents[3] / "docs" / "wirehead.md").read_text("utf-8")


def test_the_scripts(location: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (printed,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    config = yaml.safe_load(printed)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**config, **location}))
    monkeypatch.chdir(tmp_path)
    # The manager's script would run until it is stopped.
    run_manager = functools.partialmethod(WireheadManager.run_manager, swaps=0)
    monkeypatch.setattr(WireheadManager, "run_manager", run_manager)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(block, names)
    assert names["generator"].stored == 20
    assert names["step"] == 10
    assert names["images"].shape == (5, 16, 16, 16)
    # Tensors where torch is installed.
    assert np.asarray(names["image"]).dtype == "float64"
    assert np.asarray(names["label"]).dtype == "uint8"
    for dataset in ("dataset", "tuples"):
        names[dataset].close()
    names.clear()


def test_importing_the_generators_script_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command `generate` does."""
    monkeypatch.chdir(tmp_path)
    (script,) = (
        block for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL) if "def create_generator" in block
    )
    names: dict[str, Any] = {"__name__": "generator"}
    exec(script, names)
    assert "generator" not in names
    assert len(list(names["create_generator"]())) == 20


def test_every_key_is_described() -> None:
    for key in KEYS:
        assert re.search(rf"^\|.*\b{key}\b", TEXT, re.MULTILINE), key


def test_the_commands_are_ones() -> None:
    commands = re.findall(r"^python -m headrace\.wirehead (.*?)(?: *#.*)?$", TEXT, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        parser().parse_args(command.split())
