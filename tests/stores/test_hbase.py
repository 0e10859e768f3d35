"""The store in HBase: the suites, and the layout as others see it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from offsetkeeper.model import TopicPartition
from offsetkeeper.stores.hbase import HBaseStore
from offsetkeeper.testing.conformance import DurableConformance, HistoryConformance, StoreConformance
from offsetkeeper.testing.conformance.medium import ledger_of
from offsetkeeper.testing.hbase import HBaseServer

TABLE = f"offsets_{secrets.token_hex(4)}"
LEDGER = f"{TABLE}_ledger"


@pytest.fixture(scope="module")
def bare(hbase_server: HBaseServer) -> Iterator[Any]:
    """A bare client, and tables: making them for each test would take a second."""
    client = hbase_server.client()
    store = HBaseStore(f"{hbase_server.url()}?table={TABLE}")
    ledger_of(store, "first").acquire()
    store.close()
    yield client
    client.close()


def erase(bare: Any) -> None:
    """Delete all rows."""
    for name, families in ((TABLE, [b"offsets"]), (LEDGER, [b"ledger", b"history"])):
        table = bare.table(name)
        with table.batch() as batch:
            for key, _ in table.scan(filter=b"KeyOnlyFilter()"):
                batch.delete(key, families)
        assert not list(table.scan(limit=1))


class TestHBase(StoreConformance, HistoryConformance, DurableConformance):
    """The suites."""

    bare: Any

    @pytest.fixture(autouse=True)
    def _reach(self, bare: Any) -> None:
        self.bare = bare

    @pytest.fixture
    def url(self, hbase_server: HBaseServer, bare: Any) -> str:
        """Tables without rows."""
        erase(bare)
        return f"{hbase_server.url()}?table={TABLE}"

    def newest(self, group: str, topic: str) -> tuple[bytes, dict[bytes, bytes]]:
        """Find the newest row by a reverse scan."""
        rows = self.bare.table(TABLE).scan(row_prefix=f"{topic}:{group}:".encode(), reverse=True, limit=1)
        return next(iter(rows), (b"", {}))

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """Read the newest row of each topic."""
        del url
        keys = [key.decode() for key, _ in self.bare.table(TABLE).scan(filter=b"KeyOnlyFilter()")]
        topics = {key.split(":")[0] for key in keys if key.split(":")[1] == group}
        rows = {topic: self.newest(group, topic)[1] for topic in topics}
        return {
            TopicPartition(topic, int(column.removeprefix(b"offsets:"))): int(value)
            for topic, row in rows.items()
            for column, value in row.items()
        }

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Add a row with all of the topic; to delete a cell, change the newest."""
        del url
        key, row = self.newest(group, tp.topic)
        column = b"offsets:%d" % tp.partition
        if offset is None:
            self.bare.table(TABLE).delete(key, [column])
            return
        at = time.time_ns() // 1_000_000
        self.bare.table(TABLE).put(f"{tp.topic}:{group}:{at}".encode(), {**row, column: b"%d" % offset})

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """Spoil the cell that holds the ledger."""
        del url
        texts = {
            "no JSON": b"garbage",
            "nothing": b"",
            "JSON of another kind": b"[]",
            "no offsets": b'{"version": 2}',
            "a newer format": b'{"offsets": {}, "format": 99, "version": 2}',
            "no time": b'{"offsets": {}, "time": "noon"}',
            "no entries": b'{"offsets": {}, "entries": 3}',
        }
        put = self.bare.table(LEDGER).put
        return {name: partial(put, group.encode(), {b"ledger:document": text}) for name, text in texts.items()}

    def dump(self, url: str) -> object:
        """Read every row."""
        del url
        return [list(self.bare.table(name).scan()) for name in (TABLE, LEDGER)]
