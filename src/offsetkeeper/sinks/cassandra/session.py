"""The driver's session with a cluster."""

from __future__ import annotations

import _thread
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from offsetkeeper.errors import Refused, SinkError
from offsetkeeper.sinks.cassandra.connection import Place, translated


class Session:
    """A session that is opened when it is needed, and again after it was lost.

    Attributes:
        place: of the cluster.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._kept: list[Any] = []
        # In a thread of its own, as the garbage collector may come while the library holds a lock that closing takes.
        closing = weakref.finalize(self, _thread.start_new_thread, _close, (self._kept,))
        closing.atexit = False  # the library closes all at the end of the process

    def run(self, work: Callable[[Any], Any]) -> Any:
        """Return what `work` returns, which is called twice where a kept session turns out to be lost.

        Raises:
            SinkError: no node could be reached.
            Refused: Cassandra refuses.
        """
        kept = bool(self._kept)
        try:
            return self.change(work, decides=False)
        except SinkError:
            if not kept:
                raise
        return self.change(work, decides=False)

    def change(self, work: Callable[[Any], Any], *, decides: bool) -> Any:
        """Return what `work` returns, which is called once; see `connection.translated`."""
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
        """Return what a query finds; it raises what `run` does."""
        found: list[Any] = self.run(lambda session: session.execute(query, tuple(values)).all())
        return found


def _close(kept: list[Any]) -> None:
    while kept:
        kept.pop().cluster.shutdown()
