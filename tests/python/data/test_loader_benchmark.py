"""The loader's benchmark runs, and reports what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "loader_benchmark.py"


def test_the_benchmark_measures_every_case() -> None:
    sizes = ["--batches", "12", "--rounds", "2", "--workers", "1", "--pause", "0"]
    choices = ["--loaders", "headrace", "feed", "--case", "tiny", "--case", "150 KiB", "--json", "-"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), *sizes, *choices],
        stdout=subprocess.PIPE,
        text=True,
        timeout=250,
        check=True,
    )
    rows = json.loads(done.stdout)["rows"]
    assert [(row["case"], row["loader"]) for row in rows] == [
        ("tiny", "headrace"),
        ("tiny", "feed"),
        ("150 KiB", "headrace"),
        ("150 KiB", "feed"),
    ]
    assert all(row["batches_per_s"] > 0 for row in rows)
    assert rows[2]["batch_bytes"] == 64 * 150 * 1024


def test_the_benchmark_of_collate_functions_runs() -> None:
    sizes = ["--batches", "200", "--rounds", "2", "--workers", "0", "1", "--json"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK.parent / "collate_benchmark.py"), *sizes],
        stdout=subprocess.PIPE,
        text=True,
        timeout=250,
        check=True,
    )
    rows = {row["loader"]: row for row in json.loads(done.stdout)["rows"]}
    assert {"loop", "headrace, 0", "headrace, 1"} <= set(rows)
    assert rows["loop"]["ratio_to_loop"] == 1
    assert rows["headrace, 1"]["workers_cpu_us_per_batch"] > 0
