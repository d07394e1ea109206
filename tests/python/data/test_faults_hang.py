"""Workers that hang or are stopped."""

from __future__ import annotations

import pytest
from fault_harness import run

pytestmark = pytest.mark.timeout(360)


@pytest.mark.parametrize(
    ("how", "context"),
    [
        ("in Python", "fork"),
        ("in C", "fork"),
        ("in C with the interpreter's lock", "fork"),
        ("in C with the interpreter's lock", "forkserver"),
        ("in Python", "spawn"),
    ],
)
def test_a_hung_worker_is_reported_with_its_stack_and_replaced(how: str, context: str) -> None:
    result = run("hang", how, context, 2)
    assert "timed out after" in result["error"]
    assert "index 21" in result["error"]
    assert f"pid {result['pid']}" in result["error"]
    assert "hang_here" in result["error"]  # as part of the stack
    assert result["alive"] is False
    # The sample hangs only once: the second try succeeds, and nothing is lost.
    assert result["exact"]
    assert result["later"]


@pytest.mark.parametrize("timeout", [0, 100])
def test_a_worker_that_ends_its_main_thread_is_replaced(timeout: float) -> None:
    result = run("lifeless", timeout)
    assert result["exact"]
    assert len(result["warned"]) == 1
    assert "ended its main thread (pthread_exit), and was killed while it made the sample" in result["warned"][0]
    assert "index 21" in result["warned"][0]


def test_a_sample_that_always_hangs_is_given_up() -> None:
    result = run("hang_always")
    assert result["timeouts"] == 2  # one for each try
    assert "index 21" in result["given_up"]
    assert "hung" in result["given_up"]
    assert result["rest"]


def test_all_workers_hang() -> None:
    result = run("hang_all")
    assert result["later"]


def test_a_stream_that_hangs_in_a_read_is_reported_once_and_replaced() -> None:
    result = run("hang_in_a_read")
    assert result["exact"]
    assert result["timeouts"] == 1
    assert result["deaths"] == 1


def test_a_worker_init_fn_that_hangs_is_reported_each_time_and_not_ended() -> None:
    result = run("hang_in_worker_init_fn")
    for text in result["timeouts"]:
        assert "timed out after 1 seconds. Worker 0 (pid " in text
        assert "is not working on a sample (" in text
    assert result["same"]
    assert result["deaths"] == 0
    assert result["left"] == []


def test_a_stream_that_takes_longer_than_the_timeout_to_catch_up_is_not_ended() -> None:
    result = run("slow_to_catch_up")
    assert result["timeouts"]
    assert any("in seek" in text for text in result["timeouts"])
    assert result["deaths"] == 0
    assert result["exact"]


def test_a_hung_worker_while_a_queue_is_fed() -> None:
    result = run("hang_fed")
    assert "timed out" in result["error"]
    assert "index 21" in result["error"]
    assert "hang_here" in result["error"]


@pytest.mark.parametrize("kind", ["map", "collation", "stream", "streams", "single samples"])
def test_stopped_workers(kind: str) -> None:
    result = run("stopped", kind)
    assert result["wrong"] == []
    assert result["finished without it"] == (4 if kind in ("map", "single samples") else 0)
