"""Tries again what may pass, by the environment's clock: all questions to stores and brokers.

The tries of a batch are counted in `engines/deliver`, which waits so that a request to stop ends the wait.
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
log.addHandler(logging.NullHandler())  # the last error is raised; where nobody asks for a log, the others are noise


def retry(
    on: Passing,
    timeout_s: float,
    call: Callable[[float], T],
    *,
    first_s: float = 0.1,
    longest_s: float = 1.0,
    jitter_s: float = 1.0,
) -> T:
    """Return what `call` returns. Try again while it raises an error that may pass and the time is not over.

    The pauses double from `first_s` to `longest_s`, and each is longer by up to `jitter_s`, but never longer than
    `longest_s`. The last try may begin one pause after the timeout.

    Args:
        on: errors that may pass: their types, or a function that tells.
        timeout_s: seconds after which no error leads to another try; with 0 there is one try.
        call: gets the seconds that are left, which may be less than 0 at the last try.
        first_s: the first pause.
        longest_s: the longest pause.
        jitter_s: limit of what chance adds to a pause.

    Raises:
        Exception: what `call` raised at its last try.
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
    """Return the error for the log; another library's text may quote a password."""
    text = f": {error}" if isinstance(error, OffsetkeeperError) else ""
    return f"{type(error).__name__}{text}"[:500]
