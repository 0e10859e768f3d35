"""Views that no small scene would have, such as fifty groups or a thousand partitions, and a server that shows them.

The server is the real one, in this process; only what polls is replaced, so that a test says what the next poll finds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Self

import uvicorn

from monitor.scene import LIMIT_S
from offsetkeeper import OffsetRange, Position, TopicPartition
from offsetkeeper.core.bounds import Bounds
from offsetkeeper.core.model import Entry, Owner, Snapshot
from offsetkeeper.core.plan import FirstOffsets, Policies, plan
from offsetkeeper.monitor.alerts import Alarm, Key
from offsetkeeper.monitor.app import Site
from offsetkeeper.monitor.connections import Connection
from offsetkeeper.monitor.gate import Gate
from offsetkeeper.monitor.history import History
from offsetkeeper.monitor.pages import Pages
from offsetkeeper.monitor.view import GroupSample, Health, View
from offsetkeeper.operate.lag import measure
from offsetkeeper.operate.outlook import Outlook
from offsetkeeper.operate.status import Point
from offsetkeeper.testing.server import wait_until

NOW = 1_800_000_000_000  # milliseconds since 1970
EVERY_MS = 5_000
UP = Health(up=True, since_ms=NOW - 3_600_000)
DAY_MS = 86_400_000


def group(
    name: str,
    unread: Sequence[int] = (0,),
    age_s: float = 10,
    *,
    topics: Sequence[str] = ("orders",),
    owner: str = "",
    commits: int = 8,
    retention_ms: int = 7 * DAY_MS,
    bounds: dict[int, Bounds] | None = None,
    polls: int = 40,
    error: str = "",
) -> GroupSample:
    """Return a group whose partitions have so many unread records, the first of them so old.

    Args:
        name: of the group.
        unread: of each partition.
        age_s: of the first unread record of the last partition; of those before it in proportion.
        commits: in the history, one a minute, the newest a minute ago.
        retention_ms: of the topic.
        bounds: of partitions that differ, by their place in `unread`.
        polls: there were.
        topics: among which the partitions are dealt out.
        owner: who holds it, if anybody.
        error: why it cannot be read, if it cannot.
    """
    tps = [TopicPartition(topics[number % len(topics)], number // len(topics)) for number in range(len(unread))]
    start = 1_000_000
    positions = {tp: Position(start, "id") for tp in tps}
    held = {tp: Bounds(0, start + count, "id") for tp, count in zip(tps, unread, strict=True)}
    held |= {tps[number]: each for number, each in (bounds or {}).items()}
    times = {tp: NOW - int(1000 * age_s * (number + 1) / len(tps)) for number, tp in enumerate(tps)}
    entries = [Entry(1, "acquire", "id", NOW - 60_000 * (commits + 1), owner or "host:1", reason="start")]
    for number in range(commits):
        at_ms, ranges = NOW - 60_000 * (commits - number), tuple(OffsetRange(*tp, 0, 100 + number) for tp in tps[:3])
        entries.append(Entry(number + 2, "commit", str(number), at_ms, owner or "host:1", ranges=ranges))
    snapshot = Snapshot(
        name, version=len(entries), positions=positions, owner=Owner("id", 3, owner) if owner else None, generation=1
    )
    waiting = sum(unread)
    points = [
        Point(NOW - EVERY_MS * back, max(0, waiting - (back % 7) * waiting // 20), age_s * (1 - back / 2 / polls))
        for back in range(polls, 0, -1)
    ]
    sample = GroupSample(NOW, snapshot, History(entries[::-1], (), (len(entries), NOW)), points=points, error=error)
    lags = measure(positions, held, NOW, times, dict.fromkeys(topics, retention_ms) if retention_ms else {})
    stored = plan(name, positions, held, Policies(), FirstOffsets())
    return sample.with_lags(lags, stored, Outlook(None, None, "", positions))


def view(*samples: GroupSample, alarms: Sequence[tuple[str, str]] = (), number: int = 1, kafka: Health = UP) -> View:
    """Return what a poll found; alarms are pairs of rule and group, and fire for ten minutes."""
    firing = tuple(Alarm(Key(*each), NOW - 600_000, firing=True, value="") for each in alarms)
    return View(number, NOW, 0.1, UP, kafka, {each.snapshot.group: each for each in samples}, firing)


class Still:
    """In place of what polls: it has the view that it is given."""

    def __init__(self, shown: View) -> None:
        self.view = shown
        self.stopping = False
        self.alive, self.age_s, self.why_late = True, 0.0, ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shown = asyncio.Event()

    def start(self) -> None:
        """Know the loop that serves."""
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Let go of the pages that listen."""
        self.stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._tell)

    def show(self, shown: View) -> None:
        """Show another view, as after a poll."""
        self.view = shown
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._tell)

    async def next(self, timeout_s: float) -> bool:
        """Wait for another view."""
        try:
            await asyncio.wait_for(self._shown.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _tell(self) -> None:
        shown, self._shown = self._shown, asyncio.Event()
        shown.set()
        if self.stopping:
            self._shown.set()


def _config(app: Gate) -> uvicorn.Config:
    return uvicorn.Config(
        app, http=Connection, ws="none", port=0, log_level="error", proxy_headers=False, timeout_graceful_shutdown=1
    )


class Gallery:
    """A server of views; a context manager.

    Args:
        base: path under which browsers reach it.

    Attributes:
        url: where it serves, without a slash at the end.
    """

    def __init__(self, base: str = "") -> None:
        self.number = 0
        self._still = Still(view(number=0))
        poller: Any = self._still
        pages = Pages("postgresql://db/shop", "kafka-1:9092,kafka-2:9092", every_s=5, changes=True, base=base)
        app = Gate(Site(poller, pages, []).app(), frozenset(), base)
        self._server = uvicorn.Server(_config(app))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started, "the server started", LIMIT_S)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._still.stop()
        self._server.should_exit = True
        self._thread.join(LIMIT_S)

    def show(self, *samples: GroupSample, alarms: Sequence[tuple[str, str]] = (), kafka: Health = UP) -> None:
        """Show a view; open pages follow."""
        self.number += 1
        self._still.show(view(*samples, alarms=alarms, number=self.number, kafka=kafka))
