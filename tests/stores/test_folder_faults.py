"""The store in a folder: processes killed at each step of a write, and a file system that refuses."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from offsetkeeper.cli.main import app
from offsetkeeper.core import rules
from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import (
    CorruptStore,
    OffsetkeeperError,
    OutcomeUnknown,
    Refused,
    SettingsError,
    StoreUnavailable,
)
from offsetkeeper.stores import open_store
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.rivals import PARTITION, next_batch, rival

CALLS = ("mkdir", "open", "fsync", "link", "unlink")
SURELY_NOT: tuple[type[OffsetkeeperError] | None, ...] = (StoreUnavailable, Refused)
NOBODY = 65534


def nth_call(nth: int, do: Callable[[], object]) -> Callable[[], int]:
    """Let `do` run right before the nth of the calls by which a file is written; return a counter of them."""
    made = 0

    def watched(call: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        if made == nth:
            do()
        return call(*arguments, **more)

    for name in CALLS:
        setattr(os, name, partial(watched, getattr(os, name)))
    return lambda: made


@pytest.fixture(autouse=True)
def made(tmp_path: Path) -> None:
    """Make the folder a store."""
    FolderStore(f"file://{tmp_path}").init()


def test_a_folder_without_a_ledger_is_no_group(tmp_path: Path) -> None:
    for name, file in (("junk", "readme.txt"), ("others", "0.json"), ("empty", "")):
        (tmp_path / name).mkdir()
        if file:
            (tmp_path / name / file).write_text('{"offsets": {}}')
    store = FolderStore(f"file://{tmp_path}")
    store.apply(rewind(Snapshot("ours"), 1))
    assert store.groups() == ["others", "ours"]


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the calls back in the end."""
    for name in CALLS:
        monkeypatch.setattr(os, name, getattr(os, name))


def rewind(snapshot: Snapshot, offset: int) -> Change:
    return rules.decide(snapshot, rules.Rewind({PARTITION: Position(offset)}), rules.Author("me", "me", 0, f"{offset}"))


def victims(pipe: Connection, url: str) -> None:
    """Change a group in a forked process, killed right before its nth call, for n = 1, 2, …; say how each ended."""
    for nth in range(1, 30):
        child = os.fork()
        if not child:
            store = FolderStore(f"{url}/{nth}")
            nth_call(nth, lambda: os.kill(os.getpid(), signal.SIGKILL))
            store.apply(rewind(store.load("g"), 2))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        pipe.send(code)
        if code == 0:
            return


@pytest.mark.parametrize("first", [True, False], ids=["of a new group", "of a known group"])
def test_a_process_killed_at_any_step_of_a_write_leaves_all_or_nothing(tmp_path: Path, *, first: bool) -> None:
    """The next one goes on at once, from before the change or from after it."""
    for nth in range(1, 30):
        FolderStore(f"file://{tmp_path}/{nth}").init()
        if not first:
            FolderStore(f"file://{tmp_path}/{nth}").apply(rewind(Snapshot("g"), 1))
    old = FolderStore(f"file://{tmp_path}/29").load("g")
    found: list[Snapshot] = []
    code: int = -signal.SIGKILL
    with rival(victims, f"file://{tmp_path}") as helper:
        while code == -signal.SIGKILL:
            code = helper.hear()
            store = FolderStore(f"file://{tmp_path}/{len(found) + 1}")
            found.append(store.load("g"))
            assert store.groups() == (["g"] if found[-1].version else [])
            ledger = Ledger(store, "g", retry_timeout_s=5)
            ledger.acquire()
            assert ledger.snapshot.version == found[-1].version + 1
    assert code == 0
    assert len(found) > 6
    new = rewind(old, 2).after
    landed = found.index(new)
    assert found == [old] * landed + [new] * (len(found) - landed)
    assert 3 < landed < len(found) - 1


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.EPERM])
def test_an_error_at_any_step_says_whether_anything_was_written(tmp_path: Path, number: int) -> None:
    """No room is worth another try, no permission is not; after the file has its name it may or may not last."""

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    usual = {name: getattr(os, name) for name in CALLS}
    told: list[type[OffsetkeeperError] | None] = []
    messages: list[str] = []
    for nth in range(1, 30):
        store = FolderStore(f"file://{tmp_path}")
        before = store.load("g")
        change = rewind(before, nth)
        made = nth_call(nth, fail)
        told.append(None)
        try:
            store.apply(change)
        except OffsetkeeperError as error:
            told[-1] = type(error)
            messages.append(str(error))
        for name, call in usual.items():
            setattr(os, name, call)
        found = FolderStore(f"file://{tmp_path}").load("g")
        may_be = {OutcomeUnknown: [before, change.after], None: [change.after]} | {
            kind: [before] for kind in SURELY_NOT
        }
        assert found in may_be[told[-1]]
        if made() < nth:
            break
    passing = number in {errno.ENOSPC, errno.EDQUOT, errno.EIO}
    assert set(told) == {StoreUnavailable if passing else Refused, OutcomeUnknown, None}
    assert all(os.strerror(number) in message for message in messages)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("done", [True, False], ids=["done, then an error", "an error, and not done"])
@pytest.mark.parametrize("name", ["EIO", "ETIMEDOUT", "ESTALE", "ECONNRESET", "ENOTCONN", "EHOSTDOWN", "EINTR"])
def test_a_file_system_whose_answer_is_lost_may_have_made_the_file(tmp_path: Path, name: str, *, done: bool) -> None:
    """Over a network it may. It was told as "nothing was written", and then the rewind counted."""
    store = FolderStore(f"file://{tmp_path}")
    store.apply(rewind(Snapshot("g"), 50))
    change, usual = rewind(store.load("g"), 0), os.link

    def link(*arguments: Any, **more: Any) -> None:
        if done:
            usual(*arguments, **more)
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))

    os.link = link
    with pytest.raises(OutcomeUnknown, match=r"000000000002\.json may have been made"):
        store.apply(change)
    os.link = usual
    assert FolderStore(f"file://{tmp_path}").load("g") == (change.after if done else change.before)
    assert list((tmp_path / ".tmp").iterdir()) == []


@pytest.mark.parametrize("at", ["the link", "the sync", "each sync"])
def test_a_commit_counts_only_once_its_name_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The file was there after the error, and counted: a loss of power would have taken an acknowledged commit back."""
    ledger, folder = Ledger(FolderStore(f"file://{tmp_path}"), "g", retry_timeout_s=0.5), tmp_path / "g"
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    ledger.begin(batch := next_batch(ledger, 10))
    usual_link, usual_sync, failed = os.link, os.fsync, list[str]()
    durable: list[str] = []

    def link(*arguments: Any, **more: Any) -> None:
        usual_link(*arguments, **more)
        if at == "the link" and not failed:
            failed.append(at)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def fsync(descriptor: Any) -> None:
        if os.fstat(descriptor).st_ino == folder.stat().st_ino:
            if "sync" in at and (at == "each sync" or not failed):
                failed.append(at)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            durable[:] = [path.name for path in folder.iterdir()]
        usual_sync(descriptor)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "fsync", fsync)
    if at == "each sync":
        with pytest.raises(OutcomeUnknown, match="unknown whether its commit is written"):
            ledger.commit(batch)
        assert durable == []
        return
    ledger.commit(batch)
    assert failed
    assert f"{ledger.snapshot.version:012}.json" in durable
    assert FolderStore(f"file://{tmp_path}").load("g") == ledger.snapshot


def small_files(pipe: Connection, url: str) -> None:
    """Write under a limit that cuts files off half-way."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    store = FolderStore(url)
    try:
        store.apply(rewind(store.load("g"), 2))
    except OffsetkeeperError as error:
        pipe.send((type(error).__name__, str(error)))


def as_nobody(pipe: Connection, url: str) -> None:
    """Read and try to write as a user who may only read."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    store = FolderStore(url)
    found = store.load("g")
    try:
        store.apply(rewind(found, 2))
    except OffsetkeeperError as error:
        pipe.send((type(error).__name__, str(error)))


def told_by(function: Callable[..., None], url: str) -> tuple[str, str]:
    with rival(function, url) as child:
        name, message = child.hear()
    return name, message


def test_a_file_that_was_cut_off_gets_no_name(tmp_path: Path) -> None:
    """The system wrote a part of it and then refused."""
    store = FolderStore(f"file://{tmp_path}")
    store.apply(rewind(Snapshot("g"), 1))
    name, message = told_by(small_files, f"file://{tmp_path}")
    assert (name, "too large" in message) == ("Refused", True)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == [".offsetkeeper", ".tmp", "000000000001.json"]
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_folder_that_may_only_be_read_is_told(tmp_path: Path) -> None:
    """In a process of a user without rights: root could write all the same."""
    store = FolderStore(f"file://{tmp_path}")
    store.apply(rewind(Snapshot("g"), 1))
    for folder in (tmp_path, tmp_path / "g", tmp_path / ".tmp", *tmp_path.parents[:3]):
        folder.chmod(0o555 if tmp_path in (folder, *folder.parents) else folder.stat().st_mode | 0o055)
    name, message = told_by(as_nobody, f"file://{tmp_path}")
    assert name == "Refused"
    assert "permissions" in message
    assert store.load("g").positions == {PARTITION: Position(1)}


def test_a_folder_that_does_not_exist_is_no_empty_ledger(tmp_path: Path) -> None:
    """It may only not be mounted; another one in its place would begin all groups anew."""
    store = FolderStore(f"file://{tmp_path}/none")
    acts: tuple[Callable[[], object], ...] = (
        lambda: store.load("g"),
        lambda: store.apply(rewind(Snapshot("g"), 1)),
        store.groups,
        lambda: store.history("g"),
    )
    for act in acts:
        with pytest.raises(Refused, match=r"does not exist\. Mount it"):
            act()
    assert [path.name for path in tmp_path.iterdir()] == [".offsetkeeper"]


@pytest.mark.parametrize("kept", [False, True], ids=["a new process", "the one that has written there"])
def test_an_empty_folder_is_a_store_only_where_somebody_has_said_so(tmp_path: Path, *, kept: bool) -> None:
    """The place of a mount is an empty folder while nothing is mounted: a ledger in it would begin all groups anew."""
    store = FolderStore(f"file://{tmp_path}/mount")
    store.init()
    store.apply(rewind(Snapshot("g"), 5))
    away = (tmp_path / "mount").rename(tmp_path / "away")
    (tmp_path / "mount").mkdir()
    with pytest.raises(
        Refused, match=r"has no ledger.*its file system is not mounted.*offsetkeeper init --store 'file:"
    ):
        (store if kept else FolderStore(f"file://{tmp_path}/mount")).apply(rewind(Snapshot("g"), 1))
    for one in (store, FolderStore(f"file://{tmp_path}/mount")):
        for look in (one.groups, lambda: one.load("g"), lambda: one.history("g")):  # noqa: B023 - at once
            with pytest.raises(Refused, match="its file system is not mounted"):
                look()
    assert list((tmp_path / "mount").iterdir()) == []
    (tmp_path / "mount").rmdir()
    away.rename(tmp_path / "mount")
    assert FolderStore(f"file://{tmp_path}/mount").load("g").positions == {PARTITION: Position(5)}


def test_a_folder_of_an_older_release_is_a_store(tmp_path: Path) -> None:
    """Its ledgers say so, also those of another program."""
    (tmp_path / ".offsetkeeper").unlink()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "0.json").write_text('{"offsets": {}}')
    FolderStore(f"file://{tmp_path}").apply(rewind(Snapshot("ours"), 1))
    assert (tmp_path / ".offsetkeeper").exists()


def test_init_is_said_by_a_command(tmp_path: Path) -> None:
    for told in ("is a store now", "is a store already"):
        done = CliRunner().invoke(app, ["init", "--store", f"file://{tmp_path}/new"])
        assert (done.exit_code, told in done.output) == (0, True)
    FolderStore(f"file://{tmp_path}/new").apply(rewind(Snapshot("g"), 1))
    with pytest.raises(Refused, match="does not exist"):
        FolderStore(f"file://{tmp_path}/none/below").init()
    done = CliRunner().invoke(app, ["init", "--store", f"sqlite:///{tmp_path}/offsets.db"])
    assert "needs no init" in done.output
    assert not (tmp_path / "offsets.db").exists()


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Refused):
        FolderStore(f"file://{tmp_path}/file").load("g")


def test_temporary_files_of_crashed_writers_go_after_an_hour(tmp_path: Path) -> None:
    """Not those of writers that may be at work."""
    store = FolderStore(f"file://{tmp_path}?history=3")
    store.apply(rewind(Snapshot("g"), 0))
    for name, mtime in (("old", 1), ("new", None)):
        (tmp_path / ".tmp" / name).write_text("half")
        if mtime:
            os.utime(tmp_path / ".tmp" / name, (mtime, mtime))
    for offset in range(1, 30):
        store.apply(rewind(store.load("g"), offset))
    assert [path.name for path in (tmp_path / ".tmp").iterdir()] == ["new"]


def test_a_temporary_file_that_was_taken_away_leaves_nothing_written(tmp_path: Path) -> None:
    """The writer had slept for an hour."""
    store = FolderStore(f"file://{tmp_path}")
    store.apply(rewind(Snapshot("g"), 1))
    link = os.link

    def late(source: str, target: str, **folders: Any) -> None:
        os.unlink(source, dir_fd=folders["src_dir_fd"])
        link(source, target, **folders)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", late)
        with pytest.raises(StoreUnavailable):
            store.apply(rewind(store.load("g"), 2))
    store.apply(rewind(store.load("g"), 3))


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("caf\u00e9", "cafe\u0301")])
def test_groups_that_a_file_system_takes_for_one_are_not_mixed_up(tmp_path: Path, one: str, other: str) -> None:
    """Made here by another name for the folder. The second group went on from the offsets of the first."""
    store = FolderStore(f"file://{tmp_path}")
    store.apply(rewind(Snapshot(one), 900))
    (tmp_path / one).rename(tmp_path / other)
    file = tmp_path / other / "000000000001.json"
    before = file.read_text()
    acts: tuple[Callable[[], object], ...] = (
        lambda: store.load(other),
        lambda: store.history(other),
        Ledger(store, other, retry_timeout_s=1).acquire,
    )
    for act in acts:
        with pytest.raises(CorruptStore, match=f"is the ledger of group '{one}', and not of '{other}'"):
            act()
    assert {path: path.read_text() for path in file.parent.iterdir()} == {file: before}
    raw = json.loads(before)
    assert raw.pop("group") == one
    file.write_text(json.dumps(raw))  # as an older release has written it, or somebody who copies files
    store.apply(rewind(store.load(other), 5))
    assert [entry.version for entry in store.history(other)] == [2, 1]
    assert json.loads((tmp_path / other / "000000000002.json").read_text())["group"] == other


@pytest.mark.parametrize("content", ["", '{"offsets":{"a":{"0":1', "my notes", '{"offsets":{"a":{"0":"1"}}}'])
def test_another_programs_file_that_is_torn_is_told_and_left(tmp_path: Path, content: str) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "0.json").write_text(content)
    store = FolderStore(f"file://{tmp_path}")
    with pytest.raises(CorruptStore, match=r"g/0\.json.*correct or delete"):
        Ledger(store, "g", retry_timeout_s=1).acquire()
    assert (tmp_path / "g" / "0.json").read_text() == content


def test_files_of_other_names_are_not_ours(tmp_path: Path) -> None:
    """An editor's copy, a backup, a number with a leading zero."""
    (tmp_path / "g").mkdir()
    for name in ("7.json~", "8.json.bak", "009.json", "7.json", "-1.json", "x.json", "0x1.json", "٣.json"):
        (tmp_path / "g" / name).write_text("garbage")
    store = FolderStore(f"file://{tmp_path}")
    assert store.load("g") == Snapshot("g")
    store.apply(rewind(Snapshot("g"), 1))
    assert store.load("g").version == 1


def test_the_newest_file_is_read_by_ordinary_tools(tmp_path: Path) -> None:
    """None of our code: ls, and any JSON reader."""
    ledger = Ledger(FolderStore(f"file://{tmp_path}"), "my group", retry_timeout_s=5)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    for _ in range(10):
        ledger.commit(next_batch(ledger, 10))
    listed = subprocess.run(["ls", tmp_path / "my group"], capture_output=True, text=True, check=True)  # noqa: S607
    newest = listed.stdout.split()[-1]
    raw = json.loads((tmp_path / "my group" / newest).read_text())
    assert (newest, raw["offsets"]) == ("000000000012.json", {"rivals": {"0": 100}})
    assert raw["entry"]["event"] == "commit"


@pytest.mark.parametrize(
    "url", ["file://", "file://relative", "file://host/folder", "file:relative", "file:///x#y", "file:///x?timeout=1"]
)
def test_a_url_that_names_no_folder_is_refused_in_a_folder(url: str) -> None:
    with pytest.raises(SettingsError):
        open_store(url)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    FolderStore(f"file://{tmp_path}/my%20folder").init()
    store = open_store(f"file://{tmp_path}/my%20folder")
    store.apply(rewind(Snapshot("g"), 1))
    assert (tmp_path / "my folder" / "g" / "000000000001.json").exists()
    assert repr(store) == f"FolderStore('file://{tmp_path}/my%20folder')"


def test_a_file_is_synced_before_it_gets_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power cannot be made here, so the order of the calls is looked at."""
    store, calls = FolderStore(f"file://{tmp_path}"), list[str]()
    store.apply(rewind(Snapshot("g"), 1))
    sync, link = os.fsync, os.link

    def seen(descriptor: int) -> None:
        calls.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().parent.name}")
        sync(descriptor)

    def named(source: str, target: str, **folders: Any) -> None:
        calls.append("link")
        link(source, target, **folders)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(os, "link", named)
    store.apply(rewind(store.load("g"), 2))
    assert calls == ["sync .tmp", "link", f"sync {tmp_path.name}"]
