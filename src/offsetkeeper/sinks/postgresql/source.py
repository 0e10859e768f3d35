"""Where the rows of a batch are when PostgreSQL merges them: in the staging table, or sent along as arrays.

Arrays are the values of a column in PostgreSQL's own binary format, as the tasks have made them (`task.arrays`). So
they need no table, and no right to make one; and a value means what it means in COPY.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg import sql
from psycopg.adapt import Dumper
from psycopg.pq import Format

from offsetkeeper.clients.postgresql import Connection

Result = tuple[int, list[tuple[Any, ...]]]  # number of rows, and the rows
_HEAD, _SIZE = 20, slice(12, 16)  # bytes before the first element, and which of them are the number of elements


class _Array(bytes):
    """An array in PostgreSQL's binary format, which has its type in it."""


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


class Source(NamedTuple):
    """Where the rows are.

    Attributes:
        rows: what stands behind FROM: the rows, with columns `c0` and so on.
        staged: number of rows of each attempt in the staging table; nothing if the rows are in `arrays` alone.
        arrays: the values of each column, for `$1` and so on in `rows`.
    """

    rows: sql.Composable
    staged: Mapping[int, int]
    arrays: Sequence[bytes] = ()

    def ask(
        self, connection: Connection, statements: Sequence[sql.Composed], last: Sequence[sql.Composed] = ()
    ) -> list[Result]:
        """Run statements, and return the results. It is one request if no arrays are sent along.

        Args:
            connection: a connection to the database.
            statements: each reads `rows`.
            last: further statements, which do not.
        """
        if self.arrays:
            sent = [_result_of(self._sent(connection, each)) for each in statements]
            return [*sent, *(_result_of(connection.execute(each)) for each in last)]
        cursor = connection.execute(sql.SQL("; ").join([*statements, *last]))
        results = [_result_of(cursor)]
        while cursor.nextset():
            results.append(_result_of(cursor))
        return results

    def _sent(self, connection: Connection, statement: sql.Composed) -> psycopg.RawCursor[Any]:
        cursor = psycopg.RawCursor(connection)  # % in a name is no placeholder
        cursor.adapters.register_dumper(_Array, _ArrayDumper)
        return cursor.execute(statement, list(map(_Array, self.arrays)))


def sent_along(answers: Sequence[Sequence[bytes]], types: Mapping[int, str]) -> Source:
    """Return columns of the rows in answers, which have an array for each column; `types` are those of the columns."""
    arrays = [_joined([each[place] for each in answers]) for place in types]
    values = [sql.SQL(f"${number}::{kind}[]") for number, kind in enumerate(types.values(), 1)]
    names = [sql.Identifier(f"c{place}") for place in types]
    rows = sql.SQL("unnest({}) few ({})").format(sql.SQL(", ").join(values), sql.SQL(", ").join(names))
    return Source(rows, {}, arrays)


def _joined(arrays: Sequence[bytes]) -> bytes:
    """Return one array of the elements of all."""
    head = bytearray(arrays[0][:_HEAD])
    head[_SIZE] = sum(int.from_bytes(each[_SIZE], "big") for each in arrays).to_bytes(4, "big")
    return b"".join([head, *(each[_HEAD:] for each in arrays)])


def _result_of(cursor: psycopg.Cursor[Any]) -> Result:
    return cursor.rowcount, cursor.fetchall() if cursor.description else []
