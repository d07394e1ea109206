"""What ends a dataset that nobody has closed, and a process that is asked to."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.util
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from ferretdb_server import Server

from headrace import DataLoader
from headrace.data._workers import process_pool, thread_pool
from headrace.errors import FailedPrecondition
from headrace.wirehead import MongoTupleheadDataset, WireheadGenerator
from headrace.wirehead._datasets import finalizer_thread
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._stores.store import FAREWELL
from headrace.wirehead.errors import StoreError, StoreUnreachableError
from headrace.wirehead.generator import ending_on_signals


@pytest.fixture
def filled(config: dict[str, Any]) -> dict[str, Any]:
    WireheadGenerator(iter([(1, 2)] * 5), config).run()
    return config


def readers(config: dict[str, Any]) -> int:
    cache = Cache(config)
    try:
        return sum(lease["role"] == "reader" for lease in cache.leases().values())
    finally:
        cache.close()


def test_the_garbage_collector_waits_for_no_lock(filled: dict[str, Any]) -> None:
    """It runs in whatever thread, at whatever moment: also while that holds what closing needs."""
    dataset = MongoTupleheadDataset(filled)
    assert len(dataset[0]) == 2
    assert readers(filled) == 1
    lease = dataset._reader._lease  # type: ignore[union-attr]
    circle: list[Any] = [dataset]
    circle.append(circle)
    del dataset, circle

    def collect() -> None:
        with lease._write_lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(100)
    assert not thread.is_alive()
    deadline = time.monotonic() + 100
    while readers(filled):
        assert time.monotonic() < deadline
        time.sleep(0.01)


PROGRAM = """
import sys, yaml
from headrace.wirehead import MongoTupleheadDataset
def read():
    dataset = MongoTupleheadDataset(yaml.safe_load(sys.argv[1]))
    dataset[0]
    return dataset
{last}
"""


@pytest.mark.parametrize("last", ["read()", "kept = read()", "read().close()"])
def test_a_process_that_ends_leaves_no_lease(filled: dict[str, Any], last: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(last=last))
    subprocess.run([sys.executable, str(program), yaml.safe_dump(filled)], check=True)
    assert readers(filled) == 0


READS = """
import sys, threading, yaml
from headrace.wirehead import MongoTupleheadDataset
dataset = MongoTupleheadDataset(yaml.safe_load(sys.argv[1]), to="numpy")
dataset[0]
def read():
    while True:
        dataset._reader.read(1, 0)
print("begins", flush=True)
sys.stdin.readline()
{last}
sys.stdin.readline()
"""
STORES = """
import itertools, sys, yaml
from headrace.wirehead.compat import WireheadGenerator
generator = WireheadGenerator(((i, i) for i in itertools.count()), yaml.safe_load(sys.argv[1]))
generator.cycle()
print("begins", flush=True)
sys.stdin.readline()
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    "text", [READS.format(last=""), READS.format(last="threading.Thread(target=read, daemon=True).start()"), STORES]
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_ends_while_the_server_does_not_answer(
    number: signal.Signals, text: str, own_server: Server, tmp_path: Path
) -> None:
    config = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 1, "TIMEOUT": 600}
    WireheadGenerator(
        iter([(np.random.default_rng(0).integers(0, 256, 3 << 20, np.uint8), 2)]), config
    ).run()  # in several chunks
    program = tmp_path / "program.py"
    program.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(program), yaml.safe_dump(config)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert own_server._process is not None
        own_server._process.send_signal(number)
        time.sleep(0.5)  # a thread has asked it for something
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(100) == 0  # two seconds, on an idle machine
    finally:
        process.kill()
        process.communicate()
        own_server.stop()


def test_no_thread_of_a_process_that_exits_waits_for_a_server_that_has_gone(own_server: Server) -> None:
    """It would start PyMongo's monitors again, and the exit would wait for them, a second for each dataset."""
    mongo_store = pytest.importorskip("headrace.wirehead._stores.mongo_store")
    config = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 1, "TIMEOUT": 600, "LEASE": 3}
    WireheadGenerator(iter([(1, 2)] * 2), config).run()
    dataset = MongoTupleheadDataset(config, to="numpy")
    assert dataset[0][0] == 1
    assert dataset._cache is not None
    store: Any = dataset._cache.store
    with contextlib.closing(Cache({**config, "TIMEOUT": 1})) as other:
        own_server.stop()
        deadline = time.monotonic() + 100
        while store._has_server() or other.store._has_server() or not store._waiting:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        mongo_store._close_unanswered()
        while store._waiting:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not {store, other.store} & set(mongo_store._opened)
    dataset.close()


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_a_thread_whose_store_was_closed_is_not_told_that_the_server_refuses(cache: Cache) -> None:
    cache.close()
    with pytest.raises(StoreUnreachableError, match="when it was closed"):
        cache.current()


def test_the_exit_of_a_process_waits_for_all_closing_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waits = 100.0, list[float]()
    monkeypatch.setattr(finalizer_thread, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(finalizer_thread, "_thread", SimpleNamespace(join=waits.append))
    monkeypatch.setattr(finalizer_thread, "_jobs", queue.SimpleQueue())
    monkeypatch.setattr(finalizer_thread, "_at_exit", set())
    monkeypatch.setattr(finalizer_thread, "_exit_until", None)
    finalizer_thread.close_at_exit(lambda: None)
    now += 0.5  # in which PyMongo has waited for its threads
    finalizer_thread.close_at_exit(lambda: None)
    finalizer_thread._finish()
    assert waits == [FAREWELL - 0.5]


CLOSES = {
    "dataset": """
from headrace.wirehead import MongoTupleheadDataset
with MongoTupleheadDataset(config) as dataset:
    dataset[0]
    wait()
""",
    "generator": """
from headrace.wirehead import WireheadGenerator
import headrace.wirehead.generator as module
finish = module.WireheadGenerator._finish
module.WireheadGenerator._finish = lambda self, *rest: (finish(self, *rest), wait())
assert WireheadGenerator(iter([(1, 2)] * 3), config).run() == 3
""",
    "compat": """
from headrace.wirehead.compat import WireheadGenerator
generator = WireheadGenerator(iter([(1, 2)] * 3), config)
generator.cycle()
wait()
try:
    generator.close()
except ConnectionError:  # its lease expires
    pass
""",
    "manager": """
from headrace.wirehead import WireheadGenerator, WireheadManager
import headrace.wirehead.manager as module
run = module.WireheadManager._run
module.WireheadManager._run = lambda self, *rest: (run(self, *rest), wait())
WireheadManager(config).run_manager(swaps=0)
""",
}


@pytest.mark.parametrize("what", list(CLOSES))
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("is_renewing", [False, True])
def test_closing_waits_for_no_server(
    is_renewing: bool, number: signal.Signals, what: str, own_server: Server, tmp_path: Path
) -> None:
    config = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 1, "TIMEOUT": 600, "LEASE": 3}
    WireheadGenerator(iter([(1, 2)] * 2), config).run()
    program = tmp_path / "program.py"
    wait = "def wait():\n    print('here', flush=True)\n    sys.stdin.readline()\n"
    program.write_text(f"import sys, yaml\nconfig = yaml.safe_load(sys.argv[1])\n{wait}{CLOSES[what]}")
    process = subprocess.Popen(
        [sys.executable, str(program), yaml.safe_dump(config)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert "here\n" in iter(process.stdout.readline, "")
        assert own_server._process is not None
        own_server._process.send_signal(number)
        time.sleep(2 if is_renewing else 0)  # a third of LEASE, and more: a thread waits for an answer, with the lock
        process.communicate("\n", timeout=200)  # two seconds, on an idle machine
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()
        own_server.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_closing_a_dataset_waits_for_no_thread_that_waits_for_the_server(
    number: signal.Signals, own_server: Server
) -> None:
    config = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 1, "TIMEOUT": 100}
    WireheadGenerator(iter([(1, 2)] * 2), config).run()
    with MongoTupleheadDataset(config) as dataset:
        assert len(dataset[0]) == 2
        assert own_server._process is not None
        own_server._process.send_signal(number)

        def read() -> None:
            with pytest.raises(StoreUnreachableError):
                dataset[0]

        thread = threading.Thread(target=read)
        thread.start()
        while dataset._lock.acquire(blocking=False):  # it asks for the current generation, with the lock
            dataset._lock.release()
            time.sleep(0.01)
        time.sleep(0.5)
        begin = time.monotonic()
    assert time.monotonic() - begin < 50  # one second, on an idle machine
    own_server.stop()
    thread.join(100)
    assert not thread.is_alive()


def test_closing_a_dataset_ends_waiting_for_new_data(filled: dict[str, Any]) -> None:
    with MongoTupleheadDataset(filled, to="numpy", wait_for_new=True) as dataset:
        *first, next_one = dataset.sampler(infinite=True).order(0, 0, 6)
        assert [len(dataset[index]) for index in first] == [2] * 5

        def read() -> None:
            with pytest.raises(StoreError, match="was closed"):
                dataset[next_one]

        thread = threading.Thread(target=read)
        thread.start()
        while dataset._lock.acquire(blocking=False):
            dataset._lock.release()
            time.sleep(0.01)
        dataset.close()
        thread.join(100)
        assert not thread.is_alive()
        assert len(dataset[0]) == 2
    assert readers(filled) == 0


def test_threads_open_a_closed_dataset_once(filled: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def open_slowly(*args: Any, **keywords: Any) -> Cache:
        time.sleep(0.1)
        opened.append(Cache(*args, **keywords))
        return opened[-1]

    with MongoTupleheadDataset(filled) as dataset:
        dataset.close()
        monkeypatch.setattr("headrace.wirehead._datasets.cache_dataset.Cache", open_slowly)
        threads = [threading.Thread(target=dataset.__getitem__, args=(id,)) for id in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(opened) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_loader_whose_samples_wait_for_the_server_is_shut_down_soon(
    number: signal.Signals, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "GRACE", 100.0)  # so that it shows who is waited for
    config = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 4, "TIMEOUT": 600}
    WireheadGenerator(iter([(1, 2)] * 4), config).run()
    with MongoTupleheadDataset(config, to="numpy") as dataset:
        sampler = dataset.sampler(infinite=True)
        loader = DataLoader(dataset, sampler=sampler, num_workers=2, prefetch_factor=2)
        batches = iter(loader)
        next(batches)
        assert own_server._process is not None
        own_server._process.send_signal(number)

        def read() -> None:
            with contextlib.suppress(FailedPrecondition):  # it is shut down
                for _ in batches:
                    pass

        thread = threading.Thread(target=read)
        thread.start()
        while not any(claim.at_row for claim in batches._engine.scheduler.claims()):  # the other one may still start
            time.sleep(0.01)
        time.sleep(0.5)  # they have asked it for something
        begin = time.monotonic()
        loader.shutdown()
        assert time.monotonic() - begin < 50  # two seconds, on an idle machine
        thread.join()


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_a_loader_that_waits_for_new_data_is_shut_down_at_once(
    filled: dict[str, Any], workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (process_pool, thread_pool):
        monkeypatch.setattr(module, "GRACE", 100.0)
        monkeypatch.setattr(module, "GRACE_OF_WAIT", 100.0)  # a worker that was killed would leave its lease
    with MongoTupleheadDataset(filled, to="numpy", wait_for_new=True) as dataset:
        sampler = dataset.sampler(infinite=True)
        loader = DataLoader(dataset, batch_size=5, sampler=sampler, num_workers=1, workers=workers)
        batches = iter(loader)
        next(batches)
        engine = batches._engine
        while not any(claim.at_row for claim in engine.scheduler.claims()):
            time.sleep(0.01)
        begin = time.monotonic()
        loader.shutdown()
        assert time.monotonic() - begin < 50
    assert readers(filled) == 0


ASKED = """
def say_when_asked(stop):
    threading.Thread(target=lambda: (stop.wait(), print("asked", flush=True)), daemon=True).start()
"""
GENERATES = f"""
import itertools, sys, threading, time, yaml
from headrace.wirehead import WireheadGenerator
{ASKED}
def samples():
    for i in itertools.count():
        if i == 3:
            print("begins", flush=True)
        yield i, i
        time.sleep(0.01)
generator = WireheadGenerator(samples(), yaml.safe_load(sys.argv[1]))
say_when_asked(generator._stop)
generator.run()
"""
MANAGES = f"""
import sys, threading, yaml
from headrace.wirehead import WireheadManager
{ASKED}
print("begins", flush=True)
manager = WireheadManager(yaml.safe_load(sys.argv[1]))
say_when_asked(manager._stop)
manager.run_manager()
"""


@pytest.mark.parametrize("text", [GENERATES, MANAGES])
def test_a_second_signal_ends_a_process_although_the_server_does_not_answer(
    text: str, own_server: Server, tmp_path: Path
) -> None:
    config = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 1, "TIMEOUT": 600}
    program = tmp_path / "program.py"
    program.write_text(text)
    process = subprocess.Popen(
        [sys.executable, str(program), yaml.safe_dump(config)], text=True, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        if text == MANAGES:
            assert process.stdout.readline().startswith("Manager: manages")
        assert own_server._process is not None
        own_server._process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)  # it has asked for something
        process.send_signal(signal.SIGINT)
        assert "asked\n" in iter(process.stdout.readline, "")  # two signals at once count as one
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.communicate()
        own_server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_may_come_while_the_event_is_in_use(number: signal.Signals) -> None:
    stop = threading.Event()
    with ending_on_signals(stop):
        with stop._cond:  # type: ignore[attr-defined]
            os.kill(os.getpid(), number)
            signal.sigpending()  # a moment in which the handler runs
        assert stop.wait(100)
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), number)
            signal.sigpending()
        assert ended.value.code == 128 + number


def test_datasets_that_come_and_go_leave_nothing_in_the_process(filled: dict[str, Any]) -> None:
    registered = multiprocessing.util._finalizer_registry  # type: ignore[attr-defined]
    with MongoTupleheadDataset(filled) as dataset:
        before = len(registered)
        for _ in range(3):
            dataset.close()
            assert len(dataset[0]) == 2
            with MongoTupleheadDataset(filled):
                pass
    assert len(registered) == before
