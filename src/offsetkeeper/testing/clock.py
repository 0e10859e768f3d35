"""Environments for tests: time moves when somebody waits and only then, or is what the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offsetkeeper.core import environment


class StillEnvironment(environment.Environment):
    """Waits take no time, and nothing else does.

    Attributes:
        seconds: that were waited for.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        """See `Environment.monotonic`."""
        return self.seconds

    def wait(self, seconds: float) -> None:
        """See `Environment.wait`."""
        self.seconds += seconds


class SetClock(environment.Environment):
    """The time of day is what `now_ms` returns."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """See `Environment.now_ms`."""
        return self._now_ms()


@contextmanager
def no_waiting() -> Iterator[StillEnvironment]:
    """Give the whole process its own clock while the block runs."""
    still = StillEnvironment()
    with environment.using(still):
        yield still
