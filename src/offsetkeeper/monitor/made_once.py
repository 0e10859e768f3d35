"""Answers that are made once of a view, however many clients ask for them.

One thread makes them, one after the other. So strangers who ask for a thousand pages do not take all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from anyio import CapacityLimiter, to_thread
from starlette.responses import JSONResponse, Response

from offsetkeeper.monitor.view import View

_MOST_BYTES = 32_000_000
_EACH_BYTES = 2_000  # of an answer besides its body and its key
_CHARACTER = 4  # bytes, at most
_BUSY = JSONResponse({"error": "too many requests wait already: try again"}, 503, {"retry-after": "5"})


class MadeOnce:
    """Makes answers of the newest view, and keeps them until there is a newer one.

    Args:
        newest: returns the newest view.
        most_waiting: requests that may wait for their answer to be made; others must try again later.
    """

    def __init__(self, newest: Callable[[], View], most_waiting: int) -> None:
        self._newest = newest
        self._most_waiting = most_waiting
        self._thread = CapacityLimiter(1)
        self._asked = 0
        self._kept: tuple[View | None, dict[Hashable, Response], int] = (None, {}, 0)

    async def of(self, key: Hashable, make: Callable[[View], Response]) -> Response:
        """Return an answer. The key tells it from the others of a view; one key always has the same `make`."""
        view, answers, _ = self._kept
        if view is self._newest() and key in answers:
            return answers[key]
        if self._asked > self._most_waiting:
            return _BUSY
        self._asked += 1
        try:
            return await to_thread.run_sync(self._make, key, make, limiter=self._thread)
        finally:
            self._asked -= 1

    def _make(self, key: Hashable, make: Callable[[View], Response]) -> Response:
        newest = self._newest()
        view, answers, size = self._kept if self._kept[0] is newest else (newest, {}, 0)
        if key not in answers:
            answer = make(newest)
            own = len(answer.body) + _CHARACTER * len(repr(key)) + _EACH_BYTES
            size += own
            if size > _MOST_BYTES:  # only the newest stays, however large: many may wait for it
                answers, size = {}, own
            answers[key] = answer
            self._kept = (view, answers, size)
        return answers[key]
