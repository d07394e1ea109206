"""A chart of the first page, made of the table of from-torch.md."""

from __future__ import annotations

import html
import re

ROW = re.compile(r"^\| (.+?) \| \d+ \| ([\d.]+) \|$", re.MULTILINE)
HEAD = "| Dataset | Batch | Speed relative to PyTorch |"


def chart(page: str) -> str:
    """A bar for each row of the table, as HTML within Markdown; static/site.css has its layout."""
    rows = ROW.findall(page.partition(HEAD)[2].partition("\n\n")[0])
    if not rows:
        raise ValueError("the page has no table of figures")
    longest = max(float(value) for _, value in rows)
    parts = ['<div class="bars">']
    for name, value in rows:
        width = 80 * float(value) / longest
        parts.append(f"<span>{html.escape(name.replace('`', ''))}</span>")
        parts.append(f'<span><i style="width:{width:.1f}%"></i>{value} ×</span>')
    return "\n".join([*parts, "</div>"])
