"""``python -m headrace`` and its doctor, on machines that lack one thing or another."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import __main__ as command_line
from headrace import _about, _doctor
from headrace._doctor import NOTE, OK, PROBLEM, WARNING, Finding
from headrace.data._system import kernel_files

HERE = Path(__file__).parent


def run(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@functools.cache
def can_unshare() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def examine(*names: str, before: str = "", prefix: tuple[str, ...] = (), mounts: str = "") -> dict[str, Any]:
    """What the doctor says, without PyTorch, which takes seconds to import; after some code, in a process of its own.
    Some checks, or all.
    """
    script = (
        "import sys, json\n"
        f"sys.path.insert(0, {str(HERE / 'data')!r})\n"
        "from headrace import __main__ as command_line, _doctor\n"
        f"names = {names!r} or [name for name in _doctor.CHECKS if name != 'PyTorch']\n"
        "for name in set(_doctor.CHECKS) - set(names):\n"
        "    del _doctor.CHECKS[name]\n"
        f"{before}\n"
        "sys.exit(command_line.main(['doctor', '--json']))"
    )
    command = [*prefix, sys.executable, "-c", script]
    if mounts:
        command = ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert done.returncode == (0 if result["ok"] else 1)
    return {check["name"]: Finding(check["status"], check["detail"], check["advice"]) for check in result["checks"]}


def test_it_shows_what_there_is() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"headrace {headrace.__version__}\n")
    for line in ("Python", "processor", "kernels", "operators", "torch", "documentation", "headrace doctor"):
        assert line in done.stdout


def test_it_shows_the_same_as_json() -> None:
    about = json.loads(run("--json").stdout)
    assert about["version"] == headrace.__version__
    assert about["package"] == str(Path(headrace.__file__).parent)
    assert about["processors"] == len(os.sched_getaffinity(0))
    assert Path(about["kernels"]["library"]).name == "libheadrace.so"
    assert about["operators"] > 100
    assert about["documentation"]


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["doctor", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as ended:
            command_line.main(arguments)
        assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "doctor" in shown
    assert "exit status is 1" in " ".join(shown.split())
    assert shown.endswith(f"headrace {headrace.__version__}\n")


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["surgeon"])
    assert ended.value.code == 2
    assert "doctor" in capsys.readouterr().err


def test_this_machine_is_healthy() -> None:
    done = run("doctor")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\n0 problems" in done.stdout
    for name in _doctor.CHECKS:
        assert name in done.stdout


def test_json_before_or_after_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "CHECKS", {"one": lambda: Finding(OK, "fine")})
    for arguments in (["--json", "doctor"], ["doctor", "--json"]):
        assert command_line.main(arguments) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["checks"] == [{"name": "one", "status": OK, "detail": "fine", "advice": ""}]


def test_its_output_may_lack_letters() -> None:
    script = (
        "from headrace import __main__ as command_line, _doctor\n"
        "_doctor.CHECKS = {'one': lambda: _doctor.Finding(_doctor.NOTE, '/home/j\\xf6rg', 'ask J\\xf6rg')}\n"
        "command_line.main(['doctor'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "/home/j\\xf6rg" in done.stdout
    assert "-> ask J\\xf6rg" in done.stdout


@pytest.mark.parametrize(
    ("redirect", "message"), [("| true", ""), ("> /dev/full", "headrace: standard output cannot be written: No space")]
)
def test_nobody_reads_its_output(redirect: str, message: str) -> None:
    script = f'"$0" -m headrace {redirect}; echo "${{PIPESTATUS[0]}}" >&2'
    done = subprocess.run(["bash", "-c", script, sys.executable], capture_output=True, text=True, check=False)
    *lines, code = done.stderr.splitlines()
    assert code == "1"
    assert "".join(lines).startswith(message)
    assert len(lines) == bool(message)


def test_a_check_that_fails_is_a_finding_and_the_others_are_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd() -> Finding:
        raise KeyError("an odd machine")

    monkeypatch.setattr(_doctor, "CHECKS", {"odd": odd, "bad": lambda: Finding(PROBLEM, "no", "Do so."), "ok": odd})
    assert command_line.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.count("could not be checked: KeyError: 'an odd machine'") == 2
    assert "-> Do so." in out
    assert out.endswith("1 problems, 2 warnings\n")


# The others run in processes of their own.
@pytest.mark.parametrize("name", [name for name in _doctor.CHECKS if not name.startswith(("loader", "PyTorch"))])
def test_no_check_fails_without_proc_and_sys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:

    def nothing(path: Path, *_: Any, **__: Any) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(Path, "read_text", nothing)
    monkeypatch.setattr(os, "listdir", nothing)
    assert _doctor.CHECKS[name]().status in (OK, NOTE)


@pytest.mark.parametrize(("call", "name"), [("memfd_create", "memfd"), ("pidfd_open", "pidfd")])
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_a_system_call_is_forbidden(call: str, name: str, error: str) -> None:
    numbers = {"pidfd_open": 434, "memfd_create": 319 if os.uname().machine == "x86_64" else 279}
    before = f"import errno, fault_programs\nfault_programs.forbid({numbers[call]}, errno.{error})"
    found = examine("memfd", "pidfd", "container", "loader, fork", before=before)
    assert found[name].status == PROBLEM
    assert "seccomp" in found[name].advice
    assert found["loader, fork"].status == PROBLEM
    assert "are filtered" in found["container"].detail
    assert {found["memfd"].status, found["pidfd"].status} == {OK, PROBLEM}


def test_few_descriptors() -> None:
    found = examine(prefix=("prlimit", "--nofile=24"))
    assert found["descriptors"].status == WARNING
    assert "of 24 file descriptors" in found["descriptors"].detail
    assert "ulimit -n" in found["descriptors"].advice


def test_little_address_space() -> None:
    found = examine("address space", "memfd", "loader, fork", prefix=("prlimit", f"--as={2 << 30}"))
    assert found["address space"] == Finding(
        WARNING,
        "at most 2.0 GiB",
        "Raise the limit (ulimit -v unlimited): an arena reserves more than it uses, and had to be made smaller.",
    )
    assert found["loader, fork"].status == OK


def test_small_files() -> None:
    found = examine("file size", "loader, fork", prefix=("prlimit", f"--fsize={100 << 20}"))
    assert found["file size"].status == WARNING
    assert found["file size"].detail == "at most 100 MiB"
    assert "ulimit -f" in found["file size"].advice
    assert found["loader, fork"].status == OK


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user of its own")
def test_few_processes() -> None:
    """The user has a process, this one, and no more."""
    before = (
        "import locale, os, resource, threading\n"  # what that user may not be able to read
        "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
        "os.setresuid(54321, 54321, 54321)"
    )
    found = examine("processes", "loader, fork", "memory", before=before)
    assert found["processes"].status == PROBLEM
    assert "ulimit -u" in found["processes"].advice
    assert found["loader, fork"].status in (PROBLEM, WARNING)
    assert found["memory"].status == OK


@pytest.mark.skipif(not can_unshare(), reason="needs root and mount namespaces")
@pytest.mark.parametrize(
    ("mounts", "detail"),
    [
        ("mount -t tmpfs -o size=64m tmpfs /dev/shm", "only 64 MiB"),
        ("mount -t tmpfs -o ro tmpfs /dev/shm", "read-only"),
        ("mount -t tmpfs tmpfs /dev && touch /dev/null", "missing: No such file or directory"),
    ],
    ids=["64 MiB", "read-only", "absent"],
)
def test_dev_shm(mounts: str, detail: str) -> None:
    found = examine("/dev/shm", mounts=mounts)["/dev/shm"]
    assert (found.status, found.detail) == (NOTE, detail)
    assert "Headrace does not need it" in found.advice


@pytest.mark.skipif(not can_unshare(), reason="needs root and mount namespaces")
def test_neither_proc_nor_sys_nor_a_temporary_folder() -> None:
    hide = "mount -t tmpfs -o ro tmpfs"
    found = examine("temporary files", mounts=f"{hide} /tmp && {hide} /var/tmp && cd /proc")
    assert found["temporary files"].status == WARNING
    assert "TMPDIR" in found["temporary files"].advice
    assert len(examine(mounts=f"{hide} /sys && {hide} /proc")) == len(_doctor.CHECKS) - 1


@pytest.mark.parametrize(
    ("script", "wrong"),
    [
        ("import os; os.kill(os.getpid(), 11)", "killed by signal 11"),
        ("raise ValueError('why')", "ValueError: why"),
        ("import time; time.sleep(100)", "no answer after 1 s"),
        ("import sys; sys.exit(3)", "exit status 3"),
    ],
)
def test_what_crashes_or_hangs_is_told(script: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "_TIMEOUT", 1.0 if "sleep" in script else 60.0)
    assert _doctor._in_another_process(script) == ("", wrong)


def test_an_interpreter_that_does_not_know_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", None)
    assert _doctor.CHECKS["loader, fork"]().status == PROBLEM
    assert "python -m headrace doctor" in _about.text(_about.about())


def test_a_control_group_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/self/cgroup": "0::/a/b",
        "/sys/fs/cgroup/a/memory.max": str(300 << 20),
        "/sys/fs/cgroup/a/b/memory.max": "max",
        "/sys/fs/cgroup/a/b/pids.max": "20",
        "/sys/fs/cgroup/cpu.max": "50000 100000",
        "/proc/meminfo": "MemAvailable:   8000000 kB",
    }
    monkeypatch.setattr(kernel_files, "read", lambda path: files.get(path, ""))
    assert _doctor.CHECKS["memory"]().status == WARNING
    assert "300 MiB" in _doctor.CHECKS["memory"]().detail
    assert _doctor.CHECKS["processes"]() == Finding(
        WARNING,
        "at most 20, threads included",
        "Raise the limit on processes (ulimit -u, or pids.max of the control group).",
    )
    assert "0.5 processors' time" in _doctor.CHECKS["container"]().detail
    files["/proc/self/cgroup"] = "3:cpu,memory:/c"
    files["/sys/fs/cgroup/memory/c/memory.limit_in_bytes"] = str(200 << 20)
    assert "200 MiB" in _doctor.CHECKS["memory"]().detail
    files["/sys/fs/cgroup/memory/c/memory.limit_in_bytes"] = str((1 << 63) - 4096)
    assert _doctor.CHECKS["memory"]().status == OK
