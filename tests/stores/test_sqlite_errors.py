"""The store in a SQLite file: files it cannot use, locks, tables of others, names."""
# ruff: noqa: PT012 - what is raised in a block is what is tested

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from offsetkeeper.clients.sqlite import Connection as SQLiteConnection
from offsetkeeper.clients.sqlite import database_identity
from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import OffsetRange, Position, TopicPartition
from offsetkeeper.errors import (
    CorruptStore,
    NotAllowed,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
    VersionConflict,
)
from offsetkeeper.stores.sqlite import SQLiteStore
from stores.tables_suite import Tables, TablesSuite

A = TopicPartition("a", 0)
NOBODY = 65534


def rewind(snapshot: Snapshot, offset: int) -> Change:
    return rules.decide(snapshot, rules.Rewind({A: Position(offset)}), rules.Author("me", "me", 0, "id"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "offsets.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(f"sqlite:///{path}?timeout=0.2")
    yield store
    store.close()


class TestTables(TablesSuite):
    """A file."""

    theirs = 'CREATE TABLE kafka_offsets (topic, group_id, partition, "offset", timestamp)'

    without_case = (
        (
            'CREATE TABLE kafka_offsets (topic TEXT, group_id TEXT COLLATE NOCASE, partition INTEGER, "offset" INTEGER,'
            " timestamp TEXT, PRIMARY KEY (group_id, topic, partition))"
        ),
    )

    @pytest.fixture
    def tables(self, path: Path) -> Tables:
        """See `TablesSuite`."""

        def ask(statement: str) -> list[Any]:
            with closing(sqlite3.connect(path)) as other, other:
                return other.execute(statement).fetchall()

        return Tables(lambda more: SQLiteStore(f"sqlite:///{path}?timeout=20&{more}"), ask)


def test_a_file_that_is_gone_is_no_store_without_groups(tmp_path: Path) -> None:
    """Who watches the groups would take them for gone, one by one. A file that was never there is a new store."""
    path = tmp_path / "offsets.db"
    store = SQLiteStore(f"sqlite:///{path}")
    assert store.groups() == []
    store.apply(rewind(Snapshot("g"), 5))
    assert store.groups() == ["g"]
    away = path.rename(tmp_path / "away.db")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"offsets\.db is gone: it was there before"):
            store.groups()
    away.rename(path)
    assert store.groups() == ["g"]
    store.close()


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"folder .* does not exist"):
        SQLiteStore(f"sqlite:///{tmp_path}/none/offsets.db").load("g")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_file_can_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be a file: File name too long"):
        SQLiteStore(f"sqlite:///{tmp_path}/{'a' * 300}.db").load("g")


def test_a_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not a file"):
        SQLiteStore(f"sqlite:///{tmp_path}").load("g")


def test_a_file_of_another_kind_is_left_as_it_is(store: SQLiteStore, path: Path) -> None:
    path.write_text("these are my notes\n" * 100)
    with pytest.raises(CorruptStore, match="not a database"):
        store.load("g")
    assert path.read_text() == "these are my notes\n" * 100


def test_a_damaged_database_is_told(store: SQLiteStore, path: Path) -> None:
    """Each page after the first is overwritten, as after a bad disk."""
    store.apply(rewind(Snapshot("g"), 1))
    store.close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(CorruptStore, match="malformed"):
        store.load("g")


def test_a_locked_file_is_waited_for_and_then_unavailable(store: SQLiteStore, path: Path) -> None:
    store.apply(rewind(Snapshot("g"), 1))
    seen = store.load("g")
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            StoreUnavailable, match=r"another writer, of this process or another, held the lock for 0\.2 s"
        ):
            store.apply(rewind(seen, 2))
        assert store.load("g") == seen
    store.apply(rewind(seen, 2))


def test_a_lock_that_is_given_back_in_time_is_waited_for(path: Path) -> None:
    store = SQLiteStore(f"sqlite:///{path}?timeout=20")
    store.apply(rewind(Snapshot("g"), 1))
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        later = threading.Timer(0.2, other.execute, ("COMMIT",))
        later.start()
        store.apply(rewind(store.load("g"), 2))
        later.join()
    store.close()


def as_nobody(pipe: Connection, path: Path) -> None:
    """Try to write as a user who may only read."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    store = SQLiteStore(f"sqlite:///{path}")
    try:
        store.apply(rewind(Snapshot("g"), 2))
    except OffsetkeeperError as error:
        pipe.send((type(error).__name__, str(error)))
    else:
        pipe.send(("nothing", ""))


def test_a_file_that_may_only_be_read_is_told(store: SQLiteStore, tmp_path: Path) -> None:
    """In a process of a user without rights: root could write all the same."""
    store.apply(rewind(Snapshot("g"), 1))
    store.close()
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o555 if folder == tmp_path else folder.stat().st_mode | 0o055)
    (tmp_path / "offsets.db").chmod(0o444)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=as_nobody, args=(theirs, tmp_path / "offsets.db"))
    child.start()
    assert ours.poll(60)
    name, message = ours.recv()
    child.join()
    assert name == "Refused"
    assert "permissions" in message


def test_a_writer_that_comes_while_an_unopened_file_is_read_is_noticed(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of the read, and gone before its end; what was read may be of two versions then."""
    store.apply(rewind(Snapshot("g"), 1))
    store.close()
    connections, connect = store._connections, sqlite3.connect
    os.utime(path, (0, 0))  # else both writes may be of one tick of the clock

    def late(*arguments: Any, **how: Any) -> Any:
        opened = connect(*arguments, **how)
        monkeypatch.setattr(sqlite3, "connect", connect)
        other = SQLiteStore(f"sqlite:///{path}")
        other.apply(rewind(other.load("g"), 2))
        other.close()
        return opened

    assert connections.read_unopened("SELECT version FROM offsetkeeper_groups", ()) == [(1,)]
    monkeypatch.setattr(sqlite3, "connect", late)
    with pytest.raises(StoreUnavailable, match="a writer opened the file while it was read"):
        connections.read_unopened("SELECT version FROM offsetkeeper_groups", ())


def test_to_look_makes_no_file(store: SQLiteStore, path: Path) -> None:
    assert (store.load("g"), list(store.history("g")), list(store.groups())) == (Snapshot("g"), [], [])
    assert not path.exists()


@pytest.mark.parametrize("restored", [True, False], ids=["a backup is put there", "it is moved away"])
def test_a_run_does_not_go_on_in_a_file_that_is_there_no_more(
    store: SQLiteStore, path: Path, *, restored: bool
) -> None:
    """Its kept connection still writes to the old one, which nobody will ever read."""
    store.apply(rewind(Snapshot("g"), 1))
    store.close()  # so that all is in the one file
    backup = path.with_suffix(".backup")
    shutil.copy(path, backup)
    store.apply(rewind(store.load("g"), 2))
    seen = store.load("g")
    for each in path.parent.glob(f"{path.name}*"):  # also -wal and -shm, which belong to the old one
        each.unlink()
    if restored:
        backup.rename(path)
    with pytest.raises(VersionConflict):
        store.apply(rewind(seen, 3))
    assert store.load("g").positions == ({A: Position(1)} if restored else {})


def test_rows_of_a_table_without_our_column_are_taken_over(store: SQLiteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute('CREATE TABLE kafka_offsets (topic, group_id, partition, "offset", timestamp)')
        other.execute("INSERT INTO kafka_offsets VALUES ('a', 'g', 0, 7, 'long ago')")
    assert store.load("g") == Snapshot("g", positions={A: Position(7)})
    store.apply(rewind(store.load("g"), 8))
    assert store.load("g").positions == {A: Position(8)}


@pytest.mark.parametrize(
    ("table", "when"),
    [
        ("kafka_offsets", "insert"),
        ("kafka_offsets", "update"),
        ("offsetkeeper_groups", "update"),
        ("offsetkeeper_history", "insert"),
    ],
)
def test_a_trigger_that_swallows_a_part_of_a_change_takes_all_of_it_and_is_named(
    store: SQLiteStore, path: Path, table: str, when: str
) -> None:
    """Else positions stay behind, and a batch comes twice."""
    ledger = Ledger(store, "g")
    ledger.acquire()
    ledger.place({TopicPartition("a", 0): Position(5)}, "a test")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"create trigger odd before {when} on {table} begin select raise(ignore); end")
    before = store.load("g")

    def change() -> None:
        if when == "insert":
            ledger.place({TopicPartition("b", 0): Position(9)}, "a test")
        else:
            ledger.commit(ledger.batch([OffsetRange("a", 0, 5, 8)]))

    with pytest.raises(VersionConflict, match=f"no other writer was first: trigger odd of table {table}"):
        change()
    assert store.load("g") == before


def test_two_rows_of_one_partition_are_told(store: SQLiteStore, path: Path) -> None:
    """A table of others may have no primary key."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute('CREATE TABLE kafka_offsets (topic, group_id, partition, "offset", timestamp, topic_id)')
        for offset in (7, 8):
            other.execute("INSERT INTO kafka_offsets VALUES ('a', 'g', 0, ?, 'long ago', NULL)", (offset,))
    with pytest.raises(CorruptStore, match="two rows"):
        store.load("g")


def test_a_table_that_lacks_a_column_is_told_in_sqlite(store: SQLiteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE kafka_offsets (topic, group_id, part)")
    with pytest.raises(Refused, match="partition"):
        store.load("g")


def test_commits_are_as_durable_as_sqlite_can_make_them(store: SQLiteStore) -> None:
    with store.transaction(rewind(Snapshot("g"), 1)) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_error_in_a_block_that_was_refused_to_commit_keeps_its_cause(store: SQLiteStore) -> None:
    """The same error without the refusal comes out as it is."""
    with (
        pytest.raises(sqlite3.OperationalError, match="no such table"),
        store.transaction(rewind(Snapshot("g"), 1)) as connection,
    ):
        connection.execute("INSERT INTO nowhere VALUES (1)")
    assert store.load("g") == Snapshot("g")


def test_a_transaction_that_sqlite_itself_has_rolled_back_is_told(store: SQLiteStore, path: Path) -> None:
    """What the block wrote is gone, and what it writes afterwards would be stored at once."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE sink_rows (n INTEGER PRIMARY KEY)")
        other.execute("INSERT INTO sink_rows VALUES (1)")
    with pytest.raises(NotAllowed), store.transaction(rewind(Snapshot("g"), 1)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (2)")
        with suppress(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO sink_rows VALUES (1)")
    assert store.load("g") == Snapshot("g")


@pytest.mark.parametrize("way", ["execute", "executemany", "executescript", "cursor"])
def test_a_block_stores_nothing_more_once_sqlite_has_rolled_back(store: SQLiteStore, path: Path, way: str) -> None:
    """Each row would be stored by itself, and once more at each start."""
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE sink_rows (n INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
        other.execute("INSERT INTO sink_rows VALUES (1)")
    insert = "INSERT INTO sink_rows VALUES (?)"
    with pytest.raises(NotAllowed, match="or by SQLite itself"), store.transaction(rewind(Snapshot("g"), 1)) as lent:
        for n in (2, 1, 3, 4):
            with suppress(sqlite3.IntegrityError, NotAllowed):
                if way == "executemany":
                    lent.executemany(insert, [(n,)])
                elif way == "executescript":
                    lent.executescript(f"INSERT INTO sink_rows VALUES ({n})")  # noqa: S608 - ours
                else:
                    (lent.cursor() if way == "cursor" else lent).execute(insert, (n,))
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT n FROM sink_rows").fetchall() == [(1,)]


@pytest.mark.parametrize("failure", [True, False])
def test_a_result_that_a_block_leaves_unread_does_not_make_the_file_grow(
    store: SQLiteStore, path: Path, *, failure: bool
) -> None:
    """A reader that never ends keeps SQLite from emptying the log beside the file."""
    store.apply(rewind(Snapshot("g"), 1))
    with (
        pytest.raises(ZeroDivisionError) if failure else nullcontext(),
        store.transaction(rewind(store.load("g"), 2)) as connection,
    ):
        kept = connection.execute("SELECT 1 FROM offsetkeeper_groups UNION ALL SELECT 2 FROM offsetkeeper_groups")
        assert kept.fetchone() == (1,)
        if failure:
            raise ZeroDivisionError
    store.apply(rewind(store.load("g"), 3))
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    with pytest.raises(sqlite3.ProgrammingError):
        kept.fetchone()


def test_two_files_have_two_identities(tmp_path: Path) -> None:
    stores = [SQLiteStore(f"sqlite:///{tmp_path}/{name}.db") for name in ("a", "b")]
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    with closing(sqlite3.connect(tmp_path / "link.db")) as linked:
        assert stores[0].identity() == database_identity(linked) != stores[1].identity()
    for store in stores:
        store.close()


def test_databases_in_memory_are_all_different() -> None:
    with closing(sqlite3.connect(":memory:")) as one, closing(sqlite3.connect(":memory:")) as two:
        assert database_identity(one) != database_identity(two)


class BreakingDisk(SQLiteConnection):
    """Commits, and then says that it did not. A fake, as no disk fails in the midst of a commit when it is asked to."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement."""
        done = super().execute(sql, parameters)
        if sql == "COMMIT":
            raise sqlite3.OperationalError("disk I/O error")
        return done


def test_a_commit_that_failed_half_way_may_be_written(tmp_path: Path) -> None:
    store = SQLiteStore(f"sqlite:///{tmp_path}/offsets.db")
    store.groups()
    with closing(sqlite3.connect(store.path, isolation_level=None, factory=BreakingDisk)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutcomeUnknown, match="failed half-way"):
            store._connections.commit(connection)
