"""Real outputs of each kind: made, read as their users read them, saved, put back, and damaged as people do."""

from __future__ import annotations

import json
import shutil
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Message, TopicPartition
from pyiceberg.expressions import AlwaysTrue
from pyspark.sql import DataFrame

from engines.databases import connect
from offsetkeeper import Batch
from offsetkeeper.sinks import DeltaTable, Files, Table, Topic
from offsetkeeper.testing.kafka import KafkaServer
from sinks.icebergs import Lake
from swarm.records import COLUMNS, MANY, Row

_SERVERS = {"string": "text", "double": "double precision"}
_SQLITE = {"string": "text", "double": "real"}
_ARROW = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string(), "double": pa.float64()}
SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in COLUMNS.items()])
_LETTERS = """create table letters (topic text, "partition" int, "offset" int, timestamp text, key blob, value blob,
    error text, batch text)"""
_LIMIT_S = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class Place(ABC):
    """An output of one history.

    Attributes:
        name: of the output in the run.
        folder: in which all of it is.
        marked: whether it keeps a mark, or is in the store's transaction.
        restorable: whether a copy of its folder is a backup.
        joined: whether it is in the database of the offsets.
    """

    name: str
    folder: Path
    marked = True
    restorable = True
    joined = False

    @abstractmethod
    def make(self) -> None:
        """Make it, empty."""

    @abstractmethod
    def sink(self) -> Any:
        """Return what a pipeline takes."""

    @abstractmethod
    def rows(self) -> list[Row]:
        """Return what is there."""

    def save(self, to: Path) -> None:
        """Make a backup."""
        shutil.copytree(self.folder, to)

    def put_back(self, copy: Path) -> None:
        """Restore a backup."""
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)

    def roll_back(self, copy: Path) -> bool:
        """Go back to a backup by the output's own means; return whether this kind can."""
        del copy
        return False

    def delete(self, rows: list[Row] | None) -> bool:
        """Delete rows as people do, or all of them; return whether this kind can."""
        del rows
        return False

    def drop_mark(self) -> bool:
        """Delete where the mark is; return whether this kind can."""
        return False

    def frame(self, frame: DataFrame) -> DataFrame:
        """Return a frame in the form that this output takes."""
        return frame


@dataclass
class SQLite(Place):
    """A table of a file."""

    @property
    def file(self) -> Path:
        """The database."""
        return self.folder / "rows.db"

    def make(self) -> None:
        """See `Place.make`."""
        self.folder.mkdir(exist_ok=True)
        columns = ", ".join(f'"{name}" {_SQLITE.get(kind, "int")}' for name, kind in COLUMNS.items())
        self._do(f"create table orders ({columns})")

    def sink(self) -> Any:
        """See `Place.sink`."""
        return Table(f"sqlite:///{self.file}", "orders")

    def rows(self) -> list[Row]:
        """See `Place.rows`."""
        columns = ", ".join(f'"{name}"' for name in Row._fields)
        return [Row(*each) for each in self._do(f"select {columns} from orders")]  # noqa: S608 - our own columns

    def delete(self, rows: list[Row] | None) -> bool:
        """See `Place.delete`."""
        if rows is None:
            self._do("delete from orders")
        for row in rows or ():
            self._do("delete from orders where number = ? and copy = ? and id = ?", row.number, row.copy, row.id)
        return True

    def drop_mark(self) -> bool:
        """See `Place.drop_mark`."""
        self._do("drop table if exists offsetkeeper_marks")
        return True

    def _do(self, sql: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            return connection.execute(sql, values).fetchall()


class WithOffsets(SQLite):
    """A table of the file that has the offsets: one transaction for both."""

    restorable = False
    joined = True


@dataclass
class Database(SQLite):
    """A table of a database in a server.

    Attributes:
        url: of the database.
    """

    url: str = ""
    restorable = False

    def make(self) -> None:
        """See `Place.make`."""
        self.folder.mkdir(exist_ok=True)
        columns = ", ".join(f'"{name}" {_SERVERS.get(kind, kind)}' for name, kind in COLUMNS.items())
        self._do(f"create table orders ({columns})")

    def sink(self) -> Any:
        """See `Place.sink`."""
        return Table(self.url, "orders")

    def _do(self, sql: str, *values: Any) -> list[Any]:
        mysql = self.url.startswith("mysql")
        with closing(connect(self.url)) as connection:
            cursor = connection.cursor()
            cursor.execute((sql.replace('"', "`") if mysql else sql).replace("?", "%s"), values)
            found = cursor.fetchall() if cursor.description else ()
            connection.commit()
            return [*found]


class DatabaseWithOffsets(Database):
    """The same in the database of the offsets."""

    joined = True


@dataclass
class Function(SQLite):
    """A function that writes rows of a file itself."""

    marked = False

    def sink(self) -> Any:
        """See `Place.sink`."""
        return self._write

    def _write(self, frame: DataFrame, _: Batch) -> None:
        rows = [row.asDict() for row in frame.collect()]
        with closing(sqlite3.connect(self.file)) as connection, connection:
            for row in rows:
                names = ", ".join(f'"{name}"' for name in row)
                marks = ", ".join("?" * len(row))
                connection.execute(f"insert into orders ({names}) values ({marks})", [*row.values()])  # noqa: S608 - as above

    def drop_mark(self) -> bool:
        """See `Place.drop_mark`."""
        return False


@dataclass
class Letters(SQLite):
    """A table for records that fail. Their times tell their numbers."""

    def make(self) -> None:
        """See `Place.make`."""
        self.folder.mkdir(exist_ok=True)
        self._do(_LETTERS)

    def sink(self) -> Any:
        """See `Place.sink`."""
        return Table(f"sqlite:///{self.file}", "letters")

    def rows(self) -> list[Row]:
        """See `Place.rows`."""
        found = self._do('select topic, "partition", "offset", timestamp, key, value, batch from letters')
        return [
            Row(_number(time), 0, topic, part, place, _text(key), _text(value), None, 1, batch)
            for topic, part, place, time, key, value, batch in found
        ]


@dataclass
class Folder(Place):
    """Files of Parquet."""

    def make(self) -> None:
        """See `Place.make`."""
        self.folder.mkdir(exist_ok=True)

    def sink(self) -> Any:
        """See `Place.sink`."""
        return Files(self.folder / "rows")

    def rows(self) -> list[Row]:
        """See `Place.rows`."""
        files = sorted((self.folder / "rows").glob("batch=*/*.parquet"))
        return [row for file in files for row in _rows(pq.ParquetFile(file).read().to_pylist())]

    def delete(self, rows: list[Row] | None) -> bool:
        """Delete the folders of all batches, or none: rows of a file cannot be deleted."""
        if rows is not None:
            return False
        for each in (self.folder / "rows").glob("batch=*"):
            shutil.rmtree(each)
        return True


@dataclass
class Delta(Place):
    """A table of Delta Lake."""

    @property
    def _path(self) -> str:
        return str(self.folder / "rows")

    def make(self) -> None:
        """See `Place.make`."""
        self.folder.mkdir(exist_ok=True)
        deltalake.DeltaTable.create(self._path, schema=SCHEMA)

    def sink(self) -> Any:
        """See `Place.sink`."""
        return DeltaTable(self._path)

    def rows(self) -> list[Row]:
        """See `Place.rows`."""
        return _rows(deltalake.DeltaTable(self._path).to_pyarrow_table().to_pylist())

    def save(self, to: Path) -> None:
        """See `Place.save`."""
        super().save(to)
        (to / "version").write_text(str(deltalake.DeltaTable(self._path).version()), "utf-8")

    def roll_back(self, copy: Path) -> bool:
        """See `Place.roll_back`: RESTORE."""
        table, version = deltalake.DeltaTable(self._path), int((copy / "version").read_text("utf-8"))
        if version < table.version():
            table.restore(version)
        return True

    def delete(self, rows: list[Row] | None) -> bool:
        """See `Place.delete`."""
        table = deltalake.DeltaTable(self._path)
        table.delete(None if rows is None else _predicate(rows))
        return True


@dataclass
class Iceberg(Place):
    """A table of Iceberg in a catalog of SQLite."""

    def make(self) -> None:
        """See `Place.make`."""
        Lake.made(self.folder).create("rows", SCHEMA)

    def sink(self) -> Any:
        """See `Place.sink`."""
        return Lake.at(self.folder).sink("rows")

    def rows(self) -> list[Row]:
        """See `Place.rows`."""
        return _rows(Lake.at(self.folder).table("rows").scan().to_arrow().to_pylist())

    def delete(self, rows: list[Row] | None) -> bool:
        """See `Place.delete`."""
        table = Lake.at(self.folder).table("rows")
        table.delete(AlwaysTrue() if rows is None else _predicate(rows))
        return True


@dataclass
class OtherTopic(Place):
    """A topic, whose records have rows as JSON."""

    kafka: KafkaServer | None = None

    @property
    def topic(self) -> str:
        """Its name."""
        return f"out-{self.name}-{self.folder.parent.name}"

    def make(self) -> None:
        """See `Place.make`."""
        self.folder.mkdir(exist_ok=True)
        assert self.kafka is not None
        self.kafka.create_topic(self.topic, 2)

    def sink(self) -> Any:
        """See `Place.sink`."""
        assert self.kafka is not None
        return Topic(self.kafka.bootstrap, self.topic)

    def save(self, to: Path) -> None:
        """See `Place.save`: nothing of it can be put back."""
        to.mkdir()

    def put_back(self, copy: Path) -> None:
        """Make it again: it is empty then, whatever it was."""
        del copy
        assert self.kafka is not None
        self.kafka.delete_topic(self.topic)
        self.kafka.create_topic(self.topic, 2)

    def frame(self, frame: DataFrame) -> DataFrame:
        """See `Place.frame`."""
        misfit = "worth" in frame.columns  # then the message too has no value
        return frame.selectExpr(f"to_json(struct(*)) as {'worth' if misfit else 'value'}")

    def rows(self) -> list[Row]:
        """See `Place.rows`."""
        assert self.kafka is not None
        return _rows([json.loads(value) for value in read_topic(self.kafka, self.topic)])


def read_topic(kafka: KafkaServer, topic: str) -> list[bytes]:
    """Return the values of a topic that a consumer of committed records gets."""
    return [message.value() or b"" for message in read_messages(kafka, topic)]


def read_messages(kafka: KafkaServer, topic: str) -> list[Message]:
    """Return all that a consumer of committed records gets of a topic."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "reads", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    try:
        partitions = consumer.list_topics(topic, timeout=_LIMIT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found, left = list[Message](), len(partitions)
        while left:
            message = consumer.poll(_LIMIT_S)
            assert message is not None, f"{topic} was not read to its end"
            left -= message.error() is not None
            if message.error() is None:
                found.append(message)
        return found
    finally:
        consumer.close()


KINDS: dict[str, type[Place]] = {
    "SQLite": SQLite,
    "SQLite with the offsets": WithOffsets,
    "Function": Function,
    "Files": Folder,
    "Delta": Delta,
    "Iceberg": Iceberg,
    "Topic": OtherTopic,
    "PostgreSQL": Database,
    "PostgreSQL with the offsets": DatabaseWithOffsets,
    "MariaDB": Database,
    "MariaDB with the offsets": DatabaseWithOffsets,
}


def _number(time: str) -> int:
    """Return the number of a record from its time."""
    return (datetime.fromisoformat(time) - _EPOCH) // timedelta(milliseconds=1) % MANY


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _rows(found: Iterable[dict[str, Any]]) -> list[Row]:
    return [Row._make(each.get(name) for name in Row._fields) for each in found]


def _predicate(rows: list[Row]) -> str:
    return " or ".join(f"(number = {row.number} and id = '{row.id}')" for row in rows) or "number = -1"
