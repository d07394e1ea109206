"""Settings of Sphinx. build.py runs it."""

from __future__ import annotations

import re
from typing import Any

import headrace

project = "Headrace"
author = "the authors of Headrace"
copyright = author
version = release = headrace.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # of code with … in it

# torch is large, and the pages must not depend on whether it is installed.
autodoc_mock_imports = ["torch"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"Headrace {version}"
html_show_sourcelink = False
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "default"
pygments_dark_style = "monokai"

# Literals and roles, which stay as they are, and what stands for itself elsewhere: docstrings use no other markup.
MARKUP = re.compile(r"(``.*?``|:[\w:]+:`.*?`)")
PLAIN = re.compile(r"(?<!\\)([*|]|(?<=\w)_(?!\w))")


def escape_plain_text(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Lets docstrings write |x|, a * b and x_: reStructuredText would look for ends and targets."""
    for number, line in enumerate(lines):
        parts = MARKUP.split(line)
        parts[::2] = [PLAIN.sub(r"\\\1", part) for part in parts[::2]]
        lines[number] = "".join(parts)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", escape_plain_text, priority=900)  # after Napoleon
