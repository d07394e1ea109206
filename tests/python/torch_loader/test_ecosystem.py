"""Libraries that use PyTorch's loader, with the drop-in in its place."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

from headrace.torch import DataLoader  # noqa: E402


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_trains_and_resumes_in_the_order_of_pytorchs_loader(workers: int, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []

        def training_step(self, batch: Any, number: int) -> Any:
            self.seen.append(batch.tolist())
            return self.layer(batch[:, None].float()).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    def seen(cls: Any, checkpoint: str | None = None, seed: int | None = None, **options: Any) -> list[list[int]]:
        torch.manual_seed(3)
        trainer = lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **options,
        )
        model = Model()
        more = {} if seed is None else {"seed": seed}
        loader = cls(list(range(40)), batch_size=5, shuffle=True, num_workers=workers, **more)
        trainer.fit(model, loader, ckpt_path=checkpoint)
        return model.seen

    expected = seen(torch_data.DataLoader, enable_checkpointing=False)
    for seed in (None, 7):
        folder = tmp_path / str(seed)
        save = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
        whole = seen(DataLoader, seed=seed, callbacks=[save])
        assert (whole == expected) == (seed is None)
        for step in (3, 12):
            rest = seen(DataLoader, str(folder / f"step={step}.ckpt"), seed, enable_checkpointing=False)
            # The next epoch's order is drawn from torch's generator, which Lightning does not restore.
            end = 8 if seed is None and step == 3 else 16
            assert rest[: end - step] == whole[step:end]


# In a process of its own, because JAX's threads outlive the test; workers are forked before these start.
JAX_PROGRAM = """
import sys, torch
from headrace.torch import DataLoader
samples = [torch.full((3,), float(i)) for i in range(40)]
batches = iter(DataLoader(samples, batch_size=5, num_workers=int(sys.argv[1])))
import jax
total = jax.jit(lambda batch: batch.sum(axis=1))
kept = []
for batch in batches:
    kept.append(jax.dlpack.from_dlpack(batch))
    assert total(kept[-1]).tolist() == (3 * batch[:, 0]).tolist()
assert [int(array[0, 0]) for array in kept] == list(range(0, 40, 5))
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [0, 2])
def test_jax_takes_each_batch(workers: int) -> None:
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    command = [sys.executable, "-c", JAX_PROGRAM, str(workers)]
    result = subprocess.run(command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
