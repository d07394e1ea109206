"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable


def escaped(text: str) -> str:
    """Plain text as Markdown that shows it."""
    return re.sub(r"([\\`*_{}\[\]<>|#$~])", r"\\\1", text).replace("\n", " ")


def from_docstring(text: str) -> str:
    """One line of reStructuredText."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def block(text: str, language: str = "text") -> str:
    """Text as it stands; it may itself hold blocks."""
    return f"````{language}\n{text.rstrip()}\n````\n"


def toctree(pages: Iterable[str]) -> str:
    """The pages that are below this one; nothing is shown."""
    return "\n".join(["```{toctree}", ":hidden:", ":titlesonly:", *pages, "```\n"])
