"""The store in MySQL, on MariaDB: the suites."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from offsetkeeper.testing.conformance import (
    DurableConformance,
    HistoryConformance,
    SqlMedium,
    StoreConformance,
    TransactionConformance,
)
from offsetkeeper.testing.mariadb import MariaDBServer


class TestMySQL(SqlMedium, StoreConformance, HistoryConformance, TransactionConformance, DurableConformance):
    """The suites."""

    @pytest.fixture
    def url(self, mariadb_server: MariaDBServer) -> str:
        """A database of the test's own, which has a table for rows."""
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
