"""The tables of rounds, and what a user counts in them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pymysql

from failover.plain_run import TABLE

Rows = list[tuple[int, int, str]]
_SELECT = f'select "partition", "offset", value from {TABLE}'  # noqa: S608 - a constant
_CREATE = f'create table {TABLE} (topic text, "partition" int, "offset" bigint, value text)'


def local_table(folder: Path) -> str:
    """Make a table in a file of SQLite, and return the URL."""
    with closing(sqlite3.connect(folder / "output.db")) as connection:
        connection.execute(_CREATE)
    return f"sqlite:///{folder}/output.db"


def postgresql_table(url: str) -> str:
    """Make a table in a database, and return the URL."""
    with psycopg.connect(url) as connection:
        connection.execute(_CREATE.encode())
    return url


def mysql_table(url: str) -> str:
    """Make a table in a database, and return the URL."""
    with _mysql(url) as connection:
        connection.cursor().execute(_CREATE.replace('"', "`"))
    return url


def sqlite_rows(url: str) -> Rows:
    """Return all rows."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return connection.execute(_SELECT).fetchall()


def postgresql_rows(url: str) -> Rows:
    """Return all rows."""
    with psycopg.connect(url) as connection:
        return [*connection.execute(_SELECT.encode()).fetchall()]


def mysql_rows(url: str) -> Rows:
    """Return all rows."""
    with _mysql(url) as connection:
        cursor = connection.cursor()
        cursor.execute(_SELECT.replace('"', "`"))
        return [*cursor.fetchall()]


def _mysql(url: str) -> Any:
    parts = urlsplit(url)
    where: dict[str, Any] = {"host": parts.hostname, "port": parts.port, "database": parts.path[1:]}
    return pymysql.connect(user="root", ssl_disabled=True, autocommit=True, **where)
