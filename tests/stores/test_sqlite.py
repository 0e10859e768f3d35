"""The store in a SQLite file: the suites."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from offsetkeeper.testing.conformance import (
    DurableConformance,
    HistoryConformance,
    SqlMedium,
    StoreConformance,
    TransactionConformance,
)


class TestSQLite(SqlMedium, StoreConformance, HistoryConformance, TransactionConformance, DurableConformance):
    """The suites."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """URL of a file with a table for rows."""
        url = f"sqlite:///{tmp_path}/offsets.db"
        self.sql(url, self.sink)
        return url

    def sql(self, url: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement."""
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(statement, parameters).fetchall()

    def leave_open(self, connection: Any) -> Sequence[Any]:
        """Also a cursor that the connection itself has made, of which its Python class does not know."""
        one = connection.executemany("INSERT INTO sink_rows VALUES (?)", [("kept open",)])
        connection.execute("DELETE FROM sink_rows")
        return one, *super().leave_open(connection)

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """SQLite's columns hold values of any type."""
        statements = {
            "a text for an offset": "UPDATE kafka_offsets SET \"offset\" = 'ten'",
            "a fraction for an offset": 'UPDATE kafka_offsets SET "offset" = 1.5',
            "a text for a partition": "UPDATE kafka_offsets SET partition = 'one'",
            "bytes for a topic": "UPDATE kafka_offsets SET topic = x'00ff'",
            "bytes for a topic id": "UPDATE kafka_offsets SET topic_id = x'00ff'",
            "bytes for a control record": "UPDATE offsetkeeper_groups SET control = x'00ff'",
            "a number for a control record": "UPDATE offsetkeeper_groups SET control = 1.5",
            "a text for a version": "UPDATE offsetkeeper_groups SET version = 'one'",
        }
        more = {name: partial(self.sql, url, f"{text} WHERE group_id = ?", group) for name, text in statements.items()}
        return {**super().spoilers(url, group), **more}
