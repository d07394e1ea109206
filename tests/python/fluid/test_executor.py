"""Running programs."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
from nets import fed_regression, number, number_reader, regression_batch

import headrace.fluid as fluid
from headrace import DataLoader, errors
from headrace.fluid import core
from headrace.fluid.framework import Variable


@pytest.fixture
def doubled() -> tuple[Variable, Variable]:
    x = fluid.layers.data("x", [2])
    return x, fluid.layers.scale(x, 2.0)


X = np.arange(6, dtype=np.float32).reshape(3, 2)


def test_fetches_come_in_order_as_arrays_or_tensors(exe: fluid.Executor, doubled: tuple[Variable, Variable]) -> None:
    _, out = doubled
    a, b = exe.run(feed={"x": X}, fetch_list=[out, "x"])
    np.testing.assert_array_equal(a, X * 2)
    np.testing.assert_array_equal(b, X)
    (tensor,) = exe.run(feed={"x": X}, fetch_list=out, return_numpy=False)
    assert isinstance(tensor, fluid.LoDTensor)
    assert exe.run(feed={"x": X}) == []


def test_fetched_tensors_become_arrays(exe: fluid.Executor, doubled: tuple[Variable, Variable]) -> None:
    x, double = doubled
    tensors = exe.run(feed={"x": np.ones((2, 2), np.float32)}, fetch_list=[x, double], return_numpy=False)
    one, two = fluid.executor.as_numpy(tensors)
    np.testing.assert_array_equal(one * 2, two)
    np.testing.assert_array_equal(fluid.executor.as_numpy(tensors[1]), two)
    with pytest.raises(errors.TypeMismatch, match="as_numpy takes a LoDTensor or a list of them, got ndarray"):
        fluid.executor.as_numpy(two)


def test_what_the_scope_alone_holds_is_fetched(exe: fluid.Executor) -> None:
    """As in Fluid, whose clones for tests give the optimizer's learning rate."""
    x = fluid.layers.data("x", [2])
    out = fluid.layers.mean(fluid.layers.fc(x, 1))
    clone = fluid.default_main_program().clone(for_test=True)
    rate = fluid.layers.piecewise_decay([1, 2], [0.5, 0.25, 0.125])
    fluid.optimizer.SGD(rate).minimize(out)
    exe.run(fluid.default_startup_program())
    for expected in (0.5, 0.25):
        exe.run(feed={"x": X}, fetch_list=[rate])
        before = exe.run(clone, feed={"x": X}, fetch_list=[out])[0]
        first, value, again = exe.run(clone, feed={"x": X}, fetch_list=[rate, out, rate.name])
        assert (first.tolist(), again.tolist(), value.tolist()) == ([expected], [expected], before.tolist())
        first[:] = 7  # the caller's
    with pytest.raises(errors.NotFound, match=r"cannot fetch 'nothing': the program declares no such variable"):
        exe.run(clone, feed={"x": X}, fetch_list=[rate, "nothing"])
    fluid.global_scope().var("reserved")
    fluid.global_scope().var("rows").get_selected_rows()
    for name in ("reserved", "rows"):
        with pytest.raises(errors.NotFound, match=f"cannot fetch '{name}'"):
            exe.run(clone, feed={"x": X}, fetch_list=[name])


def test_fetched_values_are_the_callers(exe: fluid.Executor, doubled: tuple[Variable, Variable]) -> None:
    _, out = doubled
    (first,) = exe.run(feed={"x": X}, fetch_list=[out])
    exe.run(feed={"x": X + 1}, fetch_list=[out])
    np.testing.assert_array_equal(first, X * 2)
    first[:] = 0
    (again,) = exe.run(feed={"x": X}, fetch_list=[out])
    np.testing.assert_array_equal(again, X * 2)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_fetched_values_are_not_what_was_fed(exe: fluid.Executor, as_tensor: bool) -> None:
    """Neither the variable that is fed, nor one that shares its memory: loops fill one buffer again and again."""
    x = fluid.layers.data("x", [2])
    outs = [x, fluid.layers.reshape(x, [-1, 1]), fluid.layers.scale(x, 1.0)]
    fed = fluid.LoDTensor.from_numpy(X) if as_tensor else X.copy()
    fetched = exe.run(feed={"x": fed}, fetch_list=outs)
    np.asarray(fed)[:] = 7
    for value in fetched:
        assert not np.shares_memory(value, np.asarray(fed))
        np.testing.assert_array_equal(value.ravel(), X.ravel())


def test_fetched_values_are_not_what_was_pushed(exe: fluid.Executor) -> None:
    reader, out = number_reader(double_buffer=False)
    exe.run(fluid.default_startup_program())
    tensor = fluid.LoDTensor.from_numpy(np.ones((1, 1), np.float32))
    reader.queue.push([tensor])
    (fetched,) = exe.run(fetch_list=[out])
    np.asarray(tensor)[:] = 7
    assert fetched[0, 0] == 1


def test_fed_arrays_are_not_written_to(exe: fluid.Executor) -> None:
    x = fluid.layers.data("x", [1], append_batch_size=False)
    fluid.layers.increment(x, 1.0, in_place=True)
    fed = np.zeros(1, np.float32)
    (out,) = exe.run(feed={"x": fed}, fetch_list=[x])
    assert (out[0], fed[0]) == (1, 0)


def test_a_view_of_a_parameter_does_not_disturb_training(exe: fluid.Executor) -> None:
    _, _, loss = fed_regression()
    fluid.optimizer.Adam(0.1).minimize(loss)
    startup, main = fluid.default_startup_program(), fluid.default_main_program()
    startup.global_block().ops[0]._set_attr("seed", 3)  # the weights

    def train(hold_views: bool) -> np.ndarray:
        scope = fluid.Scope()
        exe.run(startup, scope=scope)
        views = []
        for step in range(5):
            if hold_views:
                views.append([np.asarray(scope.find_var(p.name).get_tensor()) for p in main.all_parameters()])
            x, y = regression_batch(step)
            (value,) = exe.run(main, feed={"x": x, "y": y}, fetch_list=[loss], scope=scope)
        return value

    np.testing.assert_array_equal(train(True), train(False))


def test_what_is_declared_without_sequences_may_be_fed_with_some(
    exe: fluid.Executor, doubled: tuple[Variable, Variable]
) -> None:
    (got,) = exe.run(feed={"x": fluid.create_lod_tensor(X, [[1, 2]])}, fetch_list=[doubled[1]], return_numpy=False)
    np.testing.assert_array_equal(np.asarray(got), 2 * X)
    assert got.lod() == [[0, 1, 3]]


@pytest.mark.parametrize("lengths", [[1, 2], [2, 2]])
def test_a_ragged_batch_of_a_loader_is_fed_with_its_sequences(exe: fluid.Executor, lengths: list[int]) -> None:
    x = fluid.layers.data("x", [1], dtype="int64", lod_level=1)
    samples = [np.full((length, 1), length) for length in lengths]
    (batch,) = DataLoader(samples, batch_size=2, ragged="lod")
    (got,) = exe.run(feed={"x": batch}, fetch_list=[fluid.layers.scale(x, 2.0)], return_numpy=False)
    assert got.recursive_sequence_lengths() == [lengths]
    np.testing.assert_array_equal(np.asarray(got), 2 * np.concatenate(samples))


@pytest.mark.parametrize(
    ("feed", "error"),
    [
        ({"x": X.astype(np.float64)}, TypeError),
        ({"x": fluid.LoDTensor()}, ValueError),
        ({"x": None}, TypeError),
        ({"x": [[1], [1, 2]]}, ValueError),
        ([X], TypeError),
    ],
    ids=["dtype", "empty", "none", "ragged", "no mapping"],
)
def test_a_feed_that_does_not_fit_is_refused(
    exe: fluid.Executor, doubled: tuple[Variable, Variable], feed: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        exe.run(feed=feed, fetch_list=[doubled[1]])
    exe.run(feed={"x": X}, fetch_list=[doubled[1]])


def test_an_error_in_a_feed_names_the_variable(exe: fluid.Executor, doubled: tuple[Variable, Variable]) -> None:
    for wrong in (X.astype(np.float64), fluid.LoDTensor(), None):
        with pytest.raises(errors.HeadraceError) as caught:
            exe.run(feed={"x": wrong}, fetch_list=[doubled[1]])
        assert caught.value.variable == "x"


def test_a_forgotten_feed_and_an_unknown_fetch_are_refused(
    exe: fluid.Executor, doubled: tuple[Variable, Variable]
) -> None:
    with pytest.raises(errors.FailedPrecondition, match="x"):
        exe.run(fetch_list=[doubled[1]])
    with pytest.raises(KeyError, match="nothing"):
        exe.run(feed={"x": X}, fetch_list=["nothing"])
    with pytest.raises(TypeError, match="int"):
        exe.run(feed={"x": X}, fetch_list=[3])


def test_what_is_fed_and_not_declared_is_passed_over_with_a_warning(
    exe: fluid.Executor, doubled: tuple[Variable, Variable]
) -> None:
    """A program for a test may need less than the loop feeds."""
    feed = {"x": X, "label": np.zeros((3, 1), np.int64)}
    with pytest.warns(UserWarning, match="'label' is fed") as caught:
        (out,) = exe.run(feed=feed, fetch_list=[doubled[1]])
    np.testing.assert_array_equal(out, X * 2)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exe.run(feed=feed, fetch_list=[doubled[1]])
        fluid.Executor().run(feed=feed, fetch_list=[doubled[1]])
    with pytest.warns(UserWarning, match="'label'"):
        exe.run(fluid.default_main_program().clone(), feed=feed)
    with pytest.raises(TypeError, match="Variable"):
        exe.run(feed={doubled[0]: X}, fetch_list=[doubled[1]])


def test_a_forgotten_startup_program_is_noticed(exe: fluid.Executor) -> None:
    _, _, loss = fed_regression()
    x, y = regression_batch(0)
    with pytest.raises(errors.FailedPrecondition, match=r"fc_0\.w_0"):
        exe.run(feed={"x": x, "y": y}, fetch_list=[loss])


def test_arguments_of_the_wrong_type_are_refused(exe: fluid.Executor) -> None:
    with pytest.raises(TypeError, match="str"):
        exe.run("program")
    with pytest.raises(TypeError, match="Program"):
        exe.run(fluid.Program(), scope=fluid.Program())
    with pytest.raises(TypeError, match="int"):
        fluid.Executor(0)


def test_a_changed_program_is_prepared_again(exe: fluid.Executor, doubled: tuple[Variable, Variable]) -> None:
    _, out = doubled
    exe.run(feed={"x": X}, fetch_list=[out])
    fluid.default_main_program().global_block().ops[-1]._set_attr("scale", 3.0)
    (value,) = exe.run(feed={"x": X}, fetch_list=[out])
    np.testing.assert_array_equal(value, X * 3)
    further = fluid.layers.scale(out, 2.0)
    (value,) = exe.run(feed={"x": X}, fetch_list=[further])
    np.testing.assert_array_equal(value, X * 6)


def test_a_program_is_prepared_once(
    exe: fluid.Executor, doubled: tuple[Variable, Variable], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Counting(core.PreparedProgram):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(core, "PreparedProgram", Counting)
    for _ in range(3):
        exe.run(feed={"x": X}, fetch_list=[doubled[1]])
    assert len(made) == 1
    exe.run(feed={"x": X}, fetch_list=[])
    exe.run(feed={"x": X}, fetch_list=[doubled[1]], scope=fluid.Scope())
    assert len(made) == 2


def test_the_cache_keeps_neither_scopes_nor_programs_alive(exe: fluid.Executor) -> None:
    scope, program = fluid.Scope(), fluid.Program()
    with fluid.program_guard(program):
        out = fluid.layers.fill_constant([2], "float32", 1.0)
    exe.run(program, fetch_list=[out], scope=scope)
    gone_scope, gone_program = weakref.ref(scope), weakref.ref(program)
    del scope
    gc.collect()
    assert gone_scope() is None
    del program, out
    gc.collect()
    assert gone_program() is None


def test_many_scopes_one_after_the_other(exe: fluid.Executor) -> None:
    _, _, loss = fed_regression()
    x, y = regression_batch(0)
    scopes = []
    for _ in range(50):
        scope = fluid.Scope()
        exe.run(fluid.default_startup_program(), scope=scope)
        exe.run(feed={"x": x, "y": y}, fetch_list=[loss], scope=scope)
        scopes.append(weakref.ref(scope))
    gc.collect()
    assert [alive() for alive in scopes[:-1]] == [None] * 49


def test_a_program_that_is_being_prepared_holds_up_no_other(
    exe: fluid.Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = fluid.Program(), fluid.Program()
    for program in (slow, quick):
        with fluid.program_guard(program):
            fluid.layers.create_global_var([1], 1.0, "float32", persistable=True, name="x")
            fluid.layers.increment(program.global_block().var("x"), 1.0)
    begun, may_end, prepare = threading.Event(), threading.Event(), core.PreparedProgram

    def slowly(executor: Any, desc: Any, scope: Any) -> Any:
        if desc is slow.desc:
            begun.set()
            assert may_end.wait(100)
        return prepare(executor, desc, scope)

    monkeypatch.setattr(core, "PreparedProgram", slowly)
    scope = fluid.Scope()
    scope.var("x").get_tensor().set(np.ones(1, np.float32))
    thread = threading.Thread(target=lambda: exe.run(slow, scope=scope))
    thread.start()
    try:
        assert begun.wait(100)
        exe.run(quick, scope=scope)
    finally:
        may_end.set()
        thread.join()
    assert np.array(scope.find_var("x").get_tensor()) == 3


def test_scopes_keep_their_own_parameters(exe: fluid.Executor) -> None:
    var = fluid.layers.create_global_var([1], 1.0, "float32", name="counter")
    fluid.layers.increment(var, 1.0)
    a, b = fluid.Scope(), fluid.Scope()
    for scope in (a, b):
        exe.run(fluid.default_startup_program(), scope=scope)
    for _ in range(3):
        exe.run(scope=a)
    values = [float(np.asarray(s.find_var("counter").get_tensor())[0]) for s in (a, b)]
    assert values == [4.0, 1.0]


def test_scope_guard_changes_the_global_scope(exe: fluid.Executor) -> None:
    scope = fluid.Scope()
    fluid.layers.create_global_var([1], 1.0, "float32", name="v")
    with fluid.scope_guard(scope):
        exe.run(fluid.default_startup_program())
    assert scope.find_var("v") is not None
    assert fluid.global_scope().find_var("v") is None
    with pytest.raises(TypeError), fluid.scope_guard("scope"):
        pass


def test_lod_cannot_be_fetched_as_an_array(exe: fluid.Executor) -> None:
    x = fluid.layers.data("x", [2], lod_level=1)
    out = fluid.layers.relu(x)
    tensor = fluid.create_lod_tensor(X, [[1, 2]])
    with pytest.raises(RuntimeError, match="return_numpy=False"):
        exe.run(feed={"x": tensor}, fetch_list=[out])
    (fetched,) = exe.run(feed={"x": tensor}, fetch_list=[out], return_numpy=False)
    assert fetched.recursive_sequence_lengths() == [[1, 2]]


def test_a_closed_executor_runs_nothing() -> None:
    exe = fluid.Executor()
    exe.close()
    with pytest.raises(RuntimeError, match="closed"):
        exe.run(fluid.Program())


def test_other_threads_go_on_while_a_program_waits_for_data(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    queue = reader.queue
    progress = 0

    def work() -> None:
        nonlocal progress
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            progress += 1
        queue.push(number(7))

    thread = threading.Thread(target=work)
    thread.start()
    (value,) = exe.run(fetch_list=[out])
    thread.join()
    assert value[0, 0] == 7
    assert progress > 1000


@pytest.mark.parametrize("double_buffer", [False, True])
def test_ctrl_c_ends_a_program_that_waits_for_data(exe: fluid.Executor, double_buffer: bool) -> None:
    reader, out = number_reader(double_buffer=double_buffer)
    exe.run(fluid.default_startup_program())
    queue = reader.queue
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        exe.run(fetch_list=[out])
    timer.join()
    queue.push(number(3))
    (value,) = exe.run(fetch_list=[out])
    assert value[0, 0] == 3


def test_ctrl_c_ends_a_program_between_operators(exe: fluid.Executor) -> None:
    size, layers = 300, fluid.layers
    x = layers.data("x", [size, size], append_batch_size=False)
    done = layers.create_global_var([1], 0.0, "float32", persistable=True, name="done")
    out = x
    for _ in range(4000):
        out = layers.scale(layers.matmul(out, x), 1.0 / size)
    layers.assign(layers.reshape(layers.reduce_sum(out), [1]) * 0.0 + 1.0, done)
    exe.run(fluid.default_startup_program())
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        for _ in range(100):
            exe.run(feed={"x": np.ones((size, size), np.float32)})
            fluid.global_scope().find_var("done").get_tensor().set(np.zeros(1, np.float32))
    assert np.array(fluid.global_scope().find_var("done").get_tensor())[0] == 0


def test_all_fetch_lists_use_one_prepared_program(exe: fluid.Executor, doubled: tuple[Variable, Variable]) -> None:
    x, y = doubled
    for fetches, expected in [([y], [X * 2]), ([], []), ([x, y], [X, X * 2]), ([y, y], [X * 2, X * 2]), ([x], [X])]:
        for _ in range(2):
            fetched = exe.run(feed={"x": X}, fetch_list=fetches)
            assert len(fetched) == len(expected)
            for value, wanted in zip(fetched, expected):
                np.testing.assert_array_equal(value, wanted)


def test_threads_may_run_different_programs(exe: fluid.Executor) -> None:
    results: dict[int, float] = {}

    def work(index: int) -> None:
        program = programs[index]
        for _ in range(100):
            (value,) = exe.run(program[0], feed={"x": X}, fetch_list=[program[1]])
        results[index] = float(value.sum())

    programs = []
    for index in range(4):
        program = fluid.Program()
        with fluid.program_guard(program):
            programs.append((program, fluid.layers.scale(fluid.layers.data("x", [2]), float(index))))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: i * X.sum() for i in range(4)}


def test_threads_that_run_the_same_program_take_turns(exe: fluid.Executor) -> None:
    counter = fluid.layers.create_global_var([1], 0.0, "float32", name="counter")
    fluid.layers.increment(counter, 1.0)
    exe.run(fluid.default_startup_program())
    main, scope = fluid.default_main_program(), fluid.global_scope()
    threads = [threading.Thread(target=lambda: [exe.run(main, scope=scope) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.asarray(scope.find_var("counter").get_tensor())[0] == 200


def test_an_error_names_operator_and_can_be_survived(exe: fluid.Executor) -> None:
    logits = fluid.layers.data("logits", [3])
    label = fluid.layers.data("label", [1], dtype="int64")
    loss = fluid.layers.softmax_with_cross_entropy(logits, label)
    feed = {"logits": np.zeros((1, 3), np.float32), "label": np.array([[5]])}
    with pytest.raises(errors.HeadraceError) as caught:
        exe.run(feed=feed, fetch_list=[loss])
    assert caught.value.op_type == "softmax_with_cross_entropy"
    feed["label"] = np.array([[1]])
    exe.run(feed=feed, fetch_list=[loss])


@pytest.mark.parametrize(
    "value", [(np.zeros((3, 4), np.float32), [[1, 2]]), [[1.0, 2.0], [3.0]]], ids=["lod", "ragged"]
)
def test_what_makes_no_array_is_refused_with_the_name(exe: fluid.Executor, value: object) -> None:
    x = fluid.layers.data("x", [4])
    with pytest.raises(errors.InvalidArgument, match=rf"'x' is fed with a {type(value).__name__} .*create_lod_tensor"):
        exe.run(feed={"x": value}, fetch_list=[x])


class Owned(np.ndarray):
    """An array that may be referred to weakly."""


def test_programs_may_be_dropped_while_their_scope_ends() -> None:
    """By the end of an array that one of them holds, for example."""
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        reader, out = number_reader(double_buffer=False)
        fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
    desc = fluid.default_main_program().desc
    first, *others = (core.PreparedProgram(core.Executor(1), desc, scope) for _ in range(4))
    array = np.ones((1, 1), np.float32).view(Owned)
    weakref.finalize(array, others.clear)
    assert reader.queue.push([fluid.LoDTensor.from_numpy(array, copy=False)])
    del array
    first.run({}, [out.name])
    assert len(others) == 3
    del scope
    assert others == []


def test_fluids_datasets_are_refused_by_name(exe: fluid.Executor) -> None:
    for run in (exe.train_from_dataset, exe.infer_from_dataset):
        with pytest.raises(errors.Unimplemented, match="feed programs with layers"):
            run(fluid.default_main_program(), None)


def test_an_executor_says_where_it_runs(exe: fluid.Executor) -> None:
    assert repr(exe) == "Executor(CPUPlace)"


def test_what_belongs_to_another_program_is_said_to(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, 3])
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        another = fluid.data("another", [None, 3])
        doubled = fluid.layers.scale(another, 2.0)
    with pytest.raises(
        errors.NotFound, match=r"no variable 'another', .* slot 'Y' of 'elementwise_add': it belongs to another"
    ):
        x + another
    feed = {"x": np.ones((1, 3), np.float32)}
    for fetched in (doubled, [x, doubled]):
        with pytest.raises(errors.NotFound, match=rf"cannot fetch '{doubled.name}': it belongs to another program"):
            exe.run(feed=feed, fetch_list=fetched)
    with pytest.raises(errors.NotFound, match=r"cannot fetch 'y': the program declares no such variable"):
        exe.run(feed=feed, fetch_list=["y", x])


def test_a_fetched_lod_that_an_array_cannot_hold_is_that_of_a_variable(exe: fluid.Executor) -> None:
    words = fluid.data("words", [None, 2], lod_level=1)
    feed = {"words": fluid.create_lod_tensor(np.ones((3, 2), np.float32), [[1, 2]])}
    with pytest.raises(errors.FailedPrecondition, match="'words' is fetched as an array, but has a LoD"):
        exe.run(feed=feed, fetch_list=[fluid.layers.mean(words), words])
