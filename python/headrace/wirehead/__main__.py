"""``python -m headrace.wirehead``."""

from __future__ import annotations

import sys

from headrace.wirehead._command_line.commands import main

if __name__ == "__main__":
    sys.exit(main())
