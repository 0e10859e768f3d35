"""Code shared by the stores on SQL tables: names of the tables, reading them, and checking the rows.

    kafka_offsets         topic, group_id, partition, "offset", timestamp, topic_id    one row for each topic partition
    offsetkeeper_groups   group_id, version, control                                   one row for each group
    offsetkeeper_history  group_id, version, entry                                     one row for each change

The first table has the layout that other programs read and write. Its rows are the positions themselves, not a copy;
`topic_id` is NULL in rows of other programs. If this table has another name, the other two are named after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from offsetkeeper.clients.pool import Pool
from offsetkeeper.clients.url import ClientUrl, UrlSettings
from offsetkeeper.core.codec import REMEDY, empty, load_control, load_entry, load_position
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition, check_topic
from offsetkeeper.core.store import not_changed, version_conflict
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, SettingsError, VersionConflict
from offsetkeeper.stores.base import BaseStore

_POSITION, _CONTROL = 1, 0
# Control record and positions in one statement, so that both are of one moment. {group} is the parameter.
LOAD = f"""
    SELECT {_CONTROL}, control, version, NULL, NULL, group_id FROM {{groups}} WHERE group_id = ?
    UNION ALL
    SELECT {_POSITION}, topic, partition, "offset", topic_id, group_id FROM {{offsets}} WHERE group_id = ?
"""  # noqa: S608 - only the numbers above are inserted
GROUPS = "SELECT group_id FROM {groups} UNION SELECT group_id FROM {offsets}"
# After a control record was deleted, versions start again; older entries are hidden until they are overwritten.
# Without a control row, the whole history is shown.
HISTORY = """
    SELECT version, entry FROM {history} WHERE group_id = ?
    AND version <= COALESCE((SELECT version FROM {groups} WHERE group_id = ?), ?) AND version <= ?
    ORDER BY version DESC LIMIT ?
"""
_PREFIX = "offsetkeeper"
_USUAL = (UrlSettings().table, f"{_PREFIX}_groups", f"{_PREFIX}_history")
_LAST = 2**63 - 1
_PAGE = 50  # entries in one answer: of strangers each may have megabytes
VERSION = "SELECT version FROM {groups} WHERE group_id = ?"


@dataclass(frozen=True, slots=True)
class Tables:
    """The three tables of one store, each name quoted for SQL.

    Attributes:
        offsets, groups, history: the names.
        where: the store and the table of positions, for messages.
    """

    offsets: str
    groups: str
    history: str
    where: str

    def sql(self, statement: str) -> str:
        """Return the statement with the names filled in for `{offsets}`, `{groups}` and `{history}`."""
        return statement.format(offsets=self.offsets, groups=self.groups, history=self.history)

    def snapshot(self, group: str, name: str, rows: Iterable[Sequence[Any]]) -> Snapshot:
        """Return the ledger from the rows of `LOAD`, which asked for the `group_id` of this name.

        Raises:
            CorruptStore: a row cannot be part of a ledger; the message names it.
        """
        positions: dict[TopicPartition, Position] = {}
        control: Sequence[Any] | None = None
        for kind, *row, found in rows:
            self._check_name(name, found)
            if kind == _CONTROL:
                control = row
            else:
                self._add(positions, group, row)
        if control is None:
            return empty(group, positions)
        text, version = control[:2]
        return load_control(text, group, version, positions, f"{self.groups} of {self.where}, group {group!r},")

    def entries(self, group: str, rows: Iterable[Sequence[Any]]) -> Sequence[Entry]:
        """Return the history entries from the rows of `HISTORY`, newest first.

        Raises:
            CorruptStore: a row is not a history entry.
        """
        where = f"{self.history} of {self.where}, group {group!r}, version"
        found = [load_entry(text, version, f"{where} {version}") for version, text in rows]
        return sorted(found, key=lambda entry: entry.version, reverse=True)

    def _check_name(self, name: str, found: object) -> None:
        """Check that a row has the very `group_id` that was asked for; a column of fixed width adds spaces."""
        if isinstance(found, str) and found.rstrip(" ") != name.rstrip(" "):
            raise CorruptStore(
                f"{self.where}: to its collation, group_id {found!r} is the same as {name!r}, so groups would be mixed "
                "up. Give the columns group_id and topic a collation that tells them apart, or use another table with "
                "?table="
            )

    def _add(self, positions: dict[TopicPartition, Position], group: str, row: Sequence[Any]) -> None:
        topic, partition, offset, topic_id = row
        tp = TopicPartition(topic, partition)
        where = f"{self.where}, group {group!r}, topic {topic!r}, partition {partition!r}"
        if type(partition) is not int or partition < 0:
            raise CorruptStore(f"{where}: this is not a partition number. {REMEDY}")
        if tp in positions:
            raise CorruptStore(f"{where} has two rows: keep the right one. {REMEDY}")
        try:
            check_topic(topic)
        except SettingsError as error:
            raise CorruptStore(f"{where}: {error}. {REMEDY}") from error
        positions[tp] = load_position(offset, topic_id, where)


class TableStore(BaseStore):
    """The common part of the stores on SQL tables. A subclass opens connections and reads rows."""

    _connections: Pool[Any]
    _LOAD = LOAD
    _GROUPS = GROUPS

    def __init__(self, url: ClientUrl, quote: str = '"') -> None:
        super().__init__(url)
        self._tables = name_tables(self._settings, self.address, quote)

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        return self._snapshot(group, self._name(group))

    def _snapshot(self, group: str, name: str) -> Snapshot:
        return self._tables.snapshot(group, name, self._read(6, self._LOAD, *[name] * self._LOAD.count("?")))

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        entries, last = list[Entry](), _LAST
        while page := min(_PAGE, limit - len(entries)):
            rows = self._read(2, HISTORY, self._name(group), self._name(group), _LAST, last, page)
            entries += self._tables.entries(group, rows)
            if len(rows) < page:
                break
            last = entries[-1].version - 1
        return entries

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        return sorted({self._group(name) for (name,) in self._read(1, self._GROUPS) if isinstance(name, str)})

    def close(self) -> None:
        """See `Store.close`."""
        self._connections.close()

    def _name(self, group: str) -> str:
        """Return the value of `group_id` in the rows of a group."""
        return group

    def _group(self, name: str) -> str:
        """Return the group of the rows with this `group_id`."""
        return name

    def _read(self, columns: int, statement: str, *parameters: str | int) -> Sequence[tuple[Any, ...]]:
        """Return the rows of a statement with names as in `Tables.sql`, and with `?` for each parameter.

        A server's rows are checked with `of_columns` before its connection can be lent again.
        """
        raise NotImplementedError

    def _obstacles(self) -> Sequence[str]:
        """Return policies and triggers that may hide rows of the tables from this user, or drop rows that it writes."""
        return ()

    def _refused(self, change: Change, why: str) -> VersionConflict:
        """Return the error for a change that did not find its rows, or was not stored.

        Args:
            change: the change; it is rolled back or about to be.
            why: the reason, unless the ledger that this user sees is still as it was: then no other writer was first.
        """
        with suppress(OffsetkeeperError):
            found = self._obstacles()
            if found and self._is_as_before(change):
                why = f"no other writer was first: {', or '.join(found)} hides its rows or swallows what is written"
        return not_changed(self.address, change, why)

    def _is_as_before(self, change: Change) -> bool:
        before, found = change.before, TableStore.load(self, change.after.group)
        same = (found.version, found.change_id) == (before.version, before.change_id)
        return same and all(found.rows.get(tp) == move.before for tp, move in change.moves.items())

    def _check_version(self, change: Change, rows: Sequence[tuple[int]]) -> None:
        """Raise VersionConflict unless the rows of `VERSION` have the version that the change builds on."""
        found = rows[0][0] if rows else 0
        if found != change.before.version:
            raise version_conflict(self.address, change, found)


def of_columns(columns: int, rows: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
    """Return the rows of a statement; ValueError if they are of another one, as behind a confused proxy."""
    if any(len(row) != columns for row in rows):
        raise ValueError("rows of another statement")
    return rows


def table_names(settings: UrlSettings) -> tuple[str, str, str]:
    """Return the names of the tables for these settings, without a schema: offsets, groups, history."""
    table = settings.table
    return _USUAL if table == UrlSettings().table else (table, f"{table}_groups", f"{table}_history")


def name_tables(settings: UrlSettings, address: str, quote: str = '"') -> Tables:
    """Return the names of the tables for these settings and the store at `address`, in the quotes of its dialect.

    Raises:
        SettingsError: one of them is also a table of the store with the usual names.
    """
    check_apart(settings.table, any_case=address.startswith("sqlite:"))
    schema = f"{_quoted(settings.schema, quote)}." if settings.schema else ""
    offsets, groups, history = (schema + _quoted(name, quote) for name in table_names(settings))
    return Tables(offsets, groups, history, f"table {offsets} in {address}")


def check_apart(table: str, *, any_case: bool) -> None:
    """Check that a store with this table of positions shares no table with the one that has the usual names.

    Args:
        table: name of the table.
        any_case: whether names that differ in capitals alone are one table there.

    Raises:
        SettingsError: it does; the message says how to go on.
    """
    usual, groups, history = _USUAL
    found = table.casefold() if any_case else table
    if table == usual or found not in {_PREFIX, usual}:
        return
    told = f"table={table} in the store's URL is refused: a store without ?table= has"
    if found == usual:
        raise SettingsError(
            f"{told} the same table of positions, as capitals make no other name there. But its control records are in "
            f"{groups}, and those of this store in {table}_groups, so records come twice. First stop all runs. If "
            f"there is no {groups}, rename {table}_groups to {groups} and {table}_history to {history}; else copy the "
            "rows of both there, where their groups differ. Leave ?table= out"
        )
    raise SettingsError(
        f"{told} tables of the same names ({', '.join(_USUAL)}), so both share ledgers, and records come twice. If "
        f"there are no ledgers in {table} yet, use another name. Otherwise first stop all runs. If none is in {usual}, "
        f"rename the tables to these three, and leave ?table= out. If there are some in both, they have the same "
        f"{groups} and {history}: copy the rows of {table} into {usual}, where their groups differ, and leave ?table= "
        "out"
    )


def _quoted(name: str, quote: str) -> str:
    return quote + name.replace(quote, quote * 2) + quote
