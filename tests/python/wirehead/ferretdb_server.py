"""A real database server for the tests: FerretDB from ``build/ferretdb`` (``make build/ferretdb``)."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

URI_VARIABLE = "HEADRACE_TEST_MONGO_URI"
BINARY = Path(__file__).parents[3] / "build" / "ferretdb"
SKIPPED = f"needs a database: run `make build/ferretdb` (needs Go), or give the URI of a server in {URI_VARIABLE}"


class Server:
    """A FerretDB that can be killed and started again at the same port."""

    def __init__(self, folder: Path, pages: int = 0, tls: bool = False) -> None:
        self._folder = folder
        self._arguments = ["-data", str(folder), "-pages", str(pages), *(["-tls"] if tls else [])]
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        for _ in range(50):  # until the port is free again
            with open(self._folder / "log", "a") as log:
                self._process = subprocess.Popen(
                    [str(BINARY), *self._arguments, "-listen", self._listen],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=self._folder,
                    env={"GOGC": "400", **os.environ},  # less often: what it keeps is small
                    start_new_session=True,  # Ctrl-C is not for it
                )
            assert self._process.stdout is not None
            line = self._process.stdout.readline().strip()
            if line:
                self.uri = line
                self._listen = line.removeprefix("mongodb://").partition("/")[0]
                return
            self._process.wait()
            time.sleep(0.1)
        raise RuntimeError((self._folder / "log").read_text())

    def stop(self, number: int = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
