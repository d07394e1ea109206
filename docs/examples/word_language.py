"""Tells the language of a word from its letters: an LSTM over sequences of different lengths, fed by worker processes.

    python docs/examples/word_language.py --workers 2

The words are the most frequent ones of six languages that pyspellchecker ships; those that belong to several languages
are left out, and every tenth is held out. A batch is ragged: the letters of all its words one after the other, with a
level of detail (LoD) that says where each word begins. Nothing is padded.

With seed 1, 85 % of the held-out words are assigned to their language; by chance, it would be a sixth.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.resources
import json
import sys
from collections import Counter
from typing import Any

import numpy as np

import headrace.fluid as fluid
from headrace import DataLoader

LANGUAGES = ["de", "en", "es", "fr", "it", "nl"]
LETTERS = 400  # code points below this have an embedding of their own
WIDTH = 64


class Words:
    """Samples are (letters, language): int64 arrays of shapes (length, 1) and (1,)."""

    def __init__(self, words: list[tuple[str, int]]) -> None:
        self.words = words

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        word, language = self.words[index]
        return np.minimum([[ord(letter)] for letter in word], LETTERS - 1), np.array([language])


def load(limit: int) -> tuple[Words, Words]:
    """(training words, held-out words): of ``limit`` of each language."""
    frequent = []
    for language in LANGUAGES:
        file = importlib.resources.files("spellchecker") / "resources" / f"{language}.json.gz"
        counts: dict[str, int] = json.loads(gzip.decompress(file.read_bytes()))
        words = (word for word in counts if word.isalpha() and 4 <= len(word) <= 16)
        frequent.append(sorted(words, key=lambda word: (-counts[word], word))[:limit])
    languages = Counter(word for words in frequent for word in words)
    known = [(word, i) for i, words in enumerate(frequent) for word in words if languages[word] == 1]
    return Words([word for i, word in enumerate(known) if i % 10 != 9]), Words(known[9::10])


def network(word: Any) -> Any:
    """The probability of each language, [words, languages]."""
    embedded = fluid.layers.embedding(word, size=[LETTERS, 32])
    directions = []
    for is_reverse in (False, True):
        projected = fluid.layers.fc(embedded, size=4 * WIDTH)
        hidden, _ = fluid.layers.dynamic_lstm(projected, size=4 * WIDTH, use_peepholes=False, is_reverse=is_reverse)
        directions.append(fluid.layers.sequence_pool(hidden, "max"))
    return fluid.layers.fc(directions, size=len(LANGUAGES), act="softmax")


def build(name: str) -> tuple[Any, Any, Any, Any]:
    """Adds a reader and the network to the current program: (reader, loss, accuracy, number of words)."""
    reader = fluid.layers.py_reader(
        capacity=8, shapes=[[-1, 1], [-1, 1]], dtypes=["int64", "int64"], lod_levels=[1, 0], name=name
    )
    word, language = fluid.layers.read_file(reader)
    probabilities, total = network(word), fluid.layers.create_tensor("int32")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(probabilities, language))
    return reader, loss, fluid.layers.accuracy(probabilities, language, total=total), total


def run_pass(executor: Any, program: Any, reader: Any, fetch: list[Any]) -> np.ndarray:
    """One pass over the reader's data: what was fetched, [batches, len(fetch)]."""
    rows = []
    reader.start()
    try:
        while True:
            rows.append([value.item() for value in executor.run(program, fetch_list=fetch)])
    except fluid.core.EOFException:
        reader.reset()
    return np.array(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="worker processes that make the samples (default: 2)")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the training words (default: 6)")
    parser.add_argument("--limit", type=int, default=10000, help="words of each language (default: 10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the order (default: 1)")
    parser.add_argument("--target", type=float, default=0.84, help="accuracy to reach (default: 0.84)")
    arguments = parser.parse_args()

    training, test, startup = fluid.Program(), fluid.Program(), fluid.Program()
    training.random_seed = startup.random_seed = arguments.seed
    with fluid.program_guard(training, startup), fluid.unique_name.guard():
        reader, loss, _, _ = build("training_reader")
        fluid.optimizer.Adam(learning_rate=0.003).minimize(loss)
    with fluid.program_guard(test, startup), fluid.unique_name.guard():
        test_reader, _, accuracy, total = build("test_reader")
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)

    words, test_words = load(arguments.limit)
    more: dict[str, Any] = {"ragged": {0: "lod"}, "num_workers": arguments.workers, "seed": arguments.seed}
    reader.decorate_loader(DataLoader(words, batch_size=64, shuffle=True, **more))
    test_reader.decorate_loader(DataLoader(test_words, batch_size=256, **more))
    for epoch in range(1, arguments.epochs + 1):
        losses = run_pass(executor, training, reader, [loss])
        shares, counts = run_pass(executor, test, test_reader, [accuracy, total]).T
        reached = float(np.average(shares, weights=counts))
        print(f"epoch {epoch}: mean loss {losses.mean():.4f}, {100 * reached:.1f} % of {len(test_words)} words right")
    return 0 if reached >= arguments.target else 1


if __name__ == "__main__":
    sys.exit(main())
