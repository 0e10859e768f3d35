"""The store in PostgreSQL: the suites."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg
import pytest

from offsetkeeper.testing.conformance import (
    DurableConformance,
    HistoryConformance,
    SqlMedium,
    Stage,
    StoreConformance,
    TransactionFaultConformance,
)
from offsetkeeper.testing.postgresql import PostgreSQLServer


@pytest.fixture(scope="module")
def shared_database(postgresql_server: PostgreSQLServer) -> str:
    """URL of a database for all tests of this file: to make one takes longer than most tests."""
    return postgresql_server.url(postgresql_server.create_database())


class TestPostgreSQL(SqlMedium, StoreConformance, HistoryConformance, DurableConformance, TransactionFaultConformance):
    """The suites."""

    requests = ((b"WITH control AS", Stage.DECIDES),)
    reads = (b"UNION ALL",)
    statements = (
        (b"BEGIN", Stage.PREPARES),
        (b"set_config", Stage.PREPARES),
        (b"sink_rows", Stage.BLOCK),
        (b"current_setting", Stage.PREPARES),
        (b"WITH control AS", Stage.PREPARES),
        (b"COMMIT", Stage.DECIDES),
        (b"DISCARD", Stage.SAFE),
    )
    broken = (psycopg.OperationalError,)
    hurried = "timeout=0.5&connect_timeout=2"

    @pytest.fixture
    def server(self, postgresql_server: PostgreSQLServer) -> PostgreSQLServer:
        """The run's server."""
        return postgresql_server

    @pytest.fixture
    def url(self, shared_database: str) -> str:
        """URL with a schema of its own, which has a table for rows."""
        schema = f"test_{secrets.token_hex(6)}"
        self.sql(shared_database, f"CREATE SCHEMA {schema}")
        url = f"{shared_database}?options=-csearch_path%3D{schema}"
        self.sql(url, self.sink)
        return url

    def sql(self, url: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement."""
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement.replace("?", "%s").encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def unread_cursor(self, connection: Any) -> Any:
        """A cursor of the server."""
        return connection.cursor("unread")
