"""``Program.random_seed``: what layers draw follows from it, and each operator draws something else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import layers
from headrace.fluid.framework import Variable

ROWS = np.arange(4 * 50, dtype=np.float32).reshape(4, 50)


def _rows() -> Variable:
    return layers.assign(ROWS)


def _nce() -> Variable:
    label = layers.assign(np.zeros((4, 1), np.int64))
    layers.nce(_rows(), label, 1000)
    ops = fluid.default_main_program().global_block().ops
    return next(op for op in reversed(ops) if op.type == "nce").output("SampleLabels")[0]


def _sampled_softmax() -> Variable:
    label = layers.assign(np.zeros((4, 1), np.int64))
    logits = layers.fill_constant([4, 1000], "float32", 0.5)
    layers.sampled_softmax_with_cross_entropy(logits, label, 20)
    ops = [op for op in fluid.default_main_program().global_block().ops if op.type == "sample_logits"]
    return ops[-1].output("Samples")[0]


SEEDED: dict[str, Callable[[], Variable]] = {
    "random_crop": lambda: layers.random_crop(_rows(), [7]),
    "dropout": lambda: layers.dropout(_rows(), 0.5, seed=0),
    "random_data_generator": lambda: layers.read_file(layers.random_data_generator(0.0, 1.0, [[20]])),
}
UNSEEDED: dict[str, Callable[[], Variable]] = {
    "uniform_random": lambda: layers.uniform_random([20]),
    "gaussian_random": lambda: layers.gaussian_random([20], seed=0),
    "uniform_random_batch_size_like": lambda: layers.uniform_random_batch_size_like(_rows(), [-1, 5]),
    "gaussian_random_batch_size_like": lambda: layers.gaussian_random_batch_size_like(_rows(), [-1, 5]),
    "sampling_id": lambda: layers.sampling_id(layers.fill_constant([20, 1000], "float32", 0.001)),
    "nce": _nce,
    "sampled_softmax_with_cross_entropy": _sampled_softmax,
}


def drawn(layer: Callable[[], Variable], seed: int, own_seed: bool = False) -> list[np.ndarray]:
    """What two uses of a layer draw in a program with a seed, which is something else in each run."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = seed
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
        outs = [layer(), layer()]
        exe = fluid.Executor()
        exe.run(startup)
        runs = [exe.run(main, fetch_list=outs) for _ in range(2)]
        assert own_seed or not np.array_equal(*(run[0] for run in runs))
        return runs[0]


@pytest.mark.parametrize("name", SEEDED)
def test_what_a_layer_draws_follows_from_the_seed_of_the_program(name: str) -> None:
    first, other = drawn(SEEDED[name], 7)
    again = drawn(SEEDED[name], 7)
    np.testing.assert_array_equal(first, again[0])
    np.testing.assert_array_equal(other, again[1])
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, drawn(SEEDED[name], 8)[0])


@pytest.mark.parametrize("name", UNSEEDED)
def test_noise_is_drawn_afresh_in_each_run_all_the_same(name: str) -> None:
    first, other = drawn(UNSEEDED[name], 7)
    assert not np.array_equal(first, other)


def test_a_seed_of_its_own_goes_before_that_of_the_program() -> None:
    first, other = drawn(lambda: layers.uniform_random([20], seed=3), 7, own_seed=True)
    np.testing.assert_array_equal(first, other)
    np.testing.assert_array_equal(first, drawn(lambda: layers.uniform_random([20], seed=3), 8, own_seed=True)[0])


def test_evaluating_between_steps_changes_no_mask() -> None:
    """The program that evaluates may be a clone, or one that was built for tests."""

    def build(is_test: bool) -> tuple[fluid.Program, fluid.Program, Variable]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = 7
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            return main, startup, layers.dropout(_rows(), 0.5, is_test=is_test)

    def masks(evaluates: bool) -> list[np.ndarray]:
        main, startup, out = build(False)
        tests = [main.clone(for_test=True), build(True)[0]]
        exe, drawn = fluid.Executor(), []
        with fluid.scope_guard(fluid.Scope()):
            exe.run(startup)
            for _ in range(3):
                drawn += exe.run(main, fetch_list=[out])
                for test in tests if evaluates else []:
                    np.testing.assert_allclose(exe.run(test, fetch_list=[out.name])[0], ROWS * 0.5)
        return drawn

    np.testing.assert_array_equal(masks(True), masks(False))


def shuffled(seed: int, count: int = 30) -> list[int]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = seed
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
        reader = layers.py_reader(64, [[1, 1]], ["int64"], use_double_buffer=False)
        reader.decorate_tensor_provider(lambda: ((np.full((1, 1), i),) for i in range(count)))
        out = layers.read_file(layers.shuffle(reader, count))
        exe = fluid.Executor()
        exe.run(startup)
        reader.start()
        values = []
        try:
            while True:
                values.append(int(exe.run(fetch_list=[out])[0].item()))
        except fluid.core.EOFException:
            return values


def test_the_order_of_a_shuffled_reader_follows_from_the_seed_of_the_program() -> None:
    first = shuffled(7)
    assert sorted(first) == list(range(30))
    assert shuffled(7) == first
    assert shuffled(8) != first


def test_without_a_seed_readers_draw_afresh() -> None:
    first, other = drawn(SEEDED["random_data_generator"], 0)
    assert not np.array_equal(first, other)
    order = shuffled(0, 1000)
    assert sorted(order) == list(range(1000))
    assert shuffled(0, 1000) != order
