"""Ledgers in tables of HBase."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from golden.medium import Medium
from golden.scenario import TOPICS
from golden.values import readable, written
from offsetkeeper.testing.hbase import HBaseServer

_LEDGER = "_ledger"
_TIMED = "history:"  # the store gives these cells a time; others have the server's, which may be past or to come


class HBaseMedium(Medium):
    """Two tables."""

    def __init__(self, server: HBaseServer) -> None:
        self._server = server
        self._table = f"golden_{secrets.token_hex(4)}"
        self.url = f"{server.url()}?table={self._table}"

    def dump(self) -> Any:
        """Read every cell, and how the tables were made; a table is named by what follows the first one's name."""
        return self._ask(lambda client: {name: self._dump(client, name) for name in ("", _LEDGER)})

    def restore(self, content: Any) -> None:
        """Make the tables and write every cell."""

        def create(client: Any) -> None:
            for name, found in content.items():
                client.create_table(self._table + name, found["families"])
                table = client.table(self._table + name)
                for row, cells in found["rows"].items():
                    for column, (value, time) in cells.items():
                        cell = {column.encode(): written(value)}
                        table.put(row.encode(), cell, timestamp=time)

        self._ask(create)

    def positions(self, group: str) -> Mapping[tuple[str, int], int]:
        """Read the newest row of each topic."""
        rows = {topic: self._ask(lambda client, topic=topic: self._newest(client, topic, group)) for topic in TOPICS}
        columns = ((topic, column, value) for topic, row in rows.items() for column, value in row.items())
        return {(topic, int(column.partition(b":")[2])): int(value) for topic, column, value in columns}

    def _newest(self, client: Any, topic: str, group: str) -> dict[bytes, bytes]:
        rows = client.table(self._table).scan(row_prefix=f"{topic}:{group}:".encode(), reverse=True, limit=1)
        return dict(row) if (row := next((row for _, row in rows), None)) else {}

    def _dump(self, client: Any, name: str) -> dict[str, Any]:
        table = client.table(self._table + name)
        families = {
            family.decode(): {"max_versions": each["max_versions"], "time_to_live": each["time_to_live"]}
            for family, each in table.families().items()
        }
        rows = {
            key.decode(): {
                column.decode(): [readable(value), time if column.decode().startswith(_TIMED) else None]
                for column, (value, time) in cells.items()
            }
            for key, cells in table.scan(include_timestamp=True)
        }
        return {"families": families, "rows": rows}

    def _ask(self, question: Any) -> Any:
        client = self._server.client()
        try:
            return question(client)
        finally:
            client.close()
