"""The tables in HBase: creates them, and reads and writes the rows for other programs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from offsetkeeper.core.codec import REMEDY, load_position
from offsetkeeper.core.offsets import Position, Positions, TopicPartition, check_partition, check_topic
from offsetkeeper.errors import CorruptStore, Refused, SettingsError, StoreUnavailable
from offsetkeeper.stores.hbase.connections import (
    BatchMutation,
    ColumnDescriptor,
    Connections,
    Mutation,
    NoTable,
    Row,
    scan,
)

OFFSETS, LEDGER, HISTORY = b"offsets:", b"ledger:", b"history:"
_FAMILY = b"offsets"  # the whole family; with a colon it would be the column without a name
DOCUMENT, ENTRY = b"ledger:document", b"history:entry"
_AT_ONCE = 100  # keys of rows in one request
_TTL = 2_592_000  # seconds: thirty days, as usual for such tables
_FOREVER = 2**31 - 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}", re.ASCII)
_NUMBER = re.compile(rb"0|[1-9]\d{0,9}")
_OFFSET = re.compile(rb"\s*(\d{1,19})\s*")
_TIME = re.compile(rb"\d{1,18}")


class Tables:
    """The two tables of a store.

    Args:
        connections: to HBase.
        address: of the store, for messages.
        namespace: that the tables are in; empty is HBase's default.
        table: name of the table with the offsets; that of the ledgers is longer by `_ledger`.

    Attributes:
        offsets: full name of the table that people know.
        ledger: full name of the table with the ledgers.

    Raises:
        SettingsError: a name cannot be one.
    """

    def __init__(self, connections: Connections, address: str, namespace: str, table: str) -> None:
        if not _NAME.fullmatch(table) or (namespace and not _NAME.fullmatch(namespace)):
            raise SettingsError(
                f"{address}: namespace and table need names of 1 to 101 characters of a-z A-Z 0-9 _ . -"
            )
        name = f"{namespace}:{table}" if namespace else table
        self.offsets, self.ledger = name.encode(), f"{name}_ledger".encode()
        self._connections = connections
        self._address = address

    def make(self) -> None:
        """Create the missing tables; use existing tables unchanged.

        Raises:
            Refused: a table lacks a column family, or ledgers would expire.
        """
        self._make(self.offsets, {OFFSETS: _TTL})
        self._judge(self._make(self.ledger, {LEDGER: _FOREVER, HISTORY: _FOREVER}))

    def check(self) -> None:
        """Check that the ledgers do not expire. Without the right to ask, or without a master, nothing is said.

        Raises:
            Refused: they do.
        """
        found: Mapping[bytes, Any] = {}
        with suppress(Refused, StoreUnavailable), self._connections.lend() as client:
            found = client.getColumnDescriptors(self.ledger)
        self._judge({family: found[family] for family in (LEDGER, HISTORY) if family in found})

    def _judge(self, found: Mapping[bytes, Any]) -> None:
        if any(family.timeToLive != _FOREVER for family in found.values()):
            raise Refused(
                f"{self._address}: the table {self.ledger.decode()} has a TTL: an expired ledger would let an old run "
                f"commit again. Remove it: alter '{self.ledger.decode()}', {{NAME => 'ledger', TTL => 'FOREVER'}}, "
                "and the same for 'history'"
            )

    def publish(self, group: str, positions: Positions, at_ms: int) -> None:
        """Write a row for each topic of `positions`; they must have all partitions of the topic."""
        topics: dict[str, list[Any]] = {}
        for tp, position in positions.items():
            cell = Mutation(column=OFFSETS + b"%d" % tp.partition, value=b"%d" % position.offset)
            topics.setdefault(tp.topic, []).append(cell)
        rows = [
            BatchMutation(row=f"{topic}:{group}:{at_ms}".encode(), mutations=cells) for topic, cells in topics.items()
        ]
        with self._connections.lend() as client:
            client.mutateRows(self.offsets, rows, {})

    def read(self, group: str) -> tuple[Positions, int]:
        """Return the newest offsets that other programs have stored for a group, and the time of the newest row.

        Raises:
            CorruptStore: a row has other content.
        """
        positions: dict[TopicPartition, Position] = {}
        newest = 0
        try:
            with self._connections.lend() as client:
                found = [row for topic in self._topics(client) for row in self._newest(client, topic, group)]
        except NoTable:
            found = []
        for row in found:
            positions |= dict(self._load(row, column, value, group) for column, value in row.columns.items())
            at = row.row.rpartition(b":")[2]
            newest = max(newest, int(at) if _TIME.fullmatch(at) else 0)
        return positions, newest

    def groups(self) -> set[str]:
        """Return the groups with rows, with few requests for each topic of a group.

        Where a group has rows, those of another group are not seen whose name is the first one's, a colon and more than
        one character, of which the first is that of the time.
        """
        groups = set[str]()
        try:
            with self._connections.lend() as client:
                start = b""
                while rows := scan(client, self.offsets, start, b"", column=_FAMILY, most=_AT_ONCE, how="keys"):
                    for row in rows:  # of many groups, where each has few
                        topic, _, rest = row.row.partition(b":")
                        group, colon, at = rest.rpartition(b":")
                        groups |= {group.decode("utf-8", "replace")} if colon else set()
                        start = b"%b:%b:%b:" % (topic, group, at[:1]) if colon else row.row + b"\0"  # : follows 9
        except NoTable:
            pass
        return groups

    def _make(self, table: bytes, families: Mapping[bytes, int]) -> Mapping[bytes, Any]:
        try:
            with self._connections.lend() as client:
                found: Mapping[bytes, Any] = client.getColumnDescriptors(table)
        except NoTable:
            with self._connections.lend() as client:
                wanted = {
                    name: ColumnDescriptor(name=name, maxVersions=1, timeToLive=ttl, blockCacheEnabled=True)
                    for name, ttl in families.items()
                }
                client.createTable(table, list(wanted.values()))
            return wanted
        for family in families:
            if family not in found:
                raise Refused(
                    f"{self._address}: the table {table.decode()} has no column family {family.decode()[:-1]!r}: "
                    f"add it with alter '{table.decode()}', '{family.decode()[:-1]}', or choose another table with "
                    "?table="
                )
        return {family: found[family] for family in families}

    def _topics(self, client: Any) -> Iterator[bytes]:
        start = b""
        while rows := scan(client, self.offsets, start, b"", column=_FAMILY, most=1, how="keys"):
            topic = rows[0].row.partition(b":")[0]
            yield topic
            start = topic + b";"

    def _newest(self, client: Any, topic: bytes, group: str) -> list[Row]:
        prefix = b"%b:%b:" % (topic, group.encode())
        start = prefix + b":"  # after all digits
        while rows := scan(client, self.offsets, start, prefix, column=_FAMILY, most=1, how="back"):
            other, colon, _ = rows[0].row.removeprefix(prefix).rpartition(b":")
            if not colon:
                return [row for row in rows if row.row.startswith(prefix)]
            start = b"%b%b9\xff" % (prefix, other)  # before all rows of that group, whose name goes on: : follows 9
        return []

    def _load(self, row: Row, column: bytes, value: bytes, group: str) -> tuple[TopicPartition, Position]:
        where = f"{self._address}, group {group!r}, its last row"
        number, offset = column.removeprefix(OFFSETS), _OFFSET.fullmatch(value)
        topic = row.row.partition(b":")[0].decode("utf-8", "replace")
        try:
            where = f"{where} of topic {check_topic(topic)}"
            tp = check_partition(TopicPartition(topic, int(number) if _NUMBER.fullmatch(number) else -1))
        except SettingsError:  # the original message quotes the name
            raise CorruptStore(f"{where} has a key or a column that is not that of a partition. {REMEDY}") from None
        return tp, load_position(int(offset[1]) if offset else value[:200], None, f"{where} column {tp.partition}")
