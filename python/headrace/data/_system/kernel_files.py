"""Files in which the kernel says something."""

from __future__ import annotations


def read(path: str) -> str:
    """The stripped text; empty if the file cannot be read."""
    try:
        with open(path, errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
