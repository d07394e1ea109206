"""headrace.data._workers.process_pool: how workers end, and how loaders do."""

from __future__ import annotations

import multiprocessing
import multiprocessing.popen_spawn_posix
import multiprocessing.resource_tracker
import multiprocessing.util
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import warnings
from multiprocessing.popen_forkserver import Popen
from pathlib import Path
from typing import Any

import pytest
from fault_harness import run
from loader_datasets import Deadly, Everything, Ints, Random, Samples, Slow, Unloadable, Unpicklable, die_at_start, same

from headrace import errors
from headrace.data import DataLoader, WorkerTraceback
from headrace.data._workers import fork_template, process_pool, worker_starter
from headrace.data._workers.processes import describe_exit


def workers() -> list[int]:
    return [
        process.pid or 0
        for process in multiprocessing.active_children()
        if process.name.startswith("headrace-worker") and process.is_alive()
    ]


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_a_worker_that_dies_at_a_sample_is_replaced_and_the_sample_made_again(context: str, tmp_path: Path) -> None:
    dataset = Deadly(20, 3, 11, memory=str(tmp_path))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context)
    with pytest.warns(RuntimeWarning) as caught:
        assert [batch.tolist() for batch in loader] == [[i, i + 1, i + 2, i + 3] for i in range(0, 20, 4)]
    texts = [str(warning.message) for warning in caught]
    assert any("was killed by SIGKILL while it made the sample with index 3;" in text for text in texts)
    assert any("with index 11;" in text for text in texts)


@pytest.mark.parametrize("arguments", [{"num_workers": 2}, {"num_workers": 3, "shuffle": True}], ids=str)
def test_batches_are_the_same_whenever_workers_are_killed(arguments: dict[str, Any]) -> None:
    arguments = {"batch_size": 8, "seed": 2, "prefetch_factor": 4, **arguments}
    dataset = Random(160)
    expected = [batch for loader in [DataLoader(dataset, **arguments)] for _ in range(4) for batch in loader]
    loader = DataLoader(dataset, **arguments)
    chance = random.Random(1)
    got = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(4):
            for number, batch in enumerate(loader):
                got.append(batch)
                if number % 7 == 3:
                    os.kill(chance.choice(workers()), signal.SIGKILL)
    assert same(got, expected)


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_a_sample_that_always_kills_its_worker_is_named_and_iteration_goes_on(num_workers: int) -> None:
    dataset = Deadly(12, 5, how=signal.SIGUSR2)
    loader = DataLoader(dataset, batch_size=3, num_workers=num_workers, shuffle=True, seed=1)
    good, bad = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        iterator = iter(loader)
        for _ in range(4):
            try:
                good += next(iterator).tolist()
            except RuntimeError as error:
                bad.append(str(error))
    assert len(bad) == 1
    assert "the sample with index 5 died" in bad[0]
    assert "was killed by SIGUSR2" in bad[0]
    assert len(good) == 9
    assert 5 not in good
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(errors.WorkerDied, match="index 5") as caught:
            list(loader)
    assert caught.value.sample_index == 5


def test_a_worker_killed_while_idle_is_replaced() -> None:
    loader = DataLoader(Ints(20), batch_size=2, num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    next(iterator)
    while loader.stats()["ready_batches"] < 2:
        time.sleep(0.001)
    os.kill(workers()[0], signal.SIGKILL)
    with pytest.warns(RuntimeWarning, match="was killed by SIGKILL while it was idle"):
        assert len(list(iterator)) == 9


class Mortal(Ints):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return index, os.getpid()


def children() -> set[int]:
    """The pids of this process's children, as the kernel knows them."""
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def reap(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize("reaction", [signal.SIG_IGN, reap])
def test_a_program_that_ignores_or_reaps_its_children_has_no_worker_twice(
    reaction: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 100.0)
    before = signal.signal(signal.SIGCHLD, reaction)
    try:
        loader = DataLoader(Mortal(200), 4, num_workers=2, prefetch_factor=4)
        seen: list[int] = []
        pids: set[int] = set()
        for number, (indices, makers) in enumerate(loader):
            seen += indices.tolist()
            pids |= set(makers.tolist())
            if number % 8 == 3:
                os.kill(max(pids & children()), signal.SIGKILL)
        assert seen == list(range(200))
        assert len(pids) <= 2 + loader.stats()["worker_deaths"]
        assert len(pids & children()) <= 2
        begin = time.monotonic()
        loader.shutdown()
        assert time.monotonic() - begin < 50
        assert not pids & children()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_sample_at_which_two_workers_die_at_once_is_left_out_once() -> None:
    loader = DataLoader(Slow(8, 2.0, 0), batch_size=2, num_workers=1, on_worker_death="skip")
    iterator = iter(loader)
    engine = iterator._engine
    while not (claims := engine.scheduler.claims()):
        time.sleep(0.001)
    pool = engine.workers.pool
    for _ in range(2):
        assert "without it" in pool.deaths._give_up(claims[0], None)
    assert engine.workers.deaths()["skipped_samples"] == 1
    loader.shutdown()


def test_many_idle_deaths_over_time_are_no_reason_to_give_up() -> None:
    loader = DataLoader(Ints(20), batch_size=2, num_workers=1, prefetch_factor=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(8):
            assert len(list(loader)) == 10
            os.kill(workers()[0], signal.SIGKILL)
        assert len(list(loader)) == 10


@pytest.mark.parametrize("num_workers", [1, 3])
def test_workers_that_die_at_their_start_are_a_clear_error(num_workers: int) -> None:
    loader = DataLoader(Ints(4), num_workers=num_workers, worker_init_fn=die_at_start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(2):
            with pytest.raises(
                errors.WorkerDied, match=r"keep dying before they produce a sample: worker .* exited with status 7"
            ):
                list(loader)
            assert not workers()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_dataset_that_workers_cannot_unpickle_is_an_error_that_says_why(
    context: str, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = DataLoader(Unloadable(4), num_workers=3, multiprocessing_context=context)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ImportError, match="no codec") as caught:
            list(loader)
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "could not unpickle its task" in str(caught.value.__cause__)
    assert "__setstate__" in str(caught.value.__cause__)
    assert not workers()
    assert capfd.readouterr().err == ""


def test_one_that_fails_to_start_later_on_is_started_again(tmp_path: Path) -> None:
    dataset = Unloadable(40, tmp_path / "allowed")
    (tmp_path / "allowed").touch()
    loader = DataLoader(dataset, num_workers=1, multiprocessing_context="spawn", prefetch_factor=2)
    batches = iter(loader)
    got = [next(batches).tolist()]
    (tmp_path / "allowed").unlink()
    os.kill(workers()[0], signal.SIGKILL)
    told = []

    def allow(text: Any, *_: Any, **__: Any) -> None:
        told.append(str(text))
        if "started" in told[-1]:
            (tmp_path / "allowed").touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warnings, "warn", allow)
        got += [batch.tolist() for batch in batches]
    assert got == [[i] for i in range(40)]
    assert "exited with status 1 while it started (no codec)" in told[1]


def test_one_that_is_killed_before_it_has_read_its_task_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Popen._launch  # type: ignore[attr-defined]
    launched: list[Any] = []

    def broken_at_first(self: Any, process: Any) -> None:
        launched.append(process)
        if len(launched) == 1:
            raise BrokenPipeError
        launch(self, process)

    monkeypatch.setattr(Popen, "_launch", broken_at_first)
    loader = DataLoader(Ints(8), batch_size=4, num_workers=2, multiprocessing_context="forkserver")
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(launched) == 3


def test_an_interrupt_as_workers_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    finalize = multiprocessing.util.Finalize
    made: list[Any] = []

    def interrupted_at_the_second(*arguments: Any) -> Any:
        made.append(finalize(*arguments))
        if len(made) == 2:
            signal.raise_signal(signal.SIGINT)
        return made[-1]

    before = children()
    loader = DataLoader(Ints(8), batch_size=4, num_workers=3, multiprocessing_context="fork")
    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.util, "Finalize", interrupted_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    assert len(made) == 2
    assert children() == before
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_interrupt_of_the_whole_terminal_does_not_end_what_starts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Worker and template get it as their first instruction, as it were."""

    def interrupted(function: Any) -> Any:
        def begin(*arguments: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            function(*arguments)

        return begin

    monkeypatch.setattr(worker_starter, "run_worker", interrupted(worker_starter.run_worker))
    monkeypatch.setattr(fork_template, "_serve", interrupted(fork_template._serve))
    loader = DataLoader(Ints(8), batch_size=4, num_workers=2, multiprocessing_context="fork")
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert loader.stats()["worker_deaths"] == 0
    loader.shutdown()
    assert capfd.readouterr().err == ""


# From Python 3.14 on, the main process has closed its copy of the end that the worker reads.
@pytest.mark.parametrize("breaks", [False, True])
def test_a_spawned_worker_that_is_killed_before_it_has_read_its_task_is_replaced(
    breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the task, and if only multiprocessing can send it: the descriptor is an example."""
    spawn = multiprocessing.util.spawnv_passfds
    spawned: list[int] = []

    def killed_at_first(*arguments: Any) -> int:
        spawned.append(spawn(*arguments))
        if len(spawned) == 1:
            os.kill(spawned[0], signal.SIGKILL)
            os.waitid(os.P_PID, spawned[0], os.WEXITED | os.WNOWAIT)
        return spawned[-1]

    def broken_at_first(*arguments: Any, **options: Any) -> Any:
        if breaks and len(spawned) == 1:
            raise BrokenPipeError
        return open(*arguments, **options)

    multiprocessing.resource_tracker.ensure_running()  # which is spawned in the same way
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, monkeypatch.context() as patch:
        patch.setattr(multiprocessing.util, "spawnv_passfds", killed_at_first)
        patch.setattr(multiprocessing.popen_spawn_posix, "open", broken_at_first, raising=False)
        dataset = Samples([0, "x" * 200_000, theirs])
        loader = DataLoader(dataset, sampler=[0], num_workers=1, multiprocessing_context="spawn")
        with pytest.warns(RuntimeWarning, match="SIGKILL"):
            assert [batch.tolist() for batch in loader] == [[0]]
    assert len(spawned) == 2
    assert not os.path.exists(f"/proc/{spawned[0]}")


def test_an_exception_while_a_spawned_worker_is_sent_its_task_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of a signal handler, for instance."""
    multiprocessing.resource_tracker.ensure_running()
    before, descriptors = children(), len(os.listdir("/proc/self/fd"))
    loader = DataLoader(Ints(8), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    seen: list[set[int]] = []

    def interrupted(*_: Any, **__: Any) -> None:
        seen.append(children() - before)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.popen_spawn_posix, "open", interrupted, raising=False)
        with pytest.raises(KeyboardInterrupt):
            iter(loader)
    assert [len(new) for new in seen] == [1]
    assert children() == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_error_before_a_worker_is_spawned_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that pickling raises, for instance; not that of a worker that has ended."""

    def broken(*_: Any) -> None:
        raise BrokenPipeError("no process yet")

    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", broken)
    loader = DataLoader(Ints(8), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(BrokenPipeError, match="no process yet"):
        iter(loader)


def test_warnings_that_are_errors_do_not_leave_the_loader_without_workers(tmp_path: Path) -> None:
    loader = DataLoader(Deadly(6, 1, memory=str(tmp_path)), num_workers=1)
    iterator, got, warned = iter(loader), [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        while True:
            try:
                got.append(next(iterator).tolist())
            except RuntimeWarning:  # before the first batch, if the worker was fast
                warned += 1
            except StopIteration:
                break
    assert (got, warned) == ([[i] for i in range(6)], 1)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_sent_is_a_clear_error(context: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    loader = DataLoader(Unpicklable(4), num_workers=2, multiprocessing_context=context)
    with pytest.raises(pickle.PicklingError, match=r"dataset cannot be pickled.*this dataset stays where it is.*fork"):
        iter(loader)
    with pytest.raises(pickle.PicklingError, match=f'collate_fn cannot be pickled.*"{context}" requires'):
        iter(DataLoader(Ints(4), num_workers=1, multiprocessing_context=context, collate_fn=lambda samples: 1))
    with pytest.raises(pickle.PicklingError, match=r"collate_fn cannot be pickled.*Define it at the top level of a mo"):
        iter(DataLoader(Ints(4), num_workers=1, multiprocessing_context=context, collate_fn=lambda samples: 1))
    with open(os.devnull) as file, pytest.raises(pickle.PicklingError, match=r"Open files .*__getitem__"):
        iter(DataLoader(Samples([file]), num_workers=1, multiprocessing_context=context))
    assert not workers()
    del loader
    assert len(os.listdir("/proc/self/fd")) <= before + 4  # those of the forkserver, if it was not running yet


def test_descriptors_do_not_pile_up(tmp_path: Path) -> None:
    def once(number: int) -> int:
        loader = DataLoader(Deadly(6, 1, memory=str(tmp_path / str(number))), batch_size=2, num_workers=2)
        (tmp_path / str(number)).mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            assert len(list(loader)) == 3
        del loader
        return len(os.listdir("/proc/self/fd"))

    assert once(0) >= once(1) >= once(2)  # those of another test may close meanwhile


def test_a_slow_worker_does_not_hold_up_the_end() -> None:
    loader = DataLoader(Slow(10, 1000, 4), num_workers=2)
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(4)] == [[0], [1], [2], [3]]
    del iterator, loader  # takes a thousand seconds, or does not
    assert not workers()


LEAVES = """
import os, sys, time
from pathlib import Path
import headrace
from headrace.data._workers import process_pool, thread_pool

process_pool.GRACE = thread_pool.GRACE = 100.0  # so that who waits for it is seen
kind, main = sys.argv[2], os.getpid()

def wait():
    Path(sys.argv[1], "began").touch()
    for _ in range(500):
        time.sleep(0.1)
    Path(sys.argv[1], "ended").touch()

class Waits:
    def __len__(self):
        return 3

    def __getitem__(self, index, out=None):
        if index == 1:
            wait()
        return index

    @property
    def sample_spec(self):
        if kind == "spec" and os.getpid() != main:
            wait()
        raise AttributeError

class Stream:
    def __iter__(self):
        yield from map(Waits().__getitem__, (0, 1, 2))

options = {
    "indexed": {},
    "stream": {"num_workers": 2},
    "spec": {},
    "worker_init_fn": {"worker_init_fn": lambda number: wait()},
    "thread": {"workers": "thread"},
}[kind]
kept = iter(headrace.DataLoader(Stream() if kind == "stream" else Waits(), **{"num_workers": 1, **options}))
if kind not in ("spec", "worker_init_fn"):
    next(kept)
while not Path(sys.argv[1], "began").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("kind", ["indexed", "stream", "spec", "worker_init_fn", "thread"])
def test_a_program_that_ends_does_not_wait_for_a_sample(kind: str, tmp_path: Path) -> None:
    """It may be one of a server that is gone; of a stream, the worker whose batch it is reads it, and one that skips
    it. A worker may also be on its way to its first sample.
    """
    program = tmp_path / "program.py"
    program.write_text(LEAVES)
    subprocess.run([sys.executable, str(program), str(tmp_path), kind], check=True, timeout=250)
    assert not (tmp_path / "ended").exists()


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_workers_do_as_they_end_is_waited_for(context: str, tmp_path: Path) -> None:
    """Profilers and loggers write down then what they have; PyTorch's loader gives a worker five seconds, too."""
    result = run("flushes", str(tmp_path), context)
    assert result["notes"] == ["0", "1", "2"]
    assert result["seconds"] < 20  # all end at the same time


@pytest.mark.parametrize("way", ["default", "torch", "own", "running"])
def test_workers_of_a_forkserver_share_what_they_import(way: str) -> None:
    if way == "torch":
        pytest.importorskip("torch")
    result = run("preloads", way)
    torch = ["torch"] if way == "torch" else []
    ours = ["__main__", "numpy", "headrace.data._workers.start_reports", *torch, "headrace.data._workers.preloaded"]
    assert result["modules"] == {"own": ["json"], "running": ["__main__"]}.get(way, ours)
    if way == "torch":  # which alone is some 290 MiB; the main module of the program, each worker imports itself
        assert max(result["private"]) < 40


def test_other_processes_of_the_forkserver_get_interrupts() -> None:
    assert not run("other_process")["deaf"]


def test_two_loaders_at_once() -> None:
    loaders = [DataLoader(Everything(12), batch_size=3, num_workers=2) for _ in range(2)]
    for first, second in zip(*loaders):
        assert same(first, second)


def test_descriptions_of_exits() -> None:
    assert describe_exit(-9) == "was killed by SIGKILL"
    assert describe_exit(-999) == "was killed by signal 999"
    assert describe_exit(3) == "exited with status 3"
    assert describe_exit(None) == "died"


class Written:
    """Writes a file for each sample, which takes longer than a program that ends waits for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        with open(self.folder / str(index), "w") as file:
            file.write("begins, ")
            file.flush()
            time.sleep(1.5)
            file.write("ends")
        return index


def test_a_shutdown_lets_samples_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 100.0)  # five seconds may be too few on a busy machine
    loader = DataLoader(Written(tmp_path), 1, num_workers=2)
    batches = iter(loader)
    deadline = time.monotonic() + 100
    while not list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    loader.shutdown()
    assert {path.read_text() for path in tmp_path.iterdir()} == {"begins, ends"}
    del batches
