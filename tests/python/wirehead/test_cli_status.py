"""What ``status`` and ``clean`` say of a cache."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from commands import Command, run, settings, stored
from damage import remove_chunk

from headrace.wirehead import MongoTupleheadDataset, compat
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead.compat import WireheadLogger
from headrace.wirehead.status import status_of


def test_status_and_clean(folder: Path) -> None:
    empty = json.loads(run(folder, "status", "--json").stdout)
    assert (empty["generation"], empty["fill"], empty["swap_cap"], empty["seconds_per_sample"]) == (0, 0, 30, None)
    assert empty["exists"] is False
    nothing = run(folder, "clean").stdout
    assert nothing.startswith("there is no cache ")
    assert run(folder, "status").stdout.startswith(nothing)
    with Command(folder, "manage") as manage:
        manage.until("Manager: manages")
        while json.loads(run(folder, "status", "--json").stdout)["manager"] is None:
            pass
        _look_at_status(folder, manage)
    cleaned = run(folder, "clean", "--force")
    assert cleaned.returncode == 0, cleaned.stdout
    assert json.loads(run(folder, "status", "--json").stdout)["generation"] == 0


def test_a_reader_of_the_output_may_end(folder: Path) -> None:
    command = [sys.executable, "-m", "headrace.wirehead", "status", "--watch", "0.01"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("there is no cache ")
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == 1


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
        assert status["exists"] is True
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
        manager, writer = GenerationManager(keeping), Writer(cache)
        swaps: list[Any] = []
        for generation in range(1, 14):
            for number in range(2):
                assert writer.put((number, 0)) == (generation, number)
            late += 100 * generation
            while manager.step() is None:
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


def test_the_rate_falls_when_no_samples_come(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {**settings(folder), "SWAP_CAP": 2}
    now = 1000.0
    with contextlib.closing(Cache(keys)) as cache, contextlib.closing(Writer(cache)) as writer:
        manager, logger = GenerationManager(cache), WireheadLogger(keys)
        for store in cache.store, logger._cache.store:
            monkeypatch.setattr(store, "now", lambda: now)
        monkeypatch.setattr(compat, "time", SimpleNamespace(time=lambda: now))
        for _ in range(3):
            now += 1
            assert writer.put((0, 0)) is not None
            assert writer.put((0, 0)) is not None
            while manager.step() is None:  # the writer's lease names an older generation for a moment
                time.sleep(0.01)
        manager.close()
        assert status_of(cache).samples_per_second == 2  # four samples in two seconds
        assert logger.snapshot().samples_per_s == 0
        now += 1
        assert writer.put((0, 0)) is not None
        assert status_of(cache).samples_per_second == 2
        assert logger.snapshot().samples_per_s == 1
        now += 7
        assert status_of(cache).samples_per_second == 0.5  # five in ten
        assert logger.snapshot().samples_per_s == 0
        logger.close()


def test_who_watches_before_there_is_a_cache_and_after_it_was_cleaned(folder: Path) -> None:
    keys = settings(folder)
    with contextlib.closing(Cache(keys, create=False)) as watched:
        logger = WireheadLogger(keys)
        assert (status_of(watched).generation, logger.history()) == (0, [])
        for stored in (2, 1):
            with contextlib.closing(Cache(keys)) as cache, contextlib.closing(Writer(cache)) as writer:
                manager = GenerationManager(cache)
                for number in range(30 * stored):
                    assert writer.put((number, 0)) is not None
                    manager.step()
                while cache.current() < stored:
                    manager.step()
                manager.close()
                assert (status_of(watched).generation, len(logger.history())) == (stored, stored)
                cache.store.clean()
                status = status_of(watched)
                assert (status.generation, status.exists, logger.history()) == (0, False, [])


def test_status_shows_how_far_a_reader_is_behind(folder: Path) -> None:
    # The reader lets its generation go when it has read nothing for LEASE seconds.
    keys = {**settings(folder), "LEASE": 3600}
    (folder / "config.yaml").write_text(yaml.safe_dump(keys))
    with contextlib.closing(Cache(keys)) as cache:
        writer, manager, reader = Writer(cache), GenerationManager(cache), Reader(cache, ("data",))
        for generation in (1, 2):
            for number in range(30):
                assert writer.put((number, 0)) == (generation, number)
            assert manager.step() is not None
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
            manage.until("sample 3 of generation 1 is discarded: 1 of 1 chunks are missing")
            with contextlib.closing(Writer(cache)) as again:
                assert again.put((99, 0)) == (1, 3)
            assert manage.process.wait(100) == 0
            assert manage.until(r"SWAP!.* so far: (.*) Documents deleted: (.*) G") == [("30", "1")]
        assert [int(number) for number, _ in stored(cache, 1)] == [*range(3), 99, *range(4, 30)]
        assert "deleted     1\n" in str(status_of(cache))
    assert json.loads(run(folder, "status", "--json").stdout)["deleted"] == 1
