"""A contestant in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.contest import Contestant, Effort, LeftOut, Row

RUN = Path(__file__).parents[1] / "run.py"
# The last line of a traceback, after which some libraries say more.
EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Failure|Interrupt): ")
PREPARE, MEASURE, COMPARE = "prepare", "measure", "compare"


class Failed(Exception):
    """A contestant has failed; the message is the last line that it said."""


def ask(python: str, row: Row, contestant: str, what: str, effort: Effort, timeout: float = 90) -> Any:
    """What a contestant answers, in a process of its own.

    Raises:
        LeftOut: it cannot take part.
        Failed: it has ended with an error, or not in time.
    """
    request = {**dataclasses.asdict(effort), "folder": str(effort.folder)}
    process = subprocess.Popen(
        [python, str(RUN), "--serve", row.name, contestant, what, json.dumps(request)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer in {timeout:.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers, if it has left any
        process.communicate()
    answers = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not answers:
        lines = errors.strip().splitlines() or ["no message"]
        exceptions = [line for line in lines if EXCEPTION.match(line)]
        raise Failed(f"{(exceptions or lines)[-1]} (exit status {process.returncode})")
    answer = json.loads(answers[-1])
    if "left_out" in answer:
        raise LeftOut(answer["left_out"])
    return answer["value"]


def serve(row: Row, name: str, what: str, request: str) -> None:
    """Answers :func:`ask`, in the new process: with nothing, with a figure, or with a figure, content and versions."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nobody else would end it
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nobody else may answer
    fields = json.loads(request)
    effort = Effort(**{**fields, "folder": Path(fields["folder"])})

    def say(**words: Any) -> None:
        print(json.dumps(words), file=answer, flush=True)

    try:
        if what == PREPARE:
            assert row.prepare is not None
            row.prepare(effort)
            say(value=None)
        else:
            contestant = row.contestant(name)
            say(value=_answer(contestant, what, effort))
    except (ImportError, LeftOut) as error:
        say(left_out=str(error))
    sys.stdout.flush()


def _answer(contestant: Contestant, what: str, effort: Effort) -> Any:
    if what == MEASURE:
        return contestant.measure(effort)
    versions = {package: _version(package) for package in contestant.packages}
    figure = contestant.measure(effort)  # first, in a process in which nothing else has happened
    content = contestant.content and contestant.content(dataclasses.replace(effort, short=True))
    return {"figure": figure, "content": content, "versions": versions}


def _version(package: str) -> str:
    if package == "headrace":  # which may be a checkout, and must be there
        return str(importlib.import_module(package).__version__)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise LeftOut(f"{package} is not installed") from None
