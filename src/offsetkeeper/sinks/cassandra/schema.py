"""Checks a table in the cluster: whether it fits the sink, and whether the user may write it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from offsetkeeper.errors import Refused
from offsetkeeper.sinks.cassandra.columns import IN_KEY, CassandraColumn, quoted
from offsetkeeper.sinks.cassandra.session import Session
from offsetkeeper.sinks.table import Target, no_table

log = logging.getLogger("offsetkeeper")
_HOUR = 3600
_KEYSPACE = "SELECT durable_writes FROM system_schema.keyspaces WHERE keyspace_name = %s"
_REPLICATION = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
_COMMIT_LOG = "SELECT name, value FROM system_views.settings WHERE name = 'commitlog_sync'"
_TABLE = (
    "SELECT gc_grace_seconds, default_time_to_live, flags FROM system_schema.tables "
    "WHERE keyspace_name = %s AND table_name = %s"
)
_COMPACT = frozenset({"dense", "super"})
"""What Cassandra says of tables with the storage of its first releases; it may also leave `compound` out."""

_COLUMNS = "SELECT column_name, type, kind FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s"


def find_columns(session: Session, target: Target) -> list[CassandraColumn]:
    """Return the columns of a table.

    Raises:
        Refused: the table does not exist, has another key, counters, or the compact storage.
        SinkError: the cluster could not be reached.
    """
    address = session.place.address
    found, about = (session.rows(query, (target.schema, target.table)) for query in (_COLUMNS, _TABLE))
    if not found or not about:  # a view has columns too
        raise no_table(target, address)
    flags = {*(about[0][2] or ())}
    if "compound" not in flags or flags & _COMPACT:
        raise Refused(
            f"{address}: table {target} is WITH COMPACT STORAGE, which keeps no row without values, so a row of nulls "
            f"would vanish: create a table without it, or ALTER TABLE {_named(target)} DROP COMPACT STORAGE"
        )
    columns = [CassandraColumn(name, kind, False, False, role not in IN_KEY, role) for name, kind, role in found]  # noqa: FBT003 - flags
    there = sorted(column.name for column in columns if column.in_key)
    if there != sorted(target.key):
        raise Refused(
            f"{address}: the primary key of table {target} is ({', '.join(there)}), but key= is "
            f"({', '.join(sorted(target.key))}): give exactly the columns of the primary key"
        )
    for column in columns:
        if column.type == "counter":
            raise Refused(
                f"{address}: column {column.name} of table {target} is a counter, and a repeated batch would count "
                "twice: use a table without counters"
            )
    return columns


def check_kept(session: Session, target: Target) -> None:
    """Check that written rows are kept, and that deleted rows stay deleted; say if the table itself forgets rows.

    Raises:
        Refused: one of these is not certain.
        SinkError: the cluster could not be reached.
    """
    address = session.place.address
    [(durable,)] = session.rows(_KEYSPACE, (target.schema,))
    [(grace, forgets, _)] = session.rows(_TABLE, (target.schema, target.table))
    if not durable:
        raise Refused(
            f"{address}: keyspace {target.schema} has durable_writes = false, so a crash may lose rows of committed "
            f"batches: ALTER KEYSPACE {quoted(target.schema)} WITH durable_writes = true"
        )
    if grace < _HOUR:
        raise Refused(
            f"{address}: table {target} has gc_grace_seconds = {grace}: after that time, a late write of an older run "
            "restores deleted values. Set it to an hour (3600) or more, longer than a run can stall"
        )
    if forgets:
        log.warning(
            "%s: table %s has default_time_to_live = %d, so each row is gone %d s after it was written",
            *(address, target, forgets, forgets),
        )


def server_settings(session: Session, keyspace: str) -> dict[str, str | None]:
    """Return what decides whether rows outlive a node: the fewest replicas of a data centre, and `commitlog_sync`.

    Only the node that answers is asked for the second; None if the user may not see it.

    Raises:
        Refused: the keyspace does not exist.
        SinkError: the cluster could not be reached.
    """
    found = session.rows(_REPLICATION, (keyspace,))
    if not found:
        raise Refused(f"{session.place.address}: there is no keyspace {keyspace}: correct its name")
    told = [text.partition("/")[0] for name, text in found[0][0].items() if name != "class"]
    factors = [int(text) for text in told if text.isdigit()]
    settings: dict[str, str | None] = {"replication_factor": str(min(factors, default=1)), "commitlog_sync": None}
    with suppress(Refused):
        settings |= dict(session.rows(_COMMIT_LOG, ()))
    return settings


def check_rights(session: Session, target: Target) -> None:
    """Try to write a row without a key: if the user may write, it is refused only for the missing key.

    Raises:
        Refused: the user may not write.
        SinkError: the cluster could not be reached.
    """

    def probe(open_session: Any) -> None:
        from cassandra import InvalidRequest  # noqa: PLC0415 - a client library, loaded on use

        insert = open_session.prepare(insert_into(target, target.key))
        try:
            open_session.execute(insert, (*(None for _ in target.key), 1))
        except InvalidRequest:
            return

    session.run(probe)


def insert_into(target: Target, names: Sequence[str]) -> str:
    """Return the statement that writes a row; its last value is the write time."""
    columns, values = ", ".join(map(quoted, names)), ", ".join("?" for _ in names)
    return f"INSERT INTO {_named(target)} ({columns}) VALUES ({values}) USING TIMESTAMP ?"  # noqa: S608 - quoted


def delete_from(target: Target, names: Sequence[str]) -> str:
    """Return the statement that deletes a row; its first value is the write time."""
    where = " AND ".join(f"{quoted(name)} = ?" for name in names)
    return f"DELETE FROM {_named(target)} USING TIMESTAMP ? WHERE {where}"  # noqa: S608 - quoted


def _named(target: Target) -> str:
    return f"{quoted(target.schema)}.{quoted(target.table)}"
