"""The newcomer's test: one import in a PyTorch training script changes, and the losses stay the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
pytest.importorskip("sklearn", reason="the digits are scikit-learn's")

SCRIPT = Path(__file__).parents[3] / "docs" / "examples" / "torch_digits.py"
LINE = re.compile(r"epoch (\d): (loss \S+, held-out accuracy \S+), ([\d,]+) samples/s")


def run(loader: str) -> list[str]:
    """The losses and accuracies that the script prints; its speed is for the reader only."""
    command = [sys.executable, str(SCRIPT), "--loader", loader, "--epochs", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr, result.stderr
    lines = [LINE.fullmatch(line) for line in result.stdout.splitlines()]
    assert len(lines) == 2, result.stdout
    print(f"{loader}:", *(line[3] for line in lines if line), "samples/s")
    return [line[2] for line in lines if line]


def test_the_losses_are_equal() -> None:
    expected = run("torch")
    assert len(set(expected)) == 2
    assert run("headrace") == expected
