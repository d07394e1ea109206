"""Writes the programs beside it, which warm_run_test.cc runs: ``python tests/operators/programs/write_programs.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import headrace.fluid as fluid
from headrace.fluid import layers
from headrace.fluid.framework import Variable

WIDTH, HIDDEN, WORDS, BEAM, END = 6, 5, 20, 2, 0


def dynamic_rnn() -> Variable:
    """A recurrent layer in Python's hand, over ragged sequences, trained with a sparse table."""
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    label = fluid.data("label", [None, 1], "int64")
    embedded = layers.embedding(words, (WORDS, WIDTH), is_sparse=True)
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(embedded)
        before = rnn.memory(shape=[HIDDEN])
        hidden = layers.fc([word, before], HIDDEN, act="tanh")
        rnn.update_memory(before, hidden)
        rnn.output(hidden)
    last = layers.sequence_last_step(rnn())
    loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(last, 3), label))
    fluid.optimizer.Adam(0.01).minimize(loss)
    return loss


def static_rnn() -> Variable:
    """The same for sequences of one length, with momentum."""
    x = fluid.data("x", [4, 3, WIDTH])
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(x)
        before = rnn.memory(shape=[-1, HIDDEN], batch_ref=word)
        hidden = layers.fc([word, before], HIDDEN, act="tanh")
        rnn.update_memory(before, hidden)
        rnn.output(hidden)
    loss = layers.mean(rnn())
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return loss


def beam_search() -> Variable:
    """Two sentences grow in a loop, each in BEAM ways, from one word each."""
    first_ids = layers.data("first_ids", [1], dtype="int64", lod_level=2)
    first_scores = layers.data("first_scores", [1], lod_level=2)
    table = fluid.ParamAttr(name="table")
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 6)
    ids = layers.array_write(first_ids, i)
    scores = layers.array_write(first_scores, i)
    more = layers.less_than(i, n)
    loop = layers.While(more, is_test=True)
    with loop.block():
        before, before_scores = layers.array_read(ids, i), layers.array_read(scores, i)
        state = layers.embedding(before, (WORDS, HIDDEN), param_attr=table)
        best, words = layers.topk(layers.softmax(layers.fc(state, WORDS)), BEAM)
        total = layers.elementwise_add(layers.log(best), layers.reshape(before_scores, [-1]), axis=0)
        selected, selected_scores = layers.beam_search(before, before_scores, words, total, BEAM, END)
        layers.increment(i)
        layers.array_write(selected, i, ids)
        layers.array_write(selected_scores, i, scores)
        layers.less_than(i, n, cond=more)
    sentences, _ = layers.beam_search_decode(ids, scores, BEAM, END)
    return sentences


def write(folder: Path, build: Callable[[], Variable]) -> None:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        out = build()
    (folder / f"{build.__name__}.startup.program").write_bytes(startup.serialize_to_string())
    (folder / f"{build.__name__}.main.program").write_bytes(main.serialize_to_string())
    print(f"{build.__name__}: fetch {out.name}")


if __name__ == "__main__":
    for build in (dynamic_rnn, static_rnn, beam_search):
        write(Path(__file__).parent, build)
