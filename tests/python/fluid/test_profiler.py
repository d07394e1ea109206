"""The table of operators and the timeline of programs, readers and loaders."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers, profiler

X = np.ones((4, 3), np.float32)


def model() -> Any:
    x = layers.data("x", [3])
    return layers.reduce_mean(layers.relu(layers.relu(layers.fc(x, 2, bias_attr=False))))


def tables(text: str) -> dict[str, dict[str, float]]:
    """Of each row, the numbers by their columns."""
    rows = {}
    for table in text.split("\n\n"):
        head, *lines = table.strip().splitlines()
        columns = re.split(r"\s{1,}(?=calls|total|min|max|ave|share|memory)", head)[1:]
        for line in lines:
            name, *numbers = line.split()
            rows[name] = dict(zip(columns, (float(number.rstrip("%")) for number in numbers)))
    return rows


def test_the_table_counts_calls_time_share_and_memory(
    exe: fluid.Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = model()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": X}, fetch_list=[loss])  # not profiled
    with profiler.profiler("CPU", "calls", tmp_path / "trace.json"):
        for _ in range(3):
            exe.run(feed={"x": X}, fetch_list=[loss])
    text = capsys.readouterr().out
    rows = tables(text)
    assert {name: row["calls"] for name, row in rows.items()} == {"relu": 6, "mul": 3, "reduce_mean": 3}
    assert next(iter(rows)) == "relu"
    assert sum(row["share"] for row in rows.values()) == pytest.approx(100, abs=0.0051 * len(rows))  # each is rounded
    assert rows["mul"]["memory bytes"] == 4 * 2 * 4
    for row in rows.values():
        assert 0 < row["min ms"] <= row["ave ms"] <= row["max ms"] <= row["total ms"]
        assert row["ave ms"] == pytest.approx(row["total ms"] / row["calls"], abs=1e-3)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans] == ["mul", "relu", "relu", "reduce_mean"] * 3
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in zip(spans, spans[1:]))


@pytest.mark.parametrize("key", ["calls", "total", "max", "min", "ave", "memory"])
def test_the_table_is_sorted_as_asked(
    exe: fluid.Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    loss = model()
    exe.run(fluid.default_startup_program())
    profiler.start_profiler("All")
    exe.run(feed={"x": X}, fetch_list=[loss])
    profiler.stop_profiler(key, tmp_path / "trace.json")
    column = {"total": "total ms", "memory": "memory bytes", "calls": "calls"}.get(key, f"{key} ms")
    values = [row[column] for row in tables(capsys.readouterr().out).values()]
    assert values == sorted(values, reverse=True)


def test_what_a_loop_runs_counts_for_its_operators(
    exe: fluid.Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 5)
    x = layers.fill_constant([200, 200], "float32", 0.5)
    cond = layers.less_than(i, n)
    loop = layers.While(cond)
    with loop.block():
        layers.assign(layers.matmul(x, x), x)
        layers.increment(i)
        layers.less_than(i, n, cond=cond)
    with profiler.profiler("CPU", None, tmp_path / "trace.json"):
        exe.run()
    rows = tables(capsys.readouterr().out)
    assert rows["matmul"]["calls"] == 5
    assert rows["while"]["calls"] == 1
    assert rows["while"]["total ms"] >= rows["matmul"]["total ms"]
    assert rows["while"]["share"] < rows["matmul"]["share"]
    assert sum(row["share"] for row in rows.values()) == pytest.approx(100, abs=0.0051 * len(rows))  # each is rounded


def test_reset_forgets_and_a_second_start_or_stop_does_nothing(
    exe: fluid.Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = model()
    exe.run(fluid.default_startup_program())
    profiler.reset_profiler()
    profiler.stop_profiler("total", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    profiler.start_profiler("CPU")
    exe.run(feed={"x": X}, fetch_list=[loss])
    profiler.reset_profiler()
    profiler.start_profiler("CPU")
    with pytest.raises(errors.InvalidArgument, match="sorted_key"):
        profiler.stop_profiler("size")
    exe.run(feed={"x": X}, fetch_list=[layers.relu(loss)])
    profiler.stop_profiler("default", tmp_path / "one")
    assert tables(capsys.readouterr().out)["relu"]["calls"] == 3
    profiler.start_profiler("CPU")
    profiler.stop_profiler("total", tmp_path / "empty")
    assert "nothing has run" in capsys.readouterr().out


def test_what_fails_is_there_and_the_profiler_is_stopped(
    exe: fluid.Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = fluid.data("x", [None], "int64")
    layers.one_hot(layers.reshape(x, [-1, 1]), 3)
    with pytest.raises(errors.HeadraceError), profiler.profiler("CPU", "total", tmp_path / "trace.json"):
        exe.run(feed={"x": np.array([7])})
    rows = tables(capsys.readouterr().out)
    assert rows["one_hot"]["calls"] == 1
    assert rows["one_hot"]["memory bytes"] == 0


def test_a_gpu_is_refused() -> None:
    for begin in (lambda: profiler.start_profiler("GPU"), lambda: profiler.cuda_profiler("out")):
        with pytest.raises(errors.Unimplemented, match="CPU"):
            begin()
    with pytest.raises(errors.InvalidArgument, match="state"):
        profiler.start_profiler("TPU")
    with pytest.raises(errors.InvalidArgument, match="tracer_option"):
        profiler.start_profiler("CPU", "Everything")


class Rows:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[np.ndarray]:
        return (np.full(3, i, np.float32),)


def test_operators_readers_and_workers_are_on_one_timeline(
    exe: fluid.Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = layers.py_reader(2, [[-1, 3]], ["float32"])
    loss = layers.reduce_mean(layers.read_file(reader))
    loader = headrace.DataLoader(Rows(), batch_size=2, num_workers=1, trace=True)
    exe.run(fluid.default_startup_program())
    profiler.start_profiler("CPU")
    reader.decorate_loader(loader)
    reader.start()
    means = [exe.run(fetch_list=[loss])[0].item() for _ in range(3)]
    with pytest.raises(fluid.core.EOFException):
        exe.run(fetch_list=[loss])
    profiler.stop_profiler("total", tmp_path / "trace.json")
    reader.reset()
    loader.shutdown()
    assert means == [0.5, 2.5, 4.5]
    rows = tables(capsys.readouterr().out)
    assert rows["read"]["calls"] == 4
    assert rows["BufferedReader"]["calls"] == 4
    assert rows["PyReader"]["calls"] == 4
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"]: (e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert len(set(tracks.values())) == len(tracks)
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert set(processes) == {"programs", "consumer", "workers", "slots"}
    assert len(set(processes.values())) == 4
    made: dict[int, Any] = {}  # where each batch began; workers are at the next epoch already
    for event in events:
        if event["ph"] == "X" and event["pid"] == processes["workers"] and event["args"]["epoch"] == 0:
            made.setdefault(event["args"]["batch"], event)
    assert set(made) == {0, 1, 2}
    reads = [e for e in events if e["ph"] == "X" and e["name"] == "read"]
    for batch, read in enumerate(reads[:3]):  # one clock: nothing is read before it has been made
        assert made[batch]["ts"] < read["ts"] + read["dur"]
