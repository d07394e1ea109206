"""DynamicRNN, IfElse and the operators of rank tables, with their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from test_block_gradients import check_gradients, data, number, parameter

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(29)
WIDTH, HIDDEN = 3, 2


def sequences(lengths: list[list[int]], width: int = WIDTH) -> fluid.core.LoDTensor:
    rows = RNG.uniform(-1, 1, (sum(lengths[-1]), width))
    return fluid.create_lod_tensor(rows, lengths, fluid.CPUPlace())


def words(lod_level: int = 1) -> Variable:
    return layers.data("words", [-1, WIDTH], append_batch_size=False, dtype="float64", lod_level=lod_level)


def elman(x: Variable, init: Variable | None = None, need_reorder: bool = True) -> Variable:
    w, u = parameter("w", [WIDTH, HIDDEN]), parameter("u", [HIDDEN, HIDDEN])
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(x)
        if init is None:
            before = rnn.memory(shape=[HIDDEN], dtype="float64")
        else:
            before = rnn.memory(init=init, need_reorder=need_reorder)
        hidden = layers.tanh(layers.mul(word, w) + layers.mul(before, u))
        rnn.update_memory(before, hidden)
        rnn.output(hidden)
    return rnn()


def elman_in_numpy(x: fluid.core.LoDTensor, first: np.ndarray | None = None) -> np.ndarray:
    w, u = (np.array(fluid.global_scope().find_var(name).get_tensor()) for name in "wu")
    rows = np.array(x)
    offsets = x.lod()[-1]
    out = np.zeros((len(rows), HIDDEN))
    for s, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        state = np.zeros(HIDDEN) if first is None else first[s]
        for row in range(begin, end):
            state = out[row] = np.tanh(rows[row] @ w + state @ u)
    return out


def test_a_step_knows_its_number(exe: fluid.Executor) -> None:
    rnn = layers.DynamicRNN()
    assert rnn.step_idx is None
    with rnn.block():
        word = rnn.step_input(words())
        assert rnn.step_idx is not None
        rnn.output(layers.elementwise_mul(layers.ones_like(word), layers.cast(rnn.step_idx, "float64")))
    (got,) = exe.run(feed={"words": sequences([[2, 4, 1]])}, fetch_list=[rnn()], return_numpy=False)
    np.testing.assert_array_equal(np.array(got)[:, 0], [0, 1, 0, 1, 2, 3, 0])


@pytest.mark.parametrize("lengths", [[3], [2, 4, 1], [2, 2], [1, 0, 3]])
def test_an_elman_network_over_sequences_of_any_length(exe: fluid.Executor, lengths: list[int]) -> None:
    out = elman(words())
    exe.run(fluid.default_startup_program())
    x = sequences([lengths])
    (got,) = exe.run(feed={"words": x}, fetch_list=[out], return_numpy=False)
    assert got.recursive_sequence_lengths() == [lengths]
    np.testing.assert_allclose(np.array(got), elman_in_numpy(x), rtol=1e-12)


def test_its_gradients(exe: fluid.Executor) -> None:
    out = elman(words())
    weights = layers.assign(np.linspace(-1, 1, HIDDEN, dtype=np.float32))
    loss = layers.reduce_sum(layers.square(out) * layers.cast(weights, "float64"))
    check_gradients(exe, loss, {"words": sequences([[2, 4, 1, 3]])})


def test_a_memory_that_begins_with_what_was_computed_before(exe: fluid.Executor) -> None:
    first = layers.mul(data("first", [3, 1]), parameter("grow", [1, HIDDEN]))
    out = elman(words(), first)
    last = layers.sequence_last_step(out)
    feed = {"words": sequences([[2, 4, 1]]), "first": RNG.uniform(-1, 1, (3, 1))}
    check_gradients(exe, layers.mean(layers.square(last)), feed)
    grow = np.array(fluid.global_scope().find_var("grow").get_tensor())
    (got,) = exe.run(feed=feed, fetch_list=[out], return_numpy=False)
    np.testing.assert_allclose(np.array(got), elman_in_numpy(feed["words"], feed["first"] @ grow), rtol=1e-12)


def test_a_static_input_and_two_outputs(exe: fluid.Executor) -> None:
    scale = layers.mul(data("scale", [3, 1]), parameter("grow", [1, WIDTH]))
    rnn = layers.DynamicRNN()
    with rnn.block():
        word, fixed = rnn.step_input(words()), rnn.static_input(scale)
        rnn.output(word * fixed, word + fixed)
    product, total = rnn()
    x, factors = sequences([[1, 3, 2]]), RNG.uniform(-1, 1, (3, 1))
    feed = {"words": x, "scale": factors}
    check_gradients(exe, layers.mean(layers.square(product) + total), feed)
    grow = np.array(fluid.global_scope().find_var("grow").get_tensor())
    repeated = np.repeat(factors @ grow, [1, 3, 2], axis=0)
    got = exe.run(feed=feed, fetch_list=[product, total], return_numpy=False)
    np.testing.assert_allclose(np.array(got[0]), np.array(x) * repeated)
    np.testing.assert_allclose(np.array(got[1]), np.array(x) + repeated)


def test_sequences_of_sequences(exe: fluid.Executor) -> None:
    """A step sees a sequence of each paragraph; within it, another network reads its words."""
    rnn = layers.DynamicRNN()
    with rnn.block():
        sentence = rnn.step_input(words(lod_level=2))
        assert sentence.lod_level == 1
        ends = layers.sequence_last_step(elman(sentence))
        before = rnn.memory(shape=[HIDDEN], dtype="float64")
        after = layers.tanh(ends + layers.scale(before, 0.5))
        rnn.update_memory(before, after)
        rnn.output(after)
    out = rnn()
    x = sequences([[2, 1, 3], [3, 1, 2, 2, 1, 4]])
    check_gradients(exe, layers.mean(layers.square(out)), {"words": x})
    (got,) = exe.run(feed={"words": x}, fetch_list=[out], return_numpy=False)
    assert got.recursive_sequence_lengths() == [[2, 1, 3]]
    ends_of = elman_in_numpy(x)[np.array(x.lod()[1][1:]) - 1]
    expected, sentence_of = [], iter(ends_of)
    for length in (2, 1, 3):
        state = np.zeros(HIDDEN)
        for _ in range(length):
            state = np.tanh(next(sentence_of) + 0.5 * state)
            expected.append(state)
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-12)


def test_steps_and_back(exe: fluid.Executor) -> None:
    x = words()
    table = layers.lod_rank_table(x)
    steps = layers.lod_tensor_to_array(x, table)
    first, last = layers.array_read(steps, number(0)), layers.array_read(steps, number(3))
    back = layers.array_to_lod_tensor(steps, table)
    values = sequences([[2, 4, 1]])
    fetches = [layers.max_sequence_len(table), layers.array_length(steps), first, last, back]
    got = exe.run(feed={"words": values}, fetch_list=fetches, return_numpy=False)
    rows = np.array(values)
    assert np.array(got[0]).tolist() == np.array(got[1]).tolist() == [4]
    np.testing.assert_array_equal(np.array(got[2]), rows[[2, 0, 6]])
    np.testing.assert_array_equal(np.array(got[3]), rows[[5]])
    np.testing.assert_array_equal(np.array(got[4]), rows)
    assert got[4].lod() == values.lod()


def test_steps_of_parts_have_a_lod(exe: fluid.Executor) -> None:
    x = words(lod_level=2)
    table = layers.lod_rank_table(x)
    steps = layers.lod_tensor_to_array(x, table)
    back = layers.array_to_lod_tensor(steps, table)
    values = sequences([[1, 2], [2, 3, 1]])
    got = exe.run(feed={"words": values}, fetch_list=[layers.array_read(steps, number(0)), back], return_numpy=False)
    rows = np.array(values)
    np.testing.assert_array_equal(np.array(got[0]), rows[[2, 3, 4, 0, 1]])
    assert got[0].recursive_sequence_lengths() == [[3, 2]]
    np.testing.assert_array_equal(np.array(got[1]), rows)
    assert got[1].lod() == values.lod()


def test_gradients_have_the_lods_of_their_variables(exe: fluid.Executor) -> None:
    x = words(lod_level=2)
    x.stop_gradient = False
    table = layers.lod_rank_table(x)
    reordered = layers.reorder_lod_tensor_by_rank(x, table)
    again = layers.lod_rank_table(reordered)
    steps = layers.lod_tensor_to_array(reordered, again)
    first = layers.array_read(steps, number(0))
    shrunk = layers.shrink_memory(first, number(1), again)
    back = layers.array_to_lod_tensor(steps, again)
    loss = layers.reduce_sum(back) + layers.reduce_sum(shrunk)
    forward = [x, reordered, first]
    by = fluid.gradients(loss, forward)
    feed = {"words": sequences([[1, 2], [2, 3, 1]])}
    got = exe.run(feed=feed, fetch_list=forward + by, return_numpy=False)
    for value, gradient in zip(got[:3], got[3:]):
        assert np.array(gradient).shape == np.array(value).shape
        assert gradient.lod() == value.lod() != []


def test_reordered_by_rank(exe: fluid.Executor) -> None:
    x = words()
    table = layers.lod_rank_table(x)
    scaled = layers.elementwise_mul(data("y", [3, WIDTH]), parameter("w", [WIDTH]))
    rows, parts = layers.reorder_lod_tensor_by_rank(scaled, table), layers.reorder_lod_tensor_by_rank(x, table)
    weights = layers.cast(layers.assign(np.arange(9.0, dtype=np.float32).reshape(3, 3)), "float64")
    feed = {"words": sequences([[2, 4, 1]]), "y": RNG.uniform(-1, 1, (3, WIDTH))}
    check_gradients(exe, layers.mean(layers.square(rows) * weights), feed)
    got = exe.run(feed=feed, fetch_list=[scaled, rows, parts], return_numpy=False)
    np.testing.assert_array_equal(np.array(got[1]), np.array(got[0])[[1, 0, 2]])
    np.testing.assert_array_equal(np.array(got[2]), np.array(feed["words"])[[2, 3, 4, 5, 0, 1, 6]])
    assert got[2].recursive_sequence_lengths() == [[4, 2, 1]]


@pytest.mark.parametrize("mask", [[True, False, True], [False] * 3, [True] * 3])
def test_one_thing_for_some_rows_and_another_for_the_others(exe: fluid.Executor, mask: list[bool]) -> None:
    x = layers.elementwise_mul(data("x", [-1, WIDTH]), parameter("w", [WIDTH]))
    choice = layers.IfElse(data("mask", [-1, 1], "bool"))
    with choice.true_block():
        choice.output(layers.square(choice.input(x)))
    with choice.false_block():
        choice.output(layers.scale(choice.input(x), -3.0))
    (out,) = choice()
    feed = {"x": RNG.uniform(-1, 1, (3, WIDTH)), "mask": np.array(mask)[:, None]}
    check_gradients(exe, layers.mean(layers.square(out)), feed)
    got, rows = exe.run(feed=feed, fetch_list=[out, x])
    np.testing.assert_allclose(got, np.where(feed["mask"], rows**2, -3 * rows))


@pytest.mark.parametrize("mask", [True, False])
def test_a_side_that_gets_no_rows_does_not_run(exe: fluid.Executor, mask: bool) -> None:
    """It may not be able to: the masks of objects are found by a network that takes one region or more."""
    x = layers.elementwise_mul(data("x", [-1, WIDTH]), parameter("w", [WIDTH]))
    choice = layers.IfElse(data("mask", [-1, 1], "bool"))
    with choice.true_block():
        choice.output(layers.scale(layers.reshape(choice.input(x), [1, WIDTH]), 2.0))
    with choice.false_block():
        choice.output(layers.square(layers.reshape(choice.input(x), [1, WIDTH])))
    (out,) = choice()
    feed = {"x": RNG.uniform(-1, 1, (1, WIDTH)), "mask": np.array([[mask]])}
    check_gradients(exe, layers.mean(layers.square(out)), feed)
    for held in (mask, not mask, mask):
        got, rows = exe.run(feed={**feed, "mask": np.array([[held]])}, fetch_list=[out, x])
        np.testing.assert_allclose(got, 2 * rows if held else rows**2)


def test_only_one_side_is_used(exe: fluid.Executor) -> None:
    x = layers.elementwise_mul(data("x", [-1, WIDTH]), parameter("w", [WIDTH]))
    _, others = layers.split_lod_tensor(x, data("mask", [-1, 1], "bool"))
    feed = {"x": RNG.uniform(-1, 1, (4, WIDTH)), "mask": np.array([[True], [False], [True], [False]])}
    check_gradients(exe, layers.reduce_sum(layers.square(others)), feed)
    got, rows = exe.run(feed=feed, fetch_list=[others, x])
    np.testing.assert_array_equal(got, rows[[1, 3]])


def test_sequences_are_parted(exe: fluid.Executor) -> None:
    x = words()
    mask = data("mask", [-1, 1], "bool")
    some, others = layers.split_lod_tensor(x, mask)
    merged = layers.merge_lod_tensor(some, others, x, mask)
    feed = {"words": sequences([[2, 3, 1]]), "mask": np.array([[False], [True], [False]])}
    got = exe.run(feed=feed, fetch_list=[some, others, merged], return_numpy=False)
    assert [tensor.recursive_sequence_lengths() for tensor in got] == [[[3]], [[2, 1]], [[2, 3, 1]]]
    np.testing.assert_array_equal(np.array(got[2]), np.array(feed["words"]))


def test_a_level_that_is_not_declared_is_looked_for_when_the_table_is_made(exe: fluid.Executor) -> None:
    table = layers.lod_rank_table(words(lod_level=0), level=1)
    longest = layers.max_sequence_len(table)
    (got,) = exe.run(feed={"words": sequences([[1, 2], [3, 1, 4]])}, fetch_list=[longest])
    assert got == [4]
    with pytest.raises(errors.HeadraceError, match="level"):
        exe.run(feed={"words": sequences([[3, 1, 4]])}, fetch_list=[longest])


def test_bad_input_is_refused(exe: fluid.Executor) -> None:
    x = words()
    with pytest.raises(errors.InvalidArgument, match="level"):
        layers.lod_rank_table(x, level=1)
    with pytest.raises(TypeError, match="LoDRankTable"):
        layers.max_sequence_len(x)
    table = layers.lod_rank_table(x)
    steps = layers.lod_tensor_to_array(data("y", [-1, WIDTH]), table)
    shrunk = layers.shrink_memory(data("z", [-1, WIDTH]), number(0), table)
    with pytest.raises(errors.InvalidArgument, match="input I: expected a single element"):
        layers.shrink_memory(data("z2", [-1, WIDTH]), layers.fill_constant([2], "int64", 0), table)
    feed = {"words": sequences([[2, 1]]), "y": np.zeros((3, WIDTH)), "z": np.zeros((2, WIDTH))}
    with pytest.raises(errors.InvalidArgument, match="as the rank table has"):
        exe.run(feed=feed, fetch_list=[layers.array_read(steps, number(0))])
    program = fluid.Program()
    assert shrunk.shape == (-1, WIDTH)
    with fluid.program_guard(program):
        parts = layers.split_lod_tensor(data("x", [-1, 1]), data("mask", [-1, 1], "bool"))
        with pytest.raises(errors.InvalidArgument, match="input Mask: expected 2"):
            exe.run(program, {"x": np.zeros((2, 1)), "mask": np.ones((3, 1), bool)}, [parts[0]])


def test_misuse_is_refused() -> None:
    rnn = layers.DynamicRNN()
    with pytest.raises(errors.FailedPrecondition, match="must be called in the block"):
        rnn.step_input(words())
    with pytest.raises(errors.FailedPrecondition, match="no block"):
        rnn()
    with pytest.raises(errors.FailedPrecondition, match="needs a step_input"), rnn.block():
        pass
    rnn = layers.DynamicRNN()
    with pytest.raises(errors.FailedPrecondition, match="after the first step_input"), rnn.block():
        rnn.memory(shape=[2])
    rnn = layers.DynamicRNN()
    with pytest.raises(errors.FailedPrecondition, match="never updated"), rnn.block():
        word = rnn.step_input(words())
        rnn.memory(shape=[2])
        rnn.output(word)
    assert fluid.default_main_program().current_block_idx == 0
    choice = layers.IfElse(data("mask", [-1, 1], "bool"))
    with pytest.raises(errors.FailedPrecondition, match="must be called in a block"):
        choice.input(words())
    with pytest.raises(errors.FailedPrecondition, match="after its blocks"):
        choice()


def test_sequences_need_no_declared_lod(exe: fluid.Executor) -> None:
    rnn = layers.DynamicRNN()
    with rnn.block():
        rnn.output(layers.scale(rnn.step_input(words(lod_level=0)), 2.0))
    rows = np.arange(3.0 * WIDTH).reshape(3, WIDTH)
    (got,) = exe.run(
        feed={"words": fluid.create_lod_tensor(rows, [[1, 2]], fluid.CPUPlace())},
        fetch_list=[rnn()],
        return_numpy=False,
    )
    np.testing.assert_array_equal(np.array(got), 2 * rows)
    assert got.recursive_sequence_lengths() == [[1, 2]]
    with pytest.raises(errors.InvalidArgument, match="level 0"):
        exe.run(feed={"words": rows}, fetch_list=[rnn()])


@pytest.mark.parametrize("kind", ["shape", "init"])
def test_only_empty_sequences_are_refused_in_words(exe: fluid.Executor, kind: str) -> None:
    rnn = layers.DynamicRNN()
    first = layers.data("first", [WIDTH], dtype="float64")
    with rnn.block():
        word = rnn.step_input(words())
        before = rnn.memory(shape=[WIDTH], dtype="float64") if kind == "shape" else rnn.memory(init=first)
        after = word + before
        rnn.update_memory(before, after)
        rnn.output(after)
    out = layers.sequence_pool(rnn(), "sum")

    def run(lengths: list[int]) -> np.ndarray:
        rows = np.ones((sum(lengths), WIDTH))
        fed = {"words": fluid.create_lod_tensor(rows, [lengths], fluid.CPUPlace())}
        fed["first"] = np.zeros((len(lengths), WIDTH))
        return exe.run(feed=fed, fetch_list=[out])[0]

    with pytest.raises(errors.InvalidArgument, match="all sequences are empty"):
        run([0, 0])
    np.testing.assert_array_equal(run([2, 0]), [[3.0] * WIDTH, [0.0] * WIDTH])
