"""Loaders, each in a module: its name, its kind, how it is set up and why, and ``make``, which makes it of a job."""

from peers import (
    grain_loader,
    headrace_loader,
    paddle_loader,
    plain_loop,
    spdl_processes,
    spdl_threads,
    tensorflow_loader,
    torch_arrays,
    torch_drop_in,
    torch_loader,
    torchdata_nodes,
)

LOADERS = (
    plain_loop,
    headrace_loader,
    torch_drop_in,
    torch_loader,
    torch_arrays,
    torchdata_nodes,
    grain_loader,
    paddle_loader,
    spdl_threads,
    spdl_processes,
    tensorflow_loader,
)
