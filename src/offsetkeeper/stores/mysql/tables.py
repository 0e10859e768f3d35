"""The tables of a store in MySQL: creates missing tables, and checks tables of other programs."""

from __future__ import annotations

import pymysql
from pymysql.constants import ER

from offsetkeeper.clients.mysql import Connection, code_of
from offsetkeeper.clients.mysql_server import check_engine
from offsetkeeper.clients.url import UrlSettings
from offsetkeeper.errors import Refused
from offsetkeeper.stores.tables import Tables, check_apart, table_names

_PROBE = """
    SELECT o.topic_id, o.group_id, o.topic, o.`partition`, o.`offset`, o.`timestamp`, g.control, h.entry
    FROM {offsets} o, {groups} g, {history} h WHERE 1 = 0"""
_OPTIONS = "ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_CREATE = (
    f"""CREATE TABLE IF NOT EXISTS {{offsets}} (
        topic varchar(249) NOT NULL, group_id varchar(249) NOT NULL, `partition` int NOT NULL, `offset` bigint NOT NULL,
        `timestamp` timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, topic_id varchar(249),
        PRIMARY KEY (group_id, topic, `partition`)) {_OPTIONS}""",
    f"""CREATE TABLE IF NOT EXISTS {{groups}} (
        group_id varchar(249) PRIMARY KEY, version bigint NOT NULL, control longtext NOT NULL) {_OPTIONS}""",
    f"""CREATE TABLE IF NOT EXISTS {{history}} (
        group_id varchar(249) NOT NULL, version bigint NOT NULL, entry longtext NOT NULL,
        PRIMARY KEY (group_id, version)) {_OPTIONS}""",
)
_EXTEND = "ALTER TABLE {offsets} ADD COLUMN topic_id varchar(249) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_KEYS = """
    SELECT GROUP_CONCAT(column_name ORDER BY column_name) AS parts FROM information_schema.statistics
    WHERE table_schema = %s AND table_name = %s AND non_unique = 0 GROUP BY index_name
    HAVING LOWER(parts) = 'group_id,partition,topic'"""


def check_name(connection: Connection, settings: UrlSettings) -> None:
    """Check the name of the table of positions, by whether the server tells capitals apart; see `check_apart`."""
    [(folded,)] = connection.execute("SELECT @@lower_case_table_names").fetchall()
    check_apart(settings.table, any_case=bool(folded))


def make_tables(connection: Connection, tables: Tables) -> None:
    """Create missing tables. A user without the right to create tables is enough if all tables exist."""
    try:
        connection.execute(tables.sql(_PROBE))
    except pymysql.Error as error:
        if code_of(error) not in {ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR}:
            raise
        for statement in _CREATE:
            connection.execute(tables.sql(statement))
        _add_topic_id(connection, tables)


def check_tables(connection: Connection, tables: Tables, settings: UrlSettings, address: str) -> None:
    """Check the engine of the tables, and that the table of positions has unique partitions: others may have made it.

    Raises:
        Refused: one of these is wrong; the message has the statement that helps.
    """
    check_engine(connection, address, settings.schema, table_names(settings))
    if not connection.execute(_KEYS, (settings.schema, settings.table)).fetchall():
        raise Refused(
            f"{tables.where} could have a partition twice: "
            f"ALTER TABLE {tables.offsets} ADD UNIQUE KEY (group_id, topic, `partition`)"
        )


def _add_topic_id(connection: Connection, tables: Tables) -> None:
    """Add our column to another program's table. If the column exists, no right to alter tables is needed."""
    try:
        connection.execute(tables.sql(_PROBE))
    except pymysql.Error as error:
        if code_of(error) != ER.BAD_FIELD_ERROR:
            raise
        try:
            connection.execute(tables.sql(_EXTEND))
        except pymysql.Error as extended:
            if code_of(extended) != ER.DUP_FIELDNAME:  # another process was faster
                raise
        connection.execute(tables.sql(_PROBE))
