"""A change of a ledger as SQL for both MySQL and MariaDB, with few statements for many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from offsetkeeper.core.codec import control_mark, dump_control, dump_entry
from offsetkeeper.core.model import Change, Move
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.stores.tables import Tables

Literal = Callable[[Any], str]
Moved = tuple[TopicPartition, Move]

_ROWS = 900  # rows of one statement; MariaDB turns lists of 1,000 values into tables
_FEW = 4  # rows that are faster changed one by one
# Compares byte by byte, whatever the table's collation and trailing spaces are. It uses no index, so it is always
# combined with a plain comparison.
EXACTLY = "CAST(CONVERT({column} USING utf8mb4) AS BINARY) = CAST({value} AS BINARY)"
_FIRST = "INSERT INTO {groups} (group_id, version, control) VALUES (%(group)s, 1, %(control)s)"
_NEXT = """
    UPDATE {groups} SET control = %(control)s, version = version + 1
    WHERE group_id = %(group)s AND version = %(version)s AND LOCATE(%(mark)s, control) > 0"""
_RECORD = """
    INSERT INTO {history} (group_id, version, entry) VALUES (%(group)s, %(version)s + 1, %(entry)s)
    ON DUPLICATE KEY UPDATE entry = VALUES(entry)"""
_PRUNE = "DELETE FROM {history} WHERE group_id = %(group)s AND version <= %(oldest)s"
_ADD = "INSERT INTO {offsets} (group_id, topic, `partition`, `offset`, topic_id) VALUES "
_MOVE = """ ON DUPLICATE KEY UPDATE
    `offset` = VALUES(`offset`), topic_id = VALUES(topic_id), `timestamp` = CURRENT_TIMESTAMP"""
_COUNT = "SELECT COUNT(*) FROM {offsets} WHERE"
_UPDATE = "UPDATE {offsets} SET"


class Check(NamedTuple):
    """A statement, and the number of rows that it must find or change."""

    statement: str
    rows: int


class Statements(NamedTuple):
    """The statements of a change within a transaction: first all checks, which must all hold, then all writes."""

    checks: list[Check]
    writes: list[str]


def statements(name: str, change: Change, tables: Tables, kept: int, literal: Literal) -> Statements:
    """Return the statements of a change.

    Args:
        name: the group's name in the tables.
        change: the change.
        tables: names of the tables.
        kept: number of history entries.
        literal: writes a value as SQL.
    """
    values = {
        "group": literal(name),
        "version": str(change.before.version),
        "mark": literal(control_mark(change.before)),
        "control": literal(dump_control(change.after)),
        "entry": literal(dump_entry(change.entry)),
        "oldest": str(change.after.version - kept),
    }
    step = _NEXT if change.before.version else _FIRST
    moved = [(tp, move) for tp, move in change.moves.items() if move.before is not None]
    added = [(tp, move) for tp, move in change.moves.items() if move.before is None]
    rows = _Rows(values["group"], tables, literal)
    one_by_one, many = (moved, moved[:0]) if len(moved) <= _FEW else (moved[:0], moved)
    return Statements(
        [
            Check(tables.sql(step) % values, 1),
            *(Check(rows.update(each), 1) for each in one_by_one),
            *(Check(rows.count(part), len(part)) for part in _parts(many)),
        ],
        [
            *(rows.insert(part) + _MOVE for part in _parts(many)),
            *(rows.insert(part) for part in _parts(added)),
            *(tables.sql(each) % values for each in (_RECORD, _PRUNE)),
        ],
    )


class _Rows:
    """Writes rows of positions; each text is made a literal once."""

    def __init__(self, group: str, tables: Tables, literal: Literal) -> None:
        self._group = group
        self._tables = tables
        self._literal = literal
        self._texts: dict[str | None, str] = {}

    def insert(self, part: Sequence[Moved]) -> str:
        """Return the statement that inserts the rows."""
        group, text = self._group, self._text
        rows = [
            f"({group},{text(tp.topic)},{tp.partition},{move.after.offset},{text(move.after.topic_id)})"
            for tp, move in part
        ]
        return self._tables.sql(_ADD) + ",".join(rows)

    def update(self, row: Moved) -> str:
        """Return the statement that changes the row if it still has the offset that the change expects."""
        after = row[1].after
        return (
            f"{self._tables.sql(_UPDATE)} `offset` = {after.offset}, topic_id = {self._text(after.topic_id)}, "
            f"`timestamp` = CURRENT_TIMESTAMP WHERE {self._where([row])}"
        )

    def count(self, part: Sequence[Moved]) -> str:
        """Return the statement that counts and locks the rows that still have the expected offsets."""
        return f"{self._tables.sql(_COUNT)} {self._where(part)} FOR UPDATE"

    def _where(self, part: Sequence[Moved]) -> str:
        topics: dict[str, list[tuple[int, int]]] = {}
        for (topic, partition), move in part:
            topics.setdefault(topic, []).append((partition, -1 if move.before is None else move.before.offset))
        there = " OR ".join(self._there(topic, pairs) for topic, pairs in topics.items())
        exactly = EXACTLY.format(column="group_id", value=self._group)
        return f"group_id = {self._group} AND {exactly} AND ({there})"

    def _there(self, topic: str, pairs: Sequence[tuple[int, int]]) -> str:
        name = self._text(topic)
        exactly = EXACTLY.format(column="topic", value=name)
        numbers = ",".join(str(partition) for partition, _ in pairs)  # for the index
        offsets = ",".join(f"({partition},{offset})" for partition, offset in pairs)
        return f"topic = {name} AND {exactly} AND `partition` IN ({numbers}) AND (`partition`, `offset`) IN ({offsets})"

    def _text(self, text: str | None) -> str:
        if text not in self._texts:
            self._texts[text] = self._literal(text)
        return self._texts[text]


def _parts(rows: Sequence[Moved]) -> Iterator[Sequence[Moved]]:
    return (rows[start : start + _ROWS] for start in range(0, len(rows), _ROWS))


def packets(wanted: Iterable[str], limit: int) -> Iterator[list[str]]:
    """Yield the statements in as few requests as possible, each of at most `limit` bytes."""
    packet: list[str] = []
    total = 0
    for statement in wanted:
        size = len(statement.encode()) + 1
        if packet and total + size > limit:
            yield packet
            packet, total = [], 0
        packet.append(statement)
        total += size
    if packet:
        yield packet


def largest(wanted: Statements) -> int:
    """Return the bytes of the longest statement."""
    return max(len(each.encode()) for each in (*(check.statement for check in wanted.checks), *wanted.writes))
