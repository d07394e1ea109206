"""Which Fluid this is."""

from __future__ import annotations

import re

from headrace import errors

__all__ = [
    "FLUID_VERSION",
    "commit",
    "full_version",
    "istaged",
    "major",
    "minor",
    "mkl",
    "patch",
    "rc",
    "require_version",
    "show",
]

# Whose names and behaviour these are.
FLUID_VERSION = "1.6.3"
# What programs read from paddle.version.
full_version = FLUID_VERSION
major, minor, patch = FLUID_VERSION.split(".")
rc = "0"
# Nothing here is a release of Paddle's. The revision is the one whose tests of operators are run on these.
istaged = False
commit = "fa7ace7cf2"


def mkl() -> str:
    """Whether Intel's MKL computes products: "OFF"."""
    return "OFF"


def show() -> None:
    """Prints the version."""
    print(f"full_version: {full_version}\nmajor: {major}\nminor: {minor}\npatch: {patch}\nrc: {rc}")


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Checks that a program was written for the Fluid whose names these are, 1.6.3, or an older one.

    Args:
        min_version, max_version: such as "1.5" or "1.6.0"; further parts, as in "1.6.0-rc0", make no difference.

    Raises:
        TypeMismatch: a version is no text.
        InvalidArgument: a version consists of something else than numbers and dots.
        FailedPrecondition: it is newer than 1.6.3, or ends before that.
    """
    first, own = _parts("min_version", min_version), _parts("FLUID_VERSION", FLUID_VERSION)
    if own < first:
        raise errors.FailedPrecondition(
            f"the program needs Fluid {min_version} or newer; headrace.fluid has the names of {FLUID_VERSION}"
        )
    if max_version is not None and own > _parts("max_version", max_version):
        raise errors.FailedPrecondition(
            f"the program needs Fluid {max_version} or older; headrace.fluid has the names of {FLUID_VERSION}"
        )


def _parts(name: str, version: str) -> tuple[int, int, int, int]:
    if not isinstance(version, str):
        raise errors.TypeMismatch(f'{name} has to be a text such as "1.6.0", got {type(version).__name__}')
    found = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:\.(\d+))?(?:-?(?:rc|post|a|b)\.?\d*)?", version)
    if found is None:
        raise errors.InvalidArgument(f'{name} has to be a version such as "1.6.0", got {version!r}')
    major, minor, patch, more = (int(part or 0) for part in found.groups())
    return major, minor, patch, more
