"""What a MySQL server is asked for the doctor: the settings that decide what a commit survives, and its clock."""

from __future__ import annotations

from typing import Any

import pymysql

# MySQL and MariaDB name some of them differently; a server tells those that it has, to any user.
_VARIABLES = (
    *("innodb_flush_log_at_trx_commit", "innodb_doublewrite", "log_bin", "sync_binlog", "wsrep_on"),
    *("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled"),
)
_STATUS = (
    *("slaves_connected", "rpl_semi_sync_master_status", "rpl_semi_sync_master_clients"),
    *("rpl_semi_sync_source_status", "rpl_semi_sync_source_clients"),
)


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
