"""Some cases of tests/soak, which `make soak` draws for ten minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "soak" / "soak.py"


@pytest.mark.timeout(900)
def test_random_loaders_under_random_circumstances() -> None:
    command = [sys.executable, str(SOAK), "--seed", "1", "--rounds", "80", "--seconds", "700", "--shrink", "0"]
    command += ["--without", "torch"]  # its import alone takes seconds
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=850)
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["wrong"] == [], done.stdout
    assert done.returncode == 0
    wanted = {"map-style", "iterable", "kill within", "interrupt within", "fork within", "order", "move json", "saved"}
    wanted |= {"refusing"}
    assert wanted <= set(result["features"])
