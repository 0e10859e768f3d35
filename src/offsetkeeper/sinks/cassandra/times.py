"""The write times of a run: each attempt of a task has its own, and each landing is above those before it.

Spark numbers all attempts of an application in the order in which it starts them. So the number of an attempt is its
place in the landing's window of write times, also where a lost stage is computed again, or an attempt is speculative.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsetkeeper.core import environment
from offsetkeeper.core.pickle_by_value import ship
from offsetkeeper.core.spark_session import collected, map_in_arrow
from offsetkeeper.sinks.cassandra import task
from offsetkeeper.sinks.cassandra.marks import State, next_time
from offsetkeeper.sinks.cassandra.task import WIDTH, Window

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FRESH_US = 60_000_000


@dataclass(slots=True)
class WriteTimes:
    """The write times of one run.

    Attributes:
        over: window of the last landing whose job is over: no attempt of it can begin any more.
        asked_us: when it was last known that attempt `over.after` was among the newest; 0 if that is unknown.
        floor: newest write time of all groups and outputs in the keyspace when the run began, and of its own landings
            since: they may have written the same keys, under another name or with a clock that was ahead.
        ahead: microseconds by which the servers' clock is ahead of this one; 0 if it is not.
    """

    over: Window | None = None
    asked_us: int = 0
    floor: int = 0
    ahead: int = 0

    def after(self, seen: State | None) -> int:
        """Return a write time above that of the mark's row, and above all that others had used."""
        return next_time(seen, self.floor, self.ahead)

    def begin(self, spark: SparkSession, seen: State | None) -> Window:
        """Return the window of a landing.

        Its write times are above what the row of the mark has: the end of the last landing's window. If that was this
        run's and its job is over, they are only above the times of that job's attempts, which are far lower: so batches
        in quick succession do not run ahead of the clock.

        Args:
            spark: session that writes the rows.
            seen: the row of the mark.
        """
        over = self.over
        now, given = _now_us(), 0 if seen is None else seen.write_time or 0
        known = over is not None and abs(now - self.asked_us) < _FRESH_US
        after = over.after if over is not None and known else _newest(spark)
        start = self.after(seen)
        if over is not None and over.last == given and over.after <= after:
            start = max(now + self.ahead, over.start + after - over.after)
        return Window(after, start, max(start + WIDTH, given + 1))

    def end(self, window: Window, attempts: Collection[int]) -> None:
        """Note that the job of a landing is over; `attempts` are the numbers of those that succeeded, if any."""
        after = max(attempts, default=window.after)
        self.over = window._replace(after=after, start=window.start + after - window.after)
        self.asked_us = _now_us() if attempts else 0


def _newest(spark: SparkSession) -> int:
    """Return the number of an attempt that begins now."""
    number = ship(task.own_number, (), (task,))
    [[found]] = collected(map_in_arrow(spark.range(0, 1, 1, 1), number, task.NUMBER))
    return int(found)


def _now_us() -> int:
    return environment.now_ms() * 1000
