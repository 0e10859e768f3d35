"""The modes on the page are enough for a user of a file or folder, and each letter is needed; who lacks one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.nobody import nobody, open_up, set_letters
from fixtures.rights import rows
from fixtures.rights_suite import Lacking, RightsSuite, TryWithout
from fixtures.rights_tasks import LETTERS, granted, keeps, looks
from offsetkeeper.stores import open_store
from offsetkeeper.stores.folder import FolderStore

TASKS = {
    "SQLite": {
        "store that makes its file": keeps,
        "store, the file is there": keeps,
        "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
    },
    "A folder: `file://`": {
        "store, new groups": keeps,
        "store, a group of another user": keeps,
        "store, only looked at: `show`, `lag`, `history`, `groups`": looks,
    },
}


class Place:
    """A folder of this machine, in which another user has begun a group or not."""

    MADE_BY_THE_TASK = ("store that makes its file", "store, new groups")

    def __init__(self, heading: str, task: str, folder: Path) -> None:
        self.act = TASKS[heading][task]
        self.path = folder / "offsets"
        FolderStore(f"file://{self.path}").init()
        self.file = self.path / "offsets.db"
        self.url = f"sqlite:///{self.file}" if heading == "SQLite" else f"file://{self.path}"
        open_store(self.url).close()  # else its modules would be loaded by a user who may not read them
        if task not in self.MADE_BY_THE_TASK:
            keeps(self.url)

    def on(self, word: str) -> list[Path]:
        """Return what a word of the page stands for here."""
        named = {"the folder": [self.path], "the file": [self.file], "shop": [self.path / "shop"]}
        named |= {".tmp": [self.path / ".tmp"], "the group's files": sorted(self.path.glob("shop/*.json"))}
        return named[word]

    def permit(self, rights: list[tuple[str, str]]) -> None:
        """Set the modes of all that is there."""
        letters: dict[Path, int] = {}
        for right, word in rights:
            for path in self.on(word):
                letters[path] = letters.get(path, 0) | LETTERS[right]
        set_letters(self.path, letters)


def try_without(heading: str, task: str, folder: Path, lacking: Lacking | None) -> None:
    place = Place(heading, task, folder)
    place.permit(granted(rows(heading), task, lacking))
    try:
        with nobody():
            place.act(place.url)
    finally:
        open_up(place.path)


class TestFolder(RightsSuite):
    """The user of a folder or of a file."""

    headings = (*TASKS,)
    tasks = tuple({task: 0 for of in TASKS.values() for task in of})

    @pytest.fixture
    def try_without(self, reachable_folder: Path) -> TryWithout:
        """See `RightsSuite`."""
        return lambda heading, task, lacking: try_without(heading, task, reachable_folder, lacking)
