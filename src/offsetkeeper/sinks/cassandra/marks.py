"""The marks of outputs in a keyspace: rows of a table beside those of the rows, each changed by compare-and-set.

A landing takes two steps. The first begins it: it gives the rows a write time that is above all that were given before.
The second, when all rows are written, changes the mark. Each step succeeds only on what was seen, so of two runs that
have seen the same, one goes on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from offsetkeeper.core import environment
from offsetkeeper.core.mark import OutputMark
from offsetkeeper.core.retry import retry
from offsetkeeper.errors import Refused
from offsetkeeper.sinks.cassandra.columns import quoted
from offsetkeeper.sinks.cassandra.session import Session
from offsetkeeper.sinks.marks import TABLE, moved
from offsetkeeper.sinks.sink import MarkKey

_CREATE = (
    "CREATE TABLE IF NOT EXISTS {marks} (group_name text, output text, mark text, begun text, write_time bigint, "
    "PRIMARY KEY ((group_name, output)))"
)
_THERE = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
_SEEN = "SELECT mark, begun, write_time FROM {marks} WHERE group_name = %s AND output = %s"
_FIRST = "INSERT INTO {marks} (mark, begun, write_time, group_name, output) VALUES (%s, %s, %s, %s, %s) IF NOT EXISTS"
_NEXT = (
    "UPDATE {marks} SET mark = %s, begun = %s, write_time = %s WHERE group_name = %s AND output = %s "
    "IF mark = %s AND write_time = %s"
)
_NOBODY = MarkKey("", "")  # no group has an empty name
_NEW_S = 10.0


class State(NamedTuple):
    """A row of the marks.

    Attributes:
        mark: as text, or None before the first batch has landed.
        begun: the mark of the batch whose rows are being written, or were when a run died; None where there is none.
        write_time: the newest that was given, in microseconds since 1970.
    """

    mark: str | None
    begun: str | None
    write_time: int | None


class CassandraMarks(NamedTuple):
    """The marks in one keyspace.

    Attributes:
        session: of the cluster.
        keyspace: that the table of the rows is in.
    """

    session: Session
    keyspace: str

    def make(self) -> None:
        """Make the table where it is not there, and check the permissions.

        Raises:
            Refused: one lacks; the message tells the statement that helps.
            SinkError: the cluster could not be reached.
        """
        create = self._sql(_CREATE)
        try:
            if not self.session.rows(_THERE, (self.keyspace, TABLE)):
                self.session.change(lambda session: session.execute(create), decides=False)
            retry(_is_new, _NEW_S, lambda _: self._try_out())
        except Refused as error:
            raise Refused(
                f"{error}. The output's marks need SELECT and MODIFY on {self._table}; where it is not there, this "
                f"user must be allowed to make it, or another one makes it: {create}"
            ) from error

    def _try_out(self) -> None:
        nowhere = State(None, None, 0)  # a row that is not there has none of it, so nothing is written
        self.session.run(lambda session: self._look(session, _NOBODY))
        self.session.run(lambda session: session.execute(*self._change(_NOBODY, nowhere, nowhere)))

    def look(self, key: MarkKey) -> State | None:
        """Return the row of a key, as all changes that were acknowledged have left it."""
        state: State | None = self.session.run(lambda session: self._look(session, key))
        return state

    def change(self, key: MarkKey, before: State | None, after: State, *, decides: bool) -> None:
        """Change the row of a key, unless it is another than the one seen.

        Raises:
            MarkMoved: it is; nothing was changed.
            OutcomeUnknown: it may be changed, where that decides something.
            SinkError: nothing was changed; or where nothing is decided by it, it does not matter.
        """
        statement = self._insert(key, after) if before is None else self._change(key, before, after)
        if not self.session.change(lambda session: session.execute(*statement).was_applied, decides=decides):
            raise moved(self._table, key, "landed")

    def _look(self, session: Any, key: MarkKey) -> State | None:
        from cassandra.query import SimpleStatement  # noqa: PLC0415 - a client library, loaded on use

        serial = session.cluster.profile_manager.default.serial_consistency_level
        found = session.execute(SimpleStatement(self._sql(_SEEN), consistency_level=serial), tuple(key)).all()
        return State(*found[0]) if found else None

    def _insert(self, key: MarkKey, state: State) -> tuple[str, tuple[Any, ...]]:
        return self._sql(_FIRST), (*state, *key)

    def _change(self, key: MarkKey, before: State, after: State) -> tuple[str, tuple[Any, ...]]:
        return self._sql(_NEXT), (*after, *key, before.mark, before.write_time)

    def _sql(self, statement: str) -> str:
        return statement.format(marks=self._table)

    @property
    def _table(self) -> str:
        return f"{quoted(self.keyspace)}.{TABLE}"


def next_time(seen: State | None) -> int:
    """Return a write time above all that were given before: now, unless the clock is behind one of them."""
    given = 0 if seen is None else seen.write_time or 0
    return max(environment.now_ms() * 1000, given + 1)


def parsed(state: State | None) -> OutputMark | None:
    """Return the mark in a row.

    Raises:
        MarkError: something else has written it.
    """
    return None if state is None or state.mark is None else OutputMark.parse(state.mark)


def _is_new(error: Exception) -> bool:
    """Whether a table is listed and cannot be used yet, as another run makes it at this moment."""
    return isinstance(error, Refused) and f"table {TABLE} does not exist" in str(error)
