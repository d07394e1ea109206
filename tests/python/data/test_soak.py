"""A short run of tests/soak, which `make soak` runs for ten minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "soak" / "soak.py"


@pytest.mark.timeout(360)
def test_random_loaders_under_random_faults() -> None:
    done = subprocess.run([sys.executable, str(SOAK), "--seconds", "6"], stdout=subprocess.PIPE, text=True, timeout=340)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == [], f"with --seed {result['seed']}"
    assert done.returncode == 0
    assert result["rounds"] >= 4
