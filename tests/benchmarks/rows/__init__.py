"""What is measured: a module for each family of rows."""

from __future__ import annotations

from harness.contest import Family, Row

from rows import arrays

FAMILIES: tuple[Family, ...] = (arrays.FAMILY,)
ROWS: dict[str, Row] = {row.name: row for family in FAMILIES for row in family.rows}
