"""Translates dates as people write them ("wed, 25 november 26") to ISO 8601: an encoder and a decoder with attention.

    python docs/examples/seq2seq_dates.py --workers 2

Worker processes draw days of a hundred years and write them in one of eight formats; every tenth day is held out. A GRU
reads the letters in both directions. The decoder, a cell of our own, sees at each step a mean of what was read,
weighted by attention. It is trained on the true letters (teacher forcing), and used with a beam search, which keeps the
four best beginnings. With seed 1, all of a thousand held-out dates are translated without a mistake.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from functools import partial
from typing import Any

import numpy as np

import headrace.fluid as fluid
from headrace import DataLoader
from headrace.fluid import layers

ALPHABET = "\0<> -,./0123456789abcdefghijklmnopqrstuvwxyz"  # the first three: padding, start, end
FORMATS = ["%d %B %Y", "%A, %d %B %Y", "%a, %d %B %y", "%b %d, %Y", "%B %d %y", "%d.%m.%Y", "%d/%m/%y", "%Y%m%d"]
ISO = len("2026-11-25")
WIDTH, BEAMS = 64, 4


def encode(text: str) -> np.ndarray:
    return np.array([ALPHABET.index(letter) for letter in text.lower()])


def decode(letters: np.ndarray) -> str:
    return "".join(ALPHABET[letter] for letter in letters).strip("\0<>")


class Dates:
    """Samples are (date, its length, ISO date): int64 arrays of shapes (letters,), () and (ISO + 2,), with its ends."""

    def __init__(self, count: int, held_out: bool) -> None:
        self.count, self.held_out = count, held_out

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, int, np.ndarray]:
        day = 10 * rng.integers(3652) + (9 if self.held_out else rng.integers(9))
        date = datetime.date(1950, 1, 1) + datetime.timedelta(days=int(day))
        text = encode(date.strftime(FORMATS[rng.integers(len(FORMATS))]))
        return text, len(text), encode(f"<{date.isoformat()}>")


# Layers of the same name have the same parameters, in both programs.


def embed(letters: Any) -> Any:
    return fluid.embedding(letters, [len(ALPHABET), WIDTH], param_attr="letters")


def fc(x: Any, size: int, name: str, act: str | None = None) -> Any:
    return layers.fc(x, size, len(x.shape) - 1, param_attr=f"{name}.w", bias_attr=f"{name}.b", act=act)


def gru(name: str) -> layers.GRUCell:
    return layers.GRUCell(WIDTH, f"{name}.w", f"{name}.b")


class AttentionCell(layers.RNNCell):
    """A step of the decoder: a GRU that sees the last letter and what attention has found. States are [N, WIDTH]."""

    def call(self, inputs: Any, states: Any, memory: Any = None, mask: Any = None) -> tuple[Any, Any]:
        """memory: [N, letters, 2 * WIDTH], what was read; mask: [N, 1, letters], very negative in the padding."""
        query = layers.unsqueeze(fc(states, 2 * WIDTH, "query"), [1])
        weights = layers.softmax(layers.matmul(query, memory, transpose_y=True) + mask)
        context = layers.squeeze(layers.matmul(weights, memory), [1])
        return gru("decoder")(layers.concat([inputs, context], axis=1), states)


def encoder() -> tuple[Any, Any, Any]:
    """Declares what is translated: (memory, mask, the decoder's first state)."""
    text, length = fluid.data("text", [None, None], "int64"), fluid.data("length", [None], "int64")
    there, last = layers.rnn(gru("forwards"), embed(text), sequence_length=length)
    back, first = layers.rnn(gru("backwards"), embed(text), sequence_length=length, is_reverse=True)
    padding = layers.cast(layers.equal(text, layers.zeros_like(text)), "float32")
    state = fc(layers.concat([last, first], axis=1), WIDTH, "state", act="tanh")
    return layers.concat([there, back], axis=2), layers.unsqueeze(padding * -1e9, [1]), state


def training_loss() -> Any:
    memory, mask, state = encoder()
    iso = fluid.data("iso", [None, ISO + 2], "int64")
    states, _ = layers.rnn(AttentionCell(), embed(iso[:, :-1]), state, memory=memory, mask=mask)
    logits = fc(states, len(ALPHABET), "output")
    return layers.mean(layers.softmax_with_cross_entropy(logits, layers.unsqueeze(iso[:, 1:], [2])))


def translations() -> Any:
    """The best translations, int64 [N, steps, BEAMS]."""
    memory, mask, state = encoder()
    output = partial(fc, size=len(ALPHABET), name="output")
    decoder = layers.BeamSearchDecoder(AttentionCell(), *encode("<>"), BEAMS, embed, output)
    memory, mask = (decoder.tile_beam_merge_with_batch(x, BEAMS) for x in (memory, mask))
    return layers.dynamic_decode(decoder, state, max_step_num=ISO, is_test=True, memory=memory, mask=mask)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="worker processes that make the samples (default: 2)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of training (default: 10)")
    parser.add_argument("--limit", type=int, default=10000, help="dates of an epoch (default: 10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the dates (default: 1)")
    parser.add_argument("--target", type=float, default=0.99, help="share to translate rightly (default: 0.99)")
    arguments = parser.parse_args()

    training, inference, startup = fluid.Program(), fluid.Program(), fluid.Program()
    training.random_seed = startup.random_seed = arguments.seed
    with fluid.program_guard(training, startup):
        loss = training_loss()
        fluid.optimizer.Adam(0.003).minimize(loss)
    with fluid.program_guard(inference, fluid.Program()):  # the parameters have the same names: they are the same
        best = translations()
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)

    more: dict[str, Any] = {"ragged": {0: "pad"}, "num_workers": arguments.workers, "seed": arguments.seed}
    loader = DataLoader(Dates(arguments.limit, held_out=False), batch_size=64, **more)
    for epoch in range(1, arguments.epochs + 1):
        feeds = (dict(zip(("text", "length", "iso"), batch)) for batch in loader)
        losses = [executor.run(training, feed=feed, fetch_list=[loss])[0].item() for feed in feeds]
        print(f"epoch {epoch}: mean loss {np.mean(losses):.4f}", flush=True)

    right = []
    for text, length, iso in DataLoader(Dates(1000, held_out=True), batch_size=100, **more):
        (found,) = executor.run(inference, feed={"text": text, "length": length}, fetch_list=[best])
        right += [decode(row) == decode(wanted) for row, wanted in zip(found[:, :, 0], iso)]
    for row, translation in zip(text[:5], found[:5, :, 0]):
        print(f"{decode(row):>30} → {decode(translation)}")
    print(f"{100 * np.mean(right):.1f} % of {len(right)} held-out dates are right")
    return 0 if np.mean(right) >= arguments.target else 1


if __name__ == "__main__":
    sys.exit(main())
