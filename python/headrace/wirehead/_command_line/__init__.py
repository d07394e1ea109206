"""``python -m headrace.wirehead``: its commands, and what only they need."""
