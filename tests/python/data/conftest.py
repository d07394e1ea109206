"""What the loader's tests share."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/python/data/" in item.nodeid or item.path.parent.name == "data":
            item.add_marker(pytest.mark.timeout(60))


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    yield
    gc.collect()
    left = [process for process in multiprocessing.active_children() if process.name.startswith("headrace-worker")]
    for process in left:
        process.kill()
    assert not left
