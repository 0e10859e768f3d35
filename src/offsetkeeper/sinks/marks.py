"""The marks of outputs in a database: a table in the schema of the rows, changed in the transaction of the rows.

The mark is read first, so that rows which the table already has are not merged again. It is changed last, by
compare-and-set: its row is locked only during the commit, even if a driver stalls while it merges.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from offsetkeeper.core.mark import OutputMark, check_left
from offsetkeeper.core.model import Guarantee
from offsetkeeper.errors import MarkMoved, Refused
from offsetkeeper.sinks.sink import Joiner, Lander, MarkKey, RolledBack, Seen, Writer, lost_by_target
from offsetkeeper.sinks.table import Rows

log = logging.getLogger("offsetkeeper")
T = TypeVar("T")
TABLE = "offsetkeeper_marks"
_CREATE = (
    "{before}CREATE TABLE IF NOT EXISTS {marks} (group_name {text} NOT NULL, output {text} NOT NULL, "
    "mark {text} NOT NULL, PRIMARY KEY (group_name, output)){after}"
)
_MARK = "SELECT mark FROM {marks} WHERE group_name = {value} AND output = {value}"
_EVERY = "SELECT output, mark FROM {marks} WHERE group_name = {value}"
_SEEN = f"SELECT {{target}}, ({_MARK})"
_NEXT = "UPDATE {marks} SET mark = {value} WHERE group_name = {value} AND output = {value} AND mark = {value}"
_FIRST = "INSERT INTO {marks} (mark, group_name, output) VALUES ({value}, {value}, {value})"
# What a trial writes: a mark of the batch after the one that is there, which no batch has.
_TRIED = ("start", "0" * 16)
# They change nothing, because no group has an empty name, and are refused without the permission.
LOOK = "SELECT mark FROM {marks} WHERE group_name = ''"
_PROBES = (
    LOOK,
    "UPDATE {marks} SET mark = mark WHERE group_name = ''",
    "INSERT INTO {marks} SELECT * FROM {marks} WHERE group_name = ''",
)


class Database(Protocol):
    """The driver's access to a database. Its connections have an `execute` that returns a cursor."""

    @property
    def address(self) -> str:
        """The database without credentials, for messages."""
        ...

    def run(self, work: Callable[[Any], T]) -> T:
        """Return the result of `work`, which may be called twice.

        Raises:
            SinkError: the database could not be reached.
            Refused: the database refused the request.
        """
        ...

    def transaction(self, work: Callable[[Any], None]) -> None:
        """Do `work` in a transaction, and return when it is durable.

        Raises:
            SinkError: nothing was written.
            OutcomeUnknown: the reply to the commit was lost.
        """
        ...

    def request(self, connection: Any) -> AbstractContextManager[None]:
        """Limit the time of the block within `work`, and translate the errors of the database client."""
        ...


Statement = tuple[str, tuple[str, ...]]
Result = tuple[int, Sequence[tuple[Any, ...]]]


class Dialect(NamedTuple):
    """The differences between kinds of databases.

    Attributes:
        quote: the quote character of names.
        value: the placeholder of a value in a statement.
        text: type of a column that keeps every text unchanged.
        before, after: text before and after the statement that creates the table.
        missing: the client's error for a missing table.
        taken: the client's error for an existing row with that key.
        trial: runs statements with their values in a transaction that is rolled back, in one request, with all that is
            put off until the commit. It returns the number of rows and the rows of each; None if another run has the
            mark locked: it does not wait. The second statement reads the mark.
        obstacles: returns triggers, rules and row-level security that may change or hide the table's rows; it gets a
            connection, and the table's schema.
        at_once: statement that checks what is put off until the commit; empty if nothing is.
        probes: statements that show a missing permission.
        check: raises Refused unless the table is committed and rolled back with the rows, and outlives a crash as they
            do; it gets a connection, the address of the database, and the table's schema.
    """

    quote: str
    value: str
    text: str
    before: str
    after: str
    missing: type[Exception]
    taken: type[Exception]
    trial: Callable[[Any, Sequence[Statement]], Sequence[Result] | None]
    obstacles: Callable[[Any, str], Sequence[str]]
    at_once: str = ""
    probes: Sequence[str] = _PROBES
    check: Callable[[Any, str, str], object] = lambda *_: None


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks in one schema of a database.

    Attributes:
        session: session with the database.
        dialect: dialect of the database.
        schema: schema of the table with the rows.
        table: name of that table, the same for each way to write it.
        target: SQL expression for the identity of the table with the rows, as text; empty text if there is none.
    """

    session: Database
    dialect: Dialect
    schema: str
    table: str
    target: str = "''"
    _proven: set[str] = field(default_factory=set, init=False, compare=False)
    _tried: set[MarkKey] = field(default_factory=set, init=False, compare=False)

    def make(self) -> None:
        """Create the table if it does not exist, and check the permissions and the table.

        Raises:
            Refused: a permission is missing, or the table could lose a mark; the message has the statement that helps.
            SinkError: the database could not be reached.
        """
        try:
            self.session.run(self._make)
        except Refused as error:
            raise Refused(
                f"{error}. The output's marks need select, insert and update on {self._table}. If it does not exist, "
                f"this user must be allowed to create it, or another user creates it: "
                + self._sql(_CREATE).removeprefix(self.dialect.before)
            ) from error
        self.session.run(lambda connection: self.dialect.check(connection, self.session.address, self.schema))

    def seen(self, key: MarkKey) -> Seen:
        """See `Lander`. The first look of a run, at its start, also tries whether a mark is kept as it is written.

        Raises:
            Refused: it is not, or it is hidden from this user; nothing was written.
        """
        return self.session.run(lambda connection: self._look(connection, key))

    def mark(self, key: MarkKey) -> OutputMark | None:
        """Return the mark of a key; see `Joiner`."""
        return self.seen(key).mark

    def every(self, group: str) -> dict[str, OutputMark]:
        """Return all marks of a group; see `Joiner`."""
        rows = self.session.run(lambda connection: connection.execute(self._sql(_EVERY), (group,)).fetchall())
        return {_decoded(output): OutputMark.parse(_decoded(text)) for output, text in rows}

    def follow(self, connection: Any, key: MarkKey, mark: OutputMark) -> None:
        """See `Joiner`."""
        with self.session.request(connection):
            found = self._seen(connection, key).mark
            check_left(*key, found, mark.sequence - 1)
            self._change(connection, key, found, mark)

    def land(self, key: MarkKey, seen: Seen, mark: OutputMark, staged: Callable[[Any], None] | None) -> None:
        """See `Lander`; `staged` is the result of `Rows.stage`."""

        def work(connection: Any) -> None:
            with self.session.request(connection):
                if self._seen(connection, key)[::2] != seen[::2]:
                    raise self._moved(key)
            if staged is not None:
                staged(connection)
            with self.session.request(connection):
                self._change(connection, key, seen.mark, mark)

        self.session.transaction(work)

    def _make(self, connection: Any) -> None:
        try:
            self._probe(connection)
        except self.dialect.missing:
            connection.execute(self._sql(_CREATE), ())
            self._probe(connection)

    def _probe(self, connection: Any) -> None:
        for statement in self.dialect.probes:
            connection.execute(self._sql(statement), ())

    def _look(self, connection: Any, key: MarkKey) -> Seen:
        seen = self._seen(connection, key)
        if key not in self._tried:
            self._try_out(connection, key, seen.mark)
            self._tried.add(key)
        return seen

    def _try_out(self, connection: Any, key: MarkKey, mark: OutputMark | None) -> None:
        """Write the next mark, read it back and roll back, by the real statements: a policy may be for some groups."""
        kinds = [_NEXT] if mark else [_FIRST, _NEXT]
        after = OutputMark((mark.sequence if mark else 0) + 1, *_TRIED)
        texts = [str(after._replace(sequence=after.sequence + place)) for place in range(len(kinds))]
        before = [(str(mark),) if mark else (), *((text,) for text in texts[:-1])]
        steps = [(kind, (text, *key, *old)) for kind, text, old in zip(kinds, texts, before, strict=True)]
        asked = [(self._sql(sql), values) for step in steps for sql, values in (step, (_MARK, tuple(key)))]
        taken: Exception | None = None
        results: Sequence[Result] | None = ()
        try:
            results = self.dialect.trial(connection, asked)
        except self.dialect.taken as error:
            taken = error
        if results is None:
            return  # the first landing reads its mark back
        kept = [(changed, _text(rows)) for (changed, _), (_, rows) in zip(results[::2], results[1::2], strict=True)]
        if kept == [(1, text) for text in texts]:
            self._proven.update(kinds)
        elif self._seen(connection, key).mark == mark:  # else another run was faster
            raise self._swallowed(connection, key) if taken is None else self._hidden(connection, key, taken)

    def rehearse(self, _: MarkKey, finish: Callable[[Any], None]) -> None:
        """See `Lander`: the rows are merged in a transaction that is rolled back."""

        def work(connection: Any) -> None:
            finish(connection)
            if self.dialect.at_once:
                connection.execute(self.dialect.at_once)
            raise RolledBack

        with suppress(RolledBack):
            self.session.transaction(work)

    def _seen(self, connection: Any, key: MarkKey) -> Seen:
        [(target, text)] = connection.execute(self._sql(_SEEN), tuple(key)).fetchall()
        mark = None if text is None else OutputMark.parse(_decoded(text))
        return Seen(mark, target=target or "")

    def _change(self, connection: Any, key: MarkKey, before: OutputMark | None, after: OutputMark) -> None:
        statement, old = (_FIRST, ()) if before is None else (_NEXT, (str(before),))
        try:
            changed = connection.execute(self._sql(statement), (str(after), *key, *old)).rowcount
        except self.dialect.taken as error:
            raise self._moved(key) from error
        if changed == 1 and statement in self._proven:
            return
        found = self._seen(connection, key).mark
        if changed == 1 and found == after:  # read back once, where the start could not try it
            self._proven.add(statement)
        elif changed == 1 or found == before:
            raise self._swallowed(connection, key)
        else:
            raise self._moved(key)

    def _swallowed(self, connection: Any, key: MarkKey) -> Refused:
        return Refused(
            f"{self.session.address}: table {self._table} does not keep the mark of group {key.group!r}, output "
            f"{key.output!r}, as it is written: {self._obstacles(connection)} is in the way. Nothing was written: "
            "change it for this table"
        )

    def _hidden(self, connection: Any, key: MarkKey, why: Exception) -> Refused:
        return Refused(
            f"{self.session.address}: table {self._table} has a row for group {key.group!r}, output {key.output!r}, "
            f"that this user cannot see or not write: {self._obstacles(connection)} is in the way "
            f"({' '.join(str(why).split())}). Nothing was written: change it for this table"
        )

    def _obstacles(self, connection: Any) -> str:
        found = self.dialect.obstacles(connection, self.schema)
        return ", or ".join(found) or "a trigger, a rule or row-level security"

    def _moved(self, key: MarkKey) -> MarkMoved:
        return moved(self._table, key, "written")

    def _sql(self, statement: str) -> str:
        names = (self._table, self.target)
        marks, target = (name.replace("%", "%%") if self.dialect.value == "%s" else name for name in names)
        return statement.format(marks=marks, target=target, **self.dialect._asdict())

    @property
    def _table(self) -> str:
        quote = self.dialect.quote
        return ".".join(quote + name.replace(quote, quote * 2) + quote for name in (self.schema, TABLE))


def _decoded(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def _text(rows: Sequence[tuple[Any, ...]]) -> str:
    return _decoded(rows[0][0]) if rows else ""


def moved(table: str, key: MarkKey, what: str) -> MarkMoved:
    """Return the error for a mark that has changed since it was read; `what` names the missed step, as "written"."""
    return MarkMoved(
        f"{table}: another run has changed the mark of group {key.group!r}, output {key.output!r}, at the same time; "
        f"nothing was {what}"
    )


def apart(rows: Rows, marks: Marks, guarantee: Guarantee) -> Writer | Lander:
    """Return how rows are written into a database other than the ledger's.

    Raises:
        Refused: the guarantee is exactly once, but the marks cannot be kept.
        SinkError: the database could not be reached.
    """
    if guarantee is Guarantee.AT_MOST_ONCE:
        return Writer(rows.write)
    try:
        marks.make()
    except Refused as error:
        if guarantee is Guarantee.EXACTLY_ONCE:
            raise
        log.warning("a batch that is tried again may be written twice, as at_least_once allows: %s", error)
        return Writer(rows.write)
    return Lander(rows.stage, marks.seen, marks.land, lost_by_target, marks.rehearse, writes_to=marks.table)


def within(rows: Rows, marks: Marks, moved_from: Callable[[Any, MarkKey], str] = lambda *_: "") -> Joiner:
    """Return how rows are written into the ledger's own database: in its transaction, with a mark beside them.

    The ledger alone makes that exactly once. The mark is for runs of the group with another store, and for a name that
    leads to another table: the start then finds the mark in another schema.

    Args:
        rows: writes the rows.
        marks: the marks beside the table.
        moved_from: returns the schema in which the mark of a key is beside a table of the same name; empty if none is.

    Raises:
        SinkError: the database could not be reached.
    """
    try:
        marks.make()
    except Refused as error:
        log.info("a run of this group with another store would not be noticed: %s", error)
        return Joiner(rows.stage)

    def mark(key: MarkKey) -> OutputMark | None:
        found = marks.mark(key)
        other = "" if found else marks.session.run(lambda connection: moved_from(connection, key))
        if other:
            raise Refused(
                f"{marks.session.address}: the name of the table leads to schema {marks.schema} now, and rows of group "
                f"{key.group!r}, output {key.output!r}, are in the table of that name in schema {other}. Nothing was "
                f"written: give the name with its schema, {other} to go on there, or {marks.schema} to go on here"
            )
        return found

    return Joiner(rows.stage, mark, marks.follow, marks.every)
