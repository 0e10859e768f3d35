"""Stores of files: a writer that sleeps at any point of a change while others make many, and files are deleted."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.ledger_document import dump_document
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position, TopicPartition
from offsetkeeper.errors import OffsetkeeperError, OutcomeUnknown, StoreUnavailable, VersionConflict
from offsetkeeper.stores.files import _AT_ONCE, _KEPT, LedgerFiles, _Seen
from offsetkeeper.stores.folder import FolderStore

A = TopicPartition("a", 0)
LIMIT_S = 60
_numbers = itertools.count()


class Died(Exception):
    """A process died."""


class Watched:
    """The files of a store, with something to be done right before its nth call."""

    def __init__(self, files: LedgerFiles, nth: int, meanwhile: Callable[[], object]) -> None:
        self.calls: list[str] = []
        self._files, self._nth, self._meanwhile = files, nth, meanwhile

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if len(self.calls) == self._nth:
                self._meanwhile()
            return getattr(self._files, name)(*arguments)

        return call


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}?history=3"
    FolderStore(url).init()
    return url


@pytest.fixture
def store(url: str) -> FolderStore:
    """The store of those who do not sleep."""
    return FolderStore(url)


def change_of(snapshot: Snapshot) -> Change:
    """Return a change with an id of its own."""
    number = next(_numbers)
    return rules.decide(snapshot, rules.Rewind({A: Position(number)}), rules.Author("me", "me", 0, f"id {number}"))


def make(store: FolderStore, count: int) -> list[str]:
    """Make changes; return the id of each version that was built on."""
    seen = []
    for _ in range(count):
        found = store.load("g")
        seen.append(found.change_id)
        store.apply(change_of(found))
    return seen


def numbers(root: Path) -> Sequence[int]:
    return sorted(int(path.stem) for path in (root / "g").glob("*.json"))


def leave_stray(store: FolderStore, version: int) -> None:
    """Leave what another stale writer does that dies, where the file of the version has been deleted."""
    if version and not store._files.stamp("g", f"{version:012}.json"):
        stray = change_of(Snapshot("g", version=version - 1)).after
        store._files.create("g", f"{version:012}.json", dump_document(stray, entry={}, previous="").encode())


@contextmanager
def sleeper(url: str, nth: int, meanwhile: Callable[[], object]) -> Iterator[tuple[FolderStore, Watched]]:
    """Open a store that sleeps before its nth call."""
    store = FolderStore(url)
    watched = Watched(store._files, nth, meanwhile)
    store._files = watched
    yield store, watched
    store.close()


@pytest.mark.parametrize("fresh", [True, False], ids=["looks first", "has seen the newest"])
@pytest.mark.parametrize("before", [0, 1, 30])
@pytest.mark.parametrize("asleep", [1, _KEPT - 1, _KEPT, 3 * _KEPT])
@pytest.mark.parametrize("nth", range(1, 8))
def test_what_a_writer_is_told_when_it_wakes_up_is_true(
    store: FolderStore, url: str, *, nth: int, asleep: int, before: int, fresh: bool
) -> None:
    """Told that it wrote, others have built on it; told that it did not, nobody ever sees its change."""
    make(store, before)
    seen: list[str] = []

    def others() -> None:
        seen.extend(make(store, asleep))
        leave_stray(store, before)

    with sleeper(url, 0, lambda: None) as (writer, watched):
        change = change_of(writer.load("g"))
        writer._seen.clear() if fresh else None
        looked = len(watched.calls)
        watched._nth, watched._meanwhile = looked + nth, others
        told = "written"
        try:
            writer.apply(change)
        except (VersionConflict, OutcomeUnknown) as error:
            told = type(error).__name__
    end = store.load("g")
    seen += [end.change_id, *(entry.change_id for entry in store.history("g"))]
    if told == "written":
        assert change.after.change_id in seen
    if told == "VersionConflict":
        assert change.after.change_id not in seen
    slept = len(watched.calls) - looked >= nth
    assert end.version == before + asleep * slept + (change.after.change_id in seen)
    assert [entry.version for entry in store.history("g")] == list(range(end.version, max(end.version - 3, 0), -1))


def test_a_writer_that_sleeps_only_a_little_always_knows(store: FolderStore, url: str) -> None:
    """Fewer changes than anybody deletes are made between its write and its look."""
    make(store, 30)
    for asleep in (0, 1, _KEPT - 1):
        with sleeper(url, 0, lambda: None) as (writer, watched):
            change = change_of(writer.load("g"))
            watched._nth, watched._meanwhile = len(watched.calls) + 2, partial(make, store, asleep)
            writer.apply(change)
        assert store.load("g").version == change.after.version + asleep


def test_the_stray_of_a_stale_writer_is_never_seen_and_taken_away(store: FolderStore, url: str, tmp_path: Path) -> None:
    """The number it had seen as the next one was used and deleted long ago."""
    make(store, 5)
    stale = FolderStore(url)
    change = change_of(stale.load("g"))
    make(store, 50)
    end = store.load("g")
    assert numbers(tmp_path)[0] > change.after.version
    with pytest.raises(VersionConflict):
        stale.apply(change)
    assert store.load("g") == stale.load("g") == end
    assert numbers(tmp_path)[0] > change.after.version


def test_the_strays_of_writers_that_died_are_no_history_and_deleted_in_time(url: str, tmp_path: Path) -> None:
    """Two of them, side by side, right below the oldest file that is kept; the readers keep more than the writers."""
    store, keeper = FolderStore(url), FolderStore(url.replace("=3", "=500"))
    seen = []
    for _ in range(60):
        seen.append(store.load("g"))
        store.apply(change_of(seen[-1]))
    oldest = numbers(tmp_path)[0]
    for version in (oldest - 2, oldest - 1):
        with sleeper(url, 2, _die) as (writer, _):
            writer._seen["g"] = _Seen(version - 1, "seen", seen[version - 1].change_id)
            with pytest.raises(Died):
                writer.apply(change_of(seen[version - 1]))
    assert numbers(tmp_path)[:3] == [oldest - 2, oldest - 1, oldest]
    assert store.load("g").version == 60
    assert [entry.version for entry in keeper.history("g", 500)] == list(range(60, oldest - 1, -1))
    make(store, 10)
    assert numbers(tmp_path)[0] > oldest


def _die() -> None:
    raise Died


def test_a_neighbours_stray_proves_nothing(url: str, tmp_path: Path) -> None:
    """A stale writer finds its predecessor there: another stale writer has just made it again."""
    store = FolderStore(url)
    seen = []
    for _ in range(60):
        seen.append(store.load("g"))
        store.apply(change_of(seen[-1]))
    oldest = numbers(tmp_path)[0]
    one, two = FolderStore(url), FolderStore(url)
    for stale, version in ((one, oldest - 3), (two, oldest - 2)):
        stale._seen["g"] = _Seen(version, "seen", seen[version].change_id)
    told: list[str] = []

    def second() -> None:
        with pytest.raises(OffsetkeeperError) as caught:
            two.apply(change_of(seen[oldest - 2]))
        told.append(type(caught.value).__name__)

    watched = Watched(one._files, 2, second)
    one._files = watched
    with pytest.raises((VersionConflict, OutcomeUnknown)):
        one.apply(change_of(seen[oldest - 3]))
    assert told[0] in {"VersionConflict", "OutcomeUnknown"}
    assert numbers(tmp_path)[0] == oldest


def test_a_look_that_fails_after_the_write_leaves_the_outcome_unknown(store: FolderStore, url: str) -> None:
    """The file is there, and may or may not count."""
    make(store, 3)

    def away() -> None:
        raise StoreUnavailable("away")

    with sleeper(url, 0, away) as (writer, watched):
        change = change_of(writer.load("g"))
        watched._nth = len(watched.calls) + 2
        with pytest.raises(OutcomeUnknown, match="away"):
            writer.apply(change)
    assert store.load("g") == change.after


def test_a_ledger_put_back_to_an_older_state_is_not_written_over(store: FolderStore, tmp_path: Path) -> None:
    """A backup is restored under a run that has seen more; what the run then writes does not stay."""
    make(store, 10)
    change = change_of(store.load("g"))
    for version in (8, 9, 10):
        (tmp_path / "g" / f"{version:012}.json").unlink()
    with pytest.raises(VersionConflict, match="version 10 is gone, the newest is 11"):
        store.apply(change)
    assert FolderStore(f"file://{tmp_path}").load("g").version == 7


@pytest.mark.parametrize("knows", [True, False], ids=["has seen it", "looks first"])
@pytest.mark.parametrize("newer", [0, 1])
def test_a_run_whose_newest_file_was_deleted_and_made_anew_writes_nothing_over_it(
    store: FolderStore, url: str, tmp_path: Path, *, newer: int, knows: bool
) -> None:
    """That is how a change is taken back by hand; the run was not stopped before, and sleeps."""
    make(store, 3)
    stale = FolderStore(url)
    change = change_of(stale.load("g"))
    stale._seen.clear() if not knows else None
    (tmp_path / "g" / f"{3:012}.json").unlink()
    make(FolderStore(url), 1 + newer)
    expected = FolderStore(url).load("g")
    with pytest.raises(VersionConflict):
        stale.apply(change)
    assert FolderStore(url).load("g") == expected


@pytest.mark.parametrize("before", [0, 1, 30])
@pytest.mark.parametrize("nth", [2, 3])
def test_a_writer_whose_file_another_has_written_over_is_not_told_that_it_counts(
    store: FolderStore, url: str, tmp_path: Path, *, nth: int, before: int
) -> None:
    """As on a server that looks whether there is a file, and then writes: two runs went on from the same ledger."""
    make(store, before)
    rival = change_of(store.load("g"))

    def write_over() -> None:
        (tmp_path / "g" / f"{before + 1:012}.json").unlink()
        store.apply(rival)

    with sleeper(url, 0, write_over) as (writer, watched):
        ledger = Ledger(writer, "g", retry_timeout_s=5)
        ledger.load()
        watched._nth = (
            len(watched.calls) + nth + (not before)
        )  # a first change lists the folder before it creates a file
        with pytest.raises(VersionConflict):
            ledger.record(change_of(ledger.snapshot))
    assert FolderStore(url).load("g") == rival.after


def test_so_many_files_are_kept_and_not_more(tmp_path: Path) -> None:
    """The size on disk does not grow with the age of the group; another program's file is not ours to delete."""
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "0.json").write_text('{"offsets":{"a":{"0":5}}}')
    store = FolderStore(f"file://{tmp_path}?history=50")
    make(store, 200)
    assert numbers(tmp_path)[0] == 0
    assert 50 <= len(numbers(tmp_path)) - 1 <= 56
    assert [entry.version for entry in store.history("g", 1000)] == list(range(200, 150, -1))


def test_a_long_history_is_read_many_files_at_once(url: str) -> None:
    """Where each is a round trip, one after the other would take seconds."""
    store = FolderStore(url.replace("history=3", "history=100"))
    make(store, 1 + 2 * _AT_ONCE)
    files, together = store._files, threading.Barrier(_AT_ONCE)

    class Meeting(Watched):
        def read(self, folder: str, name: str) -> Any:
            if name != f"{1 + 2 * _AT_ONCE:012}.json":
                together.wait(LIMIT_S)
            return files.read(folder, name)

    store._files = Meeting(files, 0, lambda: None)
    assert [entry.version for entry in store.history("g")] == list(range(1 + 2 * _AT_ONCE, 0, -1))


def test_a_change_looks_once_when_this_process_made_the_one_before(store: FolderStore, url: str) -> None:
    """One create, a look at the file before and one at its own: nothing more, whatever the age of the group."""
    make(store, 3)
    with sleeper(url.replace("=3", "=1000"), 0, lambda: None) as (writer, watched):
        found = writer.load("g")
        watched.calls.clear()
        for _ in range(3):
            change = change_of(found)
            writer.apply(change)
            found = change.after
        assert watched.calls == ["create", "stamp", "stamp"] * 3


def test_a_reader_that_is_overtaken_reads_again(store: FolderStore, url: str) -> None:
    """The file it was about to read is deleted by then."""
    make(store, 5)
    with sleeper(url, 2, lambda: make(store, 60)) as (reader, _):
        assert reader.load("g") == store.load("g")


@pytest.mark.parametrize(("fresh", "nth"), [(True, 1), (True, 2), (True, 3), (False, 1), (False, 2)])
def test_a_reader_that_sleeps_never_takes_a_stray_for_the_ledger(
    store: FolderStore, url: str, *, nth: int, fresh: bool
) -> None:
    """The newest file it has seen is deleted and made again by a stale writer before it is read."""
    make(store, 30)

    def others() -> None:
        make(store, 60)
        leave_stray(store, 30)

    with sleeper(url, 0, others) as (reader, watched):
        reader.load("g") if not fresh else None
        watched._nth = len(watched.calls) + nth
        found = reader.load("g")
    assert found == store.load("g")
