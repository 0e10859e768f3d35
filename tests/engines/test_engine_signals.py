"""The first signal asks to stop, at whatever moment it comes; the second acts as ever."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from offsetkeeper.engines.stop import Stop, stop_on_signals

# Sends itself a signal before the nth line that a wait runs, for each n. A signal's handler runs in the main thread,
# between any two of its instructions: also while that thread holds a lock which the handler would wait for.
AT_EACH_LINE = """
import itertools, signal, sys
from offsetkeeper.engines.stop import Stop, stop_on_signals

def run(nth):
    stop, lines = Stop(), itertools.count(1)
    def trace(*_):
        if next(lines) == nth:
            signal.raise_signal(signal.SIGTERM)
        return trace
    with stop_on_signals(stop):
        sys.settrace(trace)
        stop.wait(0.05)
        sys.settrace(None)
    return next(lines) - 1, stop.is_set()

count, _ = run(0)
print(*(run(nth)[1] for nth in range(1, count)))
"""


def test_a_signal_at_any_line_of_a_wait_ends_it() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EACH_LINE], capture_output=True, text=True, timeout=300, check=True)
    assert set(done.stdout.split()) == {"True"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_acts_as_before(number: signal.Signals) -> None:
    seen: list[int] = []
    before = signal.signal(number, lambda number, _: seen.append(number))
    try:
        stop = Stop()
        with stop_on_signals(stop):
            signal.raise_signal(number)
            assert stop.is_set()
            assert seen == []
            signal.raise_signal(number)
            assert seen == [number]
        signal.raise_signal(number)
        assert seen == [number, number]
    finally:
        signal.signal(number, before)


def test_handlers_are_as_before_after_a_block_without_a_signal() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stop_on_signals(Stop()):
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_signals_are_left_alone_outside_of_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    found: list[object] = []

    def run() -> None:
        with stop_on_signals(Stop()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert found == [before]


def test_a_stop_set_by_another_thread_ends_a_wait_and_cleared_it_waits_again() -> None:
    stop = Stop()
    thread = threading.Thread(target=stop.wait, args=(1000,))
    thread.start()
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert stop.is_set()
    stop.wait(1000)
    stop.clear()
    stop.wait(0.001)
    assert not stop.is_set()
