"""headrace.data._system.deferred_signals: handlers run before or after such a step, never within."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from headrace.data._system.deferred_signals import deferred_signals


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """The signals whose handlers have run; that of SIGUSR2 raises."""
    numbers: list[int] = []

    def note(number: int, frame: object) -> None:
        numbers.append(number)

    def fail(number: int, frame: object) -> None:
        numbers.append(number)
        raise TimeoutError

    before = [signal.signal(signal.SIGUSR1, note), signal.signal(signal.SIGUSR2, fail)]
    yield numbers
    signal.signal(signal.SIGUSR1, before[0])
    signal.signal(signal.SIGUSR2, before[1])


def test_handlers_run_at_the_end_and_may_raise(handled: list[int]) -> None:
    ended = False
    with pytest.raises(TimeoutError), deferred_signals():
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
            signal.raise_signal(number)
        assert handled == []
        ended = True
    assert ended
    assert handled == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1]
    signal.raise_signal(signal.SIGUSR1)
    assert len(handled) == 4


def test_ctrl_c_and_an_error_of_the_step_itself(handled: list[int]) -> None:
    with pytest.raises(KeyboardInterrupt) as caught, deferred_signals():
        signal.raise_signal(signal.SIGINT)
        raise ValueError
    assert isinstance(caught.value.__context__, ValueError)
    with pytest.raises(ValueError, match="mine"), deferred_signals():
        raise ValueError("mine")


def test_one_within_another_and_other_threads_change_nothing(handled: list[int]) -> None:
    with deferred_signals():
        with deferred_signals():
            signal.raise_signal(signal.SIGUSR1)
        assert handled == []
        thread = threading.Thread(target=lambda: deferred_signals().__enter__())
        thread.start()
        thread.join()
    assert handled == [signal.SIGUSR1]


def test_a_child_that_is_forked_meanwhile_has_its_handlers(handled: list[int]) -> None:
    with deferred_signals():
        child = os.fork()
        if child == 0:
            signal.raise_signal(signal.SIGUSR1)
            os._exit(0 if handled == [signal.SIGUSR1] else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_a_handler_that_raises_while_they_come_back_keeps_none_away(
    handled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back = signal.signal
    raised = []

    def put_back_and_fail(number: int, handler: object) -> object:
        before = put_back(number, handler)  # type: ignore[arg-type]
        if callable(handler) and getattr(handler, "__name__", "") == "fail" and not raised:
            raised.append(number)
            handler(number, None)
        return before

    monkeypatch.setattr(signal, "signal", put_back_and_fail)
    with pytest.raises(TimeoutError), deferred_signals():
        signal.raise_signal(signal.SIGUSR1)
    assert raised
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert handled == [signal.SIGUSR2, signal.SIGUSR1]
    with deferred_signals():  # works as before
        signal.raise_signal(signal.SIGUSR1)
        assert len(handled) == 2
    assert len(handled) == 3


class Dropped:
    """Gets Ctrl-C as it is finalized."""

    def __del__(self) -> None:
        get_ctrl_c()


class Watched:
    """The same, by a weak reference."""

    def __init__(self) -> None:
        weakref.finalize(self, get_ctrl_c)


def get_ctrl_c() -> None:
    with deferred_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGUSR1)
    time.sleep(0.05)  # more follows in the finalizer


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("dropped", [Dropped, Watched])
def test_what_arrives_in_a_finalizer_is_raised_after_it(handled: list[int], dropped: type, waits: bool) -> None:
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        dropped()
        if waits:
            time.sleep(20)
        while time.monotonic() < begun + 20:
            pass
    assert time.monotonic() < begun + 10
    for _ in range(1000):
        if handled:
            break
        time.sleep(0.01)
    assert handled == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_finalizer_that_is_called_by_hand_is_none(handled: list[int]) -> None:
    watched = type("Plain", (), {})()
    finalize = weakref.finalize(watched, get_ctrl_c)
    with pytest.raises(KeyboardInterrupt) as caught:
        finalize()
    assert "get_ctrl_c" in [entry.name for entry in caught.traceback]


def test_a_handler_that_the_program_sets_meanwhile_has_what_arrived_in_a_finalizer(handled: list[int]) -> None:
    Dropped()
    before = signal.signal(signal.SIGINT, lambda number, frame: handled.append(number))
    try:
        for _ in range(1000):
            if signal.SIGINT in handled:
                break
            time.sleep(0.01)
        time.sleep(0.05)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert sorted(handled) == [signal.SIGINT, signal.SIGUSR1]
    assert before is not signal.default_int_handler


def test_a_child_has_the_handlers_of_what_is_postponed(handled: list[int]) -> None:
    children: list[int] = []

    class Forking(Dropped):
        def __del__(self) -> None:
            super().__del__()
            children.append(os.fork())
            if children[0] == 0:
                os._exit(0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)

    with pytest.raises(KeyboardInterrupt):
        Forking()
        time.sleep(20)
    assert os.waitpid(children[0], 0)[1] == 0
