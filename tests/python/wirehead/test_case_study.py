"""docs/examples/wirehead: MeshNet on synthetic brain scans."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "wirehead"


def test_the_generator_draws_scans() -> None:
    pytest.importorskip("scipy")
    spec = importlib.util.spec_from_file_location("synthetic_brains", EXAMPLE / "synthetic_brains.py")
    assert spec is not None
    assert spec.loader is not None
    brains: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(brains)
    samples = brains.slices(seed=1)
    for image, labels in (next(samples) for _ in range(3)):
        assert image.shape == labels.shape == (1, brains.SIZE, brains.SIZE)
        assert image.dtype == np.float32
        assert labels.dtype == np.int64
        assert 0 <= image.min() < image.max() <= 1
    image, labels = brains.volume(np.random.default_rng(0))
    assert set(np.unique(labels)) == set(range(brains.LABELS))
    # Each label has an intensity of its own: labels explain most of what there is to see.
    within = sum(image[labels == label].var() * (labels == label).mean() for label in range(brains.LABELS))
    assert within < 0.7 * image.var()
    again, _ = brains.volume(np.random.default_rng(0))
    assert (again == image).all()


def test_training_from_the_cache(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("matplotlib")
    arguments = ["--seconds", "1.5", "--generators", "2", "--plot", str(tmp_path / "plot.png")]
    result = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py"), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr
    pattern = r"(.*): (\d+) steps in [\d.]+ s, waited for data (\d+)% of the time, loss ([\d.]+) -> ([\d.]+)"
    runs = re.findall(pattern, result.stdout)
    assert [run[0] for run in runs] == ["generator in line", "wirehead, 2 generators"]
    assert all(int(run[1]) > 0 and 0 <= int(run[2]) <= 100 for run in runs)
    assert (tmp_path / "plot.png").stat().st_size > 10_000
