"""StaticRNN: a step described once, for all steps of a sequence."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(17)
STEPS, BATCH, WIDTH, HIDDEN = 4, 3, 2, 5
WORDS = RNG.uniform(-1, 1, (STEPS, BATCH, WIDTH)).astype(np.float32)


def words(stop_gradient: bool = True) -> Variable:
    x = fluid.data("words", [STEPS, None, WIDTH])
    x.stop_gradient = stop_gradient
    return x


def elman(x: Variable) -> Variable:
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        before = rnn.memory(shape=[-1, HIDDEN], batch_ref=word)
        hidden = layers.fc([word, before], HIDDEN, act="tanh", param_attr=["w", "u"], bias_attr="b")
        rnn.update_memory(before, hidden)
        rnn.step_output(hidden)
    return rnn()


def elman_in_numpy(x: np.ndarray, w: np.ndarray, u: np.ndarray, b: np.ndarray) -> np.ndarray:
    hidden = np.zeros((x.shape[1], HIDDEN))
    outputs = []
    for word in x:
        hidden = np.tanh(word @ w + hidden @ u + b)
        outputs.append(hidden)
    return np.stack(outputs)


def parameter(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


def test_an_elman_network(exe: fluid.Executor) -> None:
    out = elman(words())
    assert out.shape == (STEPS, -1, HIDDEN)
    assert sorted(p.name for p in fluid.default_main_program().all_parameters()) == ["b", "u", "w"]
    exe.run(fluid.default_startup_program())
    (got,) = exe.run(feed={"words": WORDS}, fetch_list=[out])
    np.testing.assert_allclose(got, elman_in_numpy(WORDS, *map(parameter, "wub")), rtol=1e-5, atol=1e-6)


def test_it_is_differentiated_through_all_steps(exe: fluid.Executor) -> None:
    weights = RNG.uniform(-1, 1, (STEPS, BATCH, HIDDEN)).astype(np.float32)
    loss = layers.reduce_sum(elman(words()) * layers.assign(weights))
    gradients = dict(fluid.backward.append_backward(loss))
    exe.run(fluid.default_startup_program())
    values = exe.run(feed={"words": WORDS}, fetch_list=list(gradients.values()))
    arguments = {name: parameter(name).astype(np.float64) for name in "wub"}

    def objective() -> float:
        return float((elman_in_numpy(WORDS, **arguments) * weights).sum())

    for variable, value in zip(gradients, values):
        argument = arguments[variable.name]
        for at in np.ndindex(argument.shape):
            kept = argument[at]
            argument[at] = kept + 1e-5
            above = objective()
            argument[at] = kept - 1e-5
            below = objective()
            argument[at] = kept
            assert value[at] == pytest.approx((above - below) / 2e-5, rel=1e-3, abs=1e-4), (variable.name, at)


def test_several_inputs_outputs_and_memories(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [3, 2]), fluid.data("y", [3, 2])
    start = layers.fill_constant([2], "float32", 10.0)
    rnn = layers.StaticRNN()
    with rnn.step():
        a, b = rnn.step_input(x), rnn.step_input(y)
        total = rnn.memory(init=start)
        last = rnn.memory(init=start)
        rnn.update_memory(total, total + a)
        rnn.update_memory(last, b)
        rnn.output(total + a, last)
    totals, lasts = rnn()
    first, second = np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((3, 2), np.float32)
    got = exe.run(feed={"x": first, "y": second}, fetch_list=[totals, lasts])
    np.testing.assert_array_equal(got[0], 10 + first.cumsum(0))
    np.testing.assert_array_equal(got[1], [[10, 10], [1, 1], [1, 1]])


@pytest.mark.parametrize("exact", [True, False])
def test_steps_may_hold_networks_themselves(exe: fluid.Executor, exact: bool) -> None:
    x = fluid.data("x", [3, 2, 4]) if exact else layers.data("x", [3, 2, 4], append_batch_size=False)
    outer = layers.StaticRNN()
    with outer.step():
        row = outer.step_input(x)  # [2, 4]
        zeros = layers.fill_constant([4], "float32", 0.0)
        inner = layers.StaticRNN()
        with inner.step():
            cell = inner.step_input(row)  # [4]
            running = inner.memory(init=zeros)
            inner.update_memory(running, running + cell)
            inner.step_output(running + cell)
        outer.step_output(inner())
    values = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    (got,) = exe.run(feed={"x": values}, fetch_list=[outer()])
    np.testing.assert_array_equal(got, values.cumsum(1))


@pytest.mark.parametrize("steps", [3, None])
def test_a_step_may_choose_and_loop(exe: fluid.Executor, steps: int | None) -> None:
    x, p = fluid.data("x", [steps, 1, 2]), fluid.data("p", [1], "bool")
    x.stop_gradient = False
    start, twice = layers.fill_constant([1, 2], "float32", 0.0), layers.fill_constant([1], "int64", 2)
    rnn = layers.StaticRNN()
    with rnn.step():
        word, before = rnn.step_input(x), rnn.memory(init=start)
        chosen = layers.cond(p, lambda: word + before, lambda: word * 2.0)
        i = layers.fill_constant([1], "int64", 0)
        _, after = layers.while_loop(
            lambda i, s: layers.less_than(i, twice), lambda i, s: [layers.increment(i), s * 3.0], [i, chosen]
        )
        rnn.update_memory(before, after)
        rnn.step_output(after)
    out = rnn()
    assert out.shape == ((3 if steps else -1), 1, 2)
    (by_x,) = fluid.gradients(layers.reduce_sum(out), x)
    values = np.array([1, 10, 100], np.float32).reshape(3, 1, 1) * np.ones((3, 1, 2), np.float32)
    for choice in (False, True):
        got, gradient = exe.run(feed={"x": values, "p": np.array([choice])}, fetch_list=[out, by_x])
        want = [9, 9 * 19, 9 * (100 + 9 * 19)] if choice else [18, 180, 1800]
        np.testing.assert_array_equal(got[:, 0, 0], want)
        np.testing.assert_array_equal(gradient[:, 0, 1], [9 + 81 + 729, 9 + 81, 9] if choice else [18] * 3)


def test_the_program_can_be_cloned_and_serialised(exe: fluid.Executor) -> None:
    out = elman(words())
    exe.run(fluid.default_startup_program())
    (expected,) = exe.run(feed={"words": WORDS}, fetch_list=[out])
    program = fluid.default_main_program()
    copies = (program.clone(for_test=True), fluid.Program.parse_from_string(program.serialize_to_string()))
    for copy in copies:
        (got,) = exe.run(copy, feed={"words": WORDS}, fetch_list=[out.name])
        np.testing.assert_array_equal(got, expected)


def test_misuse_is_refused() -> None:
    x = words()
    rnn = layers.StaticRNN()
    for method, arguments in (("step_input", [x]), ("step_output", [x]), ("memory", [x]), ("update_memory", [x, x])):
        with pytest.raises(errors.FailedPrecondition, match="must be called in the step"):
            getattr(rnn, method)(*arguments)
    with pytest.raises(errors.FailedPrecondition, match="no step"):
        rnn()
    short = layers.data("short", [STEPS - 1, 2], append_batch_size=False, dtype="float32")
    with pytest.raises(errors.InvalidArgument, match="'short' has to have 4 steps"), rnn.step():
        rnn.step_input(x)
        rnn.step_input(short)
    assert fluid.default_main_program().current_block_idx == 0
    with pytest.raises(errors.FailedPrecondition, match="the step has already been defined"), rnn.step():
        pass


def test_an_incomplete_step_is_refused() -> None:
    x = words()
    with pytest.raises(errors.FailedPrecondition, match="step_input and a step_output"), layers.StaticRNN().step():
        pass
    rnn = layers.StaticRNN()
    with pytest.raises(errors.FailedPrecondition, match="never updated"), rnn.step():
        word = rnn.step_input(x)
        rnn.memory(shape=[-1, 2], batch_ref=word)
        rnn.step_output(word)
    rnn = layers.StaticRNN()
    with pytest.raises(errors.InvalidArgument, match="before the step"), rnn.step():
        rnn.memory(init=rnn.step_input(x))
    rnn = layers.StaticRNN()
    with pytest.raises(errors.InvalidArgument, match="is not a memory"), rnn.step():
        rnn.update_memory(rnn.step_input(x), x)
    rnn = layers.StaticRNN()
    with pytest.raises(errors.InvalidArgument, match="shape and batch_ref"), rnn.step():
        rnn.memory(shape=[-1, 2])
    other = layers.data("other", [STEPS + 1, 2], append_batch_size=False, dtype="float32")
    rnn = layers.StaticRNN()
    with pytest.raises(errors.InvalidArgument, match="4 steps"), rnn.step():
        rnn.step_input(x)
        rnn.step_input(other)


@pytest.mark.parametrize("twice", [False, True])
def test_the_number_of_steps_may_be_known_at_run_time_only(exe: fluid.Executor, twice: bool) -> None:
    outs = []
    for steps in (STEPS, -1):
        x = fluid.data(f"words{steps}", [steps, -1, WIDTH])
        x.stop_gradient = False
        rnn = layers.StaticRNN()
        with rnn.step():
            word = rnn.step_input(x)
            again = rnn.step_input(x) if twice else word
            total = layers.reduce_sum(x)  # the whole sequence, in each step
            before = rnn.memory(shape=[-1, HIDDEN], batch_ref=word)
            hidden = layers.fc([word, before], HIDDEN, act="tanh", param_attr=["w", "u"], bias_attr="b")
            rnn.update_memory(before, hidden)
            rnn.output(hidden * total, layers.reduce_sum(again * 2.0, 1) + layers.reduce_sum(before, 1))
        outs += rnn()
    loss = layers.sum([layers.reduce_sum(layers.square(out)) for out in outs])
    fluid.backward.append_backward(loss)
    exe.run(fluid.default_startup_program())
    feed = {f"words{steps}": WORDS for steps in (STEPS, -1)}
    names = [f"words{steps}@GRAD" for steps in (STEPS, -1)]
    a, a2, b, b2, da, db = exe.run(feed=feed, fetch_list=[*outs, *names])
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(a2, b2)
    np.testing.assert_allclose(da, db, rtol=1e-5)
    assert outs[2].shape == (-1, -1, HIDDEN)


@pytest.mark.parametrize("fed", ["itself", "embedded", "read"])
def test_more_steps_may_be_fed_than_are_declared(exe: fluid.Executor, fed: str) -> None:
    declared = [2, -1, 1] if fed == "embedded" else [2, -1, WIDTH]
    x = layers.data("x", declared, append_batch_size=False, dtype="int64" if fed == "embedded" else "float32")
    reader = fluid.io.PyReader([x], 2, iterable=False) if fed == "read" else None
    out = elman(layers.embedding(x, [9, WIDTH], param_attr="table") if fed == "embedded" else x)
    assert out.shape == (2, -1, HIDDEN)
    loss = layers.reduce_sum(layers.square(out))
    pairs = {parameter.name: gradient for parameter, gradient in fluid.backward.append_backward(loss)}
    exe.run(fluid.default_startup_program())
    indices = RNG.integers(0, 9, (STEPS, BATCH, 1))
    value = indices if fed == "embedded" else WORDS
    if reader is not None:
        reader.decorate_batch_generator(lambda: iter([[value]]))
        reader.start()
    got, by_u = exe.run(feed=None if reader else {"x": value}, fetch_list=[out, pairs["u"]])
    seen = parameter("table")[indices[..., 0]] if fed == "embedded" else WORDS
    arguments = {name: parameter(name).astype(np.float64) for name in "wub"}
    np.testing.assert_allclose(got, elman_in_numpy(seen, **arguments), rtol=1e-5, atol=1e-6)
    totals = []
    for step in (1e-5, -1e-5):
        moved = arguments["u"].copy()
        moved[0, 0] += step
        totals.append((elman_in_numpy(seen, arguments["w"], moved, arguments["b"]) ** 2).sum())
    assert by_u[0, 0] == pytest.approx((totals[0] - totals[1]) / 2e-5, rel=1e-3, abs=1e-4)


def test_only_exact_shapes_unroll_the_steps() -> None:
    for x in (
        words(),
        layers.fc(words(), WIDTH, num_flatten_dims=2),
        layers.create_parameter([STEPS, BATCH, WIDTH], "float32"),
        layers.fill_constant([STEPS, BATCH, WIDTH], "float32", 1.0),
    ):
        elman(x)
        assert "recurrent" not in [op.type for op in fluid.default_main_program().global_block().ops]
    elman(words() + layers.data("y", [WIDTH]))
    assert "recurrent" in [op.type for op in fluid.default_main_program().global_block().ops]


def test_what_counts_goes_from_step_to_step(exe: fluid.Executor) -> None:
    """Dropout with a seed counts its runs in a variable of the program."""
    seen = []
    for steps in (STEPS, -1):
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 7
        with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
            x = fluid.data("words", [steps, -1, WIDTH])
            x.stop_gradient = False
            rnn = layers.StaticRNN()
            with rnn.step():
                word = rnn.step_input(x)
                before = rnn.memory(shape=[-1, WIDTH], batch_ref=word)
                rnn.update_memory(before, layers.dropout(word + before, 0.5))
                rnn.step_output(layers.dropout(before + word, 0.5))
            out = rnn()
            test = main.clone(for_test=True)
            fluid.backward.append_backward(layers.reduce_sum(layers.square(out)))
            exe.run(startup)
            counters = [name for name in main.global_block().vars if name.endswith(".run")]
            values = [exe.run(main, feed={"words": WORDS}, fetch_list=[out, "words@GRAD"]) for _ in range(2)]
            counts = [np.array(fluid.global_scope().find_var(name).get_tensor()).item() for name in counters]
            calm = [exe.run(test, feed={"words": WORDS}, fetch_list=[out])[0] for _ in range(2)]
            np.testing.assert_array_equal(*calm)
            assert counts == [2 * STEPS] * 2
            again = [np.array(fluid.global_scope().find_var(name).get_tensor()).item() for name in counters]
            assert again == counts
        seen.append(values)
    for unrolled, repeated in zip(*seen):
        for a, b in zip(unrolled, repeated):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    assert not np.array_equal(seen[1][0][0], seen[1][1][0])
    assert (seen[1][0][0][0] != seen[1][0][0][1]).any()


def sequences() -> list[Variable]:
    """Of which the steps are unrolled, and of which they are not."""
    both = fluid.data("known", [STEPS, 2]), layers.data("unknown", [STEPS, 2], append_batch_size=False)
    for x in both:
        x.stop_gradient = False
    return list(both)


PAIRS = np.array([[1, 2], [3, -1], [0.5, 2], [-1, 1]], np.float32)


def test_an_input_may_be_used_as_a_whole(exe: fluid.Executor) -> None:
    outs: list[Variable] = []
    for x in sequences():
        zeros = layers.zeros_like(x)
        rnn = layers.StaticRNN()
        with rnn.step():
            part = rnn.step_input(x)
            before = rnn.memory(init=zeros)
            rnn.update_memory(before, x)
            rnn.output(part + 1.0, x, before + 1.0)
        outs += rnn()
    loss = layers.sum([layers.reduce_sum(layers.square(out)) for out in outs])
    fluid.backward.append_backward(loss)
    feed = {"known": PAIRS, "unknown": PAIRS}
    *got, known, unknown = exe.run(feed=feed, fetch_list=[*outs, "known@GRAD", "unknown@GRAD"])
    wholes = np.stack([PAIRS] * STEPS)
    for first in (0, 3):
        np.testing.assert_array_equal(got[first], PAIRS + 1)
        np.testing.assert_array_equal(got[first + 1], wholes)
        np.testing.assert_array_equal(got[first + 2], wholes * np.r_[0, [1] * (STEPS - 1)][:, None, None] + 1)
    np.testing.assert_array_equal(known, 2 * (PAIRS + 1) + 2 * STEPS * PAIRS + 2 * (STEPS - 1) * (PAIRS + 1))
    np.testing.assert_array_equal(unknown, known)


def test_gradients_pass_through_what_the_steps_write_outside(exe: fluid.Executor) -> None:
    losses, gradients = [], []
    for x in sequences():
        total = layers.assign(layers.reduce_sum(x, dim=0))
        rnn = layers.StaticRNN()
        with rnn.step():
            part = rnn.step_input(x)
            before = total * part
            layers.assign(layers.tanh(before), output=total)
            rnn.output(before, total * 2.0)
        losses.append(layers.reduce_sum(layers.concat([*rnn(), layers.unsqueeze(total * total, [0])], 0)))
        gradients += fluid.gradients(losses[-1], x)
    assert None not in gradients

    def run(value: np.ndarray, fetched: list[Variable]) -> list[np.ndarray]:
        return exe.run(feed={"known": value, "unknown": value}, fetch_list=fetched)

    known, unknown = run(PAIRS, gradients)
    np.testing.assert_allclose(unknown, known, rtol=1e-5)
    for place in np.ndindex(PAIRS.shape):
        moved = [PAIRS.copy(), PAIRS.copy()]
        moved[0][place] += 0.01
        moved[1][place] -= 0.01
        high, low = (run(value, losses) for value in moved)
        np.testing.assert_allclose((np.array(high) - low) / 0.02, np.full((2, 1), known[place]), rtol=0.01, atol=0.01)


def test_a_memory_is_what_its_update_was_at_the_end_of_the_step(exe: fluid.Executor) -> None:
    """Whatever is then written to that, or to the memory itself."""
    outs: list[Variable] = []
    for x in sequences():
        total, init = layers.fill_constant([2], "float32", 0.0), layers.fill_constant([2], "float32", 1.0)
        rnn = layers.StaticRNN()
        with rnn.step():
            before, doubled, again = rnn.memory(init=total), rnn.memory(init=init), rnn.memory(init=init)
            layers.assign(total + rnn.step_input(x), output=total)
            layers.assign(doubled * 2.0, output=doubled)
            rnn.update_memory(before, total)
            rnn.update_memory(doubled, doubled)
            rnn.update_memory(again, doubled)
            rnn.output(before * 1.0, doubled * 1.0, again * 1.0)
        outs += [*rnn(), init]
    got = exe.run(feed={"known": PAIRS, "unknown": PAIRS}, fetch_list=outs)
    sums = np.cumsum(PAIRS, 0) - PAIRS
    powers = 2.0 ** np.arange(1, STEPS + 1)[:, None] * [[1, 1]]
    for found, expected in zip(got, [sums, powers, powers / 2, [1, 1]] * 2):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("cloned", [False, True])
def test_no_grad_set_may_name_what_a_step_makes(exe: fluid.Executor, cloned: bool) -> None:
    """Also that of a step within a step."""
    program = fluid.default_main_program()
    ones = layers.fill_constant([2, 2], "float32", 1.0)
    got = []
    for x in sequences():
        rnn = layers.StaticRNN()
        with rnn.step():
            part = rnn.step_input(x)
            inner = layers.StaticRNN()
            with inner.step():
                tripled = layers.scale(part * inner.step_input(ones), 3.0)
                inner.step_output(tripled + part)
            doubled = layers.scale(part, 2.0)
            rnn.step_output(layers.reduce_sum(inner(), 0) + doubled)
        loss = layers.reduce_sum(rnn())
        trained = program.clone() if cloned else program
        loss, by = (trained.global_block().var(variable.name) for variable in (loss, x))
        for ignored in (tripled, doubled, part):
            (gradient,) = fluid.gradients(loss, by, no_grad_set={ignored})
            feed = {"known": PAIRS, "unknown": PAIRS}
            got.append(None if gradient is None else exe.run(trained, feed, [gradient])[0].flat[0])
    assert got == [4, 8, None] * 2
    assert [op.type for op in program.global_block().ops].count("recurrent") == 1


@pytest.mark.parametrize("stopped", ["input", "memory"])
def test_gradients_stop_where_a_step_says_so(exe: fluid.Executor, stopped: str) -> None:
    factor = fluid.data("factor", [2])
    factor.stop_gradient = False
    gradients = []
    for x in sequences():
        rnn = layers.StaticRNN()
        with rnn.step():
            part, before = rnn.step_input(x), rnn.memory(init=factor)
            (part if stopped == "input" else before).stop_gradient = True
            after = part * factor + before * 2.0
            rnn.update_memory(before, after)
            rnn.step_output(after)
        gradients += fluid.gradients(layers.reduce_sum(rnn()), [x, factor])
    by_x = [gradient for gradient in (gradients[0], gradients[2]) if gradient is not None]
    assert len(by_x) == (0 if stopped == "input" else 2)
    feed = {"known": PAIRS, "unknown": PAIRS, "factor": np.array([2, 3], np.float32)}
    for got in exe.run(feed=feed, fetch_list=by_x):
        np.testing.assert_array_equal(got, [[2, 3]] * STEPS)
    powers = 2.0 ** np.arange(STEPS + 1)
    weights = np.cumsum(powers[:STEPS])[::-1, None] if stopped == "input" else 1.0
    of_init = powers[1:].sum() if stopped == "input" else 0.0
    for got in exe.run(feed=feed, fetch_list=gradients[1::2]):
        np.testing.assert_array_equal(got, (PAIRS * weights).sum(0) + of_init)


def test_no_grad_set_cannot_name_a_memory() -> None:
    init = layers.fill_constant([2], "float32", 1.0)
    for x in sequences():
        rnn = layers.StaticRNN()
        with rnn.step():
            before = rnn.memory(init=init)
            after = before + rnn.step_input(x)
            rnn.update_memory(before, after)
            rnn.step_output(after)
        with pytest.raises(errors.InvalidArgument, match=f"'{before.name}' is a memory of a StaticRNN"):
            fluid.gradients(rnn(), x, no_grad_set={before})
