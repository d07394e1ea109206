"""headrace.data._system.deferred_signals: handlers run before or after such a step, never within."""

from __future__ import annotations

import os
import signal
import threading
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


@pytest.mark.parametrize("at", ["fail", "note"])  # as its own handler is back, or before the next one is
def test_a_handler_that_raises_while_they_come_back_keeps_none_away(
    at: str, handled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back = signal.signal
    raised = []

    def put_back_and_fail(number: int, handler: object) -> object:
        """Arrived signals are handled before a handler is installed, or soon after."""
        if at == "fail":
            before = put_back(number, handler)  # type: ignore[arg-type]
        if getattr(handler, "__name__", "") == at and not raised:
            raised.append(number)
            signal.getsignal(signal.SIGUSR2)(signal.SIGUSR2, None)  # type: ignore[operator, misc]
        return before if at == "fail" else put_back(number, handler)  # type: ignore[arg-type]

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
