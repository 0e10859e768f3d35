"""What the author of a store tells the suites: how to open it, and how to reach its medium without it.

A store of files and a store on a SQL database have most of that here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import TopicPartition
from offsetkeeper.core.store import Store
from offsetkeeper.stores import open_store
from offsetkeeper.stores.files import folder_of

THOROUGH = int(os.environ.get("OFFSETKEEPER_THOROUGH", "1"))
_NEWER_FORMAT = 99
_OFFSETS = """
    CREATE TABLE IF NOT EXISTS kafka_offsets (topic varchar(249) NOT NULL, group_id varchar(249) NOT NULL,
        partition integer NOT NULL, "offset" bigint NOT NULL, timestamp timestamp DEFAULT CURRENT_TIMESTAMP,
        PRIMARY KEY (group_id, topic, partition))"""
_TABLES = ("kafka_offsets", "offsetkeeper_groups", "offsetkeeper_history")


class Medium:
    """What all suites need.

    Attributes:
        rows_are_positions: whether the rows that other programs know are the positions themselves, so that an edit is a
            conflict. Otherwise they are a copy, and each change publishes it anew.
    """

    rows_are_positions: ClassVar[bool] = True

    def opener(self) -> Callable[[str], Store]:
        """Return the function that opens a store by its URL; other processes must be able to import it."""
        return open_store

    @pytest.fixture
    def url(self) -> str:
        """Return the URL of an empty medium, new for each test."""
        raise NotImplementedError

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """Return the offsets that another program finds for the group."""
        raise NotImplementedError

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """Write an offset as another program does, new or over the one there; None deletes it."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        """Open the store under test."""
        store = self.opener()(url)
        yield store
        store.close()


class FilesMedium:
    """The parts of `Medium` and the suites that know the layout; a subclass says how files are read and written."""

    rows_are_positions = False

    def list_files(self, url: str, folder: str = "") -> Collection[str]:
        """Return the paths, in the store, of the files in one folder, by default of all there are."""
        raise NotImplementedError

    def read_file(self, url: str, path: str) -> bytes:
        """Return what a file holds."""
        raise NotImplementedError

    def write_file(self, url: str, path: str, content: bytes) -> None:
        """Write a file, new or over the one there."""
        raise NotImplementedError

    def newest(self, url: str, group: str) -> str:
        """Return the path of the group's newest file; empty where it has none."""
        return max(self.list_files(url, folder_of(group)), default="")

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """See `Medium`."""
        path = self.newest(url, group)
        return _positions(json.loads(self.read_file(url, path))) if path else {}

    def read_version(self, url: str, group: str) -> int:
        """See `ServedMedium`."""
        return int(json.loads(self.read_file(url, self.newest(url, group)))["version"])

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """See `Medium`. Another program has one file, and knows of no others."""
        path = f"{folder_of(group)}/0.json"
        there = path in self.list_files(url, folder_of(group))
        positions: dict[TopicPartition, int | None] = {}
        positions |= _positions(json.loads(self.read_file(url, path))) if there else {}
        positions[tp] = offset
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), number in positions.items():
            if number is not None:
                offsets.setdefault(topic, {})[str(partition)] = number
        self.write_file(url, path, json.dumps({"offsets": offsets}).encode())

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """See `DurableConformance`."""
        changes: dict[str, Callable[[dict[str, Any]], Any]] = {
            "a negative offset": lambda raw: raw | {"offsets": {"a": {"0": -1}}},
            "a negative partition": lambda raw: raw | {"offsets": {"a": {"-1": 0}}},
            "an impossible topic": lambda raw: raw | {"offsets": {"no topic": {"0": 1}}},
            "no offsets": lambda raw: {key: value for key, value in raw.items() if key != "offsets"},
            "no control record": lambda raw: {"offsets": raw["offsets"]},
            "JSON of another kind": lambda _: [],
            "a newer format": lambda raw: raw | {"format": _NEWER_FORMAT},
            "a negative version": lambda raw: raw | {"version": -1},
            "another file's version": lambda raw: raw | {"version": raw["version"] - 1},
        }
        texts: dict[str, Callable[[bytes], bytes]] = {
            name: partial(_changed, change) for name, change in changes.items()
        }
        texts |= {
            "nothing": lambda _: b"",
            "half of it": lambda text: text[: len(text) // 2],
            "no JSON": lambda _: b"garbage",
            "no text": lambda _: b"\xff\xfe\x00",
        }
        return {name: partial(self._spoil, url, group, text) for name, text in texts.items()}

    def dump(self, url: str) -> object:
        """See `DurableConformance`."""
        return {path: self.read_file(url, path) for path in self.list_files(url)}

    def _spoil(self, url: str, group: str, text: Callable[[bytes], bytes]) -> None:
        path = self.newest(url, group)
        self.write_file(url, path, text(self.read_file(url, path)))


class SqlMedium:
    """The parts of `Medium` and the suites that speak SQL; a subclass says how a statement is run.

    Attributes:
        sink: makes the table for rows that `row_writer` writes to.
    """

    sink = "CREATE TABLE sink_rows (content text)"

    def sql(self, url: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement, with `?` for each parameter, on a connection of its own, commit, and return the rows."""
        raise NotImplementedError

    def group_id(self, group: str) -> str:
        """Return the name of a group in the tables."""
        return group

    def read_positions(self, url: str, group: str) -> Mapping[TopicPartition, int]:
        """See `Medium`."""
        name = self.group_id(group)
        rows = self.sql(url, 'SELECT topic, partition, "offset" FROM kafka_offsets WHERE group_id = ?', name)
        return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}

    def read_version(self, url: str, group: str) -> int:
        """See `ServedMedium`."""
        [(version,)] = self.sql(url, "SELECT version FROM offsetkeeper_groups WHERE group_id = ?", group)
        return int(version)

    def write_position(self, url: str, group: str, tp: TopicPartition, offset: int | None) -> None:
        """See `Medium`. The table is made as others make it, without our column."""
        self.sql(url, _OFFSETS)
        self.sql(url, "DELETE FROM kafka_offsets WHERE group_id = ? AND topic = ? AND partition = ?", group, *tp)
        if offset is not None:
            insert = 'INSERT INTO kafka_offsets (group_id, topic, partition, "offset") VALUES (?, ?, ?, ?)'
            self.sql(url, insert, group, *tp, offset)

    def spoilers(self, url: str, group: str) -> Mapping[str, Callable[[], object]]:
        """See `DurableConformance`."""
        offsets, control = "UPDATE kafka_offsets SET", "UPDATE offsetkeeper_groups SET control ="
        statements = {
            "a negative offset": f'{offsets} "offset" = -1',
            "a negative partition": f"{offsets} partition = -1",
            "an impossible topic": f"{offsets} topic = 'no topic'",
            "no JSON": f"{control} 'garbage'",
            "JSON of another kind": f"{control} '[]'",
            "a newer format": f"""{control} '{{"format":99}}'""",
            "a negative version": "UPDATE offsetkeeper_groups SET version = -1",
        }
        return {
            name: partial(self.sql, url, f"{statement} WHERE group_id = ?", group)
            for name, statement in statements.items()
        }

    def dump(self, url: str) -> object:
        """See `DurableConformance`."""
        return [sorted(map(repr, self.sql(url, f"SELECT * FROM {table}"))) for table in _TABLES]  # noqa: S608

    def row_writer(self, row: str) -> Callable[[Any], object]:
        """See `TransactionConformance`."""
        return methodcaller("execute", f"INSERT INTO sink_rows VALUES ('{row}')")  # noqa: S608

    def read_rows(self, url: str) -> Sequence[str]:
        """See `TransactionConformance`."""
        return [content for (content,) in self.sql(url, "SELECT content FROM sink_rows")]

    def leave_open(self, connection: Any) -> Sequence[Any]:
        """See `TransactionConformance`."""
        many, unread = connection.cursor(), self.unread_cursor(connection)
        many.executemany("INSERT INTO sink_rows VALUES ('kept open')", [(), ()])
        unread.execute("SELECT content FROM sink_rows")
        assert unread.fetchone() == ("kept open",)  # noqa: S101 - a part of the suite
        return many, unread

    def unread_cursor(self, connection: Any) -> Any:
        """Return a cursor whose rows are fetched from the database one by one, not all at once."""
        return connection.cursor()


def with_setting(url: str, setting: str) -> str:
    """Return the URL with one more setting in its query."""
    return f"{url}{'&' if '?' in url else '?'}{setting}"


def ledger_of(store: Store, group: str = "orders") -> Ledger:
    """Return a ledger that waits for a store no longer than a test should."""
    return Ledger(store, group, retry_timeout_s=60)


def _changed(change: Callable[[dict[str, Any]], Any], text: bytes) -> bytes:
    return json.dumps(change(json.loads(text))).encode()


def _positions(raw: dict[str, Any]) -> dict[TopicPartition, int]:
    return {TopicPartition(t, int(number)): at for t, parts in raw["offsets"].items() for number, at in parts.items()}
