"""A training program that may be killed at any moment, and resumes: for test_checkpoint.py.

python train_with_checkpoints.py FOLDER WORKERS: trains to the end, and prints a checksum of all that persists.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

import headrace
import headrace.fluid as fluid
from headrace.fluid import layers

EPOCHS, ROWS, BATCH = 3, 40, 4


class Rows:
    """Rows that need random numbers of their own."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        noise = rng.normal(size=5)
        return (np.sin(index + np.arange(5)) + 0.1 * noise).astype(np.float32), np.array([index % 3], np.int64)


def build() -> Any:
    for program in (fluid.default_main_program(), fluid.default_startup_program()):
        program.random_seed = 7
    reader = layers.py_reader(3, [[-1, 5], [-1, 1]], ["float32", "int64"], name="rows")
    x, label = layers.read_file(reader)
    hidden = layers.dropout(layers.batch_norm(layers.fc(x, 16, act="relu")), 0.3)
    loss = layers.mean(layers.softmax_with_cross_entropy(layers.fc(hidden, 3), label))
    rate = layers.exponential_decay(0.05, 10, 0.9)
    fluid.optimizer.Adam(rate).minimize(loss)
    return reader


def checksum() -> str:
    digest = hashlib.sha256()
    for var in sorted(fluid.default_main_program().list_vars(), key=lambda var: var.name):
        if var.persistable and var.type == fluid.core.VarDesc.VarType.LOD_TENSOR:
            digest.update(np.array(fluid.global_scope().find_var(var.name).get_tensor()).tobytes())
    return digest.hexdigest()


def main(folder: str, workers: int) -> None:
    reader = build()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    loader = headrace.DataLoader(Rows(), batch_size=BATCH, shuffle=True, seed=5, num_workers=workers)
    reader.decorate_loader(loader)
    done = fluid.io.load_checkpoint(exe, folder) or {"epoch": 0, "step": 0}
    for epoch in range(done["epoch"], EPOCHS):
        reader.start()
        try:
            while True:
                exe.run(fluid.default_main_program())
                done["step"] += 1
                done["epoch"] = epoch
                if done["step"] % 2 == 0:
                    fluid.io.save_checkpoint(exe, folder, extra=done, max_num_checkpoints=2)
                print("step", done["step"], flush=True)
        except fluid.core.EOFException:
            reader.reset()
    loader.shutdown()
    print("done", done["step"], checksum(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
