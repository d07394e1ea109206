"""Puts the spaces back into English text: an LSTM and a conditional random field (CRF) tag each letter.

    python docs/examples/word_segmentation.py --workers 2

Segmentation into words, as Chinese and Thai need it, is tagging: a letter begins a word (B) or is inside one (I). The
text is the reference of Python's own help(), a module of the standard library; every tenth phrase is held out.
The CRF learns which tag follows which, and decoding finds the best sequence of tags instead of the best tag for each
letter. With seed 1, the F1 score of the words of the held-out phrases is 0.94: words count that are found whole.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import re
import sys
from typing import Any

import numpy as np

import headrace.fluid as fluid
from headrace import DataLoader

BEGIN, INSIDE = 0, 1  # the tags, in the order of the scheme "IOB"
WIDTH = 64


class Phrases:
    """Samples are (letters, tags) of a phrase: int64 arrays of shape (letters, 1)."""

    def __init__(self, phrases: list[str]) -> None:
        self.phrases = phrases

    def __len__(self) -> int:
        return len(self.phrases)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        words = self.phrases[index].split()
        tags = [tag for word in words for tag in [BEGIN] + [INSIDE] * (len(word) - 1)]
        return np.array([[ord(letter) - ord("a")] for letter in "".join(words)]), np.array(tags)[:, None]


def load() -> tuple[Phrases, Phrases]:
    """(training phrases, held-out phrases): three to fifteen words between punctuation marks, each phrase once."""
    text = " ".join(" ".join(pydoc_data.topics.topics.values()).lower().split())
    phrases = [phrase.strip() for phrase in re.findall(r"[a-z ]+", text)]
    phrases = [phrase for phrase in dict.fromkeys(phrases) if 3 <= len(phrase.split()) <= 15]
    return Phrases([phrase for i, phrase in enumerate(phrases) if i % 10 != 9]), Phrases(phrases[9::10])


def build(name: str) -> tuple[Any, Any, Any, Any]:
    """Adds a reader and the tagger to the current program: (reader, loss, tags found, numbers of words)."""
    reader = fluid.layers.py_reader(
        capacity=8, shapes=[[-1, 1], [-1, 1]], dtypes=["int64", "int64"], lod_levels=[1, 1], name=name
    )
    letters, tags = fluid.layers.read_file(reader)
    net = fluid.layers.embedding(letters, size=[26, 32])
    for _ in range(2):
        directions = []
        for is_reverse in (False, True):
            projected = fluid.layers.fc(net, size=4 * WIDTH)
            directions += fluid.layers.dynamic_lstm(projected, size=4 * WIDTH, is_reverse=is_reverse)[:1]
        net = fluid.layers.concat(directions, axis=1)
    emission = fluid.layers.fc(net, size=2)
    loss = fluid.layers.mean(fluid.layers.linear_chain_crf(emission, tags, param_attr="transition"))
    found = fluid.layers.crf_decoding(emission, param_attr="transition")
    *_, in_found, in_tags, in_both = fluid.layers.chunk_eval(found, tags, chunk_scheme="IOB", num_chunk_types=1)
    return reader, loss, found, [in_found, in_tags, in_both]


def batches(executor: Any, program: Any, reader: Any, fetch: list[Any]) -> Any:
    """What each batch of a pass over the reader's data gives."""
    reader.start()
    try:
        while True:
            yield [np.array(tensor) for tensor in executor.run(program, fetch_list=fetch, return_numpy=False)]
    except fluid.core.EOFException:
        reader.reset()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="worker processes that make the samples (default: 2)")
    parser.add_argument("--epochs", type=int, default=6, help="passes over the training phrases (default: 6)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and the order (default: 1)")
    parser.add_argument("--target", type=float, default=0.93, help="F1 score to reach (default: 0.93)")
    arguments = parser.parse_args()

    training, test, startup = fluid.Program(), fluid.Program(), fluid.Program()
    training.random_seed = startup.random_seed = arguments.seed
    with fluid.program_guard(training, startup), fluid.unique_name.guard():
        reader, loss, _, _ = build("training_reader")
        fluid.optimizer.Adam(learning_rate=0.003).minimize(loss)
    with fluid.program_guard(test, startup), fluid.unique_name.guard():
        test_reader, _, found, counts = build("test_reader")
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)

    phrases, test_phrases = load()
    more: dict[str, Any] = {"ragged": "lod", "num_workers": arguments.workers, "seed": arguments.seed}
    reader.decorate_loader(DataLoader(phrases, batch_size=32, shuffle=True, **more))
    test_reader.decorate_loader(DataLoader(test_phrases, batch_size=128, **more))
    for epoch in range(1, arguments.epochs + 1):
        losses = [value.item() for (value,) in batches(executor, training, reader, [loss])]
        score = fluid.metrics.ChunkEvaluator()
        tags = []
        for batch_tags, *numbers in batches(executor, test, test_reader, [found, *counts]):
            score.update(*numbers)
            tags += batch_tags.ravel().tolist()
        *_, f1 = score.eval()
        print(f"epoch {epoch}: mean loss {np.mean(losses):.3f}, F1 of {len(test_phrases)} phrases {f1:.4f}", flush=True)

    letters = "".join(test_phrases.phrases).replace(" ", "")
    print("".join(" " * (tag == BEGIN) + letter for letter, tag in zip(letters[:300], tags)))
    return 0 if f1 >= arguments.target else 1


if __name__ == "__main__":
    sys.exit(main())
