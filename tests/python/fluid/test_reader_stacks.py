"""Readers over readers, in any order and depth, whose passes end and begin again at any moment."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import DataLoader, errors
from headrace.fluid import core, layers, recordio_writer
from headrace.fluid.framework import Variable
from headrace.fluid.reader_variable import ReaderVariable

Batches = list[list[float]]


class Stack:
    """A reader, and what a pass of it has to yield: exactly so if nothing below it shuffles."""

    def __init__(self, reader: ReaderVariable, batches: Batches, can_rewind: bool) -> None:
        self.reader = reader
        self.batches = batches
        self.can_rewind = can_rewind
        self.ordered = True
        self.names: list[str] = []

    def put_on(self, name: str, number: int) -> None:
        self.names.append(f"{name}({number})")
        if name == "shuffle":
            self.reader, self.ordered = layers.shuffle(self.reader, number), self.ordered and number == 1
        elif name == "batch":
            self.reader = layers.batch(self.reader, number)
            groups = [self.batches[i : i + number] for i in range(0, len(self.batches), number)]
            self.batches = [[x for batch in group for x in batch] for group in groups]
        elif name == "multi_pass":
            self.reader, self.batches = layers.multi_pass(self.reader, number), self.batches * number
        elif name == "double_buffer":
            self.reader = layers.double_buffer(self.reader)
        elif name == "threaded":
            self.reader = layers.parallel(self.reader)
        else:
            preprocessor = layers.Preprocessor(self.reader)
            with preprocessor.block():
                (x,) = preprocessor.inputs()
                preprocessor.outputs(x + float(number))
            self.reader = preprocessor()
            self.batches = [[x + number for x in batch] for batch in self.batches]

    def check(self, got: Batches, whole: bool) -> None:
        if self.ordered:
            assert got == (self.batches if whole else self.batches[: len(got)]), self.names
        elif whole:
            assert len(got) == len(self.batches), self.names
            assert sorted(x for batch in got for x in batch) == sorted(x for b in self.batches for x in b), self.names


def numbers(count: int) -> Iterator[list[np.ndarray]]:
    for i in range(count):
        yield [np.full((1, 1), i, np.float32)]


def on_python(count: int, path: Path) -> Stack:
    reader = layers.py_reader(2, [[-1, 1]], ["float32"], use_double_buffer=False)
    reader.decorate_batch_generator(lambda: numbers(count))
    return Stack(reader, [[float(i)] for i in range(count)], can_rewind=False)


def write(path: Path, first: int, end: int) -> str:
    with recordio_writer.create_recordio_writer(str(path)) as writer:
        for i in range(first, end):
            tensor = fluid.LoDTensor()
            tensor.set(np.full((1, 1), i, np.float32), fluid.CPUPlace())
            writer.append_tensor(tensor)
            writer.complete_append_tensor()
    return str(path)


def on_a_file(count: int, path: Path) -> Stack:
    reader = layers.open_recordio_file(write(path / "file", 0, count), [[-1, 1]], [0], ["float32"])
    return Stack(reader, [[float(i)] for i in range(count)], can_rewind=True)


def on_files(count: int, path: Path) -> Stack:
    files = [write(path / str(i), i * count // 3, (i + 1) * count // 3) for i in range(3)]
    reader = layers.open_files(files, [[-1, 1]], [0], ["float32"], thread_num=3, buffer_size=2)
    stack = Stack(reader, [[float(i)] for i in range(count)], can_rewind=True)
    stack.ordered = False  # three threads
    return stack


def some(exe: fluid.Executor, out: Variable, most: int) -> tuple[Batches, bool]:
    """At most so many batches, and whether the pass has ended."""
    got: Batches = []
    while len(got) < most:
        try:
            got.append(exe.run(fetch_list=[out])[0].ravel().tolist())
        except core.EOFException:
            return got, True
    return got, False


@pytest.mark.parametrize("source", [on_python, on_a_file, on_files])
@pytest.mark.parametrize("seed", range(6))
def test_any_stack_yields_every_pass_as_a_whole(
    exe: fluid.Executor, tmp_path: Path, source: Callable[[int, Path], Stack], seed: int
) -> None:
    chance = random.Random(seed)
    stack = source(chance.randrange(1, 12), tmp_path)
    decorators = ["shuffle", "batch", "threaded", "double_buffer", "custom"] + ["multi_pass"] * stack.can_rewind
    base = stack.reader
    for _ in range(chance.randrange(1, 6)):
        stack.put_on(chance.choice(decorators), chance.randrange(1, 4))
    out = layers.read_file(stack.reader)
    exe.run(fluid.default_startup_program())
    for _ in range(6):
        if not stack.can_rewind:
            base.start()
        whole = chance.random() < 0.5
        got, ended = some(exe, out, 1000 if whole else chance.randrange(len(stack.batches)))
        assert ended == whole
        stack.check(got, whole)
        for _ in range(chance.randrange(1, 3)):
            stack.reader.reset()


@pytest.mark.parametrize("seed", range(4))
def test_a_reset_wakes_whoever_waits_for_a_stack(exe: fluid.Executor, seed: int) -> None:
    chance = random.Random(seed)
    may_go_on, waits = threading.Event(), threading.Event()

    def batches() -> Iterator[list[np.ndarray]]:
        yield from numbers(1)
        waits.set()
        may_go_on.wait(100)

    reader = layers.py_reader(2, [[-1, 1]], ["float32"], use_double_buffer=False)
    stack = Stack(reader, [[0.0]], can_rewind=False)
    for _ in range(chance.randrange(1, 5)):
        stack.put_on(chance.choice(["shuffle", "batch", "threaded", "double_buffer", "custom"]), 3)
    out = layers.read_file(stack.reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(batches)
    reader.start()
    ended: list[BaseException] = []

    def consume() -> None:
        try:
            while True:
                exe.run(fetch_list=[out])
        except BaseException as error:
            ended.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waits.wait(100)
    releaser = threading.Timer(0.2, may_go_on.set)  # the generator itself comes back a little later
    releaser.start()
    deadline = time.monotonic() + 100
    while consumer.is_alive():  # a reset wakes who waits; who has not waited yet, waits after it
        assert time.monotonic() < deadline, stack.names
        reader.reset()
        consumer.join(0.1)
    releaser.join()
    assert len(ended) == 1, stack.names
    assert isinstance(ended[0], (core.EOFException, errors.FailedPrecondition)), stack.names
    reader.decorate_batch_generator(lambda: numbers(1))
    reader.start()
    stack.check(some(exe, out, 10)[0], whole=True)
    reader.reset()


@pytest.mark.parametrize(
    "names", [["double_buffer"], ["threaded"], ["batch", "double_buffer"], ["shuffle"], ["custom", "batch"]]
)
def test_an_error_below_a_stack_is_the_one_that_was_raised(exe: fluid.Executor, names: list[str]) -> None:
    class Own(Exception):
        pass

    def batches() -> Iterator[list[np.ndarray]]:
        yield from numbers(3)
        raise Own("the user's")

    reader = layers.py_reader(2, [[-1, 1]], ["float32"], use_double_buffer=False)
    stack = Stack(reader, [[0.0], [1.0], [2.0]], can_rewind=False)
    for name in names:
        stack.put_on(name, 2)
    out = layers.read_file(stack.reader)
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        reader.decorate_batch_generator(batches)
        reader.start()
        with pytest.raises(Own, match="the user's") as caught:
            some(exe, out, 100)
        assert any(entry.name == "batches" for entry in caught.traceback)
        reader.reset()
    reader.decorate_batch_generator(lambda: numbers(3))
    reader.start()
    stack.check(some(exe, out, 100)[0], whole=True)
    reader.reset()


@pytest.mark.parametrize("names", [[], ["double_buffer"], ["threaded"], ["batch", "shuffle"]])
def test_what_comes_from_outside_cannot_be_read_again(exe: fluid.Executor, names: list[str]) -> None:
    """And a reset is legal although a reader could not be made."""
    stack = on_python(3, Path())
    for name in names:
        stack.put_on(name, 2)
    layers.read_file(layers.multi_pass(stack.reader, 2))
    exe.run(fluid.default_startup_program())
    stack.reader._feed_source.start()
    with pytest.raises(errors.FailedPrecondition, match="repeat the passes where the data come from"):
        exe.run()
    stack.reader.reset()


def test_readers_that_could_not_be_made_are_reset_and_started_again(exe: fluid.Executor) -> None:
    reader = layers.py_reader(2, [[-1, 1]], ["float32"])
    refused = layers.multi_pass(reader, 2)
    layers.read_file(refused)
    refused.decorate_loader(DataLoader(np.ones((4, 1), np.float32), batch_size=2))
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        refused.start()
        with pytest.raises(errors.FailedPrecondition, match="repeat the passes where the data come from"):
            exe.run()
        assert refused.stats()["batches"] == 0
        refused.reset()


def test_a_file_that_comes_later(exe: fluid.Executor, tmp_path: Path) -> None:
    """Neither a reset nor the statistics of its readers mind that it is not there yet."""
    reader = layers.open_recordio_file(str(tmp_path / "file"), [[-1, 1]], [0], ["float32"])
    buffered = layers.double_buffer(reader)
    out = layers.read_file(buffered)
    for run in (fluid.default_startup_program(), fluid.default_main_program()):
        with pytest.raises((errors.IoError, errors.FailedPrecondition), match=r"cannot open|has not been created"):
            exe.run(run)
        for each in (buffered, reader):
            each.reset()
            assert each.stats() == {"batches": 0, "wait_s": 0.0}
    write(tmp_path / "file", 0, 2)
    exe.run(fluid.default_startup_program())
    assert some(exe, out, 10) == ([[0.0], [1.0]], True)


@pytest.mark.parametrize("below", [[], ["double_buffer"], ["batch"]], ids=str)
def test_several_programs_share_the_batches_of_a_reader(exe: fluid.Executor, below: list[str]) -> None:
    """Each batch goes to one thread, and each thread sees the end. The first run makes the readers."""
    count = 200
    stack = on_python(count, Path())
    for name in [*below, "threaded"]:
        stack.put_on(name, 1)
    out = layers.read_file(stack.reader)
    exe.run(fluid.default_startup_program())
    main, scope = fluid.default_main_program(), fluid.global_scope()
    got: list[Batches] = [[] for _ in range(4)]
    ended: list[bool] = []

    def consume(k: int) -> None:
        own = fluid.Executor()
        try:
            while True:
                got[k].append(own.run(main, fetch_list=[out], scope=scope)[0].ravel().tolist())
        except core.EOFException:
            ended.append(True)

    for _ in range(2):
        for batches in got:
            batches.clear()
        stack.reader.start()
        got[0].append(exe.run(fetch_list=[out])[0].ravel().tolist())
        threads = [threading.Thread(target=consume, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert sorted(x for batches in got for batch in batches for x in batch) == list(map(float, range(count)))
        assert all(batches == sorted(batches) for batches in got)
        stack.reader.reset()
    assert len(ended) == 8


def test_a_program_may_declare_its_readers_itself(exe: fluid.Executor) -> None:
    """By operators and declarations, without the layers."""
    startup = fluid.Program()
    main = fluid.Program()
    block = startup.global_block()
    kinds = fluid.core.VarDesc.VarType
    numbers, batches = (block.create_var(name=n, type=kinds.READER, persistable=True) for n in ("numbers", "batches"))
    numbers.desc.set_dtypes([kinds.FP32, kinds.FP32])
    attrs = {"shape_concat": [1, 2, 1, 1], "ranks": [2, 2], "lod_levels": [0, 0], "low": 0.0, "high": 1.0}
    block.append_op("create_random_data_generator", outputs={"Out": numbers}, attrs=attrs)
    block.append_op("create_batch_reader", {"UnderlyingReader": numbers}, {"Out": batches}, {"batch_size": 3})
    declared = main.global_block().create_var(name="batches", type=kinds.READER, persistable=True)
    declared.desc.set_shapes(batches.desc.shapes())
    declared.desc.set_dtypes(batches.desc.dtypes())
    declared.desc.set_lod_levels(batches.desc.lod_levels())
    assert declared.desc.reader_specs == batches.desc.reader_specs == [([-1, 2], 5, 0), ([-1, 1], 5, 0)]
    outs = [main.global_block().create_var(name=name) for name in ("a", "b")]
    main.global_block().append_op("read", {"Reader": declared}, {"Out": outs})
    exe.run(startup)
    a, b = exe.run(main, fetch_list=outs)
    assert (a.shape, b.shape) == ((3, 2), (3, 1))
    declared.desc.set_lod_levels([1])
    assert declared.desc.reader_specs == [([-1, 2], 5, 1)]
    with pytest.raises(ValueError, match="99 is not the number of a dtype"):
        declared.desc.set_dtypes([99])
