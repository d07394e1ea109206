"""``python -m headrace.wirehead``: its commands, and their helpers."""
