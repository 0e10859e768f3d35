"""A clock for tests: its time moves when somebody waits, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from offsetkeeper.core import retry


class StillClock(retry.Clock):
    """Waits take no time.

    Attributes:
        seconds: that were waited for.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """See `Clock.now`."""
        return self.seconds

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`."""
        self.seconds += seconds


@contextmanager
def no_waiting() -> Iterator[StillClock]:
    """Let all retries in this process go by a clock of their own while the block runs."""
    before, retry.clock = retry.clock, StillClock()
    try:
        yield retry.clock
    finally:
        retry.clock = before
