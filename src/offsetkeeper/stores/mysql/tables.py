"""The tables of a store in MySQL: creates missing tables, and checks tables of other programs."""

from __future__ import annotations

from collections.abc import Sequence

import pymysql
from pymysql.constants import ER

from offsetkeeper.errors import Refused
from offsetkeeper.stores.base import StoreSettings
from offsetkeeper.stores.mysql.connections import Connection, code_of
from offsetkeeper.stores.tables import Tables, table_names

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
_ENGINES = """
    SELECT table_name, engine FROM information_schema.tables
    WHERE table_schema = %s AND table_name IN ({names}) AND COALESCE(engine, '') <> 'InnoDB'"""
_TRIGGERS = """
    SELECT CONCAT('trigger ', trigger_name, ' of table ', event_object_table) FROM information_schema.triggers
    WHERE event_object_schema = %s AND action_timing LIKE %s AND event_object_table IN ({names})"""
_KEYS = """
    SELECT GROUP_CONCAT(column_name ORDER BY column_name) AS parts FROM information_schema.statistics
    WHERE table_schema = %s AND table_name = %s AND non_unique = 0 GROUP BY index_name
    HAVING LOWER(parts) = 'group_id,partition,topic'"""


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


def check_tables(connection: Connection, tables: Tables, settings: StoreSettings, address: str) -> None:
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
