"""Outputs of every kind, which take steps while they write, and what a user counts in them afterwards."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from chaos.stalls import Hook
from chaos.stepped_files import SteppedFiles, names
from offsetkeeper import Batch
from offsetkeeper.sinks import Idempotent, Outputs, Table, Transaction

_CREATE = """
    create table rows (output text, place int, value text, batch text, ranges text);
    create table keyed (place int primary key, value text, batch text, ranges text);
    create table prices (item text primary key, price int);
"""
_ORDERS = "create table orders (place int, value text, batch text, ranges text)"
_PRICE = "insert into prices values (?, ?) on conflict (item) do update set price = excluded.price"
Arguments = Mapping[str, Any]  # of `Pipeline.run` and `Pipeline.start`


class Row(NamedTuple):
    """A row of an output, with the batch that brought it."""

    place: int
    value: str
    batch: str
    ranges: str


class Results:
    """The outputs of one test. A record's value is an item and its price, such as `apple 2`.

    Each method named like a kind returns what a pipeline takes to write into an output of this kind. Its steps:

    - function, rows: "half", when one row of two is there, and "written"; each also sets the item's newest price.
    - files, hdfs: "inside", before one of two files is there under a hidden name, "half", when both are, and "written".
    - outputs: as a function's, with the name of the output: "half first", "written first", "half second" …
    - transaction: "parse", before the store's transaction, and "half" and "written" in it.
    - table: "parse", before the rows are staged.

    Args:
        folder: for a database and files.
        store: URL of a store in SQLite, which gets a table.
        hdfs_folder: returns the URL of a folder in HDFS; asked only by the kind of this name.
    """

    def __init__(self, folder: Path, store: str, hdfs_folder: Callable[[], str]) -> None:
        self._database, self._files, self._hdfs_folder = folder / "results.db", folder / "orders", hdfs_folder
        self._store = store
        with closing(sqlite3.connect(self._database)) as connection:
            connection.executescript(_CREATE)
        with closing(sqlite3.connect(store.removeprefix("sqlite:///").partition("?")[0])) as connection:
            connection.execute(_ORDERS)

    def how(self, kind: str, at: Hook) -> Arguments:
        """Return what a pipeline takes to write into an output of a kind."""
        made: Arguments = getattr(self, kind)(at)
        return made

    def function(self, at: Hook) -> Arguments:
        """Rows that are appended."""
        return {"process": self._appender(at, "")}

    def outputs(self, at: Hook) -> Arguments:
        """Two functions."""
        return {"sink": Outputs(**{name: self._appender(at, name) for name in ("first", "second")})}

    def rows(self, at: Hook) -> Arguments:
        """Rows that are replaced by offset: the same however often, and by whom, a batch is written."""
        insert = "insert or replace into keyed values (?, ?, ?, ?)"
        return _once(Idempotent(lambda frame, batch: self._write(at, "", insert, rows_of(frame, batch))))

    def files(self, at: Hook) -> Arguments:
        """Files in a local folder."""
        return self._landed(at, str(self._files))

    def hdfs(self, at: Hook) -> Arguments:
        """Files in HDFS."""
        return self._landed(at, self._hdfs_folder())

    def transaction(self, at: Hook) -> Arguments:
        """Rows in the store's transaction."""

        def write(frame: DataFrame, _: Batch, connection: Any) -> None:
            for rows, step in _halves(sorted(Row(*row) for row in frame.collect())):
                for row in rows:
                    connection.execute("insert into orders values (?, ?, ?, ?)", row)
                at(step)

        return {"process": self._parser(at), **_once(Transaction(write))}

    def table(self, at: Hook) -> Arguments:
        """Rows in a table of the store's database."""
        return {"process": self._parser(at), **_once(Table(self._store, "orders"))}

    def read(self, kind: str, spark: SparkSession, output: str = "") -> list[Row]:
        """Return all rows of an output, as its user reads them."""
        if kind in {"files", "hdfs"}:
            found = spark.read.parquet(self._folder(kind)).select("place", "value", "id", "ranges").collect()
            return [Row(*row) for row in found]
        if kind in {"transaction", "table"}:
            path = self._store.removeprefix("sqlite:///").partition("?")[0]
            return self._select("select * from orders", Path(path))
        if kind == "rows":
            return self._select("select * from keyed")
        return self._select(f"select place, value, batch, ranges from rows where output = '{output}'")  # noqa: S608 - a test's own

    def prices(self) -> dict[str, int]:
        """Return the price of each item, as it was set last."""
        with closing(sqlite3.connect(self._database)) as connection:
            return dict(connection.execute("select item, price from prices").fetchall())

    def attempts(self, kind: str, spark: SparkSession) -> list[str]:
        """Return the names of the attempts that are left among an output's files."""
        return [each for each in names(spark, f"{self._folder(kind)}/_offsetkeeper") if each != "owner"]

    def _folder(self, kind: str) -> str:
        return str(self._files) if kind == "files" else self._hdfs_folder()

    def _landed(self, at: Hook, folder: str) -> Arguments:
        def parse(frame: DataFrame, batch: Batch) -> DataFrame:
            return parsed(frame, batch).withColumnRenamed("batch", "id")

        return {"process": parse, **_once(SteppedFiles(folder, at))}

    def _parser(self, at: Hook) -> Callable[[DataFrame, Batch], DataFrame]:
        def parse(frame: DataFrame, batch: Batch) -> DataFrame:
            at("parse")
            return parsed(frame, batch)

        return parse

    def _appender(self, at: Hook, output: str) -> Callable[[DataFrame, Batch], None]:
        insert = f"insert into rows values ('{output}', ?, ?, ?, ?)"  # noqa: S608 - a test's own

        def write(frame: DataFrame, batch: Batch) -> None:
            self._write(at, output, insert, rows_of(frame, batch))

        return write

    def _write(self, at: Hook, output: str, insert: str, found: Sequence[Row]) -> None:
        for rows, step in _halves(found):
            with closing(sqlite3.connect(self._database)) as connection, connection:
                connection.executemany(insert, rows)
                connection.executemany(_PRICE, [row.value.split() for row in rows])
            at(f"{step} {output}".strip())

    def _select(self, query: str, path: Path | None = None) -> list[Row]:
        with closing(sqlite3.connect(path or self._database)) as connection:
            return [Row(*row) for row in connection.execute(query).fetchall()]


def parsed(frame: DataFrame, batch: Batch) -> DataFrame:
    """Return the rows of a batch as a frame."""
    rows = frame.selectExpr("cast(offset as int) as place", "cast(value as string) as value")
    return rows.withColumns({"batch": f.lit(batch.id), "ranges": f.lit(batch.lines())})


def rows_of(frame: DataFrame, batch: Batch) -> list[Row]:
    """Return the rows of a batch, in the order of the topic."""
    return sorted(Row(*row) for row in parsed(frame, batch).collect())


def times(rows: Sequence[Row]) -> dict[int, int]:
    """Return how often each record is there, by its offset."""
    return dict(Counter(row.place for row in rows))


def _halves(rows: Sequence[Row]) -> list[tuple[Sequence[Row], str]]:
    middle = len(rows) // 2
    return [(rows[:middle], "half"), (rows[middle:], "written")]


def _once(sink: Any) -> Arguments:
    return {"sink": sink, "guarantee": "exactly_once"}
