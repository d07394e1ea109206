"""``python -m headrace.wirehead``, as users run it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import FUNCTIONS, Command, run, settings, stored
from ferretdb_server import Server

from headrace.wirehead import MongoTupleheadDataset, WireheadGenerator, WireheadManager
from headrace.wirehead._command_line.commands import main
from headrace.wirehead._command_line.supervisor import run_one
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.writer import Writer

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "wirehead"


def test_generators_are_seeded_apart_restarted_and_stopped(folder: Path) -> None:
    with Command(folder, "generate", "-n", "3", "--index", "4", "functions:numbers") as generate:
        started = generate.until(r"started (\d) 7 (\d+)", 3)
        assert sorted(index for index, _ in started) == ["4", "5", "6"]
        victim = int(started[0][1])
        os.kill(victim, signal.SIGKILL)
        generate.until(rf"generator {started[0][0]} was killed by SIGKILL; it is restarted")
        again = generate.until(r"started (\d) 7 (\d+)", 4)[3]
        assert again[0] == started[0][0]
        with MongoTupleheadDataset(yaml.safe_load((folder / "config.yaml").read_text()), to="numpy") as dataset:
            samples = dataset[range(30)]
            assert len({int(number) for number, _ in samples}) == 30
            first = dataset.generation
            while dataset.generation < first + 2:
                samples += dataset[range(30)]
                time.sleep(0.05)
        seeds = {(int(label[1]), int(label[2])) for _, label in samples}
        assert len({seed for _, seed in seeds}) == len(seeds)
        generate.process.send_signal(signal.SIGTERM)
        assert generate.process.wait(100) == 0
        pids = {int(pid) for _, pid in generate.until(r"started (\d) 7 (\d+)", 4)}
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_generators_end_with_their_supervisor(folder: Path) -> None:
    with Command(folder, "generate", "-n", "2", "functions:numbers") as generate:
        pids = [int(pid) for _, pid in generate.until(r"started (\d) 2 (\d+)", 2)]
        generate.process.kill()
        deadline = time.monotonic() + 100
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_generator_that_ends_says_what_it_has_made(folder: Path) -> None:
    for name, made in (("nothing", "ended after 0 samples; the next generation has 0 of 30"), ("few", "4 of 30")):
        result = run(folder, "generate", f"functions:{name}")
        assert result.returncode == 0
        (line,) = result.stdout.splitlines()
        assert line.startswith("generator 0 ended after ")
        assert line.endswith(f"{made}, and readers do not see it until it is full")
    result = run(folder, "generate", "functions:few", "--samples", "1")
    assert result.stdout.startswith("generator 0 ended after 1 sample; the next generation has 5 of 30")


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_wrong_first_sample_is_no_restart(folder: Path) -> None:
    result = run(folder, "generate", "functions:triples")
    assert result.returncode == 1
    line, given_up = result.stdout.splitlines()
    assert line.startswith("generator 0: sample 0 of this generator cannot be stored: it is of type tuple")
    assert line.endswith("yield a tuple of 2 arrays, or change SAMPLE")
    assert given_up == "generator 0 is given up"


@pytest.mark.parametrize("location", ["local"], indirect=True)
@pytest.mark.parametrize("status", [2, 3, 4])
@pytest.mark.parametrize("leave", ["sys.exit", "os._exit"])
def test_a_generator_may_exit_with_any_status(leave: str, status: int, folder: Path) -> None:
    (folder / "leaves.py").write_text(f"import os, sys\ndef samples():\n    {leave}({status})\n    yield\n")
    result = run(folder, "generate", "leaves:samples")
    assert result.returncode == 1
    said = f"generator 0 exited with status {status}"
    *restarts, end = result.stdout.splitlines()
    assert len(restarts) >= 2  # more on a machine so busy that they take longer than a quick death may
    assert set(restarts) == {f"{said}; it is restarted"}
    assert end == f"{said} and is given up"


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_generator_that_cannot_work_is_given_up(folder: Path) -> None:
    result = run(folder, "generate", "functions:broken")
    assert result.returncode == 1
    assert result.stdout.count("RuntimeError: this generator is broken") == 3
    assert "generator 0 failed before it had stored a sample and is given up" in result.stdout
    assert run(folder, "generate", "functions:few").returncode == 0
    for name, message in (
        ("functions:none", "functions has no function none"),
        ("nothing:few", "there is no module nothing"),
        ("functions", "must name a generator function as module:function"),
        ("./functions:few", "must name a generator function as module:function"),
        (".:few", "must name a generator function as module:function"),
    ):
        result = run(folder, "generate", name)
        assert result.returncode == 2
        assert message in result.stdout


@pytest.mark.parametrize(
    ("program", "what"),
    [
        ("WireheadGenerator(few(), 'config.yaml').run_generator()", "a generator"),
        ("WireheadManager('config.yaml').run_manager()", "a manager"),
        ("compat.WireheadGenerator(few(), 'config.yaml').cycle()", "a generator"),
    ],
)
@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_script_that_runs_when_it_is_imported_is_refused(program: str, what: str, folder: Path) -> None:
    lines = ["from functions import few", "from headrace.wirehead import WireheadGenerator, WireheadManager, compat"]
    (folder / "script.py").write_text("\n".join([*lines, program]))
    result = run(folder, "generate", "-n", "2", "script:few")
    problem = f'{folder / "script.py"} runs {what} when it is imported: put that under `if __name__ == "__main__":`'
    assert (result.returncode, result.stdout) == (2, f"headrace.wirehead: {problem}\n")
    with contextlib.closing(Cache(settings(folder), create=False)) as cache:
        assert cache.incarnation is None
    (folder / "script.py").write_text("\n".join([*lines, "if __name__ == '__main__':", f"    {program}"]))
    assert run(folder, "generate", "-n", "2", "script:few").returncode == 0


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_thread_that_runs_a_generator_when_a_script_is_imported_is_refused(folder: Path) -> None:
    (folder / "script.py").write_text(
        "import threading\nfrom functions import few\nfrom headrace.wirehead import WireheadGenerator\n"
        "thread = threading.Thread(target=WireheadGenerator(few(), 'config.yaml').run)\nthread.start()\nthread.join()"
    )
    result = run(folder, "generate", "script:few")
    assert "ConfigError: the module script runs a generator when it is imported" in result.stdout


def test_a_generator_stops_after_n_samples(folder: Path) -> None:
    drawn = itertools.count()
    generator = WireheadGenerator(((number, 0) for number in drawn), settings(folder), n_samples=7)
    assert generator.run() == generator.stored == 7
    assert next(drawn) == 7  # none was generated in vain
    with contextlib.closing(Cache(settings(folder))) as cache:
        assert [int(number) for number, _ in stored(cache, 1)] == list(range(7))


def test_a_number_of_samples_and_a_seed_for_each_process(folder: Path) -> None:
    def generated(seed: str, n: str = "2") -> list[tuple[int, int, int]]:
        """(index, seed, number) of each sample."""
        result = run(folder, "generate", "-n", n, "--samples", "6", "--seed", seed, "functions:numbers")
        assert result.returncode == 0, result.stdout
        with contextlib.closing(Cache(settings(folder))) as cache:
            samples = stored(cache, 1)
            cache.store.clean()
        return sorted((int(label[0]), int(label[2]), int(number)) for number, label in samples)

    first = generated("5")
    assert [index for index, _, _ in first] == [0] * 6 + [1] * 6
    assert len({number for _, _, number in first}) == 12
    assert generated("5") == first
    other = generated("6", n="1")
    assert not {number for _, _, number in other} & {number for _, _, number in first}
    assert not {seed for _, seed, _ in other} & {seed for _, seed, _ in first}


def test_a_manager_ends_after_so_many_swaps(folder: Path) -> None:
    with contextlib.closing(Cache(settings(folder))) as cache:
        with contextlib.closing(Writer(cache)) as writer:
            for number in range(2 * 30):  # two generations
                assert writer.put((number, 0)) is not None
        managed = run(folder, "manage", "--swaps", "1")
        assert managed.returncode == 0, managed.stdout
        assert re.findall("SWAP!.* so far: (.*) Documents deleted: (.*) G", managed.stdout) == [("30", "0")]
        assert cache.current() == 1
        WireheadManager(settings(folder)).run_manager(swaps=1)
        assert cache.current() == 2


def test_generators_and_managers_outlive_a_server_that_is_gone_for_longer_than_TIMEOUT(
    own_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "functions.py").write_text(textwrap.dedent(FUNCTIONS))
    keys = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 100, "LEASE": 10, "TIMEOUT": 2}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(keys))
    with Command(tmp_path, "manage") as manage:
        manage.until("Manager: manages")
        with Command(tmp_path, "generate", "functions:acknowledged") as generate:
            generate.until("acknowledged", 48)
            own_server.stop()
            (tmp_path / "outage").touch()  # the next sample is made now
            error = r"the database at 127\.0\.0\.1:\d+ did not answer within 2 seconds \(TIMEOUT\)"
            manage.until(f"Manager: {error}")
            generate.until(f"headrace.wirehead: {error}")
            generate.until("generator 0 exited with status 1; it is restarted")
            own_server.start()
            assert generate.process.wait(100) == 0
            manage.until(r"SWAP!.* so far: 100 ")
        acknowledged = {int(number) for number in generate.until(r"acknowledged (\d+)\n")}
        manage.process.send_signal(signal.SIGTERM)
        assert manage.process.wait(100) == 0
    with contextlib.closing(Cache(keys)) as cache:
        found = {int(number) for generation in (1, 2) for number, _ in stored(cache, generation)}
    assert len(acknowledged) >= 48 + 98
    assert acknowledged <= found


def test_errors_are_one_line(tmp_path: Path) -> None:
    result = run(tmp_path, "status")
    assert result.returncode == 2
    assert result.stdout.startswith("headrace.wirehead: there is no configuration file config.yaml")
    assert result.stdout.count("\n") == 1
    (tmp_path / "config.yaml").write_text("SWAPCAP: 3\n")
    result = run(tmp_path, "manage")
    assert result.returncode == 2
    assert "SWAPCAP is unknown; did you mean SWAP_CAP?" in result.stdout
    assert "DBNAME is missing" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate functions:few -n 0", "argument -n: invalid whole number (at least 1) value: '0'"),
        ("generate functions:few --index -1", "argument --index: invalid whole number (at least 0) value: '-1'"),
        ("generate functions:few --seed x", "argument --seed: invalid whole number (at least 0) value: 'x'"),
        ("generate functions:few --samples 0", "argument --samples: invalid whole number (at least 1) value: '0'"),
        ("generate functions:few --grace -1", "argument --grace: invalid number (at least 0) value: '-1'"),
        ("manage --swaps 0", "argument --swaps: invalid whole number (at least 1) value: '0'"),
        ("status --watch -1", "argument --watch: invalid number (at least 0.01) value: '-1'"),
        ("demo --seconds nan", "argument --seconds: invalid number (at least 0.1) value: 'nan'"),
        ("config.yaml --poll-interval inf", "argument --poll-interval: invalid number (at least 0.01) value: 'inf'"),
        ("config.yaml --poll-interval 1e300", "argument --poll-interval: must be at most 1000000, got 1e300"),
        ("status --watch 1e300", "argument --watch: must be at most 1000000, got 1e300"),
        ("generate functions:few --samples 1" + 20 * "0", f"argument --samples: must be at most {sys.maxsize}, got 1"),
        ("bench --only speed", "unknown part speed; the parts are transfer, latency, scaling, swap, storm"),
        ("show", "argument COMMAND: invalid choice: 'show'"),
        ("show --config config.yaml", "argument COMMAND: invalid choice: 'show'"),
        ("show config.yaml", "argument COMMAND: invalid choice: 'show'"),
        ("status config.yaml", "unrecognized arguments: config.yaml"),
        ("config.yaml --demon", "unrecognized arguments: --demon"),
        ("--poll-interval 0 config.json", "argument --poll-interval: invalid number (at least 0.01) value: '0'"),
    ],
)
def test_an_option_that_cannot_be_is_named(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: Any = main(arguments.split())
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["status", "generate functions:few --config {}/config.yaml"])
@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_working_directory_that_was_removed_is_named(folder: Path, tmp_path: Path, arguments: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -m headrace.wirehead {arguments.format(folder)}"
    result = subprocess.run(["sh", "-c", command], cwd=gone, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("headrace.wirehead: the working directory of this process has been removed: ")
    assert result.stderr.count("\n") == 1


def wait_for_swaps(process: subprocess.Popen[str], folder: Path) -> int:
    """The exit status of a process that ends when it has seen some."""
    generator = WireheadGenerator(itertools.repeat((1, 2)), str(folder / "config.yaml"))
    thread = threading.Thread(target=generator.run)
    thread.start()
    try:
        return process.wait(120)
    finally:
        process.kill()
        generator.stop()
        thread.join()


@pytest.mark.parametrize("location", ["local"], indirect=True)
@pytest.mark.parametrize("arguments", ["status", "clean --dry-run", "config.yaml", "manage --swaps 1"])
def test_output_that_cannot_be_written_is_one_line(folder: Path, arguments: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "headrace.wirehead", *arguments.split()]
        with subprocess.Popen(command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True) as process:
            manages = "manage" in arguments  # the work goes on
            assert (wait_for_swaps(process, folder) if manages else process.wait(120)) == (0 if manages else 1)
            assert process.stderr is not None
            said = process.stderr.read()
    assert said.startswith("headrace.wirehead: standard output cannot be written")
    assert "No space left on device" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_manager_whose_output_nobody_reads_ends_quietly(folder: Path) -> None:
    command = [sys.executable, "-m", "headrace.wirehead", "manage"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("Manager: manages")
        process.stdout.close()
        assert wait_for_swaps(process, folder) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_number_of_an_array_job_that_cannot_be(folder: Path) -> None:
    result = run(folder, "generate", "functions:few", SLURM_ARRAY_TASK_ID="first")
    assert result.returncode == 2
    assert "SLURM_ARRAY_TASK_ID must be a whole number, got 'first': correct it, or pass --index" in result.stdout


def test_the_demo_needs_nothing_else(tmp_path: Path) -> None:
    missing = ("pymongo", "bson", "yaml", "zstandard", "lz4", "torch", "scipy")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for seconds in ("3", "10", "50"):  # a slow machine learns slowly
        result = run(tmp_path, "demo", "--seconds", seconds, timeout=150, PYTHONPATH=path)
        assert result.returncode == 0, result.stdout
        found = re.search(r"loss ([\d.]+) -> ([\d.]+), accuracy ([\d.]+) -> ([\d.]+)", result.stdout)
        assert found, result.stdout
        if float(found[2]) < float(found[1]):
            break
    assert float(found[2]) < float(found[1])
    (where,) = re.findall(r"draw shapes into (\S+);", result.stdout)
    assert not Path(where).exists()


SBATCH = r"""#!/bin/bash
# Stands in for sbatch: runs a script once, or once for each index of its --array, as the scheduler would.
script=$1
array=$(sed -n 's/^#SBATCH --array=\([0-9]*\)-\([0-9]*\)$/\1 \2/p' "$script")
pids=()
trap 'kill "${pids[@]}"' TERM
if [ -n "$array" ]; then
  for i in $(seq $array); do SLURM_ARRAY_TASK_ID=$i bash "$script" & pids+=($!); done
else
  bash "$script" & pids+=($!)
fi
wait "${pids[@]}"; wait "${pids[@]}"
"""
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'


def test_the_slurm_scripts(location: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    shutil.copytree(EXAMPLES / "slurm", folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config.pop("MONGOHOST")
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **location, "SWAP_CAP": 20}))
    (tmp_path / "bin").mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "GENERATORS": "2",
        "PYTHONUNBUFFERED": "1",
    }
    jobs = []
    try:
        for name in ("manager", "generator"):
            with open(tmp_path / f"{name}.log", "w") as log:
                jobs.append(
                    subprocess.Popen(
                        ["sbatch", f"{name}.sbatch"],
                        cwd=folder,
                        env=environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        train = subprocess.run(
            [sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert train.returncode == 0, train.stderr
        counts = re.search(r"samples by subject: (.*)", train.stdout)
        assert counts
        assert sum(int(n) for n in re.findall(r": (\d+)", counts[1])) == 500
        assert "SWAP!" in (tmp_path / "manager.log").read_text()
        used: set[str] = set()
        while len(used) < 6 and jobs[1].poll() is None:  # training may be over before all of them have begun
            used = set(re.findall(r"generator (\d) uses", (tmp_path / "generator.log").read_text()))
            time.sleep(0.05)
        assert sorted(used) == [str(i) for i in range(6)]
    finally:
        for job in jobs:
            job.terminate()
        for job in jobs:
            try:
                job.wait(100)
            finally:
                _kill_group(job.pid)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass


@pytest.mark.parametrize("error", [FileNotFoundError, ImportError, BrokenPipeError, TimeoutError])
def test_an_error_of_the_generator_is_none_of_the_commands(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of which some mean that it is not to be started again."""
    (tmp_path / "own_generator.py").write_text(
        f"def samples():\n    yield 1, 2\n    yield 3, 4\n    raise {error.__name__}('of the generator')\n"
    )
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 2}))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_generator", raising=False)
    assert run_one("own_generator:samples", str(path), 0, 1, [1], None) == 1
    assert "of the generator" in capsys.readouterr().err
