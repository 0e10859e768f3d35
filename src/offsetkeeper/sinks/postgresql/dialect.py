"""How the marks beside a table are kept in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from offsetkeeper.clients.postgresql import Connection
from offsetkeeper.clients.postgresql_server import check_tables, obstacles
from offsetkeeper.sinks.marks import TABLE, Dialect, Result, Statement
from offsetkeeper.sinks.sink import AT_ONCE, MarkKey
from offsetkeeper.sinks.table import Target

_TRIAL = "begin isolation level read committed; set local lock_timeout = 100; set constraints all immediate"
# Other schemas of the search path with a table of this name and marks beside it.
_BESIDE = """
    select s from unnest(current_schemas(false)) s
    where s <> %s and to_regclass(format('%%I.%%I', s, %s::text)) is not null
        and has_table_privilege(to_regclass(format('%%I.%%I', s, %s::text))::oid, 'select')"""
_HAS = sql.SQL("select from {} where group_name = %s and output = %s")


def schema_with_mark(connection: Connection, target: Target, key: MarkKey) -> str:
    """Return the schema of the search path in which a table of the same name has the mark of a key; empty if none has.

    Args:
        connection: a connection to the database.
        target: the table, in the schema that its name leads to now.
        key: the key of the mark.
    """
    for (schema,) in connection.execute(_BESIDE, [target.schema, target.table, TABLE]).fetchall():
        if connection.execute(_HAS.format(sql.Identifier(schema, TABLE)), list(key)).fetchall():
            return str(schema)
    return ""


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
    at_once=AT_ONCE,
    obstacles=lambda connection, schema: obstacles(connection, [_marks(connection, schema)]),
    check=lambda connection, address, schema: check_tables(connection, address, [_marks(connection, schema)]),
)
