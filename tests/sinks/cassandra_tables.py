"""What tests of the Cassandra sink share: a keyspace with a table of orders, and batches written into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsetkeeper.core.batch import Batch
from offsetkeeper.core.mark import Landing, OutputMark
from offsetkeeper.core.model import Guarantee
from offsetkeeper.sinks import Cassandra, Lander, MarkKey
from offsetkeeper.sinks.once import Once
from offsetkeeper.stores.memory import MemoryStore
from offsetkeeper.testing.cassandra import CassandraServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = MarkKey("billing", "")
COLUMNS = "item string, price double, note string"
WITH_ORDER = f"topic string, partition int, offset bigint, {COLUMNS}"
TABLE = "item text PRIMARY KEY, price double, note text, hint text"


@dataclass
class Shop:
    """A keyspace with the table `orders`.

    Attributes:
        server: it is on.
        session: of the client library.
        spark: writes the batches.
        keyspace: its name.
    """

    server: CassandraServer
    session: Any
    spark: SparkSession
    keyspace: str

    def url(self, **how: Any) -> str:
        """Return the URL of the keyspace."""
        return self.server.url(self.keyspace, **how)

    def execute(self, statement: str) -> list[Any]:
        """Return what a statement finds; `{}` in it stands for the keyspace."""
        return [tuple(row) for row in self.session.execute(statement.replace("{}", self.keyspace))]

    def make(self, columns: str = TABLE, name: str = "orders", options: str = "") -> None:
        """Make a table."""
        self.execute(f"CREATE TABLE {{}}.{name} ({columns}){options}")

    def lander(self, url: str = "", *, key: Sequence[str] = ("item",), **how: Any) -> Lander:
        """Return how the table goes out, as a program of its own finds it."""
        way = Cassandra(url or self.url(), "orders", key=key, **how).prepare(
            MemoryStore("memory://"), Guarantee.EXACTLY_ONCE
        )
        assert isinstance(way, Lander)
        return way

    def frame(self, rows: Sequence[Any], columns: str = COLUMNS) -> DataFrame:
        """Return a frame."""
        return self.spark.createDataFrame(list(rows), columns)

    def write(self, batch: Batch, rows: Sequence[Any], columns: str = COLUMNS, way: Lander | None = None) -> None:
        """Write a batch as the engine does."""
        Once(way or self.lander(), "").write(self.frame(rows, columns), batch)

    def make_void(self, batch: Batch) -> Landing:
        """Drop a batch as the engine does."""
        return Once(self.lander(), "").make_void(batch).landing

    def orders(self) -> dict[str, Any]:
        """Return price and note by item, as a reader finds them."""
        return {item: rest for item, *rest in self.execute("SELECT item, price, note FROM {}.orders")}

    def mark(self) -> OutputMark | None:
        """Return the mark of the group `billing`."""
        return self.lander().seen(KEY).mark
