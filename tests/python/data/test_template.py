"""The process from which later workers are forked."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import resource
import select
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from fault_processes import open_descriptors

from headrace.data._system.life_line import LifeLine
from headrace.data._workers import fork_template as _template
from headrace.data._workers.fork_template import Template, TemplateGone
from headrace.data._workers.processes import close, has_ended

CONTEXT = multiprocessing.get_context("fork")


@pytest.fixture
def life() -> Iterator[int]:
    line = LifeLine()
    yield line.fd
    line.close()


def write(values: list[int], path: str, status: int) -> None:
    Path(path).write_text(repr((values, os.getppid(), multiprocessing.current_process().name)))
    if status < 0:
        os.kill(os.getpid(), -status)
    raise SystemExit(status)


def template_of(values: list[int], life: int) -> Template:
    return Template(CONTEXT, lambda **arguments: write(values, **arguments), life)


def finished(process: BaseProcess) -> int | None:
    process.join(100)
    return process.exitcode


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_libraries_that_warn_of_forks_do_not_warn_of_these(life: int, tmp_path: Path) -> None:
    main, log = os.getpid(), tmp_path / "actions"

    def note() -> None:
        if os.getpid() != main and log.parent.exists():
            with log.open("a") as file:
                file.write(f"{warnings.filters[0][0]}\n")

    os.register_at_fork(before=note)  # for good
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        template = template_of([], life)
    process = template.process("worker", path=str(tmp_path / "said"), status=0)
    process.start()
    assert finished(process) == 0
    template.close()
    assert log.read_text() == "ignore\nignore\n"


def is_adopting() -> bool:
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(37, ctypes.byref(value))
    return bool(value.value)


def test_what_is_forked_has_what_was_there_and_is_a_child_of_this_process(life: int, tmp_path: Path) -> None:
    values = [1, 2]
    before = open_descriptors()
    template = template_of(values, life)
    values.append(3)
    for number, status in enumerate((0, 7, -signal.SIGKILL)):
        process = template.process(f"worker {number}", path=str(tmp_path / "said"), status=status)
        process.start()
        assert finished(process) == status
        assert (tmp_path / "said").read_text() == repr(([1, 2], os.getpid(), f"worker {number}"))
        process.close()
    assert not is_adopting()
    assert not multiprocessing.active_children()
    template.close()
    template.close()
    assert open_descriptors() <= before


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_default_timeout_of_sockets_is_the_programs_own(when: str, life: int, tmp_path: Path) -> None:
    seconds = {"before": [0.01, None], "after": [None, 0.01]}[when]
    try:
        socket.setdefaulttimeout(seconds[0])
        template = template_of([], life)
        socket.setdefaulttimeout(seconds[1])
        time.sleep(0.1)
        process = template.process("worker", path=str(tmp_path / "said"), status=0)
        process.start()
    finally:
        socket.setdefaulttimeout(None)
    assert finished(process) == 0
    template.close()


def test_a_template_closes_without_descriptors(life: int) -> None:
    template = template_of([], life)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        template.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_if_memory_runs_out_a_template_is_ended_rather_than_the_main_process(life: int) -> None:
    template = template_of([], life)
    score, of_template = (
        int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", template._process.pid)
    )
    assert of_template == min(1000, score + 500)
    template.close()


def test_a_template_that_has_died_is_missed(life: int, tmp_path: Path) -> None:
    template = template_of([], life)
    template._process.kill()
    with pytest.raises(TemplateGone):
        template.process("worker", path=str(tmp_path / "said"), status=0).start()
    assert not is_adopting()


def test_a_template_that_does_not_answer_is_given_up(
    life: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_template, "_PATIENCE", 0.1)
    template = template_of([], life)
    assert template._process.pid is not None
    os.kill(template._process.pid, signal.SIGSTOP)
    with pytest.raises(TemplateGone):
        template.process("worker", path=str(tmp_path / "said"), status=0).start()


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.mark.parametrize("reaction", [signal.SIG_IGN, reap])
def test_a_program_may_ignore_or_reap_its_children(reaction: Any, life: int, tmp_path: Path) -> None:
    def say(path: str) -> None:
        Path(path).write_text(repr(signal.getsignal(signal.SIGCHLD) is reaction))

    before = signal.signal(signal.SIGCHLD, reaction)
    try:
        template = Template(CONTEXT, say, life)
        for number in range(3):
            process = template.process("worker", path=str(tmp_path / f"{number}"))
            process.start()
            process.join(100)
            close(process)
            assert (tmp_path / f"{number}").read_text() == "True"
        begin = time.monotonic()
        template.close()
        assert time.monotonic() - begin < 4
        assert not multiprocessing.active_children()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_what_has_ended_before_it_is_looked_at_has_ended(life: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def reaped(pid: int) -> int:
        os.waitpid(pid, 0)
        raise ProcessLookupError

    template = Template(CONTEXT, lambda: None, life)
    process = template.process("worker")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", reaped)
        process.start()
    assert has_ended(process)
    close(process)
    template.close()
    assert not multiprocessing.active_children()


def test_closing_does_not_wait_for_what_was_forked(life: int) -> None:
    template = Template(CONTEXT, lambda: time.sleep(60), life)
    process = template.process("worker")
    process.start()
    begin = time.monotonic()
    template.close()
    assert time.monotonic() - begin < 4
    assert process.is_alive()
    process.kill()
    assert finished(process) == -signal.SIGKILL


def test_what_is_forked_ends_if_the_template_dies_before_it_can_tell(
    life: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, fork = tmp_path / "pid", _template._fork_orphan

    def forked() -> int:
        pid = fork()
        if pid > 0:
            log.write_text(str(pid))
            os._exit(1)
        return pid

    monkeypatch.setattr(_template, "_fork_orphan", forked)
    template = template_of([], life)
    with pytest.raises(TemplateGone):
        template.process("worker", path=str(tmp_path / "said"), status=0).start()
    deadline = time.monotonic() + 100
    while runs(int(log.read_text())) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not runs(int(log.read_text()))
    assert not (tmp_path / "said").exists()


def test_what_is_forked_ends_if_its_number_is_lost(life: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = _template._fork_orphan
    monkeypatch.setattr(_template, "_fork_orphan", lambda: -1 if fork() else 0)
    template = template_of([], life)
    with pytest.raises(PermissionError):
        template.process("worker", path=str(tmp_path / "said"), status=0).start()
    time.sleep(0.2)
    assert not (tmp_path / "said").exists()
    template.close()


def test_one_whose_main_process_is_gone_says_nothing(life: int, capfd: pytest.CaptureFixture[str]) -> None:
    """The kernel resets the connection of one whose answer nobody has read."""
    template = template_of([], life)
    request = pickle.dumps(("worker", {}))
    template._socket.sendall(_template._LENGTH.pack(len(request)) + request)  # without the descriptor, which is missed
    select.select([template._socket], [], [])
    template._socket.close()
    assert finished(template._process) == 0
    close(template._process)
    assert capfd.readouterr().err == ""


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_interrupt_leaves_no_process_of_which_nobody_knows(
    life: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = children()
    template = template_of([], life)
    receive = _template._receive

    def interrupted(*arguments: object) -> bytes:
        monkeypatch.setattr(_template, "_receive", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(_template, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        template.process("worker", path=str(tmp_path / "said"), status=0).start()
    assert set(children()) <= set(before)


def test_an_interrupt_at_the_start_leaves_no_process(
    life: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    before, descriptors = children(), open_descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "recv", interrupted)
        with pytest.raises(KeyboardInterrupt):
            template_of([], life)
    assert children() == before
    assert capfd.readouterr().err == ""
    assert open_descriptors() <= descriptors


def test_it_ends_with_the_process_that_it_belongs_to() -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        template = template_of([], LifeLine().fd)
        os.write(writer, str(template._process.pid).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    template_pid = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    deadline = time.monotonic() + 100
    while Path(f"/proc/{template_pid}").exists() and time.monotonic() < deadline:
        if "\nState:\tZ" in Path(f"/proc/{template_pid}/status").read_text():
            break  # nobody here reaps orphans
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{template_pid}").exists()
