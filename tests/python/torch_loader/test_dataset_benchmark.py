"""The benchmark of datasets runs, and says what it promises to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "dataset_benchmark.py"


def test_the_benchmark_measures_both_loaders() -> None:
    sizes = ["--rounds", "1", "--seconds", "0.05", "--workers", "1", "--warm-up", "1"]
    choices = ["--case", "tar", "--case", "tensors, no workers", "--json", "-"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *sizes, *choices], stdout=subprocess.PIPE, text=True, check=True
    )
    document = json.loads(done.stdout)
    assert [(row["case"], row["loader"], row["workers"]) for row in document["rows"]] == [
        ("tar", "headrace", 1),
        ("tar", "torch", 1),
        ("tensors, no workers", "headrace", 0),
        ("tensors, no workers", "torch", 0),
    ]
    assert all(row["samples_per_s"] > 0 for row in document["rows"])
    assert document["seeding_us"] > 0
