"""Builds the documentation site, into build/docs/html.

    python docs/site/build.py [--source ADDRESS] [--serve]

The pages and drawings of docs/ are copied to build/docs/source, with the pages' links changed (links.py). To these are
added reference pages generated from the installed package (*_reference.py). Sphinx makes HTML of all. Any warning is an
error, and so is a link within the site that leads nowhere, or a public name that no page describes.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import shutil
import subprocess
import sys
from pathlib import Path

import figures
import links
import python_reference
import registry_reference
import source_reference

import headrace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DOCS = HERE.parent
# Pages that only the site has: their links lead to generated pages.
PAGES = HERE / "pages"
# Files that are pages of the site but are not in docs/.
OTHERS = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def pages() -> dict[str, str]:
    """For each file of the checkout that is a page, its path on the site."""
    found = {}
    for path in sorted(DOCS.rglob("*.md")):
        if HERE not in path.parents:
            page = path.with_name("index.md") if path.name == "README.md" else path
            found[str(path.relative_to(ROOT))] = str(page.relative_to(DOCS))
    found.update(OTHERS)
    found["docs/design"] = "design/index.md"
    for place, anchor in source_reference.example_anchors().items():
        found[place] = f"examples.md#{anchor}"
    return found


def write(path: Path, text: str) -> None:
    """Writes a file unless it has this text, so that Sphinx reads again only what has changed."""
    if not path.is_file() or path.read_text("utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def stage(folder: Path, source: str) -> None:
    """Makes the folder that Sphinx reads."""
    wanted = {**python_reference.pages(), **registry_reference.pages(), **source_reference.pages()}
    known = pages()
    known.update((f"docs/{page}", page) for page in wanted)
    own = {str(path.relative_to(PAGES)): path for path in sorted(PAGES.rglob("*.md"))}
    known.update((f"docs/{page}", page) for page in own)
    known.update((str(path.relative_to(ROOT)), page) for page, path in own.items())
    for name, page in known.items():
        if (ROOT / name).is_file() and "#" not in page and page not in own:
            wanted[page] = links.rewrite((ROOT / name).read_text("utf-8"), name, known, ROOT, source)
    for page, path in own.items():
        wanted[page] = links.rewrite(path.read_text("utf-8"), f"docs/{page}", known, ROOT, source)
    wanted["index.md"] = wanted["index.md"].replace(
        "FIGURES", figures.chart((DOCS / "from-torch.md").read_text("utf-8"))
    )
    wanted.update((str(path.relative_to(DOCS)), path.read_text("utf-8")) for path in sorted(DOCS.rglob("*.svg")))
    for path in folder.rglob("*"):
        if path.is_file() and str(path.relative_to(folder)) not in wanted:
            path.unlink()
    for page, text in wanted.items():
        write(folder / page, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", default=os.environ.get("HEADRACE_HOME", ""), help="address of the repository")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "docs")
    parser.add_argument("--serve", action="store_true", help="show the site on http://localhost:8000")
    arguments = parser.parse_args()
    source, html = arguments.output / "source", arguments.output / "html"
    home = arguments.source.rstrip("/")
    stage(source, f"{home}/blob/v{headrace.__version__}" if home else "")
    jobs = str(os.cpu_count())
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "--jobs", jobs]
    command += ["--conf-dir", str(HERE), "--doctree-dir", str(arguments.output / "doctrees"), str(source), str(html)]
    # conf.py and autodoc import the headrace that this process has imported.
    path = os.pathsep.join(str(place) for place in sys.path[1:] if place)
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        shutil.rmtree(arguments.output / "doctrees", ignore_errors=True)  # or the next run would see no warning
        sys.exit(done.returncode)
    missing = python_reference.undescribed(python_reference.described(html))
    if missing:
        sys.exit(f"no page describes {', '.join(missing)}")
    print(f"{html / 'index.html'}")
    if arguments.serve:
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(html))
        http.server.ThreadingHTTPServer(("localhost", 8000), handler).serve_forever()


if __name__ == "__main__":
    main()
