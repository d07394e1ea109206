"""Trains on numbered samples in two processes, and prints which ones each process was given in each epoch; see
test_ecosystem.py.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from headrace.torch import DataLoader

LENGTH, EPOCHS = 40, 2


class Numbered(Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor([0.0])}


def loader(**arguments: Any) -> DataLoader:
    return DataLoader(Numbered(), batch_size=5, shuffle=True, num_workers=2, **arguments)


def share(accelerator: Any) -> DataLoader:
    """A process's share, of which Accelerate knows nothing."""
    return loader(seed=7, shard=(accelerator.process_index, accelerator.num_processes))


def lightning(seen: list[list[int]], folder: str) -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            if number == 0:
                seen.append([])
            seen[-1] += [int(x) for x in batch["x"]]
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Model(), loader())
    assert trainer.train_dataloader.stats()["workers"] == 2


def accelerate(seen: list[list[int]], folder: str) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    batches = accelerator.prepare(loader())
    for _ in range(EPOCHS):
        seen.append([int(x) for batch in batches for x in batch["x"]])


def accelerate_share(seen: list[list[int]], folder: str) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    layer = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 1e-6))
    batches = share(accelerator)
    for _ in range(EPOCHS):
        seen.append([])
        for batch in batches:
            seen[-1] += [int(x) for x in batch["x"]]
            accelerator.backward(model(batch["x"]).square().mean())
            optimizer.step()
    assert batches.stats()["workers"] == 2


def trainer(seen: list[list[int]], folder: str, shares: bool = False) -> None:
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, x: Any, labels: Any) -> Any:
            if not seen or len(seen[-1]) == LENGTH // 2:
                seen.append([])
            seen[-1] += [int(value) for value in x]
            return {"loss": (self.layer(x) - labels).square().mean()}

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self) -> Any:
            if not shares:
                return self.accelerator.prepare(loader())
            self.batches = share(self.accelerator)
            return self.batches

    arguments = transformers.TrainingArguments(
        folder,
        num_train_epochs=EPOCHS,
        use_cpu=True,
        per_device_train_batch_size=5,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        learning_rate=1e-6,
    )
    trains = Trainer(Model(), arguments, train_dataset=Numbered())
    trains.train()
    assert not shares or trains.batches.stats()["workers"] == 2


def trainer_share(seen: list[list[int]], folder: str) -> None:
    trainer(seen, folder, shares=True)


if __name__ == "__main__":
    given: list[list[int]] = []
    torch.manual_seed(0)
    programs = (lightning, accelerate, accelerate_share, trainer, trainer_share)
    {program.__name__: program for program in programs}[sys.argv[1]](given, sys.argv[2])
    rank = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
    Path(sys.argv[2], f"rank{rank}.json").write_text(json.dumps(given))
