"""Checks on a real GPU what the tests check against a stand-in for its driver, and measures the loaders. Run by hand:

    python tests/gpu/check.py

It needs torch and a CUDA device, says so if there is none (exit status 77), and fails (1) if a copy has another content
than its batch or training other results than with PyTorch's loader. JAX's copies are checked if JAX finds the device.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np

from headrace.data import DataLoader

SKIPPED = 77


class Numbered:
    """Samples whose elements are all their index."""

    def __init__(self, length: int, elements: int) -> None:
        self.length = length
        self.elements = elements

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.full(self.elements, index, np.float32)


def check_content(torch: Any, batches: int, rows: int, elements: int) -> int:
    """How many copies are wrong if each is made on one of several streams, behind kernels, and its batch is dropped
    at once.
    """
    loader = DataLoader(Numbered(batches * rows, elements), batch_size=rows, num_workers=4, pin_memory=True, to="torch")
    streams = [torch.cuda.Stream() for _ in range(3)]
    busy = torch.randn(2048, 2048, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for number, batch in enumerate(loader):
        assert batch.is_pinned(), loader.stats()
        stream = streams[number % len(streams)]
        with torch.cuda.stream(stream):
            for _ in range(4):
                busy @ busy  # so that the copy has to wait
            copied = batch.to("cuda", non_blocking=True)
            del batch
            expected = torch.arange(number * rows, (number + 1) * rows, device="cuda", dtype=torch.float32)
            wrong += (copied != expected[:, None]).any()
            copied.record_stream(stream)
    torch.cuda.synchronize()
    return int(wrong)


def check_device_content(torch: Any, batches: int, rows: int, elements: int) -> int:
    """How many batches of ``device="cuda:N"`` are wrong where the consumer's streams take turns, the device is busy,
    and each batch is dropped at once, so that its memory is soon that of another copy.
    """
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    dataset = Numbered(batches * rows, elements)
    loader = DataLoader(dataset, batch_size=rows, num_workers=4, device=str(device))
    streams = [torch.cuda.Stream(device) for _ in range(3)]
    busy = torch.randn(2048, 2048, device=device)
    wrong = torch.zeros(batches, dtype=torch.bool, device=device)
    torch.cuda.synchronize(device)  # these were made on another stream
    iterator = iter(loader)
    for number in range(batches):
        with torch.cuda.stream(streams[number % len(streams)]):
            batch = next(iterator)  # for which the current stream waits
            assert batch.device == device, batch.device
            for _ in range(4):
                busy @ busy  # so that the batch is read long after it was dropped
            expected = torch.arange(number * rows, (number + 1) * rows, device=device, dtype=torch.float32)
            wrong[number] = (batch != expected[:, None]).any()
            del batch
    torch.cuda.synchronize(device)
    return int(wrong.sum())


def check_jax_content(batches: int, rows: int, elements: int) -> int | None:
    """How many batches are wrong that JAX copies while the device is busy, and that are dropped at once; None without a
    JAX that has the device.
    """
    try:
        import jax

        device = jax.devices("gpu")[0]
    except (ImportError, RuntimeError):
        return None
    dataset = Numbered(batches * rows, elements)
    loader = DataLoader(
        dataset, batch_size=rows, num_workers=4, pin_memory=True, multiprocessing_context="forkserver", to="numpy"
    )
    busy = jax.device_put(np.full((2048, 2048), 1 / 2048, np.float32), device)
    product = jax.jit(lambda matrix: matrix @ matrix)
    is_wrong = jax.jit(lambda batch, first: (batch != first + jax.numpy.arange(rows)[:, None]).any())
    wrong = []
    for number, batch in enumerate(loader):
        for _ in range(4):
            busy = product(busy)  # so that the copy has to wait
        copied = jax.device_put(batch, device)
        del batch
        wrong.append(is_wrong(copied, number * rows))
    return sum(map(bool, wrong))


def check_training(torch: Any) -> bool:
    """Whether a network trained on batches of either loader, copied in either way, has the same parameters bit by bit.

    The copies are asynchronous, and each batch is dropped when its step has been queued.
    """
    from headrace.torch import DataLoader as DropIn

    torch.use_deterministic_algorithms(True)
    dataset = Numbered(4096, 784)

    def parameters(cls: Any, **options: Any) -> Any:
        torch.manual_seed(3)
        network = torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
        optimizer = torch.optim.SGD(network.parameters(), 0.01)
        for batch in cls(dataset, batch_size=64, shuffle=True, num_workers=4, **options):
            optimizer.zero_grad()
            network(batch.to("cuda", non_blocking=True) / len(dataset)).square().mean().backward()
            optimizer.step()
        return torch.nn.utils.parameters_to_vector(network.parameters()).detach()

    expected = parameters(torch.utils.data.DataLoader, pin_memory=True)
    ways: list[dict[str, Any]] = [{"pin_memory": True}, {"device": "cuda"}]
    return all(torch.equal(parameters(DropIn, **way), expected) for way in ways)


def throughput(torch: Any, cls: Any, workers: int, **options: Any) -> float:
    """GB/s of images of 3 × 224 × 224 that arrive on the device, in batches of 64."""
    elements, samples = 3 * 224 * 224, 6400
    iterator = iter(cls(Numbered(samples, elements), batch_size=64, num_workers=workers, **options))
    next(iterator)
    begin = time.perf_counter()
    for batch in iterator:
        batch.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return (samples - 64) * elements * 4 / (time.perf_counter() - begin) / 1e9


def bandwidth(torch: Any, sources: list[Any], repeats: int) -> float:
    """GB/s of asynchronous copies from those tensors, one after the other."""
    target = torch.empty_like(sources[0], device="cuda")
    for _ in range(3):
        target.copy_(sources[0], non_blocking=True)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in range(repeats):
        target.copy_(sources[number % len(sources)], non_blocking=True)
    torch.cuda.synchronize()
    return repeats * target.nbytes / (time.perf_counter() - begin) / 1e9


def check_bandwidth(torch: Any, megabytes: int) -> tuple[float, float]:
    """GB/s from the loader's slots, and from one pinned buffer of torch's own."""
    elements = (megabytes << 20) // 4 // 64
    loader = DataLoader(Numbered(64 * 8, elements), batch_size=64, num_workers=2, pin_memory=True, to="torch")
    slots = list(loader)
    own = torch.empty(slots[0].shape, pin_memory=True)
    return bandwidth(torch, slots, 64), bandwidth(torch, [own], 64)


def check_overlap(torch: Any, megabytes: int) -> float:
    """How much of the shorter of copies and kernels is hidden behind the other, from 0 to 1."""
    elements = (megabytes << 20) // 4 // 64
    loader = DataLoader(Numbered(64 * 4, elements), batch_size=64, num_workers=2, pin_memory=True, to="torch")
    slots = list(loader)
    target = torch.empty_like(slots[0], device="cuda")
    factor = torch.randn(4096, 4096, device="cuda")
    stream = torch.cuda.Stream()

    def timed(copies: int, kernels: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with torch.cuda.stream(stream):
            for number in range(copies):
                target.copy_(slots[number % len(slots)], non_blocking=True)
        for _ in range(kernels):
            factor @ factor
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    timed(4, 4)
    copy_time, kernel_time = timed(32, 0), timed(0, 32)
    kernels = max(1, round(32 * copy_time / kernel_time))
    alone = copy_time + timed(0, kernels)
    return max(0.0, (alone - timed(32, kernels)) / copy_time)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2000, help="batches whose content is checked (default: 2000)")
    parser.add_argument("--megabytes", type=int, default=16, help="size of the batches that are timed (default: 16)")
    arguments = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic algorithms need it
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # so that JAX leaves torch some memory
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed")
        return SKIPPED
    if not torch.cuda.is_available():
        print("skipped: torch finds no CUDA device")
        return SKIPPED
    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, torch {torch.__version__}")
    wrong = check_content(torch, arguments.batches, 64, 1024)
    print(f"content: {wrong} of {arguments.batches} copies are wrong")
    wrong_on_device = check_device_content(torch, arguments.batches, 64, 1024)
    print(f"content with device=: {wrong_on_device} of {arguments.batches} batches are wrong")
    wrong_in_jax = check_jax_content(arguments.batches, 64, 1024)
    print("content in JAX: " + ("skipped" if wrong_in_jax is None else f"{wrong_in_jax} batches are wrong"))
    slots, own = check_bandwidth(torch, arguments.megabytes)
    print(f"bandwidth: {slots:.1f} GB/s from slots, {own:.1f} from one pinned buffer ({slots / own:.2f} of it)")
    print(f"overlap: {check_overlap(torch, arguments.megabytes):.0%} of the copies is hidden behind kernels")
    same = check_training(torch)
    print(f"training: the parameters are {'those' if same else 'NOT those'} of PyTorch's loader")
    for workers in (4, 12):
        print_throughput(torch, workers)
    return 1 if wrong or wrong_on_device or wrong_in_jax or not same else 0


def print_throughput(torch: Any, workers: int) -> None:
    """Prints medians of three interleaved rounds."""
    from headrace.torch import DataLoader as DropIn

    ways = (
        (torch.utils.data.DataLoader, {"pin_memory": True}),
        (DropIn, {"pin_memory": True}),
        (DropIn, {"device": "cuda"}),
    )
    rounds = [[throughput(torch, cls, workers, **options) for cls, options in ways] for _ in range(3)]
    theirs, pinned, on_device = np.median(rounds, axis=0)
    print(
        f"{workers} workers: {theirs:.1f} GB/s from PyTorch's loader; {pinned:.1f} ({pinned / theirs:.1f} times) with "
        f"pin_memory, {on_device:.1f} ({on_device / theirs:.1f} times) with device"
    )


if __name__ == "__main__":
    sys.exit(main())
