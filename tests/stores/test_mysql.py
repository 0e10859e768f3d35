"""The store in MySQL, on MariaDB: the suites."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
from pymysql.cursors import SSCursor

from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.errors import Refused
from offsetkeeper.stores.mysql.store import NAMES
from offsetkeeper.testing.conformance import (
    DurableConformance,
    HistoryConformance,
    SqlMedium,
    Stage,
    StoreConformance,
    TransactionFaultConformance,
)
from offsetkeeper.testing.mariadb import MariaDBServer


@pytest.mark.filterwarnings("ignore:Previous unbuffered result:UserWarning")  # of a block that leaves one
class TestMySQL(SqlMedium, StoreConformance, HistoryConformance, DurableConformance, TransactionFaultConformance):
    """The suites."""

    requests = ((b"START TRANSACTION;", Stage.PREPARES), (b"INSERT INTO", Stage.DECIDES))
    locking = (b"INSERT INTO",)
    reads = (b"UNION ALL",)
    statements = (
        (b"START", Stage.PREPARES),
        (b"SAVEPOINT", Stage.PREPARES),
        (b"sink_rows", Stage.BLOCK),
        (b"RELEASE", Stage.PREPARES),
        (b"sql_mode", Stage.PREPARES),
        (b"`offsetkeeper_groups` SET", Stage.PREPARES),
        (b"`kafka_offsets` SET", Stage.PREPARES),
        (b"DELETE", Stage.PREPARES),
        (b"COMMIT", Stage.DECIDES),
        (b"autocommit", Stage.SAFE),
    )
    broken = (pymysql.OperationalError, pymysql.InterfaceError)

    @pytest.fixture
    def server(self, mariadb_server: MariaDBServer) -> MariaDBServer:
        """The run's server."""
        return mariadb_server

    @pytest.fixture
    def url(self, mariadb_server: MariaDBServer) -> str:
        """A database of the test's own, which has a table for rows. Without TLS, so that a proxy sees what is said."""
        url = f"{mariadb_server.url(mariadb_server.create_database())}?ssl_disabled=true"
        self.sql(url, self.sink)
        return url

    def sql(self, url: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement, which has double quotes around `offset` and none around `partition`."""
        parts = urlsplit(url)
        named = re.sub(r"\bpartition\b", "`partition`", statement.replace('"offset"', "`offset`"))
        with (
            pymysql.connect(
                host=parts.hostname,
                port=parts.port or 0,
                user="root",
                database=parts.path[1:],
                autocommit=True,
                ssl_disabled=True,
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(named.replace("?", "%s"), parameters)
            return list(cursor.fetchall())

    def group_id(self, group: str) -> str:
        """See `SqlMedium`."""
        return NAMES.name_of(group)

    def unread_cursor(self, connection: Any) -> Any:
        """A cursor that leaves the rows in the socket."""
        return connection.cursor(SSCursor)

    def test_rows_of_another_program_under_a_name_that_ends_with_a_space_are_never_passed_over(
        self, store: Store, url: str
    ) -> None:
        """Such a group is kept under another name, so its first start would take it for new."""
        self.write_position(url, "shop ", TopicPartition("a", 0), 5)
        assert list(store.groups()) == ["shop "]
        assert store.load("shop").positions == {}
        with pytest.raises(Refused, match=r"this store writes ':shop%20' in its place\. To take the offsets over"):
            store.load("shop ")
        self.sql(url, "UPDATE kafka_offsets SET group_id = ?", ":shop%20")
        assert store.load("shop ").positions == {TopicPartition("a", 0): Position(5)}
