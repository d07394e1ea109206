"""What a package index shows: links of the README that work there, and the project's addresses.

A checkout does not say where the project lives; whoever publishes does. Relative links of the README become links to
that place; without one, they become text.
"""

from __future__ import annotations

import re
from pathlib import Path

# Not those to a place in the same document, nor to a site.
RELATIVE = re.compile(r"\[([^\]]+)\]\((?!#|[a-z]+:)([^)]+)\)")


def absolute_links(markdown: str, home: str, version: str) -> str:
    """The text with its relative links made absolute, or removed if ``home`` is empty."""
    return RELATIVE.sub(rf"[\1]({home}/blob/v{version}/\2)" if home else r"\1", markdown)


def project_urls(home: str, version: str) -> str:
    """The table ``project.urls`` of pyproject.toml; empty if ``home`` is."""
    if not home:
        return ""
    tree = f"{home}/blob/v{version}"
    urls = {
        "Homepage": home,
        "Documentation": f"{tree}/docs/guide.md",
        "Source": home,
        "Changelog": f"{tree}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    return "\n[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in urls.items())


def version_of(source: Path) -> str:
    """The version that a source tree has."""
    text = (source / "python/headrace/__init__.py").read_text("utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0]


def apply(source: Path, home: str) -> None:
    """Changes README.md and pyproject.toml of a source tree."""
    version = version_of(source)
    readme, project = source / "README.md", source / "pyproject.toml"
    readme.write_text(absolute_links(readme.read_text("utf-8"), home, version), "utf-8")
    text = project.read_text("utf-8")
    before, _, after = text.partition("\n[tool.")
    project.write_text(f"{before}{project_urls(home, version)}\n[tool.{after}", "utf-8")
