"""``python -m headrace``: information about the installation, and a check of the machine."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

import headrace
from headrace import _about, _doctor
from headrace._standard_output import run_command


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m headrace",
        description="Shows the version, the processor, the kernels chosen for it, optional packages, and where the "
        "documentation is.",
    )
    top.add_argument("--version", action="version", version=f"headrace {headrace.__version__}")
    top.add_argument("--json", action="store_true", help="print one JSON object")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="check whether this machine meets the requirements of headrace",
        description="Checks whether this machine meets the requirements of headrace, and gives advice if it does not. "
        "The exit status is 1 if something does not work, else 0; warnings do not count.",
    )
    # Its absence must not undo a --json that was given before the command.
    doctor.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line. Returns the exit status."""
    options = parser().parse_args(arguments)
    return run_command("headrace", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if options.command is None:
        about = _about.about()
        print(json.dumps(about, indent=2) if options.json else _about.text(about))
        return 0
    findings = _doctor.examine()
    healthy = all(finding.status != _doctor.PROBLEM for finding in findings.values())
    if options.json:
        checks = [{"name": name, **dataclasses.asdict(finding)} for name, finding in findings.items()]
        print(json.dumps({"version": headrace.__version__, "ok": healthy, "checks": checks}, indent=2))
    else:
        print("\n".join(_doctor.text(findings)))
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
