"""What is made of a view once, however many ask for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from offsetkeeper.monitor.view import View


class MadeOnce:
    """Keeps the answer that was made of the newest view. Safe for threads: those that ask meanwhile wait for it.

    Args:
        make: of a view, as it is served.
    """

    def __init__(self, make: Callable[[View], bytes]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[View | None, bytes] = (None, b"")

    def of(self, view: View) -> bytes:
        """Return what is made of a view."""
        with self._lock:
            if self._made[0] is not view:
                self._made = (view, self._make(view))
            return self._made[1]
