"""The store in HBase, through its Thrift server: `hbase://host:9090,host2:9090/namespace`.

    table                         row                              column
    stream_kafka_offsets          <topic>:<group>:<milliseconds>   offsets:<partition>   the next offset to read
    stream_kafka_offsets_ledger   <group>                          ledger:document       all of the ledger
                                  <group>:<slot>                   history:entry         an entry of the history

A Thrift request checks and changes one cell, so one cell is the ledger: a `document`, which is changed only if it is
still, byte by byte, the one that was read. It never expires. The rows that other programs know are a copy: each change
adds a row, later than all rows before, for each topic that it moves. If a crash prevents this, the next process writes
them: its first change publishes all topics. So does one change every ten days, because the rows expire.

The document also has the newest history entries. When there are many, the entries that were in it before the change,
and that count therefore, are copied into slots: an entry's version modulo `history`. Their cells have the document's
time, so that a writer that slept meanwhile does not restore older entries.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from offsetkeeper.clients.pool import Lost
from offsetkeeper.clients.url import read_url
from offsetkeeper.core import environment
from offsetkeeper.core.codec import REMEDY, dump_entry, empty, load_numbered_entry, version_before
from offsetkeeper.core.ledger_document import dump_document, load_document
from offsetkeeper.core.model import Change, Entry, Snapshot
from offsetkeeper.core.outside import load_stored
from offsetkeeper.core.store import version_conflict
from offsetkeeper.errors import (
    CorruptStore,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.stores.base import BaseStore
from offsetkeeper.stores.hbase.connections import CLIENT, BatchMutation, Connections, Mutation, NoTable, rows_of, scan
from offsetkeeper.stores.hbase.tables import DOCUMENT, ENTRY, Tables

log = logging.getLogger(__name__)
_LIMITS = {"buffered": 10_000_000, "framed": 500_000}  # bytes: a cell has 10 MiB, a frame with all of a request 2 MiB
_MOST_ENTRIES, _MOST_BYTES = 16, 65_536  # of the history in a document
_REFRESH_MS = 864_000_000
_AT_ONCE = 16  # entries in one answer, each of up to 10 MB
_NAMES_AT_ONCE = 100


class _Seen(NamedTuple):
    """A document, as it was read.

    Attributes:
        snapshot: the ledger in the document.
        data: its bytes; empty if there is no document.
        time: time of the newest row that was published with it or before, in milliseconds.
        full: time of the last change that published all topics, in milliseconds.
        entries: newest history entries, oldest first, each `<version> <JSON>`.
        published: whether this process has written its rows.
    """

    snapshot: Snapshot
    data: bytes = b""
    time: int = 0
    full: int = 0
    entries: tuple[str, ...] = ()
    published: bool = False


class HBaseStore(BaseStore):
    """Ledgers in HBase.

    Args:
        url: `hbase://host:9090,host2:9090/namespace`, with `?table=` (stream_kafka_offsets; that of the ledgers is
            longer by `_ledger`), `?history=` (entries kept for each group, 1000), `?timeout=` (seconds to wait for an
            answer, 30), `?transport=framed` and `?protocol=compact` where the Thrift server has these.

    Raises:
        SettingsError: the URL is wrong.
    """

    def __init__(self, url: str) -> None:
        read = read_url(url, ("history", "timeout"), ("table", *CLIENT))
        super().__init__(read)
        if read.parts.fragment:
            raise SettingsError(f"{self.address}: write # as %23")
        self._connections = Connections(read)
        namespace, table = unquote(read.parts.path).strip("/"), read.given.get("table", "stream_kafka_offsets")
        self._tables = Tables(self._connections, self.address, namespace, table)
        self._limit = _LIMITS[read.given.get("transport", "buffered")]
        self._made = self._checked = False
        self._unpublished = False  # whether the last publishing failed; the table may have been dropped
        self._seen: dict[str, _Seen] = {}

    def load(self, group: str) -> Snapshot:
        """See `Store.load`."""
        seen = self._seen[group] = self._look(group)
        return seen.snapshot

    def apply(self, change: Change) -> None:
        """See `Store.apply`.

        Raises:
            Refused: the ledger is larger than a cell may be, or a table does not fit or expires; nothing was written.
        """
        group, before = change.after.group, change.before.version
        seen = self._seen.pop(group, None)
        if seen is None or not change.builds_on(seen.snapshot):
            seen = self._look(group)
        if not change.builds_on(seen.snapshot):
            raise self._conflict(change, seen)
        if not before and not self._made:
            self._tables.make()
            self._made = self._checked = True
        elif not self._checked:  # a TTL may have been set since the group's first change
            self._tables.check()
            self._checked = True
        at = max(environment.now_ms(), seen.time + 1)
        every = not seen.published or at - seen.full > _REFRESH_MS
        written = self._write(change, seen, at, at if every else seen.full)
        topics = {tp.topic for tp in change.moves}
        self._seen[group] = written._replace(published=self._publish(written, topics, every=every))

    def history(self, group: str, limit: int = 100) -> Sequence[Entry]:
        """See `Store.history`."""
        seen = self._look(group)
        newest = seen.snapshot.version
        wanted = range(newest, max(newest - min(limit, self._settings.history), 0), -1)
        entries = self._entries(group, ((text, DOCUMENT) for text in reversed(seen.entries)))
        older = wanted[len(entries) :]
        for start in range(0, len(older), _AT_ONCE):
            entries += self._entries(group, self._read_slots(group, older[start : start + _AT_ONCE]))
        return [entry for entry in entries if entry.version in wanted]

    def groups(self) -> Sequence[str]:
        """See `Store.groups`."""
        groups = self._tables.groups()
        try:
            with self._connections.lend() as client:
                start = b""
                while rows := scan(
                    client, self._tables.ledger, start, b"", column=DOCUMENT, most=_NAMES_AT_ONCE, how="keys"
                ):
                    groups |= {row.row.decode("utf-8", "replace") for row in rows}
                    start = rows[-1].row + b"\0"
        except NoTable:
            pass
        return sorted(groups)

    def close(self) -> None:
        """See `Store.close`."""
        self._connections.close()

    def _look(self, group: str, lost: Lost = StoreUnavailable) -> _Seen:
        try:
            with self._connections.lend(lost) as client:
                rows = rows_of(client.getRowWithColumns(self._tables.ledger, group.encode(), [DOCUMENT], {}))
                documents = [row.columns[DOCUMENT] for row in rows]
        except NoTable:
            documents = []
        if not documents:
            positions, newest = self._tables.read(group)
            return _Seen(empty(group, positions), time=newest)
        data, known = documents[0], self._seen.get(group)
        return known if known and known.data == data else self._load(group, data)

    def _load(self, group: str, data: bytes) -> _Seen:
        where = self._where(group)
        snapshot = load_document(data, group, where)
        raw = load_stored(data)
        at, full, entries = raw.get("time", 0), raw.get("full", 0), raw.get("entries", [])
        if type(at) is not int or type(full) is not int or type(entries) is not list:
            raise CorruptStore(f"{where} has no times or entries. {REMEDY}")
        return _Seen(snapshot, data, at, full, tuple(map(str, entries)))

    def _write(self, change: Change, seen: _Seen, at: int, full: int) -> _Seen:
        """Change the document if it is still the one that was read."""
        group = change.after.group
        token = environment.token()  # two writes never have the same bytes, not even two tries of one change

        def document(entries: Sequence[str]) -> bytes:
            return dump_document(change.after, time=at, full=full, entries=entries, write=token).encode()

        every = (*seen.entries, f"{change.after.version} {dump_entry(change.entry)}")
        many = len(every) > _MOST_ENTRIES or sum(map(len, every)) > _MOST_BYTES
        entries = every[-1:] if many else every
        data = document(entries)
        if len(data) > self._limit and len(entries) > 1:  # else a commit may be refused whose begin fitted
            data = document(entries := every[-1:])
        if len(data) > self._limit:
            raise Refused(
                f"{self.address}: group {group!r} was not changed: its ledger has {len(data)} bytes, but HBase allows "
                f"{self._limit} with this transport. Spread the topics over several groups"
            )
        if len(entries) < len(every):
            self._save(group, seen)
        with self._connections.lend(OutcomeUnknown) as client:
            written = Mutation(column=DOCUMENT, value=data)
            done = client.checkAndPut(self._tables.ledger, group.encode(), DOCUMENT, seen.data, written, {})
        # The Thrift server retries by itself, and then finds the result of its first try.
        try:
            found = None if done else self._look(group, OutcomeUnknown)
        except StoreUnavailable as error:  # no new connection
            raise OutcomeUnknown(str(error)) from error
        if found is not None and found.data != data:
            raise self._conflict(change, found)
        return _Seen(change.after, data, at, full, entries)

    def _save(self, group: str, seen: _Seen) -> None:
        """Copy the entries of a document into their slots."""
        rows = [
            BatchMutation(
                row=self._slot(group, version_before(text)), mutations=[Mutation(column=ENTRY, value=text.encode())]
            )
            for text in seen.entries[-self._settings.history :]
        ]
        with self._connections.lend() as client:
            client.mutateRowsTs(self._tables.ledger, rows, seen.time, {})

    def _publish(self, seen: _Seen, topics: Collection[str] = (), *, every: bool) -> bool:
        """Write the rows for other programs; return whether it was done. The change is already durable."""
        snapshot = seen.snapshot
        shown = {tp: each for tp, each in snapshot.positions.items() if every or tp.topic in topics}
        try:
            if self._unpublished:
                self._tables.make()
            if shown:
                self._tables.publish(snapshot.group, shown, seen.time)
            self._unpublished = False
        except OffsetkeeperError as error:
            self._unpublished = True
            log.warning("group %r: some offsets are published with the next change only: %s", snapshot.group, error)
            return False
        return True

    def _entries(self, group: str, texts: Iterable[tuple[str, bytes]]) -> list[Entry]:
        return [load_numbered_entry(text, f"{column.decode()} in {self._where(group)}") for text, column in texts]

    def _read_slots(self, group: str, versions: Sequence[int]) -> list[tuple[str, bytes]]:
        """Return the entries of these versions, in their order; missing entries are left out."""
        keys = [self._slot(group, version) for version in versions]
        with self._connections.lend() as client:
            rows = rows_of(client.getRowsWithColumns(self._tables.ledger, keys, [ENTRY], {}))
            found = {row.row: row.columns[ENTRY].decode("utf-8", "replace") for row in rows}
        return [(found[key], key) for key in keys if key in found]

    def _slot(self, group: str, version: int) -> bytes:
        return f"{group}:{version % self._settings.history}".encode()

    def _where(self, group: str) -> str:
        return f"row {group!r} of {self._tables.ledger.decode()} in {self.address}"

    def _conflict(self, change: Change, found: _Seen) -> VersionConflict:
        """Return the error for a change of another version than the one found, which may be an earlier try of it."""
        if found.snapshot.change_id == change.after.change_id:  # without its reply, its rows were not published
            self._publish(found, every=True)
        return version_conflict(self.address, change, found.snapshot.version)
