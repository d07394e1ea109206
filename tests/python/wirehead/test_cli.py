"""``python -m headrace.wirehead``, as users run it."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ferretdb_server import Server
from stored import remove_chunk

from headrace.wirehead import MongoTupleheadDataset, WireheadGenerator, WireheadManager
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.keeper import Keeper
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead.status import status_of

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples" / "wirehead"
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

    def few():
        yield from [(1, 2)] * 4

    def acknowledged():
        for count in range(1, 100):
            while count == 50 and not os.path.exists("outage"):
                time.sleep(0.01)
            number = np.random.randint(1 << 60)
            yield number, count
            print("acknowledged", number, flush=True)
"""


@pytest.fixture
def folder(place: dict[str, Any], tmp_path: Path) -> Path:
    """With functions and a configuration in it."""
    (tmp_path / "functions.py").write_text(textwrap.dedent(FUNCTIONS))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**place, "SWAP_CAP": 30, "LEASE": 10, "TIMEOUT": 30}))
    return tmp_path


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
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def until(self, pattern: str, count: int = 1) -> list[Any]:
        """What matches, as soon as it does so often."""
        deadline = time.monotonic() + 60
        while len(found := re.findall(pattern, self.output)) < count:
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        return found


def run(folder: Path, *arguments: str, timeout: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.wirehead", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def test_generators_are_seeded_apart_restarted_and_stopped(folder: Path) -> None:
    with Command(folder, "generate", "-n", "3", "--index", "4", "functions:numbers") as generate:
        started = generate.until(r"started (\d) 7 (\d+)", 3)
        assert sorted(index for index, _ in started) == ["4", "5", "6"]
        victim = int(started[0][1])
        os.kill(victim, signal.SIGKILL)
        generate.until(rf"generator {started[0][0]} was killed by SIGKILL; it is started again")
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
        assert generate.process.wait(60) == 0
        pids = {int(pid) for _, pid in generate.until(r"started (\d) 7 (\d+)", 4)}
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_generators_end_with_their_supervisor(folder: Path) -> None:
    with Command(folder, "generate", "-n", "2", "functions:numbers") as generate:
        pids = [int(pid) for _, pid in generate.until(r"started (\d) 2 (\d+)", 2)]
        generate.process.kill()
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize("place", ["local"], indirect=True)
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
    ):
        result = run(folder, "generate", name)
        assert result.returncode == 2
        assert message in result.stdout


def settings(folder: Path) -> dict[str, Any]:
    """The configuration in a folder."""
    keys: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return keys


def stored(cache: Cache, generation: int) -> list[tuple[Any, Any]]:
    """The samples of a generation, whether it has been swapped or not."""
    ids = (id for block in cache.blocks for id in sorted(cache.samples(generation, block)))
    with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
        return [(arrays["data"][1], arrays["label"][1]) for arrays in (reader.read(generation, id) for id in ids)]


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


def test_status_and_clean(folder: Path) -> None:
    empty = json.loads(run(folder, "status", "--json").stdout)
    assert (empty["generation"], empty["fill"], empty["swap_cap"], empty["seconds_per_sample"]) == (0, 0, 30, None)
    with Command(folder, "manage") as manage:
        manage.until("Manager: manages")
        while json.loads(run(folder, "status", "--json").stdout)["manager"] is None:
            pass
        _look_at_status(folder, manage)
    cleaned = run(folder, "clean", "--force")
    assert cleaned.returncode == 0, cleaned.stdout
    assert json.loads(run(folder, "status", "--json").stdout)["generation"] == 0


def _look_at_status(folder: Path, manage: Command) -> None:
    with (
        Command(folder, "generate", "-n", "2", "functions:numbers") as generate,
        Command(folder, "status", "--json", "--watch", "0.1") as watch,
    ):
        manage.until("SWAP!", 3)
        generate.until("started", 2)
        watch.until(r'"generators": \[\{[^]]*\][^]]*\}, \{')
        with MongoTupleheadDataset(yaml.safe_load((folder / "config.yaml").read_text()), to="numpy") as dataset:
            assert dataset[0]
            status = json.loads(run(folder, "status", "--json").stdout)
            assert [reader["process"].split(":")[1] for reader in status["readers"]] == [str(os.getpid())]
        assert status["swaps"] == status["generation"] >= 3
        beyond = status["samples"] - status["generation"] * 30 - status["fill"]
        assert beyond == 0 or (status["fill"] == 30 and 0 < beyond <= 30)  # put while the full one is being verified
        assert status["samples_per_second"] * status["seconds_per_sample"] == pytest.approx(1)
        assert len(status["generators"]) == 2
        assert status["manager"].endswith(f":{manage.process.pid}")
        assert status["deleted"] == 0
        assert status["bytes"] > 0
        text = run(folder, "status").stdout
        for word in ("generation ", "fill ", "samples/s", "s/sample", "swaps ", "deleted ", "readers "):
            assert word in text
        refused = run(folder, "clean")
        assert refused.returncode == 1
        assert "is in use by" in refused.stdout
        watch.until('"generation"', 3)


def test_status_derives_the_rate_from_the_last_swaps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {**settings(folder), "SWAP_CAP": 2, "LEASE": 3600}
    with contextlib.closing(Cache(keys)) as cache, contextlib.closing(Cache(keys)) as keeping:
        now, late = keeping.store.now, 0.0
        monkeypatch.setattr(keeping.store, "now", lambda: now() + late)
        keeper, writer = Keeper(keeping), Writer(cache)
        swaps: list[Any] = []
        for generation in range(1, 14):
            for number in range(2):
                assert writer.put((number, 0)) == (generation, number)
            late += 100 * generation
            while keeper.step() is None:
                time.sleep(0.01)
            swaps.append(cache.store.find("swaps", f"{generation:012d}"))
            if generation == 2:
                (first, second), status = swaps, status_of(cache)
                assert second["time"] - first["time"] >= 200
                assert status.seconds_per_sample == pytest.approx((second["time"] - first["time"]) / 2)
        status, first, last = status_of(cache), swaps[-11], swaps[-1]
        took, samples = last["time"] - first["time"], last["samples"] - first["samples"]
        assert samples == 20
        assert status.seconds_per_sample == pytest.approx(took / samples)
        assert status.samples_per_second == pytest.approx(samples / took)
        assert f"{samples / took:.3g} samples/s, {took / samples:.3g} s/sample" in str(status)
        writer.close()


def test_status_shows_how_far_a_reader_is_behind(folder: Path) -> None:
    # The reader lets its generation go when it has read nothing for LEASE seconds.
    with contextlib.closing(Cache({**settings(folder), "LEASE": 3600})) as cache:
        writer, keeper, reader = Writer(cache), Keeper(cache), Reader(cache, ("data",))
        for generation in (1, 2):
            for number in range(30):
                assert writer.put((number, 0)) == (generation, number)
            assert keeper.step() is not None
            if generation == 1:
                assert reader.pin_current(60) == 1
                assert [(shown.generations, shown.lag) for shown in status_of(cache).readers] == [([1], 0)]
        (shown,) = json.loads(run(folder, "status", "--json").stdout)["readers"]
        assert (shown["generations"], shown["lag"]) == ([1], 1)
        assert f"{os.getpid()}, generation 1, lag 1, " in str(status_of(cache))
        reader.close()
        writer.close()


def test_thrown_away_samples_are_counted(folder: Path) -> None:
    with contextlib.closing(Cache(settings(folder))) as cache:
        with contextlib.closing(Writer(cache)) as writer:
            for number in range(30):
                assert writer.put((number, 0)) == (1, number)
        lost = cache.sample(1, 3)
        assert lost is not None
        assert remove_chunk(cache, 1, chunk_names(lost, [0])[0])
        with Command(folder, "manage", "--swaps", "1") as manage:
            manage.until("sample 3 of generation 1 is thrown away: 1 of 1 chunks are missing")
            with contextlib.closing(Writer(cache)) as again:
                assert again.put((99, 0)) == (1, 3)
            assert manage.process.wait(60) == 0
            assert manage.until(r"SWAP!.* so far: (.*) Documents deleted: (.*) G") == [("30", "1")]
        assert [int(number) for number, _ in stored(cache, 1)] == [*range(3), 99, *range(4, 30)]
        assert "deleted     1\n" in str(status_of(cache))
    assert json.loads(run(folder, "status", "--json").stdout)["deleted"] == 1


def test_generators_and_managers_outlive_a_server_that_is_gone_for_longer_than_TIMEOUT(
    own_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "functions.py").write_text(textwrap.dedent(FUNCTIONS))
    keys = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 100, "LEASE": 10, "TIMEOUT": 2}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(keys))
    with Command(tmp_path, "manage") as manage:
        manage.until("Manager: manages")
        with Command(tmp_path, "generate", "functions:acknowledged") as generate:
            generate.until("acknowledged", 49)
            own_server.stop()
            (tmp_path / "outage").touch()  # the next sample is put now
            error = r"the database at 127\.0\.0\.1:\d+ did not answer within 2 seconds \(TIMEOUT\)"
            manage.until(f"Manager: {error}")
            generate.until(f"headrace.wirehead: {error}")
            generate.until("generator 0 ended with code 1; it is started again")
            own_server.start()
            assert generate.process.wait(60) == 0
            manage.until(r"SWAP!.* so far: 100 ")
        acknowledged = {int(number) for number in generate.until(r"acknowledged (\d+)\n")}
        manage.process.send_signal(signal.SIGTERM)
        assert manage.process.wait(60) == 0
    with contextlib.closing(Cache(keys)) as cache:
        found = {int(number) for generation in (1, 2) for number, _ in stored(cache, generation)}
    assert len(acknowledged) >= 49 + 99
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


def test_the_demo_needs_nothing_else(tmp_path: Path) -> None:
    missing = ("pymongo", "bson", "yaml", "zstandard", "lz4", "torch", "scipy")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = run(tmp_path, "demo", "--seconds", "3", timeout=110, PYTHONPATH=path)
    assert result.returncode == 0, result.stdout
    found = re.search(r"loss ([\d.]+) -> ([\d.]+), accuracy ([\d.]+) -> ([\d.]+)", result.stdout)
    assert found, result.stdout
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


def test_the_slurm_scripts(place: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "jobs"
    shutil.copytree(EXAMPLES / "slurm", folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config.pop("MONGOHOST")
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, **place, "SWAP_CAP": 20}))
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
                job.wait(60)
            finally:
                _kill_group(job.pid)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
