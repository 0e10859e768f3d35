"""Polls in its own thread, so that a slow store delays no request; wakes all that wait for a poll."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from offsetkeeper.core import environment
from offsetkeeper.monitor.alerts import Notice
from offsetkeeper.monitor.collector import Collector
from offsetkeeper.monitor.outages import Outage, Outages
from offsetkeeper.monitor.view import View

log = logging.getLogger(__name__)
_BREATH_S = 0.2  # between two polls, however long they take
_LATE = 12  # polls that may be missing before it counts as stuck
_LATE_S = 60.0  # besides, as each may wait for store and Kafka


class Poller:
    """Keeps a collector polling.

    Args:
        collector: what polls.
        every_s: seconds from the beginning of a poll to the next.
        tell: called with each notice, from the thread that polls; must not block.
    """

    def __init__(self, collector: Collector, every_s: float, tell: Callable[[Notice | Outage], None]) -> None:
        self.every_s = every_s
        self._late_s = every_s * _LATE + _LATE_S
        self._collector = collector
        self._tell = tell
        self._outages = Outages()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._polled = asyncio.Event()
        self._overdue: tuple[View, View] | None = None
        self._newest_s = self._ended_s = environment.monotonic()  # when the newest poll began that has ended, and ended
        self.stopping = False

    @property
    def view(self) -> View:
        """What the newest poll found; where that is too old, that nothing is known any more."""
        found = self._collector.view
        if self.alive:
            return found
        if self._overdue is None or self._overdue[0] is not found:  # kept, as pages and metrics are made once for each
            self._overdue = (found, found.overdue(self.why_late, environment.now_ms()))
        return self._overdue[1]

    @property
    def age_s(self) -> float:
        """Seconds since the newest poll began that has ended; before the first, since the poller was made."""
        return environment.monotonic() - self._newest_s

    @property
    def why_late(self) -> str:
        """What is to be said where no poll has ended for too long."""
        return f"no look has ended for {self._late_s:.0f} s: one hangs, in the store or in Kafka"

    @property
    def alive(self) -> bool:
        """Whether polls still come, also where they find nothing but errors."""
        return environment.monotonic() - self._ended_s < self._late_s  # a poll may take long, if only it ends

    def start(self) -> None:
        """Begin to poll; called on the event loop that serves."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="offsetkeeper-polls", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Poll no more, and let go of all who wait."""
        self.stopping = True
        self._wake.set()
        self._polled.set()

    def wait(self, timeout_s: float) -> None:
        """Wait until the current poll has ended: store and cluster are closed after that."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def poll_now(self) -> None:
        """Start the next poll at once, as after a change."""
        self._wake.set()

    async def next(self, timeout_s: float) -> bool:
        """Wait for a new view, or the end, and return whether one came in time."""
        try:
            await asyncio.wait_for(self._polled.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _run(self) -> None:
        while not self.stopping:
            start = environment.monotonic()
            self._wake.clear()
            try:
                alarms = self._collector.poll()
                notices: list[Notice | Outage] = [*self._outages.of(self._collector.view), *alarms]
                for notice in notices:
                    self._tell(notice)
            except Exception:
                log.exception("the look failed; the next one may not")
            else:
                self._newest_s, self._ended_s = start, environment.monotonic()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._announce)
            self._wake.wait(max(_BREATH_S, self.every_s - (environment.monotonic() - start)))

    def _announce(self) -> None:
        polled, self._polled = self._polled, asyncio.Event()
        polled.set()
        if self.stopping:
            self._polled.set()
