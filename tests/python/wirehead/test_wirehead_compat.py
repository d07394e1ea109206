"""What scripts written for neuroneural/wirehead 0.9 rely on."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import operator
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.wirehead import compat  # noqa: E402
from headrace.wirehead._protocol.cache import Cache  # noqa: E402
from headrace.wirehead.compat import (  # noqa: E402
    MongoheadDataset,
    MongoTupleheadDataset,
    WireheadGenerator,
    WireheadLogger,
    quantile_normalize,
    unit_interval_normalize,
)


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 4}


# Public names of the original's packages, with the parameters of what is called.
NAMES = {
    "MongoheadDataset": "config_path timeout collection sample transform normalize id keeptrying",
    "MongoTupleheadDataset": "config_path timeout collection sample transform normalize id keeptrying",
    "WireheadGenerator": "generator config_path n_samples",
    "WireheadGenerator.cycle": "self verbose",
    "WireheadGenerator.run": "self verbose",
    "WireheadGenerator.run_generator": "self",
    "WireheadManager": "config_path",
    "WireheadManager.run_manager": "self",
    "WireheadLogger": "config_path poll_interval",
    "WireheadLogger.history": "self",
    "WireheadLogger.snapshot": "self",
    "WireheadLogger.run": "self",
    "WireheadLogger.run_daemon": "self",
    "WireheadLogger.run_tui": "self",
    "SwapLog": "swap_timestamp prev_swap_timestamp swap_duration swap_count db_name",
    "SwapLog.to_jsonl": "self",
    "WireheadSnapshot": "samples_started samples_completed in_flight swap_cap fill_pct is_swapping swap_lock_duration "
    "swap_count swap_timestamp swap_duration time_since_last_swap avg_swap_duration samples_per_s swaps_per_s "
    "write_mb_per_s write_docs write_size_mb read_docs read_size_mb mongo_active_ops db_name poll_interval timestamp "
    "recent_swaps",
    "WireheadSnapshot.to_jsonl": "self",
    "unit_interval_normalize": "img",
    "quantile_normalize": "img qmin qmax",
    "binary_to_tensor": "tensor_binary",
}


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_there_and_takes_the_same_arguments(name: str) -> None:
    found = operator.attrgetter(name)(compat)
    parameters = list(inspect.signature(found).parameters)
    wanted = NAMES[name].split()
    assert parameters[: len(wanted)] == wanted
    assert name.partition(".")[0] in compat.__all__


def test_what_the_original_does_to_its_collections_is_refused_with_the_reason(config: dict[str, Any]) -> None:
    generator = WireheadGenerator(samples(1), config)
    with pytest.raises(AttributeError, match=r"reset_counter: the cache manages its collections itself.*clean"):
        generator.reset_counter()
    with pytest.raises(AttributeError, match=r"has no attribute swop$"):
        generator.swop()


def test_a_dataset_has_the_indices_of_a_generation(config: dict[str, Any]) -> None:
    WireheadGenerator(samples(4), config).run()
    with MongoTupleheadDataset(config) as dataset:
        assert list(dataset.indices) == list(dataset.get_indeces()) == [0, 1, 2, 3]


def samples(count: int) -> Any:
    return ((np.full((2, 3), value, np.uint8), np.full(2, value, np.uint8)) for value in range(count))


def test_cycle_stores_one_sample_and_the_cache_is_managed_meanwhile(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    generator = WireheadGenerator(samples(9), config)
    for _ in range(9):
        generator.cycle(verbose=True)
    assert "Pushing index: 3, with cap: 4" in capsys.readouterr().out
    with pytest.raises(StopIteration):
        generator.cycle()
    with MongoTupleheadDataset(config) as dataset:
        while dataset.generation < 2:
            assert len(dataset[[0, 1]]) == 2
    generator.close()
    generator.close()


@pytest.mark.parametrize("end", [WireheadGenerator.close, WireheadGenerator._close_at_exit])
def test_a_script_that_ends_when_a_generation_is_full_leaves_it_to_readers(
    config: dict[str, Any], end: Callable[[WireheadGenerator], None]
) -> None:
    generator = WireheadGenerator(samples(4), config)
    for _ in range(4):
        generator.cycle()
    end(generator)
    with MongoTupleheadDataset({**config, "TIMEOUT": 1}, timeout=1) as dataset:
        assert len(dataset[[0, 1, 2, 3]]) == 4
    generator.close()


def test_a_verbose_run_prints_what_the_original_prints(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    WireheadGenerator(samples(4), config).run(verbose=True)
    assert set(capsys.readouterr().out.splitlines()) == {f"Pushing index: {i}, with cap: 4" for i in range(4)}


def test_the_input_is_float32_and_what_normalize_makes_of_it(config: dict[str, Any]) -> None:
    WireheadGenerator(samples(4), config).run()
    with MongoheadDataset(config, 5) as dataset:
        sample = dataset[[3]][3]
        assert sample["input"].dtype == torch.float32
        assert sample["label"].dtype == torch.uint8
        assert sample["input"].tolist() == [[3.0] * 3] * 2
    with MongoTupleheadDataset(config, 5, None, ("label", "data"), normalize=lambda img: img / 2) as dataset:
        first, second = dataset[[3]][0]
        assert first.tolist() == [1.5, 1.5]
        assert second.dtype == torch.uint8


def test_a_sample_is_a_pair_whatever_SAMPLE_holds(config: dict[str, Any]) -> None:
    config["SAMPLE"] = ["data", "label", "age"]
    WireheadGenerator(((np.full(2, i), i, 10 * i) for i in range(4)), config).run()
    with MongoTupleheadDataset(config) as tuples, MongoheadDataset(config) as dicts:
        image, label = tuples[[3]][0]
        assert (image.tolist(), label.item()) == ([3.0, 3.0], 3)
        assert list(dicts[3]) == ["input", "label"]
    with MongoTupleheadDataset(config, sample=("age", "data", "label")) as dataset:
        assert [array.tolist() for array in dataset[3]] == [30.0, [3, 3], 3]


def test_transform_is_called_with_bytes(config: dict[str, Any]) -> None:
    WireheadGenerator(samples(4), config).run()
    with MongoheadDataset(config, transform=lambda data: torch.load(io.BytesIO(data)) + 1) as dataset:
        sample = dataset[[2]][2]
        assert sample["input"].tolist() == [[3.0] * 3] * 2
        assert sample["label"].tolist() == [3, 3]


@pytest.mark.parametrize("arguments", [{"collection": object()}, {"id": "subject"}])
def test_databases_of_the_original_are_refused(config: dict[str, Any], arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="which cannot be read: pass config_path"):
        MongoheadDataset(config, **arguments)


def test_normalizers() -> None:
    image = torch.arange(101.0)
    assert unit_interval_normalize(image + 7).tolist() == (image / 100).tolist()
    assert torch.allclose(quantile_normalize(image), (image - 1) / 98)
    assert torch.allclose(quantile_normalize(image, 0.0, 0.5), image / 50)


def test_the_logger_tells_of_swaps(config: dict[str, Any]) -> None:
    assert WireheadLogger(config).history() == []
    WireheadGenerator(samples(13), config).run()
    logger = WireheadLogger(config)
    swaps = logger.history()
    assert [swap.swap_count for swap in swaps] == [1, 2, 3]
    assert swaps[0].prev_swap_timestamp is None
    assert swaps[2].prev_swap_timestamp == swaps[1].swap_timestamp
    assert json.loads(str(swaps[1]))["db_name"] == "test"
    snapshot = json.loads(logger.snapshot().to_jsonl())
    assert (snapshot["swap_count"], snapshot["samples_completed"], snapshot["fill_pct"]) == (3, 1, 25.0)
    assert len(snapshot["recent_swaps"]) == 3
    logger.close()


def test_the_logger_prints_the_swaps_so_far_and_those_of_the_next_cache(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    WireheadGenerator(samples(20 * 4), config).run()
    logger = WireheadLogger(config)
    known = [swap.swap_count for swap in logger.history()]
    assert known == list(range(known[0], 21))
    assert 1 < known[0] <= 10
    assert logger.history()[-1].prev_swap_timestamp == logger.history()[-2].swap_timestamp

    def cleans(seconds: float) -> None:
        with contextlib.closing(Cache(config)) as cache:
            if cache.current() < 20:
                raise KeyboardInterrupt
            cache.store.clean()
        WireheadGenerator(samples(3 * 4), config).run()

    monkeypatch.setattr(compat, "time", SimpleNamespace(sleep=cleans))
    logger.run()
    logger.close()
    _, lost, *printed = capsys.readouterr().out.splitlines()
    assert lost == f"Logger: {known[0] - 1} earlier swaps are no longer known"
    assert [json.loads(line)["swap_count"] for line in printed] == [*known, 1, 2, 3]
