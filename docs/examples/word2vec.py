"""Word vectors: skip-gram with noise-contrastive estimation, whose gradients are sparse.

    python docs/examples/word2vec.py --workers 2

The text is the documentation in the sources of SciPy, scikit-learn and NumPy, 1.4 million words. Worker processes
make the pairs of a word and a neighbour; passages have different numbers of pairs, so the batches are ragged. A step
draws a few words as noise, and touches the vectors of the words in its batch and of the noise, and no others: the
gradients of both tables are SelectedRows.

Nobody tells the program what a plural is. With seed 1, the plural of a noun is among the ten nearest neighbours of its
singular for 41 % of the nouns (with SciPy 1.17, scikit-learn 1.9 and NumPy 2.4); by chance, it would be for 0.2 %.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn

import headrace.fluid as fluid
from headrace import DataLoader

PASSAGE, WINDOW, WIDTH = 200, 5, 64  # words of a sample, neighbours on each side, numbers of a vector


def read_text(limit: int) -> list[str]:
    """The first ``limit`` words of the documentation strings."""
    words: list[str] = []
    for package in (scipy, sklearn, np):
        for path in sorted(Path(package.__file__).parent.rglob("*.py")):
            if "tests" not in path.parts:
                for text in re.findall(r'"""(.*?)"""', path.read_text("utf-8"), re.DOTALL):
                    words += re.findall(r"[a-z]+", text.lower())
    return words[:limit]


class SkipGrams:
    """Samples are (words, neighbours): int64 arrays of shape (pairs, 1), the pairs of a passage of the text."""

    def __init__(self, text: np.ndarray, frequencies: np.ndarray) -> None:
        self.text = text
        self.keep = np.sqrt(1e-3 / frequencies)  # the probability to use a word: very frequent ones say little

    def __len__(self) -> int:
        return len(self.text) // PASSAGE

    def __getitem__(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        words = self.text[index * PASSAGE : (index + 1) * PASSAGE]
        words = words[rng.random(len(words)) < self.keep[words]]
        distance = np.abs(np.subtract.outer(np.arange(len(words)), np.arange(len(words))))
        reach = rng.integers(1, WINDOW + 1, (len(words), 1))  # so that near words count more
        rows, columns = np.nonzero((distance > 0) & (distance <= reach))
        return words[rows, None], words[columns, None]


def build(frequencies: np.ndarray) -> Any:
    """Adds the loss of pairs of words and an optimizer to the default program: the loss."""
    classes = len(frequencies)
    word, neighbour = (fluid.data(name, [None, 1], "int64") for name in ("word", "neighbour"))
    vectors = fluid.ParamAttr("vectors", fluid.initializer.Uniform(-0.5 / WIDTH, 0.5 / WIDTH))
    bias = fluid.initializer.NumpyArrayInitializer(np.log(frequencies)[:, None].astype(np.float32))
    losses = fluid.layers.nce(
        fluid.layers.embedding(word, size=[classes, WIDTH], is_sparse=True, param_attr=vectors),
        neighbour,
        num_total_classes=classes,
        bias_attr=fluid.ParamAttr(initializer=bias),  # so each word is as probable as it is frequent at first
        num_neg_samples=8,
        sampler="custom_dist",
        custom_dist=frequencies**0.75,
        is_sparse=True,
    )
    loss = fluid.layers.mean(losses)
    fluid.optimizer.Adam(0.003, lazy_mode=True).minimize(loss)
    return loss


def plurals_found(vectors: np.ndarray, words: list[str]) -> float:
    """The share of the words with a plural that have it among their ten nearest neighbours; prints three of them."""
    rows = {word: row for row, word in enumerate(words)}
    nouns = [word for word in words if len(word) > 3 and word + "s" in rows]
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similarity = vectors[[rows[noun] for noun in nouns]] @ vectors.T
    nearest = np.argsort(-similarity, axis=1)[:, 1:11]  # the first one is the word itself
    for noun, neighbours in list(zip(nouns, nearest))[:3]:
        print(f"{noun}: {', '.join(words[row] for row in neighbours)}")
    return float(np.mean([rows[noun + "s"] in neighbours for noun, neighbours in zip(nouns, nearest)]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="worker processes that make the samples (default: 2)")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the text (default: 3)")
    parser.add_argument("--limit", type=int, default=10**7, help="words of the text (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, order, pairs and noise (default: 1)")
    parser.add_argument("--target", type=float, default=0.38, help="share of plurals to find (default: 0.38)")
    arguments = parser.parse_args()

    text = read_text(arguments.limit)
    words, counts = zip(*((word, count) for word, count in Counter(text).most_common() if count >= 20))
    codes = {word: code for code, word in enumerate(words)}
    coded = np.array([codes[word] for word in text if word in codes])
    frequencies = np.array(counts) / len(coded)
    print(f"{len(coded)} words of text, a vocabulary of {len(words)}")

    fluid.default_startup_program().random_seed = fluid.default_main_program().random_seed = arguments.seed
    loss = build(frequencies)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(fluid.default_startup_program())
    more: dict[str, Any] = {"ragged": "lod", "num_workers": arguments.workers, "seed": arguments.seed}
    loader = DataLoader(SkipGrams(coded, frequencies), batch_size=4, shuffle=True, **more)
    for epoch in range(1, arguments.epochs + 1):
        losses = [
            executor.run(feed={"word": first.values, "neighbour": second.values}, fetch_list=[loss])[0].item()
            for first, second in loader
        ]
        print(f"epoch {epoch}: mean loss {np.mean(losses):.4f}", flush=True)

    found = plurals_found(np.array(fluid.global_scope().find_var("vectors").get_tensor()), list(words))
    print(f"the plural is among the ten nearest neighbours for {100 * found:.1f} % of the nouns")
    return 0 if found >= arguments.target else 1


if __name__ == "__main__":
    sys.exit(main())
