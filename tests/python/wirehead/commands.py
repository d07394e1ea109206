"""``python -m headrace.wirehead`` in processes of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.reader import Reader

FUNCTIONS = """
    import os, time
    import numpy as np

    def numbers(index, count, seed):
        print("started", index, count, os.getpid(), flush=True)
        while True:
            yield np.random.randint(1 << 60), np.array([index, os.getpid(), seed])
            time.sleep(0.005)

    def broken():
        raise RuntimeError("this generator is broken")
        yield

    def nothing():
        yield from ()

    def triples():
        yield 1, 2, 3

    def few():
        yield from [(1, 2)] * 4

    def acknowledged():
        before = None
        for count in range(1, 100):
            while count == 50 and not os.path.exists("outage"):
                time.sleep(0.01)
            number = np.random.randint(1 << 60)
            yield number, count
            if before is not None:  # was stored before this one was taken
                print("acknowledged", before, flush=True)
            before = number
"""


class Command:
    """A command that runs, its output in a file; ended at the end."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._log = folder / f"log-{time.monotonic_ns()}"
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headrace.wirehead", *arguments],
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(100)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def until(self, pattern: str, count: int = 1) -> list[Any]:
        """What matches, as soon as it does so often."""
        deadline = time.monotonic() + 300
        while len(found := re.findall(pattern, self.output)) < count:
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        return found


def run(folder: Path, *arguments: str, timeout: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.wirehead", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def without_waiting(output: str) -> str:
    """Without the lines that say that there is no data yet: they come where generators take seconds to start."""
    return re.sub(r"^no data yet: .*\n", "", output, flags=re.MULTILINE)


def settings(folder: Path) -> dict[str, Any]:
    """The configuration in a folder."""
    keys: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return keys


def stored(cache: Cache, generation: int) -> list[tuple[Any, Any]]:
    """The samples of a generation, whether it has been swapped or not."""
    ids = (id for block in cache.blocks for id in sorted(cache.samples(generation, block)))
    with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
        return [(arrays["data"][1], arrays["label"][1]) for arrays in (reader.read(generation, id) for id in ids)]
