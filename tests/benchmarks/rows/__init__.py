"""What is measured: a module for each family of rows."""

from __future__ import annotations

from harness.contest import Family, Row

from rows import arrays, framework, operators, overheads, python_work, real, wirehead

FAMILIES: tuple[Family, ...] = (
    real.FAMILY,
    arrays.FAMILY,
    python_work.FAMILY,
    overheads.FAMILY,
    framework.FAMILY,
    operators.FAMILY,
    wirehead.FAMILY,
)
ROWS: dict[str, Row] = {row.name: row for family in FAMILIES for row in family.rows}
