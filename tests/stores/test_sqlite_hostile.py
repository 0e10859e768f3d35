"""Other users write beside the file of SQLite, or into it: nothing is waited for without an end, nothing is quoted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from fixtures.foul import FOUL, SECRET, at_once
from offsetkeeper.core import rules
from offsetkeeper.core.model import Snapshot
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, Refused
from offsetkeeper.sinks.sqlite import SQLiteDatabase
from offsetkeeper.stores import open_store
from offsetkeeper.stores.sqlite import SQLiteStore
from offsetkeeper.testing.rivals import PARTITION

pytestmark = pytest.mark.timeout(30)  # a FIFO is waited for without an end
MOST = 1 << 20
LARGE, LOOK = "UPDATE {0} SET {1} = CAST(zeroblob({2}) AS TEXT)", "SELECT {1} FROM {0}"
VIEW = """
    CREATE VIEW {0} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n {1})
    SELECT x AS group_id, 1 AS version, '' AS control, 't' AS topic, 0 AS partition, 5 AS "offset", '' AS topic_id,
        '' AS entry FROM n"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a store, which no process has open."""
    found = tmp_path / "store" / "offsets.db"
    found.parent.mkdir()
    store = SQLiteStore(f"sqlite:///{found}")
    moves = rules.Rewind({PARTITION: Position(1)})
    store.apply(rules.decide(Snapshot("g"), moves, rules.Author("me", "me", 0, "1")))
    store.close()
    return found


@pytest.mark.parametrize("what", FOUL)
def test_what_lies_in_place_of_the_file_is_refused(path: Path, what: str) -> None:
    path.unlink()
    FOUL[what](path)
    with at_once(), pytest.raises(OffsetkeeperError) as raised:
        open_store(f"sqlite:///{path}").load("g")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("kind", ["journal", "wal", "shm"])
@pytest.mark.parametrize("what", sorted(FOUL, reverse=True))  # a FIFO comes late: SQLite's wait for it cannot be ended
def test_what_lies_beside_the_file_is_refused_or_harmless(path: Path, kind: str, what: str) -> None:
    FOUL[what](path.with_name(f"offsets.db-{kind}"))
    link = path.parent.parent / "link.db"
    link.symlink_to(path)
    store, output = SQLiteStore(f"sqlite:///{link}"), SQLiteDatabase(link, "here")
    for look in (lambda: store.load("g"), lambda: output.run(lambda c: c.execute("SELECT * FROM sqlite_schema"))):
        with at_once():
            if what == "50 GB":
                look()  # a regular file is SQLite's to judge
            else:
                with pytest.raises(Refused, match=f"offsets.db-{kind} is not a regular file: take it away"):
                    look()


@pytest.mark.parametrize("table", ["offsetkeeper_groups", "offsetkeeper_history", "kafka_offsets", "Kafka_Offsets"])
@pytest.mark.parametrize("end", ["LIMIT 3", ""], ids=["short", "endless"])  # SQLite's work on the second has no end
def test_a_view_without_an_end_in_place_of_a_table_is_refused(path: Path, table: str, end: str) -> None:
    store = SQLiteStore(f"sqlite:///{path}")
    store.load("g")  # keeps a connection
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"ALTER TABLE {table} RENAME TO away")
        connection.execute(VIEW.format(table, end))
    for each in (store, SQLiteStore(f"sqlite:///{path}")):
        for act in (lambda each=each: each.load("g"), each.groups, lambda each=each: each.history("g")):
            with at_once(), pytest.raises(CorruptStore, match=f"{table} is a view, not a table"):
                act()


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest value is smaller, as the test's disk may be slow."""
    monkeypatch.setattr("offsetkeeper.stores.sqlite.LARGEST_STORED", MOST)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("offsetkeeper_groups", "control"),
        ("offsetkeeper_groups", "group_id"),
        ("offsetkeeper_history", "entry"),
        ("kafka_offsets", "topic"),
        ("kafka_offsets", "topic_id"),
    ],
)
def test_a_value_that_no_ledger_has_is_not_read(path: Path, table: str, column: str) -> None:
    """SQLite allows values of a billion bytes."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(LARGE.format(table, column, MOST + 1))
    store = SQLiteStore(f"sqlite:///{path}")
    unopened = store._connections.read_unopened
    acts: list[Callable[[], object]] = [
        store.groups if column == "group_id" else partial(store.history if "history" in table else store.load, "g"),
        lambda: unopened(LOOK.format(table, column), ()),
    ]
    for act in acts:
        with (
            at_once(),
            pytest.raises(CorruptStore, match=f"a value has more than {MOST} bytes, and none of a ledger has"),
        ):
            act()
        store.close()


@pytest.mark.usefixtures("little")
def test_a_block_of_the_user_may_store_larger_values(path: Path) -> None:
    store = SQLiteStore(f"sqlite:///{path}")
    change = rules.decide(store.load("g"), rules.Rewind({PARTITION: Position(2)}), rules.Author("me", "me", 0, "2"))
    with store.transaction(change) as connection:
        connection.execute("CREATE TABLE files AS SELECT zeroblob(?) AS content", (MOST + 1,))
    assert store.load("g").positions[PARTITION].offset == 2
    with closing(sqlite3.connect(path)) as plain:
        assert plain.execute("SELECT length(content) FROM files").fetchall() == [(MOST + 1,)]
