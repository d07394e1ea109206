"""An ordinary PyTorch training script, whose loader is PyTorch's or Headrace's: one import decides.

    python docs/examples/torch_digits.py --loader torch
    python docs/examples/torch_digits.py --loader headrace

The digits are the 1,797 that scikit-learn ships (UCI's optical recognition set, 8 x 8 pixels); every fifth is held
out. Both loaders shuffle in the same order, because both draw from torch's generator in the same way: the losses are
equal to the last digit. What differs is the time.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, Subset

SIZE = 24  # the digits are sampled up to SIZE x SIZE pixels


class Digits(Dataset[Any]):
    """(image, label): a float32 tensor of shape (1, SIZE, SIZE) in [0, 1], and an int.

    Training digits are turned, moved and made noisy; how, depends on the index alone.
    """

    def __init__(self, augment: bool) -> None:
        bunch = load_digits()
        self.images = (bunch.images / 16).astype(np.float32)
        self.labels = bunch.target
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from scipy import ndimage  # where it is used: the script starts faster

        rng = np.random.default_rng(index)
        angle, shift, noise = 0.0, np.zeros(2), 0.0
        if self.augment:
            angle, shift, noise = np.deg2rad(rng.uniform(-12, 12)), rng.uniform(-0.7, 0.7, size=2), 0.05
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * (8 / SIZE)
        offset = np.array([3.5, 3.5]) + shift - turn @ np.full(2, (SIZE - 1) / 2)
        image = ndimage.affine_transform(self.images[index], turn, offset, output_shape=(SIZE, SIZE), order=1)
        image = image + noise * rng.standard_normal(image.shape, dtype=np.float32)
        return torch.from_numpy(image.astype(np.float32)).clamp(0, 1)[None], int(self.labels[index])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * (SIZE // 4) ** 2, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loader", choices=["torch", "headrace"], default="headrace")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()

    if arguments.loader == "torch":
        from torch.utils.data import DataLoader
    else:
        from headrace.data import DataLoader  # type: ignore[assignment]

    torch.manual_seed(7)
    torch.set_num_threads(1)  # the network is small; the other cores are for the workers
    indices = np.arange(len(Digits(augment=False)))
    training = Subset(Digits(augment=True), indices[indices % 5 != 4].tolist())
    held_out = Subset(Digits(augment=False), indices[indices % 5 == 4].tolist())
    loader = DataLoader(training, batch_size=32, shuffle=True, num_workers=arguments.workers)
    held_out_loader = DataLoader(held_out, batch_size=128, num_workers=arguments.workers)

    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, arguments.epochs + 1):
        begin = time.perf_counter()
        losses = []
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in held_out_loader)
        samples = len(training) + len(held_out)
        speed = samples / (time.perf_counter() - begin)
        print(
            f"epoch {epoch}: loss {np.mean(losses):.12f}, held-out accuracy {right / len(held_out):.4f}, "
            f"{speed:,.0f} samples/s"
        )


if __name__ == "__main__":
    main()
