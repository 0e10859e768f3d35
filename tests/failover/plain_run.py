"""Runs of the real engine without Spark, so that many fit into a minute.

The records are read by the code of Spark's executors, and a frame is a list of them. Stores and outputs are the real
ones, with the real marks and transactions; only the rows of a `Table` are inserted by the driver, not staged by tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from chaos.driver import PlainReader, Record, SteppedStore
from chaos.driver import Settings as Told
from offsetkeeper import Pipeline
from offsetkeeper.core.batch import Batch
from offsetkeeper.core.model import Change
from offsetkeeper.core.offsets import OffsetRange
from offsetkeeper.core.store import Store, TransactionalStore
from offsetkeeper.sinks import Joiner, Lander, Table

GROUP = "orders"
TABLE = "orders"
COLUMNS = ("topic", "partition", "offset", "value")


class Moments:
    """Counts the steps of all runs of a round, and calls what is to happen at one of them.

    A step is a moment before or after a request to the store, or before or after rows land.

    Attributes:
        count: steps so far.
        version: of the newest change that the store has acknowledged.
        rows: number of rows that the output has acknowledged.
    """

    def __init__(self) -> None:
        self.count = self.version = self.rows = 0
        self._calls: dict[int, Callable[[], object]] = {}

    def call(self, step: int, what: Callable[[], object]) -> None:
        """Call something at a step; of several at one step, the last."""
        self._calls[step] = what

    @contextmanager
    def around(self, _: str, __: Sequence[OffsetRange] = ()) -> Iterator[None]:
        """Take a step before the block and one after it."""
        self._at()
        yield
        self._at()

    def _at(self) -> None:
        self.count += 1
        self._calls.get(self.count, lambda: None)()


class NotedStore(SteppedStore):
    """Notes what the real store has acknowledged."""

    def __init__(self, store: TransactionalStore, moments: Moments) -> None:
        super().__init__(store, cast("Any", moments))
        self._moments = moments

    def apply(self, change: Change) -> None:
        """See `Store.apply`."""
        super().apply(change)
        self._moments.version = change.after.version

    @contextmanager
    def transaction(self, change: Change) -> Iterator[Any]:
        """See `TransactionalStore.transaction`."""
        with super().transaction(change) as connection:
            yield connection
        self._moments.version = change.after.version
        self._moments.rows += sum(each.end - each.start for each in change.entry.ranges)


class PlainTable:
    """A `Table`, whose rows the driver inserts."""

    def __init__(self, url: str, moments: Moments) -> None:
        self._table, self._moments = Table(url, TABLE), moments
        quote, mark = ("`", "%s") if url.startswith("mysql") else ('"', "?" if url.startswith("sqlite") else "%s")
        names = ", ".join(f"{quote}{each}{quote}" for each in COLUMNS)
        self._insert = f"insert into {TABLE} ({names}) values ({', '.join([mark] * len(COLUMNS))})"  # noqa: S608 - constants

    @property
    def writes_to(self) -> str:
        """See `Sink`."""
        return self._table.writes_to

    def prepare(self, store: Store, guarantee: Any) -> Joiner | Lander:
        """See `Sink.prepare`."""
        real = store._store if isinstance(store, SteppedStore) else store
        found = self._table.prepare(real, guarantee)
        assert isinstance(found, Joiner | Lander)
        staged = cast("Any", self._stage)
        return (
            replace(found, stage=staged, land=self._noted(found))
            if isinstance(found, Lander)
            else replace(found, stage=staged)
        )

    def _stage(self, frame: list[Record], _: Batch) -> Callable[[Any], None]:
        def insert(connection: Any) -> None:
            connection.cursor().executemany(self._insert, frame)

        insert.rows = len(frame)  # type: ignore[attr-defined]
        return insert

    def _noted(self, lander: Lander) -> Any:
        def land(key: Any, seen: Any, mark: Any, staged: Any) -> str | None:
            with self._moments.around("land"):
                target = lander.land(key, seen, mark, staged)
            self._moments.rows += getattr(staged, "rows", 0)
            return target

        return land


def pipeline(brokers: str, topic: str, store: str, moments: Moments, **settings: Any) -> Pipeline:
    """Return a pipeline without Spark, whose requests are steps."""
    made = Pipeline(
        group=GROUP,
        store=store,
        brokers=brokers,
        topics=[topic],
        max_records=10,
        poll_interval_s=0.01,
        **{"retry_timeout_s": 10, **settings},
    )
    made.store = NotedStore(cast("TransactionalStore", made.store), moments)
    made._reader = cast("Any", PlainReader(Told(brokers, topic, GROUP, store, "at_least_once", "", "")))
    return made
