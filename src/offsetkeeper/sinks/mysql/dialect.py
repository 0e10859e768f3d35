"""How the marks beside a table are kept in MySQL and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence

import pymysql

from offsetkeeper.clients.mysql import Connection, code_of
from offsetkeeper.clients.mysql_server import check_engine, triggers
from offsetkeeper.sinks.marks import TABLE, Dialect, Result, Statement

_LOCKED = (1020, 1205, 1213, 3572)  # another run has the row, or was faster


def _tried(connection: Connection, statements: Sequence[Statement]) -> Sequence[Result] | None:
    """See `Dialect.trial`. It is one request, so that no lock stays where the driver stalls."""
    with connection.cursor() as cursor:
        texts = [cursor.mogrify(*each) for each in statements]
    try:
        results = connection.run(["START TRANSACTION", f"{texts[1]} FOR UPDATE NOWAIT", *texts, "ROLLBACK"])
    except pymysql.Error as error:
        if connection.open:
            connection.rollback()
        if code_of(error) in _LOCKED:
            return None
        raise
    return results[2:-1]


DIALECT = Dialect(
    quote="`",
    value="%s",
    text="varbinary(1000)",  # compared byte by byte; texts ignore trailing spaces
    before="",
    after=" ENGINE = InnoDB",
    missing=pymysql.err.ProgrammingError,
    taken=pymysql.err.IntegrityError,
    trial=_tried,
    obstacles=lambda connection, schema: triggers(connection, schema, [TABLE]),
    check=lambda connection, address, schema: check_engine(connection, address, schema, [TABLE]),
)
