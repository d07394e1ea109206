"""PyTorch's loader, fed by Headrace: ``from headrace.torch import DataLoader`` in place of ``torch.utils.data``'s."""

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        "headrace.torch needs PyTorch, which is not installed: pip install torch. headrace.DataLoader works without it."
    ) from error

if not hasattr(_torch, "accelerator"):
    raise ImportError(f"headrace.torch needs PyTorch 2.6 or newer; this is {_torch.__version__}.")

from headrace.torch._dataloader import DataLoader

del _torch

__all__ = ["DataLoader"]
