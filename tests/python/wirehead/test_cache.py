"""Put, get and swap, on each kind of store."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from damage import remove_chunk
from numbered import fill, numbered, swaps

from headrace.wirehead import Config, MongoheadDataset, MongoTupleheadDataset, StoreError
from headrace.wirehead import WireheadGenerator as Generator
from headrace.wirehead._command_line.commands import main
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import SWAPS


@pytest.fixture
def annulled(cache: Cache) -> Cache:
    """Generation 1 is current, in which the third version of sample 2 counts."""
    fill(cache, 10)
    manager = GenerationManager(cache)
    for number in (98, 99):
        description = cache.sample(1, 2)
        assert description is not None
        assert remove_chunk(cache, 1, chunk_names(description, [0])[0])
        assert manager.step() is None
        with contextlib.closing(Writer(cache)) as writer:
            assert writer.put(next(numbered(number, 1))) == (1, 2)
    assert manager.step() is not None
    manager.close()
    return cache


@pytest.mark.parametrize("missed", [None, 0, 1])
def test_a_look_for_the_current_generation_finds_the_versions_that_count(
    annulled: Cache, missed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    with contextlib.closing(Cache(annulled.config)) as cache:
        find, scan = cache.store.find, cache.store.scan

        def scan_that_misses(table: str) -> dict[str, Any]:
            """One entry, as one may that begins before it is made."""
            found = sorted(scan(table).items())
            return {key: entry for k, (key, entry) in enumerate(found) if table != SWAPS or k != missed}

        monkeypatch.setattr(cache.store, "find", lambda table, key: asked.append(table) or find(table, key))
        monkeypatch.setattr(cache.store, "scan", scan_that_misses)
        with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            assert reader.pin_current(1) == 1
            asked.clear()
            assert [int(reader.read(1, id)["label"][1][0]) for id in range(5)] == [10, 11, 99, 13, 14]
        assert (SWAPS in asked) == (missed is not None)


def test_a_swap_makes_what_was_put_readable(config: dict[str, Any], cache: Cache) -> None:
    fill(cache, 10)
    assert cache.current() == 0
    swap = GenerationManager(cache).step()
    assert swap is not None
    assert (swap.generation, swap.samples, swap.deleted) == (1, 5, 0)
    assert cache.current() == 1
    dataset = MongoheadDataset(config, to="numpy")
    assert len(dataset) == 5
    assert [int(dataset[i]["label"][0]) for i in range(5)] == [10, 11, 12, 13, 14]
    sample = dataset[-1]
    assert sample["input"].dtype == np.float32
    assert (sample["input"] == 14).all()
    assert sample["label"].shape == (7,)
    dataset.close()


def test_lists_of_ids(config: dict[str, Any]) -> None:
    Generator(numbered(0, 5), config).run()
    dicts, tuples = MongoheadDataset(config, to="numpy"), MongoTupleheadDataset(config, to="numpy")
    assert dicts[[0]][0]["input"][0, 0] == 0
    assert list(dicts[[3, 1]]) == [3, 1]
    assert dicts[[3, 1]][1]["label"][0] == 1
    assert tuples[[4]][0][0][0, 0] == 4
    assert [int(label[0]) for _, label in tuples[np.array([2, 0, 2])]] == [2, 0, 2]
    for index in (5, [5], -6):
        with pytest.raises(IndexError, match="out of range"):
            tuples[[5] if index == 5 else index]
    assert len(list(tuples)) == 5
    for index in ("input", 1.5):
        with pytest.raises(TypeError, match=f"an index must be an integer, got {index!r}"):
            dicts[index]
    with pytest.raises(TypeError, match=r"an index must be an integer, got 1\.5"):
        tuples[[0, 1.5]]
    dicts.close()
    tuples.close()


def test_transform_and_normalize(config: dict[str, Any]) -> None:
    Generator(((np.arange(4, dtype=np.uint8), np.uint8(i)) for i in range(5)), config).run()
    dataset = MongoTupleheadDataset(config, transform=lambda a: a * 2, normalize=lambda a: a / a.max(), to="numpy")
    image, label = dataset[3]
    assert image.dtype == np.float32
    assert image.tolist() == [0, np.float32(1 / 3), np.float32(2 / 3), 1]
    assert label == 6
    assert label.dtype == np.uint8
    dataset.close()


def test_kinds_of_any_number(location: dict[str, Any]) -> None:
    config = {**location, "SWAP_CAP": 1, "SAMPLE": ["a", "b", "c"], "CHUNKSIZE": 1e-5}
    Generator([{"a": np.arange(9), "b": 2.5, "c": np.ones(20)}], config).run()
    dataset = MongoheadDataset(config, to="numpy")
    assert set(dataset[0]) == {"input", "label", "c"}
    assert dataset[0]["label"] == 2.5
    subset = MongoTupleheadDataset(config, sample=["c", "a"], to="numpy")
    assert [array.size for array in subset[0]] == [20, 9]
    with pytest.raises(ValueError, match=r"sample must be a list of different names of SAMPLE \['a', 'b', 'c'\], got"):
        MongoTupleheadDataset(config, sample=["d"])
    dataset.close()
    subset.close()


def test_two_managers_swap_once(cache: Cache) -> None:
    fill(cache, 0)
    managers = [GenerationManager(cache) for _ in range(2)]
    for manager in managers:
        manager._leads = manager._holds = lambda **_: True  # type: ignore[method-assign]  # as if neither saw the other
    ready, swap_of = threading.Barrier(2), cache.swap

    def both(generation: int) -> Any:
        ready.wait()  # both have verified the generation and go on to swap it
        return swap_of(generation)

    cache.swap = both  # type: ignore[method-assign]
    swaps = []
    threads = [threading.Thread(target=lambda manager=manager: swaps.append(manager.step())) for manager in managers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(swap is not None for swap in swaps) == 1
    assert [swap.generation for swap in cache.swaps()] == [1]


def test_managers_take_turns(config: dict[str, Any]) -> None:
    clock = [1000.0]
    cache = Cache(config, clock=lambda: clock[0])
    first, second = GenerationManager(cache), GenerationManager(cache)
    first.step()
    second.step()
    assert first.leads
    assert not second.leads
    first.close()
    while not second.leads:
        second.step()
        clock[0] += 1
    third = GenerationManager(cache)
    while not third.leads:  # the second one says nothing any more
        third.step()
        clock[0] += 1
    second.step()
    cache.close()


def test_clean_works_with_other_settings(config: dict[str, Any], cache: Cache, tmp_path: Path) -> None:
    swaps(cache, 0, 1)
    other = {**config, "SWAP_CAP": 6}
    with pytest.raises(StoreError, match=r"made with SWAP_CAP 5.*clean"):
        Cache(other)
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert main(["clean", "--config", str(tmp_path / "other.json")]) == 0
    Cache(other).close()


def test_no_data_is_an_error_in_time(config: dict[str, Any]) -> None:
    Generator(numbered(0, 3), config).run()
    with pytest.raises(TimeoutError, match=r"no data after 0\.1 seconds: .* has 3 of 5 samples.*generator running"):
        MongoheadDataset(config, timeout=0.1)
    with pytest.raises(TimeoutError, match="no data after 1 second: "):
        MongoheadDataset(config, timeout=1)


def test_waiting_for_data_is_said(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Generator(numbered(0, 3), config).run()
    now = [1000.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(
        "headrace.wirehead._protocol.cache.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    )
    with pytest.raises(TimeoutError):
        MongoheadDataset(config, timeout=80.5)
    said = [message for message in caplog.messages if message.startswith("no data yet")]
    assert len(said) == 2  # after 5 seconds and after 65
    assert re.search(r"the first generation of .*test.* has 3 of 5 samples; waiting up to 80\.5 s$", said[0])


def test_settings_must_agree(config: dict[str, Any], tmp_path: Path) -> None:
    Generator(numbered(0, 5), config).run()
    clean = r"another DBNAME, or first `python -m headrace\.wirehead clean --config"
    without_file = f"made with SWAP_CAP 5, but the configuration says 6: .*{clean} FILE`, with the keys of this conf"
    with pytest.raises(StoreError, match=without_file):
        MongoheadDataset({**config, "SWAP_CAP": 6})
    (tmp_path / "the other.json").write_text(json.dumps({**config, "SWAP_CAP": 6}))
    with pytest.raises(StoreError, match=f"the other.json says 6: .*{clean} '{tmp_path / 'the other.json'}'`"):
        MongoheadDataset(tmp_path / "the other.json")
    with pytest.raises(StoreError, match="made with SAMPLE"):
        Generator(numbered(0, 5), {**config, "SAMPLE": ["x", "y"]}).run()
    with contextlib.closing(open_store(Config.load(config))) as store:
        settings = store.find("settings", "settings")
        assert settings is not None
        store.replace("settings", "settings", {**settings, "format": 1})
    with pytest.raises(StoreError, match=r"another version of headrace, in format 1; this version uses 3: .*clean"):
        Cache(config)


@pytest.mark.parametrize("damage", [{"incarnation": 3}, {"incarnation": "../x"}, {"format": None}, {"SWAP_CAP": None}])
@pytest.mark.parametrize("create", [True, False])
def test_damaged_settings_are_refused(config: dict[str, Any], damage: dict[str, Any], create: bool) -> None:
    Cache(config).close()
    with contextlib.closing(open_store(Config.load(config))) as store:
        settings = {**(store.find("settings", "settings") or {}), **damage}
        store.replace("settings", "settings", {name: value for name, value in settings.items() if value is not None})
    with pytest.raises(StoreError, match=r"test.* at .* has damaged settings: .*first .*clean"):
        Cache(config, create=create)


def test_config_objects_are_taken_as_they_are(config: dict[str, Any]) -> None:
    loaded = Config.load(config)
    assert Config.load(loaded) is loaded


def test_a_manager_looks_for_a_fifth_of_the_time_and_again_soon_if_it_was_held_up(cache: Cache) -> None:
    clock = [1000.0]
    cache.clock = lambda: clock[0]
    manager = GenerationManager(cache)
    assert manager._until_next(clock[0]) == manager._until_next(clock[0] - 0.01) == manager.pause == 0.25
    assert manager._until_next(clock[0] - 0.2) == pytest.approx(0.8)
    assert manager._until_next(clock[0] - 10) == 1
