"""A SQLite file by two names: SQLite looks for `-wal`, with the last commits, and `-shm`, with the locks, beside one.

So a program that opens another name would not see the last commits, and would commit beside the first one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from offsetkeeper.core.ledger import Ledger
from offsetkeeper.core.offsets import OffsetRange, Position
from offsetkeeper.errors import Refused
from offsetkeeper.sinks.sqlite import SQLiteDatabase
from offsetkeeper.stores.sqlite import SQLiteStore
from offsetkeeper.testing.rivals import PARTITION

SHOW = """
import sys
from offsetkeeper.errors import Refused
from offsetkeeper.stores import open_store
for path in sys.argv[1:]:
    try:
        print(open_store(f"sqlite:///{path}").load("g").version)
    except Refused as error:
        print(error)
"""
MOUNTED = """
mount --bind "$1/host/off sets.db" "$1/box/off sets.db"
mount --bind "$1/host" "$1/folder"
mount --bind "$1/host" "$1/both"
mount --bind "$1/host/off sets.db" "$1/both/off sets.db"
mount --bind "$1/box/off sets.db" "$1/hidden/off sets.db"
mount --bind "$1/host" "$1/hidden"
cd "$1"
exec "$2" -c "$3" "$1/box/off sets.db" link.db "folder/off sets.db" "both/off sets.db" "hidden/off sets.db"
"""


@pytest.fixture
def run(tmp_path: Path, at_end: ExitStack) -> Ledger:
    """A run that is at offset 10, with a connection open."""
    (tmp_path / "host").mkdir()
    store = at_end.enter_context(closing(SQLiteStore(f"sqlite:///{tmp_path}/host/off sets.db")))
    ledger = Ledger(store, "g", retry_timeout_s=1)
    ledger.acquire()
    ledger.place({PARTITION: Position(0)})
    ledger.commit(ledger.batch([OffsetRange(*PARTITION, 0, 10)]))
    return ledger


def test_a_second_name_of_the_file_is_refused_and_the_run_goes_on(run: Ledger, tmp_path: Path) -> None:
    file, other = tmp_path / "host" / "off sets.db", tmp_path / "other.db"
    other.hardlink_to(file)
    (tmp_path / "link.db").symlink_to(other)
    for name in (file, other, tmp_path / "link.db"):
        store, output = SQLiteStore(f"sqlite:///{name}"), SQLiteDatabase(name, "here")
        looks: list[Callable[[], object]] = [lambda store=store: store.load("g"), store.groups]  # type: ignore[misc]
        looks.append(lambda output=output: output.run(lambda each: each.execute("SELECT 1")))  # type: ignore[misc]
        for look in looks:
            with pytest.raises(Refused, match="a second name, a hard link"):
                look()
    assert not list(tmp_path.glob("other.db-*"))
    run.commit(run.batch([OffsetRange(*PARTITION, 10, 20)]))
    other.unlink()
    assert SQLiteStore(f"sqlite:///{file}").load("g") == run.snapshot


def test_a_file_that_is_mounted_without_its_folder_is_refused(run: Ledger, tmp_path: Path) -> None:
    """As by `docker run -v /host/offsets.db:/app/offsets.db`, or `subPath`. What mounts its folder sees each commit.

    So does who mounts the file too, or has a mount of the file that is hidden by one of the folder.
    """
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "off sets.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "box" / "off sets.db")
    for folder in ("folder", "both", "hidden"):
        (tmp_path / folder).mkdir()
    (tmp_path / "hidden" / "off sets.db").touch()
    unshare = [shutil.which("unshare") or "", "-rm"]  # the mounts end with the process
    if not unshare[0] or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a Linux that lets this user mount")
    command = [*unshare, "sh", "-ec", MOUNTED, "sh", str(tmp_path), sys.executable, SHOW]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert ["is mounted without its folder" in each for each in told] == [True, True, False, False, False]
    assert told[2:] == [str(run.snapshot.version)] * 3
    assert not list((tmp_path / "box").glob("*-*"))
