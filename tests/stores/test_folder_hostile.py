"""Other users write in the folder: what they put there is not followed, waited for, quoted or deleted elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fixtures.foul import FOUL, SECRET, at_once
from fixtures.nobody import nobody
from offsetkeeper.cli.main import app
from offsetkeeper.core import rules
from offsetkeeper.core.model import Change, Snapshot
from offsetkeeper.core.offsets import Position
from offsetkeeper.errors import CorruptStore, OffsetkeeperError, Refused
from offsetkeeper.stores import files
from offsetkeeper.stores.folder import FolderStore
from offsetkeeper.testing.rivals import PARTITION

pytestmark = pytest.mark.timeout(30)  # a FIFO is waited for without an end
NEWEST = "000000000099.json"


def rewind(snapshot: Snapshot, offset: int) -> Change:
    return rules.decide(snapshot, rules.Rewind({PARTITION: Position(offset)}), rules.Author("me", "me", 0, f"{offset}"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with the groups `shop` and `well`."""
    folder = tmp_path / "store"
    store = FolderStore(f"file://{folder}")
    store.init()
    for group in ("shop", "well"):
        store.apply(rewind(Snapshot(group), 1))
    return folder


def groups(root: Path) -> dict[str, str | None]:
    """Return what the command says of each group: an error, or None. It shows no secret."""
    found = CliRunner().invoke(app, ["groups", "--store", f"file://{root}", "--json"])
    table = CliRunner().invoke(app, ["groups", "--store", f"file://{root}"])
    assert SECRET not in found.output + table.output
    assert found.exit_code == table.exit_code
    return {each["group"]: each["error"] for each in json.loads(found.stdout)}


@pytest.mark.parametrize("what", FOUL)
def test_what_lies_in_place_of_the_newest_file_is_the_error_of_this_group_alone(root: Path, what: str) -> None:
    FOUL[what](root / "shop" / NEWEST)
    with at_once():
        found = groups(root)
    assert found["well"] is None
    assert NEWEST in (found["shop"] or "")


@pytest.mark.parametrize("what", FOUL)
def test_what_lies_in_place_of_any_file_is_an_error_of_ours(root: Path, what: str) -> None:
    """In place of one before the newest, of the next one, and of the one that another program writes."""
    store = FolderStore(f"file://{root}")
    before = store.load("shop")
    store.apply(rewind(before, 2))
    first = root / "shop" / "000000000001.json"
    first.unlink()
    FOUL[what](first)
    FOUL[what](root / "shop" / "0.json") if "link" not in what else None
    with at_once():
        for each in (store, FolderStore(f"file://{root}")):
            with pytest.raises(OffsetkeeperError) as raised:
                each.history("shop")
            assert SECRET not in str(raised.value)
        assert store.load("shop").positions == {PARTITION: Position(2)}
        store.apply(rewind(store.load("shop"), 3))


@pytest.mark.parametrize("what", [what for what in FOUL if what != "a folder"])
def test_what_lies_in_place_of_a_groups_folder_leads_nowhere(root: Path, what: str) -> None:
    store = FolderStore(f"file://{root}")
    FOUL[what](root / "other")
    with at_once():
        assert groups(root) == {"shop": None, "well": None}
        for act in (lambda: store.load("other"), lambda: store.apply(rewind(Snapshot("other"), 1))):
            with pytest.raises(Refused) as raised:
                act()
            assert SECRET not in str(raised.value)


@pytest.mark.parametrize("what", [what for what in FOUL if what != "a folder"])
def test_what_lies_in_place_of_the_store_is_refused_at_once(tmp_path: Path, what: str) -> None:
    """As `groups`, `serve` and a run ask for it. A link to a folder is followed: its path is the user's own."""
    (tmp_path / "here").mkdir()
    FOUL[what](tmp_path / "here" / "store")
    store = FolderStore(f"file://{tmp_path}/here/store")
    with at_once():
        for act in (
            *(store.init, store.groups, lambda: store.load("g"), lambda: store.history("g")),
            lambda: store.apply(rewind(Snapshot("g"), 1)),
        ):
            with pytest.raises(Refused) as raised:
                act()
            assert SECRET not in str(raised.value)


def test_a_link_to_a_folder_is_no_group_and_nothing_is_written_there(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "0.json").write_text('{"offsets": {"orders": {"0": 5}}}')
    (root / "other").symlink_to(elsewhere)
    found = groups(root)
    assert (found["shop"], "is a link, and links are not followed" in (found["other"] or "")) == (None, True)
    store = FolderStore(f"file://{root}")
    for act in (
        lambda: store.history("other"),
        lambda: store.load("other"),
        lambda: store.apply(rewind(Snapshot("other"), 1)),
    ):
        with pytest.raises(Refused, match="other was not opened: it is a link"):
            act()
    assert [each.name for each in elsewhere.iterdir()] == ["0.json"]


def test_a_link_in_place_of_the_temporary_folder_has_nothing_deleted(root: Path, tmp_path: Path) -> None:
    """What is old there would be taken for what crashed writers left."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "important").write_text("x")
    os.utime(elsewhere / "important", (1, 1))
    store = FolderStore(f"file://{root}?history=3")
    (root / ".tmp").rmdir()
    (root / ".tmp").symlink_to(elsewhere)
    with pytest.raises(Refused, match=r"\.tmp was not opened: it is a link"):
        store.apply(rewind(store.load("shop"), 2))
    with pytest.raises(Refused, match=r"\.tmp was not opened: it is a link"):
        store._files.clean()
    assert (elsewhere / "important").exists()


def test_a_group_that_may_not_be_looked_at_hides_no_other(reachable_folder: Path) -> None:
    reachable_folder.chmod(0o777)
    root = reachable_folder / "store"
    with nobody():
        store = FolderStore(f"file://{root}")
        store.init()
        for group in ("file", "folder", "well"):
            store.apply(rewind(Snapshot(group), 1))
        (root / "file" / "000000000001.json").chmod(0)
        (root / "folder").chmod(0)
        found = groups(root)
        (root / "folder").chmod(0o700)
    assert {name: "Permission denied" in (error or "") for name, error in found.items()} == {
        "file": True,
        "folder": True,
        "well": False,
    }


def test_a_file_that_was_pruned_between_listing_and_opening_is_read_anew(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(f"file://{root}")
    other = FolderStore(f"file://{root}")
    read = files.FileStore._find_newest
    done: list[int] = []

    def pruned(self: FolderStore, group: str) -> int | None:
        found = read(self, group)
        if self is store and not done:
            done.append(1)
            other.apply(rewind(other.load(group), 7))
            (root / group / "000000000001.json").unlink()
        return found

    monkeypatch.setattr(files.FileStore, "_find_newest", pruned)
    assert store.load("shop").positions == {PARTITION: Position(7)}


@pytest.mark.parametrize(
    "content",
    [
        *(SECRET, f'"{SECRET}"', f"\xff{SECRET}", f'{{"offsets": "{SECRET}"}}'),
        *(f'{{"offsets": {{"a": {{"{SECRET}": 1}}}}}}', f'{{"offsets": {{"a": {{"0": "{SECRET}"}}}}}}'),
        f'{{"offsets": {{}}, "version": 99, "format": "{SECRET}"}}',
    ],
)
def test_what_could_not_be_parsed_in_a_folder_is_not_quoted(root: Path, content: str) -> None:
    (root / "shop" / NEWEST).write_text(content, "latin-1")
    store = FolderStore(f"file://{root}")
    for act in (lambda: store.load("shop"), lambda: store.history("shop")):
        with pytest.raises(CorruptStore) as raised:
            act()
        assert SECRET not in str(raised.value)
        assert raised.value.__cause__ is None
    assert NEWEST in (groups(root)["shop"] or "")


def test_no_ledger_is_written_that_could_not_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(f"file://{root}")
    change = rewind(store.load("shop"), 2)
    monkeypatch.setattr(files, "LARGEST_STORED", len(store._content(change)) - 1)
    with pytest.raises(
        Refused, match=r"the ledger of group 'shop' has \d+ bytes, and a file has .* nothing was written"
    ):
        store.apply(change)
    assert store.load("shop").version == 1
