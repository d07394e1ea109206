"""A cell in two decoders: what training gives at each word, and a beam search, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.contrib.decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder

WORDS, WIDTH, END, STEPS, BEAMS = 7, 4, 1, 5, 2
RNG = np.random.default_rng(5)
CONTEXT = RNG.normal(size=(3, WIDTH)).astype(np.float32)


def parameter(name: str) -> fluid.ParamAttr:
    return fluid.ParamAttr(name, initializer=fluid.initializer.Normal(0.0, 1.5, seed=len(name)))


def cell_of(init: fluid.Variable) -> StateCell:
    cell = StateCell({"x": None}, {"h": InitState(init, need_reorder=True)}, out_state="h")

    @cell.state_updater
    def step(cell: StateCell) -> None:
        before = [cell.get_state("h"), cell.get_input("x")]
        attrs = [parameter("of_h"), parameter("of_x")]
        cell.set_state("h", layers.fc(before, WIDTH, act="tanh", param_attr=attrs, bias_attr=False))

    return cell


def value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor()).astype(float)


def log_softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.log(e / e.sum(-1, keepdims=True))


def test_training_applies_the_cell_to_each_word(exe: fluid.Executor) -> None:
    context = fluid.data("context", [None, WIDTH])
    words = fluid.data("words", [None, WIDTH], lod_level=1)
    decoder = TrainingDecoder(cell_of(context))
    with decoder.block():
        decoder.state_cell.compute_state({"x": decoder.step_input(words)})
        hidden = decoder.state_cell.get_state("h")
        decoder.state_cell.update_states()
        decoder.output(hidden)
    hiddens = decoder()
    exe.run(fluid.default_startup_program())
    lengths = [2, 4, 1]
    x = RNG.normal(size=(sum(lengths), WIDTH)).astype(np.float32)
    feed = {"context": CONTEXT, "words": fluid.create_lod_tensor(x, [lengths])}
    (got,) = exe.run(feed=feed, fetch_list=[hiddens], return_numpy=False)
    expected, rows = [], iter(x)
    for i, n in enumerate(lengths):
        h = CONTEXT[i]
        for _ in range(n):
            h = np.tanh(h @ value("of_h") + next(rows) @ value("of_x"))
            expected.append(h)
    assert got.recursive_sequence_lengths() == [lengths]
    np.testing.assert_allclose(np.array(got), expected, rtol=1e-5, atol=1e-6)


def search(context: np.ndarray, embedded: np.ndarray, out: np.ndarray, bias: np.ndarray) -> set[tuple[int, ...]]:
    """The sequences that a beam search finds from one state."""
    beams = [((0,), 0.0, context)]
    for _ in range(STEPS):
        candidates = []
        for words, score, h in beams:
            if words[-1] == END and len(words) > 1:
                candidates.append((words, score, h))
                continue
            now = np.tanh(h @ value("of_h") + embedded[words[-1]] @ value("of_x"))
            each = log_softmax(now @ out + bias)
            candidates += [((*words, word), score + each[word], now) for word in range(WORDS)]
        beams = sorted(candidates, key=lambda candidate: -candidate[1])[:BEAMS]
        if all(words[-1] == END for words, _, _ in beams):
            break
    return {words for words, _, _ in beams}


def test_a_beam_search_finds_the_most_probable_sequences(exe: fluid.Executor) -> None:
    context = fluid.data("context", [None, WIDTH])
    ids, scores = (fluid.data(name, [None, 1], kind, 2) for name, kind in [("ids", "int64"), ("scores", "float32")])
    decoder = BeamSearchDecoder(cell_of(context), ids, scores, WORDS, WIDTH, {}, WORDS, False, STEPS, BEAMS, end_id=END)
    decoder.decode()
    found, scored = decoder()
    exe.run(fluid.default_startup_program())
    program = fluid.default_main_program()
    table, out, bias = (p.name for p in program.all_parameters() if p.name not in ("of_h", "of_x"))
    for name in (table, out):
        sizes = fluid.global_scope().find_var(name).get_tensor().shape()
        fluid.global_scope().find_var(name).get_tensor().set(2 * RNG.normal(size=sizes).astype(np.float32))
    one = [[1] * len(CONTEXT)] * 2
    feed = {
        "context": CONTEXT,
        "ids": fluid.create_lod_tensor(np.zeros((len(CONTEXT), 1), np.int64), one),
        "scores": fluid.create_lod_tensor(np.zeros((len(CONTEXT), 1), np.float32), one),
    }
    (got, got_scores) = exe.run(feed=feed, fetch_list=[found, scored], return_numpy=False)
    assert got.recursive_sequence_lengths() == got_scores.recursive_sequence_lengths()
    beams, lengths = got.recursive_sequence_lengths()
    assert beams == [BEAMS] * len(CONTEXT)
    parts = np.split(np.array(got).ravel(), np.cumsum(lengths)[:-1])
    for i, h in enumerate(CONTEXT):
        sequences = {tuple(map(int, part)) for part in parts[i * BEAMS : (i + 1) * BEAMS]}
        assert sequences == search(h, value(table), value(out), value(bias))


def test_what_does_not_fit_is_refused() -> None:
    h = fluid.data("h", [None, WIDTH])
    with pytest.raises(errors.InvalidArgument, match="InitState: either init, or shape and init_boot"):
        InitState()
    with pytest.raises(errors.TypeMismatch, match="state 'h' must be an InitState, got Variable"):
        StateCell({}, {"h": h}, "h")  # type: ignore[dict-item]
    with pytest.raises(errors.InvalidArgument, match=r"out_state 'c' is not one of the states \['h'\]"):
        StateCell({}, {"h": InitState(h)}, "c")
    cell = cell_of(h)
    with pytest.raises(errors.FailedPrecondition, match="within a decoder's block only"):
        cell.get_state("h")
    with pytest.raises(errors.NotFound, match="nothing has been given for the input 'x'"):
        cell.get_input("x")
    with pytest.raises(errors.NotFound, match="there is no input 'y'"):
        cell.compute_state({"y": h})
    decoder = TrainingDecoder(cell)
    with pytest.raises(errors.FailedPrecondition, match="decoder has not been defined"):
        TrainingDecoder(cell)
    with pytest.raises(errors.FailedPrecondition, match="must be called in the block"):
        decoder.step_input(h)


def test_a_state_of_a_value_has_as_many_rows_as_another_variable(exe: fluid.Executor) -> None:
    h = fluid.data("h", [None, 2])
    filled = InitState(init_boot=h, shape=[-1, 3], value=2.5).value
    (got,) = exe.run(feed={"h": np.zeros((4, 2), np.float32)}, fetch_list=[filled])
    assert got.tolist() == [[2.5] * 3] * 4
