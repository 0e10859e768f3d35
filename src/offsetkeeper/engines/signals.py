"""A clean stop: the first SIGTERM or SIGINT lets the batch under way finish, the second acts as ever."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from types import FrameType


class Stop:
    """Asks a run to end, from any thread or signal handler.

    A `threading.Event` would not do: a handler that sets it while the main thread is on its way into or out of `wait`
    waits for a lock that this very thread holds, for ever.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Ask."""
        self._set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Whether it was asked."""
        return self._set

    def clear(self) -> None:
        """Take it back."""
        self._set = False
        self._wake = SimpleQueue()

    def wait(self, seconds: float) -> None:
        """Return when it was asked, or `seconds` have passed."""
        with suppress(Empty):
            if not self._set:
                self._wake.get(timeout=seconds)


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT while the block runs; does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop.set()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        restore()
