"""How the suites reach the tables of a store on a SQL database without the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from offsetkeeper.core.model import TopicPartition

_OFFSETS = """
    CREATE TABLE IF NOT EXISTS kafka_offsets (topic varchar(249) NOT NULL, group_id varchar(249) NOT NULL,
        partition integer NOT NULL, "offset" bigint NOT NULL, timestamp timestamp DEFAULT CURRENT_TIMESTAMP,
        PRIMARY KEY (group_id, topic, partition))"""
_TABLES = ("kafka_offsets", "offsetkeeper_groups", "offsetkeeper_history")


class SqlMedium:
    """The parts of `Medium` and the suites that speak SQL; a subclass says how a statement is run.

    Attributes:
        sink: makes the table for rows that `row_writer` writes to.
    """

    sink = "CREATE TABLE sink_rows (content text)"

    def sql(self, url: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement, with `?` for each parameter, on a connection of its own, commit, and return the rows."""
        raise NotImplementedError

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """See `Medium`."""
        rows = self.sql(url, 'SELECT topic, partition, "offset" FROM kafka_offsets WHERE group_id = ?', group)
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def read_version(self, url: str, group: str) -> int:
        """See `ServedMedium`."""
        [(version,)] = self.sql(url, "SELECT version FROM offsetkeeper_groups WHERE group_id = ?", group)
        return int(version)

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """See `Medium`. The table is made as others make it, without our column."""
        self.sql(url, _OFFSETS)
        self.sql(url, "DELETE FROM kafka_offsets WHERE group_id = ? AND topic = ? AND partition = ?", group, *tp)
        if offset is not None:
            insert = 'INSERT INTO kafka_offsets (group_id, topic, partition, "offset") VALUES (?, ?, ?, ?)'
            self.sql(url, insert, group, *tp, offset)

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """See `DurableConformance`."""
        offsets, control = "UPDATE kafka_offsets SET", "UPDATE offsetkeeper_groups SET control ="
        statements = {
            "a negative offset": f'{offsets} "offset" = -1',
            "a negative partition": f"{offsets} partition = -1",
            "an impossible topic": f"{offsets} topic = 'no topic'",
            "no JSON": f"{control} 'garbage'",
            "JSON of another kind": f"{control} '[]'",
            "a newer format": f"""{control} '{{"format":99}}'""",
            "a negative version": "UPDATE offsetkeeper_groups SET version = -1",
        }
        return {
            name: partial(self.sql, url, f"{statement} WHERE group_id = ?", group)
            for name, statement in statements.items()
        }

    def dump(self, url: str) -> object:
        """See `DurableConformance`."""
        return [sorted(map(repr, self.sql(url, f"SELECT * FROM {table}"))) for table in _TABLES]  # noqa: S608

    def row_writer(self, row: str) -> Callable[[Any], object]:
        """See `TransactionConformance`."""
        return methodcaller("execute", f"INSERT INTO sink_rows VALUES ('{row}')")  # noqa: S608

    def read_rows(self, url: str) -> Sequence[str]:
        """See `TransactionConformance`."""
        return [content for (content,) in self.sql(url, "SELECT content FROM sink_rows")]

    def leave_open(self, connection: Any) -> Sequence[Any]:
        """See `TransactionConformance`."""
        many, unread = connection.cursor(), self.unread_cursor(connection)
        many.executemany("INSERT INTO sink_rows VALUES ('kept open')", [(), ()])
        unread.execute("SELECT content FROM sink_rows")
        assert unread.fetchone() == ("kept open",)  # noqa: S101 - a part of the suite
        return many, unread

    def unread_cursor(self, connection: Any) -> Any:
        """Return a cursor whose rows are fetched from the database one by one, not all at once."""
        return connection.cursor()
