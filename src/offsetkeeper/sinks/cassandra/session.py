"""The driver's session with a cluster."""

from __future__ import annotations

import _thread
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from offsetkeeper.errors import Refused, SinkError
from offsetkeeper.sinks.cassandra.connection import Place, translated


class Session:
    """A session that is opened when it is needed, and opened again after it was lost.

    Attributes:
        place: address of the cluster.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._kept: list[Any] = []
        # In a separate thread: the garbage collector may run while the library holds a lock that closing needs.
        closing = weakref.finalize(self, _thread.start_new_thread, _close, (self._kept,))
        closing.atexit = False  # the library closes all sessions when the process ends

    def run(self, work: Callable[[Any], Any]) -> Any:
        """Return the result of `work`; call it twice if a kept session turns out to be lost.

        Raises:
            SinkError: no node could be reached.
            Refused: Cassandra refuses the request.
        """
        kept = bool(self._kept)
        try:
            return self.change(work, decides=False)
        except SinkError:
            if not kept:
                raise
        return self.change(work, decides=False)

    def change(self, work: Callable[[Any], Any], *, decides: bool) -> Any:
        """Return the result of `work`, called once; see `connection.translated`."""
        if not self._kept:
            self._kept.append(self.place.open())
        try:
            with translated(self.place, decides=decides):
                return work(self._kept[0])
        except Refused:
            raise
        except BaseException:
            _close(self._kept)
            raise

    def rows(self, query: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows of a query; it raises the same errors as `run`."""
        found: list[Any] = self.run(lambda session: session.execute(query, tuple(values)).all())
        return found


def _close(kept: list[Any]) -> None:
    while kept:
        kept.pop().cluster.shutdown()
