"""Checks whether this machine meets the requirements of headrace, and gives advice if it does not.

``python -m headrace doctor`` runs it. A check that fails does not stop the others: an error within a check is its
finding. Steps that may crash or hang, such as importing PyTorch, run in a separate process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import mmap
import multiprocessing
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import headrace
from headrace import _about
from headrace.data._system import control_groups, kernel_files

OK = "ok"
NOTE = "note"  # nothing is wrong, but it is good to know
WARNING = "warning"  # it works, but not always, or not as well as it could
PROBLEM = "problem"  # something does not work

# Of a check that runs in a process of its own, in seconds. Importing PyTorch from a cold disk takes long.
_TIMEOUT = 120.0
_FEW_DESCRIPTORS = 1024
_FEW_PROCESSES = 128
_LITTLE_ADDRESS_SPACE = 64 << 30
_SMALL_SHM = 1 << 30
_LITTLE_MEMORY = 1 << 30


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        status: ``"ok"``, ``"note"``, ``"warning"`` or ``"problem"``.
        detail: what was found.
        advice: the remedy; empty if none is needed.
    """

    status: str
    detail: str
    advice: str = ""


Check = Callable[[], Finding]
CHECKS: dict[str, Check] = {}


def _check(name: str) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        CHECKS[name] = function
        return function

    return register


def examine() -> dict[str, Finding]:
    """Runs all checks. Raises nothing that a check raises."""
    return {name: _guarded(function) for name, function in CHECKS.items()}


def _guarded(function: Check) -> Finding:
    try:
        return function()
    except Exception as error:
        return Finding(WARNING, f"could not be checked: {type(error).__name__}: {error}")


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"


def _at_most(limit: float) -> str:
    return "no limit" if limit == float("inf") else f"at most {_mib(limit)}"


@_check("system")
def _system() -> Finding:
    release = platform.release()
    detail = f"{platform.system()} {release}, {platform.machine()}, Python {platform.python_version()}"
    if platform.system() != "Linux":
        return Finding(PROBLEM, detail, "Headrace needs Linux.")
    numbers = re.match(r"(\d+)\.(\d+)", release)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < (5, 4):
        return Finding(PROBLEM, detail, "Worker processes need Linux 5.4 or newer.")
    return Finding(OK, detail)


@_check("processor")
def _processor() -> Finding:
    march = _about.instruction_set()
    detail = f"{_about.processors()} usable processors; kernels compiled for {march}"
    if march == "x86-64" and {"avx2", "fma", "bmi2"} <= _about.processor_flags():
        advice = "This processor has AVX2: unset HEADRACE_MARCH, or build headrace with HEADRACE_MARCH=x86-64-v3."
        return Finding(WARNING, detail, advice)
    return Finding(OK, detail)


@_check("memfd")
def _memfd() -> Finding:
    size = 1 << 20
    try:
        file = os.memfd_create("headrace-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        advice = "Allow memfd_create: the kernel lacks it, or the container's seccomp profile forbids it."
        return Finding(PROBLEM, f"no shared memory: {error.strerror}", advice)
    try:
        os.truncate(file, size)
        fcntl.fcntl(file, 1033, 0x0001 | 0x0002 | 0x0004)  # F_ADD_SEALS: no more seals, no shrinking, no growing
        with mmap.mmap(file, size) as memory:
            memory[:4] = b"here"
    except OSError as error:
        advice = "Raise the limits on memory (ulimit -v, ulimit -f, the control group's)."
        return Finding(PROBLEM, f"shared memory cannot be used: {error.strerror}", advice)
    finally:
        os.close(file)
    return Finding(OK, "shared memory can be made, sealed and mapped")


@_check("pidfd")
def _pidfd() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        advice = 'Use Linux 5.4 or newer, and a seccomp profile that allows pidfd_open; or pass workers="thread".'
        return Finding(PROBLEM, f"worker processes cannot be watched: {error.strerror}", advice)
    return Finding(OK, "worker processes can be watched")


def _soft_limit(kind: int) -> float:
    limit = resource.getrlimit(kind)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit


@_check("processes")
def _processes() -> Finding:
    soft, group = _soft_limit(resource.RLIMIT_NPROC), control_groups.lowest_limit(control_groups.PROCESS_LIMIT)
    limit = min(soft, float("inf") if group is None else group)
    detail = "no limit" if limit == float("inf") else f"at most {limit:.0f}, threads included"
    advice = "Raise the limit on processes (ulimit -u, or pids.max of the control group)."
    try:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        subprocess.run(["true"], check=False, timeout=_TIMEOUT)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        if not isinstance(error, FileNotFoundError):
            return Finding(PROBLEM, f"neither processes nor threads can be started ({detail}): {error}", advice)
    if limit < _FEW_PROCESSES:
        return Finding(WARNING, detail, advice)
    return Finding(OK, detail)


@_check("descriptors")
def _descriptors() -> Finding:
    limit, detail = _soft_limit(resource.RLIMIT_NOFILE), "no limit"
    if limit != float("inf"):
        with contextlib.suppress(OSError):
            detail = f"{len(os.listdir('/proc/self/fd')) - 1} of "
        detail = f"{detail.replace('no limit', '')}{limit:.0f} file descriptors in use"
    if limit < _FEW_DESCRIPTORS:
        return Finding(WARNING, detail, f"Raise the limit (ulimit -n {_FEW_DESCRIPTORS}); each worker needs several.")
    return Finding(OK, detail)


@_check("address space")
def _address_space() -> Finding:
    limit, overcommit = _soft_limit(resource.RLIMIT_AS), kernel_files.read("/proc/sys/vm/overcommit_memory")
    if limit < _LITTLE_ADDRESS_SPACE:
        advice = (
            "Raise the limit (ulimit -v unlimited): an arena reserves more than it uses, and had to be made smaller."
        )
        return Finding(WARNING, _at_most(limit), advice)
    if overcommit == "2":
        advice = "Leave room for the arenas' memory within the commit limit, or set vm.overcommit_memory to 0 or 1."
        return Finding(WARNING, "no limit, but the kernel does not overcommit memory", advice)
    return Finding(OK, _at_most(limit))


@_check("file size")
def _file_size() -> Finding:
    limit = _soft_limit(resource.RLIMIT_FSIZE)
    detail = _at_most(limit)
    if limit < _LITTLE_ADDRESS_SPACE:
        advice = "Raise the limit (ulimit -f unlimited): an arena is a file, and had to be made smaller."
        return Finding(WARNING, detail, advice)
    return Finding(OK, detail)


@_check("memory")
def _memory() -> Finding:
    match = re.search(r"MemAvailable:\s*(\d+)", kernel_files.read("/proc/meminfo"))
    available = int(match[1]) << 10 if match else None
    group = control_groups.lowest_limit(control_groups.MEMORY_LIMIT)
    detail = f"{_mib(available)} available" if available is not None else "unknown"
    if group is not None:
        detail += f", and the control group may use {_mib(group)}"
    if min(available or 1 << 60, group or 1 << 60) < _LITTLE_MEMORY:
        return Finding(WARNING, detail, "Prefetched batches take up this memory: use few workers and small batches.")
    return Finding(OK, detail)


@_check("/dev/shm")
def _shm() -> Finding:
    advice = "Headrace does not need it. PyTorch's own loader does: docker run --shm-size, or an emptyDir of memory."
    try:
        place = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding(NOTE, f"missing: {error.strerror}", advice)
    size = place.f_blocks * place.f_frsize
    if not os.access("/dev/shm", os.W_OK) or place.f_flag & os.ST_RDONLY:
        return Finding(NOTE, "read-only", advice)
    if size < _SMALL_SHM:
        return Finding(NOTE, f"only {_mib(size)}", advice)
    return Finding(OK, f"{_mib(size)}, not needed by headrace")


@_check("temporary files")
def _temporary_files() -> Finding:
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"here")
            return Finding(OK, tempfile.gettempdir())
    except OSError as error:
        return Finding(WARNING, f"none can be made: {error}", "Set TMPDIR to a folder that can be written to.")


@_check("container")
def _container() -> Finding:
    status = kernel_files.read("/proc/self/status")
    seccomp = re.search(r"^Seccomp:\s*(\d)", status, re.MULTILINE)
    markers = {"/.dockerenv": "Docker", "/run/.containerenv": "Podman"}
    inside = [name for marker, name in markers.items() if os.path.exists(marker)]
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        inside.append("Kubernetes")
    filtered = seccomp is not None and seccomp[1] == "2"
    detail = f"{', '.join(inside) or 'none recognised'}; system calls {'are' if filtered else 'are not'} filtered"
    share = control_groups.processors_share()
    if share is not None:
        detail += f"; {share:.1f} processors' time"
        if share < _about.processors():
            advice = f"More than {max(1, round(share))} busy workers share that time: choose num_workers accordingly."
            return Finding(NOTE, detail, advice)
    return Finding(OK, detail)


def _in_another_process(script: str) -> tuple[str, str]:
    """Runs Python code. Returns its output, and the problem: empty if it succeeded."""
    if not sys.executable:
        return "", "sys.executable does not name the interpreter"
    # It finds headrace where this process has found it.
    package = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer after {_TIMEOUT:.0f} s"
    if done.returncode < 0:
        return done.stdout, f"killed by signal {-done.returncode}"
    if done.returncode:
        return done.stdout, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return done.stdout, ""


class _Numbers:
    """A data set for :func:`probe`."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def probe(context: str) -> None:
    """Loads two batches with one worker that is started in this way."""
    batches = [
        batch.tolist()
        for batch in headrace.DataLoader(_Numbers(), batch_size=4, num_workers=1, multiprocessing_context=context)
    ]
    if batches != [[0, 1, 2, 3], [4, 5, 6, 7]]:
        raise RuntimeError(f"wrong batches: {batches}")


def _loader(context: str) -> Check:
    def check() -> Finding:
        _, wrong = _in_another_process(f"from headrace import _doctor\n_doctor.probe({context!r})")
        if wrong:
            advice = 'See the checks above; pass another multiprocessing_context, workers="thread", or num_workers=0.'
            return Finding(PROBLEM, wrong, advice)
        default = context == multiprocessing.get_context().get_start_method()
        return Finding(OK, "a worker delivers batches" + (" (the default start method)" if default else ""))

    return check


for _context in ("fork", "forkserver", "spawn"):
    _check(f"loader, {_context}")(_loader(_context))


@_check("PyTorch")
def _torch() -> Finding:
    version = _about.installed_version("torch")
    if version is None:
        return Finding(NOTE, "not installed", "headrace.torch needs it: pip install torch")
    out, wrong = _in_another_process(
        "import headrace.torch, torch\n"
        "cuda = torch.cuda.is_available()\n"
        "print('CUDA', torch.version.cuda)\n"
        "print(torch.cuda.device_count() if cuda else 0)\n"
        "print(torch.cuda.get_device_name(0) if cuda else '')\n"
    )
    if wrong:
        return Finding(PROBLEM, f"{version}, but headrace.torch cannot be imported: {wrong}", "Reinstall PyTorch.")
    cuda, devices, name = [*out.splitlines(), "", "", ""][:3]
    if cuda == "CUDA None":
        return Finding(OK, f"{version}, for the CPU only")
    if devices == "0":
        advice = "If this machine has a GPU, check its driver (nvidia-smi) and CUDA_VISIBLE_DEVICES."
        return Finding(NOTE, f"{version} for {cuda}, which finds no GPU", advice)
    return Finding(OK, f"{version} for {cuda}, {devices} GPUs ({name})")


def text(findings: dict[str, Finding]) -> Iterator[str]:
    """The lines that people read."""
    for name, finding in findings.items():
        yield f"{finding.status:<8} {name:<18} {finding.detail}"
        if finding.advice:
            yield f"{'':<8} {'':<18} -> {finding.advice}"
    worst = [finding.status for finding in findings.values()]
    problems, warnings = worst.count(PROBLEM), worst.count(WARNING)
    yield f"{problems} problems, {warnings} warnings"
