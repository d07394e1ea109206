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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", [{}, {"num_workers": 1}, {"shard": (1, 2)}, {"seed": 7}], ids=str)
def test_lightning_predicts_each_batch_once(order: dict[str, Any]) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def predict_step(self, batch: Any) -> list[int]:
            return list(batch.tolist())

    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
    predicted = trainer.predict(Model(), DataLoader(list(range(10)), batch_size=4, **order))
    assert predicted == [batch.tolist() for batch in DataLoader(list(range(10)), batch_size=4, **order)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, 1])
def test_lightning_resumes_between_two_epochs_with_the_order_of_the_second(workers: int, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.nn.Parameter(torch.zeros(()))
            self.seen: list[list[int]] = []

        def training_step(self, batch: Any) -> Any:
            self.seen.append(batch.tolist())
            return (batch.float() - self.mean).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    def seen(checkpoint: str | None = None, **when: Any) -> list[list[int]]:
        save = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **when)
        trainer = lightning.Trainer(
            max_epochs=3,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[save],
        )
        model = Model()
        loader = DataLoader(list(range(12)), 4, shuffle=True, seed=7, num_workers=workers)
        trainer.fit(model, loader, ckpt_path=checkpoint)
        return model.seen

    for when in ({}, {"every_n_train_steps": 1, "save_on_train_epoch_end": False}):  # at the end; after the last batch
        whole = seen(**when)
        assert whole[:3] != whole[3:6]
        assert seen(str(tmp_path / "step=3.ckpt")) == whole[3:]
        for file in tmp_path.iterdir():
            file.unlink()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("order", [{"seed": 7, "shuffle": True}, {"shard": (1, 2)}], ids=str)
def test_accelerate_keeps_order_and_share(order: dict[str, Any]) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")

    def make() -> DataLoader:
        return DataLoader(list(range(12)), 2, **order)

    def lists(loader: Any) -> list[list[int]]:
        return [batch.tolist() for batch in loader]

    loader = make()
    epochs = [lists(loader) for _ in range(3)]
    assert lists(accelerate.skip_first_batches(make(), 1)) == epochs[0][1:]
    prepared = accelerate.Accelerator(cpu=True).prepare(make())
    assert [lists(prepared) for _ in range(3)] == epochs


@pytest.mark.filterwarnings("ignore")
def test_hugging_faces_trainer_skips_what_it_has_trained_on(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    class Line(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []

        def forward(self, x: Any, labels: Any) -> Any:
            self.seen.append(labels.int().tolist())
            return {"loss": (self.line(x) - labels).square().mean()}

    class Training(transformers.Trainer):  # type: ignore[misc, name-defined, unused-ignore]
        def get_train_dataloader(self) -> Any:
            return DataLoader(
                self.train_dataset, 2, shuffle=True, collate_fn=self.data_collator, seed=7, shard=(1, 2), drop_last=True
            )

    data = [{"x": torch.full((1,), float(n)), "labels": torch.tensor(float(n))} for n in range(26)]

    def train(step: int | None = None) -> tuple[list[list[int]], int]:
        model = Line()
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            num_train_epochs=2,
            use_cpu=True,
            report_to=[],
            save_strategy="steps",
            save_steps=1,
            disable_tqdm=True,
            logging_strategy="no",
            gradient_accumulation_steps=2,
        )
        trainer = Training(model, arguments, train_dataset=data)
        result = trainer.train(resume_from_checkpoint=step and str(tmp_path / f"checkpoint-{step}"))
        return model.seen, result.global_step

    whole, steps = train()
    assert (len(whole), steps) == (12, 6)
    for step in (2, 3, 4):
        assert train(step) == (whole[2 * step :], steps)


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
