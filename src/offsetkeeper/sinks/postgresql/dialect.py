"""How the marks beside a table are kept in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from offsetkeeper.sinks.marks import TABLE, Dialect, Result, Statement
from offsetkeeper.stores.postgresql import Connection, check_tables, obstacles

_TRIAL = "begin isolation level read committed; set local lock_timeout = 100; set constraints all immediate"


def _marks(connection: Connection, schema: str) -> str:
    return sql.Identifier(schema, TABLE).as_string(connection)


def _tried(connection: Connection, statements: Sequence[Statement]) -> Sequence[Result] | None:
    """See `Dialect.trial`. It is one request, so that no lock stays where the driver stalls."""
    with psycopg.ClientCursor(connection) as cursor:
        texts = [cursor.mogrify(text.encode(), values) for text, values in statements]
        try:
            cursor.execute("; ".join([_TRIAL, *texts, "rollback"]).encode())
        except psycopg.Error as error:
            if not connection.closed:
                connection.execute("rollback")
            if isinstance(error, psycopg.errors.LockNotAvailable):
                return None
            raise
        results: list[Result] = []
        while True:
            results.append((cursor.rowcount, cursor.fetchall() if cursor.description else ()))
            if not cursor.nextset():
                return results[-len(statements) - 1 : -1]


DIALECT = Dialect(
    quote='"',
    value="%s",
    text="text",
    before="SELECT pg_advisory_xact_lock(7307199665335594360); ",  # otherwise two runs at once would fail
    after="",
    missing=psycopg.errors.UndefinedTable,
    taken=psycopg.errors.UniqueViolation,
    trial=_tried,
    obstacles=lambda connection, schema: obstacles(connection, [_marks(connection, schema)]),
    check=lambda connection, address, schema: check_tables(connection, address, [_marks(connection, schema)]),
)
