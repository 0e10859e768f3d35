"""A frame's rows on their way into a table of SQLite: fetched by the driver, and staged in a temporary database."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SETTINGS = "pragma journal_mode = off; pragma synchronous = off; pragma cache_size = -16384; begin"
_SAME_KEY = "SELECT 1 FROM staged WHERE {given} GROUP BY {key} HAVING count(*) > 1 LIMIT 1"


def fetch(frame: DataFrame) -> Iterator[Sequence[Any]]:
    """Return a frame's rows one by one, each partition computed once; the driver holds two partitions at the most.

    Spark Connect holds what its server sends ahead.
    """
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        return frame.toLocalIterator()
    # Not DataFrame.toLocalIterator: Spark 4.2 keeps each job of it in memory for as long as the application lives.
    rows: Iterator[Sequence[Any]] = frame.rdd.toLocalIterator(prefetchPartitions=True)
    return rows


class Staging:
    """Rows in a temporary database of their own, which is gone with the last mention of it. Little of it is in memory.

    Raises:
        sqlite3.Error: they could not be staged, as where the disk is full.
    """

    def __init__(self, rows: Iterable[Sequence[Any]], width: int) -> None:
        # An empty name is that of a temporary database. The garbage collector may close it in any thread.
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        self._connection.executescript(_SETTINGS)
        self._connection.execute(f"CREATE TABLE staged ({_columns(range(width))})")  # no types: values stay as they are
        self._connection.executemany(f"INSERT INTO staged VALUES ({', '.join('?' * width)})", rows)  # noqa: S608 - as below

    def same_key(self, places: Sequence[int]) -> bool:
        """Whether two rows have the same values in these places, none of them null."""
        given = " AND ".join(f"{staged_column(place)} IS NOT NULL" for place in places)
        found = self._connection.execute(_SAME_KEY.format(given=given, key=_columns(places)))
        return found.fetchone() is not None

    def rows(self, places: Sequence[int], order: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        """Return the values in `places` of each row, ordered by those in `order`; without, in the order they came.

        They can be had for as long as the staging is there.
        """
        by = _columns(order) if order else "rowid"
        return self._connection.execute(f"SELECT {_columns(places)} FROM staged ORDER BY {by}")  # noqa: S608 - numbers


def _columns(places: Iterable[int]) -> str:
    return ", ".join(map(staged_column, places))


def staged_column(place: int) -> str:
    """Return the name of the staged column in a place."""
    return f"c{place}"
