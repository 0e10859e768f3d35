"""Clock, waiting and random numbers: the only place that asks the machine for them; tests can replace it."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Environment:
    """Clock, waiting and random numbers of the machine. Tests and simulations use a subclass."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, by this machine's clock."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; they never go back."""
        return time.monotonic()

    def token(self, size: int = 8) -> str:
        """Return `size` random bytes as hexadecimal digits; they cannot be guessed."""
        return secrets.token_hex(size)

    def wait(self, seconds: float) -> None:
        """Return after this many seconds."""
        time.sleep(seconds)

    def chance(self) -> float:
        """Return a random number from 0 to below 1. It is not safe for secrets."""
        return random.random()  # noqa: S311 - not a secret


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


def bigint() -> int:
    """Return a random number of 63 bits, which a bigint of a database holds: an identity that no server gives."""
    return int(token(8), 16) >> 1


def wait(seconds: float) -> None:
    """See `Environment.wait`."""
    _current.wait(seconds)


def chance() -> float:
    """See `Environment.chance`."""
    return _current.chance()


@contextmanager
def using(environment: Environment) -> Iterator[None]:
    """Use `environment` while the block runs: in all threads of this process, not in other processes."""
    global _current  # noqa: PLW0603 - one per process is intended
    before, _current = _current, environment
    try:
        yield
    finally:
        _current = before
