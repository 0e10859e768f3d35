"""Asks a MySQL server for its clock, the engines of tables, and the settings that make a commit durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pymysql

from offsetkeeper.clients.mysql import Connection
from offsetkeeper.errors import Refused, StoreUnavailable

IS_READ_ONLY = "SELECT @@global.read_only, @@global.innodb_read_only"
"""See `refuse_read_only`. A reader of Aurora says it by the second alone."""

# MySQL and MariaDB name some of them differently; a server tells those that it has, to any user.
_VARIABLES = (
    *("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "log_bin", "sync_binlog", "wsrep_on"),
    *("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"),
)
_STATUS = (
    *("slaves_connected", "rpl_semi_sync_master_status", "rpl_semi_sync_master_clients"),
    *("rpl_semi_sync_source_status", "rpl_semi_sync_source_clients"),
)


def refuse_read_only(address: str, read_only: Sequence[object]) -> None:
    """Check that a server takes changes, by its answer to `IS_READ_ONLY`, a row.

    Raises:
        StoreUnavailable: it does not. It may be a replica, and behind: what it shows may be no more.
    """
    if not {str(each).upper() for each in read_only} <= {"0", "OFF"}:  # TiDB answers some as texts
        raise StoreUnavailable(f"{address} is read-only for now, or a replica, which may be behind")


def server_settings(connection: pymysql.connections.Connection[Any]) -> dict[str, str | None]:
    """Return the settings and counts of the server, by MySQL's names in lower case; those that it has."""
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(f"SHOW GLOBAL VARIABLES WHERE variable_name IN {_VARIABLES}")
        found = list(cursor.fetchall())
        cursor.execute(f"SHOW GLOBAL STATUS WHERE variable_name IN {_STATUS}")
        return {name.lower(): value for name, value in [*found, *cursor.fetchall()]}


def clock_ms(connection: pymysql.connections.Connection[Any]) -> int:
    """Return the server's time, milliseconds since 1970."""
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)")
        [(milliseconds,)] = cursor.fetchall()
        return int(milliseconds)


_ENGINES = """
    SELECT table_name, engine FROM information_schema.tables
    WHERE table_schema = %s AND table_name IN ({names}) AND COALESCE(engine, '') <> 'InnoDB'"""
_TRIGGERS = """
    SELECT CONCAT('trigger ', trigger_name, ' of table ', event_object_table) FROM information_schema.triggers
    WHERE event_object_schema = %s AND action_timing LIKE %s AND event_object_table IN ({names})"""


def check_engine(connection: Connection, address: str, schema: str, names: Sequence[str]) -> None:
    """Check that tables are committed and rolled back together: that they are tables of InnoDB.

    Other engines that call themselves transactional commit by themselves, before InnoDB or after it.

    Args:
        connection: a connection to the server.
        address: address of the server, for messages.
        schema: database of the tables.
        names: their names.

    Raises:
        Refused: one of them is not; the message has the statement that helps.
    """
    statement = _ENGINES.format(names=", ".join(["%s"] * len(names)))
    for name, engine in connection.execute(statement, (schema, *names)).fetchall():
        if engine is None:
            raise Refused(f"{address}: {name} is a view; make a table of InnoDB in its place")
        quoted = ".".join(f"`{each.replace('`', '``')}`" for each in (schema, name))
        raise Refused(
            f"{address}: table {quoted} is kept by {engine}, which does not commit together with InnoDB: "
            f"ALTER TABLE {quoted} ENGINE = InnoDB"
        )


def triggers(connection: Connection, schema: str, names: Sequence[str], timing: str = "%") -> list[str]:
    """Return the triggers of tables, which may change what is written; a user without TRIGGER sees none.

    Args:
        connection: a connection to the server.
        schema: schema of the tables.
        names: their names without the schema.
        timing: of which timing, such as "BEFORE"; a pattern for LIKE.
    """
    statement = _TRIGGERS.format(names=", ".join(["%s"] * len(names)))
    return [text for (text,) in connection.execute(statement, (schema, timing, *names)).fetchall()]


_NAMES = ("server_uuid", "server_uid", "hostname", "port", "datadir")  # each server has some of them
_LOCK = "offsetkeeper.identity"
_LONGEST_S = 10


def database_identity(connection: pymysql.connections.Connection[Any]) -> str:
    """Return a text that identifies the database of a connection, however its URL is spelled.

    A copy of a server may have all its names: see `is_in_database`.
    """
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(f"SHOW GLOBAL VARIABLES WHERE variable_name IN {_NAMES}")
        found = sorted(cursor.fetchall())
        cursor.execute("SELECT DATABASE(), IS_USED_LOCK(%s)", (_LOCK,))
        [(database, holder)] = cursor.fetchall()
    return ":".join(["mysql", *(f"{name}={value}" for name, value in found), f"lock={holder}", database])


def is_in_database(connection: Connection, identity: Callable[[], str]) -> bool:
    """Return whether another connection is to the database of this one.

    Args:
        connection: a connection.
        identity: asks the other one for its identity.
    """
    with identity_lock(connection):  # the second time, as another session's lock may end between two answers
        return any(identity() == database_identity(connection) for _ in range(2))


@contextmanager
def identity_lock(connection: Connection) -> Iterator[None]:
    """Hold a lock of the server in the block; its holder is a part of each identity that the server tells meanwhile.

    Clusters that allow no such locks go without, as their servers have names of their own. Where another session keeps
    the lock for long, its holder shows the server as well, but may change meanwhile.
    """
    seconds = min(_LONGEST_S, connection.locks // 2)  # the connection waits for an answer for `locks` seconds or more
    with suppress(pymysql.Error):  # a lost connection is told by the next statement
        connection.execute("SELECT GET_LOCK(%s, %s)", (_LOCK, seconds))
    try:
        yield
    finally:
        with suppress(pymysql.Error):
            connection.execute("SELECT RELEASE_LOCK(%s)", (_LOCK,))
