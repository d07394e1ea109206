"""The benchmark, short; and the published algorithm that it compares with."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.wirehead import Config
from headrace.wirehead._benchmarks import bench
from headrace.wirehead._benchmarks.bench import _transfer_once, noise, scan
from headrace.wirehead._benchmarks.storm import StormResult
from headrace.wirehead._command_line.commands import main


@pytest.fixture
def published(server_uri: str) -> Iterator[Any]:
    """The published algorithm in a database of its own, in chunks of 1 KiB."""
    from headrace.wirehead._benchmarks.published_algorithm import Published

    name = f"headrace_test_{uuid.uuid4().hex[:12]}"
    found = Published(server_uri, name, chunksize=2**-10)
    yield found
    found.client.drop_database(name)
    found.client.close()


def test_the_published_algorithm_reads_what_it_has_written(published: Any) -> None:
    rng = np.random.default_rng(0)
    samples = [noise(16, "uint8", rng), scan(16, "float32", rng), noise(8, "float32", rng)]
    for sample in samples:
        published.put(sample)
    for id in (2, 0, 1):
        for array, expected in zip(published.get(id), samples[id]):
            found = np.asarray(array)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
    (chunks,) = (name for name in published.client[published._database.name].list_collection_names() if "bin" in name)
    sizes = [len(document["chunk"]) for document in published._database[chunks].find({"id": 0, "kind": "data"})]
    assert len(sizes) >= 5  # 16 cubed, and what torch or NumPy say of it
    assert max(sizes) == 1024


def test_transfer_compares_with_the_published_algorithm(location: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    samples = [scan(16, "uint8", rng) for _ in range(3)]
    with pytest.raises(ValueError, match="cannot be stored"):
        _transfer_once(location, [(1, 2, 3)])  # and leaves nothing behind
    ours, theirs = _transfer_once(location, samples)
    assert min(ours) > 0
    assert (theirs is None) == Config.load({**location, "SWAP_CAP": 3}).is_local
    assert theirs is None or min(theirs) > 0


def test_a_part_of_the_benchmark(server_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    import pymongo

    assert main(["bench", "--quick", "--only", "swap", "--uri", server_uri]) == 0
    output = capsys.readouterr().out
    assert output.startswith("\nswap: The time that a swap costs")
    assert len(re.findall(r"  samples of (?:64|65536) bytes, ", output)) == 4
    assert [len(swaps.split(", ")) for swaps in re.findall(r"manager (.*) ms\n", output)] == [2] * 4
    assert len(re.findall(r"all puts: median [\d.]+, p99 [\d.]+, worst [\d.]+ ms", output)) == 4
    with contextlib.closing(pymongo.MongoClient[Any](server_uri)) as client:
        assert [name for name in client.list_database_names() if name.startswith("headrace_bench")] == []


@pytest.mark.parametrize("problems", [[], ["sample 3 of generation 2 was lost"]])
def test_the_exit_code_says_whether_the_storm_found_problems(
    problems: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "storm", lambda *args, **keywords: StormResult(problems=problems))
    assert main(["bench", "--quick", "--only", "storm"]) == len(problems)
    assert all(problem in capsys.readouterr().out for problem in problems)


def test_a_part_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--only", "speed"]) == 2
    assert "unknown part speed; the parts are transfer, latency, scaling, swap, storm" in capsys.readouterr().err
