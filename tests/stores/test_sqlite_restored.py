"""A SQLite file that is overwritten by its backup, as `cp` does, while processes have it open.

Such a file keeps its inode. Its `-wal` is deleted, as the page says, so an open connection goes on in one that nobody
else sees, and that SQLite merges into the file when the connection is closed.
"""
# ruff: noqa: PT012 - what is raised in a block is what is tested

from __future__ import annotations

import gc
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pytest

from offsetkeeper.clients.sqlite import Connection
from offsetkeeper.core import rules
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, SinkError, StoreUnavailable, VersionConflict
from offsetkeeper.sinks.sqlite import SQLiteDatabase
from offsetkeeper.stores.sqlite import SQLiteStore
from offsetkeeper.testing.rivals import rival

A = TopicPartition("a", 0)


def rewind(snapshot: Snapshot, offset: int) -> Change:
    return rules.decide(snapshot, rules.Rewind({A: Position(offset)}), rules.Author("me", "me", 0, f"at {offset}"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "offsets.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    """A store at offset 1, of which there is a backup, then at offset 2."""
    store = SQLiteStore(f"sqlite:///{path}")
    store.apply(rewind(Snapshot("g"), 1))
    store.close()  # so that all is in the one file
    shutil.copy(path, backup(path))
    store.apply(rewind(store.load("g"), 2))
    yield store
    store.close()


def backup(path: Path) -> Path:
    return path.with_suffix(".backup")


def restore(path: Path) -> None:
    """Put the backup into the file, and delete what lies beside it."""
    with backup(path).open("rb") as old, path.open("r+b") as file:
        shutil.copyfileobj(old, file)
        file.truncate()
    for kind in ("wal", "shm"):
        path.with_name(f"{path.name}-{kind}").unlink(missing_ok=True)


def offset(store: SQLiteStore) -> int:
    return store.load("g").positions[A].offset


def driver(pipe: Pipe, path: Path, moved_to: int) -> None:
    """Read the ledger and say its offset; when told, move it, and say what came of it; when told, end."""
    store = SQLiteStore(f"sqlite:///{path}")
    seen = store.load("g")
    pipe.send(seen.positions[A].offset)
    pipe.recv()
    try:
        store.apply(rewind(seen, moved_to))
    except OffsetkeeperError as error:
        pipe.send(type(error).__name__)
    else:
        pipe.send("moved")
    pipe.recv()
    store.close()
    pipe.send("ended")


def watcher(pipe: Pipe, path: Path, looks: int, end: str) -> None:
    """Say the offset some times, each time when told, as the page of `serve` does; when told again, end."""
    store = SQLiteStore(f"sqlite:///{path}")
    for _ in range(looks):
        pipe.send(offset(store))
        pipe.recv()
    if end == "closes its store":
        store.close()
    del store
    gc.collect()  # as the end of the process does
    pipe.send("ended")


@contextmanager
def newer_run(path: Path) -> Iterator[None]:
    """Let a run move the restored file to offset 7; it ends after the block."""
    with rival(driver, path, 7) as run:
        assert run.hear() == 1
        run.go_on()
        assert run.hear() == "moved"
        yield
        run.go_on()
        assert run.hear() == "ended"


@pytest.mark.parametrize("merged", [False, True], ids=["", "all was merged before"])
def test_of_two_runs_only_the_one_that_knows_the_restored_file_moves_it(
    store: SQLiteStore, path: Path, *, merged: bool
) -> None:
    """And the end of the older one, which comes last, changes nothing."""
    store.close()
    with rival(driver, path, 3) as older:
        assert older.hear() == 2
        if merged:
            with closing(sqlite3.connect(path)) as other:
                other.execute("PRAGMA wal_checkpoint(PASSIVE)")
        restore(path)
        with newer_run(path):
            older.go_on()
            assert older.hear() == "VersionConflict"
        older.go_on()
        assert older.hear() == "ended"
    assert offset(store) == 7


@pytest.mark.parametrize("end", ["closes its store", "does not"])
def test_a_run_that_ends_before_it_looks_again_leaves_the_restored_file_as_it_is(
    store: SQLiteStore, path: Path, end: str
) -> None:
    store.close()
    with rival(watcher, path, 1, end) as older:
        assert older.hear() == 2
        store.apply(rewind(store.load("g"), 3))  # in the -wal that both have
        store.close()
        restore(path)
        with newer_run(path):
            pass
        older.go_on()
        assert older.hear() == "ended"
    assert offset(store) == 7


def test_a_program_that_only_reads_sees_the_restored_file_and_never_undoes_it(store: SQLiteStore, path: Path) -> None:
    with rival(watcher, path, 2, "closes its store") as reader:
        assert reader.hear() == 2
        store.close()
        restore(path)
        reader.go_on()
        assert reader.hear() == 1
        reader.go_on()
        assert reader.hear() == "ended"
    assert offset(store) == 1


def test_a_lone_run_is_refused_its_next_change(store: SQLiteStore, path: Path) -> None:
    """Else it goes on in a log that is in no folder any more, and what it was told is lost with its end."""
    seen = store.load("g")
    restore(path)
    with pytest.raises(VersionConflict):
        store.apply(rewind(seen, 3))
    store.apply(rewind(store.load("g"), 4))
    with closing(SQLiteStore(f"sqlite:///{path}")) as other:
        assert offset(other) == 4


def test_a_transaction_in_which_the_file_is_restored_stores_nothing(store: SQLiteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE sink_rows (n)")
    seen = store.load("g")
    with pytest.raises(StoreUnavailable, match="was replaced"), store.transaction(rewind(seen, 3)) as connection:
        connection.execute("INSERT INTO sink_rows VALUES (1)")
        restore(path)
    assert offset(store) == 1
    with store.transaction(rewind(store.load("g"), 5)) as connection:
        assert connection.execute("SELECT name FROM sqlite_schema WHERE name = 'sink_rows'").fetchall() == []
    assert offset(store) == 5


def test_a_transaction_may_be_the_first_to_see_the_restored_file(store: SQLiteStore, path: Path) -> None:
    """It has a connection of its own, beside the one that the store keeps."""
    seen = store.load("g")
    restore(path)
    with pytest.raises(VersionConflict), store.transaction(rewind(seen, 3)):
        pass
    assert offset(store) == 1


class LateLoss(Connection):
    """A connection whose `-wal` is deleted right before it commits."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run a statement."""
        if sql == "COMMIT" and self._path:
            restore(self._path)
        return super().execute(sql, parameters)


def test_a_commit_into_a_log_that_was_deleted_meanwhile_is_not_acknowledged(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = store.load("g")
    store.close()
    with closing(SQLiteStore(f"sqlite:///{path}")) as other:
        monkeypatch.setattr("offsetkeeper.stores.sqlite.Connection", LateLoss)
        with pytest.raises(OutcomeUnknown, match="was replaced"):
            other.apply(rewind(seen, 3))
    monkeypatch.undo()
    assert offset(store) == 1


def test_another_store_of_the_process_that_still_uses_the_old_file_is_told(store: SQLiteStore, path: Path) -> None:
    """SQLite would share what it knows of the old log with each new connection of the process."""
    with closing(SQLiteStore(f"sqlite:///{path}")) as other:
        with other._connections.lend():
            restore(path)
            with pytest.raises(StoreUnavailable, match="close it, or end the process"):
                store.load("g")
            with pytest.raises(SinkError, match="the file was replaced while a store of this process has it open"):
                SQLiteDatabase(path, "here").run(lambda connection: connection.execute("select 1"))
        assert offset(store) == 1


def test_a_store_that_is_not_used_holds_up_no_other_one_of_the_process(store: SQLiteStore, path: Path) -> None:
    with closing(SQLiteStore(f"sqlite:///{path}")) as other:
        assert offset(other) == 2
        store.close()
        restore(path)
        assert (offset(store), offset(other)) == (1, 1)
