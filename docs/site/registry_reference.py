"""Pages of what the package declares at run time: operators, configuration keys, command lines."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import re
import runpy
import sys
import warnings
from typing import Any

from markdown_text import block, escaped, from_docstring, table

import headrace
from headrace.fluid import core
from headrace.wirehead import Config

COMMANDS = (
    *("headrace", "headrace doctor", "headrace.sysconfig", "headrace.wirehead"),
    *(f"headrace.wirehead {name}" for name in ("generate", "manage", "status", "clean", "demo", "bench")),
)
OPERATORS = """\
# Operators

The registry of version {version} declares {count} operators, not counting those that compute the gradients of others.
`fluid.core.op_info(type)` returns the same in Python, also for operators of a library of your own. The functions of
[`fluid.layers`](fluid.md) add operators to a program; C++ programs append them by name.

"""
CONFIGURATION = """\
# Wirehead's configuration

Keys of `config.yaml`. [Wirehead](../wirehead.md#configuration) says how to choose them. The environment variable
`WIREHEAD_PASSWORD` holds the server's password.

"""


def argument_row(kind: str, argument: dict[str, Any]) -> list[str]:
    notes = ["several"] if argument["duplicable"] else []
    notes += ["optional"] if argument["dispensable"] else []
    notes += ["only its shape is read"] if argument["shape_only"] else []
    text = escaped(argument["comment"]) + (f" ({', '.join(notes)})" if notes else "")
    return [kind, f"`{argument['name']}`", text]


def operator(info: dict[str, Any]) -> str:
    """The section of an operator, of what ``core.op_info`` returns."""
    facts = [f"**dtypes:** {', '.join(info['kernels']) or 'decided as it runs'}"]
    facts.append(f"**gradient:** {'yes' if info['differentiable'] else 'no'}")
    if info["version"]:
        facts.append(f"**version:** {info['version']}")
    if info["in_place"]:
        facts.append("**in place:** " + ", ".join(f"`{out}` in `{given}`" for out, given in info["in_place"]))
    rows = [argument_row("input", argument) for argument in info["inputs"]]
    rows += [argument_row("output", argument) for argument in info["outputs"]]
    for attr in info["attrs"]:
        value = "required" if attr["required"] else f"default `{attr['default']!r}`"
        rows.append(["attribute", f"`{attr['name']}`", f"{attr['type']}, {value}: {escaped(attr['comment'])}"])
    arguments = table(("", "Name", "Meaning"), rows) if rows else ""
    return f"## {info['type']}\n\n{escaped(info['comment'])}\n\n{' · '.join(facts)}\n\n{arguments}"


def operators() -> str:
    types = sorted(core.op_types())
    shown = [name for name in types if not (name.endswith("_grad") and name.removesuffix("_grad") in types)]
    head = OPERATORS.format(version=headrace.__version__, count=len(shown))
    return head + "\n".join(operator(core.op_info(name)) for name in shown)


def configuration() -> str:
    """The keys of Wirehead's config.yaml, as the class declares and documents them."""
    section = (inspect.getdoc(Config) or "").partition("Attributes:\n")[2]
    described: dict[str, str] = {}
    for names, text in re.findall(r"^    ([\w, ]+): (.*?)(?=^    \w|\Z)", section, re.DOTALL | re.MULTILINE):
        described.update(dict.fromkeys(names.split(", "), from_docstring(" ".join(text.split()))))
    rows = []
    for field in dataclasses.fields(Config):
        default = "required" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        rows.append([f"`{field.name.upper()}`", escaped(str(field.type)), default, described[field.name]])
    return CONFIGURATION + table(("Key", "Type", "Default", ""), rows)


def help_of(command: str) -> str:
    """What a command prints for ``--help``. It runs in this process, since starting one takes long."""
    module, *arguments = command.split()
    before, output = sys.argv, io.StringIO()
    sys.argv = [module, *arguments, "--help"]
    try:
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of modules that are imported already
            runpy.run_module(module, run_name="__main__")
    finally:
        sys.argv = before
    return output.getvalue()


def commands() -> str:
    os.environ["COLUMNS"] = "100"
    parts = ["# Command lines\n\nWhat each prints for `--help`.\n"]
    for command in COMMANDS:
        parts.append(f"## python -m {command}\n\n{block(help_of(command))}")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    return {
        "reference/operators.md": operators(),
        "reference/configuration.md": configuration(),
        "reference/commands.md": commands(),
    }
