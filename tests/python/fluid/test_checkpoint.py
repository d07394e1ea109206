"""Checkpoints: training that was killed and resumed ends with the same bits; damaged or foreign ones are refused."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

PROGRAM = Path(__file__).with_name("train_with_checkpoints.py")

#: How often the program is killed; a hundred times by hand.
KILLS = int(os.environ.get("HEADRACE_CHECKPOINT_KILLS", "3"))


def train(folder: Path, workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), str(folder), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.timeout(240 + 20 * KILLS)
def test_a_program_that_is_killed_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 1)
    (*_, want) = whole.communicate(timeout=200)[0].splitlines()
    assert whole.returncode == 0
    assert want.startswith("done 30 ")
    chance = random.Random(17)
    kills, folder = 0, tmp_path / "killed"
    while True:
        steps = chance.randrange(1, 12)
        process = train(folder, chance.randrange(3))
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.strip())
            if kills < KILLS and len(lines) == steps:
                time.sleep(chance.random() * 0.01)
                process.kill()
                kills += 1
                break
        process.communicate(timeout=200)
        if process.returncode == 0:
            assert lines[-1] == want
            if kills >= KILLS:
                break
            folder = tmp_path / f"killed{kills}"  # once more from the beginning
        else:
            assert process.returncode == -signal.SIGKILL


class Rows:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[np.ndarray]:
        return (np.full(2, index, np.float32),)


def value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def model(width: int = 1) -> Any:
    x = layers.data("x", [2])
    loss = layers.mean(layers.fc(x, width, param_attr="w", bias_attr=False))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return loss


FEED = {"x": np.ones((3, 2), np.float32)}


def test_batches_that_were_read_ahead_are_read_again(exe: fluid.Executor, tmp_path: Path) -> None:
    reader = layers.py_reader(4, [[-1, 2]], ["float32"])
    total = layers.reduce_sum(layers.read_file(reader))
    loader = headrace.DataLoader(Rows(), batch_size=2, shuffle=True, seed=3)
    reader.decorate_loader(loader)
    exe.run(fluid.default_startup_program())

    def sums() -> list[float]:
        seen = []
        try:
            while True:
                seen.append(exe.run(fetch_list=[total])[0].item())
        except fluid.core.EOFException:
            reader.reset()
        return seen

    epochs = []
    for _ in range(2):
        reader.start()
        epochs.append(sums())
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 0})
    for count in (0, 1, 3, 6):
        reader.start()
        for _ in range(count):
            exe.run(fetch_list=[total])
        fluid.io.save_checkpoint(exe, tmp_path / str(count), extra=count)
        with pytest.raises(errors.FailedPrecondition, match="reset"):
            fluid.io.load_checkpoint(exe, tmp_path / str(count))
        reader.reset()
        # The rest of the epoch, then the next one; a checkpoint in the middle of a pass counts what it has left out.
        assert fluid.io.load_checkpoint(exe, tmp_path / str(count)) == count
        reader.start()
        if count == 1:
            assert exe.run(fetch_list=[total])[0].item() == epochs[0][1]
            fluid.io.save_checkpoint(exe, tmp_path / "again")
            reader.reset()
            assert fluid.io.load_checkpoint(exe, tmp_path / "again") == {}
            reader.start()
            assert sums() == epochs[0][2:]
        else:
            assert sums() == epochs[0][count:]
        reader.start()
        assert sums() == epochs[1]
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 0})


@pytest.mark.parametrize("double_buffer", [False, True])
@pytest.mark.parametrize("workers", [0, 1])
def test_at_the_end_of_the_data_the_next_pass_is_saved(
    exe: fluid.Executor, tmp_path: Path, workers: int, double_buffer: bool
) -> None:
    reader = layers.py_reader(2, [[-1, 2]], ["float32"], use_double_buffer=double_buffer)
    total = layers.reduce_sum(layers.read_file(reader))
    loader = headrace.DataLoader(Rows(), batch_size=2, shuffle=True, seed=3, num_workers=workers)
    reader.decorate_loader(loader)
    exe.run(fluid.default_startup_program())

    def sums(folder: Path) -> list[float]:
        seen = []
        reader.start()
        try:
            while True:
                seen.append(exe.run(fetch_list=[total])[0].item())
                if len(seen) == 6:  # the last one, which the program does not know yet
                    fluid.io.save_checkpoint(exe, folder / "last")
        except fluid.core.EOFException:
            fluid.io.save_checkpoint(exe, folder / "end")
            reader.reset()
        return seen

    passes = [sums(tmp_path / str(number)) for number in range(3)]
    assert [len(seen) for seen in passes] == [6, 6, 6]
    for number in (0, 1):
        fluid.io.load_checkpoint(exe, tmp_path / str(number) / "last")
        assert sums(tmp_path / "again") == []
        assert sums(tmp_path / "again") == passes[number + 1]
        fluid.io.load_checkpoint(exe, tmp_path / str(number) / "end")
        assert sums(tmp_path / "again") == passes[number + 1]
    loader.shutdown()


COPIES: dict[str, Callable[[fluid.Program], fluid.Program]] = {
    "original": lambda program: program,
    "clone": lambda program: program.clone(),
    "parsed": lambda program: fluid.Program.parse_from_string(program.serialize_to_string()),
}


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("copy", COPIES)
def test_the_position_is_where_the_program_reads(exe: fluid.Executor, tmp_path: Path, copy: str, wrapped: bool) -> None:
    reader = layers.py_reader(2, [[-1, 2]], ["float32"])
    if wrapped:
        layers.double_buffer(reader)
    out = layers.read_file(reader)
    reader.decorate_loader(headrace.DataLoader(Rows(), batch_size=1))
    exe.run(fluid.default_startup_program())
    program = COPIES[copy](fluid.default_main_program())

    def read(count: int) -> list[float]:
        return [exe.run(program, fetch_list=[out.name])[0][0, 0].item() for _ in range(count)]

    reader.start()
    assert read(3) == [0, 1, 2]
    fluid.io.save_checkpoint(exe, tmp_path, program)
    reader.reset()
    assert fluid.io.load_checkpoint(exe, tmp_path, program) == {}
    with pytest.raises(errors.FailedPrecondition, match="was not started"):
        read(1)
    reader.start()
    assert read(2) == [3, 4]
    reader.reset()


def test_loaders_that_are_iterated_over_continue(exe: fluid.Executor, tmp_path: Path) -> None:
    loss = model()
    exe.run(fluid.default_startup_program())
    loader = headrace.DataLoader(Rows(), batch_size=3, shuffle=True, seed=1)
    batches = [batch[0].tolist() for batch in loader]
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "batch": 0})
    iterator = iter(loader)
    next(iterator)
    exe.run(feed=FEED, fetch_list=[loss])
    fluid.io.save_checkpoint(exe, tmp_path, loaders={"rows": loader})
    kept = value("w")
    exe.run(feed=FEED, fetch_list=[loss])
    other = headrace.DataLoader(Rows(), batch_size=3, shuffle=True, seed=1, num_workers=1)
    assert fluid.io.load_checkpoint(exe, tmp_path, loaders={"rows": other}) == {}
    np.testing.assert_array_equal(value("w"), kept)
    assert [batch[0].tolist() for batch in other] == batches[1:]
    other.shutdown()
    with pytest.raises(errors.InvalidArgument, match="has a loader 'rows', which this program lacks"):
        fluid.io.load_checkpoint(exe, tmp_path)
    with pytest.raises(errors.InvalidArgument, match="it lacks loader 'cols'"):
        fluid.io.load_checkpoint(exe, tmp_path, loaders={"rows": loader, "cols": loader})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("count", [0, 2])
def test_after_a_pass_that_was_left_early_the_next_one_is_saved(
    exe: fluid.Executor, tmp_path: Path, workers: int, count: int
) -> None:
    reader = layers.py_reader(2, [[-1, 2]], ["float32"])
    total = layers.reduce_sum(layers.read_file(reader))
    exe.run(fluid.default_startup_program())

    def some(loader: headrace.DataLoader, count: int) -> list[float]:
        reader.decorate_loader(loader)
        reader.start()
        seen = [exe.run(fetch_list=[total])[0].item() for _ in range(count)]
        reader.reset()
        return seen

    loaders = [
        headrace.DataLoader(Rows(), batch_size=2, shuffle=True, seed=3, num_workers=number)
        for number in (workers, 1 - workers)
    ]
    some(loaders[0], count)
    fluid.io.save_checkpoint(exe, tmp_path, extra="early")
    passes = [some(loaders[0], count) for count in (6, 3, 6)]
    reader.decorate_loader(loaders[1])
    assert fluid.io.load_checkpoint(exe, tmp_path) == "early"
    assert [some(loaders[1], count) for count in (6, 3, 6)] == passes
    for loader in loaders:
        loader.shutdown()


@pytest.mark.parametrize("return_list", [False, True])
@pytest.mark.parametrize("name", ["PyReader", "DataLoader"])
def test_loaders_of_fluid_that_are_iterated_over_continue(
    exe: fluid.Executor, tmp_path: Path, name: str, return_list: bool
) -> None:
    model()
    exe.run(fluid.default_startup_program())
    make = fluid.io.PyReader if name == "PyReader" else fluid.io.DataLoader.from_generator

    def loader_of(workers: int) -> Any:
        feed_list = [fluid.default_main_program().global_block().var("x")]
        rows = headrace.DataLoader(Rows(), batch_size=2, shuffle=True, seed=1, num_workers=workers)
        return make(feed_list, 2, iterable=True, return_list=return_list).set_loader(rows)

    def rest(batches: Iterable[Any]) -> list[float]:
        return [np.array(batch[0] if return_list else batch["x"])[0, 0].item() for (batch,) in batches]

    loader = loader_of(0)
    epochs = [rest(loader()) for _ in range(3)]
    for taken in range(7):
        loader, other = loader_of(1), loader_of(0)
        batches = iter(loader())
        assert rest(itertools.islice(batches, taken)) == epochs[0][:taken]
        fluid.io.save_checkpoint(exe, tmp_path, loaders={"rows": loader})
        for _ in range(2):  # also in mid-pass
            assert fluid.io.load_checkpoint(exe, tmp_path, loaders={"rows": other}) == {}
            again = iter(other())
            assert rest(itertools.islice(again, 1)) == epochs[0][taken : taken + 1]
        assert rest(again) == epochs[0][taken + 1 :]
        del batches  # or it ends: the next pass is saved
        fluid.io.save_checkpoint(exe, tmp_path, loaders={"rows": loader})
        fluid.io.load_checkpoint(exe, tmp_path, loaders={"rows": other})
        assert [rest(other()), rest(other())] == epochs[1:]


def test_loaders_of_fluid_that_have_no_place(exe: fluid.Executor, tmp_path: Path) -> None:
    model()
    exe.run(fluid.default_startup_program())
    feed_list = [fluid.default_main_program().global_block().var("x")]
    loader = fluid.io.PyReader(feed_list, 2)
    with pytest.raises(errors.FailedPrecondition, match="the loader of x has no place that could be saved: only"):
        fluid.io.save_checkpoint(exe, tmp_path, loaders={"rows": loader})
    loader.decorate_batch_generator(lambda: iter([[np.ones((1, 2), np.float32)]]))
    with pytest.raises(errors.FailedPrecondition, match="set_loader"):
        fluid.io.save_checkpoint(exe, tmp_path, loaders={"rows": loader})
    with pytest.raises(errors.FailedPrecondition, match="set_loader"):
        loader.load_state_dict({})
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        read = fluid.io.PyReader([layers.data("y", [2])], 2, iterable=False)
        read.set_loader(headrace.DataLoader(Rows(), batch_size=2))
        with pytest.raises(errors.FailedPrecondition, match="save_checkpoint keeps its place with the program's"):
            fluid.io.save_checkpoint(exe, tmp_path, loaders={"rows": read})


def test_the_last_ones_are_kept_and_any_may_be_loaded(exe: fluid.Executor, tmp_path: Path) -> None:
    loss = model()
    exe.run(fluid.default_startup_program())
    assert fluid.io.load_checkpoint(exe, tmp_path / "none") is None
    values = []
    for step in range(4):
        exe.run(feed=FEED, fetch_list=[loss])
        values.append(value("w"))
        (tmp_path / f".unfinished-{step + 1}").mkdir()  # as a process that was killed leaves it
        (tmp_path / f".unfinished-{step + 1}" / "tensors").write_bytes(b"half")
        assert fluid.io.save_checkpoint(exe, tmp_path, extra={"step": step}, max_num_checkpoints=2) == step
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".lock") == ["checkpoint_2", "checkpoint_3"]
    assert fluid.io.load_checkpoint(exe, tmp_path, serial=2) == {"step": 2}
    np.testing.assert_array_equal(value("w"), values[2])
    assert fluid.io.load_checkpoint(exe, tmp_path) == {"step": 3}
    np.testing.assert_array_equal(value("w"), values[3])
    with pytest.raises(errors.NotFound, match=r"no checkpoint 0 .* only \[2, 3\]"):
        fluid.io.load_checkpoint(exe, tmp_path, serial=0)


def test_those_who_save_and_load_at_once_take_turns(exe: fluid.Executor, tmp_path: Path) -> None:
    model()
    exe.run(fluid.default_startup_program())
    program = fluid.default_main_program()
    fluid.io.save_checkpoint(exe, tmp_path, program, extra=0.0)
    scopes = [fluid.Scope() for _ in range(3)]

    def save(scope: fluid.Scope) -> list[int]:
        mine = float(scopes.index(scope))
        exe.run(fluid.default_startup_program(), scope=scope)
        scope.find_var("w").get_tensor().set(np.full((2, 1), mine, np.float32), fluid.CPUPlace())
        return [fluid.io.save_checkpoint(exe, tmp_path, program, extra=mine, scope=scope) for _ in range(4)]

    def load(scope: fluid.Scope) -> None:
        exe.run(fluid.default_startup_program(), scope=scope)
        for _ in range(8):
            extra = fluid.io.load_checkpoint(exe, tmp_path, program, scope=scope)
            if extra:  # the first one has other parameters
                assert np.array(scope.find_var("w").get_tensor()).tolist() == [[extra]] * 2

    with ThreadPoolExecutor(5) as threads:
        loads = [threads.submit(load, fluid.Scope()) for _ in range(2)]
        saved = [serial for serials in threads.map(save, scopes) for serial in serials]
        for each in loads:
            each.result()
    assert sorted(saved) == list(range(1, 13))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"checkpoint_{serial}" for serial in (10, 11, 12)]


@pytest.mark.parametrize("file", ["tensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_checkpoint_is_refused(exe: fluid.Executor, tmp_path: Path, file: str, damage: str) -> None:
    loss = model()
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        fluid.io.save_checkpoint(exe, tmp_path)
        exe.run(feed=FEED, fetch_list=[loss])
    path = tmp_path / "checkpoint_1" / file
    raw = path.read_bytes()
    before = value("w")
    if damage == "gone":
        path.unlink()
    else:
        middle = len(raw) // 2
        path.write_bytes(
            raw[:middle] if damage == "cut" else raw[:middle] + bytes([raw[middle] ^ 1]) + raw[middle + 1 :]
        )
    with pytest.raises(errors.DataLoss, match=r"checkpoint_1 is damaged.*load another with .*serial=…\): \[0\]$"):
        fluid.io.load_checkpoint(exe, tmp_path)
    np.testing.assert_array_equal(value("w"), before)
    assert fluid.io.load_checkpoint(exe, tmp_path, serial=0) == {}


def test_what_is_no_checkpoint_is_not_taken_for_none(exe: fluid.Executor, tmp_path: Path) -> None:
    model()
    exe.run(fluid.default_startup_program())
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(errors.InvalidArgument, match="file is not a folder"):
        fluid.io.load_checkpoint(exe, tmp_path / "file")
    with pytest.raises(errors.InvalidArgument, match="file is not a folder"):
        fluid.io.save_checkpoint(exe, tmp_path / "file")
    fluid.io.save_params(exe, str(tmp_path / "checkpoint_0"))  # as Fluid's releases of 2018 name theirs
    with pytest.raises(
        errors.DataLoss, match=r"checkpoint_0 is damaged, or was not written by Headrace .*there is no other$"
    ):
        fluid.io.load_checkpoint(exe, tmp_path)


def test_a_checkpoint_of_another_program_is_refused(exe: fluid.Executor, tmp_path: Path) -> None:
    model()
    exe.run(fluid.default_startup_program())
    fluid.io.save_checkpoint(exe, tmp_path)
    other, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(other, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        model(3)
        exe.run(startup)
        before = value("w")
        with pytest.raises(errors.InvalidArgument, match=r"'w' is float32 \[2, 3\] in the program, .* \[2, 1\] in"):
            fluid.io.load_checkpoint(exe, tmp_path, other)
        np.testing.assert_array_equal(value("w"), before)
        layers.create_global_var([1], 0.0, "float32", persistable=True, name="more")
        with pytest.raises(errors.InvalidArgument, match="it lacks variable 'more'"):
            fluid.io.load_checkpoint(exe, tmp_path, other)
    with pytest.raises(errors.InvalidArgument, match="which this program lacks"):
        fluid.io.load_checkpoint(exe, tmp_path, fluid.Program())


def test_what_cannot_be_saved_is_refused(exe: fluid.Executor, tmp_path: Path) -> None:
    model()
    with pytest.raises(errors.NotFound, match="startup"):
        fluid.io.save_checkpoint(exe, tmp_path)
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.TypeMismatch, match="JSON"):
        fluid.io.save_checkpoint(exe, tmp_path, extra={1, 2})
    with pytest.raises(errors.InvalidArgument, match="max_num_checkpoints"):
        fluid.io.save_checkpoint(exe, tmp_path, max_num_checkpoints=0)

    class Unstarted:
        def state_dict(self) -> Any:
            raise ValueError("the sampler was never started")

        def load_state_dict(self, state: Any) -> None: ...

    with pytest.raises(ValueError, match=r"^the sampler was never started$"):
        fluid.io.save_checkpoint(exe, tmp_path, loaders={"own": Unstarted()})
    assert fluid.io.load_checkpoint(exe, tmp_path) is None
    reader = layers.shuffle(layers.py_reader(2, [[-1, 2]], ["float32"]), 4)
    reader.decorate_loader(headrace.DataLoader(Rows(), batch_size=2))
    layers.read_file(reader)
    with pytest.raises(errors.FailedPrecondition, match="create_shuffle_reader"):
        fluid.io.save_checkpoint(exe, tmp_path)


def test_a_program_that_reads_one_source_by_two_readers_has_no_position(exe: fluid.Executor, tmp_path: Path) -> None:
    reader = layers.py_reader(2, [[-1, 2]], ["float32"], name="rows", use_double_buffer=False)
    buffered = layers.double_buffer(reader)
    reader.decorate_loader(headrace.DataLoader(Rows(), batch_size=2))
    layers.read_file(reader)
    layers.read_file(buffered)
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.FailedPrecondition, match=rf"'rows'.*reads from 'rows' and '{buffered.name}'"):
        fluid.io.save_checkpoint(exe, tmp_path)


def rows_in_a_file(path: Path) -> str:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        feeder = fluid.DataFeeder([layers.data("x", [2])])
    fluid.recordio_writer.convert_reader_to_recordio_file(str(path), lambda: ([Rows()[i]] for i in range(12)), feeder)
    return str(path)


UNSAVED: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: layers.open_recordio_file(rows_in_a_file(path), [[-1, 2]], [0], ["float32"]),
    "shuffled files": lambda path: layers.shuffle(
        layers.open_files([rows_in_a_file(path)], [[-1, 2]], [0], ["float32"]), 4
    ),
    "random data": lambda _: layers.random_data_generator(0.0, 1.0, [[3, 2]]),
}


@pytest.mark.parametrize("name", UNSAVED)
def test_a_position_that_is_not_saved_is_warned_of(exe: fluid.Executor, tmp_path: Path, name: str) -> None:
    reader = UNSAVED[name](tmp_path / "data")
    out = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    exe.run(fetch_list=[out])
    with pytest.warns(RuntimeWarning, match=f"position of reader '{reader.name}'.* is not saved"):
        fluid.io.save_checkpoint(exe, tmp_path / "checkpoints")


@pytest.mark.parametrize("by_loader", [False, True])
def test_what_python_feeds_is_not_warned_of(exe: fluid.Executor, tmp_path: Path, by_loader: bool) -> None:
    reader = layers.py_reader(2, [[-1, 2]], ["float32"])
    if by_loader:
        reader.decorate_loader(headrace.DataLoader(Rows(), batch_size=2))
    else:
        reader.decorate_batch_generator(lambda: iter([[np.ones((1, 2), np.float32)]]))
    out = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.start()
    exe.run(fetch_list=[out])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fluid.io.save_checkpoint(exe, tmp_path)
    reader.reset()


def append_drawing_op(op_type: str, attrs: dict[str, Any], inputs: dict[str, Any] | None = None) -> None:
    """Without a seed, and not by a layer."""
    block = fluid.default_main_program().global_block()
    block.append_op(op_type, inputs, {"Out": block.create_var(dtype="float32")}, {**attrs, "seed": 0})


DRAWS: dict[str, Callable[[Any], Any]] = {
    "uniform_random": lambda x: append_drawing_op("uniform_random", {"shape": [2]}),
    "dropout, by hand": lambda x: append_drawing_op("dropout", {"is_test": True}, {"X": x}),
    "nce": lambda x: layers.nce(x, layers.cast(layers.argmax(x, axis=1), "int64"), 4, num_neg_samples=2),
    "uniform_random, of a layer": lambda x: layers.uniform_random([2]),
    "gaussian_random_batch_size_like": lambda x: layers.gaussian_random_batch_size_like(x, [-1, 2]),
    "sampling_id": lambda x: layers.sampling_id(layers.softmax(x)),
    "uniform_random, with a seed of its own": lambda x: layers.uniform_random([2], seed=3),
    "dropout": lambda x: layers.dropout(x, 0.5),
    "dropout, in a test": lambda x: layers.dropout(x, 0.5, is_test=True),
    "random_crop": lambda x: layers.random_crop(x, [1]),
}


@pytest.mark.parametrize("random_seed", [0, 7])
@pytest.mark.parametrize("name", DRAWS)
def test_random_numbers_that_will_not_repeat_are_warned_of(
    exe: fluid.Executor, tmp_path: Path, name: str, random_seed: int
) -> None:
    """If the program has a ``random_seed``, and so ought to repeat."""
    for program in (fluid.default_main_program(), fluid.default_startup_program()):
        program.random_seed = random_seed
    DRAWS[name](layers.data("x", [2]))
    exe.run(fluid.default_startup_program())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fluid.io.save_checkpoint(exe, tmp_path)
    afresh = random_seed != 0 and name == "uniform_random"
    assert [f"'{name}'" in str(each.message) for each in caught] == [True] * afresh


def test_state_is_text(exe: fluid.Executor, tmp_path: Path) -> None:
    model()
    exe.run(fluid.default_startup_program())
    fluid.io.save_checkpoint(exe, tmp_path, extra="é")
    state = json.loads((tmp_path / "checkpoint_0" / "state.json").read_text("utf-8"))
    assert json.loads(state["state"])["variables"]["w"] == "float32 [2, 1]"
    assert fluid.io.load_checkpoint(exe, tmp_path) == "é"
