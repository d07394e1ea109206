"""docs/operators.md: its files are built and run with its own commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace import sysconfig

PAGE = Path(__file__).parents[3] / "docs/operators.md"


@pytest.mark.timeout(1000)  # compiling takes minutes on a busy machine
@pytest.mark.skipif(not Path(sysconfig.get_include()).exists(), reason="not installed from a wheel")
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
def test_the_tutorial(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8")
    files = re.findall(r"^```(?:cpp|python)\n(?://|#) (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in files] == ["scaled_swish.cc", "scaled_swish.py"]
    for name, source in files:
        (tmp_path / name).write_text(source)
    (build,) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    package = str(Path(headrace.__file__).parents[1])
    # Its commands say python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": package, "PATH": path}
    for command in (["sh", "-ec", build], [sys.executable, "scaled_swish.py"]):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stderr
    losses = re.fullmatch(
        r"loss (\S+) -> (\S+)\nbeta must be more than 0, got -1 \[.*'scaled_swish'.*\]\n", done.stdout
    )
    assert losses is not None, done.stdout
    assert float(losses[2]) < 0.1 < float(losses[1])
