"""Fixtures that the loader's tests share."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 100  # a thread of the loader's may be on its way out, and hold it until then
    while (left := _workers()) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in left:
        process.kill()
    assert not left


def _workers() -> list[BaseProcess]:
    gc.collect()
    return [process for process in multiprocessing.active_children() if process.name.startswith("headrace-worker")]
