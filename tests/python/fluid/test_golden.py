"""Programs and parameters that a release has written load and run in every later one.

For a new release, ``python tests/python/fluid/test_golden.py`` adds a folder to golden/; existing ones never change.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import headrace
import headrace.fluid as fluid
from headrace.fluid.framework import Variable

GOLDEN = Path(__file__).parent / "golden"
STEPS = 3


def batch() -> dict[str, fluid.LoDTensor | np.ndarray]:
    """Three ragged sentences, a picture for each, and labels."""
    rng = np.random.default_rng(1)
    words = fluid.create_lod_tensor(rng.integers(0, 20, (9, 1)), [[4, 2, 3]], fluid.CPUPlace())
    return {
        "words": words,
        "picture": rng.normal(size=(3, 1, 8, 8)).astype(np.float32),
        "label": np.array([[0], [2], [1]], np.int64),
    }


def build() -> Variable:
    """A network with attributes of every type, a recurrent layer over sequences, a block in a block, and state that
    training changes. Returns the loss.
    """
    layers = fluid.layers
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    picture, label = fluid.data("picture", [None, 1, 8, 8]), fluid.data("label", [None, 1], "int64")
    gates = layers.fc(layers.embedding(words, (20, 6)), 4 * 5)
    hidden, _ = layers.dynamic_lstm(gates, 4 * 5)
    sentence = layers.sequence_pool(hidden, "max")
    seen = layers.pool2d(layers.batch_norm(layers.conv2d(picture, 4, 3, act="relu")), 2, pool_stride=2)
    logits = layers.fc([sentence, seen], 3)
    loss = layers.mean(layers.softmax_with_cross_entropy(logits, label))
    fluid.optimizer.Adam(0.01, regularization=fluid.regularizer.L2Decay(1e-4)).minimize(loss)
    # Counts to 5 in a loop.
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 5)
    more = layers.less_than(i, n)
    loop = layers.While(more)
    with loop.block():
        layers.increment(i)
        layers.less_than(i, n, cond=more)
    return layers.sums([loss, layers.cast(i, "float32")])


def losses(program: fluid.Program, fetch: str) -> np.ndarray:
    executor = fluid.Executor(fluid.CPUPlace())
    return np.array([executor.run(program, feed=batch(), fetch_list=[fetch])[0] for _ in range(STEPS)])


def write(folder: Path) -> None:
    """What this version of the package makes of the network."""
    folder.mkdir(parents=True)
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 3
    with fluid.program_guard(main, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
        out = build()
        executor = fluid.Executor(fluid.CPUPlace())
        executor.run(startup)
        (folder / "startup.program").write_bytes(startup.serialize_to_string())
        (folder / "main.program").write_bytes(main.serialize_to_string())
        fluid.io.save_persistables(executor, str(folder), main, "persistables")
        np.savez(folder / "expected.npz", fetch=out.name, losses=losses(main, out.name))


@pytest.mark.parametrize("version", sorted(path.name for path in GOLDEN.glob("*")))
def test_what_a_release_has_written_loads_and_trains_as_it_did(version: str) -> None:
    folder = GOLDEN / version
    expected = np.load(folder / "expected.npz")
    main = fluid.Program.parse_from_string((folder / "main.program").read_bytes())
    startup = fluid.Program.parse_from_string((folder / "startup.program").read_bytes())
    assert fluid.Program.parse_from_string(main.serialize_to_string()).to_string() == main.to_string()
    executor = fluid.Executor(fluid.CPUPlace())
    with fluid.scope_guard(fluid.Scope()):
        executor.run(startup)
        fluid.io.load_persistables(executor, str(folder), main, "persistables")
        np.testing.assert_allclose(losses(main, str(expected["fetch"])), expected["losses"], rtol=1e-5)


def test_the_golden_files_are_there() -> None:
    assert (GOLDEN / headrace.__version__ / "main.program").exists()


if __name__ == "__main__":
    write(GOLDEN / (sys.argv[1] if len(sys.argv) > 1 else headrace.__version__))
