"""Which store a configuration names."""

from __future__ import annotations

from headrace.wirehead._stores.store import Store
from headrace.wirehead.config import Config


def open_store(config: Config, create: bool = True) -> Store:
    """The store that a configuration names.

    Args:
        create: create its folder or database if it does not exist.

    Raises:
        StoreUnreachableError: its server does not answer.
        ImportError: it needs PyMongo, which is not installed.
    """
    if config.is_local:
        from headrace.wirehead._stores.local_store import LocalStore

        return LocalStore(config, create)
    from headrace.wirehead._stores.mongo_store import MongoStore

    return MongoStore(config)
