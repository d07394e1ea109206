"""Loaders, each in a module: its name, its kind, how it is set up and why, and ``make``, which makes it of a job."""

from peers import headrace_loader, plain_loop, torch_drop_in, torch_loader

LOADERS = (plain_loop, headrace_loader, torch_drop_in, torch_loader)
