"""Time, waiting and chance: the one place where this code asks the machine for them, and where it can be replaced."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Environment:
    """What the machine tells. A subclass answers in its place: in tests, and in a simulation."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, by this machine's clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since some moment; they never go back."""
        return time.monotonic()

    def token(self, size: int = 8) -> str:
        """Return so many random bytes as hexadecimal digits, which nobody can guess."""
        return secrets.token_hex(size)

    def wait(self, seconds: float) -> None:
        """Return after so many seconds."""
        time.sleep(seconds)

    def chance(self) -> float:
        """Return a random number, at least 0 and less than 1. It can be guessed."""
        return random.random()  # noqa: S311 - no secret


_current = Environment()


def now_ms() -> int:
    """See `Environment.now_ms`."""
    return _current.now_ms()


def monotonic() -> float:
    """See `Environment.monotonic`."""
    return _current.monotonic()


def token(size: int = 8) -> str:
    """See `Environment.token`."""
    return _current.token(size)


def wait(seconds: float) -> None:
    """See `Environment.wait`."""
    _current.wait(seconds)


def chance() -> float:
    """See `Environment.chance`."""
    return _current.chance()


@contextmanager
def using(environment: Environment) -> Iterator[None]:
    """Let `environment` answer while the block runs: in the whole process, so in all its threads, and not in others."""
    global _current  # noqa: PLW0603 - one for the process is the point
    before, _current = _current, environment
    try:
        yield
    finally:
        _current = before
