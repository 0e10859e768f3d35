"""Asks a PostgreSQL server about itself and its tables, and makes its commits durable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from offsetkeeper.errors import Refused, StoreUnavailable

IS_STANDBY = "SELECT pg_is_in_recovery() AS standby"
"""See `refuse_standby`. A pooler says only what its server said of itself long ago (in_hot_standby)."""

# Of these tables and their parts: those that are not tables of this database, or do not survive a crash.
UNKEPT = """
    WITH RECURSIVE kept AS (
        SELECT oid FROM pg_class WHERE oid = ANY (%s::text[]::regclass[])
        UNION SELECT inhrelid FROM pg_inherits JOIN kept ON inhparent = oid)
    SELECT oid::regclass::text, relkind::text, relpersistence::text FROM kept JOIN pg_class USING (oid)
    WHERE NOT (relkind IN ('r', 'p') AND relpersistence = 'p')"""
# Objects that may hide a user's rows, or change them while they are stored.
_OBSTACLES = """
    WITH given AS (SELECT unnest(%s::text[]::regclass[]) AS t)
    SELECT format('row-level security of table %%s for user %%s', t, current_user) FROM given
    WHERE row_security_active(t)
    UNION ALL SELECT format('trigger %%s of table %%s', tgname, t) FROM pg_trigger JOIN given ON tgrelid = t
    WHERE NOT tgisinternal AND tgenabled <> 'D'
    UNION ALL SELECT format('rule %%s of table %%s', rulename, t) FROM pg_rewrite JOIN given ON ev_class = t
    WHERE ev_type <> '1' AND ev_enabled <> 'D'"""
_REMEDIES = {
    "u": "is unlogged, so a crash of the server empties it: ALTER TABLE {} SET LOGGED",
    "t": "is temporary, so it ends with its session: make a lasting table in its place",
    "f": "is a foreign table, whose server commits by itself: make a table of this database in its place",
    "v": "is a view: make a table in its place",
}
# A role or a database may have set it off: then a crash of the server loses acknowledged commits. Other values flush
# here too, and are about standbys: they stay. It ends with the transaction, as connections may be pooled.
SET_DURABLE = """
    set_config('synchronous_commit',
        coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), true)"""
DURABLE = f"SELECT {SET_DURABLE}"
IDLE = "idle_in_transaction_session_timeout"
# After so many milliseconds the server ends a session that sends nothing within its transaction, and with it its locks.
LIMIT_IDLE = f"set_config('{IDLE}', coalesce(nullif(current_setting('{IDLE}'), '0'), %s), true)"
_IDENTITY = """
    SELECT extract(epoch FROM pg_postmaster_start_time())::text, oid::bigint, datname
    FROM pg_database WHERE datname = current_database()"""

# Anyone may see these, as they hold in this session, and that a replica is connected, but not always its state.
_SETTINGS = """
    SELECT name, setting FROM pg_settings
    WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names')
    UNION ALL SELECT 'replicas', count(*)::text FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup'"""


def refuse_standby(address: str, standby: object) -> None:
    """Check that a server is no standby, by its answer to `IS_STANDBY`.

    Raises:
        StoreUnavailable: it is one, which may lag behind: then an old ledger would pass for the newest. It may be
            promoted, or the name may lead to the primary soon.
    """
    if standby is True:
        raise StoreUnavailable(
            f"{address}: the server is a standby, which may lag behind: connect to the primary. Of several hosts in "
            "one URL the primary is taken"
        )


def database_identity(connection: psycopg.Connection[Any]) -> str:
    """Return a text that identifies the database of a connection until its server restarts."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        [(began, oid, name)] = cursor.execute(_IDENTITY).fetchall()
    return f"postgresql:{began}:{oid}:{name}"


def is_in_database(connection: psycopg.Connection[Any], identity: Callable[[], str]) -> bool:
    """Return whether another connection, which `identity` asks, is to the database of this one."""
    return identity() == database_identity(connection)


def server_settings(connection: psycopg.Connection[Any]) -> dict[str, str | None]:
    """Return the settings that decide what a commit of this user survives, and the number of replicas."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return dict(cursor.execute(_SETTINGS).fetchall())


def check_tables(connection: psycopg.Connection[Any], address: str, names: Sequence[str]) -> None:
    """Check that tables are committed and rolled back together, and outlive a crash of the server.

    Args:
        connection: a connection to the database.
        address: the database without credentials, for messages.
        names: the tables, quoted for SQL.

    Raises:
        Refused: one of them, or a table that is a part of one, is not a table of this database, or not a logged one.
    """
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        refuse_unkept(address, cursor.execute(UNKEPT.encode(), [list(names)]).fetchall())


def obstacles(connection: psycopg.Connection[Any], names: Sequence[str]) -> list[str]:
    """Return the policies, triggers and rules that may hide rows from this user or change rows that it writes."""
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return [text for (text,) in cursor.execute(_OBSTACLES.encode(), [list(names)]).fetchall()]


def refuse_unkept(address: str, found: Iterable[Sequence[str]]) -> None:
    """Raise Refused if the check of tables has found one: name, kind and persistence as PostgreSQL writes them."""
    for name, kind, persistence in found:
        remedy = _REMEDIES.get(persistence) or _REMEDIES.get(kind, _REMEDIES["v"])
        raise Refused(f"{address}: table {name} {remedy.format(name)}")
