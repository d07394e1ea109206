"""Links of Markdown files that lead from page to page in a checkout, made into links from page to page on the site."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path

# Neither to a place in the same document nor to another site.
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!#|[a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")
BLOCK = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)


class BrokenLink(Exception):
    """A link to a file that does not exist."""


def rewrite(text: str, path: str, pages: Mapping[str, str], root: Path, source: str) -> str:
    """The text of a page with its links changed.

    Args:
        text: Markdown.
        path: of the file in the checkout, whose folder links are relative to.
        pages: for each file of the checkout that is a page of the site, its path there.
        root: the checkout.
        source: address at which the other files can be seen, without a slash at its end. Empty: links to these become
            text.
    """

    def replace(link: re.Match[str]) -> str:
        label, target, anchor = link[1], link[2], link[3] or ""
        name = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if name in pages:
            to, _, part = pages[name].partition("#")
            relative = posixpath.relpath(to, posixpath.dirname(pages[path]) or ".")
            return f"[{label}]({relative}{'#' + part if part else anchor})"
        if name.startswith("..") or not os.path.exists(root / name):
            raise BrokenLink(f"{path}: there is no {target}")
        return f"[{label}]({source}/{name}{anchor})" if source else label

    parts, end = [], 0
    for block in BLOCK.finditer(text):
        parts += [LINK.sub(replace, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(replace, text[end:])])
