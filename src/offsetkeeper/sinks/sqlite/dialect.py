"""How the marks beside a table are kept in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from offsetkeeper.clients.sqlite import BUSY, Connection, code_of, triggers
from offsetkeeper.sinks.marks import LOOK, TABLE, Dialect, Result, Statement

TIMEOUT_S = 30.0
"""Seconds that a connection waits for a lock of another one."""


def _tried(connection: Connection, statements: Sequence[Statement]) -> Sequence[Result] | None:
    """See `Dialect.trial`. A run that lands holds the file's one lock for writers: it is not waited for."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if code_of(error) in BUSY:
            return None
        raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {TIMEOUT_S * 1000:.0f}")
    try:
        done = (connection.execute(*each) for each in statements)
        return [(cursor.rowcount, cursor.fetchall()) for cursor in done]
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


DIALECT = Dialect(
    quote='"',
    value="?",
    text="TEXT",
    before="",
    after="",
    missing=sqlite3.OperationalError,
    taken=sqlite3.IntegrityError,
    trial=_tried,
    obstacles=lambda connection, _: triggers(connection, [TABLE]),
    probes=[LOOK],  # the others would wait for the end of a transaction, such as that of an older run that stalls
)
