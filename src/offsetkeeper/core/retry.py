"""Retries calls that fail with a temporary error, by the environment's clock: all requests to stores and brokers.

The attempts of a batch are counted in `engines/attempt`, where a stop request ends the wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from offsetkeeper.core.environment import chance, monotonic, wait
from offsetkeeper.errors import OffsetkeeperError

T = TypeVar("T")
Passing = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # without a configured log, earlier errors are not printed


def retry(
    on: Passing,
    timeout_s: float,
    call: Callable[[float], T],
    *,
    first_s: float = 0.1,
    longest_s: float = 1.0,
    jitter_s: float = 1.0,
) -> T:
    """Return what `call` returns. Try again while it raises a temporary error and the time is not over.

    The pauses double from `first_s` to `longest_s`. A random time up to `jitter_s` is added, but no pause exceeds
    `longest_s`. The last try may begin one pause after the timeout.

    Args:
        on: temporary errors: their types, or a function that recognises them.
        timeout_s: seconds after which an error is not retried; with 0 there is one try.
        call: the function to call; it gets the seconds that are left, which may be negative at the last try.
        first_s: the first pause.
        longest_s: the longest pause.
        jitter_s: the most random seconds that are added to a pause.

    Raises:
        Exception: the error of `call` at its last try.
    """
    end, pause_s, tries = monotonic() + timeout_s, first_s, 1
    while True:
        try:
            return call(end - monotonic())
        except Exception as error:
            passes = isinstance(error, on) if isinstance(on, type | tuple) else on(error)
            if not passes or monotonic() >= end:
                raise
            wait_s = min(longest_s, pause_s + jitter_s * chance())
            log.warning("Try %d failed; the next one is in %.2f s: %s", tries, wait_s, _told(error))
        wait(wait_s)
        pause_s, tries = min(longest_s, pause_s * 2), tries + 1


def _told(error: Exception) -> str:
    """Return the error as text for the log; the text of another library is left out, it may have a password."""
    text = f": {error}" if isinstance(error, OffsetkeeperError) else ""
    return f"{type(error).__name__}{text}"[:500]
