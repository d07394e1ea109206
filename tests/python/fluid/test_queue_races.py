"""Queues and readers that are ended and begun again while other threads use them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core

EPOCHS = 60


def in_threads(count: int, function: Callable[[int], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=function, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_ends_that_race_with_push_and_pop() -> None:
    """Without a time limit anywhere: a lost wake-up leaves a thread behind."""
    variable = fluid.Scope().var("queue")
    queue = core.init_lod_tensor_blocking_queue(variable, 3, [[3]])
    sent: list[list[tuple[int, int, int]]] = [[] for _ in range(3)]
    received: list[list[tuple[int, int, int]]] = [[] for _ in range(3)]
    drained: set[int] = set()

    def produce(producer: int) -> None:
        number = 0
        while not queue.is_killed():
            epoch = queue.epoch
            item = (epoch, producer, number)
            try:
                if queue.push([np.array(item)], epoch):
                    sent[producer].append(item)
                    number += 1
            except errors.QueueClosedError:
                pass

    def consume(consumer: int) -> None:
        while True:
            try:
                (batch,) = queue.pop()
            except core.EOFException:
                continue
            except KeyError:
                continue
            except errors.QueueClosedError:
                return
            received[consumer].append(tuple(np.asarray(batch).tolist()))

    threads = in_threads(3, produce) + in_threads(3, consume)
    dice = random.Random(1)
    for _ in range(EPOCHS):
        epoch = queue.epoch
        while dice.random() < 0.9:
            queue.size()
        end = dice.choice(["close", "close", "fail", "reopen"])
        if end == "close":
            queue.close(epoch)
            while queue.size():
                pass
            drained.add(epoch)
        elif end == "fail":
            queue.fail(KeyError("broken"), epoch)
        queue.reopen()
    queue.kill()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()

    arrived = [item for items in received for item in items]
    assert len(arrived) == len(set(arrived)), "an item was delivered twice"
    accepted = {item for items in sent for item in items}
    assert set(arrived) <= accepted
    assert drained
    lost = {item for item in accepted - set(arrived) if item[0] in drained}
    assert not lost, "items that were accepted before the close"


@pytest.mark.parametrize("double_buffer", [False, True])
def test_resets_that_race_with_programs(double_buffer: bool) -> None:
    """A program that runs meanwhile gets a batch, the end of the data, or hears that the reader is stopped; never that
    the queue was killed, nor a batch of a pass that is over.
    """
    with fluid.scope_guard(fluid.Scope()):  # for all threads
        problems = race_resets_with_programs(double_buffer)
    assert problems == []


def race_resets_with_programs(double_buffer: bool) -> list[str]:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        reader = fluid.layers.py_reader(capacity=2, shapes=[[-1, 1]], dtypes=["int64"], use_double_buffer=double_buffer)
        out = fluid.layers.read_file(reader)
    fluid.Executor(fluid.CPUPlace()).run(startup)
    current = 0
    problems: list[str] = []
    over = threading.Event()
    read = threading.Semaphore(0)

    def batches() -> Iterator[list[np.ndarray]]:
        epoch = current
        while True:
            yield [np.full((1, 1), epoch)]

    def run(_: int) -> None:
        executor = fluid.Executor(fluid.CPUPlace())
        while not over.is_set():
            before = current
            try:
                (value,) = executor.run(main, fetch_list=[out])
            except (core.EOFException, errors.FailedPrecondition):
                continue
            except BaseException as error:
                problems.append(repr(error))
                return
            if value[0, 0] < before:
                problems.append(f"a batch of pass {value[0, 0]} in pass {before}")
            read.release()

    reader.decorate_batch_generator(batches)
    reader.start()
    threads = in_threads(2, run)
    for epoch in range(1, EPOCHS):
        assert read.acquire(timeout=100), problems
        reader.reset()
        current = epoch
        reader.start()
    over.set()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    reader.reset()
    return problems


def test_programs_that_meet_the_same_error_at_once() -> None:
    """Each adds to what it was thrown; the error itself is raised once."""
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        reader = fluid.layers.py_reader(capacity=1, shapes=[[-1, 1]], dtypes=["float32"], use_double_buffer=False)
        out = fluid.layers.read_file(reader)
        x = fluid.layers.data("x" * 10000, [2])  # named in what is added
        fluid.layers.scale(x, 2.0)
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    desc = fluid.default_main_program().desc
    not_as_declared = np.ones((1, 3), np.float32)
    error = KeyError("mine")
    raised_itself = [0] * 4
    reader.queue.fail(error)

    def run(number: int) -> None:
        program = core.PreparedProgram(core.Executor(1), desc, scope)
        for _ in range(1000):
            try:
                program.run({x.name: not_as_declared}, [out.name])
            except KeyError as raised:
                raised_itself[number] += raised is error

    for thread in in_threads(4, run):
        thread.join(100)
        assert not thread.is_alive()
    assert sum(raised_itself) == 1
